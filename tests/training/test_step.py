"""One step against a plain Python loop, on 1 to 8 devices, and what is compiled."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from cdejax.training.step import (
    LossSettings,
    State,
    data_mesh,
    loss_and_gradients,
    put_batch,
    train_step,
)
from tests.training.toy import OTHERS, make_batches, make_model, plain_loss, world

SETTINGS = LossSettings(
    temperature=0.1, margin=0.5, block=8, sequence_dropout=0.3, duplicates="positive"
)
KEY = jax.random.key(7)
CASES = {
    "biencoder": {"context": 0, "negatives": 2},
    "contextual": {"context": 8, "negatives": 2},
    **{key: {"context": 0, "negatives": 0} for key in OTHERS},
}
HOW = [(1, 3), (1, 16), (2, 4), (4, 1), (8, 2)]
"""Devices, and texts in a chunk."""


def assert_gradients_close(gradients, reference):
    """Per leaf |g - g'| <= 1e-5 max(|g'|, 1e-3 global norm)."""
    floor = 1e-3 * float(optax.tree.norm(reference))
    reference = dict(jax.tree_util.tree_leaves_with_path(reference))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        expected = np.asarray(reference[path], np.float64)
        bound = 1e-5 * max(np.linalg.norm(expected), floor)
        difference = np.linalg.norm(np.asarray(leaf, np.float64) - expected)
        assert difference <= bound, (jax.tree_util.keystr(path), difference, bound)


def step_gradients(case, *, devices, chunk, step=1):
    size = CASES[case]
    graphdef, params = make_model(case, context=8)
    maker = make_batches(
        world(negatives=size["negatives"]), devices=devices, chunk=chunk, **size
    )
    mesh = data_mesh(jax.devices()[:devices])
    run = jax.jit(loss_and_gradients(graphdef, mesh, SETTINGS))
    batch = put_batch(maker.step(step), mesh)
    metrics, gradients = run(params, batch, KEY)
    return (graphdef, params, maker), metrics, gradients


@pytest.fixture(scope="module")
def reference():
    """Loss and gradients of the plain loop, once per case."""
    known = {}

    def compute(case, model):
        if case not in known:
            graphdef, params, maker = model
            known[case] = jax.value_and_grad(
                lambda p: plain_loss(graphdef, p, maker, 1, KEY, SETTINGS)
            )(params)
        return known[case]

    return compute


@pytest.mark.parametrize(
    ("case", "devices", "chunk"),
    [
        *((case, *how) for case in ("biencoder", "contextual") for how in HOW),
        *((case, 2, 4) for case in OTHERS),
    ],
)
def test_equals_the_plain_loop(case, devices, chunk, reference):
    model, metrics, gradients = step_gradients(case, devices=devices, chunk=chunk)
    loss, expected = reference(case, model)
    np.testing.assert_allclose(metrics.loss, loss, rtol=1e-5)
    assert_gradients_close(gradients, expected)


def compile_step(kind, *, devices=8, chunk=4, batch=64, max_length=16):
    graphdef, params = make_model(kind, context=16)
    maker = make_batches(
        world(rows=128, batch=batch, max_length=max_length),
        devices=devices,
        chunk=chunk,
        context=16 if kind == "contextual" else 0,
        layouts=1,
    )
    mesh = data_mesh(jax.devices()[:devices])
    optimizer = optax.adamw(1e-3)
    state = State(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    step = train_step(graphdef, mesh, SETTINGS, optimizer)
    lowered = step.lower(state, put_batch(maker.step(0), mesh), KEY)
    return lowered.compile(), params


@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_one_reduction_of_gradients_and_none_inside_loops(kind):
    compiled, params = compile_step(kind)
    text = compiled.as_text()
    assert " while(" in text
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    blocks = re.split(r"\n(?=%?[\w.\-]+ \(|ENTRY )", text)
    names = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    collective = re.compile(rf"= .*\b({names})(-start)?\(")
    inside = [b.split()[0] for b in blocks if b.split()[0].strip("%") in bodies]
    assert inside
    reachable = _reachable(blocks, bodies)
    for block in blocks:
        if block.split()[0].strip("%") in reachable:
            assert not collective.search(block), block[:500]
    reductions = re.findall(r"= (.*?) all-reduce(?:-start)?\(", text)
    sizes = [sum(_elements(shape)) for shape in reductions]
    total = sum(x.size for x in jax.tree.leaves(params))
    assert sum(size >= total for size in sizes) == 1
    assert sum(size for size in sizes if size < total) <= 16  # metrics


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
    # Lengths of one width: padding would differ, since chunks hold other texts.
    one, _ = compile_step(kind, devices=1, chunk=8, max_length=5)
    eight, _ = compile_step(kind, devices=8, chunk=8, max_length=5)
    assert 0 < _flops(eight) <= 1.1 * _flops(one) / 8


def _flops(compiled):
    """Multiplications of all matrix products, loops counted as often as they run."""
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
            assert trips is not None
            total += int(trips.group(1)) * _block_flops(table[match.group(1)], table)
        elif match := re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", line):
            total += _block_flops(table[match.group(1)], table)
    return total


@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_memory_falls_with_the_chunk_size(kind):
    sizes = []
    for chunk in (64, 16, 4):
        compiled, _ = compile_step(kind, devices=1, chunk=chunk)
        sizes.append(compiled.memory_analysis().temp_size_in_bytes)
    assert sizes[0] > 1.5 * sizes[1] > 1.5 * sizes[2], sizes


def replicated(mesh):
    return NamedSharding(mesh, PartitionSpec())


def run_steps(devices, steps=3):
    graphdef, params = make_model("contextual", context=8)
    maker = make_batches(world(), devices=devices, chunk=4, context=8, layouts=2)
    mesh = data_mesh(jax.devices()[:devices])
    optimizer = optax.adamw(1e-3)
    state = State(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    state = jax.device_put(jax.tree.map(jnp.array, state), replicated(mesh))
    key = jax.device_put(KEY, replicated(mesh))
    step = train_step(graphdef, mesh, SETTINGS, optimizer)
    losses = []
    for number in range(steps):
        state, metrics = step(state, put_batch(maker.step(number), mesh), key)
        losses.append(float(metrics["loss"]))
    assert step._cache_size() <= len(maker.layouts.layouts)
    return losses, state.params


def test_training_on_eight_devices_equals_one():
    """Several steps, dropout drawn anew in each; one compilation per layout."""
    (one, first), (eight, second) = run_steps(1), run_steps(8)
    np.testing.assert_allclose(one, eight, rtol=1e-5)
    assert len(set(one)) == len(one)
    start = make_model("contextual", context=8)[1]
    for a, b, c in zip(*map(jax.tree.leaves, (first, second, start)), strict=True):
        moved = np.linalg.norm(np.asarray(a - c))
        assert np.linalg.norm(np.asarray(a) - np.asarray(b)) <= 0.02 * moved + 1e-7
