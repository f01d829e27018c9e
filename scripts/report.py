"""`cdejax report` from a checkout; `--help` explains it."""

import sys

from cdejax.cli import main

main(["report", *sys.argv[1:]])
