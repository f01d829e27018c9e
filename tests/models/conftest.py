"""Encoders with the oracles' weights."""

import pytest

from cdejax.models import from_pretrained


@pytest.fixture(scope="session", params=["bert", "nomic_bert"])
def pair(request, tmp_path_factory):
    """(our encoder, transformers' torch model) of one architecture, equal weights."""
    from tests.models.oracles import ORACLES

    folder = tmp_path_factory.mktemp(request.param)
    oracle = ORACLES[request.param]()
    oracle.save_pretrained(folder)
    return from_pretrained(folder).encoder, oracle


@pytest.fixture(scope="session")
def encoder(pair):
    from tests.models.oracles import sharpen

    return sharpen(pair[0])


@pytest.fixture(scope="session")
def nomic(tmp_path_factory):
    from tests.models.oracles import nomic_bert

    folder = tmp_path_factory.mktemp("nomic")
    oracle = nomic_bert()
    oracle.save_pretrained(folder)
    return from_pretrained(folder).encoder, oracle
