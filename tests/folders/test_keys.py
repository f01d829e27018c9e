"""The tables of keys: complete by the libraries' own source, and shown in the docs."""

import inspect
import re
from pathlib import Path

import pytest

from cdejax.folders.key_tables import TABLES, markdown
from cdejax.folders.keys import check_keys, key_names
from cdejax.folders.model_keys import (
    ENCODER,
    HEAD,
    MODULE,
    POOLING,
    SENTENCE_TRANSFORMERS,
)
from cdejax.folders.tokenizer_keys import SPECIAL_TOKENS, TOKENIZER

DOCS = Path(__file__).parents[2] / "docs" / "interop.md"
USE = re.compile(
    r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"'
    r'|tokenizer_config\.get\(\s*"(\w+)"'
    r'|"(\w+)" (?:not )?in (?:init_kwargs|kwargs|tokenizer_config)\b'
    r'|(?:kwargs|tokenizer_config)\["(\w+)"\]'
)
CLASSES = (
    "BertTokenizer",
    "DistilBertTokenizer",
    "MPNetTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "T5Tokenizer",
    "Qwen2Tokenizer",
)


def parameters(function):
    """Names of a function's own parameters."""
    listed = inspect.signature(function).parameters.values()
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return {p.name for p in listed if p.kind in plain and p.name != "self"}


def test_every_tokenizer_key_of_transformers_is_in_the_table():
    transformers = pytest.importorskip("transformers")
    base = transformers.PreTrainedTokenizerBase
    fast = transformers.PreTrainedTokenizerFast
    sources = (
        base.__init__,
        base.from_pretrained,
        base._from_pretrained,
        fast.__init__,
        fast.convert_to_native_format,
        transformers.AutoTokenizer.from_pretrained,
    )
    used = {
        group
        for function in sources
        for match in USE.findall(inspect.getsource(function))
        for group in match
        if group
    }
    assert len(used) > 40
    for name in CLASSES:
        used |= parameters(getattr(transformers, name).__init__)
    used |= set(base.SPECIAL_TOKENS_ATTRIBUTES)
    assert used - key_names(TOKENIZER) == set()
    assert set(base.SPECIAL_TOKENS_ATTRIBUTES) <= key_names(SPECIAL_TOKENS, "applied")


def test_every_general_key_of_config_json_is_in_the_table():
    transformers = pytest.importorskip("transformers")
    used = parameters(transformers.PreTrainedConfig.__init__)
    assert len(used) >= 10
    assert used - key_names(ENCODER) == set()


def test_every_module_key_of_sentence_transformers_is_in_the_table():
    st = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    library = pytest.importorskip("sentence_transformers")
    transformer = st.Transformer
    used = parameters(transformer.__init__) | set(transformer.config_keys)
    assert used - key_names(MODULE) == {"model_name_or_path"}
    legacy = {"word_embedding_dimension", "embedding_dimension", "include_prompt"}
    assert set(st.Pooling.config_keys) | legacy <= key_names(POOLING)
    for kind in (st.Dense, st.LayerNorm, st.Normalize):
        assert set(kind.config_keys) <= key_names(HEAD)
    read = re.compile(r'model_config\.get\("(\w+)"|"(\w+)" in model_config(?!\[)')
    source = inspect.getsource(library.SentenceTransformer._parse_model_config)
    source += inspect.getsource(library.SentenceTransformer.__mro__[1])
    found = {group for match in read.findall(source) for group in match if group}
    assert len(found) > 4
    assert found <= key_names(SENTENCE_TRANSFORMERS)


@pytest.mark.parametrize("file", TABLES)
def test_every_refused_key_is_refused_by_its_name(file):
    listed = [name for key in TABLES[file] for name in key.names]
    assert len(listed) == len(set(listed)), "a key has two places"
    for name in key_names(TABLES[file], "refused"):
        with pytest.raises(ValueError, match=rf"folder/x\.json: {name} is 'value'"):
            check_keys({name: "value"}, TABLES[file], "folder/x.json")
    for name in key_names(TABLES[file]) - key_names(TABLES[file], "refused"):
        check_keys({name: "value"}, TABLES[file], "folder/x.json")


def test_the_docs_show_the_tables():
    assert markdown() in DOCS.read_text(encoding="utf-8")
