"""Bad input to every stage, through the command line: one line, exit code 2.

Each item that a user can get wrong has one check; those of a single part live beside
that part's tests:

    sources     tests/data/test_bad_input.py (not JSON, truncated gzip, missing field,
                null, list for text, empty, white space, NUL, lone surrogate, wrong
                encoding, no rows, …), tests/data/test_beir.py
    tokens      tests/data/test_tokens.py, tests/data/test_tokenizer.py
    vectors     VECTORS here; tests/clustering/test_vectors.py
    plans       PLANS here; tests/clustering/test_plan.py
    folders     FOLDERS here; tests/models/pretrained/test_load.py,
                tests/embedding/test_embedder.py, tests/export/test_export_folder.py
    configs     CONFIGS here; tests/config/test_schema.py, tests/cli/test_main.py
    outputs     OUTPUTS here (read-only, another run, disk full);
                tests/storage/test_artifacts.py (another process),
                tests/cli/test_model_commands.py
    damage      ARTEFACTS and RUNS here: what was finished, and then lost or changed
    kills       tests/recipe/test_run.py, tests/data/test_tokens.py,
                tests/clustering/test_vectors.py
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cdejax.cli.main import main
from cdejax.data.pairs import Pairs
from cdejax.storage import artifacts, digests
from cdejax.storage.artifacts import read_manifest
from cdejax.storage.lock import lock_folder
from tests.tiny import write_recipe

Spoil = Callable[[Path], list[str]]
"""Spoils what lies in a copy of a finished run's folder; returns more arguments."""
Case = tuple[str, Spoil, list[str]]
"""Command, what is spoilt, words that the message must hold."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, minilm) -> Path:
    """A trained run without held-out rows, in runs/ beside its recipe."""
    folder = tmp_path_factory.mktemp("a folder é")
    changes = {
        "data": {"heldout_fraction": 0.0},
        "plan": {"batch_size": 16, "epochs": 2, "order": "random"},
        "training": {"checkpoint_every": 100},
    }
    path = write_recipe(folder, minilm, **changes)
    main(["train", "--config", str(path)])
    return path


@pytest.fixture
def place(recipe, tmp_path) -> Path:
    """A copy of the run's folder, of the encoder and of the pairs."""
    for name in ("runs", "encoder"):
        shutil.copytree(recipe.parent / name, tmp_path / name)
    shutil.copy(recipe.parent / "pairs.jsonl", tmp_path)
    return tmp_path


@pytest.fixture
def check(recipe, place, capsys) -> Callable[[Case], str]:
    """Runs a case; its message, after what every message must be was checked."""

    def run(case: Case) -> str:
        command, spoil, words = case
        arguments = spoil(place)
        if command not in ("encode", "search"):
            output = f"output={place / 'runs'}"
            arguments = ["--config", str(recipe), "--set", output, *arguments]
        with pytest.raises(SystemExit) as stop:
            main([command, *arguments])
        said = capsys.readouterr().err
        assert stop.value.code == 2, said
        assert "Traceback" not in said
        _, *messages = said.split("cdejax: error: ")
        assert len(messages) == 1
        for word in words:
            assert word in messages[0]
        return messages[0]

    return run


def one_line(message: str) -> bool:
    """Whether it is one line, or one line above a list of all that is wrong."""
    head, *items = message.splitlines()
    return head.endswith(":") if items else True


def artefact(place: Path, stage: str) -> Path:
    """The only finished artefact of a stage."""
    (folder,) = (place / "runs" / "tiny" / "artifacts").glob(f"{stage}-*")
    return folder


def untrain(place: Path) -> None:
    shutil.rmtree(place / "runs" / "tiny" / "model")


def sets(*assignments: str) -> list[str]:
    return [argument for a in assignments for argument in ("--set", a)]


def settings(*assignments: str) -> Spoil:
    """Nothing is spoilt but the recipe."""
    return lambda place: sets(*assignments)


# Sources ----------------------------------------------------------------------


def source(name: str, write: Callable[[Path], object]) -> Spoil:
    def spoil(place: Path) -> list[str]:
        write(place / name)
        return sets(f"data.sources=[{{path: '{place / name}'}}]")

    return spoil


def parquet(path: Path, names: list[str], *columns: list) -> None:
    import pyarrow
    from pyarrow import parquet

    arrays = [pyarrow.array(column) for column in columns]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, names), path)


REPEATED = '{"query": "a", "query": "b", "document": "c"}\n'
SOURCES: dict[str, Case] = {
    "name twice in an object": (
        "pairs",
        source("rows.jsonl", lambda path: path.write_text(REPEATED)),
        ["rows.jsonl:1", "the name 'query' appears twice"],
    ),
    "column name twice": (
        "pairs",
        source(
            "rows.parquet",
            lambda path: parquet(path, ["query", "query", "document"], *[["a"]] * 3),
        ),
        ["rows.parquet: several columns are called `query`", "rename"],
    ),
    "null in Parquet": (
        "pairs",
        source(
            "rows.parquet",
            lambda path: parquet(path, ["query", "document"], ["a", None], ["b", "c"]),
        ),
        ["rows.parquet:row 2: field `query` is null"],
    ),
    "no Parquet": (
        "pairs",
        source("rows.parquet", lambda path: path.write_text("rubbish")),
        ["rows.parquet: no readable Parquet", "write it again"],
    ),
}


# Vectors ----------------------------------------------------------------------


def vectors(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """The run's own vectors as the user's, changed."""

    def spoil(place: Path) -> list[str]:
        arguments = ["vectors.method=file"]
        for side in ("queries", "documents"):
            x = np.load(artefact(place, "vectors") / f"{side}.npy")
            x = change(x) if side == "queries" else x
            np.save(place / f"{side}.npy", x, allow_pickle=True)
            arguments.append(f"vectors.{side}='{place / side}.npy'")
        return sets(*arguments)

    return spoil


def put(row: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(x: np.ndarray) -> np.ndarray:
        x[row] = value
        return x

    return change


def of_other_pairs(name: str, spoil: Spoil) -> Spoil:
    """A note beside the user's file says that it was made for other pairs."""

    def noted(place: Path) -> list[str]:
        arguments = spoil(place)
        (place / f"{name}.json").write_text('{"pairs": "feedfeedfeedfeed"}')
        return arguments

    return noted


VECTORS: dict[str, Case] = {
    "wrong rows": ("embed", vectors(lambda x: x[:-1]), ["queries.npy", "rows, but"]),
    "wrong dtype": ("embed", vectors(lambda x: x.astype(int)), ["dtype int64"]),
    "NaN": ("embed", vectors(put(7, np.nan)), ["row 7 holds NaN", "queries.npy"]),
    "zero row": ("embed", vectors(put(9, 0)), ["row 9 holds only zeros"]),
    "another corpus's": (
        "embed",
        of_other_pairs("queries.npy", vectors(lambda x: x)),
        ["another corpus", "feedfeed"],
    ),
    "pickle": ("embed", vectors(lambda x: x.astype(object)), ["pickled objects"]),
    "beyond float32": (
        "embed",
        vectors(lambda x: put(7, 1e39)(x.astype(np.float64))),
        ["row 7 holds values beyond", "1e+39 in column 0", "queries.npy"],
    ),
    "no such encoder": (
        "embed",
        settings("vectors.method=encoder", "vectors.encoder=/nowhere"),
        ["vectors.encoder: '/nowhere': no such folder"],
    ),
}


# Plans ------------------------------------------------------------------------


def plan(change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Spoil:
    """The run's first epoch as the user's plan, changed (given the rows' domains)."""

    def spoil(place: Path) -> list[str]:
        steps = np.load(artefact(place, "plan") / "epoch-0000.npy")
        domain = Pairs.open(artefact(place, "pairs")).train.domain
        np.save(place / "plan.npy", change(steps, np.asarray(domain)))
        path = f"plan.path='{place / 'plan.npy'}'"
        return sets("plan.kind=file", "plan.epochs=1", path)

    return spoil


def unknown_row(steps: np.ndarray, domain: np.ndarray) -> np.ndarray:
    steps[2, 3] = len(domain)
    return steps


def repeated_row(steps: np.ndarray, domain: np.ndarray) -> np.ndarray:
    steps[0, 1] = steps[0, 0]
    return steps


def mixed_domain(steps: np.ndarray, domain: np.ndarray) -> np.ndarray:
    other = next(s for s in steps if domain[s[0]] != domain[steps[0, 0]])
    steps[0, 0], other[0] = other[0], steps[0, 0]
    return steps


PLANS: dict[str, Case] = {
    "unknown row": ("pack", plan(unknown_row), ["step 2 names row 300", "0 to 299"]),
    "repeated row": ("pack", plan(repeated_row), ["2 times (steps [0])"]),
    "mixed domain": ("pack", plan(mixed_domain), ["mixes the domains"]),
    "other token store": (
        "pack",
        of_other_pairs("plan.npy", plan(lambda steps, _: steps)),
        ["another corpus", "feedfeed"],
    ),
    "batch larger than the data": (
        "pack",
        settings("plan.kind=shuffled", "plan.batch_size=301"),
        ["plan.batch_size: 301 is more than the 300 training pairs", "lower it"],
    ),
    "batch larger than a domain": (
        "pack",
        settings("plan.batch_size=101"),
        ["'cooking' (100 rows)", "min_domain"],
    ),
    "group of no domain": (
        "pack",
        settings("plan.domain_groups={a: [sialing]}"),
        ["plan.domain_groups.a: 'sialing'", "did you mean 'sailing'? There"],
    ),
    "more clusters than points": (
        "cluster",
        settings("clusters.k=1000"),
        ["fewer than k = 1000", "clusters.k"],
    ),
}


# Folders ----------------------------------------------------------------------


def encoder(spoil: Callable[[Path], object]) -> Spoil:
    """Training starts from a spoilt folder."""

    def spoilt(place: Path) -> list[str]:
        spoil(place / "encoder")
        untrain(place)
        return sets(f"model.encoder='{place / 'encoder'}'")

    return spoilt


def exported(spoil: Callable[[Path], object]) -> Spoil:
    """`cdejax encode` with a spoilt folder."""

    def spoilt(place: Path) -> list[str]:
        spoil(place / "encoder")
        (place / "texts.txt").write_text("a text\n")
        files = ("--texts", place / "texts.txt", "--output", place / "out.npy")
        return [str(a) for a in ("--model", place / "encoder", *files)]

    return spoilt


def cut(path: Path, kept: int = -100) -> None:
    path.write_bytes(path.read_bytes()[:kept])


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def alter(folder: Path, name: str, **changes: object) -> None:
    config = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(config | changes))


SPOILT_FOLDERS = {
    "missing config": (lambda f: (f / "config.json").unlink(), "no config.json there"),
    "missing weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "no model.safetensors there",
    ),
    "missing tokenizer": (no_tokenizer, "no tokenizer there"),
    "wrong shape": (
        lambda f: alter(f, "config.json", intermediate_size=65),
        "not (65, 32)",
    ),
    "truncated safetensors": (
        lambda f: cut(f / "model.safetensors"),
        "damaged or cut short",
    ),
    "pickle only": (pickle_only, "a pickle, which can run code"),
}
FOLDERS: dict[str, Case] = {
    **{
        f"{n}, train": ("train", encoder(s), [w])
        for n, (s, w) in SPOILT_FOLDERS.items()
    },
    **{
        f"{n}, encode": ("encode", exported(s), [w])
        for n, (s, w) in SPOILT_FOLDERS.items()
    },
    "prompts that are no texts": (
        "encode",
        exported(lambda f: alter(f, "config_sentence_transformers.json", prompts=[1])),
        ["config_sentence_transformers.json: `prompts` must map names to texts"],
    ),
    "length limit that is no number": (
        "encode",
        exported(lambda f: alter(f, "sentence_bert_config.json", max_seq_length="a")),
        ["the length limit is 'a', no whole number"],
    ),
    "context for a biencoder": (
        "encode",
        lambda place: [*exported(lambda f: None)(place), "--context", str(place)],
        ["no context there"],
    ),
}


# Configs ----------------------------------------------------------------------

CONFIGS: dict[str, Case] = {
    "unknown key": ("train", settings("plan.bach=1"), ["plan.bach: unknown", "batch"]),
    "wrong type": (
        "train",
        settings("plan.epochs=a"),
        ["plan.epochs: must be a whole"],
    ),
    "impossible value": (
        "train",
        settings("training.temperature=0"),
        ["training.temperature: 0.0 must be greater"],
    ),
    "impossible seed": ("train", settings("seed=-1"), ["seed: -1 must be at least 0"]),
    "variant in a shared folder": (
        "train",
        settings("variants={report: {}}"),
        ["variants: `report` is a folder that all variants share"],
    ),
    "unknown domain of a prefix": (
        "tokenize",
        settings("tokens.query.domain_prefixes={coking: a}"),
        ["tokens.query.domain_prefixes", "'coking'", "Did you mean 'cooking'?"],
    ),
    "no room for text": (
        "tokenize",
        settings("tokens.query.max_length=2"),
        ["tokens.query.max_length: 2 leaves no room"],
    ),
    "longer than the positions": (
        "train",
        settings("tokens.document.max_length=65", "name=other"),
        ["tokens.document.max_length", "65", "64 or less"],
    ),
    "warm-up longer than the plan": (
        "train",
        settings("training.warmup_steps=99", "name=other"),
        ["training.warmup_steps is 99", "choose fewer"],
    ),
    "negatives that are not there": (
        "train",
        settings("training.negatives_per_query=1", "name=other"),
        ["training.negatives_per_query is 1", "columns.negatives"],
    ),
    "start that is not there": (
        "train",
        settings("training.init_from=/nowhere", "name=other"),
        ["training.init_from: '/nowhere': no such folder"],
    ),
    "start of another model": (
        "train",
        lambda place: sets(
            f"training.init_from='{place}/runs/tiny/model'",
            "model.head=mlp",
            "name=other",
        ),
        ["training.init_from", "make `model` agree"],
    ),
    "collection that is not there": (
        "run",
        settings("evaluation.collections=[/nowhere]"),
        ["evaluation.collections: '/nowhere': no such folder"],
    ),
    "nothing to evaluate on": (
        "evaluate",
        settings(),
        ["nothing to evaluate on", "data.heldout_fraction"],
    ),
}


# Outputs ----------------------------------------------------------------------


def below_a_file(place: Path) -> list[str]:
    return sets(f"output='{place / 'pairs.jsonl'}'")


def run_is_a_file(place: Path) -> list[str]:
    untrain(place)
    (place / "runs" / "tiny" / "model").write_text("")
    return []


OUTPUTS: dict[str, Case] = {
    "stage below a file": ("pairs", below_a_file, ["pairs.jsonl/", "cannot write"]),
    "run is a file": ("train", run_is_a_file, ["tiny/model", "cannot write there"]),
}


# Damage to what was finished ----------------------------------------------------


def damaged(stage: str, name: str, damage: Callable[[Path], object]) -> Spoil:
    """A file of an artefact is damaged before training reads it.

    The artefact is an older version's, whose files have no digests yet.
    """

    def spoil(place: Path) -> list[str]:
        untrain(place)
        damage(artefact(place, stage) / name)
        (artefact(place, stage) / digests.FILE).unlink()
        return []

    return spoil


def noticed(stage: str, name: str, damage: Callable[[Path], object]) -> Spoil:
    """The same to one of this version."""

    def spoil(place: Path) -> list[str]:
        untrain(place)
        damage(artefact(place, stage) / name)
        return []

    return spoil


def gone(path: Path) -> None:
    path.unlink()


def bad_json(path: Path) -> None:
    path.write_text("{")


def without_clusters(place: Path) -> list[str]:
    shutil.rmtree(artefact(place, "plan"))
    return damaged("clusters", "centroid.npy", gone)(place)


def edited(path: Path) -> None:
    path.write_text(json.dumps({**read_manifest(path.parent), "fingerprint": "0"}))


DAMAGED = "missing or damaged"
ARTEFACTS: dict[str, Case] = {
    "token values cut": (
        "train",
        damaged("tokens", "documents/values.bin", lambda p: cut(p, -2)),
        ["documents", "was cut short"],
    ),
    "token dtype changed": (
        "train",
        damaged("tokens", "documents/dtype", lambda p: p.write_text("zz")),
        ["documents/dtype: 'zz' is no NumPy dtype"],
    ),
    "token facts gone": (
        "train",
        damaged("tokens", "tokens.json", gone),
        ["tokens.json", DAMAGED],
    ),
    "texts cut": (
        "train",
        damaged("pairs", "queries/values.bin", lambda p: cut(p, -2)),
        ["queries", "was cut short"],
    ),
    "domains no JSON": (
        "train",
        damaged("pairs", "domains.json", bad_json),
        ["domains.json", DAMAGED],
    ),
    "array cut": (
        "train",
        damaged("pairs", "train/query.npy", lambda p: cut(p, -2)),
        ["train/query.npy", DAMAGED, "run the command again"],
    ),
    "array empty": (
        "train",
        damaged("pairs", "train/query.npy", lambda p: cut(p, 0)),
        ["train/query.npy", DAMAGED],
    ),
    "manifest no JSON": (
        "train",
        damaged("pairs", "manifest.json", bad_json),
        ["manifest.json", DAMAGED],
    ),
    "manifest a list": (
        "train",
        damaged("pairs", "manifest.json", lambda p: p.write_text("[]")),
        ["manifest.json", "no JSON object"],
    ),
    "manifest edited": (
        "train",
        damaged("tokens", "manifest.json", edited),
        ["manifest.json was edited", "Remove the folder"],
    ),
    "vectors cut": (
        "train",
        damaged("vectors", "queries.npy", cut),
        ["queries.npy", DAMAGED],
    ),
    "vectors gone": (
        "train",
        damaged("vectors", "queries.npy", gone),
        ["queries.npy", "No such file"],
    ),
    "clusters gone": ("pack", without_clusters, ["centroid.npy", DAMAGED]),
    "epoch gone": (
        "train",
        damaged("plan", "epoch-0001.npy", gone),
        ["holds epochs of [18] steps, but its manifest says [18, 18]"],
    ),
    "epoch that its digest does not fit": (
        "train",
        noticed("plan", "epoch-0001.npy", cut),
        ["plan-", "epoch-0001.npy is damaged", "remove this folder"],
    ),
    "epoch cut": (
        "train",
        damaged("plan", "epoch-0001.npy", cut),
        ["epoch-0001.npy", DAMAGED],
    ),
}


def of_run(name: str, damage: Callable[[Path], object]) -> Spoil:
    def spoil(place: Path) -> list[str]:
        damage(place / "runs" / "tiny" / "model" / name)
        return []

    return spoil


def with_best(content: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    return write


def no_weights(path: Path) -> None:
    for file in path.rglob("d/*"):
        cut(file, 10)


def untrained(place: Path) -> list[str]:
    untrain(place)
    return []


def halfway(path: Path) -> None:
    path.rename(path.with_name("20"))


RUNS: dict[str, Case] = {
    "not trained": ("export", untrained, ["not trained; run `cdejax train`"]),
    "trained halfway": (
        "export",
        of_run("checkpoints/36", halfway),
        ["trained 20 of 36 steps; run `cdejax train` again"],
    ),
    "another recipe": (
        "train",
        settings("training.learning_rate=0.5"),
        ["holds a run of another recipe", "training.learning_rate"],
    ),
    "recipe no JSON": ("train", of_run("run.json", bad_json), ["run.json", DAMAGED]),
    "recipe gone": ("train", of_run("run.json", gone), ["but no run.json"]),
    "metrics no JSON": (
        "train",
        of_run("metrics.jsonl", lambda p: p.write_text("{}\n{a}\n{")),
        ["metrics.jsonl:2: not JSON"],
    ),
    "score no JSON": (
        "train",
        of_run("best/best.json", with_best("{")),
        ["best.json", DAMAGED],
    ),
    "no score": (
        "train",
        of_run("best/best.json", with_best("[]")),
        ["best.json: no step and score in it"],
    ),
    "weights cut": (
        "export",
        of_run("checkpoints/36", no_weights),
        ["checkpoint 36 cannot be read", "run `cdejax train` again"],
    ),
}

TABLE: dict[str, Case] = {
    f"{part}: {name}": case
    for part, cases in {
        "source": SOURCES,
        "vectors": VECTORS,
        "plan": PLANS,
        "folder": FOLDERS,
        "config": CONFIGS,
        "output": OUTPUTS,
        "artefact": ARTEFACTS,
        "run": RUNS,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", TABLE)
def test_says_what_is_wrong(name, check):
    assert one_line(check(TABLE[name]))


# Another run in the same folder -------------------------------------------------


@pytest.mark.parametrize("command", ["pairs", "train", "export"])
def test_another_run_in_the_same_folder(command, place, check):
    run = place / "runs" / "tiny"
    pairs = artefact(place, "pairs")
    held = {
        "pairs": pairs.with_name(f".{pairs.name}.partial"),
        "train": run / "model",
        "export": run / "model" / ".export.partial",
    }[command]
    with ExitStack() as stack:

        def hold(place: Path) -> list[str]:
            if command == "pairs":
                shutil.rmtree(pairs)
            stack.enter_context(lock_folder(held))
            return []

        words = [str(held), f"another run (process {os.getpid()})", "Wait for it"]
        assert one_line(check((command, hold, words)))


def test_a_stage_is_locked_until_it_has_its_name(tmp_path, monkeypatch):
    """Else a run that comes in between would empty what is about to be finished."""
    replace = os.replace

    def checked(old, new):
        if Path(old).is_dir():
            with pytest.raises(ValueError, match="another run"), lock_folder(old):
                pass
        replace(old, new)

    monkeypatch.setattr(os, "replace", checked)
    artifacts.run_stage(tmp_path, "plan", {}, lambda folder: {})


# Disk full ----------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def new_output(place: Path) -> list[str]:
    return sets(f"output='{place / 'new'}'")


def new_run(place: Path) -> list[str]:
    untrain(place)
    return []


# What cannot be written any more; command, and what it finds.
FULL = {
    "pairs": ("cdejax.data.ragged.RaggedWriter.append", "pairs", new_output),
    "tokenizer": ("pathlib.Path.write_text", "tokenize", new_output),
    "arrays": ("numpy.save", "pack", new_output),
    "metrics": ("cdejax.training.metrics.MetricsLog._write", "train", new_run),
    "recipe of a run": ("cdejax.training.run_folder.write_json", "train", new_run),
    "export": ("safetensors.numpy.save_file", "export", lambda place: []),
    "lock": ("os.write", "pairs", new_output),
}


NOT_THERE = {"pairs": "pairs", "tokenizer": "tokens", "arrays": "pairs"}
"""Artefacts that must not pass for finished."""


@pytest.mark.parametrize("name", FULL)
def test_disk_full(name, place, check, monkeypatch):
    target, command, spoil = FULL[name]
    monkeypatch.setattr(target, full)
    words = ["No space left on device", "ree some space"]
    assert one_line(check((command, spoil, words)))
    assert not list(place.glob(f"new/tiny/artifacts/{NOT_THERE.get(name, '-')}-*"))
    assert not (place / "runs" / "tiny" / "model" / "export").exists()


def test_disk_full_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    from cdejax.training.best_checkpoint import BestCheckpoint
    from cdejax.training.checkpoint import Checkpoints

    best = BestCheckpoint(tmp_path / "best")
    best.offer(1, 0.5, {"a": np.zeros(3)})

    def exhausted(*_):
        raise ValueError("RESOURCE_EXHAUSTED: Error\nNo space left on device [os 28]")

    with monkeypatch.context() as patch:
        patch.setattr(
            "orbax.checkpoint.AsyncCheckpointer.wait_until_finished", exhausted
        )
        message = r"best: a checkpoint could not be written \(No space left on device\)"
        with pytest.raises(ValueError, match=message):
            best.offer(2, 0.7, {"a": np.ones(3)})
    # The score must not say more than the folder holds: step 2 is evaluated again.
    assert json.loads((tmp_path / "best" / "best.json").read_text())["step"] == 1
    best.close()
    assert Checkpoints(tmp_path / "best", keep=1).steps()


def test_a_score_whose_checkpoint_is_not_there_does_not_count(tmp_path):
    from cdejax.training.best_checkpoint import BestCheckpoint

    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text('{"step": 8, "score": 0.9}')
    best = BestCheckpoint(tmp_path / "best")
    best.offer(4, 0.1, {"a": np.zeros(3)})
    best.close()
    assert json.loads((tmp_path / "best" / "best.json").read_text())["step"] == 4


# Commands on the user's own texts ------------------------------------------------


def test_a_byte_order_mark_is_no_text(tmp_path):
    from cdejax.data.texts import read_texts

    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbffirst\nsecond\n")
    assert read_texts(tmp_path / "a.txt") == {"1": "first", "2": "second"}


def test_contextual_surrogates_are_refused(tmp_path, recipe, monkeypatch):
    from cdejax.clustering.vectors import vectors_stage
    from cdejax.config import Config, VectorsConfig

    class Contextual:
        context_size = 8

    monkeypatch.setattr("cdejax.embedding.load.load", lambda folder: Contextual())
    monkeypatch.setattr("cdejax.embedding.keys.folder_files", lambda folder: {})
    config = Config(vectors=VectorsConfig("encoder", encoder=str(tmp_path)))
    pairs = artefact(recipe.parent, "pairs")
    with pytest.raises(ValueError, match=r"vectors\.encoder: .* is contextual"):
        vectors_stage(config, tmp_path / "a", pairs)
