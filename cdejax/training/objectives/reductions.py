"""How values of cells are reduced to one number per query, block by block.

A reduction's state takes the columns of the score matrix in blocks, in any order.
`contribution` is what the ring's backward pass differentiates: a number whose gradient
in the block's values is that of the finished reduction, once all columns are known.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

NEVER = -1e30
"""Logit of a cell outside the denominator: finite, so that no gradient is NaN."""

Values = Any
"""An array of shape [queries, block], or the tuple of arrays that a reduction takes."""
Axes = tuple[str, ...]


class Reduction(Protocol):
    """A reduction over the columns of a block, for each of its rows."""

    @classmethod
    def empty(cls, zero: Float[Array, "queries"]) -> Self:
        """The state before any column; `zero` varies over the same mesh axes."""
        ...

    def add(self, values: Values) -> Self:
        """The state after a further block of columns."""
        ...

    def over(self, axes: Axes) -> Self:
        """The states of all devices along mesh axes, combined."""
        ...

    def value(self) -> Float[Array, "queries"]:
        """The reduction over all columns added so far."""
        ...

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """Has the gradient in a block's `values` that `value` has.

        Called on the state after all columns, which is a constant here.
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
        """The block's own sum."""
        return values.sum(-1)


class LogSumExp(NamedTuple):
    """log sum exp of the values, relative to the running maximum."""

    peak: Float[Array, "queries"]
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
        """The logarithm."""
        return self.peak + jnp.log(self.total)

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """The block's share of the softmax: its gradient is softmax times d values."""
        return jnp.exp(values - self.value()[:, None]).sum(-1)


class Maximum(NamedTuple):
    """The largest value, at least -1; a constant for the gradient.

    It serves metrics on cosines, which are at least -1.
    """

    largest: Float[Array, "queries"]

    @classmethod
    def empty(cls, zero: Float[Array, "queries"]) -> Self:
        """-1, the smallest cosine."""
        return cls(zero - 1)

    def add(self, values: Values) -> Self:
        """Adds the columns of a block."""
        return self._replace(largest=jnp.maximum(self.largest, values.max(-1)))

    def over(self, axes: Axes) -> Self:
        """The largest of all devices."""
        return self._replace(largest=jax.lax.pmax(self.value(), axes))

    def value(self) -> Float[Array, "queries"]:
        """The maximum."""
        return jax.lax.stop_gradient(self.largest)

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """None: 0."""
        del values
        return jnp.zeros_like(self.largest)


class Expectation(NamedTuple):
    """The mean of values under softmax weights, of which it takes both.

    Blocks are tuples (log weights, values). The log weights are constants for the
    gradient: a teacher's.
    """

    peak: Float[Array, "queries"]
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
        """The mean."""
        return self.weighted / self.weight

    def contribution(self, values: Values) -> Float[Array, "queries"]:
        """The block's share of the mean."""
        weights = jnp.exp(values[0] - self.peak[:, None]) / self.weight[:, None]
        return (jax.lax.stop_gradient(weights) * values[1]).sum(-1)
