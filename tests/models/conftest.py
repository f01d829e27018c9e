"""Encoders with the oracles' weights."""

import pytest


@pytest.fixture(scope="session", params=["bert", "nomic_bert"])
def pair(request, tmp_path_factory):
    """(our encoder, transformers' torch model) of one architecture, equal weights."""
    from tests.models.oracles import ORACLES

    return load(ORACLES[request.param](), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def encoder(pair):
    """Our encoder, with attention far from uniform."""
    from tests.models.oracles import sharpen

    return sharpen(pair[0])


@pytest.fixture(scope="session")
def nomic(tmp_path_factory):
    """A NomicBERT pair with attention far from uniform."""
    from tests.models.oracles import nomic_bert

    oracle = nomic_bert()
    for layer in oracle.layers:
        attention = layer.self_attn
        for part in (attention.q_proj, attention.k_proj, attention.v_proj):
            part.weight.data *= 8
    return load(oracle, tmp_path_factory.mktemp("nomic"))


def load(oracle, folder):
    from tests.models.oracles import biencoder

    oracle.save_pretrained(folder)
    return biencoder(folder).encoder, oracle
