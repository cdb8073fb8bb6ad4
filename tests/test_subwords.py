# SPDX-License-Identifier: Apache-2.0
"""Sub-words drawn at random: the right text, the right frequencies, the same in every process."""

import collections
import random
import subprocess
import sys

import pytest
import scipy.stats
from apps import REPOSITORY, environment

from transformer.text.subword_sampling import SubwordSampler, merged, shares
from transformer.text.tokenizer import Tokenizer

TEXT = [
    "the small house stands there where the others stood",
    "the houses stood here and there, and others were smaller",
    "a house is there; is the smallest one the oldest?",
    "who understands this understands the others, too",
] * 3
SIZES = {"bpe": 60, "unigram": 40}


@pytest.fixture(scope="module", params=SIZES)
def tokenizer(request):
    """(a vocabulary, its algorithm)."""
    return Tokenizer.train(TEXT, SIZES[request.param], request.param), request.param


SCORES = {"ab": 4.0, "cd": 3.0, "bc": 2.0, "abcd": 1.0}


@pytest.mark.parametrize(
    ("skipped", "expected"),
    [
        ("", ["abcd"]),
        ("ab bc cd", ["a", "b", "c", "d"]),
        ("ab", ["a", "b", "cd"]),  # once c and d are one, b and c no longer meet
        ("ab cd", ["a", "bc", "d"]),
        ("abcd", ["ab", "cd"]),
    ],
)
def test_merges_by_hand(skipped, expected):
    """The best-scored merge first; merges in `skipped` never happen."""
    possible = [score for piece, score in SCORES.items() if piece not in skipped.split()]
    scores = {piece: score for piece, score in SCORES.items() if score in possible}
    assert merged("abcd", scores, lambda: False) == expected


def test_without_skipping_merges_are_sentencepieces():
    tokenizer = Tokenizer.train(TEXT, SIZES["bpe"], "bpe")
    scores = tokenizer.scores()
    for ids in tokenizer.encode(TEXT):
        found = []
        for word in "".join(tokenizer.pieces(ids[:-1])).split("▁")[1:]:
            found += tokenizer.ids(merged("▁" + word, scores, lambda: False))
        assert found == ids[:-1]


def test_skipping_everything_leaves_characters():
    assert merged("abcd", SCORES, lambda: True) == list("abcd")


def test_each_possible_merge_is_skipped_with_the_probability_asked_for():
    """Of 4,000 draws of one merge with p = 0.3, the share skipped is 0.3 within 4 sigma."""
    uniform = random.Random(0).random
    draws = [merged("ab", {"ab": 1.0}, lambda: uniform() < 0.3) for _ in range(4000)]
    share = sum(draw == ["a", "b"] for draw in draws) / 4000
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5


def test_shares_by_hand():
    assert shares([-1.0, -1.0], 0.3) == pytest.approx([0.5, 0.5])
    assert shares([0.0, -1.3862944], 0.5) == pytest.approx([2 / 3, 1 / 3])  # p = 1, 1/4
    assert shares([0.0, -9.0, -99.0], 0.0) == pytest.approx([1 / 3] * 3)


def test_what_is_drawn_spells_the_same_text(tokenizer):
    vocabulary, algorithm = tokenizer
    sampler = SubwordSampler(vocabulary, algorithm, 0.3)
    other = 0
    for number, (text, ids) in enumerate(zip(TEXT, vocabulary.encode(TEXT), strict=True)):
        drawn = sampler(ids, f"seed {number}")
        assert vocabulary.decode(drawn) == text
        assert drawn == sampler(ids, f"seed {number}")
        other += drawn != ids
    assert other > len(TEXT) / 2


def test_alpha_0_is_no_dropout_with_bpe():
    vocabulary = Tokenizer.train(TEXT, SIZES["bpe"], "bpe")
    sampler = SubwordSampler(vocabulary, "bpe", 0.0)
    assert [sampler(ids, "any") for ids in vocabulary.encode(TEXT)] == vocabulary.encode(TEXT)


def test_unigram_segmentations_come_as_often_as_they_are_probable():
    """2,000 draws of one word against p^alpha of its best segmentations: chi-square at 0.1%."""
    vocabulary = Tokenizer.train(TEXT, SIZES["unigram"], "unigram")
    [ids] = vocabulary.encode(["understands"])
    scores, alpha = vocabulary.scores(), 0.1
    best = vocabulary.best_segmentations(ids[:-1], 64)
    log_probs = [sum(scores[piece] for piece in vocabulary.pieces(each)) for each in best]
    sampler = SubwordSampler(vocabulary, "unigram", alpha)
    seen = collections.Counter(tuple(sampler(ids, str(seed))[:-1]) for seed in range(2000))
    expected = [2000 * share for share in shares(log_probs, alpha)]
    assert len(best) > 8
    assert min(expected) >= 5
    found = scipy.stats.chisquare([seen[tuple(each)] for each in best], expected)
    assert found.pvalue > 0.001


def test_a_sentence_with_an_unknown_character_keeps_that_word(tokenizer):
    vocabulary, algorithm = tokenizer
    sampler = SubwordSampler(vocabulary, algorithm, 0.9)
    [ids] = vocabulary.encode(["the hoЖuse stood there"])
    for seed in range(10):
        drawn = sampler(ids, str(seed))
        assert drawn.count(3) == ids.count(3) == 1
        assert vocabulary.decode(drawn) == vocabulary.decode(ids)


PROGRAM = """
import sys
from test_subwords import SIZES, TEXT
from transformer.text.subword_sampling import SubwordSampler
from transformer.text.tokenizer import Tokenizer
for algorithm, size in SIZES.items():
    vocabulary = Tokenizer.train(TEXT, size, algorithm)
    sampler = SubwordSampler(vocabulary, algorithm, 0.4)
    print([sampler(ids, f"{number}") for number, ids in enumerate(vocabulary.encode(TEXT))])
"""


@pytest.mark.slow
def test_every_process_draws_the_same():
    """SentencePiece's own sampling does not: that is why it is not used."""
    drawn = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment() | {"PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(drawn) == 1
    assert drawn != {b""}
