"""The documentation: snippets that run, recipes that load, commands that parse."""

import dataclasses
import re
import shlex
import sys
import types
import typing
from pathlib import Path

import pytest
import yaml

from cdejax.cli import COMMANDS, main
from cdejax.config import Config
from cdejax.config_io import load_config
from tests.tiny import write_encoder

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


def test_snippets_of_the_library_page_run(minilm, tmp_path, monkeypatch):
    write_encoder(tmp_path / "encoder", minilm)
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "library.md"
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks(page, "python"), 1):
        exec(compile(block, f"{page.name}, snippet {number}", "exec"), namespace)
    assert "loaded" in namespace


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
    setattr(sys.modules["cdejax.pipeline"], "dry_run", called.append)  # noqa: B010
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
