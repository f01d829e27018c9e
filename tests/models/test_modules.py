"""Heads against sentence-transformers' own modules, saved by themselves."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cdejax.models import Bert, BertConfig, BiEncoder, load_state_dict, to_state_dict
from cdejax.models.layers import Head
from cdejax.models.modules import ACTIVATIONS, Chain, Dense, LayerNorm, Normalize
from cdejax.models.pretrained.st_modules import list_modules, read_modules
from tests.models.oracles import draw, torch

st = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
SIZE = 16


def dense(features=SIZE, out=12, activation="Tanh", **settings):
    settings["activation_function"] = getattr(torch.nn, activation)()
    return draw(st.Dense(features, out, **settings), features + out)


CHAINS = {
    **{name: [dense(activation=name)] for name in ACTIVATIONS},
    "no bias": [dense(bias=False)],
    "residual": [dense(out=SIZE, use_residual=True)],
    "projected residual": [dense(activation="GELU", use_residual=True)],
    "norm": [draw(st.LayerNorm(SIZE))],
    "normalised between": [dense(), st.Normalize(), dense(12, 20)],
    "long": [
        st.Normalize(),
        draw(st.LayerNorm(SIZE)),
        dense(bias=False),
        draw(st.LayerNorm(12), 5),
        dense(12, 8, "Sigmoid"),
    ],
    "mlp": [dense(activation="GELU"), dense(12, 20, "Identity")],
}


def write(folder, modules):
    """A folder of which only the encoder is missing."""
    modules = [st.Pooling(SIZE), *modules]
    kinds = ["Transformer", *(type(module).__name__ for module in modules)]
    listed = [
        {
            "type": f"sentence_transformers.models.{kind}",
            "path": f"{i}_{kind}" if i else "",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = {"model_type": "bert", "vocab_size": 9, **sizes}
    (folder / "config.json").write_text(json.dumps(encoder))
    for module, entry in zip(modules, listed[1:], strict=True):
        (folder / entry["path"]).mkdir()
        module.save(str(folder / entry["path"]))
    return folder


@pytest.mark.parametrize("name", CHAINS)
def test_computes_what_sentence_transformers_does(name, tmp_path):
    x = np.random.default_rng(0).normal(size=(9, SIZE)).astype(np.float32)
    x[0] = 0
    features = {"sentence_embedding": torch.tensor(3 * x)}
    for module in CHAINS[name]:
        features = module(features)
    head = read_modules(write(tmp_path, CHAINS[name])).head
    assert isinstance(head, Head if name == "mlp" else Chain)
    expected = features["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(head(jnp.asarray(3 * x)), expected, atol=2e-6)


def test_normalize_at_the_end_is_no_part_of_the_head(tmp_path):
    write(tmp_path, [dense(), st.Normalize()])
    head = read_modules(tmp_path).head
    assert isinstance(head, Chain)
    assert [type(module) for module in head.modules] == [Dense]
    assert list_modules(tmp_path)[-1][0] == "Normalize"


def test_normalize_alone_is_no_head(tmp_path):
    assert read_modules(write(tmp_path, [st.Normalize()])).head is None


def test_neighbours_must_fit():
    modules = [Dense(4, 6, nnx.Rngs(0)), LayerNorm(5)]
    with pytest.raises(
        ValueError, match="LayerNorm takes vectors of size 5, but Dense"
    ):
        Chain(modules)


def test_unknown_activations_are_refused():
    with pytest.raises(ValueError, match="'Swish' is not one of"):
        Dense(4, 6, nnx.Rngs(0), activation="Swish")


def test_gradients_at_zero_are_finite():
    gradient = jax.grad(lambda x: Normalize(4)(x).sum())(jnp.zeros((1, 4)))
    assert np.isfinite(np.asarray(gradient)).all()


def test_weights_of_any_head_leave_and_come_back():
    def build(seed):
        rngs = nnx.Rngs(seed)
        head = Chain([Dense(16, 6, rngs, residual=True), LayerNorm(6)])
        config = BertConfig(40, 16, 1, 2, 24, max_position_embeddings=16)
        return BiEncoder(Bert(config, rngs), head=head)

    tensors = to_state_dict(build(0))
    assert tensors["modules.0.residual.weight"].shape == (6, 16)
    assert "modules.1.norm.bias" in tensors
    other = build(1)
    load_state_dict(other, tensors)
    assert all(np.array_equal(t, tensors[n]) for n, t in to_state_dict(other).items())
