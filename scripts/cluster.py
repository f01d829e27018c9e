"""`cdejax cluster` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["cluster", *sys.argv[1:]])
