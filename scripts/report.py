"""Put all figures into one table: `python scripts/report.py --config RECIPE` is `cdejax report --config RECIPE`."""

import sys

from cdejax.cli import main

main(["report", *sys.argv[1:]])
