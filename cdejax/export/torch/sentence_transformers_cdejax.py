"""The sentence-transformers module of a contextual encoder exported by cdejax.

    model = SentenceTransformer(folder, trust_remote_code=True)
    context = model.encode(corpus_sample, prompt_name="document")
    documents = model.encode_document(texts, dataset_embeddings=context)
    queries = model.encode_query(texts, dataset_embeddings=context)

Without `dataset_embeddings` a text passes the first stage, with them the second, as in
the published CDE models. Embeddings are not normalised: compare them by cosine.
"""

import warnings
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from .modeling_cdejax import CdejaxModel

_HUB_OPTIONS = ("token", "revision", "local_files_only")


class Transformer(nn.Module):
    """Tokenizer and two-stage encoder as one sentence-transformers module."""

    save_in_root = True
    model_class = CdejaxModel
    takes_context = True

    def __init__(self, model: CdejaxModel, tokenizer: Any):
        super().__init__()
        self.auto_model = model
        self.tokenizer = tokenizer
        self._warned = False

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        *,
        cache_folder: str | None = None,
        model_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> "Transformer":
        """Loads the folder's model and tokenizer; nothing else is fetched."""
        if kwargs.get("backend", "torch") != "torch":
            raise ValueError(
                f"backend {kwargs['backend']!r}: this model has torch only."
            )
        hub = {key: kwargs[key] for key in _HUB_OPTIONS if key in kwargs}
        hub["cache_dir"] = cache_folder
        model = cls.model_class.from_pretrained(
            model_name_or_path, **hub, **(model_kwargs or {})
        )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model_name_or_path, **hub)
        return cls(model, tokenizer)

    def preprocess(
        self,
        inputs: list[str],
        prompt: str | None = None,
        dataset_embeddings: Any = None,
        task: str | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:
        """Tokens of the texts, each behind the prompt, cut at their stage's limit.

        `encode_query` and `encode_document` name a task; `encode` alone does not, and
        without a context is how one is made.
        """
        if task is not None and dataset_embeddings is None:
            self._warn_of_first_stage(task)
        batch = self.tokenizer(
            [(prompt or "") + text for text in inputs],
            padding=True,
            truncation=True,
            max_length=self._limit(dataset_embeddings is None),
            return_tensors="pt",
            return_token_type_ids=False,
        )
        return dict(batch)

    def _warn_of_first_stage(self, task: str) -> None:
        """Says once that vectors are not those that the model was trained for."""
        if self.takes_context and not self._warned:
            self._warned = True
            warnings.warn(
                f"encode_{task} without dataset_embeddings gives first-stage vectors, "
                "which are for making a context. Encode a sample of your corpus by "
                "context = model.encode(sample, prompt_name='document') and pass "
                "dataset_embeddings=context for documents and queries alike.",
                stacklevel=3,
            )

    def _limit(self, first_stage: bool) -> int:
        own = getattr(self.auto_model.config, "context_max_length", None)
        return own if first_stage and own is not None else self.max_seq_length

    def tokenize(self, texts: list[str], **kwargs: Any) -> dict[str, Tensor]:
        """Tokens of the texts, for sentence-transformers before `preprocess`."""
        return self.preprocess(texts, **kwargs)

    def forward(
        self, features: dict[str, Tensor], dataset_embeddings: Any = None, **_: Any
    ) -> dict[str, Tensor]:
        """Adds `sentence_embedding`, [batch, hidden], to the features."""
        features["sentence_embedding"] = self.auto_model(
            features["input_ids"], features["attention_mask"], dataset_embeddings
        )
        return features

    @property
    def max_seq_length(self) -> int:
        """Longest text in tokens; longer ones are cut."""
        return self.tokenizer.model_max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.tokenizer.model_max_length = value

    def get_embedding_dimension(self) -> int:
        """Size of an embedding."""
        return self.auto_model.config.hidden_size

    get_word_embedding_dimension = get_embedding_dimension
    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Writes weights under their published names, configuration and tokenizer."""
        self.auto_model.save_pretrained(output_path)
        self.tokenizer.save_pretrained(output_path)
