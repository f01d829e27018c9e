"""Encoders, the biencoder and the contextual encoder, in Flax NNX.

- `from_pretrained`: loads a model from a Hugging Face folder.
- `BiEncoder`: one encoder with pooling and a head, for queries and documents.
- `ContextualEncoder`: the two-stage encoder of Contextual Document Embeddings.
- `ContextualConfig`: sizes of a contextual encoder.
- `BakedEncoder`: a contextual encoder with a context baked in.
- `EmbeddingModel`: base class of these three; the interface that callers use.
- `Model`, `TrainableModel`: unions of them, for annotations.
- `Encoder`: base class of the token encoders.
- `Bert`, `BertConfig`: BERT.
- `DistilBert`, `DistilBertConfig`: DistilBERT.
- `ModernBert`, `ModernBertConfig`: ModernBERT.
- `MPNet`, `MPNetConfig`: MPNet.
- `NomicBert`, `NomicBertConfig`: nomic-bert.
- `Qwen3`, `Qwen3Config`: Qwen3, causal or bidirectional.
- `Roberta`, `RobertaConfig`: RoBERTa and XLM-RoBERTa.
- `T5`, `T5Config`: the encoder of T5.
- `make_encoder`: makes an encoder with random weights from a configuration.
- `config_dict`: the contents of a model's `config.json`.
- `to_state_dict`: a model's weights under PyTorch's names.
- `load_state_dict`: loads weights with PyTorch's names into a model.
- `parameter_count`: counts a model's parameters without allocating them.
- `context.Context`: the context vectors that a contextual encoder reads.
"""

from cdejax.models.baked import BakedEncoder as BakedEncoder
from cdejax.models.base import EmbeddingModel as EmbeddingModel
from cdejax.models.biencoder import BiEncoder as BiEncoder
from cdejax.models.contextual import ContextualEncoder as ContextualEncoder
from cdejax.models.encoder import Encoder as Encoder
from cdejax.models.encoders.bert import Bert as Bert
from cdejax.models.encoders.bert import BertConfig as BertConfig
from cdejax.models.encoders.distilbert import DistilBert as DistilBert
from cdejax.models.encoders.distilbert import DistilBertConfig as DistilBertConfig
from cdejax.models.encoders.modernbert import ModernBert as ModernBert
from cdejax.models.encoders.modernbert import ModernBertConfig as ModernBertConfig
from cdejax.models.encoders.mpnet import MPNet as MPNet
from cdejax.models.encoders.mpnet import MPNetConfig as MPNetConfig
from cdejax.models.encoders.nomic_bert import NomicBert as NomicBert
from cdejax.models.encoders.nomic_bert import NomicBertConfig as NomicBertConfig
from cdejax.models.encoders.qwen3 import Qwen3 as Qwen3
from cdejax.models.encoders.qwen3 import Qwen3Config as Qwen3Config
from cdejax.models.encoders.roberta import Roberta as Roberta
from cdejax.models.encoders.roberta import RobertaConfig as RobertaConfig
from cdejax.models.encoders.t5 import T5 as T5
from cdejax.models.encoders.t5 import T5Config as T5Config
from cdejax.models.kinds import Model as Model
from cdejax.models.kinds import TrainableModel as TrainableModel
from cdejax.models.pretrained.load import config_dict as config_dict
from cdejax.models.pretrained.load import from_pretrained as from_pretrained
from cdejax.models.pretrained.load import make_encoder as make_encoder
from cdejax.models.pretrained.weights import load_state_dict as load_state_dict
from cdejax.models.pretrained.weights import parameter_count as parameter_count
from cdejax.models.pretrained.weights import to_state_dict as to_state_dict
from cdejax.models.second_stage import ContextualConfig as ContextualConfig
