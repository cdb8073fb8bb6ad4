# SPDX-License-Identifier: Apache-2.0
"""Minimum Bayes risk: of many samples the one that is most like all the others.

Kumar and Byrne (2004); with samples from the model itself, Eikema and Aziz (2020).
"""

import functools
import math
from collections.abc import Callable, Sequence


def by_mean_similarity(
    samples: Sequence[str], similarity: Callable[[str, str], float]
) -> list[tuple[int, float]]:
    """Every text among the samples once, the one most like the other samples first.

    A text's mean similarity is over all samples but the one that it is itself. Where a text was
    drawn several times its other copies are among them, so what the model finds probable counts
    more. Of equally good texts the one that was drawn first comes first.

    Args:
      samples: at least one; candidates and judges alike.
      similarity: of a candidate (first) to a sample that judges it (second); asked once for each
        pair of texts.

    Returns:
      the place of each text's first sample, and its mean similarity (0 where there is no other).
    """
    similarity = functools.cache(similarity)
    ranked = []
    for text in dict.fromkeys(samples):
        place = samples.index(text)
        others = [*samples[:place], *samples[place + 1 :]]
        # fsum does not depend on the order, so that texts that are equally good stay so.
        total = math.fsum(similarity(text, other) for other in others)
        ranked.append((place, total / max(len(others), 1)))
    return sorted(ranked, key=lambda entry: -entry[1])
