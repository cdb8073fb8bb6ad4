# SPDX-License-Identifier: Apache-2.0
"""Subword regularisation: the same text, cut into other sub-words each time it is read.

BPE-dropout (Provilkov et al. 2020) for byte-pair vocabularies, sampling among the best
segmentations (Kudo 2018) for unigram ones. SentencePiece samples too, but what it draws for a seed
differs from process to process, and here a run that is killed goes on bit for bit; so it gives the
scores and the n best, and the drawing is done here, word by word.
"""

import bisect
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from transformer.arrays import EOS_ID
from transformer.text.tokenizer import WORD_BEGIN, Tokenizer

CHOICES = 64
"""How many segmentations a word has to choose from: draws with bpe, the best with unigram (Kudo's
l). Each is found once, so that later epochs are read nearly as fast as without sampling.
"""


class SubwordSampler:
    """Draws segmentations of tokenized sentences."""

    def __init__(self, tokenizer: Tokenizer, algorithm: str, alpha: float):
        """Prepares the vocabulary.

        Args:
          tokenizer: whose sub-words they are.
          algorithm: ``bpe`` or ``unigram``.
          alpha: with bpe the probability that a merge is skipped; with unigram the exponent of the
            segmentations' probabilities, 0 making all alike.
        """
        self._tokenizer, self._alpha = tokenizer, alpha
        self._scores = tokenizer.scores()
        self._segment = {"bpe": self._by_dropout, "unigram": self._by_probability}[algorithm]
        self._dropped = functools.cache(self._dropped)
        self._best = functools.cache(self._best)

    def __call__(self, ids: Sequence[int], seed: str) -> list[int]:
        """Another segmentation of a sentence.

        Args:
          ids: from `Tokenizer.encode`, the end token last.
          seed: the same ids with the same seed give the same result, in every process.
        """
        uniform = random.Random(seed).random
        drawn = itertools.chain.from_iterable(
            self._segment(word, uniform()) for word in self._words_of(ids)
        )
        return [*drawn, EOS_ID]

    def _words_of(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The sentence cut before every sub-word that begins a word, the end token left out."""
        pieces = self._tokenizer.pieces(ids[:-1])
        begins = [place for place, piece in enumerate(pieces) if piece.startswith(WORD_BEGIN)]
        for begin, end in itertools.pairwise(sorted({0, *begins, len(pieces)})):
            yield tuple(ids[begin:end])

    def _by_dropout(self, word: tuple[int, ...], uniform: float) -> list[int]:
        return self._dropped(word, int(uniform * CHOICES))

    def _dropped(self, word: tuple[int, ...], number: int) -> list[int]:
        """The word's segmentation of that number; which one that is, is drawn by the number."""
        characters = "".join(self._tokenizer.pieces(word))
        uniform = random.Random(f"{characters} {number}").random
        # What has an unknown character, or was not cut by merges, stays as it is.
        if self._tokenizer.ids(merged(characters, self._scores, lambda: False)) != list(word):
            return list(word)
        drawn = merged(characters, self._scores, lambda: uniform() < self._alpha)
        return self._tokenizer.ids(drawn)

    def _by_probability(self, word: tuple[int, ...], uniform: float) -> list[int]:
        segmentations, bounds = self._best(word)
        return segmentations[bisect.bisect_right(bounds, uniform)]

    def _best(self, word: tuple[int, ...]) -> tuple[list[list[int]], list[float]]:
        """The word's best segmentations, and up to which random number each is taken."""
        best = self._tokenizer.best_segmentations(word, CHOICES)
        # What has an unknown character stays as it is: its text is not to be had from its ids.
        if list(word) not in best:
            return [list(word)], []
        pieces = [self._tokenizer.pieces(ids) for ids in best]
        log_probs = [sum(self._scores[piece] for piece in each) for each in pieces]
        return best, list(itertools.accumulate(shares(log_probs, self._alpha)))[:-1]


def merged(characters: str, scores: Mapping[str, float], skip: Callable[[], bool]) -> list[str]:
    """Byte-pair encoding of a word: the best-scored merge of two neighbours, again and again, where
    at each step every possible merge is left out when `skip` says so, until none is left.
    """
    symbols = list(characters)
    while True:
        merges = [
            (scores[left + right], -place)
            for place, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in scores and not skip()
        ]
        if not merges:
            return symbols
        place = -max(merges)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def shares(log_probs: Sequence[float], alpha: float) -> list[float]:
    """p^alpha / sum p^alpha."""
    most = max(log_probs)
    weights = [math.exp(alpha * (log_prob - most)) for log_prob in log_probs]
    return [weight / sum(weights) for weight in weights]
