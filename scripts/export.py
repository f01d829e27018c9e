"""`cdejax export` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["export", *sys.argv[1:]])
