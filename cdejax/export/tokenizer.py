"""The tokenizer files of an exported folder."""

from __future__ import annotations

from pathlib import Path

from cdejax.artifacts import write_json
from cdejax.data.tokenizer import Tokenizer
from cdejax.reading import read_json_if_there

_SPECIAL = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
            "bos_token", "eos_token")  # fmt: skip


def write_tokenizer(
    source: str | Path, folder: Path, max_length: int, vocab_size: int
) -> None:
    """Copies a tokenizer so that every reader of the folder cuts at `max_length`.

    The stored truncation and padding of tokenizer.json are set to the export's own (the
    original's may be of another time: all-MiniLM-L6-v2 cuts at 128 and pads to 128).
    The class is the generic fast one, which takes tokenizer.json as it is: classes of
    single architectures rebuild parts of it.

    Raises:
      ValueError: the tokenizer cannot be read, knows more tokens than the model, or
        `max_length` leaves no room for text.
    """
    import tokenizers

    tokenizer = Tokenizer.load(source)
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(
            f"{source}: the tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"embeds {vocab_size}: give the tokenizer that the model was trained with."
        )
    if max_length <= tokenizer.special_tokens:
        raise ValueError(
            f"max_length {max_length}: the tokenizer adds {tokenizer.special_tokens} "
            f"special tokens; give {tokenizer.special_tokens + 1} or more."
        )
    tokenizer.save(folder)
    file = folder / "tokenizer.json"
    stored = tokenizers.Tokenizer.from_file(str(file))
    stored.enable_truncation(max_length)
    stored.enable_padding(pad_id=tokenizer.pad_id, pad_token=tokenizer.pad_token)
    stored.save(str(file), pretty=False)
    _write_config(folder, tokenizer.pad_token, max_length)


def _write_config(folder: Path, pad_token: str, max_length: int) -> None:
    config = read_json_if_there(folder / "tokenizer_config.json")
    special = read_json_if_there(folder / "special_tokens_map.json")
    config |= {name: special[name] for name in _SPECIAL if name in special}
    config |= {
        "pad_token": pad_token,
        "model_max_length": max_length,
        "padding_side": "right",
        "truncation_side": "right",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    # A path or class of the original's would be looked up by name.
    for name in ("auto_map", "name_or_path", "tokenizer_file", "backend"):
        config.pop(name, None)
    write_json(folder / "tokenizer_config.json", config)
