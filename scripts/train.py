"""`cdejax train` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["train", *sys.argv[1:]])
