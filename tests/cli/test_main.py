"""The command line: what users type, and what they are told."""

import io
import logging
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest
from rich.table import Table

from cdejax.cli.main import COMMANDS, main

RECIPE = """\
data: {sources: [{path: p.jsonl}]}
model: {encoder: e}
variants:
  one: {plan: {kind: shuffled}}
  two: {plan: {epochs: 2}}
"""


STAGES = [name for name, c in COMMANDS.items() if "cdejax.recipe." in c.function]
SCORES = "cdejax.recipe.scores"


class Fake(types.ModuleType):
    """Stands in for a module of functions."""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def calls(monkeypatch):
    """Stands in for the recipe's stages: notes which function got which recipe."""
    noted = []
    functions = [COMMANDS[name].function for name in STAGES]
    for function in [*functions, "cdejax.recipe.dry_run:dry_run"]:
        module, name = function.split(":")
        if not isinstance(sys.modules.get(module), Fake):
            monkeypatch.setitem(sys.modules, module, Fake(module))
        call = lambda config, name=name: noted.append((name, config))  # noqa: E731
        setattr(sys.modules[module], name, call)
    return noted


def exit_code(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_gets_the_loaded_recipe(name, recipe, calls):
    main([name, "--config", recipe, "--set", "plan.batch_size=7", "--set", "seed=3"])
    [(function, config)] = calls
    assert function == COMMANDS[name].function.split(":")[1]
    assert (config.plan.batch_size, config.seed) == (7, 3)
    assert list(config.variants) == ["one", "two"]


def test_variant_narrows_the_recipe(recipe, calls):
    main(["train", "--config", recipe, "--variant", "two"])
    assert calls[0][1].variants == {"two": {"plan": {"epochs": 2}}}


def test_dry_run_calls_its_own_function(recipe, calls):
    main(["run", "--config", recipe, "--dry-run"])
    assert [name for name, _ in calls] == ["dry_run"]


def test_what_is_logged_goes_where_standard_error_goes_now(recipe, calls, monkeypatch):
    log = logging.getLogger("cdejax.recipe.scores")
    monkeypatch.setattr(sys.modules[SCORES], "report", lambda config: log.info("seen"))
    for _ in range(2):
        with io.StringIO() as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            main(["report", "--config", recipe])
            assert stream.getvalue() == "cdejax.recipe.scores: seen\n"


@pytest.mark.parametrize("result", ["a [b] text", None, Table("a [b] text")])
def test_results_are_printed(result, recipe, calls, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules[SCORES], "report", lambda config: result)
    main(["report", "--config", recipe])
    printed = capsys.readouterr().out
    assert ("a" in printed) == (result is not None)
    if isinstance(result, str):
        assert printed == "a [b] text\n"


# Arguments after {recipe} is filled in; what standard error must say.
BAD = {
    "unknown command": (["trian"], "unknown command 'trian'; did you mean `train`?"),
    "unknown command far from all": (["xyz"], "unknown command 'xyz'; known: run, "),
    "no recipe": (["train"], "--config"),
    "unknown option": (["train", "--config", "{recipe}", "--seeed", "1"], "--seeed"),
    "value missing": (["train", "--config"], "--config"),
    "recipe that is not there": (
        ["train", "--config", "gone.yaml"],
        "cdejax: error: gone.yaml: cannot be read (No such file or directory)",
    ),
    "unknown variant": (
        ["train", "--config", "{recipe}", "--variant", "too"],
        "cdejax: error: variant 'too': unknown, did you mean `two`?",
    ),
    "unknown setting": (
        ["train", "--config", "{recipe}", "--set", "plan.batchsize=3"],
        "cdejax: error: command line: plan.batchsize: unknown, did you mean "
        "`batch_size`?",
    ),
    "setting without value": (
        ["train", "--config", "{recipe}", "--set", "seed"],
        "cdejax: error: --set seed: write section.key=value",
    ),
    "impossible setting": (
        ["train", "--config", "{recipe}", "--set", "training.temperature=0"],
        "cdejax: error: command line: training.temperature: 0.0 must be greater than 0",
    ),
    "dry run of one stage": (
        ["train", "--config", "{recipe}", "--dry-run"],
        "--dry-run",
    ),
    "not a number": (
        ["search", "--model", "m", "--documents", "d.txt", "--k", "many"],
        "--k",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_end_in_code_2_without_traceback(case, recipe, calls, capsys):
    arguments, message = BAD[case]
    assert exit_code(*(a.format(recipe=recipe) for a in arguments)) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert not calls


def test_errors_of_a_stage_are_one_line(recipe, calls, monkeypatch, capsys):
    def fail(config):
        raise ValueError("pairs.jsonl:3: field `query` is missing")

    monkeypatch.setattr(sys.modules["cdejax.recipe.run"], "run_train", fail)
    assert exit_code("train", "--config", recipe) == 2
    error = capsys.readouterr().err
    assert error == "cdejax: error: pairs.jsonl:3: field `query` is missing\n"


def test_interrupt_ends_in_130(recipe, calls, monkeypatch, capsys):
    def interrupt(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["cdejax.recipe.run"], "run_train", interrupt)
    assert exit_code("train", "--config", recipe) == 130
    assert capsys.readouterr().err == "cdejax: interrupted\n"


def test_faults_of_ours_keep_their_traceback(recipe, calls, monkeypatch):
    def fault(config):
        raise TypeError("a bug")

    monkeypatch.setattr(sys.modules["cdejax.recipe.run"], "run_train", fault)
    with pytest.raises(TypeError, match="a bug"):
        main(["train", "--config", recipe])


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_overview_names_every_command(arguments, capsys):
    main(arguments)
    printed = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"{name} " in printed
        assert command.summary.split(":")[0] in printed


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_goes_in_and_out(name, capsys):
    assert exit_code(name, "--help") == 0
    printed = capsys.readouterr().out
    command = COMMANDS[name]
    assert " in; " in command.summary
    assert " out." in command.summary
    assert command.summary in " ".join(printed.split())
    assert f"cdejax {name} {command.example.split()[0]}" in printed


SCRIPTS = sorted((Path(__file__).parents[2] / "scripts").glob("*.py"))


def test_every_stage_has_a_script(recipe, calls, monkeypatch):
    for script in SCRIPTS:
        monkeypatch.setattr(sys, "argv", [str(script), "--config", recipe])
        runpy.run_path(str(script))
    stages = {COMMANDS[name].function.split(":")[1] for name in STAGES}
    assert {name for name, _ in calls} == stages


def test_scripts_hide_no_standard_module():
    assert not {path.stem for path in SCRIPTS} & sys.stdlib_module_names


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out.strip()[0].isdigit()


def test_help_loads_nothing_heavy():
    heavy = ["jax", "flax", "numpy", "torch", "transformers", "sklearn", "faiss"]
    code = (
        "import sys; from cdejax.cli.main import main; main(['--help']); "
        f"sys.stderr.write(str([m for m in {heavy} if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "[]"


def test_a_closed_pipe_is_no_crash(recipe):
    command = f"{sys.executable} -m cdejax --help | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
