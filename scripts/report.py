"""`cdejax report` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["report", *sys.argv[1:]])
