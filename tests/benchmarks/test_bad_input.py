"""Bad input ends the benchmarks in one line, before anything is measured."""

import importlib
import io
import re
import sys
from argparse import Namespace
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.conftest import FOLDER

step: Any = importlib.import_module("step")
comparison: Any = importlib.import_module("comparison")
encode: Any = importlib.import_module("encode")
kmeans: Any = importlib.import_module("kmeans")
ours: Any = importlib.import_module("ours")
scaling: Any = importlib.import_module("scaling")
texts: Any = importlib.import_module("texts")

OFF = ("1", "-1", "nan", "inf", "a")
PEERS = ("--peer", "--peer-seconds", "--profile")
CONTEXTS = ("--context", "--sequence-dropout")
NO_USE = {
    "biencoder": (*CONTEXTS, "--devices", "--kinds"),
    "contextual": ("--devices", "--kinds"),
    "scaling": PEERS,
    "fsdp": (*CONTEXTS, *PEERS, "--kinds"),
    "memory": (
        *("--lengths", "--steps", "--max-widths", "--devices", "--kinds"),
        *(*CONTEXTS, *PEERS),
    ),
}
"""Options that are some mode's, but not this one's."""


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch):
    """Whatever a benchmark does first with good input fails the test."""
    for module in ("comparison", "scaling", "sharing", "kmeans", "encode"):
        monkeypatch.setattr(importlib.import_module(module), "measure", pytest.fail)


def line_of(main, monkeypatch, *arguments):
    """The one line, but for argparse's usage, that a command ends in, with code 2."""
    monkeypatch.setattr("sys.argv", ["benchmark", *arguments])
    with redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as found:
        main()
    assert found.value.code == 2
    *usage, line = said.getvalue().splitlines()
    assert not usage or usage[0].startswith("usage: ")
    return line


@pytest.mark.parametrize(
    ("mode", "option", "value"),
    [
        (mode, *given.split())
        for given in (
            *("--batch 0", "--steps 0", "--max-length 0", "--chunk-tokens 0"),
            *("--keep -1", "--max-widths 0", "--context 0", "--batch 1.5", "--seed -1"),
        )
        for mode in NO_USE
        if given.split()[0] not in NO_USE[mode]
    ],
)
def test_numbers_are_checked(mode, option, value, monkeypatch):
    said = line_of(step.main, monkeypatch, mode, "--toy", option, value)
    assert f"{option}: '{value}': give a whole number from" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((f"contextual --sequence-dropout {x}", "from 0 to below 1") for x in OFF),
        *((f"biencoder --peer-seconds {x}", "of seconds above 0") for x in OFF[1:]),
        ("biencoder --seed 99999999999999999999", "from 0 on, at most 2147483647"),
        ("scaling --kinds large", "'large': give some of biencoder, contextual"),
        ("--toy biencoder", "no use for --toy here; options follow the mode"),
    ],
)
def test_other_values_are_checked(arguments, message, monkeypatch):
    assert message in line_of(step.main, monkeypatch, *arguments.split())


@pytest.mark.parametrize(
    ("mode", "option"), [(m, o) for m in NO_USE for o in NO_USE[m]]
)
def test_options_without_a_use_are_refused(mode, option, monkeypatch):
    said = line_of(step.main, monkeypatch, mode, "--toy", option, "2")
    assert f"{mode} has no use for {option} 2 here; options follow the mode" in said


@pytest.mark.parametrize("mode", step.MODES)
def test_help_lists_what_a_mode_has_a_use_for(mode, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["step.py", mode, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        step.main()
    listed = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert listed >= {"--batch", "--rows", "--keep", "--out"}
    assert not listed & set(NO_USE[mode])
    assert ("--steps" in listed) == (mode != "memory")


def documented():
    """Every command line of step.py in the documents."""
    for name in ("benchmarks/README.md", "docs/performance.md", "benchmarks/step.py"):
        text = (FOLDER.parent / name).read_text().replace("\n", " ")
        option = r"(?: --[a-z-]+(?: (?!python)[\w,/]+)?)"
        yield from re.findall(rf"step\.py ((?:{'|'.join(step.MODES)}){option}*)", text)


def test_every_mode_is_documented():
    assert {line.split()[0] for line in documented()} == set(step.MODES)


@pytest.mark.parametrize("line", sorted(set(documented())))
def test_documented_commands_are_read(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = ["--out", str(tmp_path)]
    given = line.replace("/tmp/trace", str(tmp_path)).split()
    given = [word for word in given if word != "--help"]
    assert step.parse([*given, *out]).mode == given[0]


@pytest.mark.parametrize(
    ("mode", "value", "part"),
    [
        ("fsdp", "0", "'0'"),
        ("fsdp", "a", "'a'"),
        ("scaling", "0,1", "'0'"),
        ("scaling", "1,", "''"),
        ("scaling", "a", "'a'"),
    ],
)
def test_device_counts_are_checked(mode, value, part, monkeypatch):
    said = line_of(step.main, monkeypatch, mode, "--devices", value)
    assert f"--devices: {part}: give a whole" in said


@pytest.mark.parametrize("option", ["--out", "--profile"])
@pytest.mark.parametrize("inside", ["", "/folder"])
def test_folders_are_made_beforehand(option, inside, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    value = f"{tmp_path}/file{inside}"
    said = line_of(step.main, monkeypatch, "biencoder", option, value)
    assert f"{option}: '{value}': " in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("contextual --context 17", "--context 17: "),
        ("scaling --context 17", "--context 17: "),
        ("fsdp --batch 15", "--batch 15: "),
        ("fsdp --devices 99", "--devices 99: "),
        ("biencoder --lengths nowhere.npy", "--lengths nowhere.npy: No such file"),
        ("scaling --lengths nowhere.jsonl", "--lengths nowhere.jsonl: No such file"),
    ],
)
def test_settings_must_fit(arguments, message, monkeypatch):
    found = line_of(step.main, monkeypatch, *arguments.split(), "--toy")
    assert found.startswith(message)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"no array", np.ones((4, 3), int), np.ones(4, int)),
        *(np.ones((0, 2), int), np.zeros((4, 2), int), np.full((4, 2), 1.5)),
        np.array([["a", "b"]]),
    ],
)
def test_arrays_of_lengths_are_checked(content, tmp_path):
    path = tmp_path / "lengths.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(ValueError, match=r"lengths\.npy: (not an array|.* shape)"):
        texts.read_lengths(str(path), 64)


@pytest.mark.parametrize("line", ['{"query": ', '{"query": "a"}', "3", '{"query": 3}'])
def test_lines_with_texts_are_checked(line, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{{"query": "a", "document": "b"}}\n{line}\n')
    with pytest.raises(ValueError, match=r"pairs\.jsonl:2: "):
        texts.read_lengths(str(path), 64)
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no lines"):
        texts.column(str(path), "text")


def test_chunk_tokens_are_training_s_unless_given(monkeypatch):
    monkeypatch.setattr(ours, "find_shapes", lambda *arguments: None)
    monkeypatch.setattr(ours, "BatchMaker", lambda *arguments: arguments[-2])
    monkeypatch.setattr(ours, "chunk_tokens", lambda *_: 512)
    mesh, world = Namespace(size=1), texts.World(None, None, None)
    for given, used in ((None, 512), (0, 0), (64, 64)):
        settings = ours.Settings("biencoder", 0, chunk_tokens=given)
        assert ours.make_batches(settings, world, None, mesh).chunk_tokens == used


@pytest.mark.parametrize(
    "given",
    [
        *("--rows 0", "--dim 0", "--k -1", "--niter 0", "--nredo 0"),
        *("--points-per-centroid 0", "--seed -1", "--k 11 --rows 10"),
    ],
)
def test_kmeans_options(given, monkeypatch):
    line = line_of(kmeans.main, monkeypatch, *given.split())
    assert line.startswith(" ".join(given.split()[:2]) + ": ")


@pytest.mark.parametrize(
    ("main", "module", "said"),
    [
        (kmeans.main, "faiss", "--peer faiss: faiss-cpu is not installed; "),
        (
            encode.main,
            "sentence_transformers",
            "--peer sentence-transformers: sentence-transformers is not installed; ",
        ),
    ],
)
def test_peers_are_looked_for_beforehand(main, module, said, monkeypatch):
    monkeypatch.setattr(kmeans, "mixture", stop)
    monkeypatch.setattr(encode, "make_texts", stop)
    monkeypatch.setitem(sys.modules, module, None)
    line = line_of(main, monkeypatch)
    assert line.startswith(said)
    assert line.endswith("`, or give --peer none")
    monkeypatch.setattr("sys.argv", ["benchmark", "--peer", "none"])
    with pytest.raises(OnToMeasuring):
        main()


class OnToMeasuring(Exception):
    """What came before is done."""


def stop(*_):
    raise OnToMeasuring


@pytest.mark.parametrize("toy", [[], ["--toy"]])
@pytest.mark.parametrize(
    "given",
    [
        *("--count 0", "--max-length 2", "--batch-sizes 8 0", "--repeats 0"),
        *("--seed -1", "--peer-count 0", "--texts nowhere.jsonl"),
    ],
)
def test_encode_options(given, toy, monkeypatch):
    line = line_of(encode.main, monkeypatch, *toy, *given.split())
    assert line.startswith(f"{given}: ")


def test_encode_names_line_and_folder(tmp_path, monkeypatch):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"document": "a"}\n{"title": "b"}\n')
    found = line_of(encode.main, monkeypatch, "--texts", str(path))
    assert found.startswith(f"--texts {path}:2: needs a text in `text` or `document`")
    found = line_of(encode.main, monkeypatch, "--toy", "--folder", "nowhere")
    assert found.startswith("--folder 'nowhere': no such folder")


def test_a_toy_keeps_what_is_given():
    options = encode.parse(["--toy", "--count", "40000"])
    assert (options.count, options.batch_sizes, options.toy) == (40_000, (8, 32), True)
    assert encode.parse([]) == encode.Options()


def test_efficiencies_are_of_the_fewest_devices():
    found = [
        {
            "devices": devices,
            "pairs_per_second": {"median": rate},
            "useful_tflops": {"median": useful},
        }
        for devices, rate, useful in ((2, 18, 4.5), (1, 10, 3))
    ]
    scaling._compare_with_first(found)
    for name, expected in (
        ("efficiency", [0.9, 1]),
        ("efficiency_in_useful_tflops", [0.75, 1]),
    ):
        assert [entry[name] for entry in found] == pytest.approx(expected)
