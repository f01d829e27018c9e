"""Pack clusters into batches: `python scripts/pack.py --config RECIPE` is `cdejax pack --config RECIPE`."""

import sys

from cdejax.cli import main

main(["pack", *sys.argv[1:]])
