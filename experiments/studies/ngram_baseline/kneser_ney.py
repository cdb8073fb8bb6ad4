# SPDX-License-Identifier: Apache-2.0
"""The interpolated modified Kneser-Ney n-gram model (Chen and Goodman 1999)."""

import dataclasses
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

Ngram = tuple[int, ...]
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts of an order whose counts of counts do not determine them, as in KenLM."""


def discounts(counts: Iterable[int]) -> tuple[float, float, float]:
    """D1, D2 and D3+ from the counts of one order (Chen and Goodman 1999, section 3).

    With n_r n-grams of count r and Y = n1 / (n1 + 2 n2): D_r = r - (r + 1) Y n_(r+1) / n_r.
    """
    number = Counter(count for count in counts if count <= 4)
    if not all(number[r] for r in (1, 2, 3, 4)):
        return FALLBACK_DISCOUNTS
    y = number[1] / (number[1] + 2 * number[2])
    estimated = tuple(r - (r + 1) * y * number[r + 1] / number[r] for r in (1, 2, 3))
    # Counts that grow from n_r to n_(r+1) would give a negative discount.
    return estimated if min(estimated) >= 0 else FALLBACK_DISCOUNTS


@dataclasses.dataclass(frozen=True)
class _History:
    """Counts of the tokens that follow one history."""

    counts: dict[int, int]
    total: int
    backoff: float
    """The probability mass that the discounts leave to the lower order."""


class KneserNey:
    """The interpolated modified Kneser-Ney model.

    p(w | h) = max(c(hw) - D(c(hw)), 0) / c(h) + backoff(h) p(w | h'), where h' is h without its
    first token. The highest order has the counts of the text. A lower order counts the distinct
    tokens that precede an n-gram. Below the unigrams is the uniform distribution.
    """

    def __init__(self, sentences: Iterable[Sequence[int]], order: int, bos: int, num_tokens: int):
        """Count the n-grams of sentences.

        Args:
          sentences: token IDs, EOS last.
          order: n.
          bos: ID that fills the history before a sentence; it is never predicted.
          num_tokens: number of tokens that may be predicted.
        """
        self.order, self.bos, self.num_tokens = order, bos, num_tokens
        counts: Counter[Ngram] = Counter()
        for sentence in sentences:
            padded = (*[bos] * (order - 1), *sentence)
            counts.update(padded[i : i + order] for i in range(len(sentence)))
        self._histories: list[dict[Ngram, _History]] = []
        self._discounts: list[tuple[float, float, float]] = []
        for _ in range(order):
            self._add_order(counts)
            counts = Counter(ngram[1:] for ngram in counts)  # Each n-gram is one predecessor.
        self._histories.reverse()
        self._discounts.reverse()

    def _add_order(self, counts: Counter[Ngram]) -> None:
        """Add the tables of one order, the highest first."""
        discount = discounts(counts.values())
        followers: defaultdict[Ngram, dict[int, int]] = defaultdict(dict)
        for ngram, count in counts.items():
            followers[ngram[:-1]][ngram[-1]] = count
        self._discounts.append(discount)
        histories = {}
        for history, after in followers.items():
            total = sum(after.values())
            left = sum(discount[min(count, 3) - 1] for count in after.values())
            histories[history] = _History(after, total, left / total)
        self._histories.append(histories)

    def probability(self, token: int, history: Sequence[int]) -> float:
        """p(token | history); only the last n - 1 tokens of the history count."""
        history = tuple(history)[len(history) - min(len(history), self.order - 1) :]
        return self._probability(token, history)

    @functools.cache  # noqa: B019 - a model lives as long as the study
    def _probability(self, token: int, history: Ngram) -> float:
        seen = self._histories[len(history)].get(history)
        if not history:
            lower = 1 / self.num_tokens
        else:
            lower = self._probability(token, history[1:])
        if seen is None:
            return lower
        count = seen.counts.get(token, 0)
        discount = self._discounts[len(history)][min(count, 3) - 1] if count else 0.0
        return (count - discount) / seen.total + seen.backoff * lower

    def log_prob(self, sentence: Sequence[int]) -> float:
        """Natural-log probability of a sentence, EOS included."""
        padded = (*[self.bos] * (self.order - 1), *sentence)
        start = self.order - 1
        return sum(
            math.log(self.probability(token, padded[i : i + start]))
            for i, token in enumerate(sentence)
        )
