"""Encoders, the biencoder and the contextual encoder, in Flax NNX."""

from cdejax.models.baked import BakedEncoder as BakedEncoder
from cdejax.models.biencoder import BiEncoder as BiEncoder
from cdejax.models.contextual import ContextualConfig as ContextualConfig
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
from cdejax.models.encoders.roberta import Roberta as Roberta
from cdejax.models.encoders.roberta import RobertaConfig as RobertaConfig
from cdejax.models.pretrained import config_dict as config_dict
from cdejax.models.pretrained import from_pretrained as from_pretrained
from cdejax.models.pretrained import make_encoder as make_encoder
from cdejax.models.weights import load_state_dict as load_state_dict
from cdejax.models.weights import parameter_count as parameter_count
from cdejax.models.weights import to_state_dict as to_state_dict
