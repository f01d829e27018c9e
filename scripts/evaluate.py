"""Evaluate: `python scripts/evaluate.py --config RECIPE` is `cdejax evaluate --config RECIPE`."""

import sys

from cdejax.cli import main

main(["evaluate", *sys.argv[1:]])
