"""Does an ONNX graph give our model's vectors? Asked of onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float, Int

from cdejax.embedding.embedder import Embedder, Kind
from cdejax.models.similarity import unit

TOLERANCE = 1e-4
"""Largest difference of two normalised vectors' coordinates."""
KINDS: tuple[Kind, ...] = ("query", "document")
_SENTENCE = "A text of several words, with a number (42), punctuation; and more. "
_TEXTS = (
    "contextual document embeddings",
    "def mean(values):\n    return sum(values) / len(values)",
    "",
    "ünïcödé – 文字",
    "who likes rain?",
    *(_SENTENCE * times for times in (1, 2, 5, 12, 25)),
)
_LAYOUTS = ((1, 0, False), (3, 5, False), (len(_TEXTS), 0, False), (2, 3, True))
"""Rows of a batch, padding beyond the longest, and whether it stands on the left."""


class OnnxEncoder:
    """An ONNX graph in onnxruntime, with a model's tokenizer, prompts and limit.

    Args:
      file: the graph.
      embedder: the model that the graph is of.
      threads: of onnxruntime (default: all cores).
    """

    def __init__(self, file: str | Path, embedder: Embedder, threads: int = 0):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self._embedder = embedder

    def encode(
        self,
        texts: Sequence[str],
        kind: Kind = "document",
        batch_size: int = 32,
        extra: int = 0,
        left: bool = False,
    ) -> Float[np.ndarray, "texts dim"]:
        """Normalised vectors, float32, in the order of the texts.

        Args:
          texts: strings; longer ones than the model's limit are cut.
          kind: which prompt stands before them.
          batch_size: texts of similar length run at once.
          extra: padding beyond the longest text of a batch, within the model's limit.
          left: pad on the left.
        """
        embedder = self._embedder
        prompt, limit = embedder.prompts[kind], embedder.max_length
        rows, _ = embedder.tokenizer.encode([prompt + text for text in texts], limit)
        out: list[np.ndarray] = [np.zeros(0)] * len(rows)
        order = np.argsort([len(row) for row in rows], kind="stable")
        for start in range(0, len(rows), batch_size):
            some = order[start : start + batch_size]
            width = min(len(rows[some[-1]]) + extra, limit)
            batch = [rows[index] for index in some]
            got = self.run(*pad(batch, width, embedder.tokenizer.pad_id, left))
            for index, vector in zip(some, got, strict=True):
                out[index] = vector
        return unit(np.stack(out)[:, : embedder.truncate_dim])

    def run(
        self,
        ids: Int[np.ndarray, "batch length"],
        mask: Int[np.ndarray, "batch length"],
    ) -> Float[np.ndarray, "batch dim"]:
        """The graph's `sentence_embedding` of token ids."""
        fed = {"input_ids": ids, "attention_mask": mask}
        return np.asarray(self._session.run(["sentence_embedding"], fed)[0])


def pad(
    rows: Sequence[Int[np.ndarray, " tokens"]], width: int, pad_id: int, left: bool
) -> tuple[Int[np.ndarray, "batch width"], Int[np.ndarray, "batch width"]]:
    """Ids and mask, int64, of token rows padded to one width."""
    ids = np.full((len(rows), width), pad_id, np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        at = slice(width - len(row), width) if left else slice(0, len(row))
        ids[index, at], mask[index, at] = row, 1
    return ids, mask


class Reference:
    """Fixed texts as queries and documents, with a model's own vectors of them."""

    def __init__(self, embedder: Embedder):
        self.embedder = embedder
        self.texts = {kind: _texts(embedder, kind) for kind in KINDS}
        with jax.default_matmul_precision("highest"):
            self.vectors = {
                kind: embedder.encode(texts, kind, normalize=True)
                for kind, texts in self.texts.items()
            }

    def difference(self, file: Path) -> float:
        """Largest difference between a graph's normalised vectors and the model's.

        In batches of one, three and all, padded by nothing, by more than is needed,
        and on the left.

        Raises:
          ValueError: the difference is above 1e-4, or not a number.
        """
        encoder = OnnxEncoder(file, self.embedder)
        worst = 0.0
        for kind, texts in self.texts.items():
            for size, extra, left in _LAYOUTS:
                theirs = encoder.encode(texts, kind, size, extra, left)
                difference = float(np.abs(self.vectors[kind] - theirs).max())
                if not difference <= TOLERANCE:
                    side = "left" if left else "right"
                    raise ValueError(
                        f"{self.embedder.name}: {kind} vectors of its ONNX graph "
                        f"differ by {difference:.1e} from the model's, more than "
                        f"{TOLERANCE:.0e} (batches of {size}, padded on the {side}); "
                        "no graph was kept"
                    )
                worst = max(worst, difference)
        return worst

    def cosines(self, file: Path) -> Float[np.ndarray, " texts"]:
        """Cosine of a graph's vector to the model's, for every text."""
        encoder = OnnxEncoder(file, self.embedder)
        found = [
            (self.vectors[kind] * encoder.encode(texts, kind)).sum(1)
            for kind, texts in self.texts.items()
        ]
        return np.concatenate(found)


def _texts(embedder: Embedder, kind: Kind) -> list[str]:
    """The fixed texts that the model reads whole: a graph cuts nothing."""
    given = [embedder.prompts[kind] + text for text in _TEXTS]
    _, cut = embedder.tokenizer.encode(given, embedder.max_length)
    return [text for text, is_cut in zip(_TEXTS, cut, strict=True) if not is_cut]
