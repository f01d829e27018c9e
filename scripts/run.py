"""`cdejax run` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["run", *sys.argv[1:]])
