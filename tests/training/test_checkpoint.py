"""Checkpoints move between device counts and skip what cannot be read."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from cdejax.config import TrainingConfig
from cdejax.storage import digests, durable
from cdejax.training.best_checkpoint import BestCheckpoint
from cdejax.training.checkpoint import Checkpoints
from cdejax.training.optimizer import make_optimizer
from cdejax.training.run_model import BEST, CHECKPOINTS, trained_params
from cdejax.training.sharding import make_mesh
from cdejax.training.step import State


def state_on(devices, value=1.0):
    mesh = make_mesh(jax.devices()[:devices])
    state = {"w": jnp.full((4, 3), value), "step": jnp.asarray(7, jnp.int32)}
    return mesh, jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def read(folder, like, mesh):
    found = Checkpoints(folder, keep=2).restore_latest(like, mesh)
    assert found is not None
    return found


@pytest.mark.parametrize("devices", [1, 4, 8])
def test_written_on_eight_devices_read_on_others(tmp_path, devices):
    _, written = state_on(8, 0.1)
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(5, written)
    checkpoints.close()
    mesh, like = state_on(devices, 0.0)
    step, found = read(tmp_path, like, mesh)
    assert step == 5
    for name in written:
        np.testing.assert_array_equal(found[name], written[name])
        assert found[name].sharding.device_set == set(mesh.devices.flat)


def test_keeps_the_latest_ones(tmp_path):
    _, state = state_on(1)
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, state)
    checkpoints.close()
    assert Checkpoints(tmp_path, keep=2).steps() == [2, 3]


def test_what_a_kill_left_of_older_ones_is_removed(tmp_path):
    mesh, state = state_on(1)
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (2, 3):
        checkpoints.save(step, state)
    checkpoints.close()
    shutil.copytree(tmp_path / "2", tmp_path / "1")
    alone = Checkpoints(tmp_path, keep=1, alone=True)
    assert (alone.restore_latest(state, mesh) or [None])[0] == 3
    assert alone.steps() == [1, 2, 3]
    assert read(tmp_path, state, mesh)[0] == 3
    assert Checkpoints(tmp_path, keep=2).steps() == [2, 3]


def test_what_other_processes_are_writing_is_left_alone(tmp_path, monkeypatch):
    """Their digests get their names while process 0 brings the checkpoint to disk."""
    _, state = state_on(1)
    files_of, seen = digests.files_of, []

    def found(folder):
        (folder / ".digests.1-2.json.tmp").write_text("{}")
        seen.extend(files := files_of(folder))
        (folder / ".digests.1-2.json.tmp").rename(folder / "digests.1-2.json")
        return files

    monkeypatch.setattr(digests, "files_of", found)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, state)
    checkpoints.close()
    assert tmp_path / "3" / ".digests.1-2.json.tmp" in seen
    table = digests.read_digests(tmp_path / "3" / "digests.0-1.json")
    assert table
    assert not [name for name in table if "digests." in name]


def test_a_file_that_goes_while_folders_are_brought_to_disk(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.tmp").write_text("")
    walk = os.walk

    def walked(*arguments, **options):
        for found in walk(*arguments, **options):
            (tmp_path / "inner" / "a.tmp").unlink(missing_ok=True)
            yield found

    monkeypatch.setattr(os, "walk", walked)
    durable.sync_folders(tmp_path)


def test_nothing_there_is_no_checkpoint(tmp_path):
    mesh, state = state_on(1)
    assert Checkpoints(tmp_path, keep=1).restore_latest(state, mesh) is None


def test_another_model_is_refused(tmp_path):
    mesh, state = state_on(1)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, state)
    checkpoints.close()
    other = {"w": jnp.zeros((9, 9)), "step": state["step"]}
    with pytest.raises(ValueError, match="none of the checkpoints"):
        Checkpoints(tmp_path, keep=1).restore_latest(other, mesh)


def test_best_keeps_the_highest_score(tmp_path):
    mesh, _ = state_on(1)
    best = BestCheckpoint(tmp_path)
    for step, score in ((1, 0.2), (2, 0.5), (3, 0.4)):
        best.offer(step, score, state_on(1, score)[1])
    best.close()
    again = BestCheckpoint(tmp_path)
    assert again.score == 0.5
    again.offer(4, 0.3, state_on(1, 0.3)[1])
    again.close()
    step, found = read(tmp_path, state_on(1)[1], mesh)
    assert step == 2
    np.testing.assert_allclose(found["w"], 0.5)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_trained_parameters_without_an_evaluation(tmp_path, schedule):
    """Nothing held out: no best checkpoint, so the last one is what was trained."""
    params = {"w": jnp.full((4, 3), 2.0), "b": jnp.ones(3)}
    config = TrainingConfig(schedule=schedule, warmup_steps=2)
    inner = make_optimizer(config, 9).init(params)
    checkpoints = Checkpoints(tmp_path / CHECKPOINTS, keep=2)
    checkpoints.save(9, State(params, inner, jnp.asarray(9, jnp.int32)))
    checkpoints.close()
    BestCheckpoint(tmp_path / BEST).close()
    found = trained_params(tmp_path, jax.tree.map(jnp.zeros_like, params))
    for name in params:
        np.testing.assert_array_equal(found[name], params[name])


def saved(folder, steps, keep=5):
    """The steps' numbers as parameters; what restores them."""
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, state_on(1, float(step))[1])
    checkpoints.close()
    return folder


def restored(folder):
    mesh, like = state_on(1, 0.0)
    step, found = read(folder, like, mesh)
    np.testing.assert_array_equal(found["w"], np.full((4, 3), step, np.float32))
    return step


def empty(path):
    shutil.rmtree(path)
    path.mkdir()


def halve(path):
    for file in path.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


HALF = {
    "cut": halve,
    "item gone": lambda path: shutil.rmtree(path / "default"),
    "metadata gone": lambda path: (path / "_CHECKPOINT_METADATA").unlink(),
    "empty": empty,
    "a newer one empty": lambda path: path.with_name("15").mkdir(),
    "a newer one is a file": lambda path: path.with_name("15").touch(),
    "left-over": lambda path: shutil.copytree(
        path, path.with_name("12.orbax-checkpoint-tmp-0")
    ),
}


@pytest.mark.parametrize("digested", [True, False])
@pytest.mark.parametrize("how", HALF)
def test_a_half_checkpoint_hides_no_whole_one(tmp_path, how, digested):
    saved(tmp_path, (3, 6, 9))
    for path in tmp_path.glob("*/digests*") if not digested else ():
        path.unlink()
    HALF[how](tmp_path / "9")
    newest_whole = 6 if how in ("cut", "item gone", "empty") else 9
    if how == "metadata gone" and digested:
        newest_whole = 6
    assert restored(tmp_path) == newest_whole
    # Nothing hides what is written from here on, even if only one is kept.
    saved(tmp_path, [newest_whole + 1], keep=1)
    assert restored(tmp_path) == newest_whole + 1
    assert not list(tmp_path.glob("*tmp*"))
    if newest_whole == 6:
        assert (tmp_path / "9.damaged").is_dir()


def test_every_flipped_bit_of_a_checkpoint_is_noticed_and_named(tmp_path, caplog):
    """One in every file, at places that a generator draws."""
    caplog.set_level("INFO", "cdejax")
    saved(tmp_path / "whole", (3, 6))
    files = [p for p in (tmp_path / "whole" / "6").rglob("*") if p.is_file()]
    assert len(files) > 8
    rng = np.random.default_rng(0)
    for number, path in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        copy = folder / path.relative_to(tmp_path / "whole")
        data = bytearray(copy.read_bytes())
        bit = int(rng.integers(8 * len(data)))
        data[bit // 8] ^= 1 << bit % 8
        copy.write_bytes(data)
        caplog.clear()
        assert restored(folder) == 3, f"bit {bit} of {copy}"
        assert "checkpoint 6 is damaged" in caplog.text
        assert "checkpoint 3 is taken" in caplog.text
        if not path.name.startswith("digests"):
            assert path.name in caplog.text


def test_a_checkpoint_without_digests_is_restored_with_a_word(tmp_path, caplog):
    caplog.set_level("INFO", "cdejax")
    saved(tmp_path, [3])
    assert restored(tmp_path) == 3
    assert "lacks digests" not in caplog.text
    next(tmp_path.glob("3/digests*")).unlink()
    assert restored(tmp_path) == 3
    assert "checkpoint 3 lacks digests" in caplog.text


def test_a_reader_takes_no_older_checkpoint_for_the_last(tmp_path):
    saved(tmp_path, (3, 6))
    halve(tmp_path / "6")
    mesh, like = state_on(1)
    alone = Checkpoints(tmp_path, keep=1, alone=True)
    with pytest.raises(ValueError, match=r"6 cannot be read.*run `cdejax train`"):
        alone.restore_latest(like, mesh)
    assert alone.steps() == [3, 6]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_saved(tmp_path, value):
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, state_on(1)[1])
    _, state = state_on(8)
    state["w"] = state["w"].at[2, 1].set(value)
    message = r"step 2: 1 of 1 arrays are not finite \(first \['w'\]\).*checkpoint is 1"
    with pytest.raises(ValueError, match=message):
        checkpoints.save(2, state)
    checkpoints.close()
    assert Checkpoints(tmp_path, keep=2).steps() == [1]


def test_a_damaged_best_checkpoint_does_not_count(tmp_path):
    best = BestCheckpoint(tmp_path)
    best.offer(1, 0.5, state_on(1, 1.0)[1])
    best.close()
    halve(tmp_path / "1")
    again = BestCheckpoint(tmp_path)
    assert again.score == -np.inf
    again.offer(2, 0.3, state_on(1, 2.0)[1])
    again.close()
    assert restored(tmp_path) == 2
    assert BestCheckpoint(tmp_path).score == 0.3


def test_a_changed_score_is_refused(tmp_path):
    best = BestCheckpoint(tmp_path)
    best.offer(1, 0.5, state_on(1, 1.0)[1])
    best.close()
    path = tmp_path / "best.json"
    path.write_text(path.read_text().replace("0.5", "0.9"))
    with pytest.raises(ValueError, match=r"best\.json: .*remove this file"):
        BestCheckpoint(tmp_path)
