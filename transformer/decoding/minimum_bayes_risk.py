# SPDX-License-Identifier: Apache-2.0
"""Minimum Bayes risk decoding: the sample that is most similar to all other samples.

Kumar and Byrne (2004); with samples of the model as references, Eikema and Aziz (2020).
"""

import functools
import math
from collections.abc import Callable, Sequence


def rank_by_similarity(
    samples: Sequence[str], similarity: Callable[[str, str], float]
) -> list[tuple[int, float]]:
    """Rank the distinct texts among samples by their mean similarity to the other samples.

    The mean of a text excludes the sample itself but includes its further copies, so probable texts
    count more. Of equally good texts the one sampled first comes first.

    Args:
      samples: at least one text; every sample is both candidate and reference.
      similarity: `similarity(candidate, reference)`; called once for each pair of texts.

    Returns:
      `(index of the first sample with the text, mean similarity)`, best first. The mean is 0 if
      there is only one sample.
    """
    similarity = functools.cache(similarity)
    ranking = []
    for text in dict.fromkeys(samples):
        first = samples.index(text)
        others = [*samples[:first], *samples[first + 1 :]]
        # fsum does not depend on the order of its terms, so ties are exact.
        total = math.fsum(similarity(text, other) for other in others)
        ranking.append((first, total / max(len(others), 1)))
    return sorted(ranking, key=lambda entry: -entry[1])
