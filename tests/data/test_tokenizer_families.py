"""Tokenizers of RoBERTa (byte BPE), XLM-RoBERTa (Unigram) and MPNet (WordPiece)."""

import json

import pytest

from cdejax.data.tokenizer import Tokenizer
from tests.data.test_tokenizer import ODD, real_texts

transformers = pytest.importorskip("transformers")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_bpe():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=800,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(real_texts(), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return tokenizer


def unigram():
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("\n", " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(real_texts()[:60], trainer)
    tokenizer.post_processor = ends()
    return tokenizer


def wordpiece():
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=800, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(real_texts(), trainer)
    tokenizer.post_processor = ends()
    return tokenizer


def ends():
    from tokenizers import processors

    return processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )


@pytest.fixture(scope="module", params=[byte_bpe, unigram, wordpiece])
def folder(request, tmp_path_factory):
    """A folder as published: the cut and padding stored, the mask token lstripped."""
    from tokenizers import AddedToken

    folder = tmp_path_factory.mktemp(request.param.__name__)
    tokenizer = request.param()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>", length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>"}
    names |= {"unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    config = {f"{name}_token": token for name, token in names.items()}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("max_length", [3, 24, 512])
def test_equal_transformers(folder, max_length):
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.pad_id == reference.pad_token_id == 1
    assert tokenizer.special_tokens == reference.num_special_tokens_to_add() == 2
    spelt = ["a <mask> b", "a <pad> b </s> <s>"]
    texts = real_texts()[:40] + ODD + spelt
    rows, cut = tokenizer.encode(texts, max_length)
    theirs = reference(texts, truncation=True, max_length=max_length)["input_ids"]
    assert [row.tolist() for row in rows] == theirs
    assert all(row[0] == 0 and row[-1] == 2 for row in rows)
    whole = reference(texts, verbose=False)["input_ids"]
    assert cut.tolist() == [len(row) > max_length for row in whole]


def test_the_pad_token_is_found_without_a_config(folder, tmp_path):
    text = json.loads((folder / "tokenizer.json").read_text())
    for stored in (text, text | {"padding": None, "truncation": None}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
        assert Tokenizer.load(tmp_path).pad_id == 1


def test_saved_tokenizers_load_in_transformers(folder, tmp_path):
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert reference.pad_token_id == 1
    theirs = reference(ODD, verbose=False)["input_ids"]
    assert [row.tolist() for row in tokenizer.encode(ODD)[0]] == theirs
