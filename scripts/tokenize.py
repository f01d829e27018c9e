"""Tokenise the pairs: `python scripts/tokenize.py --config RECIPE` is `cdejax tokenize --config RECIPE`."""

import sys

from cdejax.cli import main

main(["tokenize", *sys.argv[1:]])
