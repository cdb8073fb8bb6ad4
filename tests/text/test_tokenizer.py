# SPDX-License-Identifier: Apache-2.0
"""Text survives tokenization unchanged; errors name a vocabulary size that works."""

import io
import random
import re

import pytest
import sentencepiece

from transformer.arrays import SpecialIds
from transformer.errors import InputError
from transformer.text.tokenizer import Tokenizer, Vocabularies

PAD_ID, BOS_ID, EOS_ID, UNK_ID = SpecialIds()

SENTENCES = [
    "The animal didn't cross the street because it was too tired.",
    "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "L'animal n'a pas traversé la rue : il était trop fatigué !",
    "Животное не перешло улицу, потому что слишком устало.",
    "Το ζώο δεν διέσχισε τον δρόμο.",
    "この動物は疲れていたので、道を渡らなかった。",
    "동물은 너무 피곤해서 길을 건너지 않았다.",
    "لم يعبر الحيوان الشارع لأنه كان متعبًا جدًا.",
    "जानवर ने सड़क पार नहीं की।",
    "ﬁne print: ½ km², Ⅷ, e\u0301 and é, 😀👩‍👩‍👧",
]
"""Scripts, marks and compatibility characters that normalization would change."""


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    """A subword vocabulary of the sentences above."""
    return Tokenizer.train(SENTENCES * 20, 170, request.param)


@pytest.mark.parametrize("text", SENTENCES, ids=range(len(SENTENCES)))
def test_text_of_every_script_is_restored(tokenizer, text):
    [ids] = tokenizer.encode([text])
    assert UNK_ID not in ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("blank", ["\t", "\xa0", "\u3000", "\u2028", "\x0c"], ids=ascii)
def test_every_blank_but_the_space_is_restored(blank):
    text = f"left{blank}right"
    tokenizer = Tokenizer.train([text, *SENTENCES], 250)
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_repeated_spaces_count_once_and_those_at_the_ends_not_at_all(tokenizer):
    plain, spaced, only = tokenizer.encode(["the street", "  the   street ", "   "])
    assert spaced == plain
    assert only == [EOS_ID]


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("  the   street ", "the street"),
        ("the\u2581street", "the street"),
        ("the ქ street", "the  \u2047  street"),
    ],
    ids=["runs of spaces", "U+2581", "unseen"],
)
def test_what_decoding_does_not_restore_is_as_documented(tokenizer, text, decoded):
    assert tokenizer.decode(tokenizer.encode([text])[0]) == decoded


def test_the_pieces_of_a_sentence_concatenate_to_its_text(tokenizer):
    [ids] = tokenizer.encode(["the street"])
    assert "".join(tokenizer.pieces(ids[:-1])) == "▁the▁street"


def test_ids_are_within_the_vocabulary_and_eos_is_the_last_only(tokenizer):
    assert tokenizer.vocab_size == 170
    for ids in tokenizer.encode(SENTENCES):
        assert ids[-1] == EOS_ID
        assert min(ids[:-1]) >= len(SpecialIds())
        assert max(ids) < tokenizer.vocab_size


def test_special_ids_are_read_from_the_model():
    assert Tokenizer.train(SENTENCES, 250).special_ids == SpecialIds() == (0, 1, 2, 3)
    other = SpecialIds(pad=3, bos=0, eos=2, unk=1)
    tokenizer = Tokenizer.train(SENTENCES, 250, special_ids=other)
    assert tokenizer.special_ids == other
    [ids] = tokenizer.encode(["the ქ"])
    assert ids[-1] == other.eos
    assert ids.count(other.unk) == 1
    assert tokenizer.decode([*tokenizer.encode(["the"])[0], *ids]) == "the"
    assert not {"<pad>", "<unk>", "<s>", "</s>"} & set(tokenizer.scores())


def test_text_that_looks_like_a_special_token_is_text(tokenizer):
    ids = tokenizer.encode(["<pad> <s> </s>"])[0][:-1]
    assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)


def test_decoding_stops_at_eos(tokenizer):
    [ids] = tokenizer.encode(["the street"])
    assert tokenizer.decode([*ids, *ids]) == "the street"
    assert tokenizer.decode([EOS_ID, *ids]) == ""


def test_an_empty_line_is_eos_alone(tokenizer):
    assert tokenizer.encode(["", "the", ""])[0::2] == [[EOS_ID], [EOS_ID]]
    assert tokenizer.decode([EOS_ID]) == tokenizer.decode([]) == ""


def test_unseen_characters_are_unknown(tokenizer):
    assert UNK_ID in tokenizer.encode(["ქ"])[0]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "word"])
def test_training_twice_gives_the_same_bytes(algorithm):
    size = {"bpe": 320, "unigram": 170, "word": 60}[algorithm]
    first, second = (Tokenizer.train(SENTENCES * 20, size, algorithm).model for _ in range(2))
    assert first == second


def test_a_sample_of_a_larger_corpus_is_the_same_sample_twice():
    generator = random.Random(0)
    lines = ["".join(generator.choices("abcdefg ", k=20)) for _ in range(400)]
    sampled = [Tokenizer.train(lines, 40, max_sentences=200).model for _ in range(2)]
    assert sampled[0] == sampled[1]
    assert sampled[0] != Tokenizer.train(lines, 40).model


def test_sentences_may_be_any_iterable():
    listed = Tokenizer.train(SENTENCES, 250)
    assert Tokenizer.train((line for line in SENTENCES), 250).model == listed.model


def test_the_order_of_a_small_corpus_does_not_matter():
    assert Tokenizer.train(SENTENCES[::-1], 250).model == Tokenizer.train(SENTENCES, 250).model


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_characters_beyond_the_coverage_are_left_out(algorithm):
    lines = ["abab baba aabb"] * 99 + ["ababq"]
    full = Tokenizer.train(lines, 9, algorithm)
    most = Tokenizer.train(lines, 9, algorithm, character_coverage=0.999)
    assert UNK_ID not in full.encode(["abq"])[0]
    ids = most.encode(["abq"])[0]
    assert ids.count(UNK_ID) == 1
    assert UNK_ID not in most.encode(["abab"])[0]


def test_a_word_vocabulary_has_one_id_for_each_word():
    tokenizer = Tokenizer.train(["b a", "a c"], 7, "word")
    [[a, b, c, end]] = tokenizer.encode(["a b c"])
    assert end == EOS_ID
    assert {a, b, c} == {4, 5, 6}
    assert tokenizer.decode([a, b, c, end]) == "a b c"


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "word"])
def test_a_vocabulary_too_large_for_the_corpus_raises_an_error_with_a_size_that_works(algorithm):
    with pytest.raises(InputError, match="model.vocab_size is 5000") as raised:
        Tokenizer.train(SENTENCES, 5000, algorithm)
    [named] = re.findall(r"--config\.model\.vocab_size=(\d+)", str(raised.value))
    tokenizer = Tokenizer.train(SENTENCES, int(named), algorithm)
    assert tokenizer.vocab_size == int(named)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_vocabulary_too_small_for_the_characters_raises_an_error_with_a_size_that_works(
    algorithm,
):
    with pytest.raises(InputError, match="model.vocab_size is 50") as raised:
        Tokenizer.train(SENTENCES, 50, algorithm)
    assert "--config.model.vocab_size" in str(raised.value)
    named = max(map(int, re.findall(r"\d+", str(raised.value))))
    assert named > 50
    tokenizer = Tokenizer.train(SENTENCES, named, algorithm)
    assert tokenizer.vocab_size == named


def test_at_most_takes_what_a_small_corpus_supports():
    sentences = ["the cat", "the dog"]
    with pytest.raises(InputError) as raised:
        Tokenizer.train(sentences, 1000)
    supported = Tokenizer.train(sentences, 1000, at_most=True).vocab_size
    assert f"supports at most {supported};" in str(raised.value)
    assert Tokenizer.train(sentences, supported).vocab_size == supported


def test_a_sentence_of_any_length_is_trained_on():
    tokenizer = Tokenizer.train(["x y", "ab " * 3000], 12, at_most=True)
    assert tokenizer.special_ids.unk not in tokenizer.encode(["ab"])[0]


@pytest.mark.parametrize("sentences", [[], ["", " "]], ids=["nothing", "empty lines"])
def test_an_empty_corpus_raises_an_error(sentences):
    with pytest.raises(InputError, match="model.vocab_size"):
        Tokenizer.train(sentences, 100)


def test_a_model_without_a_padding_id_raises_an_error():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=170, minloglevel=2
    )
    with pytest.raises(InputError) as raised:
        Tokenizer(model.getvalue())
    assert "[-1, 1, 2, 0]" in str(raised.value)
    assert "needs an id for each" in str(raised.value)


def test_a_saved_tokenizer_is_loaded_unchanged(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.model)
    loaded = Tokenizer.load(path)
    assert loaded.model == tokenizer.model
    assert loaded.encode(SENTENCES) == tokenizer.encode(SENTENCES)


@pytest.mark.parametrize("data", [None, b"", b"not a model", b"\x00" * 99])
def test_an_invalid_file_raises_an_error_with_its_path_and_a_remedy(tmp_path, data):
    path = tmp_path / "tokenizer.model"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match="restore the workdir from a copy") as raised:
        Tokenizer.load(path)
    assert str(path) in str(raised.value)


def test_a_damaged_vocabulary_of_an_imported_model_is_named(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"PK\x03\x04" + bytes(50))
    with pytest.raises(InputError, match="cannot be read .*; restore the file") as raised:
        Tokenizer.load(path)
    assert str(path) in str(raised.value)


def test_a_truncated_tokenizer_raises_an_error(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.model[: len(tokenizer.model) // 2])
    with pytest.raises(InputError) as raised:
        Tokenizer.load(path)
    assert str(path) in str(raised.value)


def test_vocabularies_are_shared_or_separate(tmp_path):
    models = {
        "target": Tokenizer.train(["a b"], 6, "word"),
        "source": Tokenizer.train(["c"], 5, "word"),
    }
    for name, tokenizer in models.items():
        (tmp_path / name).write_bytes(tokenizer.model)
    shared = Vocabularies.load(tmp_path / "target")
    assert shared.are_shared
    assert shared.source.model == models["target"].model
    separate = Vocabularies.load(tmp_path / "target", tmp_path / "source")
    assert not separate.are_shared
    assert (separate.source.vocab_size, separate.target.vocab_size) == (5, 6)
    with pytest.raises(InputError, match="missing is not a tokenizer"):
        Vocabularies.load(tmp_path / "target", tmp_path / "missing")
