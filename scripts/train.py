"""`cdejax train` from a checkout; `--help` explains it."""

import sys

from cdejax.cli import main

main(["train", *sys.argv[1:]])
