"""The machine: processes, devices, compilation, streaming, progress."""
