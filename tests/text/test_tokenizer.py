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


def test_text_of_every_script_is_restored(tokenizer):
    for text, ids in zip(SENTENCES, tokenizer.encode(SENTENCES), strict=True):
        assert UNK_ID not in ids
        assert tokenizer.decode(ids) == text


def test_every_blank_but_the_space_is_restored():
    for blank in "\t\xa0\u3000\u2028\x0c":
        text = f"left{blank}right"
        tokenizer = Tokenizer.train([text, *SENTENCES], 250)
        assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_what_decoding_does_not_restore_is_as_documented(tokenizer):
    plain, spaced, only = tokenizer.encode(["the street", "  the   street ", "   "])
    assert spaced == plain
    assert only == [EOS_ID]
    for text, decoded in (
        ("  the   street ", "the street"),
        ("the\u2581street", "the street"),
        ("the ქ street", "the  \u2047  street"),  # unseen in training
    ):
        assert tokenizer.decode(tokenizer.encode([text])[0]) == decoded
    assert UNK_ID in tokenizer.encode(["ქ"])[0]


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
    # An empty line is EOS alone.
    assert tokenizer.encode(["", "the", ""])[0::2] == [[EOS_ID], [EOS_ID]]
    assert tokenizer.decode([EOS_ID]) == tokenizer.decode([]) == ""


def test_training_twice_gives_the_same_bytes():
    """From any iterable, and whatever the order of a small corpus."""
    for algorithm, size in (("bpe", 320), ("unigram", 170), ("word", 60)):
        first, second = (Tokenizer.train(SENTENCES * 20, size, algorithm).model for _ in range(2))
        assert first == second
    listed = Tokenizer.train(SENTENCES, 250).model
    assert Tokenizer.train((line for line in SENTENCES), 250).model == listed
    assert Tokenizer.train(SENTENCES[::-1], 250).model == listed
    # A sample of a larger corpus is the same sample twice.
    generator = random.Random(0)
    lines = ["".join(generator.choices("abcdefg ", k=20)) for _ in range(400)]
    sampled = [Tokenizer.train(lines, 40, max_sentences=200).model for _ in range(2)]
    assert sampled[0] == sampled[1]
    assert sampled[0] != Tokenizer.train(lines, 40).model


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


def test_an_empty_corpus_raises_an_error():
    for sentences in ([], ["", " "]):
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


def test_an_invalid_file_raises_an_error_with_its_path_and_a_remedy(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    workdir, archive = "restore the workdir from a copy", "cannot be read .*; restore the file"
    for data, remedy in (
        (None, workdir),
        (b"", workdir),
        (b"not a model", workdir),
        (bytes(99), workdir),
        (tokenizer.model[: len(tokenizer.model) // 2], workdir),
        (b"PK\x03\x04" + bytes(50), archive),  # the vocabulary of an imported model
    ):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(InputError, match=remedy) as raised:
            Tokenizer.load(path)
        assert str(path) in str(raised.value)


def test_a_model_that_was_cut_is_refused_wherever_it_ends(tmp_path):
    """SentencePiece loads a model whose last pieces are missing."""
    model, path = Tokenizer.train(["a b c"] * 9, 12, "bpe", at_most=True).model, tmp_path / "model"
    for length in range(len(model)):
        path.write_bytes(model[:length])
        with pytest.raises(InputError, match="model is not a tokenizer"):
            Tokenizer.load(path)
    path.write_bytes(model)
    assert Tokenizer.load(path).model == model


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
    with pytest.raises(InputError, match="separate vocabularies"):
        _ = separate.tokenizer
    with pytest.raises(InputError, match="missing is not a tokenizer"):
        Vocabularies.load(tmp_path / "target", tmp_path / "missing")
