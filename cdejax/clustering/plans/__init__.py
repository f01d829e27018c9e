"""Planners: one file and one class for each `plan.kind`."""
