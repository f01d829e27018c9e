"""Make the surrogate vectors: `python scripts/embed.py --config RECIPE` is `cdejax embed --config RECIPE`."""

import sys

from cdejax.cli import main

main(["embed", *sys.argv[1:]])
