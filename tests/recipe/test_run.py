"""A whole recipe: every stage, killed and resumed, and what it leaves behind."""

import dataclasses
import gc
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx

from cdejax.cli.main import main
from cdejax.config.load import load_config
from cdejax.recipe import run as commands
from cdejax.recipe import stages, variant
from cdejax.recipe.dry_run import dry_run
from cdejax.storage import artifacts
from cdejax.training.metrics import read_metrics
from tests.shared import made_once
from tests.tiny import write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, minilm):
    variants = {
        "shuffled": {"plan": {"kind": "shuffled"}},
        "contextual": {"model": {"kind": "contextual"}},
    }

    def make(folder):
        plan = {"epochs": 4}  # or a run might end before it can be killed
        training = {"compilation_cache": str(folder / "compiled")}
        write_recipe(folder, minilm, plan=plan, training=training, variants=variants)

    return made_once(tmp_path_factory, "recipe", make) / "recipe.yaml"


class Finished(NamedTuple):
    """The run's folder after `cdejax run`, and what it printed."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """All tests read it; one runs it again, and no other may hold it."""

    def make(folder):
        done = cdejax("run", recipe)
        assert done.returncode == 0, done.stderr
        (folder / "out").write_text(done.stdout)
        (folder / "err").write_text(done.stderr)

    said = made_once(tmp_path_factory, "run", make)
    out, err = ((said / name).read_text() for name in ("out", "err"))
    return Finished(recipe.parent / "runs" / "tiny", out, err)


@pytest.fixture
def prepared(finished, tmp_path):
    """Settings of a run of its own, for which all stages before training are there."""
    (tmp_path / "tiny").mkdir()
    artefacts = finished.folder / "artifacts"
    (tmp_path / "tiny" / "artifacts").symlink_to(artefacts)
    return ["--set", f"output={tmp_path}"]


def cdejax(command, recipe, *arguments, **options):
    """Runs the command line on one CPU device."""
    argv = [sys.executable, "-m", "cdejax", command, "--config", str(recipe)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    return subprocess.run(
        [*argv, *arguments], capture_output=True, text=True, env=environment, **options
    )


def test_leaves_table_pictures_and_exports(finished):
    folder, printed, _ = finished
    for system in ("BM25", "untrained start (biencoder)", "shuffled", "contextual"):
        assert system in printed
    assert "nDCG@10" in printed
    for path in (
        "report/chart.png",
        "report/summary.json",
        "shuffled/export/model.safetensors",
        "contextual/export/modeling_cdejax.py",
        "contextual/best/best.json",
    ):
        assert (folder / path).is_file(), path
    assert len(list(folder.glob("artifacts/hardness-*/hardness.png"))) == 1


def test_evaluate_shows_figures_and_leaves_the_report_alone(finished, recipe, capsys):
    report = sorted((finished.folder / "report").iterdir())
    before = [(path, path.stat().st_mtime_ns) for path in report]
    main(["evaluate", "--config", str(recipe)])
    printed = capsys.readouterr().out
    assert "nDCG@10" in printed
    assert printed.count("evaluation: ") == 5  # BM25, two starts, two variants
    report = sorted((finished.folder / "report").iterdir())
    assert [(path, path.stat().st_mtime_ns) for path in report] == before


@pytest.mark.parametrize("variant", ["shuffled", "contextual"])
def test_model_cards_tell_recipe_and_scores(finished, recipe, variant, tmp_path):
    card = (finished.folder / variant / "export" / "README.md").read_text()
    assert f"cdejax evaluate --config recipe.yaml --variant {variant}\n" in card
    rows = json.loads((finished.folder / "report" / "summary.json").read_text())
    [row] = [row for row in rows if row["system"] == variant]
    score = row["measures"]["nDCG@10"]
    text = f"nDCG@10 {score['mean']:.4f} [{score['low']:.4f}, {score['high']:.4f}]"
    assert text in card
    assert f"{row['collection']}: {variant}, {row['queries']} queries" in card
    config = load_config(recipe)
    assert f"{config.data.sources[0].path} (licence: cc0-1.0)" in card
    stored = tmp_path / "recipe.yaml"
    stored.write_text(card.split("```yaml\n")[1].split("```")[0])
    theirs = load_config(stored)
    assert stages.variants_of(theirs) == {variant: stages.variants_of(config)[variant]}


def test_training_learns(finished):
    folder = finished.folder
    for name in ("shuffled", "contextual"):
        losses = [x["loss"] for x in read_metrics(folder / name) if "loss" in x]
        assert len(losses) > 20
        assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.1
    rows = json.loads((folder / "report" / "summary.json").read_text())
    scores = {r["system"]: r["measures"]["nDCG@10"]["mean"] for r in rows}
    assert scores["shuffled"] > scores["untrained start (biencoder)"] + 0.02
    assert scores["contextual"] > scores["untrained start (contextual)"] + 0.02


def test_metrics_have_all_that_was_promised(finished):
    line = next(x for x in read_metrics(finished.folder / "contextual") if "loss" in x)
    assert set(line) >= {
        *("loss", "accuracy", "hardness", "masked_share", "gradient_norm"),
        *("learning_rate", "pairs_per_second", "tokens_per_second"),
        *("padding_efficiency", "loader_wait_share"),
    }
    start = read_metrics(finished[0] / "contextual")[0]
    assert start["event"] == "start"
    assert start["cpu_activations"] == 0  # the recipe's; it decides the order of sums
    assert 0 <= line["loader_wait_share"] <= 1
    assert 0 < line["padding_efficiency"] <= 1
    assert list((finished.folder / "contextual" / "tensorboard").glob("events*"))


def test_runs_again_for_free(finished, recipe):
    folder = finished.folder
    before = {p: p.stat().st_mtime_ns for p in (folder / "artifacts").iterdir()}
    steps = len(read_metrics(folder / "shuffled"))
    main(["run", "--config", str(recipe)])
    after = {p: p.stat().st_mtime_ns for p in (folder / "artifacts").iterdir()}
    made = after.keys() - before.keys()
    # The run was on one device; this process has eight, whose shapes are others.
    assert all(path.name.startswith("shapes-") for path in made)
    assert before.items() <= after.items()
    new = read_metrics(folder / "shuffled")[steps:]
    assert not [line for line in new if "loss" in line]


@pytest.mark.parametrize(
    "variant", [pytest.param("shuffled", marks=pytest.mark.slow), "contextual"]
)
def test_killed_and_resumed_is_bit_equal(finished, recipe, variant, tmp_path, prepared):
    assert re.search(r"first step after \S+ s: \d+ functions compiled", finished.err)
    anew = ["--set", "training.compilation_cache=null"]
    output = ["--variant", variant, *prepared, *anew]
    run = tmp_path / "tiny" / variant
    argv = [sys.executable, "-m", "cdejax", "train", "--config", str(recipe), *output]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not (run / "checkpoints" / "4").is_dir():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.5))
    assert process.poll() is None, "the run ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = cdejax("train", recipe, *output)
    assert done.returncode == 0, done.stderr
    lines = read_metrics(run)
    resumed = next(i for i, x in enumerate(lines) if x.get("event") == "resume")
    start = lines[resumed]["step"]
    steps = [line["step"] for line in lines[resumed + 1 :] if "loss" in line]
    assert 0 < start < lines[resumed]["total_steps"]
    assert start % 4 == 0
    assert steps == list(range(start + 1, lines[resumed]["total_steps"] + 1))
    whole = _params(finished.folder / variant)
    for ours, theirs in zip(_params(run), whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _newest(run: Path) -> int:
    names = (path.name for path in (run / "checkpoints").iterdir())
    return max(int(name) for name in names if name.isdigit())


def _params(run: Path):
    """Every array of the last checkpoint, parameters and optimiser state."""
    import orbax.checkpoint as ocp

    newest = _newest(run)
    state = ocp.StandardCheckpointer().restore(
        (run / "checkpoints" / str(newest) / "default").resolve()
    )
    return [np.asarray(state[name]) for name in sorted(state)]


def test_other_recipe_in_the_same_folder_is_refused(
    finished, recipe, tmp_path, prepared, capsys
):
    shutil.copytree(finished.folder / "shuffled", tmp_path / "tiny" / "shuffled")
    other = ["--variant", "shuffled", "--set", "training.learning_rate=0.5"]
    with pytest.raises(SystemExit) as stop:
        main(["train", "--config", str(recipe), *prepared, *other])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "training.learning_rate" in said
    assert "Traceback" not in said


def test_half_written_checkpoint_is_passed_over(finished, recipe, tmp_path, prepared):
    """A checkpoint without its files, as a file system without renames leaves it."""
    folder = finished.folder
    run = tmp_path / "tiny" / "shuffled"
    shutil.copytree(folder / "shuffled", run)
    newest = _newest(run)
    for path in (run / "checkpoints" / str(newest) / "default").rglob("*"):
        if path.is_file() and path.name != "_CHECKPOINT_METADATA":
            path.unlink()
    (run / "checkpoints" / f"{newest + 4}.orbax-checkpoint-tmp").mkdir()
    done = cdejax("train", recipe, *prepared, "--variant", "shuffled")
    assert done.returncode == 0, done.stderr
    assert f"checkpoint {newest} is damaged" in done.stderr
    events = [x for x in read_metrics(run) if "event" in x]
    assert 0 < events[-1]["step"] < newest
    for ours, whole in zip(_params(run), _params(folder / "shuffled"), strict=True):
        np.testing.assert_array_equal(ours, whole)


def test_not_finite_stops_and_names_the_batch(recipe, tmp_path, prepared):
    rate = ["--set", "training.learning_rate=1e30"]
    done = cdejax("train", recipe, *prepared, "--variant", "shuffled", *rate)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (dump,) = (tmp_path / "tiny" / "shuffled").glob("nonfinite-step-*.json")
    assert str(dump) in done.stderr
    found = json.loads(dump.read_text())
    assert len(found["rows"]) == 16
    assert set(found["domains"]) <= {"cooking", "sailing", "physics"}


def test_init_from_takes_the_weights_and_new_data(finished, recipe, tmp_path):
    from cdejax.training.run_model import build_model, initial_params

    folder = finished.folder
    config = load_config(recipe)
    resolved = stages.variants_of(config)["shuffled"]
    trained = variant.trained_model(resolved, "shuffled")
    for source in (folder / "shuffled", folder / "shuffled" / "export"):
        overrides = {"training": {"init_from": str(source)}}
        changed = stages.variants_of(load_config(recipe, overrides))["shuffled"]
        params = initial_params(changed, build_model(changed))
        for ours, theirs in zip(
            jax.tree.leaves(params), jax.tree.leaves(nnx.split(trained)[1]), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_dry_run_trains_nothing_and_says_what_would_happen(recipe, tmp_path):
    done = cdejax("run", recipe, "--dry-run", "--set", f"output={tmp_path}")
    assert done.returncode == 0, done.stderr
    for words in (
        *("dropped an epoch", "cooking", "negatives a query", "padding efficiency"),
        *("rows of", "memory a device", "FLOPs a step", "56 of 16 pairs"),
    ):
        assert words in done.stdout
    assert not list((tmp_path / "tiny").glob("*/checkpoints"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.negatives_per_query=2", "the pairs have no hard negatives"),
        ("tokens.document.max_length=65", "has learned 64 positions; set it to 64"),
        ("training.warmup_steps=99", "the plan has 60 steps"),
    ],
)
def test_recipe_that_does_not_fit_is_refused(recipe, tmp_path, capsys, setting, words):
    options = ["--variant", "shuffled", "--set", f"output={tmp_path}", "--set", setting]
    with pytest.raises(SystemExit) as stop:
        main(["train", "--config", str(recipe), *options])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"model": {"encoder": "nowhere"}}, "model.encoder: 'nowhere': no such folder"),
        (
            {"vectors": {"method": "encoder", "encoder": "nowhere"}},
            "vectors.encoder: 'nowhere': no such folder",
        ),
        ({"data": {"sources": [{"path": "gone.jsonl"}]}}, "gone.jsonl': no such file"),
        (
            {"training": {"init_from": "owner/name"}},
            r"init_from: 'owner/name': no such folder \(did you mean `hf:owner/name`",
        ),
        (
            {"plan": {"kind": "file", "path": "gone.npy"}},
            "path: gone.npy: no such",
        ),
        ({"evaluation": {"collections": ["nowhere"]}}, "nowhere"),
        ({"training": {"init_from": "."}}, "neither an exported folder"),
    ],
)
def test_missing_folders_are_found_before_any_work(recipe, tmp_path, overrides, words):
    config = load_config(recipe, {**overrides, "output": str(tmp_path / "out")})
    stages = (
        [commands.run]
        if "evaluation" in overrides
        else [commands.run, commands.run_train]
    )
    for stage in stages:
        with pytest.raises(ValueError, match=words):
            stage(config)
    assert not (tmp_path / "out").exists()


def test_batches_of_one_without_negatives_are_refused(recipe, tmp_path):
    changes = {"output": str(tmp_path / "out"), "plan": {"batch_size": 1}}
    changes |= {"model": {"context_size": 1}}
    for stage in (commands.run_train, commands.run, dry_run):
        with pytest.raises(
            ValueError, match=r"plan\.batch_size is 1 and training\.neg"
        ):
            stage(load_config(recipe, changes))
    assert not (tmp_path / "out").exists()


def test_a_stage_looks_at_every_source_before_it_reads_one(recipe, tmp_path):
    good, bad = str(recipe.parent / "pairs.jsonl"), tmp_path / "bad.jsonl"
    bad.write_text('{"question": "a", "answer": "b"}\n')
    sources = {"data": {"sources": [{"path": good}, {"path": str(bad)}]}}
    config = load_config(recipe, {**sources, "output": str(tmp_path / "out")})
    for stage in (commands.run_pairs, commands.run_tfds, commands.run_plan):
        with pytest.raises(ValueError, match=r"bad\.jsonl: no column .query."):
            stage(config)
    assert not (tmp_path / "out").exists()


def test_an_encoder_that_cannot_be_loaded_is_found_before_any_work(recipe, tmp_path):
    config = load_config(recipe)
    broken = tmp_path / "broken"
    shutil.copytree(config.model.encoder, broken)
    (broken / "model.safetensors").write_bytes(b"x" * 100)
    for section in (
        {"model": {"encoder": str(broken)}},
        {"vectors": {"method": "encoder", "encoder": str(broken)}},
    ):
        changed = load_config(recipe, {**section, "output": str(tmp_path / "out")})
        with pytest.raises(ValueError, match=r"encoder: .*model\.safetensors: damaged"):
            commands.run(changed)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"training": {"warmup_steps": 10**6}},
            "warmup_steps is 1000000, but",
        ),
        ({"plan": {"batch_size": 10**4}}, "smaller than a batch|is more than the"),
        ({"plan": {"domain_groups": {"all": ["no*"]}}}, "matches no domain"),
        (
            {"tokens": {"query": {"domain_prefixes": {"cocking": "x"}}}},
            "no domain 'cocking'. Did you mean 'cooking'",
        ),
    ],
)
def test_what_does_not_fit_the_pairs_is_found_right_after_them(
    recipe, tmp_path, overrides, words
):
    config = load_config(recipe, {**overrides, "output": str(tmp_path)})
    with pytest.raises(ValueError, match=words):
        commands.run_train(config)
    made = [path.name for path in (tmp_path / "tiny" / "artifacts").iterdir()]
    assert [name.partition("-")[0] for name in made] == ["pairs"]


def test_contextual_folder_is_gone_on_with_as_it_is(finished, recipe):
    from cdejax.training.run_model import build_model

    export = finished.folder / "contextual" / "export"
    model = {"encoder": str(export), "kind": "contextual"}
    config = load_config(recipe, {"model": model})
    with_kind = stages.variants_of(config)["contextual"]
    found = build_model(with_kind)
    trained = variant.trained_model(
        stages.variants_of(load_config(recipe))["contextual"], "contextual"
    )
    for ours, theirs in zip(
        jax.tree.leaves(nnx.split(found)[1]),
        jax.tree.leaves(nnx.split(trained)[1]),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    for changes, words in (
        ({"context_size": 7}, "model.context_size is 7"),
        ({"layers": 1}, "model.layers is 1"),
        ({"kind": "biencoder"}, "model.kind is biencoder"),
    ):
        config = load_config(recipe, {"model": {**model, **changes}})
        with pytest.raises(ValueError, match=words):
            build_model(stages.variants_of(config)["contextual"])


def test_upgrade_of_the_package_keeps_a_run(finished, recipe, monkeypatch):
    """Other stages, same settings: nothing is made again, and the run is ours."""
    folder = finished.folder
    before = sorted(p.name for p in (folder / "artifacts").iterdir())
    for stage in ("pairs", "tokens", "vectors", "clusters", "plan"):
        monkeypatch.setitem(artifacts.VERSIONS, stage, artifacts.VERSIONS[stage] + 1)
    for name, resolved in stages.variants_of(load_config(recipe)).items():
        variant.trained_model(resolved, name)
    assert sorted(p.name for p in (folder / "artifacts").iterdir()) == before


@pytest.mark.parametrize("command", [commands.run_train, commands.run, dry_run])
def test_a_context_larger_than_a_batch_is_refused_before_any_work(
    recipe, tmp_path, command
):
    """Training would draw 16 documents, use would read 17."""
    changes = {"output": str(tmp_path / "runs"), "model": {"context_size": 17}}
    with pytest.raises(ValueError, match=r"model\.context_size is 17.*batch_size") as e:
        command(load_config(recipe, changes))
    assert "\n" not in str(e.value)
    assert not (tmp_path / "runs").exists()


def test_each_variant_is_evaluated_on_its_own_held_out_pairs(recipe, tmp_path):
    from cdejax.recipe import scores
    from cdejax.retrieval.report import read_results

    resolved = {}
    for share in (0.2, 0.4):
        changes = {"output": str(tmp_path), "data": {"heldout_fraction": share}}
        loaded = load_config(recipe, changes)
        resolved[share] = stages.variants_of(loaded)["shuffled"]
    systems = [
        scores.System(f"BM25 {share}", config, "bm25")
        for share, config in resolved.items()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "systems_of", lambda _: systems)
        folders = list(scores.evaluate_recipe(resolved[0.2]))
    few, many = (len(read_results(folder)[0].query_ids) for folder in folders)
    assert many > 1.5 * few


def live_bytes():
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def test_evaluation_in_training_holds_no_second_model(recipe):
    from cdejax.embedding.program import shared_program
    from cdejax.training.run_model import build_model

    resolved = stages.variants_of(load_config(recipe))["shuffled"]
    pairs = stages.Stages(resolved).inputs().pairs
    before = live_bytes()
    score = variant.heldout_score(resolved, pairs)
    assert score is not None
    assert live_bytes() == before
    model = build_model(resolved)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.split(model)[1]))
    held = live_bytes()
    assert held - before >= size > 1e6
    first = score(model)
    assert live_bytes() - held < size / 100
    compiled = shared_program.cache_info().misses
    again = nnx.merge(*nnx.split(model))  # as each evaluation of a run makes it
    assert score(again) == first
    assert shared_program.cache_info().misses == compiled


def test_report_shows_no_query_that_chose_the_checkpoint(recipe, tmp_path, capsys):
    from rich.console import Console

    from cdejax.data.pairs import Pairs
    from cdejax.retrieval.collections import heldout_collection, validation_collection
    from cdejax.retrieval.evaluate import evaluate_embedder
    from cdejax.retrieval.report import read_results

    changes = {"output": str(tmp_path), "plan": {"epochs": 1}}
    changes |= {"training": {"eval_every": 5}, "data": {"heldout_rows": 100}}
    config = load_config(recipe, changes)
    resolved = stages.variants_of(config)["shuffled"]
    config = dataclasses.replace(config, variants={"shuffled": {}}, plan=resolved.plan)
    run = Path(commands.run_train(config))
    pairs = Pairs.open(stages.Stages(resolved).pairs())
    part = validation_collection(pairs, 0.2, resolved.seed)
    assert part is not None

    scores = [x["heldout_ndcg@10"] for x in read_metrics(run) if "heldout_ndcg@10" in x]
    best = json.loads((run / "best" / "best.json").read_text())
    assert len(scores) > 1
    assert best["score"] == max(scores)
    model = variant.trained_model(resolved, "shuffled")
    kept = variant.make_embedder(resolved, model, "kept")
    found = evaluate_embedder(kept, part).scores["nDCG@10"].mean()
    assert found == pytest.approx(best["score"], abs=1e-4)

    console = Console(width=120)
    console.print(commands.report(config))
    said = " ".join(capsys.readouterr().out.split())
    chosen = f"checkpoint of step {best['step']}, the best on {len(part.queries)} other"
    assert f"shuffled: {chosen} held-out queries" in said
    shown = [set(r.query_ids) for r in read_results(run.parent / "report")]
    expected = set(heldout_collection(pairs).query_ids) - set(part.query_ids)
    assert shown == [expected] * len(shown)

    for every, refused in ((3, False), (0, True)):
        training = dataclasses.replace(config.training, eval_every=every)
        other = dataclasses.replace(config, training=training)
        if not refused:
            assert commands.run_train(other) == str(run)
            continue
        with pytest.raises(ValueError, match=r"in evaluation\.validation_fraction\)"):
            commands.run_train(other)


def test_variants_that_would_be_compared_on_other_queries_are_refused(recipe):
    changes = {"variants": {"contextual": {"training": {"eval_every": 5}}}}
    config = load_config(recipe, changes)
    with pytest.raises(
        ValueError, match=r"\(contextual 0\.2, shuffled 0\.0; 0 without"
    ):
        stages.variants_of(config)
    both = changes | {"evaluation": {"validation_fraction": 0.2}}
    assert len(stages.variants_of(load_config(recipe, both))) == 2
