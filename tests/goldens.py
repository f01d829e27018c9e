"""What each stage writes for a small fixed input: `python -m tests.goldens` renews it.

The input is made by formulas, without random numbers, so that it is the same with every
version of NumPy. Values are kept in `tests/golden/CASE.json`, each with the version of
the stage that wrote it (`cdejax.storage.artifacts.VERSIONS`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from cdejax.config import Config
from cdejax.config.load import load_config
from cdejax.models import Bert, BertConfig
from cdejax.models.pretrained.contextual_config import encoder_config_dict
from cdejax.models.pretrained.weights import to_state_dict
from cdejax.recipe.stages import Stages
from cdejax.storage.artifacts import VERSIONS, read_manifest

FOLDER = Path(__file__).parent / "golden"
COMMAND = "python -m tests.goldens"
TOPICS = (
    "pasta onion garlic oven butter plate",
    "anchor tide harbour mast rudder deck",
    "photon orbit field charge lattice spin",
    "violin chord tempo melody rhythm bass",
)
SIZES = BertConfig(
    vocab_size=120,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)


def write_pairs(path: Path) -> None:
    """Forty pairs on four topics, in two domains; some repeat, some have negatives."""
    rows = []
    for i in range(40):
        words, others = (TOPICS[(i + j) % 4].split() for j in (0, 1))
        first, second = words[i % 6], words[(i * i + 1) % 6]
        rows.append(
            {
                "query": f"what about {first} {second if i % 5 else ''}".strip(),
                "document": f"{words[(i + 2) % 6]} {first} number {i % 33} {second}",
                "negatives": [f"{others[i % 6]} {first}"] if i % 3 == 0 else [],
                "domain": ("home", "world")[i % 2],
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_encoder(folder: Path) -> None:
    """A small BERT with its vocabulary, in a Hugging Face folder."""
    folder.mkdir()
    words = [*" ".join(TOPICS).split(), "what", "about", "number", "query", ":"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    digits = [f"{mark}{n}" for mark in ("", "##") for n in range(10)]
    vocabulary = [*special, *words, *digits]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    config = encoder_config_dict(SIZES)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for i, (name, old) in enumerate(to_state_dict(Bert(SIZES, nnx.Rngs(0))).items()):
        wave = np.sin(0.7 * (i + 1) * (1 + np.arange(old.size))).reshape(old.shape)
        scale = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        tensors[name] = (scale + 0.4 * wave).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")


def recipe(folder: Path, **sections: dict[str, Any]) -> Config:
    """The recipe that all cases change."""
    columns = {"domain": "domain", "negatives": "negatives"}
    sources = [{"path": str(folder / "pairs.jsonl"), "columns": columns}]
    base: dict[str, Any] = {
        "name": "golden",
        "output": str(folder / "runs"),
        "seed": 3,
        "data": {"sources": sources, "heldout_fraction": 0.2},
        "tokens": {
            "query": {"prefix": "query: ", "max_length": 7},
            "document": {"max_length": 8},
        },
        "vectors": {
            "method": "file",
            **{side: str(folder / f"{side}.npy") for side in ("queries", "documents")},
        },
        "clusters": {"cluster_size": 4, "niter": 10, "nredo": 2, "backend": "faiss"},
        "plan": {"batch_size": 8, "epochs": 2},
        "model": {"encoder": str(folder / "encoder"), "context_size": 4},
        "training": {"learning_rate": 1e-2, "temperature": 0.1, "chunk_tokens": 64},
        "evaluation": {"bootstrap": 50},
    }
    for name, values in sections.items():
        base[name] = {**base[name], **values}
    empty = folder / "recipe.yaml"
    empty.write_text("name: golden\n")
    return load_config(empty, base)


def write_vectors(folder: Path) -> None:
    """Vectors of the user's own: each topic a direction, far from the others."""
    from cdejax.data.pairs import Pairs

    pairs = Pairs.open(Stages(recipe(folder)).pairs())
    for side in ("queries", "documents"):
        texts = getattr(pairs, side)
        table = np.zeros((len(texts), 6), np.float32)
        for row, text in enumerate(texts):
            words = set(text.split())
            topic = max(range(4), key=lambda t: len(words & set(TOPICS[t].split())))
            table[row, topic] = 1
            table[row, 4:] = 0.2 * np.sin([row + 1, 2.5 * row])
        np.save(folder / f"{side}.npy", table)


def write_world(folder: Path) -> Path:
    """All inputs of all cases."""
    write_pairs(folder / "pairs.jsonl")
    write_encoder(folder / "encoder")
    write_vectors(folder)
    return folder


def _pairs(folder: Path) -> dict[str, Any]:
    from cdejax.data.pairs import Pairs, PairTable

    place = Stages(recipe(folder)).pairs()
    pairs = Pairs.open(place)

    def rows(table: PairTable) -> list[Any]:
        columns = table.query, table.document, table.domain, table.negatives
        return [list(map(_plain, row)) for row in zip(*columns, strict=True)]

    counts = read_manifest(place)["counts"]
    del counts["sources"]  # they name the file
    return {
        "counts": counts,
        "queries": list(pairs.queries),
        "documents": list(pairs.documents),
        "query_content": pairs.query_content,
        "document_content": pairs.document_content,
        "train": rows(pairs.train),
        "heldout": rows(pairs.heldout),
    }


def _tfds(folder: Path) -> dict[str, Any]:
    from cdejax.config import SourceConfig
    from cdejax.data.rows import Row
    from cdejax.data.sources import read_source
    from cdejax.data.write_tfds import tfds_stage

    config = recipe(folder)
    place = tfds_stage(config, folder / "runs")
    columns = config.data.sources[0].columns
    source = SourceConfig(f"tfds:{place / 'pairs' / '1.0.0'}", columns)
    rows = [row.value for row in read_source(source).rows if isinstance(row, Row)]
    counts = read_manifest(place)["counts"]
    del counts["bytes"]
    return {"counts": counts, "rows": rows[:8]}


def _tokens(folder: Path) -> dict[str, Any]:
    from cdejax.data.tokens import Tokens

    place = Stages(recipe(folder)).tokens()
    tokens = Tokens.open(place)
    return {
        "counts": read_manifest(place)["counts"],
        "queries": list(tokens.queries),
        "documents": list(tokens.documents),
    }


def _vectors(method: str) -> Callable[[Path], dict[str, Any]]:
    def values(folder: Path) -> dict[str, Any]:
        from cdejax.clustering.vectors import Vectors

        changes: dict[str, Any] = {"method": method}
        changes |= {"dim": 5} if method == "tfidf" else {}
        changes |= {"encoder": str(folder / "encoder")} if method == "encoder" else {}
        vectors = Vectors.open(Stages(recipe(folder, vectors=changes)).vectors())
        # a singular vector's sign is arbitrary, that of products is not
        return {"products": vectors.queries[:6] @ vectors.documents[:12].T}

    return values


def _clusters(backend: str) -> Callable[[Path], dict[str, Any]]:
    def values(folder: Path) -> dict[str, Any]:
        from cdejax.clustering.kmeans import Clusters

        config = recipe(folder, clusters={"backend": backend})
        clusters = Clusters.open(Stages(config).clusters())
        return {
            "cluster": clusters.cluster,
            "domain": clusters.cluster_domain,
            "centroid": clusters.centroid,
        }

    return values


def _plan(kind: str) -> Callable[[Path], dict[str, Any]]:
    def values(folder: Path) -> dict[str, Any]:
        from cdejax.clustering.plan import Plan

        place = Stages(recipe(folder, plan={"kind": kind})).plan()
        counts = read_manifest(place)["counts"]
        return {"counts": counts, "epochs": list(Plan.open(place).epochs)}

    return values


def _shapes(kind: str) -> Callable[[Path], dict[str, Any]]:
    def values(folder: Path) -> dict[str, Any]:
        from cdejax.training.batch import BatchSettings
        from cdejax.training.shapes import shapes_stage

        settings = BatchSettings(
            seed=3,
            devices=2,
            chunk_tokens=64,
            context_size=4 if kind == "contextual" else 0,
            soft_tokens=8,
            negatives_per_query=1,
            max_widths=2,
            packed=True,
        )
        place = Stages(recipe(folder))
        made = shapes_stage(place.inputs(), settings, place.folder)
        counts = read_manifest(made)["counts"]
        return {"counts": counts, **json.loads((made / "shapes.json").read_text())}

    return values


def _hardness(folder: Path) -> dict[str, Any]:
    place = Stages(recipe(folder)).hardness()
    return json.loads((place / "hardness.json").read_text())


def _training(kind: str) -> Callable[[Path], dict[str, Any]]:
    def values(folder: Path) -> dict[str, Any]:
        from cdejax.training.loop import train
        from cdejax.training.metrics import read_metrics

        changes = {"model": {"kind": kind}, "plan": {"epochs": 1}}
        config = recipe(folder, training={"negatives_per_query": 1}, **changes)
        inputs, one = Stages(config).inputs(), jax.devices()[:1]
        lines = read_metrics(train(config, inputs, folder / kind, devices=one))
        names = ("loss", "accuracy", "hardness", "masked_share", "gradient_norm")
        lines = [line for line in lines if "loss" in line]
        return {name: [line[name] for line in lines] for name in names}

    return values


def _evaluation(folder: Path) -> dict[str, Any]:
    from cdejax.recipe import scores

    config = recipe(folder)
    collections = scores._collections(config)
    systems = [s for s in scores.systems_of(config) if s.kind != "trained"]
    found = [r for system in systems for r in scores._results(system, collections)]
    return {result.system: result.scores["nDCG@10"] for result in found}


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "pairs": _pairs,
    "tfds": _tfds,
    "tokens": _tokens,
    **{f"vectors-{m}": _vectors(m) for m in ("tfidf", "encoder", "file")},
    **{f"clusters-{b}": _clusters(b) for b in ("faiss", "jax")},
    **{f"plan-{kind}": _plan(kind) for kind in ("clustered", "shuffled", "by_domain")},
    **{f"shapes-{kind}": _shapes(kind) for kind in ("biencoder", "contextual")},
    "hardness": _hardness,
    **{f"training-{kind}": _training(kind) for kind in ("biencoder", "contextual")},
    "evaluation": _evaluation,
}
"""`STAGE` or `STAGE-WAY`, and what it writes as nested lists and mappings."""


def stage_of(case: str) -> str:
    """The stage that a case runs."""
    return case.partition("-")[0]


def output(case: str, world: Path) -> dict[str, Any]:
    """A case's output as JSON values, floats to seven digits."""
    return _plain(CASES[case](world))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    return float(f"{value:.7g}") if isinstance(value, float) else value


def renew() -> None:
    """Writes all cases anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        world = write_world(Path(place))
        for case in CASES:
            held = {"version": VERSIONS[stage_of(case)], **output(case, world)}
            lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in held.items())
            text = "{\n" + ",\n".join(lines) + "\n}\n"
            (FOLDER / f"{case}.json").write_text(text)


if __name__ == "__main__":
    renew()
