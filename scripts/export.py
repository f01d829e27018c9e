"""Export a Hugging Face folder: `python scripts/export.py --config RECIPE` is `cdejax export --config RECIPE`."""

import sys

from cdejax.cli import main

main(["export", *sys.argv[1:]])
