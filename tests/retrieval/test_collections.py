"""The part of the held-out pairs that checkpoints are chosen on."""

import dataclasses
import json

import numpy as np
import pytest

from cdejax.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    SourceConfig,
    TrainingConfig,
)
from cdejax.data.pairs import Pairs, build_pairs
from cdejax.retrieval.collections import (
    evaluation_collections,
    heldout_collection,
    validation_collection,
    validation_rows,
)
from tests.tiny import write_pairs


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Some queries have several answers, some documents answer several queries."""
    path = write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", rows=400)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number in range(0, 300, 10):
        rows[number + 3]["query"] = rows[number]["query"]
        rows[number + 6]["document"] = rows[number + 3]["document"]
        for other in (3, 6):
            rows[number + other]["domain"] = rows[number]["domain"]
    return [json.dumps(row) + "\n" for row in rows]


def built(lines, folder):
    folder.mkdir()
    (folder / "pairs.jsonl").write_text("".join(lines))
    source = SourceConfig(path=str(folder / "pairs.jsonl"))
    columns = dataclasses.replace(source.columns, domain="domain")
    source = dataclasses.replace(source, columns=columns)
    build_pairs(DataConfig((source,), heldout_fraction=0.5), 0, folder / "out")
    return Pairs.open(folder / "out")


@pytest.fixture(scope="module")
def pairs(lines, tmp_path_factory):
    return built(lines, tmp_path_factory.mktemp("built") / "pairs")


def texts(pairs, rows):
    """Query and document texts of held-out pairs."""
    table = pairs.heldout
    asked = {pairs.queries[row] for row in table.query[rows]}
    return asked, {pairs.documents[row] for row in table.document[rows]}


def test_the_part_shares_no_query_and_no_answer_with_what_is_shown(pairs):
    chosen = validation_rows(pairs, 0.2, seed=0)
    assert 0.15 * len(chosen) < chosen.sum() <= 0.2 * len(chosen)
    for ours, theirs in zip(texts(pairs, chosen), texts(pairs, ~chosen), strict=True):
        assert ours
        assert not ours & theirs


def test_the_part_depends_on_texts_and_seed_alone(pairs, lines, tmp_path):
    chosen = texts(pairs, validation_rows(pairs, 0.2, seed=0))
    again = built(lines[::-1], tmp_path / "pairs")
    assert texts(again, validation_rows(again, 0.2, seed=0)) == chosen
    assert texts(pairs, validation_rows(pairs, 0.2, seed=1)) != chosen


def test_reports_show_the_other_queries_of_the_same_documents(pairs):
    validation = validation_rows(pairs, 0.2, seed=0)
    config = EvaluationConfig(heldout_by_domain=True)
    shown = evaluation_collections(config, pairs, validation)
    whole = evaluation_collections(config, pairs)
    part = validation_collection(pairs, 0.2, seed=0)
    assert part is not None
    assert list(shown) == list(whole)
    for name in whole:
        assert shown[name].documents == whole[name].documents
    both = shown["held-out"].query_ids + part.query_ids
    assert sorted(both) == sorted(whole["held-out"].query_ids)
    for name, collection in shown.items():
        assert not set(collection.query_ids) & set(part.query_ids), name
        expected = {id: whole[name].qrels[id] for id in collection.query_ids}
        assert collection.qrels == expected
    assert part.documents == heldout_collection(pairs).documents


def test_a_domain_without_other_queries_is_left_out_and_said(pairs, caplog):
    validation = pairs.heldout.domain == pairs.domains.index("sailing")
    config = EvaluationConfig(heldout_by_domain=True)
    found = evaluation_collections(config, pairs, validation)
    assert "held-out/sailing" not in found
    assert "held-out/cooking" in found
    assert "held-out/sailing: checkpoints are chosen on all of it" in caplog.text


def test_too_few_pairs_are_refused(pairs):
    with pytest.raises(ValueError, match=r"too few to choose .* raise evaluation\.val"):
        validation_rows(pairs, 0.001, seed=0)


@pytest.mark.parametrize(
    ("every", "evaluation", "share"),
    [
        (0, EvaluationConfig(), 0),
        (9, EvaluationConfig(), 0.2),
        (9, EvaluationConfig(validation_fraction=0.5), 0.5),
        (0, EvaluationConfig(validation_fraction=0.5), 0.5),
        (9, EvaluationConfig(heldout=False), 1),
        (9, EvaluationConfig(heldout=False, heldout_by_domain=True), 0.2),
        (0, EvaluationConfig(heldout=False), 0),
    ],
)
def test_share_follows_from_what_is_chosen_and_shown(every, evaluation, share):
    training = TrainingConfig(eval_every=every)
    assert Config(training=training, evaluation=evaluation).validation_share == share


def test_choosing_on_nothing_is_refused():
    with pytest.raises(ValueError, match="0 leaves no pairs for training"):
        Config(
            training=TrainingConfig(eval_every=1),
            evaluation=EvaluationConfig(validation_fraction=0),
        )


def test_all_held_out_pairs_choose_where_none_is_shown(pairs):
    part = validation_collection(pairs, 1, seed=0)
    assert part == heldout_collection(pairs)
    assert validation_rows(pairs, 0, seed=0).sum() == 0
    assert validation_collection(pairs, 0, seed=0) is None
    assert np.all(validation_rows(pairs, 1, seed=0))


def test_without_held_out_pairs_there_is_nothing_to_choose_on(pairs):
    none = np.zeros(0, np.int32)
    table = dataclasses.replace(pairs.heldout, query=none, document=none, domain=none)
    bare = dataclasses.replace(pairs, heldout=table)
    assert len(validation_rows(bare, 0.2, seed=0)) == 0
    assert validation_collection(bare, 0.2, seed=0) is None
