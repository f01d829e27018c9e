"""Small real folders, each spoilt or varied in one place, and what is to come of it."""

# ruff: noqa: E501 (one case a line)

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.models.oracles import torch

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "for",
    "on",
    "with",
    "cat",
    "dog",
    "fish",
    "house",
    "tree",
    "river",
    "stone",
    "green",
    "blue",
    "red",
    "fast",
    "slow",
    "big",
    "small",
    "paris",
    "berlin",
    "code",
    "python",
    "file",
    "read",
    "write",
    "copy",
    "café",
    "hello",
    "worlds",
    "water",
]
LONG = "the cat is in the big green house on the slow blue river with a small red fish"
TEXTS = [
    "The cat is in Paris",
    "copy the [SEP] file </s> and <mask> read [MASK] it",
    "ÇOCUK Straße CAFÉ café İ 東京 ﬁsh",
    "the covid19 cat <ent> dog Covid19",
    "a",
    "",
    LONG,
    "zzz 🙂 unknown",
]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
FREE = 6
"""Rows of the embedding table behind the vocabulary, for added tokens."""
ADDED = {"lstrip": False, "rstrip": False, "single_word": False}


@dataclass(frozen=True)
class Case:
    """One folder: what it starts from, how it is changed, and what is expected."""

    base: str
    change: Callable[[Path], None]
    refused: str | None = None
    """What the refusal says; None where vectors and ids are equal."""
    like: Callable[[Path], None] | None = None
    """The change of the folder to compare with, where the libraries cannot load it."""


def build(kind: str, folder: Path) -> None:
    """A folder of sentence-transformers' layout with a tokenizer and random weights."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _TOKENIZERS[kind](folder)
    size = tokenizer.get_vocab_size() + FREE
    configs = {
        "bert": transformers.BertConfig,
        "bert_cased": transformers.BertConfig,
        "distilbert": transformers.DistilBertConfig,
        "mpnet": transformers.MPNetConfig,
        "roberta": transformers.RobertaConfig,
        "xlm-roberta": transformers.XLMRobertaConfig,
        "t5": transformers.T5Config,
        "qwen3": transformers.Qwen3Config,
        "modernbert": transformers.ModernBertConfig,
    }
    own: dict[str, Any] = dict(SIZES)
    if kind == "distilbert":
        own = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    if kind == "t5":
        own = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "d_kv": 8}
    if kind == "qwen3":
        own |= {"head_dim": 8, "num_key_value_heads": 1, "tie_word_embeddings": True}
    if kind == "modernbert":
        own |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
                "cls_token_id": 2, "sep_token_id": 3}  # fmt: skip
    if kind != "t5":
        own["max_position_embeddings"] = 40
    config = configs[kind](vocab_size=size, **own)
    torch.manual_seed(0)
    if kind == "t5":
        model = transformers.T5EncoderModel(config)
    else:
        model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    sentence_files(folder)


def sentence_files(folder: Path) -> None:
    """Stock modules: Transformer, mean pooling, Normalize."""
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    _write(folder / "modules.json", modules)
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    _write(folder / "1_Pooling" / "config.json", pooling)
    (folder / "2_Normalize").mkdir(exist_ok=True)
    limit = {"max_seq_length": 14, "do_lower_case": False}
    _write(folder / "sentence_bert_config.json", limit)
    settings = {"prompts": {}, "similarity_fn_name": "cosine"}
    _write(folder / "config_sentence_transformers.json", settings)


def _write(file: Path, value: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value))


def _wordpiece(folder: Path, *, lowercase: bool) -> Any:
    from tokenizers import BertWordPieceTokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(33, 127)] + list("éç東京")
    entries = [*special, *letters, *("##" + c for c in letters), *WORDS]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(entries)) + "\n")
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lowercase)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
    _config(folder, names | {"mask": "[MASK]"}, "PreTrainedTokenizerFast")
    return tokenizer


def _config(folder: Path, names: dict[str, str], kind: str) -> None:
    config = {f"{name}_token": token for name, token in names.items()}
    limit = {"tokenizer_class": kind, "model_max_length": 40}
    _write(folder / "tokenizer_config.json", config | limit)


_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_NAMES = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>",
          "pad": "<pad>", "mask": "<mask>"}  # fmt: skip


def _mpnet(folder: Path) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [chr(code) for code in range(33, 127)] + list("éç")
    entries = ["<s>", "<pad>", "</s>", "[UNK]", *letters]
    entries += [*("##" + c for c in letters), *WORDS, "<mask>"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    _config(folder, _NAMES | {"unk": "[UNK]"}, "MPNetTokenizer")
    return tokenizer


def _bytes(folder: Path, special: list[str], names: dict[str, str], kind: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 2, trainer)
    tokenizer.post_processor = (
        processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        if kind == "RobertaTokenizer"
        else processors.TemplateProcessing(
            single=["$A", special[0]], special_tokens=[(special[0], 0)]
        )
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _config(folder, names, kind)
    return tokenizer


def _unigram(folder: Path, special: list[str], names: dict[str, str], kind: str) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [chr(code) for code in range(33, 127)] + list("éç")
    entries = [*special, "▁", *letters, *("▁" + word for word in WORDS)]
    if kind == "T5Tokenizer":
        entries += [f"<extra_id_{i}>" for i in range(99, -1, -1)]
    scores = [(token, -0.5 * (i > 4) - len(token) * 0.01) for i, token in
              enumerate(dict.fromkeys(entries))]  # fmt: skip
    unknown = special.index("<unk>")
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=unknown))
    tokenizer.normalizer = normalizers.Precompiled(charsmap({"ﬁ": "fi", "Ⅷ": "VIII"}))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    ends = ["<s>", "$A", "</s>"] if "<s>" in special else ["$A", "</s>"]
    around = [(t, special.index(t)) for t in special if t in ends]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=ends, special_tokens=around
    )
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    _config(folder, names, kind)
    return tokenizer


def charsmap(replaced: dict[str, str]) -> bytes:
    """SentencePiece's character map: a double array, then what replaces.

    Every node gets a block of 256 units of its own, at the block's start.
    """
    trie: dict[bytes, dict[int, bytes]] = {b"": {}}
    for text in replaced:
        key = text.encode()
        for i, byte in enumerate(key):
            trie[key[:i]][byte] = key[: i + 1]
            trie.setdefault(key[: i + 1], {})
    blocks = {prefix: 1 + i for i, prefix in enumerate(trie)}
    units = np.zeros((len(trie) + 1) * 256, np.uint32)
    ends = {text.encode(): i for i, text in enumerate(replaced)}
    joined = b"".join(text.encode() + b"\0" for text in replaced.values())
    places = np.cumsum([0, *(len(t.encode()) + 1 for t in replaced.values())])

    def unit(place: int, prefix: bytes, label: int) -> int:
        offset = (blocks[prefix] * 256) ^ place
        assert offset % 256 == 0 or offset < 1 << 21
        leaf = (prefix in ends) << 8
        return (offset << 10) | leaf | label

    units[0] = unit(0, b"", 0)
    for prefix, children in trie.items():
        for byte, child in children.items():
            place = blocks[prefix] * 256 ^ byte
            units[place] = unit(place, child, byte)
        if prefix in ends:
            units[blocks[prefix] * 256] = (1 << 31) | int(places[ends[prefix]])
    size = np.uint32(units.nbytes).tobytes()
    return size + units.tobytes() + joined


_ENDS = {"unk": "<|endoftext|>", "pad": "<|endoftext|>", "eos": "<|endoftext|>"}
_TOKENIZERS: dict[str, Callable[[Path], Any]] = {
    "bert": partial(_wordpiece, lowercase=True),
    "bert_cased": partial(_wordpiece, lowercase=False),
    "distilbert": partial(_wordpiece, lowercase=True),
    "modernbert": partial(_wordpiece, lowercase=False),
    "mpnet": _mpnet,
    "roberta": lambda f: _bytes(f, _SPECIAL, _NAMES, "RobertaTokenizer"),
    "qwen3": lambda f: _bytes(f, ["<|endoftext|>"], _ENDS, "Qwen2Tokenizer"),
    "xlm-roberta": lambda f: _unigram(f, _SPECIAL, _NAMES, "XLMRobertaTokenizer"),
    "t5": lambda f: _unigram(
        f,
        ["<pad>", "</s>", "<unk>"],
        {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
        "T5Tokenizer",
    ),
}


# ---------------------------------------------------------------- changes


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    """Sets keys of a JSON file (`...` removes one), which is made where it is missing."""

    def change(folder: Path) -> None:
        raw = (
            json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        )
        raw |= changes
        _write(folder / name, {k: v for k, v in raw.items() if v is not ...})

    return change


def inside(name: str, path: str, value: Any) -> Callable[[Path], None]:
    """Sets one value deep in a JSON file, at `a.b.0.c`."""

    def change(folder: Path) -> None:
        raw = json.loads((folder / name).read_text())
        *outer, last = path.split(".")
        place = raw
        for key in outer:
            place = place[int(key) if key.isdigit() else key]
        place[int(last) if last.isdigit() else last] = value
        _write(folder / name, raw)

    return change


def remove(*names: str) -> Callable[[Path], None]:
    """Removes files or folders."""

    def change(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def write(name: str, content: str | bytes | list | dict) -> Callable[[Path], None]:
    """Writes a file."""

    def change(folder: Path) -> None:
        data = content if isinstance(content, bytes) else None
        text = content if isinstance(content, str) else json.dumps(content, default=str)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode() if data is None else data)

    return change


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    """One change after the other."""

    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


def weights(rename: Callable[[str], str], **more: Any) -> Callable[[Path], None]:
    """Renames all tensors, and adds others made from one that is there."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = {rename(name): t for name, t in load_file(file).items()}
        tensors |= {name: np.array(make(tensors)) for name, make in more.items()}
        save_file(tensors, file, metadata={"format": "pt"})

    return change


def same(folder: Path) -> None:
    """No change."""


def next_ids(folder: Path) -> int:
    """The first id behind the vocabulary."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    return len(stored["model"]["vocab"])


def added_json(folder: Path) -> None:
    """added_tokens.json beside vocab.txt alone."""
    first = next_ids(folder)
    remove("tokenizer.json")(folder)
    write("added_tokens.json", {"covid19": first, "<ent>": first + 1})(folder)


def added_decoder(folder: Path, *, gap: int = 0, alone: bool = False) -> None:
    """added_tokens_decoder in tokenizer_config.json."""
    first = next_ids(folder) + gap
    plain = ADDED | {"normalized": True, "special": False}
    special = ADDED | {"normalized": False, "special": True}
    listed = {
        str(first): {"content": "covid19", **plain},
        str(first + 1): {"content": "<ent>", **special},
    }
    edit("tokenizer_config.json", added_tokens_decoder=listed)(folder)
    if alone:
        remove("tokenizer.json")(folder)


def special_map(folder: Path) -> None:
    """More special tokens in special_tokens_map.json."""
    flagged = {"content": "[SEP]", "normalized": False, **ADDED}
    value = {"additional_special_tokens": ["<ent>"], "sep_token": flagged}
    write("special_tokens_map.json", value)(folder)


def router(folder: Path, kind: str = "Router") -> None:
    """Queries and documents through modules of their own."""
    inner = folder / "query_0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.move(folder / name, inner / name)
    types = {inner.name: "sentence_transformers.models.Transformer"}
    write("router_config.json", {"types": types, "structure": {"query": [inner.name]},
                                 "parameters": {}})(folder)  # fmt: skip
    module = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": f"sentence_transformers.models.{kind}",
    }
    write("modules.json", [module])(folder)


def moved(folder: Path) -> None:
    """The encoder in a folder of its own, as versions 0 and 1 wrote it."""
    inner = folder / "0_Transformer"
    inner.mkdir()
    keep = ("modules.json", "config_sentence_transformers.json")
    for path in [p for p in folder.iterdir() if p.is_file() and p.name not in keep]:
        path.rename(inner / path.name)
    inside("modules.json", "0.path", inner.name)(folder)


CONFIG, SBERT = "tokenizer_config.json", "sentence_bert_config.json"
BERT = edit(CONFIG, tokenizer_class="BertTokenizer")
VOCAB = both(BERT, remove("tokenizer.json"))
LEFT = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}


def _args(key: str = "tokenizer_args", **values: Any) -> Callable[[Path], None]:
    return edit(SBERT, **{key: values})


def _renamed(name: str, **values: Any) -> Callable[[Path], None]:
    return both(remove(SBERT), write(name, {"max_seq_length": 9, **values}))


_QUERY = "encoder.layer.0.attention.self.query.weight"

# fmt: off
CASES: dict[str, Case] = {
    # as they are
    "bert": Case("bert", same),
    "bert_cased": Case("bert_cased", same),
    "distilbert": Case("distilbert", same),
    "distilbert class": Case("distilbert", edit(CONFIG, tokenizer_class="DistilBertTokenizer")),
    "mpnet": Case("mpnet", same),
    "roberta": Case("roberta", same),
    "xlm-roberta": Case("xlm-roberta", same),
    "t5": Case("t5", same),
    "qwen3": Case("qwen3", same),
    "modernbert": Case("modernbert", same),
    # added tokens
    "added_tokens.json": Case("bert", both(BERT, added_json)),
    "added_tokens_decoder": Case("bert", both(BERT, added_decoder)),
    "added_tokens_decoder, vocab.txt": Case("bert", both(BERT, partial(added_decoder, alone=True))),
    "added_tokens_decoder, generic": Case("bert", added_decoder),
    "added tokens with a gap": Case("bert", partial(added_decoder, gap=2), refused="the added token 'covid19' has id"),
    "special_tokens_map.json": Case("bert", special_map),
    "special_tokens_map.json, vocab.txt": Case("bert", both(VOCAB, special_map)),
    "additional_special_tokens": Case("bert", edit(CONFIG, additional_special_tokens=["<ent>"])),
    "extra_special_tokens named": Case("bert", edit(CONFIG, extra_special_tokens={"entity_token": "<ent>"})),
    "a token of another name": Case("bert", edit(CONFIG, entity_token="<ent>")),
    "added to roberta": Case("roberta", added_decoder),
    "added to xlm-roberta": Case("xlm-roberta", added_decoder),
    "added to mpnet": Case("mpnet", added_decoder),
    "added to qwen3": Case("qwen3", added_decoder),
    "added to t5": Case("t5", added_decoder),
    # sides
    "truncation_side": Case("bert", edit(CONFIG, truncation_side="left")),
    "truncation_side odd": Case("bert", edit(CONFIG, truncation_side="middle"), refused="truncation_side is 'middle'"),
    "stored direction": Case("bert", edit("tokenizer.json", truncation=LEFT)),
    "stored direction, class": Case("bert", both(BERT, edit("tokenizer.json", truncation=LEFT))),
    "stored direction, said right": Case("bert", both(edit(CONFIG, truncation_side="right"), edit("tokenizer.json", truncation=LEFT))),
    "tokenizer_args truncation_side": Case("bert", _args(truncation_side="left")),
    "processor_kwargs truncation_side": Case("bert", _args("processor_kwargs", truncation_side="left")),
    "padding_side bert": Case("bert", edit(CONFIG, padding_side="left"), refused="padding_side is 'left'"),
    "padding_side qwen3": Case("qwen3", edit(CONFIG, padding_side="left")),
    "padding_side roberta": Case("roberta", edit(CONFIG, padding_side="left")),
    "padding_side t5": Case("t5", edit(CONFIG, padding_side="left")),
    # tokenizer_config.json before tokenizer.json
    "lower, class, said false": Case("bert", both(BERT, edit(CONFIG, do_lower_case=False))),
    "cased, class, said true": Case("bert_cased", both(BERT, edit(CONFIG, do_lower_case=True))),
    "cased, class, nothing said": Case("bert_cased", BERT),
    "cased, fast class, said true": Case("bert_cased", edit(CONFIG, tokenizer_class="BertTokenizerFast", do_lower_case=True)),
    "cased, generic, said true": Case("bert_cased", edit(CONFIG, do_lower_case=True)),
    "no class named": Case("bert_cased", edit(CONFIG, tokenizer_class=...)),
    "no tokenizer_config.json": Case("bert_cased", remove(CONFIG)),
    "class in config.json": Case("bert_cased", both(edit(CONFIG, tokenizer_class=...), edit("config.json", tokenizer_class="PreTrainedTokenizerFast"))),
    "strip_accents false": Case("bert", both(BERT, edit(CONFIG, strip_accents=False))),
    "strip_accents true": Case("bert_cased", both(BERT, edit(CONFIG, do_lower_case=False, strip_accents=True))),
    "chinese characters": Case("bert", both(BERT, edit(CONFIG, tokenize_chinese_chars=False))),
    "do_lower_case a text": Case("bert", both(BERT, edit(CONFIG, do_lower_case="yes")), refused="do_lower_case is 'yes'"),
    "vocab.txt alone": Case("bert", VOCAB),
    "vocab.txt of mpnet": Case("mpnet", lambda f: (write("vocab.txt", "\n".join(_listed(f)))(f), remove("tokenizer.json")(f))[0]),
    "vocab.txt, generic": Case("bert", remove("tokenizer.json"), refused="needs tokenizer.json"),
    "add_prefix_space": Case("roberta", edit(CONFIG, add_prefix_space=True)),
    "add_prefix_space xlm": Case("xlm-roberta", edit(CONFIG, add_prefix_space=False)),
    "roberta generic": Case("roberta", edit(CONFIG, tokenizer_class="PreTrainedTokenizerFast")),
    "xlm generic": Case("xlm-roberta", edit(CONFIG, tokenizer_class="PreTrainedTokenizerFast")),
    "xlm class on bert": Case("bert", edit(CONFIG, tokenizer_class="XLMRobertaTokenizer"), refused="it holds a WordPiece model"),
    "class on modernbert": Case("modernbert", edit(CONFIG, tokenizer_class="BertTokenizer", do_lower_case=True)),
    "japanese": Case("bert", edit(CONFIG, tokenizer_class="BertJapaneseTokenizer"), refused="BertJapaneseTokenizer.*code of its own"),
    "auto_map": Case("bert", edit(CONFIG, auto_map={"AutoTokenizer": ["x.Y", None]}), refused="auto_map is"),
    "processor_class": Case("bert", edit(CONFIG, processor_class="CLIPProcessor"), refused="processor_class is"),
    "split_special_tokens": Case("bert", edit(CONFIG, split_special_tokens=True)),
    "older names only": Case("bert", both(remove("tokenizer.json", "vocab.txt"), write("spiece.model", b"x")), refused="spiece.model only"),
    "unk_token outside": Case("bert", inside("tokenizer.json", "model.unk_token", "<none>"), refused="unk_token is '<none>'"),
    "unk_token outside, class": Case("bert", both(BERT, edit(CONFIG, unk_token="<none>")), refused="unk_token is '<none>'"),
    "unk_id null": Case("xlm-roberta", both(edit(CONFIG, tokenizer_class="PreTrainedTokenizerFast"), inside("tokenizer.json", "model.unk_id", None)), refused="unk_id is None"),
    "ends unknown": Case("bert", inside("tokenizer.json", "post_processor.sep", ["[END]", 999]), refused="puts .*around texts"),
    "model_input_names": Case("bert", edit(CONFIG, model_input_names=["input_ids"]), refused="model_input_names is"),
    "bos without effect": Case("bert", edit(CONFIG, add_bos_token=True, bos_token="[CLS]")),
    "bos as an argument": Case("bert", _args(add_bos_token=True), refused="add_bos_token is True"),
    "max_len": Case("bert", both(edit(SBERT, max_seq_length=None), edit(CONFIG, model_max_length=..., max_len=7))),
    # the module's arguments
    "do_lower_case": Case("bert_cased", edit(SBERT, do_lower_case=True)),
    "do_lower_case, roberta's file": Case("bert_cased", _renamed("sentence_roberta_config.json", do_lower_case=True)),
    "a file nobody reads": Case("bert_cased", both(edit(SBERT, max_seq_length=9), write("sentence_own_config.json", {"do_lower_case": True}))),
    "an empty file before": Case("bert_cased", both(write(SBERT, {}), write("sentence_roberta_config.json", {"max_seq_length": 6, "do_lower_case": True}))),
    "no modules.json": Case("bert", both(remove("modules.json"), edit(SBERT, max_seq_length=5, do_lower_case=True))),
    "tokenizer_args do_lower_case": Case("bert_cased", both(BERT, edit(CONFIG, do_lower_case=False), _args(do_lower_case=True))),
    "tokenizer_args model_max_length": Case("bert", _args(model_max_length=6)),
    "tokenizer_args before processor_kwargs": Case("bert", both(_args(model_max_length=6), _args("processor_kwargs", model_max_length=8))),
    "tokenizer_args class": Case("bert", _args(tokenizer_type="roberta"), refused="tokenizer_type is"),
    "config_args": Case("bert", _args("config_args", hidden_act="relu"), refused="hidden_act: 'relu'"),
    "config_args is_causal": Case("qwen3", _args("config_args", is_causal=False), refused="config_args: is_causal is False"),
    "config_kwargs": Case("bert", _args("config_kwargs", layer_norm_eps=0.1)),
    "model_args": Case("bert", _args("model_args", attn_implementation="eager", add_pooling_layer=False)),
    "model_args of a class": Case("bert", _args("model_args", default_task="x"), refused="default_task is"),
    "arguments no object": Case("bert", edit(SBERT, tokenizer_args=[1]), refused="tokenizer_args is"),
    "transformer_task": Case("bert", edit(SBERT, transformer_task="fill-mask"), refused="transformer_task is"),
    "modality_config": Case("bert", edit(SBERT, modality_config={"message": {"method": "forward", "method_output_name": "last_hidden_state"}}, module_output_name="token_embeddings"), refused="modality_config is"),
    "plain modality_config": Case("bert", edit(SBERT, modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, module_output_name="token_embeddings")),
    "processing_kwargs": Case("bert", edit(SBERT, processing_kwargs={"text": {"max_length": 5}}), refused="processing_kwargs is"),
    "query_length": Case("bert", edit(SBERT, query_length=5), refused="query_length is"),
    "unpad_inputs": Case("bert", edit(SBERT, unpad_inputs=False)),
    "tokenizer elsewhere": Case("bert", edit(SBERT, tokenizer_name_or_path="x"), refused="tokenizer_name_or_path is"),
    "a key of another version": Case("bert", edit(SBERT, layers=3), refused="layers is 3"),
    "chat template": Case("qwen3", edit(CONFIG, chat_template="{{ messages }}")),
    "chat template, no modules": Case("qwen3", both(remove("modules.json"), edit(CONFIG, chat_template="{% for m in messages %}{{ m['content'] }}!{% endfor %}")), refused="chat template"),
    # modules
    "0_Transformer": Case("bert", moved),
    "0_Transformer, arguments": Case("bert", both(_args(truncation_side="left"), moved)),
    "Router": Case("bert", router, refused="Router sends"),
    "Asym": Case("bert", partial(router, kind="Asym"), refused="Asym sends"),
    "a class of its own": Case("bert", inside("modules.json", "0.type", "custom.Transformer"), refused="custom.Transformer"),
    "a name twice": Case("bert", inside("modules.json", "2.name", "1"), refused="the name '1'"),
    "another kind of model": Case("bert", edit("config_sentence_transformers.json", model_type="SparseEncoder"), refused="model_type is 'SparseEncoder'"),
    "module_input_name": Case("bert", write("2_Normalize/config.json", {"module_input_name": "token_embeddings"}), refused="module_input_name is"),
    # config.json and weights
    "quantization_config": Case("bert", edit("config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}), refused="quantization_config is"),
    "adapter": Case("bert", write("adapter_config.json", {"peft_type": "LORA"}), refused="merge the adapter first"),
    "pruned_heads": Case("bert", edit("config.json", pruned_heads={"0": [1]}), refused="pruned_heads is"),
    "is_decoder": Case("bert", edit("config.json", is_decoder=True), refused="is_decoder: True"),
    "harmless config": Case("bert", edit("config.json", use_cache=True, chunk_size_feed_forward=2, id2label={"0": "x"}, tie_word_embeddings=False)),
    "bert.": Case("bert", weights(lambda n: f"bert.{n}")),
    "module.": Case("bert", weights(lambda n: f"module.{n}"), like=same),
    "_orig_mod.": Case("bert", weights(lambda n: f"_orig_mod.{n}"), like=same),
    "0.auto_model.": Case("bert", weights(lambda n: f"0.auto_model.{n}"), like=same),
    "module._orig_mod.bert.": Case("bert", weights(lambda n: f"module._orig_mod.bert.{n}"), like=same),
    "some under module.": Case("bert", weights(lambda n: f"module.{n}" if "layer.1" in n else n), refused="the weights do not fit"),
    "given twice, equal": Case("bert", weights(str, **{f"bert.{_QUERY}": lambda t: t[_QUERY]})),
    "given twice, different": Case("bert", weights(str, **{f"bert.{_QUERY}": lambda t: t[_QUERY] + 1}), refused="are the same weight"),
    "gamma beside weight": Case("bert", weights(str, **{"embeddings.LayerNorm.gamma": lambda t: t["embeddings.LayerNorm.weight"] * 2}), refused="are the same weight"),
    "unmerged adapter": Case("bert", weights(lambda n: f"base_model.model.{n}", **{"base_model.model.encoder.layer.0.attention.self.query.lora_A.weight": lambda t: np.ones((2, 16), np.float32)}), refused="1 unexpected"),
}
# fmt: on


def _listed(folder: Path) -> list[str]:
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(vocab, key=vocab.__getitem__)
