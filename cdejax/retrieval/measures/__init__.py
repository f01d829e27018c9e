"""Retrieval measures by name, as in `nDCG@10`; `registry` lists them."""

from cdejax.retrieval.measures.base import Measure as Measure
from cdejax.retrieval.measures.registry import DEFAULT as DEFAULT
from cdejax.retrieval.measures.registry import measure_of as measure_of
