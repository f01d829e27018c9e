"""Published CDE checkpoints against their forward pass, built from native classes."""

import json
import logging

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from cdejax.models import (
    ContextualEncoder,
    config_dict,
    from_pretrained,
    make_encoder,
    parameter_count,
    to_state_dict,
)
from cdejax.models.pretrained import load as pretrained_module
from cdejax.models.pretrained.contextual_config import (
    contextual_config,
    stage_configs,
    with_preset,
)
from cdejax.models.second_stage import after_instruction
from tests.models.oracles import (
    TOLERANCE,
    modernbert,
    nomic_bert,
    normalised,
    padded,
    run,
    torch,
)

C, SOFT, LENGTHS, END = 12, 8, [14, 5, 9], 7
RESIDUAL = {"v1-train": False, "v1-hub": False, "v2": True}
V1 = {
    "architecture": "transductive",
    "architectures": ["DatasetTransformer"],
    "biencoder_pooling_strategy": "mean",
    "disable_dropout": True,
    "disable_transductive_rotary_embedding": True,
    "embedder": "nomic-ai/nomic-bert-2048",
    "embedding_output_dim": None,
    "limit_layers": None,
    "limit_layers_first_stage": None,
    "logit_scale": 50.0,
    "max_seq_length": 512,
    "transductive_corpus_size": 512,
    "transductive_sequence_dropout_prob": 0.0,
    "transductive_tie_token_embeddings": False,
    "transductive_tokens_per_document": 1,
}
V2 = V1 | {
    "architectures": ["ContextualDocumentEmbeddingTransformer"],
    "autoregressive_backbone": False,
    "dataset_backbone": None,
    "embedder": "answerdotai/ModernBERT-base",
    "pool_ignore_contextual_tokens": True,
    "pool_ignore_instruction_tokens": True,
    "pooling_strategy": "mean",
}
"""The keys that the published files have (cde-small-v1, cde-small-v2)."""


class Published:
    """The two stages in torch, under the published names of weights."""

    def __init__(self, preset):
        size, relu = 64, torch.nn.ReLU
        self.preset, self.modern = preset, preset == "v2"
        make = modernbert if self.modern else nomic_bert
        self.stages = make(seed=1), make(seed=2)
        for stage in self.stages:  # attention far from uniform, as in trained models
            for key, weight in stage.named_parameters():
                if key.endswith(("q_proj.weight", "k_proj.weight", "Wqkv.weight")):
                    weight.data *= 8
        torch.manual_seed(3)
        linear = torch.nn.Linear
        heads = {
            "first_stage_model.mlp": (torch.nn.GELU, size),
            "second_stage_model.prompt_projection": (relu, size * SOFT),
            "second_stage_model.output_projection": (relu, size),
        }
        self.heads = {
            name: torch.nn.Sequential(linear(size, size), kind(), linear(size, out))
            for name, (kind, out) in heads.items()
        }

    def save(self, folder, **changes):
        tensors = {}
        names = ("first_stage_model.embedder", "second_stage_model.backbone")
        for name, stage in zip(names, self.stages, strict=True):
            stage.save_pretrained(folder / name)
            for key, value in load_file(folder / name / "model.safetensors").items():
                tensors[f"{name}.{key.removeprefix('model.')}"] = value
        for name, head in self.heads.items():
            for key, value in head.state_dict().items():
                tensors[f"{name}.{key}"] = value.numpy()
        save_file(tensors, folder / "model.safetensors")
        backbone = self.stages[0].config.to_dict()
        sizes = {"backbone_config": backbone, "transductive_corpus_size": C}
        raw = (V2 if self.modern else V1) | sizes
        if self.modern:
            raw["pool_instruction_end_id"] = END
        (folder / "config.json").write_text(json.dumps(raw | changes))
        return tensors

    def first(self, ids, mask):
        with torch.no_grad():
            hidden = self.stages[0](torch.tensor(ids), torch.tensor(mask).long())
            return self._head("first_stage_model.mlp", hidden[0], mask)

    def second(self, ids, mask, context):
        backbone, size = self.stages[1], len(context)
        with torch.no_grad():
            projection = self.heads["second_stage_model.prompt_projection"]
            soft = projection(torch.ones(64)).view(SOFT, 64)
            front = torch.cat([torch.tensor(context), soft]).expand(len(ids), -1, -1)
            text, front = self._rows(torch.tensor(ids), front)
            start = [0] * size if self.preset == "v1-train" else list(range(size))
            where = [*start, *range(C, C + SOFT + ids.shape[1])]
            real = np.concatenate([np.ones((len(ids), size + SOFT)), mask], axis=1)
            hidden = backbone(
                inputs_embeds=torch.cat([front, text], dim=1),
                attention_mask=torch.tensor(real).long(),
                position_ids=torch.tensor([where]),
            )[0][:, size + SOFT :]
            pooled = self._pooled(ids, mask)
            name = "second_stage_model.output_projection"
            return self._head(name, hidden, pooled, RESIDUAL[self.preset])

    def _rows(self, ids, front):
        """Text and front as `inputs_embeds`, to which NomicBERT adds its row itself."""
        embeddings = self.stages[1].embeddings
        if self.modern:
            return embeddings(ids), front
        words = embeddings.word_embeddings(ids)
        row = embeddings.token_type_embeddings.weight[0]
        return (
            (words, front - row) if self.preset == "v1-train" else (words + row, front)
        )

    def _pooled(self, ids, mask):
        keep = mask.copy()
        if self.modern:
            for row in range(len(ids)):
                ends = [i for i in np.flatnonzero(ids[row] == END) if i > 0]
                if ends:
                    keep[row, : ends[0] + 1] = False
        return keep

    def _head(self, name, hidden, keep, residual=False):
        rows = [h[torch.tensor(m)].mean(0) for h, m in zip(hidden, keep, strict=True)]
        pooled = torch.stack(rows)
        out = self.heads[name](pooled)
        return (out + pooled if residual else out).numpy()


@pytest.fixture(scope="module", params=["v1-train", "v1-hub", "v2"])
def case(request, tmp_path_factory):
    """(preset, oracle, folder, its tensors, our model)."""
    preset = request.param
    folder = tmp_path_factory.mktemp(preset)
    oracle = Published(preset)
    tensors = oracle.save(folder)
    return preset, oracle, folder, tensors, from_pretrained(folder, preset=preset)


def texts():
    ids, mask = padded(LENGTHS, 14)
    ids[ids == END] = END + 1
    ids[0, 3] = ids[0, 6] = END  # a prefix's colon, and another in the text
    ids[1, 0] = END  # none at the front
    return ids, mask


def test_first_stage(case):
    _, oracle, _, _, model = case
    ids, mask = texts()
    got = run(model, ids, mask, method="first_stage")
    assert np.abs(np.asarray(got) - oracle.first(ids, mask)).max() <= TOLERANCE


def test_second_stage(case):
    preset, oracle, _, _, model = case
    ids, mask = texts()
    context = oracle.first(*padded([6] * C, 6, seed=4))
    got = run(model, ids, mask, context, method="second_stage")
    expected = oracle.second(ids, mask, context)
    assert np.abs(np.asarray(got) - expected).max() <= TOLERANCE
    wide, wide_mask = np.pad(ids, ((0, 0), (9, 0))), np.pad(mask, ((0, 0), (9, 0)))
    left = run(model, wide[:1], wide_mask[:1], context, method="second_stage")
    assert np.abs(np.asarray(left) - expected[:1]).max() <= TOLERANCE
    order = np.random.default_rng(0).permutation(C)
    turned = run(model, ids, mask, context[order], method="second_stage")
    gap = np.abs(normalised(turned) - normalised(got)).max()
    assert gap <= 1e-5 if preset == "v1-train" else gap > 1e-4


def test_presets_differ(tmp_path):
    oracle = Published("v1-train")
    oracle.save(tmp_path)
    ids, mask = texts()
    context = oracle.first(*padded([6] * C, 6, seed=4))
    outs = [
        np.asarray(
            run(
                from_pretrained(tmp_path, preset=name),
                *(ids, mask, context),
                method="second_stage",
            )
        )
        for name in ("v1-train", "v1-hub")
    ]
    assert np.abs(outs[0] - outs[1]).max() > 1e-3


def test_weights_keep_the_published_names(case, tmp_path):
    _, _, _, tensors, model = case
    ours = to_state_dict(model)
    assert ours.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(ours[name], tensor)


def test_our_own_config_needs_no_preset(case, tmp_path):
    _, _, _, _, model = case
    save_file(to_state_dict(model), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config_dict(model)))
    again = from_pretrained(tmp_path)
    assert isinstance(again, ContextualEncoder)
    assert again.config == model.config
    ids, mask = texts()
    context = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    one, other = (
        np.asarray(run(m, ids, mask, context, method="second_stage"))
        for m in (model, again)
    )
    np.testing.assert_array_equal(one, other)


def test_keys_of_the_file_come_before_the_preset(tmp_path):
    Published("v1-hub").save(
        tmp_path, output_residual=True, context_rotary="none", token_type_readd=False
    )
    model = from_pretrained(tmp_path, preset="v1-hub")
    assert isinstance(model, ContextualEncoder)
    config = model.config
    assert config.output_residual
    assert config.context_rotary == "none"
    assert not config.token_type_readd


@pytest.mark.parametrize(
    ("name", "raw", "count"),
    [
        ("v1-train", V1, 281_140_992),
        ("v1-hub", V1, 281_140_992),
        ("v2", V2, 305_706_240),
    ],
)
def test_published_sizes_without_backbone_config(name, raw, count):
    whole = with_preset(raw, name, "config.json")
    config = contextual_config(whole, False, "config.json")
    first, second = stage_configs(whole, "config.json")

    def build():
        rngs = nnx.Rngs(0)
        stages = make_encoder(first, rngs), make_encoder(second, rngs)
        return ContextualEncoder(config, *stages, rngs)

    assert parameter_count(build) == count
    assert config.pool_instruction_end_id == (27 if name == "v2" else None)


def test_says_once_what_users_should_know(case, caplog):
    preset, _, folder, _, _ = case
    pretrained_module._warn_of.cache_clear()
    with caplog.at_level(logging.WARNING):
        from_pretrained(folder, preset=preset)
        from_pretrained(folder, preset=preset)
    said = [record.getMessage() for record in caplog.records]
    assert sum("no null vector" in line for line in said) == 1
    ordered = sum("depend on the order of the context" in line for line in said)
    assert ordered == (preset != "v1-train")


def test_without_a_null_vector_a_context_is_needed(case):
    _, _, _, _, model = case
    with pytest.raises(ValueError, match="trained without a null vector"):
        model.second_stage(*texts())


def test_refusals(case, tmp_path):
    preset, oracle, _, _, _ = case
    oracle.save(tmp_path, backbone_config=None)
    with pytest.raises(ValueError, match="say which it has, by preset='v1-train' or"):
        from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="preset 'v3' is not one of"):
        from_pretrained(tmp_path, preset="v3")  # type: ignore[arg-type]
    oracle.save(tmp_path, transductive_tokens_per_document=2)
    with pytest.raises(ValueError, match="tokens_per_document: 2"):
        from_pretrained(tmp_path, preset=preset)
    oracle.save(tmp_path)
    with pytest.raises(ValueError, match=r"keys missing: .* with preset='v1-train' or"):
        from_pretrained(tmp_path)
    other = "v1-train" if preset == "v2" else "v2"
    with pytest.raises(ValueError, match=f"preset '{other}' is a forward pass of"):
        from_pretrained(tmp_path, preset=other)  # type: ignore[arg-type]
    oracle.save(tmp_path, backbone_config="nomic")
    with pytest.raises(ValueError, match="backbone_config: 'nomic' is no JSON object"):
        from_pretrained(tmp_path, preset=preset)
    oracle.save(tmp_path, null_embedding=True)
    with pytest.raises(ValueError, match=r"missing: .*null_embedding"):
        from_pretrained(tmp_path, preset=preset)


def test_presets_are_for_contextual_models(minilm):
    with pytest.raises(ValueError, match="'v2' is for contextual models"):
        from_pretrained(minilm, preset="v2")


def test_after_instruction():
    ids = np.array([[5, 1, 7, 2, 7, 3], [7, 1, 2, 3, 4, 0], [0, 0, 7, 4, 7, 1]])
    real = ids != 0
    kept = np.asarray(after_instruction(ids, real, 7))
    assert kept.tolist() == [
        [False, False, False, True, True, True],
        [True, True, True, True, True, False],
        [False, False, False, False, False, True],
    ]
