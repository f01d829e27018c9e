"""Read and check the sources: `python scripts/pairs.py --config RECIPE` is `cdejax pairs --config RECIPE`."""

import sys

from cdejax.cli import main

main(["pairs", *sys.argv[1:]])
