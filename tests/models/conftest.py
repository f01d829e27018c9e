"""Encoders with the oracles' weights."""

import functools

import pytest

ALL = [
    "bert",
    "distilbert",
    "modernbert",
    "mpnet",
    "nomic_bert",
    "qwen3",
    "qwen3_bidirectional",
    "roberta",
    "t5",
    "t5_gated",
    "xlm_roberta",
]
DISTINCT = ["bert", "modernbert", "mpnet", "nomic_bert", "qwen3", "t5"]
"""Those with arithmetic of their own: enough for what is no matter of parity."""


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """Makes the pair of an architecture, once."""
    from tests.models.oracles import ORACLES

    @functools.cache
    def made(kind):
        return load(ORACLES[kind](), tmp_path_factory.mktemp(kind))

    return made


@pytest.fixture(scope="module", params=ALL)
def pair(request, pairs):
    """(our encoder, transformers' torch model) of one architecture, equal weights."""
    return pairs(request.param)


@pytest.fixture(scope="module", params=DISTINCT)
def encoder(request, pairs):
    """Our encoder, with attention far from uniform."""
    from tests.models.oracles import sharpen

    return sharpen(pairs(request.param)[0])


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
