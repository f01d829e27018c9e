"""DistilBERT, RoBERTa and MPNet where they are not BERT, against transformers."""

import gzip
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from cdejax.models import (
    BiEncoder,
    ContextualEncoder,
    DistilBert,
    DistilBertConfig,
    MPNet,
    MPNetConfig,
    Roberta,
    RobertaConfig,
    config_dict,
    from_pretrained,
    to_state_dict,
)
from cdejax.models.checkpoints.registry import architecture
from cdejax.models.relative import buckets
from tests.models.oracles import (
    ORACLES,
    TOLERANCE,
    biencoder,
    hidden,
    padded,
    run,
    sharpen,
    torch,
    transformers,
)

NEW = ["distilbert", "mpnet", "roberta", "xlm_roberta"]
BY_ID = ["mpnet", "roberta", "xlm_roberta"]
"""Those that count positions over ids which are not the padding token."""
RAW = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "dim": 16,
    "n_layers": 1,
    "n_heads": 2,
}
LONG = {"intermediate_size": 8, "num_hidden_layers": 1, "max_position_embeddings": 8194}


def read(kind, **keys):
    raw = {"model_type": kind, **RAW, **keys}
    return architecture(raw, "config.json").read(raw, "config.json")


def gap(ours, theirs, mask):
    return np.abs(np.asarray(ours) - theirs)[mask].max()


@pytest.mark.parametrize("kind", BY_ID)
def test_padding_by_the_pad_token_on_either_side_changes_nothing(pairs, kind):
    encoder, oracle = pairs(kind)
    lengths = [24, 1, 13]
    right, right_mask = padded(lengths, 24, pad=1)
    left, left_mask = padded(lengths, 24, side="left", pad=1)
    ours = run(encoder, left, left_mask)
    assert gap(ours, hidden(oracle, left, left_mask), left_mask) <= TOLERANCE
    turned = np.asarray(run(encoder, right, right_mask))[right_mask]
    np.testing.assert_allclose(np.asarray(ours)[left_mask], turned, atol=TOLERANCE)


@pytest.mark.parametrize("kind", BY_ID)
def test_given_positions_are_those_of_a_text(pairs, kind):
    encoder, _ = pairs(kind)
    ids, _ = padded([7, 7], 7, pad=1)
    counted = np.asarray(encoder.embed(ids))
    given = np.asarray(encoder.embed(ids, np.arange(7)))
    np.testing.assert_array_equal(given, counted)
    rows = np.stack([np.arange(7), np.arange(7) + 3])
    moved = np.asarray(encoder.embed(ids, rows))
    np.testing.assert_array_equal(moved[0], counted[0])
    assert np.abs(moved[1] - counted[1]).max() > 1e-3


@pytest.mark.parametrize("kind", BY_ID)
def test_a_pad_token_that_a_text_spells_out_is_not_counted(pairs, kind):
    encoder, oracle = pairs(kind)
    text = np.array([[0, 7, 1, 8, 1, 1, 9, 2]])
    expected = hidden(oracle, text, np.ones((1, 8), bool)).mean(1)
    model = BiEncoder(encoder)
    np.testing.assert_allclose(run(model, text), expected, atol=TOLERANCE)
    for pads in ((0, 3), (3, 0)):
        ids = np.pad(text, ((0, 0), pads), constant_values=1)
        mask = np.pad(np.ones((1, 8), bool), ((0, 0), pads))
        np.testing.assert_allclose(run(model, ids, mask), expected, atol=TOLERANCE)


@pytest.mark.parametrize("kind", BY_ID)
def test_the_longest_text_that_transformers_takes(pairs, kind):
    encoder, oracle = pairs(kind)
    assert encoder.longest == 94
    ids, mask = padded([94], 94, pad=1)
    assert gap(run(encoder, ids, mask), hidden(oracle, ids, mask), mask) <= TOLERANCE
    ids, mask = padded([95], 95, pad=1)
    with pytest.raises((IndexError, RuntimeError)):
        hidden(oracle, ids, mask)
    with pytest.raises(ValueError, match=r"95 tokens, but this .* has 94 positions"):
        encoder(ids, mask)


def test_long_contexts_of_xlm_roberta(tmp_path):
    oracle = ORACLES["xlm_roberta"](hidden_size=16, num_attention_heads=1, **LONG)
    oracle.save_pretrained(tmp_path)
    encoder = biencoder(tmp_path).encoder
    assert encoder.longest == 8192
    ids, _ = padded([8192], 8192, pad=1)
    with torch.no_grad():
        rows = oracle.embeddings.position_embeddings.weight[2:]
        words = oracle.embeddings.word_embeddings.weight[torch.tensor(ids[0])]
        expected = words + rows + oracle.embeddings.token_type_embeddings.weight[0]
    np.testing.assert_allclose(encoder.embed(ids)[0], expected.numpy(), atol=1e-7)


@pytest.mark.parametrize("kind", NEW)
def test_folders_of_language_models_load_without_their_heads(tmp_path, kind):
    oracle = ORACLES[kind]()
    name = type(oracle).__name__.replace("Model", "ForMaskedLM")
    model = getattr(transformers, name)(oracle.config)
    prefix = model.base_model_prefix
    getattr(model, prefix).load_state_dict(oracle.state_dict())
    model.save_pretrained(tmp_path)
    native = {key: value.numpy() for key, value in oracle.state_dict().items()}
    loaded = to_state_dict(biencoder(tmp_path).encoder)
    assert loaded.keys() == native.keys()
    for key, tensor in native.items():
        np.testing.assert_array_equal(loaded[key], tensor, err_msg=key)


@pytest.mark.parametrize("kind", NEW)
def test_the_first_layers_alone(tmp_path, kind):
    oracle = ORACLES[kind]()
    oracle.save_pretrained(tmp_path)
    encoder = biencoder(tmp_path, layers=1).encoder
    assert len(encoder.layers) == encoder.config.num_hidden_layers == 1
    whole = {key: value.numpy() for key, value in oracle.state_dict().items()}
    for key, tensor in to_state_dict(encoder).items():
        np.testing.assert_array_equal(tensor, whole[key], err_msg=key)


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_roberta_stays_what_it_was(tmp_path, kind):
    encoder = Roberta(read(kind), nnx.Rngs(0))
    keys = config_dict(encoder)
    assert keys["model_type"] == kind
    save_file(to_state_dict(encoder), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(keys))
    again = from_pretrained(tmp_path)
    assert isinstance(again, BiEncoder)
    assert isinstance(again.encoder, Roberta)
    assert config_dict(again) == keys
    theirs = transformers.AutoModel.from_pretrained(tmp_path)
    assert theirs.config.model_type == kind


@pytest.mark.parametrize("kind", ["distilbert", "mpnet", "roberta", "xlm-roberta"])
def test_keys_that_config_json_leaves_out_are_transformers_defaults(kind):
    ours = architecture({"model_type": kind}, "").write(read(kind))
    del ours["architectures"]
    theirs = transformers.AutoConfig.for_model(kind, **RAW)
    assert {key: getattr(theirs, key) for key in ours} == ours


def test_mpnet_counts_positions_from_2_whatever_config_json_says(tmp_path):
    oracle = ORACLES["mpnet"](pad_token_id=3)
    oracle.save_pretrained(tmp_path)
    ids = np.array([[1, 1, 5, 3, 9, 1]])
    expected = hidden(oracle, ids, ids > 1)
    ours = run(biencoder(tmp_path).encoder, ids, ids > 1)
    assert gap(ours, expected, ids > 1) <= TOLERANCE


def test_sinusoidal_positions_of_distilbert_are_weights_like_others(tmp_path):
    oracle = ORACLES["distilbert"](sinusoidal_pos_embds=True)
    oracle.save_pretrained(tmp_path)
    ids, mask = padded([9, 5], 9)
    expected = hidden(oracle, ids, mask)
    assert gap(run(biencoder(tmp_path).encoder, ids, mask), expected, mask) <= TOLERANCE


@pytest.mark.parametrize(
    ("kind", "keys", "match"),
    [
        ("distilbert", {"activation": "relu"}, "activation: 'relu'"),
        ("distilbert", {"n_layers": None}, "keys missing: n_layers"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act: 'relu'"),
        ("xlm-roberta", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("roberta", {"is_decoder": True}, "is_decoder: True"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "num_buckets: 64"),
        ("mpnet", {"hidden_act": "gelu_new"}, "hidden_act: 'gelu_new'"),
    ],
)
def test_variants_are_refused(kind, keys, match):
    with pytest.raises(ValueError, match=f"config.json.*{match}"):
        read(kind, **keys)


def test_buckets_are_mpnets():
    where = np.arange(700)
    offset = torch.arange(700)[None, :] - torch.arange(700)[:, None]
    of_encoder = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    expected = of_encoder.relative_position_bucket(offset).numpy()
    np.testing.assert_array_equal(buckets(jnp.array(where)), expected)
    rows = jnp.array([where[:90] * 2, where[90:180]])
    ours = np.asarray(buckets(rows))
    np.testing.assert_array_equal(ours[0], expected[:180:2, :180:2])
    np.testing.assert_array_equal(ours[1], expected[:90, :90])


def test_bias_of_mpnet_by_rows_of_positions(pairs):
    encoder = sharpen(pairs("mpnet")[0])
    ids, mask = padded([12, 12], 12, pad=1)
    x = encoder.embed(ids)
    plain = np.asarray(run(encoder, ids, mask))
    rows = np.stack([np.arange(12) + 5, np.arange(12) * 3])
    ours = np.asarray(run(encoder, x, method="encode", positions=rows))
    np.testing.assert_allclose(ours[0], plain[0], atol=TOLERANCE)
    alone = run(encoder, x[1:], method="encode", positions=rows[1])
    np.testing.assert_allclose(ours[1], alone[0], atol=TOLERANCE)
    assert np.abs(ours[1] - plain[1]).max() > 1e-2


@pytest.mark.parametrize("kind", NEW)
def test_contextual_encoders_over_them(pairs, kind):
    encoder = sharpen(pairs(kind)[0])
    model = ContextualEncoder.from_encoder(
        encoder, nnx.Rngs(0), context_size=6, soft_tokens=2
    )
    documents, documents_mask = padded([9, 4, 7, 9, 2, 5], 9, seed=5)
    ids, mask = padded([9, 4], 9)
    context = run(model, documents, documents_mask, method="first_stage")

    def second(ids, mask, context):
        return np.asarray(run(model, ids, mask, context, method="second_stage"))

    expected = second(ids, mask, context)
    np.testing.assert_allclose(second(ids, mask, context[::-1]), expected, atol=1e-5)
    left = padded([9, 4], 9, side="left")
    np.testing.assert_allclose(second(*left, context), expected, atol=1e-5)
    assert np.abs(second(ids, mask, -context) - expected).max() > 1e-3


@pytest.mark.parametrize("cls", [DistilBert, MPNet, Roberta])
def test_fresh_encoders_run(cls):
    config = {DistilBert: DistilBertConfig, MPNet: MPNetConfig, Roberta: RobertaConfig}
    encoder = cls(config[cls](40, 16, 1, 2, 24, 16), nnx.Rngs(0))
    assert np.isfinite(np.asarray(encoder(padded([5, 2], 5, vocab=40)[0]))).all()


@pytest.mark.slow
def test_all_mpnet_base_v2_equals_sentence_transformers(shared_data, mpnet):
    import cdejax

    st = pytest.importorskip("sentence_transformers")
    with gzip.open(shared_data / "collections/scifact/corpus.jsonl.gz") as lines:
        docs = [json.loads(line)["text"] for line in itertools.islice(lines, 200)]
    sizes = (1, 8, 20, 60, 150, 400, 900, 4000)
    texts = [(doc * 4)[: sizes[i % 8]] for i, doc in enumerate(docs)]
    theirs = st.SentenceTransformer(str(mpnet), device="cpu")
    ours = cdejax.load(mpnet)
    assert ours.max_length == theirs.max_seq_length == 384
    expected = theirs.encode(texts, normalize_embeddings=True)
    assert (ours.encode(texts) * expected).sum(1).min() >= 0.99999
