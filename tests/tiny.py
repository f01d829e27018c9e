"""A recipe small enough to run whole in a test: real words, a random tiny BERT."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml
from flax import nnx

from cdejax.export.folder import export_model
from cdejax.models import Bert, BertConfig, BiEncoder

TOPICS = {
    "cooking": "boil simmer pasta onion garlic oven roast butter salt knife plate",
    "sailing": "mast rudder anchor harbour tide wind knot deck keel jib crew",
    "physics": "photon mass spin field orbit decay charge lattice phase wave flux",
}


def write_pairs(path: Path, rows: int = 300, seed: int = 0) -> Path:
    """Pairs whose document repeats the query's rare words among its topic's."""
    rng = np.random.default_rng(seed)
    with open(path, "w", encoding="utf-8") as stream:
        for number in range(rows):
            name = list(TOPICS)[number % len(TOPICS)]
            words = TOPICS[name].split()
            rare = f"n{rng.integers(40)} m{rng.integers(40)} {rng.choice(words)}"
            noise = " ".join(rng.choice(words, rng.integers(4, 12)))
            row = {
                "query": f"what about {rare}",
                "document": f"{noise} {rare} {number}",
            }
            stream.write(json.dumps({**row, "domain": name}) + "\n")
    return path


def write_encoder(folder: Path, tokenizer: Path, positions: int = 64) -> Path:
    """A random one-layer BERT with MiniLM's tokenizer."""
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
    )
    model = BiEncoder(Bert(config, nnx.Rngs(0)))
    prompts = {"query": "", "document": ""}
    return export_model(model, tokenizer, folder, prompts=prompts, max_length=32)


def write_recipe(folder: Path, tokenizer: Path, **changes: dict) -> Path:
    """Everything in one folder; `changes` are sections of the recipe."""
    encoder = write_encoder(folder / "encoder", tokenizer)
    pairs = write_pairs(folder / "pairs.jsonl")
    recipe = {
        "name": "tiny",
        "output": str(folder / "runs"),
        "data": {
            "sources": [
                {
                    "path": str(pairs),
                    "columns": {"domain": "domain"},
                    "license": "cc0-1.0",
                }
            ],
            "heldout_fraction": 0.2,
        },
        "tokens": {"query": {"max_length": 16}, "document": {"max_length": 24}},
        "vectors": {"dim": 16},
        "clusters": {"cluster_size": 8, "niter": 10, "nredo": 1},
        "plan": {"batch_size": 16, "epochs": 2},
        "model": {"encoder": str(encoder), "context_size": 8},
        "training": {
            "learning_rate": 1e-3,
            "temperature": 0.05,
            "chunk_tokens": 256,
            "cpu_activations": 0,  # one copy of the encoder less to compile
            "checkpoint_every": 4,
            "max_widths": 1,
        },
        "evaluation": {"bootstrap": 200},
    }
    for section, values in changes.items():
        old = recipe.get(section)
        recipe[section] = {**old, **values} if isinstance(old, dict) else values
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path
