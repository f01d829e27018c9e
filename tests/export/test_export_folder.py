"""Where an export is written, and what it refuses."""

import errno
import json
from importlib.metadata import version

import pytest
from packaging.specifiers import SpecifierSet

import cdejax.export.folder
from cdejax import load
from cdejax.export import export_model

from .conftest import MAX_LENGTH, PROMPTS, small_biencoder, small_contextual

TABLE = {
    "no document prompt": ({"prompts": {"query": ""}}, "`query` and `document`"),
    "longer than the positions": ({"max_length": 65}, "64 learned positions"),
    "context longer than them": ({"context_length": 65}, "64 learned positions"),
    "no room for text": ({"max_length": 2}, "2 special tokens"),
    "no tokenizer": ({"tokenizer_folder": "/nowhere"}, "no tokenizer there"),
}


@pytest.fixture(scope="module")
def model():
    return small_biencoder("bert")


@pytest.fixture
def arguments(minilm, tmp_path):
    return {
        "tokenizer_folder": minilm,
        "folder": tmp_path / "out" / "model",
        "prompts": PROMPTS,
        "max_length": MAX_LENGTH,
    }


@pytest.mark.parametrize(("change", "message"), TABLE.values(), ids=TABLE)
def test_refused(model, arguments, change, message):
    with pytest.raises(ValueError, match=message):
        export_model(model, **(arguments | change))
    assert not arguments["folder"].exists()


def test_refuses_a_tokenizer_of_another_model(minilm, arguments):
    from flax import nnx

    from cdejax.models import Bert, BertConfig, BiEncoder

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=100, num_hidden_layers=1, **sizes)
    with pytest.raises(ValueError, match="embeds 100"):
        export_model(BiEncoder(Bert(config, nnx.Rngs(0))), **arguments)


def test_refuses_a_folder_with_something_else(model, arguments):
    folder = arguments["folder"]
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="not empty and no export of cdejax"):
        export_model(model, **arguments)
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_refuses_a_file(model, arguments):
    arguments["folder"].parent.mkdir()
    arguments["folder"].write_text("")
    with pytest.raises(ValueError, match="is a file"):
        export_model(model, **arguments)


def test_same_export_again_is_free_and_another_is_refused(model, arguments):
    folder = export_model(model, **arguments)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert export_model(model, **arguments) == folder
    for other in ({"max_length": 20}, {"metadata": {"name": "other"}}):
        with pytest.raises(ValueError, match="export of another model"):
            export_model(model, **(arguments | other))
    with pytest.raises(ValueError, match="export of another model"):
        export_model(small_contextual("bert"), **arguments)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_flipped_bit_of_an_export_is_named_when_it_is_loaded(
    model, arguments, caplog
):
    folder = export_model(model, **arguments)
    load(folder)
    assert "not as it was exported" not in caplog.text
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    load(folder)
    assert "not as it was exported (model.safetensors is damaged)" in caplog.text


@pytest.mark.parametrize(
    "table",
    [
        [1],
        5,
        {"model.safetensors": 5},
        {"model.safetensors": []},
        {"model.safetensors": [1, "2"]},
        {"a\0b": [1, 2]},
        {"../model.safetensors": [1, 2]},
        {"/etc/hostname": [1, 2]},
    ],
)
def test_a_damaged_table_of_digests_is_named(model, arguments, table, caplog):
    folder = export_model(model, **arguments)
    marker = json.loads((folder / "cdejax.json").read_text())
    (folder / "cdejax.json").write_text(json.dumps(marker | {"digests": table}))
    load(folder)
    assert "cdejax.json: digests: no table of digests; it was changed" in caplog.text


def test_a_contextual_export_names_the_versions_that_it_needs(arguments):
    folder = export_model(small_contextual("bert"), **arguments)
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert {"sentence-transformers", "transformers"} <= config["requirements"].keys()
    for name, wanted in config["requirements"].items():
        assert SpecifierSet(wanted).contains(version(name))


def test_a_full_disk_is_named_and_leaves_nothing(model, arguments, small_disk):
    folder = small_disk[0] / "export"
    (small_disk[0] / "filler").write_bytes(bytes(8 << 20))
    with pytest.raises(ValueError, match=r"No space left on device\. Free some space"):
        export_model(model, **(arguments | {"folder": folder}))
    assert [path.name for path in small_disk[0].iterdir()] == ["filler"]


def test_an_empty_folder_will_do(model, arguments):
    arguments["folder"].mkdir(parents=True)
    assert (export_model(model, **arguments) / "config.json").is_file()


def test_full_disk_leaves_nothing(model, arguments, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cdejax.export.folder, "_save", full)
    with pytest.raises(ValueError, match="No space left"):
        export_model(model, **arguments)
    assert not list(arguments["folder"].parent.iterdir())


def test_what_a_killed_export_left_is_removed(model, arguments):
    folder = arguments["folder"]
    partial = folder.with_name(f".{folder.name}.partial")
    (partial / "1_Pooling").mkdir(parents=True)
    (partial / "half.safetensors").write_text("")
    export_model(model, **arguments)
    assert not partial.exists()
    assert not (folder / "half.safetensors").exists()
    assert not (folder / ".lock").exists()


def test_a_card_that_says_less_is_renewed_unless_it_was_edited(model, arguments):
    folder = export_model(model, **arguments)
    card = folder / "README.md"
    assert "Not evaluated." in card.read_text()
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    export_model(model, **arguments, metadata={"scores": {"scifact": 0.61}})
    assert "| scifact | 0.61 |" in card.read_text()
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights
    card.write_text(card.read_text() + "\nMy own words.\n")
    export_model(model, **arguments, metadata={"scores": {"scifact": 0.62}})
    assert card.read_text().endswith("My own words.\n")
    assert "| scifact | 0.61 |" in card.read_text()
    card.unlink()
    export_model(model, **arguments, metadata={"scores": {"scifact": 0.62}})
    assert "| scifact | 0.62 |" in card.read_text()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_no_torch_in_the_package_itself():
    """The torch files are data: nothing imports them."""
    import subprocess
    import sys

    code = (
        "import sys, cdejax.export;"
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
