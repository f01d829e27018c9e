"""Which texts become a context, and what is kept of it in files."""

import json
import shutil

import numpy as np
import pytest

from cdejax.embedding.choice import Choice, kmeans_plus_plus, medoids, resample
from cdejax.models.context import Context, Origin, hash_texts

C = 8


def blobs(clusters: int, each: int, seed: int = 0) -> np.ndarray:
    """Rows around well separated directions, of very different lengths."""
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.normal(size=(32, clusters)))[0].T
    rows = np.repeat(centres, each, axis=0) + 0.02 * rng.normal(
        size=(clusters * each, 32)
    )
    return (rows * rng.uniform(0.1, 30, (len(rows), 1))).astype(np.float32)


def context(count: int, vectors: np.ndarray | None = None, **settings) -> Context:
    choice = Choice(C, **settings)
    texts = [f"text {i}" for i in range(count)]
    rows = choice.candidates_of(texts)
    if vectors is None:
        vectors = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    return choice.context(texts, rows, vectors[rows], "model")


@pytest.mark.parametrize("pick", [kmeans_plus_plus, medoids])
def test_every_cluster_is_represented_once(pick):
    for seed in range(3):
        rows = pick(blobs(6, 40, seed), 6, seed)
        assert sorted(rows // 40) == list(range(6))
        assert rows.tolist() == sorted(rows.tolist())


def test_medoids_are_the_members_nearest_to_the_mean_direction():
    vectors = blobs(4, 50)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    members = unit.reshape(4, 50, 32)
    means = members.mean(1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    nearest = np.einsum("kmd,kd->km", members, means).argmax(1)
    for seed in range(5):
        found = medoids(vectors, 4, seed)
        assert found.tolist() == (np.arange(4) * 50 + nearest).tolist()


def test_medoids_take_any_seed():
    vectors = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert len(medoids(vectors, 3, 2**40)) == 3


def test_kmeans_plus_plus_draws_by_squared_distance():
    """Three directions at cosines 1, 0.5 and 0 to the first one."""
    rows = np.array([[1, 0], [0.5, np.sqrt(0.75)], [0, 1]], np.float32)
    second = []
    for seed in range(3000):
        pair = set(kmeans_plus_plus(rows, 2, seed).tolist())
        if 0 in pair:
            second.append(pair)
    # from 0: distances² 1 and 2; from 1: 1 and 2 - √3; from 2: 2 and 2 - √3
    near = 2 - np.sqrt(3)
    with_one = 1 / 3 + 1 / (1 + near)
    with_two = 2 / 3 + 2 / (2 + near)
    share = second.count({0, 1}) / len(second)
    assert abs(share - with_one / (with_one + with_two)) < 0.03


@pytest.mark.parametrize("pick", [kmeans_plus_plus, medoids])
def test_equal_texts_do_not_stop_the_choice(pick):
    rows = np.repeat(blobs(3, 1), 10, axis=0)
    chosen = pick(rows, 7, 0)
    assert len(set(chosen.tolist())) == 7
    assert set(chosen // 10) == {0, 1, 2}


@pytest.mark.parametrize("method", ["random", "kmeans++", "medoids"])
def test_a_choice_is_a_function_of_its_seed(method):
    one, same = (context(200, method=method, seed=3) for _ in range(2))
    other = context(200, method=method, seed=4)
    assert one.info == same.info
    assert one.hash != other.hash
    assert len(set(one.ids.tolist())) == C == len(one)
    origin = one.origin
    assert origin is not None
    looked_at = C if method == "random" else 8 * C
    assert origin == Origin(method, looked_at, "mask", 200, C, origin.texts_hash)
    assert origin.texts_hash == hash_texts(f"text {i}" for i in one.ids)


def test_candidates_bound_what_is_looked_at():
    choice = Choice(C, method="medoids", candidates=20)
    assert len(choice.candidates_of(["x"] * 1000)) == 20
    made = context(1000, method="medoids", candidates=20)
    assert made.info["candidates"] == 20
    assert made.info["corpus"] == 1000


def test_fewer_texts_are_masked_or_drawn_again():
    masked = context(3)
    assert masked.ids.tolist() == [0, 1, 2]
    assert masked.info["fill"] == "mask"
    filled = context(3, fill="resample", seed=2)
    assert len(filled) == C
    assert set(filled.ids.tolist()) == {0, 1, 2}
    assert filled.info["fill"] == "resample"
    np.testing.assert_array_equal(filled.vectors[filled.ids == 1][0], masked.vectors[1])
    assert filled.hash != context(3, fill="resample", seed=3).hash
    assert resample(np.arange(5), 5, 0).tolist() == [0, 1, 2, 3, 4]


def test_a_size_below_c_is_filled_up_too():
    filled = context(100, size=2, fill="resample")
    assert len(filled) == C
    assert len(set(filled.ids.tolist())) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": C + 1}, "size 9: this model reads 0 to 8"),
        ({"seed": -1}, "seed -1"),
        (
            {"method": "kmeans"},
            r"method 'kmeans': choose one of random, kmeans\+\+, ",
        ),
        ({"fill": "zeros"}, "fill 'zeros': choose one of mask, resample"),
        ({"size": 0, "fill": "resample"}, "size 0 leaves no text"),
        ({"candidates": 9}, "method 'random' looks at no text"),
        ({"method": "medoids", "candidates": 3}, "candidates 3: give 8"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Choice(C, **settings)


def test_saved_and_loaded(tmp_path):
    for number, made in enumerate((context(50, method="medoids"), context(0, size=0))):
        made.save(tmp_path / str(number))
        again = Context.load(tmp_path / str(number))
        assert again.info == made.info
        assert again.origin == made.origin
        np.testing.assert_array_equal(again.vectors, made.vectors)


def test_contexts_of_older_versions_load(tmp_path):
    made = context(50)
    arrays = {name: getattr(made, name) for name in ("ids", "vectors", "mask")}
    np.savez(tmp_path / "context.npz", allow_pickle=False, **arrays)
    info = {"seed": 0, "model": "model", "hash": made.hash, "texts": C}
    (tmp_path / "context.json").write_text(json.dumps(info))
    old = Context.load(tmp_path)
    assert old.hash == made.hash
    assert old.origin is None
    old.save(tmp_path / "new")
    assert Context.load(tmp_path / "new").info == old.info
    (tmp_path / "context.npz").write_bytes(b"PK\3\4 cut")
    with pytest.raises(ValueError, match="cannot read the context"):
        Context.load(tmp_path)
    objects = {name: np.array([{}]) for name in arrays}
    np.savez(tmp_path / "context.npz", allow_pickle=True, **objects)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Context.load(tmp_path)


def test_refuses_what_is_missing_damaged_or_changed(tmp_path):
    with pytest.raises(ValueError, match=r"context\.safetensors is missing"):
        Context.load(tmp_path)
    for name in ("one", "two"):
        context(50, seed=len(name) + ord(name[0])).save(tmp_path / name)
    shutil.copy(tmp_path / "one/context.safetensors", tmp_path / "two")
    with pytest.raises(ValueError, match="do not belong together"):
        Context.load(tmp_path / "two")
    file = tmp_path / "one/context.json"
    stored = json.loads(file.read_text())
    for key, value in {"method": "medoids", "corpus": 51, "seed": 1}.items():
        file.write_text(json.dumps(stored | {key: value}))
        with pytest.raises(ValueError, match="was changed"):
            Context.load(tmp_path / "one")
    file.write_text(json.dumps(stored))
    Context.load(tmp_path / "one")
    (tmp_path / "one/context.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="cannot read the context"):
        Context.load(tmp_path / "one")
