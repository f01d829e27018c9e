"""What training makes of an encoder's own pooling and head."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from cdejax.config.load import load_config
from cdejax.export import export_model
from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.models.modules import Chain, Dense
from cdejax.training.run_model import (
    arrays_on_host,
    build_model,
    first_state,
    start_files,
)
from cdejax.training.sharding import make_mesh


@pytest.fixture
def recipe(minilm, tmp_path):
    """A recipe's config by its `model` section, from a folder with a Dense head."""
    sizes = BertConfig(30522, 16, 1, 2, 24, max_position_embeddings=64)
    head = Chain([Dense(32, 8, nnx.Rngs(1))])
    model = BiEncoder(Bert(sizes, nnx.Rngs(0)), "cls+max", head)
    folder = tmp_path / "encoder"
    prompts = {"query": "", "document": ""}
    export_model(model, minilm, folder, prompts=prompts, max_length=32)
    path = tmp_path / "recipe.yaml"
    path.write_text("name: x\n")

    def config(**settings):
        tokens = {"query": {"max_length": 16}, "document": {"max_length": 16}}
        model = {"encoder": str(folder), **settings}
        data = {"sources": [{"path": "pairs.jsonl"}]}
        return load_config(path, {"data": data, "model": model, "tokens": tokens})

    return config


def test_a_folder_keeps_its_pooling_and_head(recipe):
    model = build_model(recipe())
    assert isinstance(model, BiEncoder)
    assert model.pooling == "cls+max"
    assert isinstance(model.head, Chain)
    assert model.dim == 8


def test_a_pooling_that_does_not_fit_the_head_is_refused(recipe):
    with pytest.raises(ValueError, match="the head takes vectors of size 32"):
        build_model(recipe(pooling="mean"))


def test_a_contextual_encoder_has_fewer_poolings(recipe):
    with pytest.raises(ValueError, match=r"pooling 'cls\+max' is not one of"):
        build_model(recipe(kind="contextual", context_size=4))


def test_prompts_left_out_of_pooling_are_refused(recipe, tmp_path):
    file = tmp_path / "encoder" / "1_Pooling" / "config.json"
    config = json.loads(file.read_text()) | {"include_prompt": False}
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="set include_prompt to true"):
        build_model(recipe())


def test_every_file_of_the_start_counts(recipe, tmp_path):
    before = start_files(recipe())["encoder"]
    assert {"1_Pooling/config.json", "2_Dense/model.safetensors"} <= set(before)
    assert {"model.safetensors", "tokenizer.json"} <= set(before)
    file = tmp_path / "encoder" / "2_Dense" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    after = start_files(recipe())["encoder"]
    assert {name for name in after if after[name] != before[name]} == {
        "2_Dense/model.safetensors"
    }


def test_the_content_of_init_from_counts(recipe, tmp_path):
    """An export's model, or the checkpoint of a run that would be read."""
    shutil.copytree(tmp_path / "encoder", tmp_path / "export")
    config = recipe()
    training = dataclasses.replace(config.training, init_from=str(tmp_path / "export"))
    config = dataclasses.replace(config, training=training)
    assert "2_Dense/model.safetensors" in start_files(config)["init_from"]
    assert "tokenizer.json" not in start_files(config)["init_from"]
    run = tmp_path / "run"
    for place in ("checkpoints/9", "best/4", "best/8"):
        (run / place).mkdir(parents=True)
        (run / place / "array").write_text(place)
    (run / "run.json").write_text("{}")
    training = dataclasses.replace(config.training, init_from=str(run))
    config = dataclasses.replace(config, training=training)
    before = start_files(config)["init_from"]
    assert set(before) == {"run.json", "best/8"}
    (run / "best" / "8" / "array").write_text("other")
    assert start_files(config)["init_from"] != before
    shutil.rmtree(run / "best")
    assert set(start_files(config)["init_from"]) == {"run.json", "checkpoints/9"}


@pytest.mark.parametrize(("count", "fsdp"), [(1, 1), (8, 1), (8, 4)])
def test_no_device_gets_more_than_its_part_of_the_first_state(count, fsdp):
    params = {"w": jnp.arange(48.0).reshape(16, 3)}
    mesh = make_mesh(jax.devices()[:count], fsdp)
    state = first_state(optax.adam(1e-3), params, mesh)
    arrays = [x for x in jax.tree.leaves(state) if x.size == 48]
    assert len(arrays) == 3  # parameters, two moments
    for x in arrays:
        assert {part.data.size for part in x.addressable_shards} == {48 // count}
    np.testing.assert_array_equal(state.params["w"], params["w"])
    state.params["w"].delete()  # as a step does, to which the state is given
    assert float(params["w"].sum()) == 48 * 47 / 2


def test_arrays_are_made_on_the_host_where_it_is_a_device(monkeypatch):
    with jax.default_device(jax.devices()[3]), arrays_on_host():
        assert jnp.zeros(1).devices() == {jax.devices()[0]}

    def no_cpu(**_):
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    with jax.default_device(jax.devices()[3]), arrays_on_host():
        assert jnp.zeros(1).devices() == {jax.devices()[3]}
