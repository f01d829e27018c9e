"""`cdejax pack` from a checkout; `--help` explains it."""

import sys

from cdejax.cli import main

main(["pack", *sys.argv[1:]])
