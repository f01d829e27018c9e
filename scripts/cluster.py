"""Cluster the vectors: `python scripts/cluster.py --config RECIPE` is `cdejax cluster --config RECIPE`."""

import sys

from cdejax.cli import main

main(["cluster", *sys.argv[1:]])
