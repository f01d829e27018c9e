"""Compiled functions that outlive the process."""

from __future__ import annotations

import logging
from pathlib import Path

import jax

_log = logging.getLogger(__name__)


def keep_compiled(folder: str | Path) -> None:
    """Keeps whatever is compiled from now on in a folder, for later processes to read.

    A compiled function is found again by its program, the devices and the versions of
    JAX and XLA. On a GPU the folder holds what autotuning found, too.

    Args:
      folder: made if it is missing; may be shared by runs and by processes. Not used,
        which is said, on several CPU devices: programs that XLA's CPU backend reads
        back may run their collectives in another order on each, and hang or crash.
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
    # Short compilations add up: a step comes with a hundred of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # JAX keeps the folder that it first used, whatever the setting says later.
    compilation_cache.reset_cache()
