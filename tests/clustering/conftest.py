"""A small pairs artefact with three domains."""

import json
from pathlib import Path

import pytest

from cdejax.config import ColumnsConfig, Config, DataConfig, SourceConfig
from cdejax.data.pairs import pairs_stage

SIZES = {"birds": 45, "stars": 70, "tools": 6}


def rows():
    """One pair per number; words tie a query to its document and its domain."""
    for domain, size in SIZES.items():
        for i in range(size):
            topic, detail = (
                f"{domain}topic{chr(97 + i % 5)}",
                f"detail{chr(97 + i % 7)}",
            )
            yield {
                "query": f"{domain} {topic} question {i}",
                "document": f"{domain} {topic} {detail} answer {i} {domain}",
                "domain": domain,
            }


def write_pairs(folder: Path, lines) -> Path:
    """Runs the pairs stage on rows given as mappings with a domain."""
    source = folder / "pairs.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = ColumnsConfig(domain="domain")
    data = DataConfig(sources=(SourceConfig(str(source), columns),))
    return pairs_stage(Config(data=data), folder / "artifacts")


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory) -> Path:
    """121 pairs: 45 about birds, 70 about stars, 6 about tools."""
    return write_pairs(tmp_path_factory.mktemp("pairs"), rows())
