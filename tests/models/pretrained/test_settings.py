"""What is read of a folder's settings, and what is refused."""

import json
import logging

import pytest

from cdejax.models.pretrained.settings import read_settings, transformer_folder

ST = "config_sentence_transformers.json"


@pytest.fixture
def write(tmp_path):
    def write(name, **content):
        (tmp_path / name).write_text(json.dumps(content))
        if name.startswith("sentence_"):  # read for a listed module alone
            listed = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
            (tmp_path / "modules.json").write_text(json.dumps(listed))
        return tmp_path

    return write


def test_an_empty_folder_has_defaults(tmp_path):
    assert read_settings(tmp_path) == {
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "max_length": 512,
        "context_length": None,
        "similarity_fn_name": "cosine",
        "truncate_dim": None,
        "normalized": False,
    }


def test_all_settings(write):
    prompts = {"query": "q: ", "document": "d: ", "sorting": "s: "}
    write("config.json", max_seq_length=77, context_max_length=32)
    folder = write(
        ST,
        prompts=prompts,
        default_prompt_name="sorting",
        similarity_fn_name="dot",
        truncate_dim=8,
    )
    assert read_settings(folder) == {
        "prompts": prompts,
        "default_prompt_name": "sorting",
        "max_length": 77,
        "context_length": 32,
        "similarity_fn_name": "dot",
        "truncate_dim": 8,
        "normalized": False,
    }


@pytest.mark.parametrize(
    ("stored", "query", "document"),
    [
        ({"search_query": "q: ", "passage": "p: ", "other": "o: "}, "q: ", "p: "),
        ({"query": "", "search_query": "q: ", "corpus": "c: "}, "", "c: "),
        ({"document": "", "passage": "p: "}, "", ""),
        ({"other": "o: "}, "", ""),
    ],
)
def test_prompts_are_looked_up(write, stored, query, document):
    prompts = read_settings(write(ST, prompts=stored))["prompts"]
    assert prompts == {**stored, "query": query, "document": document}


def test_length_limit(write):
    folder = write("tokenizer_config.json", model_max_length=10**30)
    assert read_settings(folder)["max_length"] == 512
    write("config.json", model_type="bert", max_position_embeddings=96)
    assert read_settings(folder)["max_length"] == 96
    write("config.json", model_type="roberta", max_position_embeddings=514)
    write("tokenizer_config.json", model_max_length=600)
    assert read_settings(folder)["max_length"] == 512
    write("config.json", model_type="modernbert", max_position_embeddings=8192)
    write("tokenizer_config.json", model_max_length=8192)
    assert read_settings(folder)["max_length"] == 8192
    write("sentence_roberta_config.json", max_seq_length=64)
    assert read_settings(folder)["max_length"] == 64


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "config.json"])
def test_a_stated_limit_above_the_positions_is_said_once(write, caplog, name):
    positions = {"model_type": "bert", "max_position_embeddings": 64}
    write("config.json", **positions)
    own = positions if name == "config.json" else {}
    folder = write(name, **own, max_seq_length=5000)
    with caplog.at_level(logging.WARNING, "cdejax"):
        for _ in range(2):
            assert read_settings(folder)["max_length"] == 64
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder / name}: max_seq_length is 5000, but the encoder has learned 64 "
        "positions: texts are cut to 64 tokens"
    ]


@pytest.mark.parametrize(
    ("stated", "tokenizer", "length"), [(64, 512, 64), (9, 512, 9), (None, 512, 64)]
)
def test_limits_within_the_positions_are_not_spoken_of(
    write, caplog, stated, tokenizer, length
):
    write("config.json", model_type="bert", max_position_embeddings=64)
    write("sentence_bert_config.json", max_seq_length=stated)
    folder = write("tokenizer_config.json", model_max_length=tokenizer)
    with caplog.at_level(logging.WARNING, "cdejax"):
        assert read_settings(folder)["max_length"] == length
    assert not caplog.records


def test_minilm_has_an_ordinary_limit(minilm, caplog):
    with caplog.at_level(logging.WARNING, "cdejax"):
        assert read_settings(minilm)["max_length"] == 256
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (ST, {"prompts": {"query": 3}}, "`prompts` must map names to texts"),
        (ST, {"prompts": "query"}, "`prompts` must map names to texts"),
        (ST, {"default_prompt_name": "x"}, "default_prompt_name 'x' is none of"),
        (ST, {"similarity_fn_name": "maxsim"}, "similarity_fn_name 'maxsim'"),
        (ST, {"default_prompt_name": ["query"]}, r"default_prompt_name \['query'\]"),
        (ST, {"truncate_dim": 0}, "truncate_dim 0 is no size"),
        (ST, {"truncate_dim": True}, "truncate_dim True is no size"),
        ("sentence_bert_config.json", {"max_seq_length": "9"}, "limit is '9'"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "limit is 0"),
        ("tokenizer_config.json", {"model_max_length": "9"}, "limit is '9'"),
        ("config.json", {"context_max_length": "9"}, "context_max_length '9'"),
    ],
)
def test_settings_without_meaning_are_refused(write, name, content, message):
    with pytest.raises(ValueError, match=message) as error:
        read_settings(write(name, **content))
    assert str(write(name, **content)) in str(error.value)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"model_type": ["bert"], "max_position_embeddings": 64}, 64),
        ({"model_type": "bert", "max_position_embeddings": "64"}, 512),
        ({"backbone_config": "bert"}, 512),
    ],
)
def test_what_the_model_refuses_is_left_to_it(write, config, length):
    assert read_settings(write("config.json", **config))["max_length"] == length


@pytest.mark.parametrize(
    ("model_max_length", "length"), [(None, 700), (2000, 700), (300, 300), (1e30, 700)]
)
def test_without_a_stated_limit_positions_bound_the_tokenizers(
    write, model_max_length, length
):
    write("config.json", model_type="nomic_bert", max_position_embeddings=700)
    folder = write("tokenizer_config.json", model_max_length=model_max_length)
    assert read_settings(folder)["max_length"] == length


def test_folder_of_the_encoder(tmp_path):
    assert transformer_folder(tmp_path) == tmp_path
    listed = [
        {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    assert transformer_folder(tmp_path) == tmp_path / "0_Transformer"
    (tmp_path / "modules.json").write_text("[3]")
    with pytest.raises(ValueError, match=r"a module needs texts .* not 3"):
        transformer_folder(tmp_path)
