"""Settings of sentence-transformers' modules that are unknown or make no sense."""

import json
import logging
import re

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from cdejax.models import (
    Bert,
    BertConfig,
    config_dict,
    from_pretrained,
    to_state_dict,
)


def pooled(folder, kind="Pooling", **settings):
    """A folder whose pooling, or LayerNorm, has some settings."""
    model = Bert(BertConfig(40, 16, 1, 2, 24), nnx.Rngs(0))
    save_file(to_state_dict(model), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_dict(model)))
    kinds = ["Transformer", "Pooling", "LayerNorm"]
    listed = [
        {
            "type": f"sentence_transformers.models.{name}",
            "path": f"{i}_{name}" if i else "",
        }
        for i, name in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    usual = {
        "Pooling": {"pooling_mode_mean_tokens": True},
        "LayerNorm": {"dimension": 16},
    }
    usual[kind] |= settings
    for i, name in enumerate(kinds[1:], 1):
        (folder / f"{i}_{name}").mkdir()
        (folder / f"{i}_{name}" / "config.json").write_text(json.dumps(usual[name]))
    zeros = np.zeros(16, np.float32)
    weights = {"norm.weight": zeros, "norm.bias": zeros}
    save_file(weights, folder / "2_LayerNorm" / "model.safetensors")
    return folder


@pytest.mark.parametrize("others", [{}, {"pooling_mode": "mean"}])
def test_unknown_poolings_are_refused_by_name(others, tmp_path):
    flag = {"pooling_mode_frobnicate_tokens": True}
    said = r"1_Pooling/config.json: pooling_mode_frobnicate_tokens is True, a pooling "
    with pytest.raises(ValueError, match=f"{said}.* computes pooling_mode_cls_token, "):
        from_pretrained(pooled(tmp_path, **flag, **others))


def test_flags_are_flags(tmp_path):
    with pytest.raises(ValueError, match="max_tokens is 'false', not true or false"):
        from_pretrained(pooled(tmp_path, pooling_mode_max_tokens="false"))


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("Pooling", {"pooling_mode_frobnicate_tokens": False, "more": None}, ""),
        ("Pooling", {"include_prompt": True, "embedding_dimension": 16}, ""),
        ("Pooling", {"window": 4, "note": ""}, "ignored: window: 4"),
        ("LayerNorm", {"eps": 0.1}, "ignored: eps: 0.1"),
        ("LayerNorm", {"module_input_name": "sentence_embedding"}, ""),
    ],
)
def test_unknown_settings_are_ignored_aloud(kind, settings, said, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "cdejax"):
        from_pretrained(pooled(tmp_path, kind, **settings))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == bool(said)
    assert all(m.endswith(said) and f"_{kind}/config.json" in m for m in messages)


@pytest.mark.parametrize("size", [True, 16.0, -16, None])
def test_sizes_of_heads_are_checked(size, tmp_path):
    said = f"2_LayerNorm/config.json: dimension is {size}, not a whole number"
    with pytest.raises(ValueError, match=re.escape(said)):
        from_pretrained(pooled(tmp_path, "LayerNorm", dimension=size))
