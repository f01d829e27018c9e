import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from cdejax.clustering.tfidf import fit_tfidf
from cdejax.clustering.vectors import (
    Share,
    Vectors,
    borrow,
    embed_share,
    unit_rows,
    vectors_stage,
    write_blocks,
)
from cdejax.config import Config, VectorsConfig
from cdejax.data.pairs import Pairs
from cdejax.storage.artifacts import artifact_fingerprint, read_manifest
from tests.tiny import write_encoder

TFIDF = Config(vectors=VectorsConfig(method="tfidf", dim=16))


def file_config(folder):
    paths = [str(folder / f"{side}.npy") for side in ("queries", "documents")]
    settings = VectorsConfig(method="file", queries=paths[0], documents=paths[1])
    return Config(vectors=settings)


@pytest.fixture
def user_files(tmp_path, pairs_folder):
    """Good files of a user's, and the configuration that names them."""
    pairs = Pairs.open(pairs_folder)
    rng = np.random.default_rng(0)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, texts in (("queries", pairs.queries), ("documents", pairs.documents)):
        np.save(folder / f"{name}.npy", rng.normal(size=(len(texts), 6)))
    return folder


def test_tfidf_vectors_are_unit_rows_near_their_pair(tmp_path, pairs_folder):
    folder = vectors_stage(TFIDF, tmp_path, pairs_folder)
    vectors, pairs = Vectors.open(folder), Pairs.open(pairs_folder)
    for x, texts in (
        (vectors.queries, pairs.queries),
        (vectors.documents, pairs.documents),
    ):
        assert x.dtype == np.float32
        assert x.shape == (len(texts), 16)
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-6)
    q = vectors.queries[pairs.train.query]
    d = vectors.documents[pairs.train.document]
    own = (q * d).sum(axis=1).mean()
    other = (q * np.roll(d, 31, axis=0)).sum(axis=1).mean()
    assert own > other + 0.3
    assert vectors_stage(TFIDF, tmp_path, pairs_folder) == folder
    assert sorted(p.name for p in folder.iterdir()) == [
        "digests.json",
        "documents.npy",
        "manifest.json",
        "queries.npy",
    ]


def test_seed_and_settings_name_the_artefact(tmp_path, pairs_folder):
    other = replace(TFIDF, seed=1)
    first = vectors_stage(TFIDF, tmp_path, pairs_folder)
    assert vectors_stage(other, tmp_path, pairs_folder) != first


def test_words_are_stems_split_at_case_and_underscores():
    queries = ["getUserName reading_files", "the recorded HTTP values"]
    documents = ["get user, READ file", "RecordHttp valueOf"]
    model = fit_tfidf(queries, documents, np.array([[0, 0], [1, 1]]), 1, 0)
    known = set(model.words.get_feature_names_out())
    assert known == {"get", "user", "recor", "http", "value"}


def test_a_text_without_a_known_word_goes_where_its_partner_goes(tmp_path):
    from tests.clustering.conftest import rows, write_pairs

    lines = [*rows(), {"query": "Zyxw", "document": "stars answer", "domain": "stars"}]
    pairs_folder = write_pairs(tmp_path, lines)
    folder = vectors_stage(TFIDF, tmp_path, pairs_folder)
    pairs, vectors = Pairs.open(pairs_folder), Vectors.open(folder)
    query = list(pairs.queries).index("Zyxw")
    document = list(pairs.documents).index("stars answer")
    score = vectors.queries[query] @ vectors.documents[document]
    assert score == pytest.approx(1, abs=1e-6)
    counts = read_manifest(folder)["counts"]
    assert counts["queries_without_known_word"] == 1
    assert counts["documents_without_known_word"] == 0


def test_borrowed_vectors_sum_partners_and_fall_back_to_the_first_axis():
    vectors = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], np.float32)
    own, other = np.array([4, 4, 7, 0]), np.array([0, 1, 2, 1])
    lent = borrow(np.array([4, 7, 9]), own, other, vectors)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(lent, [[0, half, half], [1, 0, 0], [1, 0, 0]], atol=1e-6)


def test_unit_rows_in_half_precision_and_zero():
    x = np.array([[3, 4], [0, 0]], np.float16)
    np.testing.assert_allclose(unit_rows(x), [[0.6, 0.8], [0, 0]], atol=1e-7)
    assert unit_rows(x).dtype == np.float32


KILLED = """
import os, signal, sys
from pathlib import Path
from cdejax.clustering.vectors import Share, write_blocks
from tests.clustering.test_vectors import counting
share = Share(int(sys.argv[2]), int(sys.argv[3]))
blocks = counting([], lambda: os.kill(os.getpid(), signal.SIGKILL))
write_blocks(Path(sys.argv[1]), 10, blocks, "x", share=share)
"""


def counting(seen, at_the_fourth=lambda: None):
    """Blocks of two vectors that tell their rows; something happens at the fourth."""

    def vectorise(rows):
        for number, start in enumerate(range(rows.start, rows.stop, 2)):
            if number == 3:
                at_the_fourth()
            block = range(start, min(start + 2, rows.stop))
            seen.extend(block)
            yield np.array([[float(i), 1.0] for i in block])

    return vectorise


EXPECTED = unit_rows(np.array([[float(i), 1.0] for i in range(10)]))


@pytest.mark.parametrize("share", [Share(), Share(1, 2)])
def test_a_killed_run_goes_on_behind_its_last_block(tmp_path, share):
    path, seen = tmp_path / "queries.npy", []
    own = share.rows(10)
    arguments = [str(path), str(share.index), str(share.count)]
    child = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    write_blocks(path, 10, counting(seen), "x", share=share)
    if share == Share():
        assert child.returncode == -signal.SIGKILL
        # one block may still have been on its way to the disk
        assert seen in ([4, 5, 6, 7, 8, 9], [6, 7, 8, 9])
    np.testing.assert_allclose(np.load(path)[own.start :], EXPECTED[own.start :])
    seen.clear()  # killed in a later file, this one is not written again
    write_blocks(path, 10, counting(seen), "x", share=share)
    assert seen == []


@pytest.mark.parametrize("count", [2, 3, 12])
def test_processes_write_their_shares_into_one_file(tmp_path, count):
    path, seen = tmp_path / "queries.npy", []
    shares = [Share(index, count) for index in range(count)]
    for share in reversed(shares):
        before = len(seen)
        write_blocks(path, 10, counting(seen), "x", share=share)
        assert seen[before:] == list(share.rows(10))
    assert sorted(seen) == list(range(10))
    np.testing.assert_allclose(np.load(path), EXPECTED, atol=1e-7)
    assert not list(tmp_path.glob("*.new"))


def test_shares_of_an_encoder_are_the_vectors_of_one_process(
    tmp_path, pairs_folder, minilm
):
    encoder = str(write_encoder(tmp_path / "encoder", minilm))
    settings = VectorsConfig(method="encoder", encoder=encoder, batch_size=2)
    one = Vectors.open(
        vectors_stage(Config(vectors=settings), tmp_path / "a", pairs_folder)
    )
    two = tmp_path / "two"
    two.mkdir()
    for index in (0, 1):
        embed_share(settings, Pairs.open(pairs_folder), two, Share(index, 2))
    for side in ("queries", "documents"):
        found = np.load(two / f"{side}.npy")
        np.testing.assert_allclose(found, getattr(one, side), atol=1e-6)


def test_encoder_vectors_are_those_of_the_embedder(
    tmp_path, pairs_folder, minilm, monkeypatch
):
    class Embedder:
        context_size = None

        def encode_blocks(self, texts, kind, context, batch_size, normalize, rows):
            assert batch_size == 2
            for start in range(rows.start, rows.stop, 7):
                block = [texts[i] for i in range(start, min(start + 7, rows.stop))]
                lengths = [len(text) for text in block]
                yield np.array([[n, kind == "query", 1] for n in lengths], np.float32)

    monkeypatch.setattr("cdejax.embedding.load.load", lambda folder: Embedder())
    folder = write_encoder(tmp_path / "model", minilm)
    settings = VectorsConfig(method="encoder", encoder=str(folder), batch_size=2)
    config = Config(vectors=settings)
    vectors = Vectors.open(vectors_stage(config, tmp_path / "a", pairs_folder))
    pairs = Pairs.open(pairs_folder)
    expected = unit_rows(np.array([[len(t), 1, 1] for t in pairs.queries]))
    np.testing.assert_allclose(vectors.queries, expected, atol=1e-6)
    expected = unit_rows(np.array([[len(t), 0, 1] for t in pairs.documents]))
    np.testing.assert_allclose(vectors.documents, expected, atol=1e-6)


def test_user_vectors_are_normalised_and_kept(tmp_path, pairs_folder, user_files):
    config = file_config(user_files)
    folder = vectors_stage(config, tmp_path / "a", pairs_folder)
    for side in ("queries", "documents"):
        mine = np.load(user_files / f"{side}.npy")
        ours = getattr(Vectors.open(folder), side)
        np.testing.assert_allclose(ours, unit_rows(mine), atol=1e-7)
    # Other contents under the same name are another artefact.
    np.save(user_files / "queries.npy", -np.load(user_files / "queries.npy"))
    assert vectors_stage(config, tmp_path / "a", pairs_folder) != folder


def test_the_whole_range_of_float32_is_taken(tmp_path, pairs_folder, user_files):
    x = np.load(user_files / "queries.npy")
    x[3], x[5, 1], x[6] = [MOST, -MOST, 0, 0, 0, 0], 1e-60, 1.2e-38
    np.save(user_files / "queries.npy", x)
    folder = vectors_stage(file_config(user_files), tmp_path / "a", pairs_folder)
    found = Vectors.open(folder).queries
    expected = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("how", ["sidecar", "manifest"])
def test_vectors_that_name_these_pairs_are_taken(
    tmp_path, pairs_folder, user_files, how
):
    origin = {"pairs": artifact_fingerprint(pairs_folder)}
    if how == "sidecar":
        (user_files / "queries.npy.json").write_text(json.dumps(origin))
    else:
        (user_files / "manifest.json").write_text(json.dumps({"spec": origin}))
    vectors_stage(file_config(user_files), tmp_path / "a", pairs_folder)


def edit(change):
    def apply(folder):
        x = np.load(folder / "queries.npy")
        np.save(folder / "queries.npy", change(x), allow_pickle=True)

    return apply


MOST = float(np.finfo(np.float32).max)


def overflowing(x, value=-1e300):
    x[4, 1] = value
    return x


def put(row, value):
    def change(x):
        x[row] = value
        return x

    return edit(change)


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


ORIGIN = json.dumps({"pairs": "feedfeedfeedfeed"}).encode()
MANIFEST = json.dumps({"spec": {"pairs": "feedfeedfeedfeed"}}).encode()
BAD_FILES = {
    "missing file": (lambda f: (f / "queries.npy").unlink(), "no such file"),
    "text file": (write("queries.npy", b"0.1, 0.2"), "not a .npy file"),
    "archive": (write("queries.npy", b"PK\x03\x04rest"), "an .npz archive"),
    "pickled objects": (edit(lambda x: x.astype(object)), "pickled objects"),
    "cut short": (
        lambda f: (f / "queries.npy").write_bytes(
            (f / "queries.npy").read_bytes()[:900]
        ),
        r"queries\.npy: .*numpy\.save",
    ),
    "integers": (edit(lambda x: x.astype(int)), "dtype int64"),
    "one dimension": (edit(lambda x: x[:, 0]), r"shape \(121,\)"),
    "too few rows": (edit(lambda x: x[:-1]), "120 rows, but .* 121 queries"),
    "no columns": (edit(lambda x: x[:, :0]), r"shape \(121, 0\)"),
    "NaN": (put((7, 2), np.nan), r"row 7 holds NaN .*\(nan in column 2; 1 such"),
    "infinite": (put((8, 2), np.inf), "row 8 holds NaN or infinite"),
    "infinite in half precision": (
        edit(lambda x: overflowing(x, -np.inf).astype(np.float16)),
        r"queries\.npy: row 4 holds NaN or infinite values \(-inf in column 1",
    ),
    "beyond float32": (
        put((8, 2), -1e39),
        r"queries\.npy: row 8 holds values beyond .* \(-1e\+39 in column 2; 1 such",
    ),
    "just beyond float32": (put((8, 2), np.nextafter(MOST, np.inf)), "row 8 holds val"),
    "beyond float32, in extended precision": (
        edit(lambda x: overflowing(x.astype(np.longdouble))),
        r"row 4 holds values beyond .* \(-1.0+525e\+300 in column 1",
    ),
    "zero in float32": (
        put(9, 1e-60),
        r"row 9 holds only values too small .* \(1e-60 in column 0",
    ),
    "few digits in float32": (put(9, 1e-44), "row 9 holds only values too small"),
    "zero row": (put(9, 0), r"row 9 holds only zeros.*\(0\.0 in column 0"),
    "dimensions differ": (edit(lambda x: x[:, :4]), "4 dimensions, documents 6"),
    "sidecar of other pairs": (write("queries.npy.json", ORIGIN), "another corpus"),
    "artefact of other pairs": (write("manifest.json", MANIFEST), "another corpus"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_vector_files(tmp_path, pairs_folder, user_files, case):
    spoil, message = BAD_FILES[case]
    spoil(user_files)
    with pytest.raises(ValueError, match=message):
        vectors_stage(file_config(user_files), tmp_path / "a", pairs_folder)


BAD_SETTINGS = {
    "no such encoder": (
        VectorsConfig(method="encoder", encoder="/nowhere"),
        "no such folder",
    ),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_vector_settings(tmp_path, pairs_folder, case):
    settings, message = BAD_SETTINGS[case]
    with pytest.raises(ValueError, match=message):
        vectors_stage(Config(vectors=settings), tmp_path, pairs_folder)


def test_more_dimensions_than_the_data_has_are_capped_with_a_word(
    tmp_path, pairs_folder, caplog
):
    config = Config(vectors=VectorsConfig(dim=5000))
    folder = vectors_stage(config, tmp_path, pairs_folder)
    counts = read_manifest(folder)["counts"]
    assert (counts["dim"], counts["dim_asked"]) == (72, 5000)
    vectors = Vectors.open(folder)
    assert vectors.queries.shape[1] == vectors.documents.shape[1] == 72
    assert "vectors.dim is 5000, but 121 pairs with 76 words span 72" in caplog.text


def test_dimensions_that_texts_do_not_span_are_no_noise():
    """Three words that always come together are one dimension, not three."""
    texts = ["alpha beta gamma", "delta"] * 4
    model = fit_tfidf(texts, texts, np.arange(8)[:, None].repeat(2, 1), 4, 0)
    assert model(texts).shape == (8, 2)
    assert (model.counts["dim"], model.counts["dim_asked"]) == (2, 4)


def test_texts_without_a_common_word_are_refused():
    with pytest.raises(ValueError, match="no word occurs in two of the 2 texts"):
        fit_tfidf(["one"], ["other"], np.array([[0, 0]]), 1, 0)


def test_a_model_that_returns_nan_is_named_with_its_row(tmp_path):
    def vectorise(rows):
        for i in rows:
            yield np.array([[np.nan if i == 5 else 1.0]])

    with pytest.raises(ValueError, match="embed: row 5 holds NaN"):
        write_blocks(tmp_path / "x.npy", 8, vectorise, "embed")
