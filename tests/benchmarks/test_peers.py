"""PyTorch's training steps compute what ours computes."""

import importlib
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from cdejax.training.objectives import InfoNCE
from cdejax.training.step import LossSettings, loss_and_gradients

torch = pytest.importorskip("torch")

ours: Any = importlib.import_module("ours")
peer: Any = importlib.import_module("peer")
texts: Any = importlib.import_module("texts")
reading: Any = importlib.import_module("peers.texts")
BATCH = 8


@pytest.fixture(scope="module")
def world():
    lengths = texts.Law(4, 9, 24).draw(2 * BATCH, np.random.default_rng(0))
    return texts.make_world(lengths, BATCH, vocabulary=512, seed=0)


def run_with_noise(kind, world):
    """A step that is ready, every parameter of which matters."""
    context = BATCH if kind == "contextual" else 0
    settings = ours.Settings(kind, context, chunk_tokens=128, max_widths=2, toy=True)
    run = ours.prepare(settings, world, jax.devices()[:1])
    keys = iter(jax.random.split(jax.random.key(1), 500))
    noisy = lambda x: x + 0.05 * jax.random.normal(next(keys), x.shape)  # noqa: E731
    run.state = run.state._replace(params=jax.tree.map(noisy, run.state.params))
    return run


def tensors_of(kind, run, params):
    """A pytree like the parameters, under the names of the peer's own."""
    from cdejax.export.torch.weights_cdejax import native_state
    from cdejax.models import to_state_dict

    model = nnx.merge(nnx.split(run.model)[0], params)
    found = {k: torch.tensor(v) for k, v in to_state_dict(model).items()}
    return native_state(found, "nomic_bert") if kind == "contextual" else found


@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_loss_and_gradients_agree(kind, world, tmp_path):
    run = run_with_noise(kind, world)
    params = run.state.params
    config = peer.peer_config(kind, BATCH, toy=True)
    module = importlib.import_module(f"peers.{kind}")
    theirs = module.Peer(config, 0.05, "cpu", tensors_of(kind, run, params))
    texts.save_steps(tmp_path / "texts.npz", world, range(1, 2))
    (step,) = reading.read_steps(tmp_path / "texts.npz")
    theirs.update = lambda: None  # which would clear the gradients
    loss, _ = theirs.step(theirs.ready(step, chunk=3))
    differentiate = loss_and_gradients(
        nnx.split(run.model)[0], run.mesh, LossSettings(InfoNCE(0.05))
    )
    metrics, found = jax.jit(differentiate)(params, run.maker.step(1), run.key)
    np.testing.assert_allclose(loss, metrics["loss"], atol=1e-4)
    norm = float(optax.tree.norm(found))
    inner = theirs.encoders[0] if kind == "biencoder" else theirs.model
    # Without sequence dropout nothing reads the null vector.
    gradients = {
        name: torch.zeros_like(x) if x.grad is None else x.grad
        for name, x in inner.named_parameters()
    }
    for name, ours_ in tensors_of(kind, run, found).items():
        limit = 1e-4 * max(float(ours_.norm()), 1e-3 * norm)
        assert float((gradients[name] - ours_).norm()) <= limit, name


def test_updates_are_clipped_and_clear_the_gradients():
    optimizer: Any = importlib.import_module("peers.optimizer")
    layer = torch.nn.Linear(3, 1)
    update = optimizer.adamw(layer, "cpu")
    before = layer.weight.detach().clone()
    layer(torch.full((1, 3), 10.0)).sum().backward()
    assert float(update()) == pytest.approx(np.sqrt(301), rel=1e-5)
    assert not torch.equal(layer.weight, before)
    assert layer.weight.grad is None


def test_peers_sort_texts_by_length(world, tmp_path):
    texts.save_steps(tmp_path / "texts.npz", world, range(1))
    (step,) = reading.read_steps(tmp_path / "texts.npz")
    chunks = step.documents.chunks(3, "cpu")
    widths = [chunk.ids.shape[1] for chunk in chunks]
    assert widths == sorted(widths, reverse=True)
    rows = np.concatenate([chunk.rows for chunk in chunks])
    assert sorted(rows) == list(range(BATCH))
    for chunk in chunks:
        for ids, mask, row in zip(*map(np.asarray, chunk), strict=True):
            expected = world.tokens.documents[world.plan.rows(0)[row]]
            np.testing.assert_array_equal(ids[mask == 1], expected)


@pytest.mark.slow
@pytest.mark.parametrize("mode", peer.MODES[1:])
@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_compiled_peers_compute_the_same(kind, mode, world, tmp_path):
    config = peer.peer_config(kind, BATCH, toy=True)
    module = importlib.import_module(f"peers.{kind}")
    texts.save_steps(tmp_path / "texts.npz", world, range(2))
    steps = reading.read_steps(tmp_path / "texts.npz")
    results, counted = {}, torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    for how in ("eager", mode):
        torch.manual_seed(0)
        theirs = module.Peer(config, 0.05, "cpu")
        if how != "eager":
            peer.compile_for(how, theirs.encoders)
        results[how] = [theirs.step(theirs.ready(step, chunk=3)) for step in steps]
    np.testing.assert_allclose(results[mode], results["eager"], rtol=1e-4)
    # With and without gradients, with and without padding; whatever the number of
    # layers, rows and tokens.
    assert counted["unique_graphs"] - before <= 4 * len(theirs.encoders)
