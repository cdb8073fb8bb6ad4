# SPDX-License-Identifier: Apache-2.0
"""The README's picture shows a head that reads different words in a sentence and its twin."""

import numpy as np
import pytest

from experiments.studies.readme_picture import AnalyzedSentence, Head, choose, draw
from transformer.errors import InputError

WORDS = ["the", "animal", "street", "it"]


def sentence(encoder, cross):
    """One layer with two heads; each head is given as the index of the word that it reads."""
    rows = {"encoder": encoder, "cross": cross}
    weights = {kind: np.eye(4)[list(read)][None] for kind, read in rows.items()}  # [L, N, S]
    return AnalyzedSentence("Das Tier ...", "es", WORDS, weights)


SCORES = {"encoder": np.array([[0.1, 0.3]]), "cross": np.array([[0.9, 0.2]])}


def test_a_head_that_reads_the_same_word_in_both_is_never_chosen():
    # Cross-attention head 0 has the highest score, but reads "it" in both sentences.
    pair = [sentence(encoder=[1, 1], cross=[3, 1]), sentence(encoder=[2, 2], cross=[3, 2])]
    head = choose(SCORES, pair)
    assert (head.kind, head.layer, head.index) == ("encoder", 0, 1)
    assert [each.strongest(head) for each in pair] == ["animal", "street"]


def test_no_picture_is_drawn_when_every_head_reads_the_same():
    pair = [sentence(encoder=[1, 1], cross=[3, 3])] * 2
    with pytest.raises(InputError, match="no head reads different words"):
        choose(SCORES, pair)


def test_the_description_names_the_head_and_both_words():
    pair = [sentence(encoder=[1, 1], cross=[3, 1]), sentence(encoder=[2, 2], cross=[3, 2])]
    figure = draw(pair, Head("encoder", 0, 1, 0.3))
    assert figure.description == (
        "Head 2 in layer 1 of the encoder reads 'animal' most when the animal was too tired, and "
        "'street' when the street was too wide."
    )
