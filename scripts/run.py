"""All stages of a recipe: `python scripts/run.py --config RECIPE` is `cdejax run --config RECIPE`."""

import sys

from cdejax.cli import main

main(["run", *sys.argv[1:]])
