"""Attention and norms, by platform."""
