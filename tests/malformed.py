"""Malformed inputs as data: for tests of single readers, and for whole commands.

Each table maps a name to the content of a file that must be refused, in one line and
with bounded memory, by whatever reads a file of that kind. `ITEMS` lists all of them
with the kind of file; functions write those that are too large to be held here.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

_LONG = "9" * 5000

YAML: dict[str, bytes] = {
    "deep flow lists": b"name: " + b"[" * 5000 + b"]" * 5000,
    "a million open brackets": b"name: " + b"[" * 10**6,
    "deep flow mappings": b"name: " + b"{a: " * 1000 + b"}" * 1000,
    "deep block lists": b"- " * 2000 + b"a",
    "deep block mappings": b"".join(b" " * i + b"a:\n" for i in range(300)),
    "cyclic alias": b"name: &a [*a]",
    "cyclic mapping": b"&a\nname: *a\n",
    "unknown alias": b"name: *a",
    "alias bomb": b"a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
    + b"".join(
        b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10))
        for i in range(1, 12)
    ),
    "Python tag": b"name: !!python/object/apply:os.system [ls]",
    "tag of one's own": b"name: !mine x",
    "tag with bad escapes": b"name: !%ff x",
    "binary tag": b"name: !!binary aGk=",
    "set tag": b"name: !!set {a, b}",
    "timestamp tag": b"name: !!timestamp 2001-01-01",
    "merge key": b"a: &a {b: 1}\nname: {<<: *a}\n<<: !!merge x",
    "whole number that is none": b"seed: !!int x",
    "empty whole number": b"seed: !!int ''",
    "bool that is none": b"seed: !!bool x",
    "number that is none": b"seed: !!float x",
    "binary without digits": b"seed: 0b_",
    "hexadecimal without digits": b"seed: 0x_",
    "huge whole number": b"seed: " + _LONG.encode(),
    "huge hexadecimal": b"seed: 0x" + _LONG.encode(),
    "huge sexagesimal": b"seed: 1" + b":59" * 2000,
    "escape beyond Unicode": b'name: "\\UFFFFFFFF"',
    "escape of a surrogate": b'name: "\\uD800"',
    "escape of NUL": b'name: "a\\0b"',
    "surrogate as key": b'"\\uD800": x',
    "control character": b"name: x\n\x01: y",
    "NUL": b"name: x\0",
    "latin-1": "name: café".encode("latin-1"),
    "UTF-16": "name: cafe".encode("utf-16"),
    "UTF-32": "name: cafe".encode("utf-32"),
    "key that is a list": b"[a, b]: c",
    "key that is a mapping": b"{a: b}: c",
    "key of a megabyte": b"? " + b"k" * 900_000 + b"\n: v",
    "key twice": b"name: a\nname: b",
    "directive of the future": b"%YAML 9.9\n---\nname: x",
    "unknown tag handle": b"name: !x!y z",
    "two documents": b"name: a\n---\nname: b",
    "text": b"just text",
    "list": b"- a\n- b",
    "empty": b"",
    "comment": b"# nothing",
    "tab": b"name:\n\tx",
    "unclosed quote": b'name: "x',
    "more than a recipe": b"name: x\n" + b"# filling\n" * 110_000,
}
"""Recipes. What a YAML reader of recipes refuses, whatever the settings are."""

SET: dict[str, str] = {
    "no value": "plan.batch_size",
    "no key": "=3",
    "dots alone": "...=3",
    "empty part": "plan..batch_size=3",
    "key that is none": "a b=3",
    "key with quotes": '"plan".batch_size=3',
    "key with brackets": "plan[batch_size]=3",
    "long key": "k" * 5000 + "=3",
    "key of many parts": ".".join("a" * 3000) + "=3",
    "number as key": "3=3",
    "mapping with a number as key": "plan={1: 2}",
    "mapping with a list as key": "plan={[a]: 2}",
    "mapping with null as key": "plan={null: 2}",
    "mapping with a truth value as key": "tokens={true: 2}",
    "null for a section": "plan=null",
    "list for a section": "plan=[]",
    "text for a section": "plan=x",
    "list for a number": "plan.batch_size=[1]",
    "mapping for a number": "plan.batch_size={a: 1}",
    "number beyond 64 bits": "plan.batch_size=" + "9" * 25,
    "number of many digits": "plan.batch_size=" + _LONG,
    "float of many digits": "training.learning_rate=" + _LONG,
    "hexadecimal beyond floats": "training.learning_rate=0x" + "f" * 290,
    "infinity": "training.learning_rate=.inf",
    "not a number": "training.learning_rate=.nan",
    "overflowing exponent": "training.learning_rate=1e999",
    "other digits": "training.learning_rate=٣e5",
    "deep value": "plan=" + "[" * 3000,
    "alias": "plan=*a",
    "cyclic alias": "plan=&a [*a]",
    "Python tag": "plan=!!python/name:os.system",
    "bad tag": "seed=!!int x",
    "bad bool": "seed=!!bool x",
    "escape beyond Unicode": 'name="\\UFFFFFFFF"',
    "surrogate": 'name="\\uD800"',
    "surrogate of the command line": "name=\udcff",
    "surrogate in a key": "na\udcffme=x",
    "NUL": 'model.encoder="a\\0b"',
    "control character": "name=\x01",
    "not YAML": "name={",
    "a path as name": "name=../up",
    "negative seed": "seed=-1",
    "section twice": "plan={kind: shuffled, kind: clustered}",
}
"""Values of `--set` that no recipe takes."""

_DEEP = b"[" * 100_000 + b"]" * 100_000
JSON: dict[str, bytes] = {
    "deep lists": _DEEP,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deeper than the bound": b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
    "open brackets": b"[" * 10**6,
    "huge whole number": b'{"hidden_size": ' + _LONG.encode() + b"}",
    "huge negative number": b'{"hidden_size": -' + _LONG.encode() + b"}",
    "list": b"[1, 2]",
    "text": b'"text"',
    "number": b"3",
    "null": b"null",
    "empty": b"",
    "white space": b" \n",
    "cut short": b'{"a": ',
    "more behind it": b"{} {}",
    "single quotes": b"{'a': 1}",
    "trailing comma": b'{"a": 1,}',
    "comment": b'{"a": 1} // x',
    "bad escape": b'{"a": "\\x"}',
    "control character": b'{"a": "\x01"}',
    "NUL": b"\0",
    "latin-1": '{"a": "é"}'.encode("latin-1"),
    "UTF-16": "{}".encode("utf-16"),
    "UTF-32": "{}".encode("utf-32-le"),
    "gzip": gzip.compress(b"{}"),
    "pickle": b"\x80\x04}\x94.",
}
"""Files that must hold a JSON object: configurations, manifests, side files."""


def npy(header: str | bytes, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """A `.npy` with a header of one's own."""
    text = header.encode() if isinstance(header, str) else header
    length = len(text).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + length + text + data


def described(descr: str, shape: str, data: bytes = bytes(64), order: str = "False"):
    """A `.npy` whose header has these parts, unchecked."""
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    return npy(header, data)


def _saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


NPY: dict[str, bytes] = {
    "empty": b"",
    "text": b"[[1, 2]]",
    "archive": b"PK\3\4rest",
    "magic alone": b"\x93NUMPY",
    "unknown version": npy("{}", version=b"\x09\0"),
    "version 3": npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\n",
        bytes(4),
        version=b"\3\0",
    ),
    "no header": npy(""),
    "header longer than the file": b"\x93NUMPY\1\0\xff\xff{}",
    "header of gigabytes": b"\x93NUMPY\2\0\xff\xff\xff\xff{}",
    "header that is no literal": npy("print(1)\n"),
    "header that is a list": npy("[1]\n"),
    "header without shape": npy("{'descr': '<f4', 'fortran_order': False}\n"),
    "header with nested brackets": npy("(" * 9000 + ")" * 900 + "\n"),
    "header with an open bracket": npy("{'descr': ('<f4\n"),
    "header of minus signs": npy("-" * 9000 + "1\n"),
    "header with bytes": npy(b"\xff\xfe\x00"),
    "header of huge digits": npy("{'shape': " + "9" * 6000 + "}\n"),
    "shape of a number": described("'<f4'", "3"),
    "shape of a float": described("'<f4'", "(1.5,)"),
    "shape beyond the file": described("'<f4'", "(1000, 1000)"),
    "shape beyond memory": described("'<f4'", "(10**15,)".replace("10**15", "1" * 15)),
    "shape beyond 64 bits": described("'<f4'", "(9" + "9" * 30 + ",)"),
    "negative shape": described("'<f4'", "(-1, 4)"),
    "two negative shapes": described("'<f4'", "(-2, -2)"),
    "no elements, beyond 64 bits": described("'<f4'", "(0, " + "9" * 30 + ")"),
    "unknown dtype": described("'<q9'", "(2,)"),
    "dtype of a number": described("7", "(2,)"),
    "dtype with a bad field": described("[('a', '<f4', (1, 2, 'x'))]", "(2,)"),
    "order of a text": described("'<f4'", "(2,)", order="'C'"),
    "objects": _saved(np.array([{"a": 1}], object)),
    "cut short": _saved(np.zeros((8, 8)))[:-100],
}
"""Arrays that no reader of `.npy` files takes."""

ARRAYS: dict[str, bytes] = {
    "structured": _saved(np.zeros(4, [("a", "<f4"), ("b", "<i4")])),
    "texts": _saved(np.array(["a", "b"])),
    "bytes": _saved(np.array([b"a", b"b"])),
    "dates": _saved(np.zeros((4, 2), "datetime64[s]")),
    "truth values": _saved(np.zeros((4, 2), bool)),
    "complex": _saved(np.zeros((4, 2), np.complex64)),
    "three axes": _saved(np.zeros((4, 2, 2), np.float32)),
    "no axis": _saved(np.array(1, np.float32)),
    "no rows": _saved(np.zeros((0, 4), np.float32)),
    "no columns": _saved(np.zeros((4, 0), np.float32)),
}
"""Arrays that NumPy reads and that are neither vectors nor a plan."""

_GOOD = b'{"query": "what is it", "document": "an answer"}\n'
ROWS: dict[str, bytes] = {
    "deep lists": _DEEP,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "huge whole number": b'{"query": "a", "document": "b", "n": '
    + _LONG.encode()
    + b"}",
    "cut short": b'{"query": "a", ',
    "a name twice": b'{"query": "a", "query": "b", "document": "c"}',
    "no object": b"[1]",
    "null": b"null",
    "latin-1": '{"query": "é", "document": "b"}'.encode("latin-1"),
    "lone surrogate": b'{"query": "\\ud83d", "document": "b"}',
    "NUL": b'{"query": "a\\u0000", "document": "b"}',
    "NaN": b'{"query": NaN, "document": "b"}',
    "object for a text": b'{"query": {"a": 1}, "document": "b"}',
    "empty texts": b'{"query": "", "document": " "}',
    "trailing comma": b'{"query": "a", "document": "b",}',
}
"""Lines that are no rows, each to stand behind a good one."""

JSON_LINES: dict[str, bytes] = {
    **{name: _GOOD + row + b"\n" for name, row in ROWS.items()},
    "empty": b"",
    "white space": b"\n \n",
    "UTF-16": _GOOD.decode().encode("utf-16"),
    "a JSON array": json.dumps([json.loads(_GOOD)], indent=1).encode(),
    "other columns": b'{"question": "a", "answer": "b"}\n' * 200,
    "gzip cut short": gzip.compress(_GOOD * 100)[:-12],
    "gzip with garbage behind": gzip.compress(_GOOD) + b"garbage",
    "a pickle": b"\x80\x04}\x94.",
}
"""Files of pairs, .jsonl."""

CSV: dict[str, bytes] = {
    "empty": b"",
    "header alone": b"query,document\n",
    "no header": b"what is it,an answer\nand this,another\n",
    "columns of one name": b"query,query,document\na,b,c\n",
    "a field too many": b"query,document\na,b,c\n",
    "a field too few": b"query,document\na\n",
    "unclosed quote": b'query,document\na,"b\nc,d\n',
    "text behind a quote": b'query,document\na,"b"c\n',
    "carriage returns alone": b"query,document\ra,b\r",
    "latin-1": "query,document\né,b\n".encode("latin-1"),
    "UTF-16": "query,document\na,b\n".encode("utf-16"),
    "NUL": b"query,document\na\0,b\n",
}
"""Files of pairs, .csv."""


class Item(NamedTuple):
    """A malformed input."""

    kind: str
    """What is malformed: `recipe`, `set`, `json`, `array`, `vectors`, `pairs`."""
    name: str
    suffix: str
    """How the file's name must end; empty for a text of the command line."""
    content: bytes | str


def items() -> Iterator[Item]:
    """All malformed inputs that are held here."""
    tables: list[tuple[str, str, dict[str, bytes]]] = [
        ("recipe", ".yaml", YAML),
        ("json", ".json", JSON),
        ("array", ".npy", NPY),
        ("vectors", ".npy", ARRAYS),
        ("pairs", ".jsonl", JSON_LINES),
        ("pairs", ".csv", CSV),
    ]
    for kind, suffix, table in tables:
        for name, content in table.items():
            yield Item(kind, name, suffix, content)
    for name, text in SET.items():
        yield Item("set", name, "", text)


def alias_bomb(folder: Path) -> Path:
    """A recipe of a kilobyte that is 10^12 values with its aliases spelled out."""
    path = folder / "bomb.yaml"
    path.write_bytes(YAML["alias bomb"])
    return path


def wide_json(folder: Path) -> Path:
    """A sparse file of 8 GB that begins as JSON."""
    return _sparse(folder / "wide.json", b'{"a": "')


def boundless_npy(folder: Path) -> Path:
    """A sparse `.npy` whose header claims 4 GB."""
    return _sparse(folder / "x.npy", b"\x93NUMPY\2\0\xff\xff\xff\xff{")


def long_line(folder: Path) -> Path:
    """A gzip of a few megabytes whose second line has a gigabyte."""
    path = folder / "long.jsonl.gz"
    head = gzip.compress(_GOOD + b'{"query": "')
    path.write_bytes(head + gzip.compress(b"a" * (1 << 24), 1) * 64)
    return path


def _sparse(path: Path, head: bytes) -> Path:
    with open(path, "wb") as stream:
        stream.write(head)
        stream.truncate(8 << 30)
    return path
