"""Train: `python scripts/train.py --config RECIPE` is `cdejax train --config RECIPE`."""

import sys

from cdejax.cli import main

main(["train", *sys.argv[1:]])
