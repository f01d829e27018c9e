"""`cdejax embed` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["embed", *sys.argv[1:]])
