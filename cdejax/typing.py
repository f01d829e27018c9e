"""Types that models, training and their callers share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

AnyArray = jax.Array | np.ndarray
"""Public calls take NumPy and JAX arrays alike."""
Device = Any
"""A `jax.Device`; jaxlib carries no types, so checkers do not know it as one."""
