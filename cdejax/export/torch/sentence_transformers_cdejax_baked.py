"""The sentence-transformers module of a contextual encoder with its context baked in.

model = SentenceTransformer(folder, trust_remote_code=True)
documents = model.encode_document(texts)
queries = model.encode_query(texts)
"""

from .modeling_cdejax_baked import CdejaxBakedModel
from .sentence_transformers_cdejax import Transformer


class BakedTransformer(Transformer):
    """Tokenizer and encoder; a text needs nothing beside it."""

    model_class = CdejaxBakedModel
    takes_context = False

    def _limit(self, first_stage: bool) -> int:
        del first_stage  # there is none
        return self.max_seq_length
