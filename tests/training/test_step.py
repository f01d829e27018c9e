"""One step against a plain Python loop, on 1 to 8 devices, and what is compiled."""

import dataclasses
import functools
import re

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.training import step as module
from cdejax.training.layerwise import chunk_traffic
from cdejax.training.objectives import InfoNCE
from cdejax.training.relation import Relation
from cdejax.training.run_model import first_state
from cdejax.training.sharding import FSDP, make_mesh, put_state, split_dim
from cdejax.training.step import (
    Kept,
    LossSettings,
    State,
    loss_and_gradients,
    put_batch,
    train_step,
)
from tests.training.toy import (
    HIDDEN,
    OTHERS,
    SIZES,
    make_batches,
    make_model,
    plain_loss,
    world,
)

SETTINGS = LossSettings(
    InfoNCE(0.1), Relation("positive", margin=0.5), block=8, sequence_dropout=0.3
)
KEY = jax.random.key(7)
CASES = {
    "biencoder": {"context": 0, "negatives": 2},
    "contextual": {"context": 8, "negatives": 2},
    **{key: {"context": 0, "negatives": 0} for key in OTHERS},
}
HOW = [(1, 1, 300), (2, 1, 130), (8, 1, 40), (8, 2, 130)]
"""Devices, how many of them share parameters, and token positions in a chunk."""


def assert_gradients_close(gradients, reference):
    """Per leaf |g - g'| <= 1e-5 max(|g'|, 1e-3 global norm)."""
    floor = 1e-3 * float(optax.tree.norm(reference))
    reference = dict(jax.tree_util.tree_leaves_with_path(reference))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        expected = np.asarray(reference[path], np.float64)
        bound = 1e-5 * max(np.linalg.norm(expected), floor)
        difference = np.linalg.norm(np.asarray(leaf, np.float64) - expected)
        assert difference <= bound, (jax.tree_util.keystr(path), difference, bound)


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """What several tests need is kept for them, and let go after the last."""
    yield
    for known in (gathered, compile_step, run_steps):
        known.cache_clear()


def step_gradients(
    case,
    *,
    devices,
    fsdp,
    tokens,
    packed=True,
    step=1,
    kept=None,
    ring=False,
):
    size = CASES[case]
    graphdef, params = make_model(case, context=8)
    maker = make_batches(
        world(negatives=size["negatives"]),
        devices=devices,
        tokens=tokens,
        packed=packed,
        **size,
    )
    mesh = make_mesh(jax.devices()[:devices], fsdp)
    kept = kept_chunks(maker) if kept else Kept()
    settings = dataclasses.replace(SETTINGS, ring=ring)
    run = jax.jit(loss_and_gradients(graphdef, mesh, settings, kept))
    batch = put_batch(maker.step(step), mesh)
    metrics, gradients = run(put_state(params, mesh), batch, KEY)
    return (graphdef, params, maker), metrics, gradients


@functools.cache
def gathered(case, devices, fsdp, tokens):
    """The step as it is by default."""
    return step_gradients(case, devices=devices, fsdp=fsdp, tokens=tokens)


@pytest.fixture(scope="module")
def reference():
    """Loss and gradients of the plain loop on one device, once per case."""
    known = {}

    def compute(case, model):
        if case not in known:
            graphdef, params, maker = model
            known[case] = jax.value_and_grad(
                lambda p: plain_loss(graphdef, p, maker, 1, KEY, SETTINGS)
            )(params)
        return known[case]

    return compute


def kept_chunks(maker):
    """As many as can be: every chunk that all steps use."""
    groups = [tuple(s.least for s in layout.shapes) for layout in maker.layouts]
    return Kept(*groups)


@pytest.mark.parametrize(
    ("case", "devices", "fsdp", "tokens"),
    [
        *((case, *how) for case in ("biencoder", "contextual") for how in HOW),
        ("biencoder", 4, 1, 1),
        ("biencoder", 8, 8, 130),
        *((case, 2, 2, 130) for case in OTHERS),
    ],
)
def test_equals_the_plain_loop(case, devices, fsdp, tokens, reference):
    model, metrics, gradients = gathered(case, devices, fsdp, tokens)
    loss, expected = reference(case, model)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert_gradients_close(gradients, expected)


@pytest.mark.parametrize("case", ["biencoder", "contextual"])
@pytest.mark.parametrize(
    ("packed", "kept"), [(False, False), (False, True), (True, True)]
)
def test_rows_and_kept_activations_change_nothing(case, packed, kept, reference):
    model, metrics, gradients = step_gradients(
        case, devices=2, fsdp=1, tokens=60, packed=packed, kept=kept
    )
    loss, expected = reference(case, model)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert_gradients_close(gradients, expected)


def test_devices_that_share_parameters_take_equally_many_chunks(reference):
    """One of them has a chunk less to encode than its neighbour, and waits for it."""
    graphdef, params = make_model("biencoder")
    negatives = CASES["biencoder"]["negatives"]
    stand_ins = world(negatives=negatives)
    maker = make_batches(stand_ins, devices=2, tokens=1, negatives=negatives)
    batch, mesh = maker.step(1), make_mesh(jax.devices()[:2], 2)
    (group,) = batch.texts
    count = np.asarray(group.count) + np.array([0, 1])
    assert count.max() <= maker.layouts[0].shapes[0].chunks
    batch = batch._replace(texts=(group._replace(count=count.astype(np.int32)),))
    run = jax.jit(loss_and_gradients(graphdef, mesh, SETTINGS))
    metrics, gradients = run(put_state(params, mesh), put_batch(batch, mesh), KEY)
    loss, expected = reference("biencoder", (graphdef, params, maker))
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert_gradients_close(gradients, expected)


@pytest.mark.parametrize("fsdp", [1, 2])
def test_unchecked_variance_changes_nothing(fsdp, reference, monkeypatch):
    """As on TPUs, whose kernels do not tell what varies over the devices."""
    monkeypatch.setattr(module, "has_tpu", lambda mesh: True)
    how = {"devices": 4, "fsdp": fsdp, "tokens": 130}
    model, metrics, gradients = step_gradients("contextual", **how)
    loss, expected = reference("contextual", model)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert_gradients_close(gradients, expected)


@pytest.mark.parametrize(
    ("devices", "fsdp", "tokens"), [(1, 1, 300), (4, 1, 1), (8, 2, 130)]
)
def test_documents_that_pass_by_give_the_same(devices, fsdp, tokens, reference):
    """A ring instead of a gather: loss, metrics and gradients."""
    how = {"devices": devices, "fsdp": fsdp, "tokens": tokens}
    model, metrics, gradients = step_gradients("biencoder", **how, ring=True)
    loss, expected = reference("biencoder", model)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert_gradients_close(gradients, expected)
    _, expected, _ = gathered("biencoder", devices, fsdp, tokens)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5)


def test_no_device_of_a_ring_holds_all_documents():
    """Nothing in the compiled step is as long as the vectors of the global batch."""
    graphdef, params = make_model("biencoder")
    maker = make_batches(world(rows=192, batch=96), context=0, devices=8, tokens=100)
    mesh = make_mesh(jax.devices())
    batch = put_batch(maker.step(1), mesh)
    texts = {}
    for ring in (False, True):
        settings = dataclasses.replace(SETTINGS, ring=ring)
        run = jax.jit(loss_and_gradients(graphdef, mesh, settings))
        texts[ring] = run.lower(put_state(params, mesh), batch, KEY).compile().as_text()
    whole = rf"f32\[(96|8,12),{HIDDEN}\]"
    assert re.search(whole, texts[False])
    assert not re.search(whole, texts[True])
    assert "collective-permute" in texts[True]


@functools.cache
def compile_step(kind, *, devices=8, fsdp=1, tokens=100, max_length=16, packed=True):
    graphdef, params = make_model(kind, context=16)
    maker = make_batches(
        world(rows=128, batch=64, max_length=max_length),
        devices=devices,
        tokens=tokens,
        context=16 if kind == "contextual" else 0,
        packed=packed,
    )
    mesh = make_mesh(jax.devices()[:devices], fsdp)
    optimizer = optax.sgd(1e-3)
    state = State(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    step = train_step(graphdef, mesh, SETTINGS, optimizer, params)
    batch = maker.step(0)
    lowered = step.lower(put_state(state, mesh), put_batch(batch, mesh), KEY)
    return lowered.compile(), params, batch


@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_one_reduction_of_gradients_and_none_inside_loops(kind):
    compiled, params, _ = compile_step(kind)
    inside, outside = _collectives(compiled.as_text())
    assert not inside
    total = sum(x.size for x in jax.tree.leaves(params))
    split = sum(
        x.size for x in jax.tree.leaves(params) if split_dim(x.shape, 8) is not None
    )
    assert split > 0.99 * total
    found = [(name, size) for name, size in outside if size >= split // 8]
    assert sorted(found) == [("all-gather", split), ("reduce-scatter", split // 8)]
    small = [size for name, size in outside if name == "all-reduce"]
    assert (
        sum(small) <= 64 + total - split
    )  # metrics, a norm by leaf, what is not split


def test_a_model_too_large_for_one_device_is_trained_by_eight():
    """Each of eight that share it needs less than two thirds of what one needs.

    On a GPU it is far less: XLA's CPU backend ignores the barriers that let a layer go
    after its use, so that here the gathered ones all stay.
    """
    sizes = SIZES | {"hidden_size": 128, "num_hidden_layers": 3}
    graphdef, params = nnx.split(BiEncoder(Bert(BertConfig(**sizes), nnx.Rngs(0))))
    needed = {}
    for count in (1, 8):
        mesh = make_mesh(jax.devices()[:count], fsdp=count)
        optimizer = optax.adamw(1e-3)
        state = first_state(optimizer, params, mesh)
        batch = make_batches(
            world(rows=32, batch=16, max_length=5), devices=count, tokens=32
        ).step(0)
        step = train_step(graphdef, mesh, SETTINGS, optimizer, params)
        placed = put_batch(batch, mesh)
        sizes_of = step.lower(state, placed, KEY).compile().memory_analysis()
        needed[count] = sizes_of.argument_size_in_bytes + sizes_of.temp_size_in_bytes
        state, metrics = step(state, placed, KEY)
        assert np.isfinite(metrics["loss"])
    assert needed[8] < 2 / 3 * needed[1]


def _collectives(text):
    """(Name, elements that come out) of collectives inside loops, and of the others."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    assert bodies
    blocks = re.split(r"\n(?=%?[\w.\-]+ \(|ENTRY )", text)
    reachable = _reachable(blocks, bodies)
    names = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    collective = re.compile(rf"= (.*?) ({names})(?:-start)?\(")
    found = ([], [])
    for block in blocks:
        out = found[block.split()[0].strip("%") not in reachable]
        for shape, name in collective.findall(block):
            out.append((name, sum(_elements(shape))))
    return found


@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_traffic_of_shared_parameters_is_as_computed(kind):
    """Along `fsdp`: what loops over chunks gather and scatter, in the HLO.

    XLA's CPU backend ignores the barriers that make a layer's weights be gathered again
    for its gradient; so backward passes are counted in the program that it is given.
    """
    # One width: of several, each has a loop of its own.
    compiled, params, _ = compile_step(kind, devices=8, fsdp=4, max_length=5)
    inside, outside = _collectives(compiled.as_text())
    expected = chunk_traffic(params, make_mesh(jax.devices(), 4))
    # A device's own quarter of a gather's output does not travel; a scatter's output
    # is a quarter of what does, and of what the device has itself.
    gathered = sum(3 * size for name, size in inside if name == "all-gather")
    scattered = sum(4 * 3 * size for name, size in inside if name == "reduce-scatter")
    assert scattered == expected.scattered == expected.forward
    # The bias of a layer's last norm is not gathered again: no gradient depends on it.
    backward = gathered - expected.forward
    assert expected.forward - 3 * 2 * HIDDEN <= backward <= expected.backward
    quarter = sum(x.size for x in jax.tree.leaves(params)) / 4
    large = [name for name, size in outside if size > quarter / 3]
    assert sorted(large) == ["all-gather", "reduce-scatter"], large


def test_backward_pass_gathers_layers_twice():
    graphdef, params = make_model("biencoder")
    maker = make_batches(world(), devices=8, tokens=100)
    mesh = make_mesh(jax.devices(), 4)
    run = loss_and_gradients(graphdef, mesh, SETTINGS)
    jaxpr = jax.make_jaxpr(run)(params, maker.step(0), KEY)
    expected = chunk_traffic(params, mesh)
    found = sum(3 * size for size in _gathers(jaxpr.jaxpr, inside=False))
    # Of the layer, its last norm's bias is gathered once only: no gradient needs it.
    assert found == expected.forward + expected.backward - 3 * HIDDEN


def _gathers(jaxpr, inside):
    """Elements that gathers along `fsdp` give, in loops."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "all_gather" and eqn.params["axis_name"] == (FSDP,):
            assert inside
            yield eqn.outvars[0].aval.size
        within = inside or eqn.primitive.name == "while"
        for sub in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from _gathers(sub, within)


def _elements(shapes):
    for dims in re.findall(r"\w+\[([\d,]*)\]", shapes):
        yield int(np.prod([int(d) for d in dims.split(",") if d] or [1]))


def _reachable(blocks, roots):
    """Names of the computations that the given ones call, themselves included."""
    calls = {}
    for block in blocks:
        name = block.split()[0].strip("%")
        calls[name] = re.findall(
            r"(?:body|condition|calls|to_apply)=%?([\w.\-]+)", block
        )
    seen, todo = set(), list(roots)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += calls.get(name, [])
    return seen


@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_eight_devices_share_the_work(kind):
    # As many chunks of one width on each, an eighth as large: loops are counted once.
    how = {"max_length": 5, "packed": False}
    one, _, batch = compile_step(kind, devices=1, tokens=256, **how)
    eight, _, other = compile_step(kind, devices=8, tokens=256 // 8, **how)
    for group, part in zip(
        (*batch.texts, *batch.context), (*other.texts, *other.context), strict=True
    ):
        assert (group.count == part.count).all()
    assert 0 < _flops(eight) <= 1.1 * _flops(one) / 8


def _flops(compiled):
    """Multiplications of all matrix products, loops counted as often as they run.

    A loop whose trips are data is counted once.
    """
    text = compiled.as_text()
    blocks = re.split(r"\n(?=%?[\w.\-]+ \(|ENTRY )", text)
    entry = next(b for b in blocks if b.startswith("ENTRY"))
    table = {b.split()[0].strip("%"): b for b in blocks}
    return _block_flops(entry, table)


def _block_flops(block, table):
    shapes = dict(re.findall(r"%?([\w.\-]+) = (\w+\[[\d,]*\])", block))
    shapes |= dict(re.findall(r"[(, ]%?([\w.\-]+): (\w+\[[\d,]*\])", block))
    total = 0
    for line in block.splitlines():
        if match := re.search(
            r"= (\w+\[[\d,]*\])\S* dot\(%?([\w.\-]+).*lhs_contracting_dims={([\d,]+)}",
            line,
        ):
            out, left, contracted = match.groups()
            left = re.search(r"dot\((\w+\[[\d,]*\])", line) or shapes[left]
            left = left if isinstance(left, str) else left.group(1)
            sizes = [int(d) for d in re.findall(r"\[([\d,]*)\]", left)[0].split(",")]
            inner = np.prod([sizes[int(d)] for d in contracted.split(",")])
            total += sum(_elements(out)) * inner
        elif match := re.search(r" while\(.*body=%?([\w.\-]+)", line):
            trips = re.search(r'known_trip_count":{"n":"(\d+)"', line)
            times = int(trips.group(1)) if trips else 1
            total += times * _block_flops(table[match.group(1)], table)
        elif match := re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", line):
            total += _block_flops(table[match.group(1)], table)
    return total


@pytest.mark.parametrize(
    "kind", ["biencoder", pytest.param("contextual", marks=pytest.mark.slow)]
)
def test_memory_falls_with_the_chunk_size(kind):
    sizes = []
    for tokens in (2048, 256):
        how = {"devices": 1, "tokens": tokens, "max_length": 5, "packed": False}
        compiled, _, _ = compile_step(kind, **how)
        sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    assert sizes[0] > 2 * sizes[1], sizes


@functools.cache
def run_steps(devices, fsdp=1, steps=3):
    graphdef, params = make_model("contextual", context=8)
    maker = make_batches(world(), devices=devices, tokens=100, context=8)
    mesh = make_mesh(jax.devices()[:devices], fsdp)
    optimizer = optax.adamw(1e-3)
    state = State(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    state, key = put_state(state, mesh), put_state(KEY, mesh)
    for leaf in jax.tree.leaves((state.params, state.optimizer)):
        parts = 1 if split_dim(leaf.shape, devices) is None else devices
        assert leaf.addressable_shards[0].data.size == leaf.size // parts
    step = train_step(graphdef, mesh, SETTINGS, optimizer, params)
    losses = []
    for number in range(steps):
        state, metrics = step(state, put_batch(maker.step(number), mesh), key)
        losses.append(float(metrics["loss"]))
    assert step._cache_size() == 1
    return losses, state.params


@pytest.mark.parametrize("fsdp", [1, 4])
def test_training_on_eight_devices_equals_one(fsdp):
    """Several steps, dropout drawn anew in each, and one compilation for all."""
    (one, first), (eight, second) = run_steps(1), run_steps(8, fsdp)
    np.testing.assert_allclose(one, eight, rtol=1e-5)
    assert len(set(one)) == len(one)
    start = make_model("contextual", context=8)[1]
    for a, b, c in zip(*map(jax.tree.leaves, (first, second, start)), strict=True):
        moved = np.linalg.norm(np.asarray(a - c))
        assert np.linalg.norm(np.asarray(a) - np.asarray(b)) <= 0.02 * moved + 1e-7
