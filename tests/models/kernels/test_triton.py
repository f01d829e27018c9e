"""Our own kernels for NVIDIA: interpreted, lowered for a GPU, and run on one.

Run the last with `JAX_PLATFORMS=cuda pytest -m gpu tests/models/kernels`.
"""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from cdejax.models import Bert, BertConfig, NomicBert, NomicBertConfig
from cdejax.models.encoder import Encoder
from cdejax.models.kernels import attention as module
from cdejax.models.kernels import elementwise
from cdejax.models.kernels.attention import attention
from cdejax.models.kernels.elementwise import add_layer_norm, layer_norm
from cdejax.models.kernels.triton_norm import triton_add_norm
from tests.devices import H200, meant_for, traced_for

EPS = 1e-6
needs_gpu = pytest.mark.skipif(
    not module.has_triton(), reason="needs an NVIDIA GPU and JAX_PLATFORMS=cuda"
)
# Of one text, of several with a text over blocks' ends and padding, and scattered.
ROWS = [[256], [100, 60, 30, 40], [3, 200], []]


def segments_of(rows, width=256):
    found = np.zeros((len(rows), width), np.int32)
    for row, lengths in enumerate(rows):
        found[row, : sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    return jnp.asarray(found)


def draw(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def heads(rows, width=256, dim=64, dtype="float32", times=1.0):
    shape = (rows, width, 2, dim)
    return [times * draw(*shape, dtype=dtype, seed=seed) for seed in range(3)]


def pulled(f, inputs, cotangent):
    """What a function gives, and all gradients."""
    y, pull = jax.vjp(f, *inputs)
    return [np.asarray(x, np.float64) for x in (y, *pull(cotangent))]


def same(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other) + 1e-12


def compare_attention(qkv, segments, tolerance, expected_dtype="float32"):
    cotangent = draw(*qkv[0].shape, dtype=qkv[0].dtype, seed=9)
    call = functools.partial(attention, segments=segments)
    run = jax.jit(lambda q, k, v: call(q, k, v, implementation="triton"), inline=True)
    wide = [x.astype(expected_dtype) for x in qkv]
    plain = functools.partial(call, implementation="xla")
    same(
        pulled(run, qkv, cotangent),
        pulled(plain, wide, cotangent.astype(expected_dtype)),
        tolerance,
    )


@pytest.mark.parametrize("dim", [32, 64])
def test_attention_equals_xla(dim):
    compare_attention(heads(len(ROWS), dim=dim), segments_of(ROWS), 2e-6)


def test_attention_equals_xla_for_scattered_segments_and_other_widths():
    rng = np.random.default_rng(0)
    scattered = jnp.asarray(rng.integers(0, 4, (2, 192)), jnp.int32)
    compare_attention(heads(2, 192), scattered, 2e-6)
    compare_attention(heads(1, 64), segments_of([[40, 3]], 64), 2e-6)


def test_attention_equals_xla_in_bfloat16():
    qkv = heads(len(ROWS), dtype="bfloat16")
    compare_attention(qkv, segments_of(ROWS), 0.006)


def test_attention_stays_finite_for_extreme_scores():
    """One key takes all the weight; those of other texts score higher still.

    Scores of 100,000 are rounded to a hundredth, and so are the weights computed again.
    """
    q, k, v = heads(2, times=30.0)
    k = k.at[:, 100:].multiply(30)
    compare_attention((q, k, v), segments_of([[90, 10, 100], [128, 128]]), 0.01)


def test_attention_says_what_it_refuses():
    q, k, v = heads(1)
    segments = segments_of([[200]])
    run = functools.partial(attention, implementation="triton")
    with pytest.raises(ValueError, match="takes segments"):
        run(q, k, v)
    with pytest.raises(ValueError, match="without a bias, window or order"):
        run(q, k, v, segments=segments, causal=True)
    with pytest.raises(ValueError, match="heads too, of one dtype"):
        run(q, k[:, :, :1], v[:, :, :1], segments=segments)
    with pytest.raises(ValueError, match="of one dtype"):
        run(q.astype("bfloat16"), k, v, segments=segments)
    with pytest.raises(ValueError, match="a segment for each token"):
        run(*(jnp.concatenate([x, x]) for x in (q, k, v)), segments=segments)
    with pytest.raises(ValueError, match="takes rows of tokens"):
        run(q[:0], k[:0], v[:0], segments=segments[:0])
    with pytest.raises(ValueError, match="as many queries as keys"):
        run(q[:, :64], k, v, segments=segments, queries=slice(64))
    with pytest.raises(ValueError, match="multiple of 64 positions"):
        run(q[:, :100], k[:, :100], v[:, :100], segments=segments[:, :100])
    with pytest.raises(ValueError, match="32 or 64 dimensions"):
        run(q[..., :48], k[..., :48], v[..., :48], segments=segments)


def test_attention_refuses_float32_on_a_gpu():
    """Triton would multiply in tf32, of which ten bits are exact."""
    q, k, v = heads(1)
    with traced_for(H200), pytest.raises(ValueError, match="takes 16 bits"):
        attention(q, k, v, segments=segments_of([[200]]), implementation="triton")


def on_one_device(f):
    """As training and encoding call it; the first argument varies over devices."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))

    def call(first, *rest):
        specs = jax.P("data"), *(jax.P() for _ in rest)
        return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=jax.P("data"))(
            first, *rest
        )

    return call


def test_attention_is_chosen_for_segments_on_nvidia_and_said_once(monkeypatch, caplog):
    for name in ("has_nvidia", "has_triton"):
        monkeypatch.setattr(module, name, lambda: True)
    monkeypatch.setattr(module, "cudnn_attention", lambda q, *_, **__: q)
    module._log_choice.cache_clear()
    q, k, v = heads(1, dtype="bfloat16")
    segments = segments_of([[200]])

    def call(segments):
        return attention(
            *(x + 0 * segments[0, 0] for x in (q, k, v)), segments=segments
        )

    with caplog.at_level(logging.INFO, "cdejax"):
        for _ in range(2):
            jax.eval_shape(on_one_device(call), segments)
        # XLA would not split it over the devices of sharded arrays.
        jax.jit(call)(segments)
    assert [record.getMessage() for record in caplog.records] == [
        f"attention runs on {kernel} (bfloat16, head dimension 64, segments)"
        for kernel in ("triton", "cudnn")
    ]


def plain_add_norm(x, added, scale, bias):
    return layer_norm(x + added, scale, bias, EPS)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2e-3)]
)
@pytest.mark.parametrize("shape", [(200, 96), (67, 768), (1, 64), (3, 4000)], ids=str)
def test_norm_of_a_sum_equals_xla(shape, dtype, tolerance):
    x = draw(*shape, dtype=dtype) + 3
    added, cotangent = (draw(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    scale, bias = draw(2, shape[1], seed=3)
    inputs = (x, added, scale, bias)
    found = pulled(lambda *a: triton_add_norm(*a, EPS), inputs, cotangent)
    same(found, pulled(plain_add_norm, inputs, cotangent), tolerance)


def test_norm_kernel_is_taken_on_nvidia_for_narrow_summands_of_one_kind(monkeypatch):
    taken = []

    def watched(x, added, scale, bias, eps):
        taken.append(x.shape)
        return layer_norm(x + added, scale, bias, eps)

    monkeypatch.setattr(elementwise, "triton_add_norm", watched)
    scale, bias = jnp.ones(64), jnp.zeros(64)
    narrow, wide = draw(2, 5, 64, dtype="bfloat16"), draw(2, 5, 64)

    def norm(x, added=None, biased=True):
        added = x if added is None else added
        return add_layer_norm(x, added, scale, bias if biased else None, EPS)

    on_one_device(norm)(narrow)
    assert not taken
    monkeypatch.setattr(elementwise, "has_triton", lambda: True)
    found = on_one_device(norm)(narrow)
    assert taken == [(10, 64)]
    np.testing.assert_array_equal(found, plain_add_norm(narrow, narrow, scale, bias))
    norm(narrow)
    on_one_device(norm)(wide)
    on_one_device(norm)(narrow[:0])
    on_one_device(functools.partial(norm, biased=False))(narrow)
    on_one_device(norm)(narrow, narrow)  # which is the same on all devices
    on_one_device(lambda x: norm(x, x[:1]))(narrow)
    assert len(taken) == 1


SIZES = {
    "vocab_size": 100,
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 256,
}


def packed_encoder(cls, config, dtype, rows=4):
    encoder = cls(config(**SIZES), nnx.Rngs(0), dtype)
    graph, params = nnx.split(encoder)
    segments = segments_of(ROWS[:rows])

    def encode(params, x):
        model: Encoder = nnx.merge(graph, params)
        return model.encode(x, segments=segments, positions=np.arange(256))

    return encode, params, draw(rows, 256, 192, dtype=dtype)


@pytest.mark.parametrize(
    ("cls", "config"), [(Bert, BertConfig), (NomicBert, NomicBertConfig)]
)
def test_lowers_for_a_gpu_where_there_is_none(cls, config):
    """Triton has all that the kernels ask for, with gradients and on several devices.

    As in the training step, parameters vary before they are differentiated.
    """
    if jax.__version_info__ >= (0, 11):
        pytest.skip("this JAX asks the GPU itself what it is")
    encode, params, x = packed_encoder(cls, config, "bfloat16", rows=1)
    mesh = meant_for(H200, 4)

    def local(params, x):
        params = jax.lax.pcast(params, "data", to="varying")
        total = lambda p: jnp.square(encode(p, x).astype("float32")).sum()  # noqa: E731
        return jax.lax.psum(jax.grad(total)(params), "data")

    split = jax.shard_map(
        local, mesh=mesh, in_specs=(jax.P(), jax.P("data")), out_specs=jax.P()
    )
    x = jnp.concatenate([x] * 4)
    lowered = jax.jit(split).trace(params, x).lower(lowering_platforms=("cuda",))
    for kernel in ("packed_attention", "add_norm"):
        for name in (kernel, f"{kernel}_gradient"):
            assert f'name = "{name}"' in lowered.as_text(), name


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dim", [32, 64])
def test_attention_equals_xla_on_a_gpu(dim):
    qkv = heads(len(ROWS), dim=dim, dtype="bfloat16")
    compare_attention(qkv, segments_of(ROWS), 0.006)
    q, k, v = heads(2, dtype="bfloat16", times=30.0)
    k = k.at[:, 100:].multiply(30)
    compare_attention((q, k, v), segments_of([[90, 10, 100], [128, 128]]), 0.02)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shape", [(200, 96), (67, 768), (1, 64), (3, 4000)], ids=str)
def test_norm_of_a_sum_equals_xla_on_a_gpu(shape):
    test_norm_of_a_sum_equals_xla(shape, "bfloat16", 2e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("cls", "config"), [(Bert, BertConfig), (NomicBert, NomicBertConfig)]
)
def test_packed_encoder_agrees_with_float32_on_a_gpu(cls, config):
    """The whole of it with gradients, against XLA's kernels in float32."""
    weights = draw(3, 256, 192, seed=5)
    found, expected = (
        jax.value_and_grad(
            lambda p, x, f=encode: (
                on_one_device(lambda x, p: f(p, x))(x, p).astype("float32")[:3]
                * weights
            ).sum()
        )(params, x)
        for encode, params, x in (
            packed_encoder(cls, config, dtype) for dtype in ("bfloat16", "float32")
        )
    )
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        gap = np.linalg.norm(np.asarray(one - other))
        assert gap <= 0.05 * np.linalg.norm(np.asarray(other)) + 1e-3


@pytest.mark.gpu
@needs_gpu
def test_nothing_is_copied_between_products_and_kernels():
    """XLA leaves out the split of the projection's result, and its gradient's."""
    encode, params, x = packed_encoder(Bert, BertConfig, "bfloat16")
    run = on_one_device(lambda x, p: encode(p, x))
    total = lambda p, x: run(x, p).astype("float32").sum()  # noqa: E731
    text = jax.jit(jax.grad(total)).lower(params, x).compile().as_text() or ""
    assert text.count("triton") >= 4
    wide = [line for line in text.splitlines() if "4,256,576" in line]
    assert not [line for line in wide if "slice(" in line or "concatenate(" in line]
