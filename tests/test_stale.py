"""Nothing is used again after a file that decides it has changed."""

import dataclasses
import json
import shutil
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from cdejax.recipe import scores
from cdejax.recipe.stages import Stages
from cdejax.storage import hashing
from cdejax.training.run_folder import check_run, claim_run
from cdejax.training.run_model import start_files
from tests import goldens

INPUTS: Any = SimpleNamespace(fingerprints={})
POOLING = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}
OPENED: Counter[str] = Counter()
"""How often Python opens each file: an audit hook stays until the process ends."""
sys.addaudithook(
    lambda event, args: OPENED.update([str(args[0])]) if event == "open" else None
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return goldens.write_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def world(made, tmp_path):
    """Inputs whose encoder has files of sentence-transformers."""
    shutil.copytree(made, tmp_path / "world")
    encoder = tmp_path / "world" / "encoder"
    (encoder / "1_Pooling").mkdir()
    write(encoder / "1_Pooling" / "config.json", **POOLING)
    write(encoder / "sentence_bert_config.json", max_seq_length=16)
    write(encoder / "config_sentence_transformers.json", prompts={"query": "q: "})
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"type": kind, "path": path} for kind, path in kinds.items()]
    (encoder / "modules.json").write_text(json.dumps(modules))
    return tmp_path / "world"


def write(file, **values) -> None:
    old = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(old | values))


def test_tokens_follow_the_tokenizer_s_settings(world):
    config = goldens.recipe(world)
    before = Stages(config).tokens()
    assert Stages(config).tokens() == before
    write(world / "encoder" / "sentence_bert_config.json", do_lower_case=True)
    lowered = Stages(config).tokens()
    assert lowered != before
    (world / "encoder" / "special_tokens_map.json").write_text("{}")
    assert Stages(config).tokens() not in (before, lowered)


def test_tokens_do_not_follow_what_no_tokenizer_reads(world):
    config = goldens.recipe(world)
    before = Stages(config).tokens()
    write(world / "encoder" / "1_Pooling" / "config.json", include_prompt=True)
    (world / "encoder" / "README.md").write_text("A card.")
    assert Stages(config).tokens() == before


def test_vectors_follow_the_encoder_s_pooling(world):
    vectors = {"method": "encoder", "encoder": str(world / "encoder")}
    config = goldens.recipe(world, vectors=vectors)
    before = Stages(config).vectors()
    (world / "encoder" / "README.md").write_text("A card.")
    assert Stages(config).vectors() == before
    flags = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    write(world / "encoder" / "1_Pooling" / "config.json", **flags)
    assert Stages(config).vectors() != before


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("1_Pooling/config.json", {"include_prompt": True}),
        ("sentence_bert_config.json", {"do_lower_case": True}),
        ("config_sentence_transformers.json", {"prompts": {"query": "Q: "}}),
    ],
)
def test_a_run_is_refused_after_a_change_and_the_file_is_named(world, file, values):
    config, run = goldens.recipe(world), world / "run"
    (run / "checkpoints" / "2").mkdir(parents=True)
    (run / "checkpoints" / "2").rename(world / "2")
    claim_run(run, config, INPUTS)
    (world / "2").rename(run / "checkpoints" / "2")
    (world / "encoder" / "README.md").write_text("A card.")
    check_run(run, config, INPUTS)
    start = scores.System("start", config, "start")
    before = start.spec()
    write(world / "encoder" / file, **values)
    with pytest.raises(ValueError, match=rf"differs in files\.encoder\.{file}\)"):
        check_run(run, config, INPUTS)
    assert start.spec() != before


def test_a_run_is_refused_after_a_change_of_init_from(world):
    shutil.copytree(world / "encoder", world / "init")
    config, run = goldens.recipe(world), world / "run"
    training = dataclasses.replace(config.training, init_from=str(world / "init"))
    config = dataclasses.replace(config, training=training)
    run.mkdir()
    claim_run(run, config, INPUTS)
    content = bytearray((world / "init" / "model.safetensors").read_bytes())
    content[-2] ^= 1
    (world / "init" / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"files\.init_from\.model\.safetensors"):
        check_run(run, config, INPUTS)


def test_inputs_are_read_once_for_their_hash(world, monkeypatch):
    monkeypatch.setattr(hashing, "SETTLED", -1.0)  # as if written long ago
    config = goldens.recipe(world)
    OPENED.clear()
    Stages(config).inputs()
    start_files(config)
    first = Counter(OPENED)
    for _ in range(5):
        Stages(config).inputs()
        start_files(config)
    sources = [world / "pairs.jsonl", world / "queries.npy"]
    names = ("model.safetensors", "config.json", "vocab.txt", "1_Pooling/config.json")
    sources += [world / "encoder" / name for name in names]
    for path in map(str, sources):
        assert OPENED[path] == first[path], path
    # for its hash, for its first bytes (is it gzip?) and for its rows; weights for
    # their hash alone, as Python sees it
    assert OPENED[str(world / "pairs.jsonl")] == 3
    assert OPENED[str(world / "encoder" / "model.safetensors")] == 1
