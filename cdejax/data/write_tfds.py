"""Pairs written as a TensorFlow dataset, without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from cdejax.config import Config, DataConfig
from cdejax.data.rows import Pair, Reading
from cdejax.data.sources import data_spec, read_source
from cdejax.data.sources.tfds import INFO
from cdejax.data.validation import Report, checked
from cdejax.runtime.progress import progress
from cdejax.storage.artifacts import run_stage, write_json

NAME, VERSION = "pairs", "1.0.0"
SHARD_ROWS = 65536


def tfds_stage(config: Config, root: str | Path) -> Path:
    """Runs `write_tfds` on the configured sources as a stage.

    The dataset is in `pairs/1.0.0` of the folder. The source `tfds:FOLDER/pairs/1.0.0`
    reads it, and so does `tfds.data_source("pairs", data_dir=FOLDER)`.
    """
    spec = data_spec(config.data)
    return run_stage(root, "tfds", spec, lambda folder: write_tfds(config.data, folder))


def write_tfds(config: DataConfig, folder: str | Path) -> dict[str, Any]:
    """Writes the sources' valid rows as a TFDS dataset in array_record, split `train`.

    Features: `query`, `document`, `domain`, `negatives` (a sequence), and `query_id`
    and `document_id` if the sources have them. TensorFlow is not imported: TFDS's
    features serialise the examples, and the records, `dataset_info.json` and
    `features.json` are written here.

    Returns:
      Counts: `rows`, `shards`, `bytes`, `invalid_rows`, `invalid` by kind.

    Raises:
      ValueError: invalid rows with `on_invalid: error`; no valid row; ids in only some
        of the sources.
    """
    target = Path(folder) / NAME / VERSION
    target.mkdir(parents=True)
    report = Report(Path(folder) / "invalid.jsonl")
    readings = [read_source(source) for source in config.sources]
    ids = _ids(readings)
    pairs = chain.from_iterable(
        checked(reading, source.domain, config, report)
        for reading, source in zip(readings, config.sources, strict=True)
    )
    features = _features(ids)
    lengths, size = _write_records(pairs, features, ids, target)
    report.stop(config.on_invalid)
    if not lengths:
        raise ValueError("no valid row in any source; nothing to write.")
    features.save_config(str(target))
    write_json(target / INFO, _info(lengths, size))
    return {
        "rows": sum(lengths),
        "shards": len(lengths),
        "bytes": size,
        "invalid_rows": report.bad_rows,
        "invalid": dict(report.kinds),
    }


def _ids(readings: list[Reading]) -> list[str]:
    """Names of the id features, each of which all sources or none must have."""
    found = []
    for name in ("query_id", "document_id"):
        have = [getattr(reading.columns, name) is not None for reading in readings]
        if any(have) and not all(have):
            raise ValueError(
                f"some sources have `columns.{name}` and others do not; "
                "a TFDS dataset needs it in all of them or in none."
            )
        found += [name] if any(have) else []
    return found


def _features(ids: list[str]) -> Any:
    import tensorflow_datasets as tfds

    text = tfds.features.Text
    fields = {name: text() for name in ("query", "document", "domain", *ids)}
    return tfds.features.FeaturesDict(
        {**fields, "negatives": tfds.features.Sequence(text())}
    )


def _write_records(
    pairs: Iterator[Pair], features: Any, ids: list[str], folder: Path
) -> tuple[list[int], int]:
    """Writes shards under their final names; returns their row counts and the bytes."""
    from array_record.python.array_record_module import ArrayRecordWriter

    lengths: list[int] = []
    serialise = _serialiser(features)
    size, writer = 0, None
    with progress("write TFDS", None) as advance:
        for row, pair in enumerate(pairs):
            if row % SHARD_ROWS == 0:
                if writer is not None:
                    writer.close()
                writer = ArrayRecordWriter(str(_shard(folder, row)), "group_size:1")
                lengths.append(0)
            fields = ("query", "document", "domain", "negatives", *ids)
            example = {field: getattr(pair, field) for field in fields}
            example["negatives"] = list(pair.negatives)
            record = serialise(example)
            writer.write(record)  # type: ignore[union-attr]
            lengths[-1] += 1
            size += len(record)
            advance(1)
    if writer is not None:
        writer.close()
    for shard in range(len(lengths)):
        name = f"{NAME}-train.array_record-{shard:05d}-of-{len(lengths):05d}"
        _shard(folder, shard * SHARD_ROWS).rename(folder / name)
    return lengths, size


def _serialiser(features: Any) -> Callable[[dict[str, Any]], bytes]:
    """Like `features.serialize_example`, but with equal bytes in every process."""
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    serializer = ExampleSerializer(features.get_serialized_info())

    def serialise(example: dict[str, Any]) -> bytes:
        message = serializer.get_tf_example(features.encode_example(example))
        return message.SerializeToString(deterministic=True)

    return serialise


def _shard(folder: Path, row: int) -> Path:
    return folder / f"shard-{row // SHARD_ROWS:05d}.tmp"


def _info(lengths: list[int], size: int) -> dict[str, Any]:
    """`dataset_info.json`: the JSON form of TFDS's DatasetInfo message."""
    return {
        "name": NAME,
        "version": VERSION,
        "description": "Pairs of queries and documents, written by cdejax.",
        "fileFormat": "array_record",
        "splits": [
            {
                "name": "train",
                "numBytes": str(size),
                "shardLengths": [str(length) for length in lengths],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
        ],
    }
