"""FLOP counts against what XLA counts, and classes of kernels."""

import importlib
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from cdejax.models import (
    Bert,
    BertConfig,
    BiEncoder,
    ContextualConfig,
    ContextualEncoder,
    NomicBert,
    NomicBertConfig,
)

flops: Any = importlib.import_module("flops")
tracing: Any = importlib.import_module("tracing")
SIZES: Any = {
    "vocab_size": 64,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
LENGTH = 128


def forward_flops(function, *arguments):
    """What XLA counts, elementwise operations included."""
    found: Any = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return found["flops"]


def test_biencoder_matches_the_compiler():
    model = BiEncoder(Bert(BertConfig(**SIZES), nnx.Rngs(0)))
    ids = np.ones((2, LENGTH), np.int32)
    expected = flops.useful_flops(model, np.array([LENGTH] * 2))
    assert 3 * forward_flops(model, ids) == pytest.approx(expected, rel=0.05)


def test_contextual_counts_the_context_of_every_text():
    context, texts = 24, 5
    first, second = (NomicBert(NomicBertConfig(**SIZES), nnx.Rngs(i)) for i in (0, 1))
    config = ContextualConfig(context_size=context, soft_tokens=8)
    model = ContextualEncoder(config, first, second, nnx.Rngs(0))
    lengths, documents = np.full(texts, LENGTH), np.full(context, 16)
    hidden, inner, layers = 256, 512, 3
    weights = 4 * hidden**2 + 3 * hidden * inner
    front = context + 8
    expected = context * 16 * 2 * weights * layers
    expected += context * 4 * 16**2 * hidden * layers + context * 2 * 2 * hidden**2
    expected += texts * (LENGTH + front) * 2 * weights * layers
    expected += texts * 4 * (LENGTH + front) ** 2 * hidden * layers
    expected += texts * 2 * 2 * hidden**2 + 2 * (hidden**2 + 8 * hidden**2)
    found = flops.useful_flops(model, lengths, documents)
    assert found == pytest.approx(3 * expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_NNT", "matmul"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "attention"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>",
            "matmul",
        ),
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "collectives",
        ),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>", "attention"),
        ("MemcpyD2D", "copies"),
        ("loop_add_fusion_3", "elementwise and reductions"),
    ],
)
def test_kernels_are_classified(name, kind):
    assert tracing.kernel_class(name) == kind


def test_overlapping_kernels_count_once():
    events = [(0, 10), (5, 12), (20, 30), (21, 22)]
    assert tracing.busy([tracing.Event("", *ends) for ends in events]) == 22
