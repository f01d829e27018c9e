"""Sources of rows: each kind is one file here and one entry in `registry`."""

from cdejax.data.sources.base import Source as Source
from cdejax.data.sources.registry import check_source as check_source
from cdejax.data.sources.registry import data_spec as data_spec
from cdejax.data.sources.registry import hub_dataset as hub_dataset
from cdejax.data.sources.registry import read_source as read_source
from cdejax.data.sources.registry import source_fingerprint as source_fingerprint
from cdejax.data.sources.registry import source_of as source_of
