import numpy as np
import pytest

from cdejax.clustering.groups import TrainingPairs, group_domains
from cdejax.data.pairs import Pairs


def test_group_numbers_and_names():
    names, numbers = group_domains(
        ["deb-x", "web", "deb-y"], {"deb": ("deb-*",), "all": ()}
    )
    assert names == ["deb", "web"]
    assert numbers.tolist() == [0, 1, 0]


BAD_GROUPS = {
    "unknown domain": ({"a": ("wbe",)}, r"'wbe' matches no domain; did you mean 'web'"),
    "no match of pattern": ({"a": ("film*",)}, r"'film\*' matches no domain"),
    "in two groups": ({"a": ("web",), "b": ("w*",)}, "'web' is in 'a' and in 'b'"),
    "name of another domain": ({"law": ("web",)}, "'law' is also a domain"),
}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_bad_groups(case):
    groups, message = BAD_GROUPS[case]
    with pytest.raises(ValueError, match=message):
        group_domains(["web", "law"], groups)


def test_training_pairs_know_their_groups(pairs_folder, domain):
    pairs = TrainingPairs.of(Pairs.open(pairs_folder), {"nature": ("birds", "too*")})
    assert len(pairs) == 121
    assert dict(zip(pairs.names, pairs.sizes, strict=True)) == {
        "nature": 51,
        "stars": 70,
    }
    [(name, rows)] = pairs.filling(60, "drop")
    assert name == "stars"
    np.testing.assert_array_equal(rows, np.flatnonzero(domain == "stars"))


def test_domains_without_training_rows_are_no_error(pairs_folder):
    group = np.array([1, 1, 1])
    pairs = TrainingPairs(Pairs.open(pairs_folder), ["only-heldout", "web"], group)
    assert [name for name, _ in pairs.filling(2, "error")] == ["web"]
