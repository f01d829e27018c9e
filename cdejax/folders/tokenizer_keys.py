"""Tables of keys of a tokenizer's files, see `cdejax.folders.keys`."""

from __future__ import annotations

from cdejax.folders.keys import entry

_MERGED = "save the tokenizer again from transformers with it applied, without this key"
_CODE = (
    "it names code that comes with the folder, which is never run; save the tokenizer "
    "again as PreTrainedTokenizerFast"
)
_OTHER_MODEL = "remove it, or load a folder of a plain text embedding model"

TOKENIZER = (
    entry("tokenizer_class", "applied", "which class builds the tokenizer"),
    entry(
        "do_lower_case strip_accents tokenize_chinese_chars",
        "applied",
        "by the classes of BERT, DistilBERT and MPNet, which build their normaliser "
        "from these and not from tokenizer.json; other classes ignore them",
    ),
    entry(
        "unk_token sep_token pad_token cls_token mask_token bos_token eos_token",
        "applied",
        "named special tokens, added where the vocabulary lacks them",
    ),
    entry(
        "additional_special_tokens extra_special_tokens model_specific_special_tokens",
        "applied",
        "more special tokens; so is any other key that ends in `_token`",
    ),
    entry(
        "added_tokens_decoder",
        "applied",
        "added tokens with their ids; special_tokens_map.json and added_tokens.json "
        "count only where it is absent",
    ),
    entry("truncation_side", "applied", "before what tokenizer.json stores"),
    entry("model_max_length max_len", "applied", "where no `max_seq_length` is said"),
    entry("split_special_tokens", "applied", "special tokens in a text are text"),
    entry("add_prefix_space", "applied", "by the classes of RoBERTa, XLM-R and Qwen2"),
    entry("extra_ids", "applied", "by the class of T5"),
    entry(
        "padding_side",
        "applied",
        "nothing is padded on the left; `left` is refused for BERT and DistilBERT, "
        "whose learned positions would count the padding",
    ),
    entry(
        "model_input_names",
        "applied",
        "must hold input_ids and attention_mask; token_type_ids that are not 0 are "
        "refused",
    ),
    entry(
        "add_bos_token add_eos_token",
        "harmless",
        "transformers takes the special tokens of tokenizer.json, or the class's own",
    ),
    entry(
        "pad_token_type_id pad_to_multiple_of padding max_length stride truncation "
        "truncation_strategy",
        "harmless",
        "how a batch is padded, or parts of a text that is cut; neither is computed",
    ),
    entry(
        "clean_up_tokenization_spaces errors trim_offsets decoder spaces_between_"
        "special_tokens clean_up_tokenization_spaces_for_bpe_even_though_it_will_"
        "corrupt_output",
        "harmless",
        "from ids to text, or places of tokens in a text",
    ),
    entry(
        "chat_template",
        "harmless",
        "with modules.json, texts go in plain; without one, sentence-transformers puts "
        "texts into the template, which is refused",
    ),
    entry(
        "response_template response_schema chat_control_tokens",
        "harmless",
        "for chats only",
    ),
    entry(
        "name_or_path tokenizer_file vocab_file merges_file special_tokens_map_file "
        "added_tokens_file files_loaded is_local local_files_only backend use_fast "
        "from_slow verbose cache_dir token revision force_download proxies subfolder "
        "trust_remote_code slow_tokenizer_class legacy code_revision tokenizer "
        "_commit_hash _from_auto _from_pipeline",
        "harmless",
        "where files came from; transformers looks them up anew",
    ),
    entry(
        "do_basic_tokenize never_split sp_model_kwargs",
        "harmless",
        "of classes in Python that transformers 5 no longer has for these models",
    ),
    entry("auto_map", "refused", _CODE, (None, {}, [])),
    entry("processor_class", "refused", _OTHER_MODEL),
    entry(
        "fast_tokenizer_files",
        "refused",
        "it may choose another file than tokenizer.json; rename the file",
        (None, [], ["tokenizer.json"]),
    ),
    entry("init_inputs", "refused", _MERGED, (None, [], ())),
    entry(
        "vocab merges post_processor tokenizer_object tokenizer_truncation "
        "tokenizer_padding _json_truncation _json_padding _spm_precompiled_charsmap "
        "unk_id",
        "refused",
        "these belong into tokenizer.json",
    ),
    entry(
        "gguf_file tokenizer_type fix_mistral_regex mistral_format config",
        "refused",
        _MERGED,
        (None, False),
    ),
)
"""`tokenizer_config.json`, and arguments of the tokenizer elsewhere."""

SPECIAL_TOKENS = (
    entry(
        "unk_token sep_token pad_token cls_token mask_token bos_token eos_token "
        "additional_special_tokens extra_special_tokens",
        "applied",
        "where tokenizer_config.json has no `added_tokens_decoder`",
    ),
)
"""`special_tokens_map.json`"""

FAST_TOKENIZER = (
    entry(
        "model added_tokens",
        "applied",
        "the vocabulary; classes of single architectures take nothing else",
    ),
    entry(
        "normalizer pre_tokenizer post_processor",
        "applied",
        "by the generic class; the classes of single architectures have their own "
        "(XLM-R and T5 keep the character map, Qwen2 the post-processor)",
    ),
    entry("truncation", "applied", "its direction, where no `truncation_side` is said"),
    entry("padding", "applied", "its token, where no `pad_token` is said"),
    entry("decoder version", "harmless", "from ids to text"),
)
"""`tokenizer.json`"""
