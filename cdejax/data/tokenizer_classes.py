"""Tokenizers as transformers' classes build them from a vocabulary and settings.

The generic class uses tokenizer.json unchanged. A class of a single architecture uses
only its vocabulary and builds everything around it, so that, for example, the
lower-casing in tokenizer.json is ignored. This is the behaviour of transformers 5.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from cdejax.data.charsmap import check_charsmap
from cdejax.data.tokenizer_files import (
    CONFIG,
    NAMED,
    STORED,
    VOCABULARY,
    Token,
    TokenizerFiles,
    content,
)
from cdejax.folders.reading import opened
from cdejax.models.checkpoints.registry import find_architecture

GENERIC = "PreTrainedTokenizerFast"
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
_BERT, _MPNET, _ROBERTA = "BertTokenizer", "MPNetTokenizer", "RobertaTokenizer"
_XLM, _T5, _QWEN = "XLMRobertaTokenizer", "T5Tokenizer", "Qwen2Tokenizer"
_SAME = {
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "MobileBertTokenizer": _BERT,
    "SqueezeBertTokenizer": _BERT,
    "BartTokenizer": _ROBERTA,
    "LongformerTokenizer": _ROBERTA,
}
_ENDOFTEXT = "<|endoftext|>"
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def class_name(files: TokenizerFiles) -> str:
    """Name of the class with which transformers builds the folder's tokenizer.

    Raises:
      ValueError: a class with custom code, or one that these files cannot build.
    """
    kind = files.encoder.get("model_type")
    found = find_architecture(kind)
    usual = None if found is None else found.model_types[str(kind)]
    if usual == GENERIC:  # whatever the files name: transformers ignores them
        return GENERIC
    named = files.settings.get("tokenizer_class") or files.encoder.get(
        "tokenizer_class"
    )
    if named is None:
        return usual or (_BERT if files.stored is None else GENERIC)
    plain = str(named).removesuffix("Fast")
    plain = _SAME.get(plain, plain)
    if plain in _GENERIC:
        return GENERIC
    if plain not in BUILDERS:
        raise ValueError(
            f"{files.source}: tokenizer_class is {named!r}, a class with code of its "
            f"own, which cdejax does not have (it has {', '.join(BUILDERS)} and "
            f"{GENERIC}). Where transformers loads it as a fast tokenizer, save it "
            f"with `tokenizer.backend_tokenizer.save('{STORED}')` and write "
            f"{GENERIC} as tokenizer_class"
        )
    return plain


def build(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    """A folder's tokenizer without truncation and padding, and its named tokens.

    Raises:
      ValueError: the files do not define a tokenizer.
    """
    name = class_name(files)
    if files.stored is None and name not in (_BERT, _MPNET):
        raise ValueError(
            f"{files.folder}: {name} needs {STORED}, and there is {VOCABULARY} only. "
            "Load the folder with transformers' AutoTokenizer and save it again"
        )
    made = _generic if name == GENERIC else BUILDERS[name]
    tokenizer, tokens = made(files)
    return tokenizer, tokens


def _generic(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    assert files.stored is not None
    for charsmap in _charsmaps(files.stored):
        check_charsmap(charsmap, str(files.folder / STORED))
    tokenizer = tokenizers.Tokenizer.from_file(str(opened(files.folder / STORED)))
    named = {name: files.token(name) for name in NAMED}
    if tokenizer.padding and "pad_token" not in files.settings:
        named["pad_token"] = tokenizer.padding["pad_token"]
    return tokenizer, _added(tokenizer, files, named, files.extra)


def _added(
    tokenizer: tokenizers.Tokenizer,
    files: TokenizerFiles,
    named: dict[str, Token | None],
    extra: list[Token] | None,
) -> dict[str, Token]:
    """Adds added and special tokens in transformers' order; returns the named ones."""
    tokens = {name: token for name, token in named.items() if token is not None}
    tokens |= files.other
    listed: list[Token] = [token for _, token in sorted(files.added.items())]
    known = {t.content for t in tokenizer.get_added_tokens_decoder().values()}
    known |= {content(token) for token in listed}
    for token in (*tokens.values(), *(extra or ())):
        if content(token) not in known:
            known.add(content(token))
            listed.append(token)
    names = {content(token) for token in tokens.values()}
    for token in listed:
        token = tokenizers.AddedToken(token, special=True) if isinstance(
            token, str) else token  # fmt: skip
        token.special = token.special or token.content in names
        tokenizer.add_tokens([token])
    return tokens


def _wordpiece(
    files: TokenizerFiles, defaults: dict[str, str], *, mask_takes_space: bool = False
) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    """BERT's normaliser and pre-tokeniser around a WordPiece vocabulary."""
    named = {name: files.token(name, defaults.get(name)) for name in NAMED}
    mask = named["mask_token"]
    if mask_takes_space and isinstance(mask, str):
        named["mask_token"] = tokenizers.AddedToken(mask, lstrip=True, special=True)
    unknown = content(named["unk_token"] or "")
    model = models.WordPiece(_vocabulary(files, "WordPiece"), unk_token=unknown)
    tokenizer = tokenizers.Tokenizer(model)
    accents = files.settings.get("strip_accents")
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=files.get("do_lower_case", True),
        handle_chinese_chars=files.get("tokenize_chinese_chars", True),
        strip_accents=None if accents is None else files.get("strip_accents", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer, _added(tokenizer, files, named, files.extra)


def _bert(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    names = ("unk", "sep", "pad", "cls", "mask")
    defaults = {f"{name}_token": f"[{name.upper()}]" for name in names}
    tokenizer, tokens = _wordpiece(files, defaults)
    cls, sep = (_end(name, tokens, tokenizer, files) for name in ("cls", "sep"))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer, tokens


def _mpnet(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    defaults = _ROBERTA_TOKENS | {"unk_token": "[UNK]"}
    tokenizer, tokens = _wordpiece(files, defaults, mask_takes_space=True)
    cls, sep = (_end(name, tokens, tokenizer, files) for name in ("cls", "sep"))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls)
    return tokenizer, tokens


def _roberta(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    named = {name: files.token(name, _ROBERTA_TOKENS[name]) for name in NAMED}
    tokenizer = tokenizers.Tokenizer(_bpe(files))
    spaced = files.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokens = _added(tokenizer, files, named, files.extra)
    cls, sep = (_end(name, tokens, tokenizer, files) for name in ("cls", "sep"))
    tokenizer.post_processor = processors.RobertaProcessing(
        sep, cls, trim_offsets=True, add_prefix_space=spaced
    )
    return tokenizer, tokens


def _xlm(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    named = {name: files.token(name, _ROBERTA_TOKENS[name]) for name in NAMED}
    spaced = files.get("add_prefix_space", True)
    tokenizer = _unigram(files, 3, "always" if spaced else "never")
    tokens = _added(tokenizer, files, named, files.extra)
    bos, eos = (_end(name, tokens, tokenizer, files) for name in ("bos", "eos"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos[0], "$A", eos[0]], special_tokens=[bos, eos]
    )
    return tokenizer, tokens


def _t5(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    own = ("eos_token", "unk_token", "pad_token")
    defaults = {name: _ROBERTA_TOKENS[name] for name in own}
    named = {name: files.token(name, defaults.get(name)) for name in NAMED}
    tokenizer = _unigram(files, 2, "always")
    numbered = [f"<extra_id_{i}>" for i in range(files.get("extra_ids", 100))]
    extra = files.extra
    side = "extra_special_tokens" not in files.settings
    if extra is None or (side and not any("<extra_id_" in content(t) for t in extra)):
        extra = [*(extra or ()), *numbered]
    tokens = _added(tokenizer, files, named, extra)
    _, index = _end("eos", tokens, tokenizer, files)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", "</s>"], special_tokens=[("</s>", index)]
    )
    return tokenizer, tokens


def _qwen(files: TokenizerFiles) -> tuple[tokenizers.Tokenizer, dict[str, Token]]:
    ends: tuple[str, ...] = ("unk_token", "eos_token", "pad_token")
    defaults: dict[str, str] = dict.fromkeys(ends, _ENDOFTEXT)
    named = {name: files.token(name, defaults.get(name)) for name in NAMED}
    tokenizer = tokenizers.Tokenizer(_bpe(files))
    tokenizer.normalizer = normalizers.NFC()
    spaced = files.settings.get("add_prefix_space") is not None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(
                add_prefix_space=spaced and files.get("add_prefix_space", False),
                use_regex=False,
            ),
        ]
    )
    tokens = _added(tokenizer, files, named, files.extra)
    special = {content(token) for token in (*tokens.values(), *(files.extra or ()))}
    tokenizer.add_tokens(
        [tokenizers.AddedToken(token, special=True) for token in sorted(special)]
    )
    tokenizer.post_processor = _stored_post_processor(files)
    return tokenizer, tokens


BUILDERS: dict[
    str, Callable[[TokenizerFiles], tuple[tokenizers.Tokenizer, dict[str, Token]]]
] = {
    _BERT: _bert,
    _MPNET: _mpnet,
    _ROBERTA: _roberta,
    _XLM: _xlm,
    _T5: _t5,
    _QWEN: _qwen,
}
"""Builders of the classes of single architectures."""
_ROBERTA_TOKENS: dict[str, str] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}


def _end(
    name: str,
    tokens: dict[str, Token],
    tokenizer: tokenizers.Tokenizer,
    files: TokenizerFiles,
) -> tuple[str, int]:
    """A token added around every text, and its id."""
    token = tokens.get(f"{name}_token")
    index = tokenizer.token_to_id(content(token)) if token is not None else None
    if token is None or index is None:
        raise ValueError(f"{files.source}: {name}_token is null; name a token")
    return content(token), index


def _model(files: TokenizerFiles, kind: str) -> dict[str, Any]:
    """The model in tokenizer.json, which must be of the given kind."""
    model = (files.stored or {})["model"]
    vocab = model.get("vocab")
    inferred = "Unigram" if isinstance(vocab, list) else "WordPiece"
    found = model.get("type") or ("BPE" if "merges" in model else inferred)
    if found != kind:
        raise ValueError(
            f"{files.folder / STORED}: cannot read the tokenizer: it holds a {found} "
            f"model, but its class ({class_name(files)}, of {CONFIG} or of the "
            f"architecture) builds {kind}; write {GENERIC} as tokenizer_class"
        )
    return model


def _vocabulary(files: TokenizerFiles, kind: str) -> dict[str, int]:
    if files.stored is None:
        return models.WordPiece.read_file(str(opened(files.folder / VOCABULARY)))
    return _model(files, kind)["vocab"]


def _bpe(files: TokenizerFiles) -> models.BPE:
    model = _model(files, "BPE")
    pairs = [m.split(" ") if isinstance(m, str) else m for m in model.get("merges", [])]
    merges: list[Any] = [tuple(pair) for pair in pairs]
    return models.BPE(
        vocab=model["vocab"],
        merges=merges,
        continuing_subword_prefix="",
        end_of_word_suffix="",
        fuse_unk=False,
    )


def _unigram(files: TokenizerFiles, unknown: int, scheme: str) -> tokenizers.Tokenizer:
    """A Unigram model after the stored character map, with words split at spaces."""
    vocab = [tuple(entry) for entry in _model(files, "Unigram")["vocab"]]
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=unknown))
    for charsmap in _charsmaps(files.stored or {})[:1]:
        checked = check_charsmap(charsmap, str(files.folder / STORED))
        tokenizer.normalizer = normalizers.Precompiled(checked)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme),
        ]
    )
    return tokenizer


def _charsmaps(stored: dict[str, Any]) -> list[Any]:
    """The character maps of tokenizer.json's normaliser, as stored."""
    normalizer = stored.get("normalizer") or {}
    parts = normalizer.get("normalizers", [normalizer])
    return [
        part["precompiled_charsmap"]
        for part in parts
        if isinstance(part, dict) and "precompiled_charsmap" in part
    ]


def _stored_post_processor(files: TokenizerFiles) -> Any:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    alone = (files.stored or {}) | {"model": empty, "added_tokens": []}
    return tokenizers.Tokenizer.from_str(json.dumps(alone)).post_processor
