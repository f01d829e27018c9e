"""Every architecture states every fact, and one entry is all that a new one needs."""

import dataclasses
import re
from dataclasses import dataclass

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

import cdejax
from cdejax.data.tokenizer_classes import BUILDERS, GENERIC
from cdejax.export import export_model
from cdejax.models import (
    BiEncoder,
    ContextualEncoder,
    Encoder,
    from_pretrained,
    to_state_dict,
)
from cdejax.models.checkpoints import registry
from cdejax.models.checkpoints.architecture import Architecture, LearnedPositions
from cdejax.models.checkpoints.bert import BERT
from cdejax.models.checkpoints.config import read_fields
from cdejax.models.checkpoints.registry import ARCHITECTURES
from cdejax.models.checkpoints.table import Entry, linear, repeated
from cdejax.models.kernels.padding import ALL, join_front
from cdejax.models.layers import Linear, normal
from cdejax.storage.artifacts import write_json

PROMPTS = {"query": "", "document": ""}
TEXTS = ["a mast and a rudder", "onions", "photons in a field of charge"]


@pytest.fixture(params=ARCHITECTURES, ids=lambda found: next(iter(found.model_types)))
def found(request) -> Architecture:
    return request.param


def test_model_types_and_classes_are_of_one_architecture_each():
    kinds = [kind for found in ARCHITECTURES for kind in found.model_types]
    assert len(kinds) == len(set(kinds))
    for name in ("config", "encoder"):
        assert len({getattr(found, name) for found in ARCHITECTURES}) == 8


def test_the_configuration_is_read_as_it_is_written(found):
    raw = found.write(found.config())
    assert raw["model_type"] == next(iter(found.model_types))
    assert registry.architecture(raw, "config.json") is found
    assert registry.architecture_of(found.config()) is found
    assert found.read(raw, "config.json") == found.config()


def test_tokenizers_can_be_built(found):
    assert set(found.model_types.values()) <= {*BUILDERS, GENERIC}


def test_names_of_layers_have_the_prefix(found):
    for names in filter(None, (found.table, found.published)):
        table = [e for e in names(found.config()) if e.path.startswith("layers.")]
        assert table
        for entry in table:
            number = entry.path.split(".")[1]
            starts = tuple(f"{prefix}.{number}." for prefix in found.layers)
            assert all(name.startswith(starts) for name in entry.names)


def test_positions_that_were_learned_limit_texts(found):
    longest = getattr(found.config(), "longest", None)
    if found.positions is None:
        assert longest is None
        return
    reserved = found.positions.reserved
    assert longest == found.config().max_position_embeddings - reserved
    paths = {entry.path for entry in found.table(found.config())}
    assert "position" in paths


def test_torch_twins_are_those_of_the_exported_code():
    pytest.importorskip("transformers")
    from cdejax.export.torch.modeling_cdejax import _ENCODERS

    twins = {
        kind: found.torch_twin
        for found in ARCHITECTURES
        for kind in found.model_types
        if found.torch_twin is not None
    }
    assert twins == {kind: made[1].__name__ for kind, made in _ENCODERS.items()}


def test_the_exported_code_knows_which_twin_learned_positions():
    """It asks for `bert`: it is self-contained and cannot ask the registry."""
    learned = [a for a in ARCHITECTURES if a.torch_twin and a.positions is not None]
    assert learned == [BERT]
    assert BERT.positions == LearnedPositions(reserved=0, counts_padding=True)


@dataclass(frozen=True)
class TinyConfig:
    vocab_size: int = 30522
    hidden_size: int = 8
    num_hidden_layers: int = 2
    num_attention_heads: int = 1
    initializer_range: float = 0.5


class TinyLayer(nnx.Module):
    def __init__(self, size, rngs):
        self.mix = Linear(size, size, rngs, kernel_init=normal(0.5))

    def __call__(self, x, *, padding, shared, outputs=ALL):
        x = join_front(x)[:, outputs]
        return x + self.mix(x)


class Tiny(Encoder):
    """A bag of words."""

    def __init__(self, config, rngs, dtype=np.float32, *, remat=False):
        super().__init__(config, rngs, dtype, remat=remat)
        layers = range(config.num_hidden_layers)
        self.layers = nnx.List([TinyLayer(config.hidden_size, rngs) for _ in layers])


def tiny_table(config):
    layer = linear("mix", "mixer")
    layers = repeated(layer, config.num_hidden_layers, "layers", "stack.blocks")
    return [Entry("word", ("words.weight",)), *layers]


TINY = Architecture(
    model_types={"tiny": "BertTokenizer"},
    config=TinyConfig,
    encoder=Tiny,
    read=lambda raw, source: read_fields(TinyConfig, raw, source),
    write=lambda config: {"model_type": "tiny", **dataclasses.asdict(config)},
    table=tiny_table,
    layers=("stack.blocks",),
    positions=None,
    torch_twin=None,
)


@pytest.fixture
def tiny(monkeypatch) -> Tiny:
    monkeypatch.setattr(registry, "ARCHITECTURES", (*ARCHITECTURES, TINY))
    return Tiny(TinyConfig(), nnx.Rngs(0))


def test_a_new_architecture_is_loaded_and_encodes(tiny, tmp_path, minilm):
    write_json(tmp_path / "config.json", TINY.write(tiny.config))
    save_file(to_state_dict(tiny), tmp_path / "model.safetensors")
    (tmp_path / "vocab.txt").write_bytes((minilm / "vocab.txt").read_bytes())
    embedder = cdejax.load(tmp_path)
    assert embedder.model.kind == "biencoder"
    assert isinstance(embedder.model.text_encoder, Tiny)
    vectors = embedder.encode(TEXTS)
    assert vectors.shape == (3, 8)
    ids, _ = embedder.tokenizer.encode(TEXTS[:1], 32)
    states = np.asarray(tiny(np.array([ids[0]])))[0]
    mean = states.mean(0)
    np.testing.assert_allclose(vectors[0], mean / np.linalg.norm(mean), atol=1e-5)
    shorter = from_pretrained(tmp_path, layers=1)
    assert len(shorter.text_encoder.layers) == 1


def test_a_new_architecture_is_exported(tiny, tmp_path, minilm):
    model = BiEncoder(tiny)
    folder = export_model(
        model, minilm, tmp_path / "export", prompts=PROMPTS, max_length=16
    )
    again = cdejax.load(folder)
    assert again.max_length == 16
    for name, tensor in to_state_dict(model).items():
        np.testing.assert_array_equal(to_state_dict(again.model)[name], tensor)


def test_without_a_torch_twin_no_contextual_export(tiny, tmp_path, minilm):
    model = ContextualEncoder.from_encoder(tiny, nnx.Rngs(0), context_size=4)
    said = re.escape("on tiny: its torch code knows bert, modernbert, nomic_bert only")
    with pytest.raises(ValueError, match=said):
        export_model(model, minilm, tmp_path / "no", prompts=PROMPTS, max_length=16)
