"""`cdejax tokenize` from a checkout (`tokenize.py` would hide the standard module)."""

import sys

from cdejax.cli.main import main

main(["tokenize", *sys.argv[1:]])
