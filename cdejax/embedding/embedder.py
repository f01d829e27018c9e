"""Encodes texts with a biencoder or contextual encoder."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from cdejax.counts import check_count
from cdejax.data.given_texts import as_rows, check_texts
from cdejax.data.tokenizer import Tokenizer
from cdejax.embedding.block_encoder import BlockEncoder, check_finite
from cdejax.embedding.choice import Choice
from cdejax.embedding.hashes import forward_settings, parameter_hash
from cdejax.embedding.program import shared_program
from cdejax.embedding.prompt_tokenizer import PromptTokenizer, tokenizer_hash
from cdejax.embedding.widths import ContextArrays, context_arrays
from cdejax.models import Model
from cdejax.models.context import Context, Fill, Method
from cdejax.models.similarity import Similarity, check_similarity, similarity, unit
from cdejax.runtime.mesh import local_mesh, replicated_sharding
from cdejax.runtime.progress import progress
from cdejax.storage.artifacts import fingerprint

Stage = Literal["alone", "first", "second"]
"""`alone`: a model without context; `first`, `second`: stages of a contextual one."""
Finish = Callable[[Float[np.ndarray, "rows hidden"]], Float[np.ndarray, "rows dim"]]
"""Turns the model's vectors into embeddings."""
Kind = str
"""Name of a prompt: `query`, `document`, or another of the model's."""


class Embedder:
    """A biencoder or contextual encoder with its tokenizer, prompts and length limit.

    Texts are sorted by length and encoded in full batches of a few widths, which saves
    padding and compilations. Batches are split over all devices of the process, which
    work on one while the host tokenises and pads the next. Up to rounding, a vector
    depends neither on the order of the texts, nor on the other texts, nor on the number
    of devices.

    Args:
      model: the model; only its structure and parameters are kept.
      tokenizer: the tokenizer that the model was trained with.
      prompts: text prepended to each text, by kind: `query`, `document` (default of
        both: none) and any other. Context texts are encoded as documents.
      max_length: maximum length of a text in tokens; truncated texts are logged.
      context_length: maximum length of a context text (default: `max_length`).
      name: name of the model in messages and reports.
      default_prompt_name: written to exports only; `encode` is told the prompt's kind.
      similarity_fn_name: similarity function of the model's vectors.
      truncate_dim: number of first dimensions to keep (Matryoshka; default: all).
      normalized: L2-normalise the model's vectors before they are truncated, as a final
        Normalize module of a sentence-transformers folder does.
      baked: the context that is baked into the model, if any.

    Raises:
      ValueError: the tokenizer has more tokens than the model, or a setting is invalid.
    """

    def __init__(
        self,
        model: Model,
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
        encoder = model.text_encoder
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
        self._hidden: int = model.dim
        self.dim = min(model.dim, truncate_dim or model.dim)
        """Size of an embedding."""
        self._kind, self._pools_prompts = model.kind, model.pools_prompts
        self.context_size = model.context_size or None
        """Maximum number of context texts, C; None if the model takes no context."""
        self.baked = baked
        """The context that is baked into the model, if any."""
        self.dtype = str(encoder.dtype)
        """Dtype of the activations."""
        self._graph, params = nnx.split(model)
        self.params: Any = jax.tree.map(jnp.asarray, params)

    def with_params(self, params: Any) -> Embedder:
        """The same embedder with other parameters; nothing is recompiled.

        Args:
          params: the state of `nnx.split(model)`, as training holds it.
        """
        other = copy.copy(self)
        other.params = params
        for cached in ("hash", "_device_params"):
            other.__dict__.pop(cached, None)
        return other

    @property
    def model(self) -> Model:
        """The model with its parameters."""
        return nnx.merge(self._graph, self.params)

    @functools.cached_property
    def hash(self) -> str:
        """Hash (16 hex digits) of the parameters, as float32."""
        return parameter_hash(self.params)

    @functools.cached_property
    def settings_hash(self) -> str:
        """Hash (16 hex digits) of what else decides the vectors of a context's texts.

        That is the forward pass, the tokenizer, the document prompt and the maximum
        length of context texts.
        """
        return fingerprint(
            [
                forward_settings(self.model),
                tokenizer_hash(self.tokenizer),
                self.prompts["document"],
                self.context_length,
            ]
        )

    def encode(
        self,
        texts: Sequence[str],
        kind: Kind = "document",
        context: Context | None = None,
        batch_size: int = 128,
        normalize: bool | None = None,
        show_progress: bool = False,
    ) -> Float[np.ndarray, "texts dim"]:
        """Encodes texts.

        Args:
          texts: a list of strings, or another sequence, such as a pandas Series; empty
            strings are allowed.
          kind: which prompt to prepend: `query`, `document` or any other name in
            `prompts`.
          context: required by contextual models; from `context` or `Context.load`.
          batch_size: texts encoded at once on a device.
          normalize: L2-normalise after truncation (default: only if the similarity
            function is cosine).
          show_progress: show a progress bar.

        Returns:
          Embeddings in the order of the texts.

        Raises:
          ValueError: a text is not a string (named by index), the kind is unknown, the
            context is missing, not taken by the model or another model's, or a vector
            is not finite.
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
        """Encodes texts like `encode`, in consecutive blocks of embeddings.

        For more texts than memory holds. Devices continue with later texts while a
        block is used.

        Args:
          texts: as for `encode`; read block by block.
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
        stage, arrays = "alone", None
        if (checked := self.check_context(context)) is not None:
            most = self.context_size or 0
            stage, arrays = "second", context_arrays(checked, most, local_mesh())
        if normalize is None:
            normalize = self.similarity_fn_name == "cosine"

        def finish(vectors: np.ndarray) -> np.ndarray:
            vectors = unit(vectors) if self.normalized else vectors
            vectors = vectors[:, : self.truncate_dim]
            return unit(vectors) if normalize else vectors

        encoder = self._encoder(kind, stage, batch_size, finish, arrays)
        rows = range(len(texts)) if rows is None else rows
        yield from encoder.blocks(texts, rows, advance)

    def similarity(
        self,
        one: Float[np.ndarray, "rows dim"],
        other: Float[np.ndarray, "columns dim"],
    ) -> Float[np.ndarray, "rows columns"]:
        """Similarities of all pairs of vectors, by the model's similarity function.

        Cosine or dot product; for `euclidean` and `manhattan` the negative distance.
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
        """Chooses context texts and encodes them with the first stage.

        Args:
          texts: the corpus, or any part of it; encoded as documents.
          size: number of texts to choose, without replacement (default: C, the model's
            size); all texts if there are fewer. 0 gives the null context.
          seed: seed of all random draws.
          batch_size: texts encoded at once on a device.
          show_progress: show a progress bar.
          method: `random`; or, by their first-stage vectors, `kmeans++` (distant texts)
            or `medoids` (the most central text of each of `size` clusters).
          candidates: number of texts sampled for the last two methods to choose from
            (default: 8 for each text to choose).
          fill: how to treat positions without a text: `mask` excludes them from
            attention, `resample` fills them with chosen texts, drawn with replacement.

        Raises:
          ValueError: the model takes no context, `size` is not in 0…C, another argument
            is invalid, or there is no text to choose.
        """
        if self.context_size is None:
            raise ValueError(self._takes_none)
        texts = as_rows(texts)
        choice = Choice(self.context_size, size, seed, method, candidates, fill)
        rows = choice.candidates_of(texts)
        chosen = [texts[int(row)] for row in rows]
        encoder = self._encoder("document", "first", batch_size, lambda x: x)
        with progress("encode context", len(rows), show=show_progress) as advance:
            blocks = encoder.blocks(chosen, range(len(rows)), advance)
            none = np.zeros((0, self._hidden), np.float32)
            vectors = np.concatenate([none, *blocks])
        context = choice.context(texts, rows, vectors, self.hash)
        return dataclasses.replace(context, settings=self.settings_hash)

    def check_context(self, context: Context | None) -> Context | None:
        """Returns the context if it fits the model, or None if the model takes none.

        Raises:
          ValueError: the context is missing, not taken by the model or another model's.
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
        if places > self.context_size or size != [self._hidden]:
            raise ValueError(
                f"the context has {places} vectors of size {size}, but {self.name} "
                f"reads {self.context_size} of size {self._hidden}; make it again"
            )
        return context

    @property
    def _takes_none(self) -> str:
        """Error message for a context given to a model that takes none."""
        if self._kind == "biencoder":
            return f"{self.name} is a biencoder; it takes no context"
        which = "a context" if self.baked is None else f"context {self.baked.hash}"
        return (
            f"{self.name} has {which} baked in and takes no other: leave `context` "
            "out, or load the export that it was baked from"
        )

    @functools.cached_property
    def _device_params(self) -> Any:
        """The parameters on every device of the process."""
        local = jax.tree.map(
            # Sharded over processes in training, but each process has a whole copy.
            lambda x: x if x.is_fully_addressable else x.addressable_data(0),
            self.params,
        )
        return jax.device_put(local, replicated_sharding(local_mesh()))

    def _encoder(
        self,
        kind: Kind,
        stage: Stage,
        batch_size: int,
        finish: Finish,
        context: ContextArrays | None = None,
    ) -> BlockEncoder:
        """Encodes texts of a kind with one stage of the model.

        Raises:
          ValueError: the kind is unknown, or `batch_size` is not a positive integer.
        """
        check_count("batch_size", batch_size)
        if kind not in list(self.prompts):
            known = sorted(self.prompts)
            raise ValueError(f"kind {kind!r}: choose one of {known}")
        first, mesh = stage == "first", local_mesh()
        limit = self.context_length if first else self.max_length
        tokenizer = PromptTokenizer(self.tokenizer, self.prompts[kind], limit)
        skip = None if self._pools_prompts else tokenizer.prompt_length()
        placed = jax.device_put((context, skip), replicated_sharding(mesh))

        def checked(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
            check_finite(vectors, rows, self.name, self.dtype)
            return finish(vectors)

        return BlockEncoder(
            shared_program(self._graph, stage, mesh),
            (self._device_params, *placed),
            tokenizer,
            self.tokenizer.pad_id,
            batch_size,
            checked,
            self._hidden if first else self.dim,
        )
