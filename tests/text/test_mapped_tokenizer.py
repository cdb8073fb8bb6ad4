# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of imported models: two SentencePiece models, one list of ids, language codes."""

import dataclasses
import random

import numpy as np
import pytest

from transformer.arrays import SpecialIds
from transformer.errors import InputError
from transformer.text.mapped_tokenizer import SPECIAL_PIECES, MappedTokenizer, MappedVocabulary
from transformer.text.subword_sampling import SubwordSampler
from transformer.text.tokenizer import Tokenizer, Vocabularies

SENTENCES = ["the tired dog sees a street", "das Tier sieht die Straße"]
PAD, BOS, EOS, UNK = SpecialIds()


@pytest.fixture(scope="module")
def vocabulary():
    """The pieces of an English and of a German model, in another order than theirs."""
    draw = random.Random(0)
    texts = ([draw.sample(one.split(), 5) for _ in range(50)] for one in SENTENCES)
    sides = [Tokenizer.train(map(" ".join, text), 60, "unigram", at_most=True) for text in texts]
    texts = sorted({piece for side in sides for piece in side.scores()}, reverse=True)
    texts.remove("r")
    pieces = (*SPECIAL_PIECES, *texts, ">>deu<<", ">>nds<<")
    return MappedVocabulary(
        *(side.model for side in sides), pieces, tuple(range(9, 9 + len(pieces)))
    )


@pytest.fixture(scope="module")
def both(vocabulary):
    return Vocabularies.shared(MappedTokenizer(vocabulary.pack()))


def multilingual(vocabulary, **fields):
    several = dataclasses.replace(vocabulary, languages=(">>deu<<", ">>nds<<"), **fields)
    return Vocabularies.shared(MappedTokenizer(several.pack()))


def test_each_side_is_segmented_by_its_model_and_numbered_by_the_list(vocabulary, both):
    for side, model, sentence in zip(
        both, (vocabulary.source_model, vocabulary.target_model), SENTENCES, strict=True
    ):
        plain = Tokenizer(model)
        pieces = plain.pieces(plain.encode([sentence])[0][:-1])
        expected = [vocabulary.pieces.index(piece) if piece != "r" else UNK for piece in pieces]
        [ids] = side.encode([sentence])
        assert ids == [*expected, EOS]
        assert side.pieces(ids[:3]) == [vocabulary.pieces[one] for one in ids[:3]]
    assert both.source.encode(SENTENCES[:1]) != both.target.encode(SENTENCES[:1])


def test_both_sides_decode_alike_and_restore_text(both):
    [ids] = both.target.encode(["die das"])
    assert both.source.decode(ids) == both.target.decode([PAD, BOS, *ids, *ids]) == "die das"
    [ids] = both.target.encode(["die r"])
    assert both.target.decode(ids) == "die  \u2047", "'r' is not in the list"


def test_text_that_looks_like_a_special_token_or_a_code_is_text(both):
    for text in ("<pad> </s> <unk>", ">>deu<< das", ">> the"):
        for ids in both.source.encode([text]) + both.target.encode([text]):
            assert ids.index(EOS) == len(ids) - 1
            assert not {PAD, BOS, both.source.ids([">>deu<<"])[0]} & set(ids)


def test_a_flat_array_has_the_same_ids(both):
    flat, lengths = both.source.encode_flat([*SENTENCES, ""], threads=2)
    assert flat.dtype == lengths.dtype == np.int32
    assert np.split(flat, lengths.cumsum()[:-1])[0].tolist() == both.source.encode(SENTENCES)[0]
    assert lengths[-1] == 1


def test_a_multilingual_source_begins_with_one_of_the_codes(vocabulary, both):
    several = multilingual(vocabulary)
    [plain], [coded] = both.source.encode(["the dog"]), several.source.encode([">>nds<< the dog"])
    assert coded == [*several.source.ids([">>nds<<"]), *plain]
    assert several.source.decode(coded) == ">>nds<< the dog"
    assert several.target.encode(["die das"]) == both.target.encode(["die das"])
    assert several.source.encode(["", "  "]) == [[EOS], [EOS]]
    for text, reason in (
        ("the dog", "no language code begins the sentence"),
        (">>fra<< the dog", "the language code >>fra<< is unknown"),
        (">> the << dog", "no language code begins the sentence"),
    ):
        with pytest.raises(InputError) as error:
            several.source.encode([">>deu<< a", text])
        assert str(error.value) == f"{reason}; begin it with one of >>deu<<, >>nds<<: {text!r}"


def test_a_default_code_serves_sources_without_one(vocabulary):
    several = multilingual(vocabulary, source_prefix=(">>deu<<",))
    default, given, other = several.source.encode(["a dog", ">>deu<< a dog", ">>nds<< a dog"])
    assert default == given != other


def test_pieces_before_every_target_are_forced_and_no_text(vocabulary, both):
    coded = dataclasses.replace(vocabulary, source_prefix=(">>nds<<",), target_prefix=(">>deu<<",))
    several = Vocabularies.shared(MappedTokenizer(coded.pack()))
    [forced] = several.target.forced_ids
    assert (both.target.forced_ids, several.source.forced_ids) == ([], [])
    [plain], [ids] = both.target.encode(["die"]), several.target.encode(["die"])
    assert ids == [forced, *plain]
    assert several.target.decode(ids) == "die"
    assert several.source.encode(["the"])[0][0] == several.source.ids([">>nds<<"])[0]


def test_subwords_are_sampled_from_the_model_of_the_side(both):
    sampler = SubwordSampler(both.source, "unigram", 0.0)
    [ids] = both.source.encode(["the dog sees the street"])
    samples = {tuple(sampler(ids, str(seed))) for seed in range(20)}
    assert len(samples) > 1
    assert {both.source.decode(sample) for sample in samples} == {both.source.decode(ids)}


def test_a_packed_vocabulary_is_loaded_as_a_tokenizer_of_two_sides(vocabulary, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(vocabulary.pack())
    loaded = Vocabularies.load(path)
    assert loaded.target.vocabulary == loaded.source.vocabulary == vocabulary
    assert loaded.are_shared
    assert (loaded.source.side, loaded.tokenizer.side) == ("source", "target")
    assert loaded.source.model == loaded.target.model == vocabulary.pack()
    assert not Vocabularies(loaded.source, MappedTokenizer(vocabulary.pack())).are_shared


def test_a_damaged_archive_is_refused_at_every_length(vocabulary):
    data = vocabulary.pack()
    for length in range(0, len(data) - 1, 97):
        with pytest.raises(InputError, match="the vocabulary"):
            MappedTokenizer(data[:length])
