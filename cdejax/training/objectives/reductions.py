"""Reductions of values per cell to one number per query, block by block.

A reduction's state is updated with blocks of columns of the score matrix, in any order.
The ring's backward pass differentiates `contribution`: its gradient with respect to a
block's values is that of the completed reduction over all columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

NEVER = -1e30
"""Logit of a cell outside the denominator: finite, so that gradients are not NaN."""

Values = Any
"""An array of shape [queries, block], or a tuple of arrays if a reduction takes one."""
Axes = tuple[str, ...]


class Reduction(Protocol):
    """A reduction over columns, for each row."""

    @classmethod
    def empty(cls, zero: Float[Array, "queries"]) -> Self:
        """Returns the initial state.

        Args:
          zero: zeros that vary over the same mesh axes as the values.
        """
        ...

    def add(self, values: Values) -> Self:
        """Returns the state after another block of columns."""
        ...

    def over(self, axes: Axes) -> Self:
        """Returns the combined state of all devices along mesh axes."""
        ...

    def value(self) -> Float[Array, "queries"]:
        """Returns the reduction over all columns added so far."""
        ...

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """Returns numbers with the same gradient for a block's `values` as `value`.

        It is called on the state after all columns, which is constant here.
        """
        ...


class Sum(NamedTuple):
    """The sum of the values."""

    total: Float[Array, "queries"]

    @classmethod
    def empty(cls, zero: Float[Array, "queries"]) -> Self:
        """A sum of 0."""
        return cls(zero)

    def add(self, values: Values) -> Self:
        """Adds the columns of a block."""
        return self._replace(total=self.total + values.sum(-1))

    def over(self, axes: Axes) -> Self:
        """The sum over devices."""
        return self._replace(total=jax.lax.psum(self.total, axes))

    def value(self) -> Float[Array, "queries"]:
        """The sum."""
        return self.total

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """The sum of the block."""
        return values.sum(-1)


class LogSumExp(NamedTuple):
    """The log-sum-exp of the values, computed relative to the running maximum."""

    peak: Float[Array, "queries"]
    """Running maximum."""
    total: Float[Array, "queries"]
    """Sum of exp(value - peak)."""

    @classmethod
    def empty(cls, zero: Float[Array, "queries"]) -> Self:
        """No column so far."""
        return cls(zero + NEVER, zero)

    def add(self, values: Values) -> Self:
        """Adds the columns of a block."""
        peak = jnp.maximum(self.peak, jax.lax.stop_gradient(values.max(-1)))
        total = self.total * jnp.exp(self.peak - peak)
        total += jnp.exp(values - peak[:, None]).sum(-1)
        return self._replace(peak=peak, total=total)

    def over(self, axes: Axes) -> Self:
        """The same over the columns of all devices."""
        peak = jax.lax.pmax(jax.lax.stop_gradient(self.peak), axes)
        total = jax.lax.psum(self.total * jnp.exp(self.peak - peak), axes)
        return self._replace(peak=peak, total=total)

    def value(self) -> Float[Array, "queries"]:
        """The log-sum-exp."""
        return self.peak + jnp.log(self.total)

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """The block's share of the softmax, whose gradient is the softmax itself."""
        return jnp.exp(values - self.value()[:, None]).sum(-1)


class Maximum(NamedTuple):
    """The maximum of the values, at least -1; its gradient is 0.

    It is meant for metrics on cosine similarities, which are at least -1.
    """

    largest: Float[Array, "queries"]

    @classmethod
    def empty(cls, zero: Float[Array, "queries"]) -> Self:
        """The smallest cosine, -1."""
        return cls(zero - 1)

    def add(self, values: Values) -> Self:
        """Adds the columns of a block."""
        return self._replace(largest=jnp.maximum(self.largest, values.max(-1)))

    def over(self, axes: Axes) -> Self:
        """The maximum over all devices."""
        return self._replace(largest=jax.lax.pmax(self.value(), axes))

    def value(self) -> Float[Array, "queries"]:
        """The maximum."""
        return jax.lax.stop_gradient(self.largest)

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """0, since the maximum has no gradient."""
        del values
        return jnp.zeros_like(self.largest)


class Expectation(NamedTuple):
    """The mean of values weighted by a softmax.

    Blocks are tuples (log weights, values). No gradient flows to the log weights, which
    are a surrogate's.
    """

    peak: Float[Array, "queries"]
    """Running maximum of the log weights."""
    weight: Float[Array, "queries"]
    """Sum of exp(log weight - peak)."""
    weighted: Float[Array, "queries"]
    """Sum of exp(log weight - peak) times value."""

    @classmethod
    def empty(cls, zero: Float[Array, "queries"]) -> Self:
        """No column so far."""
        return cls(zero + NEVER, zero, zero)

    def add(self, values: Values) -> Self:
        """Adds the columns of a block."""
        log_weights, values = jax.lax.stop_gradient(values[0]), values[1]
        peak = jnp.maximum(self.peak, log_weights.max(-1))
        scale, weights = jnp.exp(self.peak - peak), jnp.exp(log_weights - peak[:, None])
        weight = self.weight * scale + weights.sum(-1)
        weighted = self.weighted * scale + (weights * values).sum(-1)
        return self._replace(peak=peak, weight=weight, weighted=weighted)

    def over(self, axes: Axes) -> Self:
        """The same over the columns of all devices."""
        peak = jax.lax.pmax(self.peak, axes)
        scale = jnp.exp(self.peak - peak)
        parts = jax.lax.psum((self.weight * scale, self.weighted * scale), axes)
        return self._replace(peak=peak, weight=parts[0], weighted=parts[1])

    def value(self) -> Float[Array, "queries"]:
        """The weighted mean."""
        return self.weighted / self.weight

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """The block's share of the weighted mean."""
        weights = jnp.exp(values[0] - self.peak[:, None]) / self.weight[:, None]
        return (jax.lax.stop_gradient(weights) * values[1]).sum(-1)
