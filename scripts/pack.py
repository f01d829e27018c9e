"""`cdejax pack` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["pack", *sys.argv[1:]])
