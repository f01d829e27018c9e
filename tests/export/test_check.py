"""An export is compared with sentence-transformers before it appears."""

import importlib.util
import logging

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cdejax
from cdejax.export import export_model, readers
from cdejax.export.check import check_export, check_sentence_transformers
from cdejax.export.readers import sentence_transformers_vectors
from cdejax.models.pretrained.settings import read_settings

from .conftest import MAX_LENGTH, PROMPTS, small_biencoder, small_contextual


@pytest.fixture(scope="module")
def exported(minilm, tmp_path_factory):
    place = tmp_path_factory.mktemp("checked") / "model"
    given = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    return export_model(small_biencoder("bert"), minilm, place, **given)


def test_an_export_that_both_read_alike_passes(exported, caplog):
    pytest.importorskip("sentence_transformers")
    with caplog.at_level(logging.INFO, "cdejax"):
        check_export(cdejax.load(exported), exported)
    assert "sentence-transformers differs by" in caplog.text


@pytest.mark.slow
def test_a_contextual_export_passes(minilm, tmp_path):
    pytest.importorskip("sentence_transformers")
    model = small_contextual("bert")
    given = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    place = export_model(model, minilm, tmp_path / "contextual", **given)
    check_export(cdejax.load(place), place)


def test_a_difference_is_an_error_before_the_folder_appears(exported, tmp_path):
    pytest.importorskip("sentence_transformers")

    def spoilt(partial):
        """Names that cdejax understands; sentence-transformers draws new weights."""
        file = partial / "model.safetensors"
        tensors = {f"module.{name}": t for name, t in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
        check_export(embedder, partial)

    embedder = cdejax.load(exported)
    with pytest.raises(ValueError, match="between cdejax and"):
        export_model(
            embedder.model,
            exported,
            tmp_path / "out",
            **read_settings(exported),
            check=spoilt,
        )
    assert not (tmp_path / "out").exists()


def test_without_sentence_transformers_one_line_says_so(exported, caplog, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.INFO, "cdejax"):
        check_sentence_transformers(exported, None)
    (record,) = caplog.records
    assert "sentence-transformers, which is not installed" in record.message


def test_one_process_of_sentence_transformers_reads_all_exports(minilm, tmp_path):
    """It takes seconds to start; what one folder made it load, the next cannot see."""
    pytest.importorskip("sentence_transformers")
    given = {"prompts": PROMPTS, "max_length": MAX_LENGTH}
    texts = ["a text", "another one"]
    places = [tmp_path / name / "same" for name in ("first", "second")]
    for place in places:
        export_model(small_contextual("bert"), minilm, place, **given)
    code = places[1] / "modeling_cdejax.py"
    code.write_text(code.read_text().replace("class ", "BROKEN = 1 / 0\n\n\nclass ", 1))
    first = sentence_transformers_vectors(places[0], texts, True)
    assert np.isfinite(first).all()
    reader = readers._sentence_transformers()
    process = reader._process
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        sentence_transformers_vectors(places[1], texts, True)
    again = sentence_transformers_vectors(places[0], texts, True)
    np.testing.assert_array_equal(first, again)
    assert reader._process is process


def test_a_reader_that_ended_is_started_again(exported):
    pytest.importorskip("sentence_transformers")
    texts = ["a text"]
    before = sentence_transformers_vectors(exported, texts, False)
    process = readers._sentence_transformers()._process
    assert process is not None
    process.kill()
    process.wait()
    after = sentence_transformers_vectors(exported, texts, False)
    np.testing.assert_array_equal(before, after)
