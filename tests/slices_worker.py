"""One of several processes of which each holds a device of every slice.

CPUs of one machine are one slice to JAX: here a process's devices are numbered apart,
the last first, so that devices of a slice belong to different processes.
"""

import jax

from cdejax import distributed, mesh
from cdejax.cli import main


def slice_of(device):
    each = jax.local_device_count()
    return each - 1 - device.id % each


if __name__ == "__main__":
    distributed.join()
    mesh._slice_of = slice_of
    parts = mesh.slices(jax.devices())
    print([[d.process_index for d in part] for part in parts])  # noqa: T201
    main()
