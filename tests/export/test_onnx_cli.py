"""`cdejax onnx` and `cdejax export --format onnx`: what they are told and refuse."""

import importlib.util
from pathlib import Path

import pytest

from cdejax.cli import model_commands
from cdejax.cli.main import main
from cdejax.recipe import export

RECIPE = """\
data: {sources: [{path: p.jsonl}]}
model: {encoder: e}
output: out
name: r
variants:
  one: {}
  two: {model: {kind: contextual}}
"""


@pytest.fixture
def recipe(tmp_path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def added(monkeypatch) -> list:
    """Which folders were to get graphs, and how."""
    calls = []

    def add_onnx(folder, output=None, **options):
        calls.append((folder, output, options))
        return Path(output or folder) / "onnx"

    monkeypatch.setattr(model_commands, "add_onnx", add_onnx)
    monkeypatch.setattr(export, "add_onnx", add_onnx)
    monkeypatch.setattr(
        export, "export_variant", lambda name, config: Path(config.output) / name
    )
    return calls


def refused(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_folder(added, capsys):
    main(["onnx", "--model", "m", "--int8"])
    main(["onnx", "--model", "m", "--output", "o", "--overwrite"])
    assert added == [
        ("m", None, {"int8": True, "overwrite": False}),
        ("m", Path("o"), {"int8": False, "overwrite": True}),
    ]
    assert capsys.readouterr().out == "m/onnx\no/onnx\n"


def test_a_recipe(added, recipe, capsys):
    one = ["export", "--config", recipe, "--variant", "one"]
    main(one)
    assert not added
    main([*one, "--format", "onnx", "--int8"])
    assert added == [(Path("out/one"), None, {"int8": True, "overwrite": True})]
    assert capsys.readouterr().out == "out/one\nout/one\n"


def test_contextual_variants_are_refused_before_anything_is_done(added, recipe, capsys):
    error = refused(capsys, "export", "--config", recipe, "--format", "onnx")
    assert error.startswith("cdejax: error: --format onnx: two is contextual")
    assert error.endswith("`--variant one` exports that one\n")
    assert error.count("\n") == 1
    assert not added


def test_int8_without_onnx_is_refused(added, recipe, capsys):
    error = refused(capsys, "export", "--config", recipe, "--int8")
    assert error == ("cdejax: error: --int8 is for ONNX graphs: add --format onnx\n")


def test_missing_libraries_stop_an_export_before_it_begins(
    added, recipe, capsys, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    one = ["export", "--config", recipe, "--variant", "one", "--format", "onnx"]
    assert "pip install '.[onnx]' in cdejax's checkout" in refused(capsys, *one)
    assert not added
