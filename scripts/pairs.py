"""`cdejax pairs` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["pairs", *sys.argv[1:]])
