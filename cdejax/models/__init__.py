"""Encoders, the biencoder and the contextual encoder, in Flax NNX."""

from cdejax.models.bert import Bert as Bert
from cdejax.models.bert import BertConfig as BertConfig
from cdejax.models.biencoder import BiEncoder as BiEncoder
from cdejax.models.contextual import ContextualConfig as ContextualConfig
from cdejax.models.contextual import ContextualEncoder as ContextualEncoder
from cdejax.models.encoder import Encoder as Encoder
from cdejax.models.nomic_bert import NomicBert as NomicBert
from cdejax.models.nomic_bert import NomicBertConfig as NomicBertConfig
