"""`cdejax evaluate` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["evaluate", *sys.argv[1:]])
