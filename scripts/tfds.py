"""`cdejax tfds` from a checkout; `--help` explains it."""

import sys

from cdejax.cli import main

main(["tfds", *sys.argv[1:]])
