"""What holds for all kinds of sources, and how one more is added."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from cdejax.config import ColumnsConfig, Config, DataConfig, SourceConfig
from cdejax.data.columns import top_columns
from cdejax.data.pairs import Pairs, pairs_stage
from cdejax.data.rows import Problem, Reading, Row
from cdejax.data.sources import Source, read_source, registry, source_fingerprint
from cdejax.data.sources.huggingface import HuggingFaceDataset
from cdejax.recipe.preflight import check_sources
from cdejax.storage.artifacts import hash_files, read_manifest

from .conftest import ROWS, write_lines


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    source = SourceConfig(path=str(tmp_path / "a.jsonl"))
    write_lines(tmp_path / "a.jsonl", ROWS)
    first = source_fingerprint(source)
    assert source_fingerprint(source) == first
    write_lines(tmp_path / "a.jsonl", ROWS[::-1])
    assert source_fingerprint(source) != first


def test_all_shared_files_hold_good_rows(shared_data: Path) -> None:
    files = sorted((shared_data / "pairs").glob("*.jsonl.gz"))
    assert len(files) == 12
    for file in files:
        rows = iter(read_source(SourceConfig(path=str(file))).rows)
        for _, row in zip(range(500), rows, strict=False):
            assert not isinstance(row, Problem)
            assert set(row.value) >= {"query", "document", "domain"}


def test_reading_loads_no_heavy_library(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ROWS)
    code = (
        "import sys; from cdejax.config import *; from cdejax.data.pairs import *\n"
        "from pathlib import Path\n"
        f"source = SourceConfig(path={str(tmp_path / 'a.jsonl')!r})\n"
        "config = DataConfig(sources=(source,))\n"
        f"build_pairs(config, 0, Path({str(tmp_path / 'out')!r}))\n"
        "heavy = 'torch transformers tensorflow tensorflow_datasets datasets sklearn'\n"
        "assert not set(heavy.split()) & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_of_the_hub_is_pointed_out():
    with pytest.raises(ValueError, match="did you mean `hf:owner/name`"):
        read_source(SourceConfig(path="owner/name"))
    with pytest.raises(ValueError, match=r"no such file\. A source is"):
        read_source(SourceConfig(path="folder/pairs.jsonl"))


def test_a_file_of_unknown_kind_is_named_among_others(tmp_path):
    write_lines(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "README").write_text("Pairs.")
    forms = (
        "`python-packages`, a .jsonl, .csv, .tsv or .parquet file or a glob of them, a "
        "BEIR folder[:SPLIT], `hf:NAME[/CONFIG][:SPLIT]`, `hf:FOLDER[:SPLIT]` (written "
        "by save_to_disk), `tfds:NAME[/CONFIG][:SPLIT]` or `tfds:FOLDER[:SPLIT]`"
    )
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read_source(SourceConfig(path=str(tmp_path / "*")))
    said = f"source '{tmp_path / 'README'}': unknown kind. A source is {forms}."
    assert str(error.value) == said


def test_a_library_that_is_not_there_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(HuggingFaceDataset, "library", "no_such_library")
    message = r"source 'hf:a/b': reading it needs no_such_library .*'\.\[hub\]'"
    with pytest.raises(ValueError, match=message):
        read_source(SourceConfig(path="hf:a/b"))


@dataclass(frozen=True)
class SqliteTable(Source):
    """A table of a SQLite file, as an outsider would add it."""

    file: Path
    table: str

    forms = ("`sqlite:FILE?table=TABLE`",)

    @classmethod
    def of(cls, config: SourceConfig) -> Self | None:
        if not config.path.startswith("sqlite:"):
            return None
        file, _, table = config.path.removeprefix("sqlite:").partition("?table=")
        return cls(config, Path(file), table)

    def read(self) -> Reading:
        if not self.file.is_file():
            raise ValueError(f"source {self.config.path!r}: no such file")
        with closing(sqlite3.connect(self.file)) as database:
            described = database.execute(f"SELECT * FROM {self.table}").description
        available = [name for name, *_ in described]
        names = top_columns(self.config.columns, available, self.config.path)
        return Reading(self._rows(names), self.config.columns)

    def fingerprint(self) -> Any:
        return hash_files(self.file)

    def _rows(self, names: list[str]) -> Iterator[Row | Problem]:
        with closing(sqlite3.connect(self.file)) as database:
            query = f"SELECT {', '.join(names)} FROM {self.table}"
            for number, values in enumerate(database.execute(query), 1):
                place = f"{self.config.path} row {number}"
                yield Row(place, dict(zip(names, values, strict=True)))


def add_rows(file: Path, *rows: tuple[str | None, str]) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS faq (question TEXT, answer TEXT)")
        database.executemany("INSERT INTO faq VALUES (?, ?)", rows)


@pytest.fixture
def faq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with two rows, and SQLite among the kinds of sources."""
    monkeypatch.setattr(registry, "SOURCES", (*registry.SOURCES, SqliteTable))
    add_rows(tmp_path / "faq.db", ("when?", "now"), ("where?", "here"))
    return tmp_path / "faq.db"


def recipe(path: str, query: str = "question") -> Config:
    columns = ColumnsConfig(query=query, document="answer")
    return Config(data=DataConfig(sources=(SourceConfig(path, columns, "faq"),)))


def test_a_new_kind_of_source_becomes_pairs(faq: Path, tmp_path: Path) -> None:
    config = recipe(f"sqlite:{faq}?table=faq")
    check_sources(config)
    folder = pairs_stage(config, tmp_path / "runs")
    pairs = Pairs.open(folder)
    assert list(pairs.queries) == ["when?", "where?"]
    assert list(pairs.documents) == ["now", "here"]
    assert pairs.domains == ["faq"]
    assert read_manifest(folder)["counts"]["train_rows"] == 2


def test_a_new_kind_of_source_is_read_again_when_it_changes(faq, tmp_path):
    config = recipe(f"sqlite:{faq}?table=faq")
    first = pairs_stage(config, tmp_path / "runs")
    assert pairs_stage(config, tmp_path / "runs") == first
    add_rows(faq, ("why?", "because"))
    changed = pairs_stage(config, tmp_path / "runs")
    assert changed != first
    assert list(Pairs.open(changed).documents) == ["now", "here", "because"]


def test_mistakes_in_a_new_kind_of_source_are_found_and_named(faq, tmp_path):
    path = f"sqlite:{faq}?table=faq"
    with pytest.raises(ValueError, match=r"did you mean `question`\?"):
        check_sources(recipe(path, query="qestion"))
    with pytest.raises(ValueError, match="no such file"):
        check_sources(recipe(f"sqlite:{tmp_path}/gone.db?table=faq"))
    with pytest.raises(ValueError, match=r"or `sqlite:FILE\?table=TABLE`\."):
        check_sources(recipe("gone.jsonl"))
    add_rows(faq, (None, "nothing was asked"))
    with pytest.raises(
        ValueError, match=r"\?table=faq row 3: field `question` is null"
    ):
        pairs_stage(recipe(path), tmp_path / "runs")
