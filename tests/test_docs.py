"""The documentation: snippets that run, recipes that load, commands that parse."""

import dataclasses
import re
import shlex
import sys
import tomllib
import types
import typing
from pathlib import Path

import numpy as np
import pytest
import yaml
from flax import nnx
from packaging.requirements import Requirement

from cdejax.cli.main import COMMANDS, main
from cdejax.config import Config
from cdejax.config.load import load_config
from cdejax.data.pairs import Pairs, pairs_stage
from cdejax.export.folder import export_model
from cdejax.models import ContextualEncoder, from_pretrained
from tests.tiny import write_encoder, write_recipe

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(cdejax [^`]+)`")


def blocks(page: Path, *languages: str) -> list[str]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for language, text in found if language in languages]


def commands(page: Path) -> list[list[str]]:
    """Command lines of shell blocks and of inline code that name a recipe or model."""
    text = "\n".join(blocks(page, "bash", "sh")).replace("\\\n", " ")
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    inline = [" ".join(code.split()) for code in _INLINE.findall(prose)]
    inline = [code for code in inline if " --" in code]
    lines = [line for line in text.splitlines() if line.startswith("cdejax ")]
    return [shlex.split(line, comments=True)[1:] for line in lines + inline]


def fields(hint: typing.Any) -> typing.Iterator[str]:
    """Names of all fields of a configuration, those inside it included."""
    for inner in typing.get_args(hint):
        yield from fields(inner)
    if dataclasses.is_dataclass(hint):
        for name, inside in typing.get_type_hints(hint).items():
            yield name
            yield from fields(inside)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


COMPILED_ONLY = {"docs/interop.md": "reads published checkpoints"}
RUN = {"README.md", "docs/extending.md", "docs/library.md", "docs/recipes.md"}


def snippets(page: Path) -> list[types.CodeType]:
    found = enumerate(blocks(page, "python"), 1)
    return [compile(text, f"{page.name}, snippet {n}", "exec") for n, text in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_compile_and_are_run_where_they_can_be(page):
    name = page.relative_to(ROOT).as_posix()
    assert bool(snippets(page)) == (name in RUN | COMPILED_ONLY.keys())


def test_snippets_of_the_library_page_run(minilm, tmp_path, monkeypatch):
    write_encoder(tmp_path / "encoder", minilm, positions=256)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for snippet in snippets(ROOT / "docs" / "library.md"):
        exec(snippet, namespace)
    assert "loaded" in namespace


@pytest.fixture(scope="module")
def exports(minilm, tmp_path_factory) -> dict[str, Path]:
    """A biencoder's and a contextual model's folder."""
    place = tmp_path_factory.mktemp("exports")
    biencoder = write_encoder(place / "biencoder", minilm)
    model = ContextualEncoder.from_encoder(
        from_pretrained(biencoder).encoder,  # type: ignore[union-attr]
        nnx.Rngs(0),
        context_size=128,
    )
    prompts = {"query": "", "document": ""}
    contextual = export_model(
        model, minilm, place / "contextual", prompts=prompts, max_length=32
    )
    return {"biencoder": biencoder, "contextual": contextual}


@pytest.mark.parametrize("kind", ["biencoder", "contextual"])
def test_snippets_of_the_readme_run_for_both_kinds_of_model(
    kind, exports, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine/model").mkdir(parents=True)
    Path("runs/mine/model/export").symlink_to(exports[kind])
    Path("path/to").mkdir(parents=True)
    Path("path/to/folder").symlink_to(exports[kind])
    for name, folder in exports.items():
        Path("runs/mine", name).mkdir()
        Path("runs/mine", name, "export").symlink_to(folder)
    corpus = [f"git {word} {n}" for n in range(8) for word in ("reset", "log")]
    ids = np.arange(1000, 1012).reshape(3, 4)
    given = {"corpus": corpus, "ids": ids, "lengths": np.array([4, 2, 3])}
    _, library, pieces, elsewhere = snippets(ROOT / "README.md")
    exec(library, namespace := dict(given))
    assert namespace["scores"].shape == (1, 16)
    exec(pieces, namespace := dict(given))
    assert namespace["vectors"].shape == (3, 32)
    exec(elsewhere, namespace := dict(given))
    assert namespace["vectors"].shape == (16, 32)


def test_the_readme_trains_in_one_call(minilm, tmp_path, monkeypatch):
    write_recipe(tmp_path, minilm, plan={"epochs": 1}).rename(tmp_path / "my.yaml")
    monkeypatch.chdir(tmp_path)
    training, *_ = snippets(ROOT / "README.md")
    exec(training, namespace := {})
    assert namespace["embedder"].encode(["git log"], "query").shape == (1, 32)


def test_snippets_of_the_recipes_page_run(minilm, tmp_path, monkeypatch):
    config = load_config(write_recipe(tmp_path, minilm))
    pairs = pairs_stage(config, tmp_path / "artifacts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["snippet", str(pairs)])
    vectors, plan = snippets(ROOT / "docs" / "recipes.md")
    exec(vectors, {})
    assert len(np.load("queries.npy")) == len(Pairs.open(pairs).queries)
    exec(plan, {})
    assert np.load("plan.npy").shape[1] == 16


def test_no_untried_minor_version_of_jax_or_flax_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = [Requirement(line) for line in project["dependencies"]]
    bound = [r.specifier for r in given if r.name in ("jax", "flax")]
    assert len(bound) == 3
    assert all(s.contains("0.12.12") and not s.contains("0.13.0") for s in bound)


@pytest.mark.parametrize("section", dataclasses.fields(Config), ids=lambda f: f.name)
def test_every_setting_is_described(section):
    text = _BLOCK.sub("", (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"))
    parts = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert f"`{section.name}`" in parts["Top level"]
    hint = typing.get_type_hints(Config)[section.name]
    named = re.findall(r"`([\w.]+)`", parts.get(section.name, ""))
    assert set(fields(hint)) <= set(named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_load(page, tmp_path):
    for number, block in enumerate(blocks(page, "yaml")):
        recipe = yaml.safe_load(block)
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, encoding="utf-8")
        if {"data", "model"} <= recipe.keys() and "encoder" in recipe["model"]:
            assert load_config(path)
            continue
        # A part of a recipe: right beside what it leaves out.
        whole = {
            "data": {"sources": [{"path": "p"}]} | recipe.get("data", {}),
            "model": {"encoder": "e"} | recipe.get("model", {}),
        }
        path.write_text(yaml.safe_dump(recipe | whole), encoding="utf-8")
        assert load_config(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_parse(page, tmp_path, monkeypatch):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {sources: [{path: p}]}\nmodel: {encoder: e}\n")
    called = []
    for command in COMMANDS.values():
        module, _, name = command.function.partition(":")
        fake = sys.modules.get(module)
        if not isinstance(fake, _Fake):
            fake = _Fake(module)
            monkeypatch.setitem(sys.modules, module, fake)
        setattr(fake, name, lambda given, **_: called.append(given))
    dry_run = _Fake("cdejax.recipe.dry_run")
    setattr(dry_run, "dry_run", called.append)  # noqa: B010
    monkeypatch.setitem(sys.modules, "cdejax.recipe.dry_run", dry_run)
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`cdejax ([a-z]+)", text)) <= set(COMMANDS)
    for line in commands(page):
        if line[0] in ("--help", "--version") or "--help" in line or "COMMAND" in line:
            assert line[0].startswith("--") or line[0] in (*COMMANDS, "COMMAND")
            continue
        if "--config" in line:
            where = line.index("--config") + 1
            given = ROOT / line[where]
            line[where] = str(given if given.is_file() else recipe)
            if "--variant" in line:
                del line[line.index("--variant") : line.index("--variant") + 2]
        before = len(called)
        main(line)
        assert len(called) == before + 1, line


class _Fake(types.ModuleType):
    """Stands in for a module of commands."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
