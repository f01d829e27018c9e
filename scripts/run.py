"""`cdejax run` from a checkout; `--help` explains it."""

import sys

from cdejax.cli import main

main(["run", *sys.argv[1:]])
