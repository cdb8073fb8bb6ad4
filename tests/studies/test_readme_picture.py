# SPDX-License-Identifier: Apache-2.0
"""The README's picture: a head that tells the twins apart, and the positions with the answer."""

import re

import numpy as np
import pytest
from apps import REPOSITORY
from drawings import labels, panel, values
from PIL import Image

from experiments.studies.readme_picture import TwinAnalysis, choose, draw
from transformer.errors import InputError

WORDS = ["animal", "street", "it"]


def test_the_head_is_the_one_whose_row_differs_most_between_the_twins():
    """One layer of three heads, each given as the index of the word that it reads."""
    first, second = (np.eye(3)[[read]] for read in ([2, 0, 1], [2, 1, 1]))
    assert choose(first, second) == (0, 1), "the others read the same in both"
    first[0, 0] = [0.5, 0.0, 0.5]
    assert choose(first, second) == (0, 1), "distance 1 against 0.5"
    with pytest.raises(InputError, match="every head reads the same in both sentences"):
        choose(first, first)


def test_the_picture_shows_both_rows_and_the_patch_map_and_describes_them():
    figure = draw(
        TwinAnalysis(
            texts=("weil es müde war", "weil sie breit war"),
            pronouns=("es", "sie"),
            words=([*WORDS, "tired"], [*WORDS, "wide"]),
            layer=1,
            head=0,
            rows=np.array([[0.75, 0.0, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]]),
            effect=np.array([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.75, 0.25]]),
        )
    )
    np.testing.assert_array_equal(values(figure, "it in tired"), [[0.75, 0.0, 0.25, 0.0]])
    np.testing.assert_array_equal(values(figure, "it in wide"), [[0.0, 1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(values(figure, "patch map")[1], [0.0, 0.0, 0.75, 0.25])
    assert labels(panel(figure, "patch map").xaxis) == [*WORDS, "wide ← tired"]
    assert labels(panel(figure, "patch map").yaxis) == ["input", "after layer 1"]
    assert figure.description == (
        "At \"it\", head 1 in layer 2 of the encoder reads 'animal' most (0.75) when 'es' is "
        "right, and 'street' most (1.00) when 'sie' is right. The position that carries most of "
        "the answer: input 'wide ← tired' (1.00), after layer 1 'it' (0.75)."
    )


def test_the_committed_picture_shows_what_its_caption_in_the_readme_says():
    """The answer is at "it" when the encoder is done. A slow test trains the model anew."""
    with Image.open(REPOSITORY / "docs" / "pronoun.png") as image:
        description = image.text["Description"]
    weights = [float(number) for number in re.findall(r"most \((.*?)\)", description)]
    assert len(weights) == 2 and "when 'es' is right" in description
    assert "input 'wide ← tired' (1.00)" in description
    carried = re.search(r"after layer 2 'it' \((.*?)\)\.$", description)
    assert float(carried[1]) > 0.9
