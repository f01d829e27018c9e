"""Chunks that fit a device, by what it says of its memory."""

import jax
import pytest
from flax import nnx

from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.training import memory
from cdejax.training.sharding import make_mesh
from tests.training.toy import SIZES, make_batches, world


@pytest.fixture
def mesh():
    return make_mesh(jax.devices()[:1])


@pytest.fixture
def holds(monkeypatch):
    """Sets the bytes that every device says it has."""
    return lambda limit: monkeypatch.setattr(memory, "from_main", lambda *_: limit)


def model(**sizes):
    return BiEncoder(Bert(BertConfig(**SIZES | sizes), nnx.Rngs(0)))


def test_activations_grow_with_layers(mesh):
    one, three = (
        memory.activation_bytes(model(num_hidden_layers=n), mesh) for n in (1, 3)
    )
    each = (three - one) / 2
    assert 0 < each < one
    # At the least the input of each matrix product: three of the hidden size (32) for
    # queries, keys and values, the output's, the MLP's two and its inner one (48).
    assert each > 4 * (4 * 32 + 48)


def test_activations_of_few_positions_are_counted(mesh):
    few = memory.activation_bytes(model(max_position_embeddings=16), mesh)
    usual = memory.activation_bytes(model(max_position_embeddings=128), mesh)
    assert 0 < few < usual  # scores of longer rows


def test_chunks_grow_with_memory_up_to_what_pays(mesh, holds):
    found = []
    for limit in (2**21, 2**24, 2**40):
        holds(limit)
        found.append(memory.chunk_tokens(model(), mesh))
    assert found[0] < found[1] < found[2] == 32_768
    holds(None)
    assert memory.chunk_tokens(model(), mesh) == 4096


def test_a_model_that_does_not_fit_is_refused(mesh, holds):
    holds(2**16)
    with pytest.raises(ValueError, match=r"GiB of a device's .* training\.fsdp"):
        memory.chunk_tokens(model(), mesh)


def test_keeps_what_fits_of_chunks_that_every_step_has(mesh, holds):
    maker = make_batches(world(), tokens=1)
    (shape,) = maker.layouts[0].shapes
    assert shape.least > 1
    each = memory.activation_bytes(model(), mesh) * shape.rows * shape.width
    found = []
    for limit in (2**21, 2**21 + 3 * each, 2**40):
        holds(limit)
        found.append(memory.kept_chunks(model(), maker, mesh).texts[0])
    assert found[0] <= found[1] <= found[2] == shape.least
    holds(None)
    assert memory.kept_chunks(model(), maker, mesh) == memory.RECOMPUTE


def test_a_cpu_keeps_what_the_recipe_allows_whatever_is_free(mesh):
    maker = make_batches(world(), tokens=1)
    (shape,) = maker.layouts[0].shapes
    each = memory.activation_bytes(model(), mesh) * shape.rows * shape.width
    vectors = 2 * 4 * shape.vectors * model().dim
    limits = [0, (vectors + 2.5 * each) / 2**30, 2.0]
    kept = [memory.kept_chunks(model(), maker, mesh, limit) for limit in limits]
    assert [k.texts for k in kept] == [(), (1,), (shape.least,)]
