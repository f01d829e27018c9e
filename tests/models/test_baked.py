"""A context folded in changes nothing but what has to be given."""

import numpy as np
import pytest
from flax import nnx

from cdejax.models import BakedEncoder, ContextualEncoder, to_state_dict
from tests.export.conftest import CONTEXT, small_contextual


@pytest.fixture(scope="module", params=["bert", "nomic_bert"])
def model(request) -> ContextualEncoder:
    return small_contextual(request.param)


@pytest.mark.parametrize("size", [CONTEXT, 5, 0])
def test_embeds_as_the_unbaked_model(model, size):
    rng = np.random.default_rng(0)
    ids, lengths = rng.integers(1, 999, (4, 9)), np.array([9, 4, 1, 7])
    context = rng.normal(size=(size, model.dim)).astype(np.float32)
    baked = BakedEncoder(model, context)
    expected = model.second_stage(ids, None, context, lengths=lengths)
    np.testing.assert_allclose(baked(ids, lengths=lengths), expected, atol=1e-6)
    mask = np.arange(9) < lengths[:, None]
    np.testing.assert_allclose(baked(ids, mask), expected, atol=2e-6)


def test_holds_no_first_stage(model):
    baked = BakedEncoder(model, np.zeros((3, model.dim), np.float32))
    names = set(to_state_dict(baked))
    whole = set(to_state_dict(model))
    gone = {n for n in whole if n.startswith("first_stage_model.")}
    gone |= {n for n in whole if ".prompt_projection." in n}
    assert whole - names == gone
    assert {n.split(".")[-1] for n in names - whole} == {"soft_prompt", "context"}
    assert not isinstance(baked, ContextualEncoder)
    assert not hasattr(baked, "first_stage")
    graph, state = nnx.split(baked)
    assert isinstance(nnx.merge(graph, state), BakedEncoder)
