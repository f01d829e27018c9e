"""Tables of keys of a model's own files, see `cdejax.folders.keys`."""

from __future__ import annotations

from cdejax.folders.keys import entry

_PLAIN = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}

MODULE = (
    entry("max_seq_length", "applied", "longest text"),
    entry("do_lower_case", "applied", "lower-cases in front of the tokenizer"),
    entry(
        "tokenizer_args processor_kwargs",
        "applied",
        "as keys of tokenizer_config.json, before those",
    ),
    entry("config_args config_kwargs", "applied", "as keys of config.json"),
    entry(
        "model_args model_kwargs",
        "applied",
        "key by key, in a table of their own",
    ),
    entry("backend unpad_inputs", "harmless", "how the same vectors are computed"),
    entry(
        "transformer_task",
        "refused",
        "only feature extraction is computed; remove it",
        (None, "feature-extraction"),
    ),
    entry(
        "module_output_name",
        "refused",
        "only token vectors are computed; remove it",
        (None, "token_embeddings"),
    ),
    entry(
        "modality_config",
        "refused",
        "only texts that go in plain are computed; remove it",
        (None, _PLAIN),
    ),
    entry(
        "query_length document_length query_expansion",
        "refused",
        "texts of every kind have one limit; use `max_seq_length`",
    ),
    entry(
        "processing_kwargs",
        "refused",
        "texts are tokenised without other settings; remove it",
        (None, {}),
    ),
    entry(
        "tokenizer_name_or_path",
        "refused",
        "the tokenizer is read from the folder; copy its files there",
    ),
)
"""`sentence_bert_config.json`, or an older name of it; all other keys are refused,
since sentence-transformers does not load a folder that has one."""

MODEL_ARGUMENTS = (
    entry(
        "add_pooling_layer attn_implementation device_map low_cpu_mem_usage "
        "use_safetensors trust_remote_code token revision cache_dir local_files_only "
        "subfolder",
        "harmless",
        "how the same vectors are computed, and from which copy",
    ),
    entry(
        "dtype torch_dtype",
        "harmless",
        "precision is chosen here by `dtype`; parameters are float32",
    ),
)
"""`model_args` in sentence_bert_config.json; all other keys are refused."""

SENTENCE_TRANSFORMERS = (
    entry(
        "prompts default_prompt_name similarity_fn_name truncate_dim",
        "applied",
        "read, used and written back",
    ),
    entry("__version__ requirements", "harmless", "which versions wrote it"),
    entry(
        "model_type",
        "refused",
        "only models of one vector a text are computed",
        (None, "SentenceTransformer"),
    ),
)
"""`config_sentence_transformers.json`"""

MODULES = (
    entry(
        "type path",
        "applied",
        "Transformer, Pooling, then Dense, LayerNorm and Normalize of "
        "sentence-transformers; any other is refused",
    ),
    entry("name", "applied", "one that repeats is refused"),
    entry("idx kwargs", "harmless", "the order is that of the list"),
)
"""Entries of `modules.json`"""

ENCODER = (
    entry("model_type", "applied", "the architecture"),
    entry("tokenizer_class", "applied", "where tokenizer_config.json names none"),
    entry(
        "max_seq_length",
        "applied",
        "of our own contextual exports, where no module says it",
    ),
    entry(
        "dtype torch_dtype",
        "harmless",
        "precision is chosen here by `dtype`; sentence-transformers computes in the "
        "type that is named, and agrees within its rounding",
    ),
    entry(
        "architectures auto_map attn_implementation _attn_implementation use_cache "
        "chunk_size_feed_forward output_hidden_states output_attentions return_dict "
        "tie_word_embeddings id2label label2id problem_type torchscript "
        "gradient_checkpointing is_encoder_decoder transformers_version",
        "harmless",
        "how the same vectors are computed, or of heads that are not read",
    ),
    entry(
        "quantization_config",
        "refused",
        "save the model without quantisation, in float32, bfloat16 or float16",
        (None, {}),
    ),
    entry("pruned_heads", "refused", "save the model without pruned heads", (None, {})),
    entry(
        "add_cross_attention",
        "refused",
        "only encoders are computed",
        (None, False),
    ),
)
"""`config.json`: the sizes and switches of an architecture are applied, or refused
where it computes another value, by the architecture's own reader."""

POOLING = (
    entry(
        "pooling_mode pooling_mode_cls_token pooling_mode_max_tokens "
        "pooling_mode_mean_tokens pooling_mode_mean_sqrt_len_tokens "
        "pooling_mode_weightedmean_tokens pooling_mode_lasttoken include_prompt",
        "applied",
        "how token vectors become one",
    ),
    entry(
        "embedding_dimension word_embedding_dimension",
        "applied",
        "checked against the encoder",
    ),
)
"""`N_Pooling/config.json`"""

HEAD = (
    entry(
        "in_features out_features bias activation_function use_residual dimension",
        "applied",
        "Dense and LayerNorm; activations of torch only",
    ),
    entry(
        "module_input_name module_output_name",
        "refused",
        "heads work on the pooled vector; remove it",
        (None, "sentence_embedding"),
    ),
)
"""`config.json` of Dense, LayerNorm and Normalize"""
