"""Gradients are summed over rows in float32, whatever the dtype of the activations.

Sums in bfloat16 lose all but two digits, or stand still, after some hundred summands.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr

from cdejax import models
from cdejax.models import BiEncoder, ContextualEncoder

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
MORE: dict[str, Any] = {
    "Qwen3": {"num_key_value_heads": 1, "head_dim": 16},
    "T5": {"head_dim": 16},
}
NAMES = [
    "Bert",
    "DistilBert",
    "ModernBert",
    "MPNet",
    "NomicBert",
    "Qwen3",
    "Roberta",
    "T5",
]
IDS = np.ones((4, 16), np.int32)
LENGTHS = np.full(4, 9)


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: isinstance(x, (ClosedJaxpr, Jaxpr)),
        ):
            if isinstance(value, ClosedJaxpr):
                yield from equations(value.jaxpr)
            elif isinstance(value, Jaxpr):
                yield from equations(value)


def narrow_sums(call, model):
    """Sums of several summands of 16 bits in the gradient of the parameters."""
    graph, params = nnx.split(model)
    gradient = jax.grad(lambda p: call(nnx.merge(graph, p)).sum())
    for equation in equations(jax.make_jaxpr(gradient)(params).jaxpr):
        if equation.primitive.name in ("reduce_sum", "scatter-add", "cumsum"):
            summed = equation.invars[-1].aval  # the updates of a scatter
            one = summed.size == equation.outvars[0].aval.size
            alone = equation.primitive.name == "reduce_sum" and one
            if summed.dtype.itemsize == 2 and not alone:
                yield equation


def make(name):
    config = getattr(models, f"{name}Config")(**SIZES, **MORE.get(name, {}))
    return getattr(models, name)(config, nnx.Rngs(0), jnp.bfloat16)


@pytest.mark.parametrize("name", NAMES)
def test_one_stage(name):
    model = BiEncoder(make(name))
    assert not [*narrow_sums(lambda m: m(IDS, lengths=LENGTHS), model)]
    segments = np.repeat([[1, 2]], 8, axis=1).repeat(4, axis=0)
    assert not [*narrow_sums(lambda m: m.packed(IDS, segments, 2), model)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dropped", [None, np.eye(4, 8, dtype=bool)])
def test_two_stages(name, dropped):
    """The context's gradient, too, which is that of all texts."""
    model = ContextualEncoder.from_encoder(make(name), nnx.Rngs(1), context_size=8)

    def call(model):
        documents = np.ones((8, 16), np.int32)
        context = model.first(documents, lengths=np.full(8, 9))
        return model.second_stage(
            IDS, context=context, lengths=LENGTHS, dropped=dropped
        )

    assert not [*narrow_sums(call, model)]
