"""An encoder inside Linen code, by flax's bridge; and as a pure function.

    python examples/linen_bridge.py MODEL

MODEL is a folder with a BERT-like encoder. The script asserts that NNX, the pure
function and Linen give equal states, then shows a Linen classifier above the encoder.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from cdejax.models import from_pretrained


class Classifier(linen.Module):
    """A Linen module over an encoder of ours: logits from the first token."""

    encoder: linen.Module
    labels: int

    @linen.compact
    def __call__(self, ids: jax.Array, lengths: jax.Array) -> jax.Array:
        """Logits, [batch, labels]."""
        states = self.encoder(ids, lengths=lengths)
        return linen.Dense(self.labels)(states[:, 0])


def main() -> None:
    """Compares the three ways on one batch."""
    model: Any = from_pretrained(sys.argv[1])
    encoder = model.encoder
    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.integers(5, encoder.config.vocab_size, (2, 12)))
    lengths = jnp.array([12, 7])
    states = encoder(ids, lengths=lengths)

    graph, params = nnx.split(encoder)  # structure, and a pytree of parameters

    @jax.jit
    def pure(params: Any, ids: jax.Array, lengths: jax.Array) -> jax.Array:
        return nnx.merge(graph, params)(ids, lengths=lengths)

    np.testing.assert_allclose(pure(params, ids, lengths), states, atol=2e-5)
    print("pure function: equal")

    # The bridge takes the class and its arguments; the variables of Linen's side have
    # the tree of NNX's parameters, so weights go from one to the other as they are.
    wrapped = nnx.bridge.to_linen(type(encoder), encoder.config)
    weights = nnx.to_pure_dict(params)
    bridged: Any = wrapped.apply({"params": weights}, ids, lengths=lengths)
    np.testing.assert_allclose(bridged, states, atol=2e-5)
    print("Linen by nnx.bridge: equal")

    classifier = Classifier(wrapped, labels=3)
    variables = classifier.init(jax.random.key(0), ids, lengths)
    variables = {"params": {**variables["params"], "encoder": weights}}
    logits: Any = classifier.apply(variables, ids, lengths)
    dense = variables["params"]["Dense_0"]
    expected = states[:, 0] @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(logits, expected, atol=2e-5)
    print("Linen classifier over it: equal")


if __name__ == "__main__":
    main()
