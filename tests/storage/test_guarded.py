"""Text, JSON and arrays of others: bounded, and refused in one line."""

import io
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdejax.config.yaml import parse_value, read_yaml
from cdejax.storage.guarded import (
    MAX_DEPTH,
    MAX_DIGITS,
    open_npy,
    parse_json,
    read_json,
    read_json_object,
    read_text,
)
from tests import malformed

QUICK = settings(max_examples=150, deadline=None)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def refused(call, *arguments) -> str:
    """The one line of the ValueError that a call ends in."""
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the caller reads it)
        call(*arguments)
    assert type(error.value).__name__ not in ("UnicodeDecodeError", "JSONDecodeError")
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


@pytest.mark.parametrize("name", malformed.JSON)
def test_malformed_json_is_refused_with_its_file(name, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(malformed.JSON[name])
    assert refused(read_json_object, path).startswith(str(path))


@QUICK
@given(VALUES)
def test_json_reads_what_the_standard_library_reads(value):
    assert parse_json(json.dumps(value)) == value


@QUICK
@given(st.binary(max_size=60))
def test_no_bytes_are_json_or_an_array_by_accident(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    for read in (read_json, open_npy, read_yaml):
        try:
            read(path)
        except ValueError as error:
            assert str(error).startswith(str(path))  # noqa: PT017


def test_nesting_and_digits_up_to_the_bounds_are_read():
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert refused(parse_json, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    assert parse_json("9" * MAX_DIGITS) == int("9" * MAX_DIGITS)
    wide = [[1], {"a": []}] * 100
    assert parse_json(json.dumps(wide)) == wide


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]
    path.write_bytes("[1]".encode("utf-16"))
    assert "UTF-16" in refused(read_json, path)
    path.write_bytes(b"ab\nc\xe9")
    assert f"{path}:2: not UTF-8" in refused(read_text, path)
    assert "more than 4 bytes" in refused(read_text, path, 4)


@pytest.mark.parametrize("name", malformed.NPY)
def test_malformed_arrays_are_refused_with_their_file(name, tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(malformed.NPY[name])
    assert refused(open_npy, path).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 4), np.float32),
        np.float16(3),
    ],
)
def test_arrays_are_read_as_numpy_wrote_them(array, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, array)
    found = open_npy(path)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


@QUICK
@given(st.data())
def test_a_changed_header_is_read_or_refused(tmp_path_factory, data):
    stream = io.BytesIO()
    np.save(stream, np.arange(4, dtype=np.int32))
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 100))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.npy"
    path.write_bytes(content)
    try:
        assert open_npy(path).nbytes <= len(content)
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017


@pytest.mark.parametrize("name", malformed.YAML)
def test_malformed_yaml_is_refused_with_its_file(name, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(malformed.YAML[name])
    assert refused(read_yaml, path).startswith(str(path))


@QUICK
@given(st.text(max_size=40))
def test_any_text_is_a_yaml_value_or_refused(text):
    try:
        parse_value(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_aliases_are_read_where_they_are_few(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("a: &x {b: [1, 2]}\nc: *x\n")
    value, lines = read_yaml(path)
    assert value == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}
    assert lines["c",] == 2


BOMBS = {
    "yaml": (malformed.alias_bomb, "read_yaml"),
    "json": (malformed.wide_json, "read_json"),
    "npy": (malformed.boundless_npy, "open_npy"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_early_with_little_memory(name, tmp_path):
    write, function = BOMBS[name]
    path = write(tmp_path)
    limit = 400 << 20
    code = (
        "import sys\nfrom cdejax.config.yaml import read_yaml\n"
        "from cdejax.storage.guarded import open_npy, read_json\n"
        f"try:\n    {function}({str(path)!r})\n"
        "except ValueError as error:\n    sys.exit(str(error))"
    )

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=small,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(str(path)), done.stderr
    assert done.stderr.count("\n") == 1
    assert Path(path).exists()
