# SPDX-License-Identifier: Apache-2.0
"""The word of each token, and attention weights between words."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.errors import InputError
from transformer.inspection.words import NO_WORD, display_tokens, merge, words_of_pieces


def test_words_are_labels_and_their_further_parts_are_marked():
    for pieces, labels in (
        ("▁the ▁Schm etter ling . </s>", "the Schm ·etter ·ling . </s>"),
        ("▁didn ' t <s> <0x0A>", "didn ' ·t <s> <0x0A>"),
        ("▁New▁York s", "New-York ·s"),
        ("##ing Ġthe word", "##ing Ġthe word"),
    ):
        expected = [label.replace("-", " ") for label in labels.split()]
        assert display_tokens(pieces.split()) == expected
    assert display_tokens(["▁", "▁a"]) == [" ", "a"]


def test_a_token_belongs_to_the_word_in_which_it_begins():
    pieces = ["▁The", "▁ani", "mal", "▁didn", "'", "t", "▁", "cross", ".", "</s>", "<pad>"]
    words = ["The", "animal", "didn't", "cross", "."]
    assert words_of_pieces(pieces, words) == [0, 1, 1, 2, 2, 2, NO_WORD, 3, 4, NO_WORD, NO_WORD]
    assert words_of_pieces(["▁it", "is", ".</"], ["it", "is.", "</"]) == [0, 1, 1]


def test_tokens_of_another_sentence_are_rejected():
    for pieces, message in (
        (["▁The", "▁bird"], "the token '▁bird' does not match the words 'The cat' at 'cat'"),
        (["▁The"], "the tokens end before 'cat'"),
        (["▁The", "▁cat", "s"], "the token 's' does not match"),
    ):
        with pytest.raises(InputError, match=message):
            words_of_pieces(pieces, ["The", "cat"])


def test_merged_weights_are_sums_over_keys_and_means_over_queries():
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]])
    merged = merge(weights, np.array([0, 0, 1]), np.array([0, 0, 1]), 2, 2)
    np.testing.assert_allclose(merged, [[0.45, 0.55], [0.5, 0.5]], atol=1e-6)
    # Word indices as `words_of_pieces` returns them.
    np.testing.assert_array_equal(merge(weights, [0, 0, 1], [0, 0, 1], 2, 2), merged)


def test_tokens_without_a_word_are_ignored_and_a_word_without_tokens_has_no_weight():
    weights = jnp.stack([jnp.full((3, 4), 0.25), jnp.eye(3, 4)])
    queries, keys = np.array([0, 2, NO_WORD]), np.array([0, 1, 1, NO_WORD])
    merged = merge(weights, queries, keys, 3, 2)
    np.testing.assert_allclose(merged[0], [[0.25, 0.5], [0, 0], [0.25, 0.5]])
    np.testing.assert_allclose(merged[1], [[1, 0], [0, 0], [0, 1]])
