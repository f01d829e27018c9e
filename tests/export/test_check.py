"""An export is compared with sentence-transformers before it appears."""

import importlib.util
import logging

import pytest
from safetensors.numpy import load_file, save_file

import cdejax
from cdejax.export import export_model
from cdejax.export.check import check_export, check_sentence_transformers
from cdejax.folder import read_settings

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
