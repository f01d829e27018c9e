"""Every key of a model folder that transformers or sentence-transformers act on.

Each is applied, harmless for vectors and token ids, or refused by its name. Keys that
are in no table are those that neither library acts on; they are left alone. The tables
follow transformers 5.24 and sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cdejax.folders.reading import is_file

Act = Literal["applied", "harmless", "refused"]


@dataclass(frozen=True)
class Key:
    """Keys of one file that are treated alike."""

    names: tuple[str, ...]
    act: Act
    note: str
    """What they do; why they are harmless; what to do where they are refused."""
    neutral: tuple[Any, ...] = (None,)
    """Values of a refused key that ask for nothing."""


def _key(names: str, act: Act, note: str, neutral: tuple[Any, ...] = (None,)) -> Key:
    return Key(tuple(names.split()), act, note, neutral)


_PLAIN = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_MERGED = "save the tokenizer again from transformers with it applied, without this key"
_CODE = (
    "it names code that comes with the folder, which is never run; save the tokenizer "
    "again as PreTrainedTokenizerFast"
)
_OTHER_MODEL = "remove it, or load a folder of a plain text embedding model"

TOKENIZER = (
    _key("tokenizer_class", "applied", "which class builds the tokenizer"),
    _key(
        "do_lower_case strip_accents tokenize_chinese_chars",
        "applied",
        "by the classes of BERT, DistilBERT and MPNet, which build their normaliser "
        "from these and not from tokenizer.json; other classes ignore them",
    ),
    _key(
        "unk_token sep_token pad_token cls_token mask_token bos_token eos_token",
        "applied",
        "named special tokens, added where the vocabulary lacks them",
    ),
    _key(
        "additional_special_tokens extra_special_tokens model_specific_special_tokens",
        "applied",
        "more special tokens; so is any other key that ends in `_token`",
    ),
    _key(
        "added_tokens_decoder",
        "applied",
        "added tokens with their ids; special_tokens_map.json and added_tokens.json "
        "count only where it is absent",
    ),
    _key("truncation_side", "applied", "before what tokenizer.json stores"),
    _key("model_max_length max_len", "applied", "where no `max_seq_length` is said"),
    _key("split_special_tokens", "applied", "special tokens in a text are text"),
    _key("add_prefix_space", "applied", "by the classes of RoBERTa, XLM-R and Qwen2"),
    _key("extra_ids", "applied", "by the class of T5"),
    _key(
        "padding_side",
        "applied",
        "nothing is padded on the left; `left` is refused for BERT and DistilBERT, "
        "whose learned positions would count the padding",
    ),
    _key(
        "model_input_names",
        "applied",
        "must hold input_ids and attention_mask; token_type_ids that are not 0 are "
        "refused",
    ),
    _key(
        "add_bos_token add_eos_token",
        "harmless",
        "transformers takes the special tokens of tokenizer.json, or the class's own",
    ),
    _key(
        "pad_token_type_id pad_to_multiple_of padding max_length stride truncation "
        "truncation_strategy",
        "harmless",
        "how a batch is padded, or parts of a text that is cut; neither is computed",
    ),
    _key(
        "clean_up_tokenization_spaces errors trim_offsets decoder spaces_between_"
        "special_tokens clean_up_tokenization_spaces_for_bpe_even_though_it_will_"
        "corrupt_output",
        "harmless",
        "from ids to text, or places of tokens in a text",
    ),
    _key(
        "chat_template",
        "harmless",
        "with modules.json, texts go in plain; without one, sentence-transformers puts "
        "texts into the template, which is refused",
    ),
    _key(
        "response_template response_schema chat_control_tokens",
        "harmless",
        "for chats only",
    ),
    _key(
        "name_or_path tokenizer_file vocab_file merges_file special_tokens_map_file "
        "added_tokens_file files_loaded is_local local_files_only backend use_fast "
        "from_slow verbose cache_dir token revision force_download proxies subfolder "
        "trust_remote_code slow_tokenizer_class legacy code_revision tokenizer "
        "_commit_hash _from_auto _from_pipeline",
        "harmless",
        "where files came from; transformers looks them up anew",
    ),
    _key(
        "do_basic_tokenize never_split sp_model_kwargs",
        "harmless",
        "of classes in Python that transformers 5 no longer has for these models",
    ),
    _key("auto_map", "refused", _CODE, (None, {}, [])),
    _key("processor_class", "refused", _OTHER_MODEL),
    _key(
        "fast_tokenizer_files",
        "refused",
        "it may choose another file than tokenizer.json; rename the file",
        (None, [], ["tokenizer.json"]),
    ),
    _key("init_inputs", "refused", _MERGED, (None, [], ())),
    _key(
        "vocab merges post_processor tokenizer_object tokenizer_truncation "
        "tokenizer_padding _json_truncation _json_padding _spm_precompiled_charsmap "
        "unk_id",
        "refused",
        "these belong into tokenizer.json",
    ),
    _key(
        "gguf_file tokenizer_type fix_mistral_regex mistral_format config",
        "refused",
        _MERGED,
        (None, False),
    ),
)
"""`tokenizer_config.json`, and arguments of the tokenizer elsewhere."""

SPECIAL_TOKENS = (
    _key(
        "unk_token sep_token pad_token cls_token mask_token bos_token eos_token "
        "additional_special_tokens extra_special_tokens",
        "applied",
        "where tokenizer_config.json has no `added_tokens_decoder`",
    ),
)
"""`special_tokens_map.json`"""

FAST_TOKENIZER = (
    _key(
        "model added_tokens",
        "applied",
        "the vocabulary; classes of single architectures take nothing else",
    ),
    _key(
        "normalizer pre_tokenizer post_processor",
        "applied",
        "by the generic class; the classes of single architectures have their own "
        "(XLM-R and T5 keep the character map, Qwen2 the post-processor)",
    ),
    _key("truncation", "applied", "its direction, where no `truncation_side` is said"),
    _key("padding", "applied", "its token, where no `pad_token` is said"),
    _key("decoder version", "harmless", "from ids to text"),
)
"""`tokenizer.json`"""

MODULE = (
    _key("max_seq_length", "applied", "longest text"),
    _key("do_lower_case", "applied", "lower-cases in front of the tokenizer"),
    _key(
        "tokenizer_args processor_kwargs",
        "applied",
        "as keys of tokenizer_config.json, before those",
    ),
    _key("config_args config_kwargs", "applied", "as keys of config.json"),
    _key(
        "model_args model_kwargs",
        "applied",
        "key by key, in a table of their own",
    ),
    _key("backend unpad_inputs", "harmless", "how the same vectors are computed"),
    _key(
        "transformer_task",
        "refused",
        "only feature extraction is computed; remove it",
        (None, "feature-extraction"),
    ),
    _key(
        "module_output_name",
        "refused",
        "only token vectors are computed; remove it",
        (None, "token_embeddings"),
    ),
    _key(
        "modality_config",
        "refused",
        "only texts that go in plain are computed; remove it",
        (
            None,
            {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        ),
    ),
    _key(
        "query_length document_length query_expansion",
        "refused",
        "texts of every kind have one limit; use `max_seq_length`",
    ),
    _key(
        "processing_kwargs",
        "refused",
        "texts are tokenised without other settings; remove it",
        (None, {}),
    ),
    _key(
        "tokenizer_name_or_path",
        "refused",
        "the tokenizer is read from the folder; copy its files there",
    ),
)
"""`sentence_bert_config.json`, or an older name of it; all other keys are refused,
since sentence-transformers does not load a folder that has one."""

MODEL_ARGUMENTS = (
    _key(
        "add_pooling_layer attn_implementation device_map low_cpu_mem_usage "
        "use_safetensors trust_remote_code token revision cache_dir local_files_only "
        "subfolder",
        "harmless",
        "how the same vectors are computed, and from which copy",
    ),
    _key(
        "dtype torch_dtype",
        "harmless",
        "precision is chosen here by `dtype`; parameters are float32",
    ),
)
"""`model_args` in sentence_bert_config.json; all other keys are refused."""

SENTENCE_TRANSFORMERS = (
    _key(
        "prompts default_prompt_name similarity_fn_name truncate_dim",
        "applied",
        "read, used and written back",
    ),
    _key("__version__ requirements", "harmless", "which versions wrote it"),
    _key(
        "model_type",
        "refused",
        "only models of one vector a text are computed",
        (None, "SentenceTransformer"),
    ),
)
"""`config_sentence_transformers.json`"""

MODULES = (
    _key(
        "type path",
        "applied",
        "Transformer, Pooling, then Dense, LayerNorm and Normalize of "
        "sentence-transformers; any other is refused",
    ),
    _key("name", "applied", "one that repeats is refused"),
    _key("idx kwargs", "harmless", "the order is that of the list"),
)
"""Entries of `modules.json`"""

ENCODER = (
    _key("model_type", "applied", "the architecture"),
    _key("tokenizer_class", "applied", "where tokenizer_config.json names none"),
    _key(
        "max_seq_length",
        "applied",
        "of our own contextual exports, where no module says it",
    ),
    _key(
        "dtype torch_dtype",
        "harmless",
        "precision is chosen here by `dtype`; sentence-transformers computes in the "
        "type that is named, and agrees within its rounding",
    ),
    _key(
        "architectures auto_map attn_implementation _attn_implementation use_cache "
        "chunk_size_feed_forward output_hidden_states output_attentions return_dict "
        "tie_word_embeddings id2label label2id problem_type torchscript "
        "gradient_checkpointing is_encoder_decoder transformers_version",
        "harmless",
        "how the same vectors are computed, or of heads that are not read",
    ),
    _key(
        "quantization_config",
        "refused",
        "save the model without quantisation, in float32, bfloat16 or float16",
        (None, {}),
    ),
    _key("pruned_heads", "refused", "save the model without pruned heads", (None, {})),
    _key(
        "add_cross_attention",
        "refused",
        "only encoders are computed",
        (None, False),
    ),
)
"""`config.json`: the sizes and switches of an architecture are applied, or refused
where it computes another value, by the architecture's own reader."""

POOLING = (
    _key(
        "pooling_mode pooling_mode_cls_token pooling_mode_max_tokens "
        "pooling_mode_mean_tokens pooling_mode_mean_sqrt_len_tokens "
        "pooling_mode_weightedmean_tokens pooling_mode_lasttoken include_prompt",
        "applied",
        "how token vectors become one",
    ),
    _key(
        "embedding_dimension word_embedding_dimension",
        "applied",
        "checked against the encoder",
    ),
)
"""`N_Pooling/config.json`"""

HEAD = (
    _key(
        "in_features out_features bias activation_function use_residual dimension",
        "applied",
        "Dense and LayerNorm; activations of torch only",
    ),
    _key(
        "module_input_name module_output_name",
        "refused",
        "heads work on the pooled vector; remove it",
        (None, "sentence_embedding"),
    ),
)
"""`config.json` of Dense, LayerNorm and Normalize"""

TABLES = {
    "tokenizer_config.json": TOKENIZER,
    "special_tokens_map.json": SPECIAL_TOKENS,
    "tokenizer.json": FAST_TOKENIZER,
    "sentence_bert_config.json": MODULE,
    "sentence_bert_config.json: model_args": MODEL_ARGUMENTS,
    "config_sentence_transformers.json": SENTENCE_TRANSFORMERS,
    "modules.json": MODULES,
    "config.json": ENCODER,
    "N_Pooling/config.json": POOLING,
    "N_Dense, N_LayerNorm, N_Normalize/config.json": HEAD,
}


def names(table: tuple[Key, ...], act: Act | None = None) -> set[str]:
    """The keys of a table, of one kind or all."""
    return {n for key in table if act in (None, key.act) for n in key.names}


def check_keys(
    raw: Mapping[str, Any],
    table: tuple[Key, ...],
    source: str,
    *,
    closed: bool = False,
) -> None:
    """Refuses what a table refuses.

    Args:
      raw: the content of a file.
      table: of that file.
      source: its name, for messages.
      closed: refuse keys that are not in the table, too.

    Raises:
      ValueError: a key has a value that is refused; names file, key, value and remedy.
    """
    for key in table:
        for name in key.names if key.act == "refused" else ():
            if raw.get(name) not in key.neutral:
                raise ValueError(f"{source}: {name} is {raw[name]!r:.80}: {key.note}")
    unknown = sorted(set(raw) - names(table)) if closed else []
    if unknown:
        raise ValueError(
            f"{source}: {unknown[0]} is {raw[unknown[0]]!r:.80}, which cdejax does not "
            f"know; remove it (known are {', '.join(sorted(names(table)))})"
        )


def refuse_adapters(folder: Path) -> None:
    """ValueError where a folder holds an adapter, which both libraries would apply."""
    file = folder / "adapter_config.json"
    if is_file(file):
        raise ValueError(
            f"{file}: an adapter, which is not applied: merge the adapter first "
            "(PeftModel.merge_and_unload, then save_pretrained), and leave "
            "adapter_config.json out"
        )


def markdown() -> str:
    """The tables as one table in Markdown, for docs/interop.md."""
    lines = ["| file | keys | | why |", "| --- | --- | --- | --- |"]
    for file, table in TABLES.items():
        for key in table:
            listed = ", ".join(f"`{name}`" for name in key.names)
            lines.append(f"| {file} | {listed} | {key.act} | {key.note} |")
    return "\n".join(lines) + "\n"
