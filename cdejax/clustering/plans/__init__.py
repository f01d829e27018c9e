"""Planners: one file and one class per `plan.kind`."""
