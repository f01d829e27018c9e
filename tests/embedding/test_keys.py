"""What is made from a folder depends on every file that reading it opens."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import cdejax
from cdejax.embedding import keys
from cdejax.export import export_model
from cdejax.folders import reading
from cdejax.models import Bert, BertConfig, BiEncoder, ContextualConfig
from cdejax.models.contextual import ContextualEncoder
from cdejax.models.modules import Chain, Dense

SIZES = BertConfig(30522, 16, 1, 2, 24, max_position_embeddings=64)
PROMPTS = {"query": "query: ", "document": ""}


@pytest.fixture(scope="module")
def plain(minilm, tmp_path_factory):
    """A biencoder with a head, whose weights are in two shards."""
    head = Chain([Dense(32, 8, nnx.Rngs(1))])
    model = BiEncoder(Bert(SIZES, nnx.Rngs(0)), "cls+max", head)
    folder = tmp_path_factory.mktemp("plain") / "model"
    export_model(model, minilm, folder, prompts=PROMPTS, max_length=32)
    return sharded(folder)


@pytest.fixture(scope="module")
def older(plain, minilm, tmp_path_factory):
    """The same as older sentence-transformers wrote it: vocab.txt, 0_Transformer."""
    folder = tmp_path_factory.mktemp("older") / "model"
    shutil.copytree(plain, folder)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in folder.iterdir():
        if file.is_file() and file.name not in ("modules.json", "README.md"):
            file.rename(inner / file.name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (inner / name).unlink()
    shutil.copy(minilm / "vocab.txt", inner)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = inner.name
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture(scope="module")
def baked(minilm, tmp_path_factory):
    from cdejax.export.baked import export_baked

    place = tmp_path_factory.mktemp("baked")
    rngs = nnx.Rngs(0)
    config = ContextualConfig(context_size=4)
    model = ContextualEncoder(config, Bert(SIZES, rngs), Bert(SIZES, rngs), rngs)
    export_model(model, minilm, place / "whole", prompts=PROMPTS, max_length=32)
    embedder = cdejax.load(place / "whole")
    context = embedder.context(["one", "two words", "three words here"])
    return export_baked(embedder, context, place / "model")


def sharded(folder: Path) -> Path:
    """Splits a folder's weights into two files and their index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, places = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = json.dumps({"weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


KINDS = ["plain", "older", "baked"]


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(request.getfixturevalue(request.param), copy)
    return copy


AUDITED = """
import json, os, sys
folder, opened, found = "nowhere", set(), {}
def hook(event, args):
    path = os.fspath(args[0]) if event == "open" and args[0] != -1 else None
    if isinstance(path, str) and os.path.realpath(path).startswith(folder + os.sep):
        opened.add(os.path.relpath(os.path.realpath(path), folder))
import cdejax
from cdejax.embedding import load
from cdejax.storage.hashing import file_hash
load.warn_of_changes = lambda _: None  # reads all files, and decides nothing
sys.addaudithook(hook)
for given in sys.argv[1:]:
    folder, opened = os.path.realpath(given), set()
    cdejax.load(given)
    found[given] = sorted(opened)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def opened(plain, older, baked):
    """Files of each folder that loading it opens, in a process that did not before."""
    folders = {"plain": plain, "older": older, "baked": baked}
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, *map(str, folders.values())],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: set(found[str(folder)]) for name, folder in folders.items()}


@pytest.mark.parametrize("name", KINDS)
def test_every_file_that_loading_opens_is_recorded(name, opened, request):
    """As Python sees it; what Rust opens, the next test sees."""
    folder = request.getfixturevalue(name)
    assert len(opened[name]) >= 4
    assert opened[name] <= set(keys.folder_files(folder))


def test_what_rust_opens_is_recorded():
    """Rust's readers raise no audit event, so each call of one says `opened(path)`."""
    root = Path(cdejax.__file__).parent
    places = [
        *(root / "folders").rglob("*.py"),
        *(root / "data").glob("tokenizer*"),
    ]
    found = []
    for file in (*places, *(root / "models").rglob("*.py")):
        text = file.read_text()
        found += re.findall(
            r"(?:from_file|read_file|load_file|safe_open)\([^)]*\)", text
        )
    assert len(found) >= 3
    assert all("opened(" in call for call in found), found


def vectors(folder: Path) -> str:
    """The vectors of some texts as text, or why there are none."""
    try:
        model = cdejax.load(folder)
        texts = ["One word", "naïve Café 42"]
        found = [model.encode(texts, kind) for kind in ("query", "document")]
        return str(np.round(found, 5).tolist())
    except ValueError as error:
        return str(error)


def test_a_file_that_is_not_recorded_decides_nothing(folder):
    whole, recorded = vectors(folder), keys.folder_files(folder)
    rest = [f for f in folder.rglob("*") if f.is_file()]
    rest = [f for f in rest if str(f.relative_to(folder)) not in recorded]
    assert rest
    for file in rest:
        file.write_bytes(b"{\x00")
    assert vectors(folder) == whole
    for file in rest:
        file.unlink()
    assert vectors(folder) == whole
    assert keys.folder_files(folder) == recorded


def edit(file: Path, **values) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def flip(file: Path) -> None:
    """Changes a bit of a weight."""
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


CHANGES = {
    "a shard": lambda f: flip(f / "model-1.safetensors"),
    "the index of the shards": lambda f: edit(
        f / "model.safetensors.index.json", metadata={"total_size": 1}
    ),
    "pooling": lambda f: edit(
        f / "1_Pooling" / "config.json", pooling_mode_max_tokens=False
    ),
    "a head's weights": lambda f: flip(f / "2_Dense" / "model.safetensors"),
    "do_lower_case": lambda f: edit(f / "sentence_bert_config.json", do_lower_case=1),
    "a prompt": lambda f: edit(
        f / "config_sentence_transformers.json", prompts={"query": "q: "}
    ),
    "a file that was missing": lambda f: (f / "special_tokens_map.json").write_text(
        '{"pad_token": "[UNK]"}'
    ),
    "a file of an earlier name": lambda f: (f / "sentence_bert_config.json").rename(
        f / "sentence_albert_config.json"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_of_them_is_seen(plain, tmp_path, change):
    folder = tmp_path / "model"
    shutil.copytree(plain, folder)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    before = keys.folder_files(folder)
    if change == "pooling":  # a head for one vector in place of two
        shutil.rmtree(folder / "2_Dense")
        modules = json.loads((folder / "modules.json").read_text())
        kept = [m for m in modules if not m["path"].startswith("2_Dense")]
        (folder / "modules.json").write_text(json.dumps(kept))
        before = keys.folder_files(folder)
    CHANGES[change](folder)
    assert keys.folder_files(folder) != before


def test_names_do_not_depend_on_the_place(plain, tmp_path, monkeypatch):
    shutil.copytree(plain, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert keys.folder_files(Path("moved")) == keys.folder_files(plain)


def test_weights_are_not_loaded_for_their_hash(plain, monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("cdejax.models.pretrained.load.load_state_dict", fail)
    reading._known.clear()
    assert "model-1.safetensors" in keys.model_files(plain)


def test_nothing_is_read_twice_while_nothing_changes(plain, monkeypatch):
    monkeypatch.setattr("cdejax.storage.hashing.SETTLED", -1.0)
    reading._known.clear()
    first = keys.folder_files(plain)
    opened = []
    sys.addaudithook(
        lambda event, args: opened.append(args[0]) if event == "open" else None
    )
    assert keys.folder_files(plain) == first
    opened = [path for path in opened if str(plain) in str(path)]
    assert opened == []
