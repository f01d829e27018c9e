"""Counts compilations, and caches them for later processes."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from cdejax.runtime.platforms import has_nvidia

_log = logging.getLogger(__name__)
_COMPILE = "/jax/core/compile/backend_compile_duration"
_HIT = "/jax/compilation_cache/cache_hits"


class Compilations:
    """Counts the compilations of this process from its creation on."""

    def __init__(self) -> None:
        self._seconds, self._hits = _compilation_events()
        self._first = len(self._seconds), len(self._hits)

    @property
    def seconds(self) -> list[float]:
        """Duration of each compilation, or of reading it from the cache."""
        return self._seconds[self._first[0] :]

    @property
    def read_from_cache(self) -> int:
        """Number of them that were read from the persistent cache."""
        return len(self._hits) - self._first[1]

    def __str__(self) -> str:
        seconds = self.seconds
        return (
            f"{len(seconds)} functions compiled in {sum(seconds):.1f} s (the longest "
            f"took {max(seconds, default=0.0):.1f}), {self.read_from_cache} of them "
            "read from the cache"
        )


@functools.cache
def _compilation_events() -> tuple[list[float], list[str]]:
    """Lists that JAX's listeners extend with compilations and reads from the cache.

    Registered once per process: JAX cannot unregister a listener.
    """
    seconds: list[float] = []
    hits: list[str] = []

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILE:
            seconds.append(duration_secs)

    def on_event(event: str, **_: Any) -> None:
        if event == _HIT:
            hits.append(event)

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    return seconds, hits


def enable_compilation_cache(folder: str | Path) -> None:
    """Uses a folder as JAX's persistent compilation cache from now on.

    Entries are keyed by the program, the devices and the versions of JAX and XLA. On
    GPUs they include the results of autotuning.

    Args:
      folder: created if missing; may be shared by runs and by processes. Ignored, with
        a warning, on several CPU devices: programs that XLA's CPU backend reads back
        may run their collectives in another order on each, and hang or crash.
    """
    from jax.experimental.compilation_cache import compilation_cache

    if jax.default_backend() == "cpu" and jax.device_count() > 1:
        _log.warning(
            "%s: nothing is kept, since XLA cannot run a program that it reads back on "
            "several CPU devices (%d here)",
            folder,
            jax.device_count(),
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(folder).absolute()))
    # Short compilations add up: a step needs a hundred of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # JAX keeps using its first folder until the cache is reset.
    compilation_cache.reset_cache()


def model_options(mesh: Mesh) -> dict[str, Any] | None:
    """`compiler_options` of `jax.jit` for functions that run an encoder on a mesh.

    On NVIDIA GPUs XLA fuses matrix products with their surroundings to try Triton. If
    it then chooses cuBLAS (as it mostly does), biases remain separate passes through
    memory, whereas cuBLAS adds them itself if Triton is disabled. `XLA_FLAGS` do not
    override this, and JAX accepts such options only for a function that is not called
    inside another one.
    """
    return {"xla_gpu_enable_triton_gemm": False} if has_nvidia(mesh) else None
