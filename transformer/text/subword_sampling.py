# SPDX-License-Identifier: Apache-2.0
"""Subword regularization: another segmentation of the same text each time it is read.

BPE-dropout (Provilkov et al. 2020) for bpe vocabularies, sampling among the n best segmentations
(Kudo 2018) for unigram ones. SentencePiece's samples depend on the process, not only on the
seed, but a resumed run must repeat them exactly. So SentencePiece provides scores and n-best lists,
and this module samples word by word.
"""

import bisect
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from transformer.text.tokenizer import WORD_BEGIN, Tokenizer

NUM_CANDIDATES = 64
"""Number of segmentations of a word to choose from: samples with bpe, the best with unigram (Kudo's
l). They are cached, so later epochs are read nearly as fast as without sampling.
"""


class SubwordSampler:
    """Samples segmentations of tokenized sentences."""

    def __init__(self, tokenizer: Tokenizer, algorithm: str, alpha: float):
        """Prepare the scores of the vocabulary.

        Args:
          tokenizer: the vocabulary to sample from.
          algorithm: ``bpe`` or ``unigram``.
          alpha: with bpe, the probability of skipping a merge; with unigram, the exponent of the
            probabilities of the segmentations (0: uniform).
        """
        self._tokenizer, self._alpha = tokenizer, alpha
        self._scores = tokenizer.scores()
        self._sample = {"bpe": self._sample_bpe, "unigram": self._sample_unigram}[algorithm]
        self._bpe_dropout = functools.cache(self._bpe_dropout)
        self._best = functools.cache(self._best)

    def __call__(self, ids: Sequence[int], seed: str) -> list[int]:
        """Sample another segmentation of a sentence.

        Args:
          ids: from `Tokenizer.encode`, EOS last.
          seed: equal ids and seeds give equal results in every process.
        """
        uniform = random.Random(seed).random
        sampled = (self._sample(word, uniform()) for word in self._words(ids))
        return [*itertools.chain.from_iterable(sampled), self._tokenizer.special_ids.eos]

    def _words(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Split the sentence before every subword that begins a word; EOS is left out."""
        pieces = self._tokenizer.pieces(ids[:-1])
        begins = [index for index, piece in enumerate(pieces) if piece.startswith(WORD_BEGIN)]
        for begin, end in itertools.pairwise(sorted({0, *begins, len(pieces)})):
            yield tuple(ids[begin:end])

    def _sample_bpe(self, word: tuple[int, ...], uniform: float) -> list[int]:
        return self._bpe_dropout(word, int(uniform * NUM_CANDIDATES))

    def _bpe_dropout(self, word: tuple[int, ...], number: int) -> list[int]:
        """Candidate `number` of the segmentations of a word; the number is its random seed."""
        characters = "".join(self._tokenizer.pieces(word))
        uniform = random.Random(f"{characters} {number}").random
        # Words with unknown characters, or not segmented by merges, stay as they are.
        if self._tokenizer.ids(merge(characters, self._scores, lambda: False)) != list(word):
            return list(word)
        pieces = merge(characters, self._scores, lambda: uniform() < self._alpha)
        return self._tokenizer.ids(pieces)

    def _sample_unigram(self, word: tuple[int, ...], uniform: float) -> list[int]:
        segmentations, bounds = self._best(word)
        return segmentations[bisect.bisect_right(bounds, uniform)]

    def _best(self, word: tuple[int, ...]) -> tuple[list[list[int]], list[float]]:
        """The best segmentations of a word, and the bounds of their cumulative probabilities."""
        # Words with unknown characters stay as they are: their ids do not determine their text.
        if self._tokenizer.special_ids.unk in word:
            return [list(word)], []
        best = self._tokenizer.best_segmentations(word, NUM_CANDIDATES)
        if list(word) not in best:
            return [list(word)], []
        pieces = [self._tokenizer.pieces(ids) for ids in best]
        log_probs = [sum(self._scores[piece] for piece in each) for each in pieces]
        return best, list(itertools.accumulate(sharpen(log_probs, self._alpha)))[:-1]


def merge(characters: str, scores: Mapping[str, float], skip: Callable[[], bool]) -> list[str]:
    """Segment a word by byte-pair encoding.

    Each step applies the merge of two neighbors with the best score, until none is possible. At
    every step, each possible merge is left out if `skip` returns True.
    """
    symbols = list(characters)
    while True:
        merges = [
            (scores[left + right], -index)
            for index, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in scores and not skip()
        ]
        if not merges:
            return symbols
        index = -max(merges)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]


def sharpen(log_probs: Sequence[float], alpha: float) -> list[float]:
    """p^alpha / sum p^alpha."""
    largest = max(log_probs)
    weights = [math.exp(alpha * (log_prob - largest)) for log_prob in log_probs]
    return [weight / sum(weights) for weight in weights]
