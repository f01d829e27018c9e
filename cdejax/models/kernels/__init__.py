"""Kernels for attention, norms and activations, by platform."""
