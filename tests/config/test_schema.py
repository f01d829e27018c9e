"""Recipes: what is read, what is refused and with which words."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from cdejax.config import (
    Config,
    ModelConfig,
    PlanConfig,
    SideConfig,
    VectorsConfig,
)
from cdejax.config.load import load_config, parse_overrides, variant
from cdejax.storage.artifacts import jsonable
from tests import malformed

CONFIGS = Path(__file__).parents[2] / "configs"
GOOD = """\
name: demo
data:
  sources:
    - path: pairs.jsonl
      columns: {query: question}
tokens:
  query: {prefix: "query: ", domain_prefixes: {code: "code: "}}
model:
  encoder: some/folder
training:
  learning_rate: 2e-5
  clip_norm: 1
variants:
  shuffled:
    plan: {kind: shuffled}
  contextual:
    model: {kind: contextual}
    tokens: {query: {domain_prefixes: {law: "law: "}}}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_nested_values_as_their_types(tmp_path):
    config = load_config(write(tmp_path, GOOD))
    assert config.name == "demo"
    assert config.data.sources[0].columns.query == "question"
    assert config.tokens.query.domain_prefixes == {"code": "code: "}
    assert config.training.learning_rate == 2e-5  # YAML 1.1 would read text
    assert isinstance(config.training.clip_norm, float)
    assert config.plan == PlanConfig()
    assert config.tokens.query.max_length == SideConfig().max_length


def test_variant_changes_only_what_it_overrides(tmp_path):
    config = load_config(write(tmp_path, GOOD))
    contextual = variant(config, "contextual")
    assert contextual.model == dataclasses.replace(config.model, kind="contextual")
    assert contextual.tokens.query.domain_prefixes == {"code": "code: ", "law": "law: "}
    assert contextual.data == config.data
    assert contextual.variants == {}


def test_unknown_variant_names_the_nearest(tmp_path):
    config = load_config(write(tmp_path, GOOD))
    with pytest.raises(ValueError, match=r"shufled.*did you mean `shuffled`"):
        variant(config, "shufled")


def test_dump_reads_back_equal(tmp_path):
    config = load_config(write(tmp_path, GOOD))
    again = load_config(write(tmp_path, yaml.safe_dump(jsonable(config))))
    assert again == config


def test_command_line_wins_over_file_and_variants(tmp_path):
    overrides = parse_overrides(
        ["plan.kind=by_domain", "training.learning_rate=1e-3", "seed=7"]
    )
    config = load_config(write(tmp_path, GOOD), overrides)
    assert (config.seed, config.training.learning_rate) == (7, 1e-3)
    assert config.plan.kind == "by_domain"
    assert variant(config, "shuffled").plan.kind == "by_domain"


def test_dates_stay_text(tmp_path):
    text = GOOD.replace('"query: "', "2026-01-01")
    assert load_config(write(tmp_path, text)).tokens.query.prefix == "2026-01-01"


def test_overrides_may_rely_on_the_file(tmp_path):
    text = GOOD + "vectors: {queries: q.npy, documents: d.npy}\n"
    config = load_config(
        write(tmp_path, text), parse_overrides(["vectors.method=file"])
    )
    assert config.vectors.method == "file"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plan.batch_size=256", 256),
        ("plan.batch_size=null", None),
        ("plan.batch_size=[a, b]", ["a", "b"]),
        ("plan.batch_size=a=b", "a=b"),
        ("plan.batch_size=", None),
    ],
)
def test_override_values_are_yaml(text, value):
    assert parse_overrides([text]) == {"plan": {"batch_size": value}}


def recipe(section: str) -> str:
    """The shortest complete recipe, with a section added."""
    base = "data: {sources: [{path: p.jsonl}]}\nmodel: {encoder: e}\n"
    return base + section


# What the recipe says; what the message must say.
BAD = {
    "empty file": ("", "recipe.yaml: the file is empty"),
    "only comments": ("# nothing\n", "recipe.yaml: the file is empty"),
    "a list": ("- name: x\n", "recipe.yaml:1: the top level must be a mapping"),
    "bare text": ("\nhello\n", "recipe.yaml:2: the top level must be a mapping"),
    "unclosed bracket": ("name: x\nplan: {kind: [\n", "recipe.yaml:3: not YAML"),
    "tab for indentation": ("plan:\n\tkind: x\n", "recipe.yaml:2: not YAML"),
    "control character": ("name: \x01\n", "recipe.yaml:1: not YAML"),
    "object tag": (
        "name: !!python/object/apply:os.getcwd []\n",
        "recipe.yaml:1: not YAML",
    ),
    "undefined alias": ("name: *other\n", "recipe.yaml:1: not YAML"),
    "two documents": ("name: a\n---\nname: b\n", "recipe.yaml:2: not YAML"),
    "key twice": (
        recipe("plan:\n  kind: shuffled\n  kind: clustered\n"),
        "recipe.yaml:5: `plan.kind` appears twice (first on line 4)",
    ),
    "section twice": (recipe("model: {}\n"), "recipe.yaml:3: `model` appears twice"),
    "key that is a list": (recipe("? [a]\n: b\n"), "a key must be plain text"),
    "unknown section": (
        recipe("trainning: {}\n"),
        "recipe.yaml:3: trainning: unknown, did you mean `training`?",
    ),
    "unknown key": (
        recipe("plan:\n  bach_size: 3\n"),
        "recipe.yaml:4: plan.bach_size: unknown, did you mean `batch_size`?",
    ),
    "unknown key far from all": (
        recipe("vectors:\n  zzz: 3\n"),
        "vectors.zzz: unknown, known are method, dim",
    ),
    "unknown key in a list": (
        "model: {encoder: e}\ndata:\n  sources:\n    - path: p\n      colums: {}\n",
        "recipe.yaml:5: data.sources.0.colums: unknown, did you mean `columns`?",
    ),
    "text for a number": (
        recipe("plan: {batch_size: many}\n"),
        "plan.batch_size: must be a whole number, not 'many'",
    ),
    "fraction for a whole number": (
        recipe("plan: {batch_size: 1.5}\n"),
        "plan.batch_size: must be a whole number, not 1.5",
    ),
    "truth for a number": (
        recipe("plan: {epochs: true}\n"),
        "plan.epochs: must be a whole number, not True",
    ),
    "number for text": (
        recipe("tokens: {query: {prefix: 3}}\n"),
        "tokens.query.prefix: must be text, not 3; put quotes around it",
    ),
    "word that YAML reads as truth": (
        recipe("output: no\n"),
        "output: must be text, not False; put quotes around it",
    ),
    "text for truth": (
        recipe("evaluation: {bm25: maybe}\n"),
        "evaluation.bm25: must be true or false, not 'maybe'",
    ),
    "text for a list": (
        recipe("evaluation: {collections: scifact}\n"),
        "evaluation.collections: must be a list of texts, not 'scifact'",
    ),
    "wrong item of a list": (
        recipe("evaluation: {collections: [a, 2]}\n"),
        "evaluation.collections.1: must be text, not 2",
    ),
    "list for a mapping": (
        recipe("plan: {domain_groups: [a]}\n"),
        "plan.domain_groups: must be a mapping, not a list",
    ),
    "value for a section": (
        recipe("plan: clustered\n"),
        "plan: must be a mapping of settings, not 'clustered'",
    ),
    "empty section": (
        recipe("plan:\n"),
        "plan: must be a mapping of settings, not empty",
    ),
    "nothing where something is needed": (
        recipe("seed:\n"),
        "seed: must be a whole number, not empty",
    ),
    "not a number": (
        recipe("training: {temperature: .nan}\n"),
        "training.temperature: nan is not finite",
    ),
    "unknown choice": (
        recipe("plan: {kind: clusterd}\n"),
        "plan.kind: 'clusterd' is not one of clustered, shuffled, by_domain, file; "
        "did you mean `clustered`?",
    ),
    "list for a choice": (
        recipe("plan: {kind: [clustered]}\n"),
        "plan.kind: a list is not one of clustered",
    ),
    "no sources": ("model: {encoder: e}\n", "data.sources: needed"),
    "source without path": (
        "model: {encoder: e}\ndata:\n  sources:\n    - domain: x\n",
        "recipe.yaml:4: data.sources.0.path: needed, it has no default",
    ),
    "no encoder": ("data: {sources: [{path: p}]}\n", "model.encoder: needed"),
    "packages of another source": (
        "model: {encoder: e}\ndata: {sources: [{path: a.jsonl, packages: [numpy]}]}\n",
        "data.sources.0.packages: only read with `path: python-packages`",
    ),
    "batch of none": (
        recipe("plan: {batch_size: 0}\n"),
        "recipe.yaml:3: plan.batch_size: 0 is too small, at least 1 is needed",
    ),
    "everything held out": (
        recipe("").replace("data: {", "data: {heldout_fraction: 1, "),
        "data.heldout_fraction: 1.0 must be at least 0 and less than 1",
    ),
    "similarity above one": (
        recipe("").replace("data: {", "data: {near_duplicate: 70, "),
        "data.near_duplicate: 70.0 must be greater than 0 and at most 1",
    ),
    "context with another prefix": (
        recipe("tokens: {document: {prefix: 'd: '}, context: {prefix: ''}}\n"),
        "tokens.context: its prefix '' must be that of `document`, 'd: '",
    ),
    "temperature of zero": (
        recipe("training: {temperature: 0}\n"),
        "training.temperature: 0.0 must be greater than 0",
    ),
    "negative warm-up": (
        recipe("training: {warmup_steps: -1}\n"),
        "training.warmup_steps: -1 is too small, at least 0",
    ),
    "chunk of none": (
        recipe("training: {chunk_tokens: 0}\n"),
        "training.chunk_tokens: 0 is too small, at least 1",
    ),
    "no layers": (recipe("").replace("e}", "e, layers: 0}"), "model.layers: 0 is too"),
    "all context dropped": (
        recipe("").replace("e}", "e, sequence_dropout: 1.0}"),
        "model.sequence_dropout: 1.0 must be at least 0 and less than 1",
    ),
    "vectors from no file": (
        recipe("vectors: {method: file, queries: q.npy}\n"),
        "vectors.documents: needed with `method: file`",
    ),
    "vectors from no encoder": (
        recipe("vectors: {method: encoder}\n"),
        "vectors.encoder: needed with `method: encoder`",
    ),
    "plan from no file": (
        recipe("plan: {kind: file}\n"),
        "plan.path: needed with `kind: file`",
    ),
    "no clusters": (recipe("clusters: {k: 0}\n"), "clusters.k: 0 is too small"),
    "no soft tokens": (
        recipe("").replace("e}", "e, soft_tokens: 0}"),
        "model.soft_tokens: 0 is too small",
    ),
    "one resample": (
        recipe("evaluation: {bootstrap: 1}\n"),
        "evaluation.bootstrap: 1 is too small",
    ),
    "name with a slash": (recipe("name: a/b\n"), "name: 'a/b' becomes a folder"),
    "variant named like the shared folder": (
        recipe("variants: {artifacts: {}}\n"),
        "variants: `artifacts` is a folder that all",
    ),
    "variant with a space": (recipe("variants: {a b: {}}\n"), "'a b' becomes a folder"),
    "variant that is text": (
        recipe("variants: {a: shuffled}\n"),
        "variants.a: must be a mapping, not 'shuffled'",
    ),
    "unknown key in a variant": (
        recipe("variants:\n  a: {}\n  b:\n    plan:\n      knd: file\n"),
        "recipe.yaml:7: plan.knd (variant b): unknown, did you mean `kind`?",
    ),
    "impossible value in a variant": (
        recipe("variants: {a: {plan: {epochs: 0}}}\n"),
        "plan.epochs (variant a): 0 is too small",
    ),
    "variant with its own output": (
        recipe("variants: {a: {output: elsewhere}}\n"),
        "output (variant a): is shared by all variants",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_recipe(case, tmp_path):
    text, message = BAD[case]
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is checked)
        load_config(write(tmp_path, text))
    assert message in str(error.value)
    assert "recipe.yaml" in str(error.value)


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.yaml: cannot be read \(No such file"):
        load_config(tmp_path / "gone.yaml")
    with pytest.raises(ValueError, match="cannot be read"):
        load_config(tmp_path)
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: caf\xe9\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.yaml:1: not UTF-8 text \(byte 9\)"):
        load_config(path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plan.bach_size=3", "command line: plan.bach_size: unknown, did you mean"),
        ("plan.batch_size=x", "command line: plan.batch_size: must be a whole number"),
        ("plan.batch_size=0", "command line: plan.batch_size: 0 is too small"),
        ("plan=3", "command line: plan: must be a mapping"),
        ("plan.batch_size", "--set plan.batch_size: write section.key=value"),
        ("=3", "--set =3: write section.key=value"),
        ("name={", "--set name={: not YAML"),
    ],
)
def test_bad_override(override, message, tmp_path):
    path = write(tmp_path, GOOD)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load_config(path, parse_overrides([override]))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", malformed.SET)
def test_malformed_override_ends_in_one_line(name, tmp_path):
    path = write(tmp_path, GOOD)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load_config(path, parse_overrides([malformed.SET[name]]))
    assert not isinstance(error.value, UnicodeError)
    message = str(error.value)
    assert message.startswith(("--set ", "command line: ")), message
    assert message.isprintable()
    assert len(message) < 500


def test_impossible_values_are_refused_without_yaml_too():
    with pytest.raises(ValueError, match="batch_size: 0 is too small"):
        PlanConfig(batch_size=0)
    with pytest.raises(ValueError, match="encoder: needed"):
        VectorsConfig(method="encoder")
    assert Config(model=ModelConfig()).name == "run"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_recipes_of_the_repository_load(path):
    config = load_config(path)
    assert {variant(config, name).name for name in config.variants} == {path.stem}
