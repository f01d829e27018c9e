"""`cdejax tfds` from a checkout; `--help` explains it."""

import sys

from cdejax.cli.main import main

main(["tfds", *sys.argv[1:]])
