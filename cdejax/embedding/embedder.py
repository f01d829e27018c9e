"""Texts to vectors, with a model from a folder or from memory."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike, Float, Int

from cdejax.counts import check_count
from cdejax.data.given_texts import as_rows, check_texts
from cdejax.data.ragged import Ragged
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.choice import Choice
from cdejax.embedding.program import Block, Call, program
from cdejax.embedding.widths import context_arrays
from cdejax.folders.marker import warn_of_changes
from cdejax.folders.paths import resolve_folder
from cdejax.models import BakedEncoder, BiEncoder, ContextualEncoder, from_pretrained
from cdejax.models.context import Context, Fill, Method
from cdejax.models.modules import Chain
from cdejax.models.pretrained.load import config_dict
from cdejax.models.pretrained.presets import PresetName
from cdejax.models.pretrained.settings import read_settings, transformer_folder
from cdejax.models.similarity import Similarity, check_similarity, similarity, unit
from cdejax.runtime.mesh import local_mesh, same
from cdejax.runtime.platforms import usual_dtype
from cdejax.runtime.progress import progress
from cdejax.runtime.streaming import ahead, fetched, spans
from cdejax.storage.artifacts import fingerprint

log = logging.getLogger(__name__)
_TOKENIZER = threading.Lock()
"""A tokenizer holds the length at which it cuts, so one call at a time."""
BLOCK = 64
"""Full batches sorted by length at once."""

Kind = str
"""Name of a prompt: `query`, `document`, or another of the model's."""


class Embedder:
    """A biencoder or contextual encoder with its tokenizer, prompts and length limit.

    Texts are sorted by length into full batches of a few widths, so that little is
    padded and little is compiled. Batches are split over all devices of the process,
    which work on one while the host tokenises and pads the next. But for rounding, a
    vector does not depend on the order of the texts, on which others there are, or on
    the number of devices.

    Args:
      model: the model; only its structure and parameters are kept.
      tokenizer: the tokenizer that the model was trained with.
      prompts: text before every `query`, every `document` (missing: none) and texts
        of other kinds. Context texts are read as documents.
      max_length: longest text in tokens; what is cut is logged.
      context_length: the same for texts of the context (default: `max_length`).
      name: what to call the model in reports.
      default_prompt_name: kept for exports; `encode` is told which prompt to use.
      similarity_fn_name: how the model's vectors are to be compared.
      truncate_dim: keep the first values of every vector only (Matryoshka).
      normalized: the model's vectors have length 1 before they are truncated, as
        behind a last Normalize of a sentence-transformers folder.
      baked: the context of a model that has one baked in.

    Raises:
      ValueError: the tokenizer has more tokens than the model, or a setting has no
        meaning.
    """

    def __init__(
        self,
        model: BiEncoder | ContextualEncoder,
        tokenizer: Tokenizer,
        *,
        prompts: Mapping[str, str] | None = None,
        max_length: int = 512,
        context_length: int | None = None,
        name: str = "model",
        default_prompt_name: str | None = None,
        similarity_fn_name: Similarity = "cosine",
        truncate_dim: int | None = None,
        normalized: bool = False,
        baked: Context | None = None,
    ):
        contextual = isinstance(model, ContextualEncoder)
        encoder = model.backbone if contextual else model.encoder
        if tokenizer.vocab_size > encoder.config.vocab_size:
            raise ValueError(
                f"{name}: the tokenizer has {tokenizer.vocab_size} tokens, the model "
                f"{encoder.config.vocab_size}; use the tokenizer it was trained with"
            )
        if truncate_dim is not None and truncate_dim < 1:
            raise ValueError(f"truncate_dim {truncate_dim}: give 1 or more")
        self.tokenizer = tokenizer
        self.prompts = {"query": "", "document": "", **(prompts or {})}
        self.max_length = max_length
        self.context_length = context_length or max_length
        self.name = name
        self.default_prompt_name = default_prompt_name
        self.similarity_fn_name: Similarity = check_similarity(similarity_fn_name, name)
        self.truncate_dim = truncate_dim
        self.normalized = normalized
        self._size: int = model.dim
        self.dim = min(model.dim, truncate_dim or model.dim)
        """Size of an embedding."""
        self._pools_prompts = contextual or model.include_prompt
        alone = isinstance(model, (BiEncoder, BakedEncoder))
        self.context_size = None if alone else model.config.context_size
        """Context texts at most, C; None for a model that takes no context."""
        self.baked = baked
        """The context that is part of the model, if one is."""
        self.dtype = str(encoder.dtype)
        """Activations."""
        self._graph, params = nnx.split(model)
        self.params: Any = jax.tree.map(jnp.asarray, params)

    def with_params(self, params: Any) -> Embedder:
        """The same embedder with other parameters (nothing is compiled anew).

        Args:
          params: the state of `nnx.split(model)`, as training holds it.
        """
        other = copy.copy(self)
        other.params = params
        for cached in ("hash", "_everywhere"):
            other.__dict__.pop(cached, None)
        return other

    @property
    def model(self) -> BiEncoder | ContextualEncoder:
        """The model, with the parameters."""
        return nnx.merge(self._graph, self.params)

    @functools.cached_property
    def hash(self) -> str:
        """Hash (16 hex digits) of the parameters, as float32."""
        digest = hashlib.blake2b(digest_size=8)
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.params):
            digest.update(f"{jax.tree_util.keystr(path)}{leaf.shape}".encode())
            digest.update(np.ascontiguousarray(leaf, np.float32).tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def settings_hash(self) -> str:
        """Hash (16 hex digits) of what decides documents' vectors beside parameters.

        Of the forward pass, the tokenizer, the document prompt and the length limit of
        a context's texts.
        """
        with _TOKENIZER:
            tokenizer = self.tokenizer.hash
        read = self.prompts["document"], self.context_length
        return fingerprint([_forward(self.model), tokenizer, *read])

    def encode(
        self,
        texts: Sequence[str],
        kind: Kind = "document",
        context: Context | None = None,
        batch_size: int = 128,
        normalize: bool | None = None,
        show_progress: bool = False,
    ) -> Float[np.ndarray, "texts dim"]:
        """Vectors of texts, float32, in the order of the texts.

        Args:
          texts: a list of strings, or another sequence of rows, as a pandas Series; an
            empty string is allowed.
          kind: which prompt stands before them: `query`, `document` or any other name
            in `prompts`.
          context: a contextual model needs one, from `context` or `Context.load`.
          batch_size: texts encoded at once on a device.
          normalize: to length 1, after truncation (default: for cosine; for other
            similarity functions vectors stay as the model gives them).
          show_progress: a bar with rate and remaining time.

        Raises:
          ValueError: a text is no string (named by index), an unknown kind, a context
            that is missing, not wanted or another model's, or a vector that is not
            finite.
        """
        texts = check_texts(texts)
        out = np.empty((len(texts), self.dim), np.float32)
        with progress(f"encode {kind}", len(texts), show=show_progress) as advance:
            done = 0
            for block in self.encode_blocks(
                texts, kind, context, batch_size, normalize, advance=advance
            ):
                out[done : done + len(block)] = block
                done += len(block)
        return out

    def encode_blocks(
        self,
        texts: Sequence[str],
        kind: Kind = "document",
        context: Context | None = None,
        batch_size: int = 128,
        normalize: bool | None = None,
        rows: range | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> Iterator[Float[np.ndarray, "block dim"]]:
        """The vectors of `encode` in consecutive blocks, for more than memory holds.

        Devices go on with later texts while a block is used.

        Args:
          texts: as for `encode`; they are read block by block.
          kind: as for `encode`.
          context: as for `encode`.
          batch_size: as for `encode`.
          normalize: as for `encode`.
          rows: consecutive rows of `texts` to encode (default: all).
          advance: called with the number of vectors that have become ready.

        Raises:
          ValueError: as `encode`.
        """
        texts = as_rows(texts)
        stage, read = "alone", None
        if (checked := self.check_context(context)) is not None:
            most = self.context_size or 0
            stage, read = "second", context_arrays(checked, most, local_mesh())
        if normalize is None:
            normalize = self.similarity_fn_name == "cosine"

        def finish(vectors: np.ndarray) -> np.ndarray:
            vectors = unit(vectors) if self.normalized else vectors
            vectors = vectors[:, : self.truncate_dim]
            return unit(vectors) if normalize else vectors

        job = _Job(kind, stage, self.max_length, batch_size, read, finish, self.dim)
        rows = range(len(texts)) if rows is None else rows
        yield from self._blocks(job, texts, rows, advance)

    def similarity(
        self,
        one: Float[np.ndarray, "rows dim"],
        other: Float[np.ndarray, "columns dim"],
    ) -> Float[np.ndarray, "rows columns"]:
        """Scores of all pairs of vectors by the model's similarity function.

        Cosine or dot product; for `euclidean` and `manhattan` minus the distance.
        """
        return similarity(one, other, self.similarity_fn_name)

    def context(
        self,
        texts: Sequence[str],
        size: int | None = None,
        seed: int = 0,
        batch_size: int = 128,
        show_progress: bool = False,
        *,
        method: Method = "random",
        candidates: int | None = None,
        fill: Fill = "mask",
    ) -> Context:
        """Chooses texts and embeds them with the first stage.

        Args:
          texts: the corpus, or any part of it; encoded as documents.
          size: texts to choose, each once (default: C, the model's size); with fewer
            texts than that, all are taken. 0 gives the null context.
          seed: of everything drawn.
          batch_size: texts encoded at once on a device.
          show_progress: a bar with rate and remaining time.
          method: `random`; or, by their first-stage vectors, `kmeans++` (texts far
            apart) or `medoids` (the middle of each of `size` clusters).
          candidates: texts that the last two look at, drawn by the seed (default: 8 for
            each text to choose).
          fill: what becomes of places without a text: `mask` keeps them out of
            attention, `resample` draws chosen texts again, with replacement, up to C.

        Raises:
          ValueError: the model is a biencoder, `size` is not in 0…C, another argument
            is wrong, or there is no text to draw.
        """
        if self.context_size is None:
            raise ValueError(self._takes_none)
        texts = as_rows(texts)
        choice = Choice(self.context_size, size, seed, method, candidates, fill)
        rows = choice.candidates_of(texts)
        chosen = [texts[int(row)] for row in rows]
        limits = self.context_length, batch_size
        job = _Job("document", "first", *limits, None, lambda x: x, self._size)
        with progress("encode context", len(rows), show=show_progress) as advance:
            blocks = self._blocks(job, chosen, range(len(rows)), advance)
            vectors = np.concatenate([np.zeros((0, self._size), np.float32), *blocks])
        context = choice.context(texts, rows, vectors, self.hash)
        return dataclasses.replace(context, settings=self.settings_hash)

    def check_context(self, context: Context | None) -> Context | None:
        """The context that texts are to be encoded with; None if none is to be given.

        Raises:
          ValueError: the context is missing, not wanted or another model's.
        """
        if self.context_size is None:
            if context is not None:
                raise ValueError(self._takes_none)
            return None
        if not isinstance(context, Context):
            given = "none" if context is None else f"a {type(context).__name__}"
            raise ValueError(
                f"{self.name} is contextual and needs a Context ({given} was given): "
                "make one from the corpus with `context = embedder.context(texts)` and "
                "pass it as `encode(…, context=context)`; without a corpus, "
                "`embedder.context([], size=0)` gives the null context"
            )
        if context.model != self.hash:
            raise ValueError(
                f"the context was made with other weights ({context.model}) than "
                f"{self.name}'s ({self.hash}); make it again with this model"
            )
        if context.settings not in (None, self.settings_hash):
            raise ValueError(
                f"the context was made with other settings than {self.name}'s: its "
                "forward pass, tokenizer, document prompt or length limit has changed; "
                "make it again with this model"
            )
        places, *size = context.vectors.shape
        if places > self.context_size or size != [self._size]:
            raise ValueError(
                f"the context has {places} vectors of size {size}, but {self.name} "
                f"reads {self.context_size} of size {self._size}; make it again"
            )
        return context

    @property
    def _takes_none(self) -> str:
        """Why the model takes no context."""
        if not isinstance(self.model, BakedEncoder):
            return f"{self.name} is a biencoder; it takes no context"
        which = "a context" if self.baked is None else f"context {self.baked.hash}"
        return (
            f"{self.name} has {which} baked in and takes no other: leave `context` "
            "out, or load the export that it was baked from"
        )

    @functools.cached_property
    def _everywhere(self) -> Any:
        """The parameters on every device of the process."""
        local = jax.tree.map(
            # what training spreads over several processes, each of them holds whole
            lambda x: x if x.is_fully_addressable else x.addressable_data(0),
            self.params,
        )
        return jax.device_put(local, same(local_mesh()))

    def _blocks(
        self,
        job: _Job,
        texts: Sequence[str],
        rows: range,
        advance: Callable[[int], None],
    ) -> Iterator[Float[np.ndarray, "block dim"]]:
        """Tokenises a block ahead, encodes batch by batch, restores the order."""
        check_count("batch_size", job.batch_size)
        if job.kind not in list(self.prompts):
            known = sorted(self.prompts)
            raise ValueError(f"kind {job.kind!r}: choose one of {known}")
        mesh = local_mesh()
        most = BLOCK * job.batch_size * mesh.size
        cuts = 0

        def tokenize(span: range) -> Block:
            nonlocal cuts
            own = rows[span.start : span.stop]
            tokens, cut = self._tokenize([texts[i] for i in own], job)
            cuts += cut
            out = np.empty((len(tokens), job.size), np.float32)
            return Block(own.start, tokens, out, len(tokens))

        skip = self._skip(job.kind, job.max_length)
        fixed = self._everywhere, *jax.device_put((job.context, skip), same(mesh))
        limits = job.batch_size, job.max_length, self.tokenizer.pad_id, len(rows)
        call = Call(program(self._graph, job.stage, mesh), fixed, *limits)
        blocks = ahead(tokenize, spans(len(rows), most))
        for (block, batch), vectors in fetched(call.started(blocks)):
            vectors = vectors[: len(batch.rows)]
            self._check_finite(vectors, batch.rows + block.first)
            block.out[batch.rows] = job.finish(vectors)
            advance(len(batch.rows))
            block.left -= len(batch.rows)
            if not block.left:
                yield block.out
        if cuts:
            log.info("%d of %d texts cut at %d tokens", cuts, len(rows), job.max_length)

    def _check_finite(
        self, vectors: Float[np.ndarray, "rows dim"], rows: Int[np.ndarray, "rows"]
    ) -> None:
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise ValueError(
                f"texts[{rows[finite.argmin()]}]: {self.name} gives a vector that is "
                f"not finite (activations {self.dtype}); check its weights"
            )

    def _skip(self, kind: str, max_length: int) -> Int[np.ndarray, ""] | None:
        """Tokens of the prompt that are not pooled, as sentence-transformers counts.

        Those of the prompt alone with its special tokens, but for one at the end.
        """
        if self._pools_prompts or not self.prompts[kind]:
            return None
        with _TOKENIZER:
            (row,), _ = self.tokenizer.encode([self.prompts[kind]], max_length)
        return np.array(len(row) - (int(row[-1]) in self.tokenizer.special_ids))

    def _tokenize(self, texts: Sequence[str], job: _Job) -> tuple[Ragged, int]:
        """Token rows, and how many were cut."""
        prompt = self.prompts[job.kind]
        whole = [prompt + text for text in texts] if prompt else texts
        with _TOKENIZER:
            rows, cut = self.tokenizer.encode(whole, job.max_length)
        return Ragged.from_rows(rows), int(cut.sum())


def _forward(model: BiEncoder | ContextualEncoder) -> list[Any]:
    """What a model computes with its parameters, as JSON values."""
    if isinstance(model, ContextualEncoder):
        return [config_dict(model)]
    head = model.head.modules if isinstance(model.head, Chain) else [model.head]
    modules = [
        [type(m).__name__, getattr(m, "activation", ""), getattr(m, "residual", False)]
        for m in head
    ]
    return [config_dict(model), model.pooling, model.include_prompt, modules]


@dataclass(frozen=True)
class _Job:
    """What is done with every text."""

    kind: Kind
    stage: str
    max_length: int
    batch_size: int
    context: Any
    finish: Callable[[np.ndarray], np.ndarray]
    """From the model's vectors to those that are asked for."""
    size: int
    """Of a vector that is asked for."""


def _activations(dtype: DTypeLike) -> Any:
    """A dtype of activations; ValueError for what JAX computes in another one."""
    with contextlib.suppress(TypeError):
        if (found := jnp.dtype(dtype)) in (jnp.float32, jnp.bfloat16, jnp.float16):
            return found
    raise ValueError(f"dtype {dtype!r}: give float32, bfloat16 or float16")


def load(
    folder: str | Path,
    *,
    dtype: DTypeLike | None = None,
    preset: PresetName | None = None,
    tokenizer: str | Path | None = None,
) -> Embedder:
    """Loads an exported or Hugging Face folder.

    Files of an export that changed since are named in a warning (see `digests`).

    Args:
      folder: a folder, `package:MODULE/FOLDER` of an installed package, or
        `hf:OWNER/NAME`, which is fetched from the hub (nothing else is).
      dtype: of the activations (default: bfloat16 on GPU and TPU, float32 on CPU).
      preset: forward pass of a published CDE checkpoint (see `from_pretrained`).
      tokenizer: folder with the tokenizer, where the model's has none, as published
        CDE checkpoints.

    Raises:
      ValueError: the folder, its weights, its tokenizer or its settings are missing or
        do not fit.
    """
    path = resolve_folder(folder)
    warn_of_changes(path)
    settings = read_settings(path)
    chosen = usual_dtype(local_mesh()) if dtype is None else _activations(dtype)
    model = from_pretrained(path, dtype=chosen, preset=preset)
    place = transformer_folder(path) if tokenizer is None else resolve_folder(tokenizer)
    baked = Context.load(path) if isinstance(model, BakedEncoder) else None
    return Embedder(
        model, Tokenizer.load(place), name=str(folder), baked=baked, **settings
    )
