"""Embedders as mteb 2 models, with a prompt and a context for each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Shaped

from cdejax.embedding.embedder import Embedder
from cdejax.models.context import Context
from cdejax.models.pretrained.settings import read_settings
from cdejax.storage.artifacts import fingerprint

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.types import PromptType

_TRAINED = {"Classification", "MultilabelClassification", "Regression"}


class ContextRecord(NamedTuple):
    """The context that a contextual model used for a task."""

    source: str
    """`corpus`, `training rows` or `texts`."""
    texts: int
    """Number of texts that the sample was drawn from."""
    size: int
    seed: int
    hash: str
    """Hash of the context (`Context.hash`)."""


class _Place(NamedTuple):
    """The task, subset and split that one context is used for."""

    task: str
    subset: str
    split: str


class MtebEncoder:
    """An embedder for `mteb.evaluate(MtebEncoder(embedder), tasks)`.

    It implements mteb's encoder protocol, and its search protocol in order to see a
    corpus before the first query. Scores use the model's own similarity function.

    **Prompts.** The first of these that the model has a prompt for: TASK-KIND, TASK,
    TYPE-KIND, TYPE, KIND, where TASK is the task's name, TYPE its type (`Clustering`,
    `STS`, …; case does not matter) and KIND `query` or `document`; last, the model's
    default prompt. If a model has prompts but none for a task, the task fails; only
    documents may have no prompt, if queries have one.

    **Contexts** are sampled with the seed from the task's own texts, encoded as
    documents, separately for each task, subset and split: from the corpus (retrieval
    and reranking), from the training rows that mteb encodes (classification,
    regression; both splits share one context), otherwise from the first texts that mteb
    encodes (STS: the first sentences). `contexts` records each of them.

    Args:
      embedder: a biencoder or contextual model.
      name: `ORGANISATION/MODEL` in result files (default: `cdejax/` and the last part
        of the embedder's name).
      prompts: maps TASK-KIND, TASK, … to the name of one of the model's prompts, if the
        prompts' own names do not match: `{"STS": "query"}`.
      context_size: maximum number of texts in a context (default: the model's C).
      seed: seed of all samples.

    Raises:
      ValueError: `prompts` names a prompt that the model lacks, or the embedder has no
        prompts although the folder that it is named after has some.
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        name: str | None = None,
        prompts: Mapping[str, str] | None = None,
        context_size: int | None = None,
        seed: int = 0,
    ):
        self.embedder = embedder
        self.seed = seed
        self.context_size = context_size
        self.contexts: dict[tuple[str, str, str], ContextRecord] = {}
        """The contexts used, by (task, subset, split)."""
        self._mapping = {key.lower(): value for key, value in (prompts or {}).items()}
        self._context: tuple[_Place, Context] | None = None
        self._search: Any = None
        _check_prompts(embedder, self._mapping)
        self.mteb_model_meta = _meta(embedder, name, self._settings())

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        batch_size: int = 128,
        show_progress_bar: bool = False,
    ) -> Float[np.ndarray, "texts dim"]:
        """Vectors (float32) of the texts of all batches.

        Raises:
          ValueError: the model has prompts but none for this task, or queries come
            before the corpus that their context is drawn from.
        """
        prompt = self.prompt_name(task_metadata, prompt_type)
        texts = [text for batch in inputs for text in batch["text"]]
        context = None
        if self.embedder.context_size is not None:
            place = _place(task_metadata, hf_subset, hf_split)
            context = self._context_for(place, texts, task_metadata.type, prompt_type)
        return self.embedder.encode(
            texts,
            prompt,
            context,
            batch_size=batch_size,
            show_progress=show_progress_bar,
        )

    def prompt_name(
        self, task_metadata: TaskMetadata, prompt_type: PromptType | None
    ) -> str:
        """Name of the model's prompt for a task's texts.

        Raises:
          ValueError: the model has prompts but none for these texts.
        """
        kind = prompt_type.value if prompt_type else None
        named = {name.lower(): name for name in self.embedder.prompts}
        keys = _keys(task_metadata.name, task_metadata.type, kind)
        keys += [(self.embedder.default_prompt_name or "").lower()]
        for key in keys:
            if key in self._mapping:
                return self._mapping[key]
            if self.embedder.prompts.get(named.get(key, "")):
                return named[key]
        used = {name: text for name, text in self.embedder.prompts.items() if text}
        if not used or (kind == "document" and "query" in used):
            return kind or "document"
        wanted = f"{task_metadata.name} ({task_metadata.type}), {kind or 'all texts'}"
        raise ValueError(
            f"{wanted}: {self.embedder.name} has prompts for {sorted(used)}, but none "
            "for these texts, and would be judged without; say which to use, as in "
            f"`MtebEncoder(embedder, prompts={{{task_metadata.type!r}: "
            f"{min(used)!r}}})`"
        )

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        **kwargs: Any,
    ) -> None:
        """Stores a corpus (column `text`, optionally `title`) and draws its context."""
        from mteb.models.search_wrappers import SearchEncoderWrapper

        if self.embedder.context_size is not None:
            place = _place(task_metadata, hf_subset, hf_split)
            self._draw(place, _documents(corpus), "corpus")
        self._search = SearchEncoderWrapper(self)  # type: ignore[arg-type]
        self._search.index(
            corpus,
            task_metadata=task_metadata,
            hf_split=hf_split,
            hf_subset=hf_subset,
            **kwargs,
        )

    def search(self, queries: Any, **kwargs: Any) -> dict[str, dict[str, float]]:
        """Scores of the top documents of the last corpus, by query and document id.

        Raises:
          ValueError: no corpus was indexed.
        """
        if self._search is None:
            raise ValueError("nothing to search in: call `index` with a corpus first")
        return self._search.search(queries, **kwargs)

    def similarity(
        self,
        embeddings1: Shaped[np.ndarray, "first dim"],
        embeddings2: Shaped[np.ndarray, "second dim"],
    ) -> Any:
        """Similarity of all pairs, a torch tensor [first, second]."""
        from sentence_transformers import SimilarityFunction

        score = SimilarityFunction.to_similarity_fn(self.embedder.similarity_fn_name)
        return score(embeddings1, embeddings2)

    def similarity_pairwise(
        self,
        embeddings1: Shaped[np.ndarray, "texts dim"],
        embeddings2: Shaped[np.ndarray, "texts dim"],
    ) -> Any:
        """Similarity row by row, a torch tensor [texts]."""
        from sentence_transformers import SimilarityFunction

        name = self.embedder.similarity_fn_name
        score = SimilarityFunction.to_similarity_pairwise_fn(name)
        return score(embeddings1, embeddings2)

    def _context_for(
        self, place: _Place, texts: list[str], type_: str, kind: PromptType | None
    ) -> Context:
        """The context of a place, drawn from its first texts if there is none yet."""
        if self._context is not None and self._context[0] == place:
            return self._context[1]
        if kind is not None and kind.value == "query":
            raise ValueError(
                f"{place.task}: queries came before the corpus that their context is "
                "drawn from; call `index` first, as `mteb.evaluate` does"
            )
        return self._draw(
            place, texts, "training rows" if type_ in _TRAINED else "texts"
        )

    def _draw(self, place: _Place, texts: list[str], source: str) -> Context:
        made = self.embedder.context(texts, self.context_size, seed=self.seed)
        self._context = place, made
        self.contexts[place] = ContextRecord(
            source, len(texts), len(made), self.seed, made.hash
        )
        return made

    def _settings(self) -> dict[str, Any]:
        """What scores depend on; its hash is the model's revision in result files."""
        embedder = self.embedder
        settings = {
            "weights": embedder.hash,
            "settings": embedder.settings_hash,
            "prompts": dict(embedder.prompts),
            "task_prompts": self._mapping,
            "max_length": embedder.max_length,
            "dtype": embedder.dtype,
            "dim": embedder.dim,
            "similarity": embedder.similarity_fn_name,
        }
        if embedder.context_size is not None:
            size = self.context_size
            size = embedder.context_size if size is None else size
            settings |= {"context_size": size, "context_seed": self.seed}
            settings |= {"context_length": embedder.context_length}
        return settings


def _meta(
    embedder: Embedder, name: str | None, settings: Mapping[str, Any]
) -> ModelMeta:
    """Metadata that mteb writes with results; unknown fields stay unset."""
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction

    leaves = jax.tree.leaves(embedder.params)
    return ModelMeta(
        loader=None,
        loader_kwargs=dict(settings),
        name=name or f"cdejax/{Path(embedder.name).name}",
        revision=fingerprint(settings),
        release_date=None,
        languages=None,
        n_parameters=sum(leaf.size for leaf in leaves),
        memory_usage_mb=sum(leaf.nbytes for leaf in leaves) / 2**20,
        max_tokens=embedder.max_length,
        embed_dim=embedder.dim,
        license=None,
        open_weights=None,
        public_training_code=None,
        public_training_data=None,
        framework=["JAX"],
        similarity_fn_name=ScoringFunction(embedder.similarity_fn_name),
        use_instructions=any(embedder.prompts.values()),
        training_datasets=None,
    )


def _check_prompts(embedder: Embedder, mapping: Mapping[str, str]) -> None:
    if unknown := set(mapping.values()) - set(embedder.prompts):
        raise ValueError(
            f"prompts: {embedder.name} has no prompt called {min(unknown)!r}; it has "
            f"{sorted(embedder.prompts)}"
        )
    folder = Path(embedder.name)
    if any(embedder.prompts.values()) or not folder.is_dir():
        return
    lost = {name for name, text in read_settings(folder)["prompts"].items() if text}
    if lost:
        raise ValueError(
            f"{folder} has prompts ({', '.join(sorted(lost))}), this embedder has "
            "none; take `cdejax.load(folder)`, which reads them"
        )


def _keys(task: str, type_: str, kind: str | None) -> list[str]:
    """Possible names of the prompt for these texts, in mteb's order of priority."""
    pairs = [(name, suffix) for name in (task, type_) for suffix in (kind, None)]
    keys = [f"{name}-{suffix}" if suffix else name for name, suffix in pairs]
    return [key.lower() for key in [*keys, kind] if key]


def _place(task: TaskMetadata, subset: str, split: str) -> _Place:
    """The place; classifiers use one context for both splits, under `train`."""
    return _Place(task.name, subset, "train" if task.type in _TRAINED else split)


def _documents(corpus: Any) -> list[str]:
    """Texts joined as in mteb's data loader: title, a space and the text."""
    texts = corpus["text"]
    titles = corpus["title"] if "title" in corpus.column_names else [""] * len(texts)
    return [
        f"{title} {text}".strip() if title else text.strip()
        for title, text in zip(titles, texts, strict=True)
    ]
