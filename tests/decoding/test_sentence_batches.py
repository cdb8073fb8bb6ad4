# SPDX-License-Identifier: Apache-2.0
"""Sentences are put into batches of few shapes, since every shape is compiled."""

from transformer.decoding.sentence_batches import (
    batches_by_length,
    one_of_each_shape_first,
    search_lengths,
)


def bucket(length):
    return 4 if length <= 4 else 10


def shapes(lengths, sizes):
    """The shapes of the batches of sentences of these lengths."""
    sentences = [[7] * length for length in lengths]
    return [padded.shape for _, padded in batches_by_length(sentences, sizes, bucket=bucket)]


def test_lengths_that_are_close_to_the_next_are_not_compiled():
    assert search_lengths((12, 16, 20, 24, 32)) == (12, 20, 32)
    assert search_lengths((16, 32, 64, 100)) == (16, 32, 64, 100)
    assert search_lengths((10,)) == (10,)


def test_few_sentences_make_one_batch_with_few_rows():
    assert shapes([2], sizes=[1, 8, 32]) == [(1, 4)]
    assert shapes([2, 0, 9], sizes=[1, 8, 32]) == [(8, 10)]
    assert shapes([0], sizes=[1, 8, 32]) == []


def test_all_batches_of_many_sentences_have_the_same_number_of_rows():
    assert shapes([2] * 33, sizes=[1, 8, 32]) == [(32, 4), (32, 4)]


def test_the_longest_sentences_come_first_and_share_a_batch_with_shorter_ones():
    sentences = [[1], [2, 2, 2, 2, 2], [3, 3]]
    [(first, padded), (last, short)] = batches_by_length(sentences, [2], bucket=bucket)
    assert (first, last) == ([1, 2], [0])
    assert padded.tolist() == [[2, 2, 2, 2, 2, 0, 0, 0, 0, 0], [3, 3, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert short.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]


def test_threads_begin_with_one_batch_of_each_shape():
    sentences = [[7] * length for length in (9, 8, 7, 3, 2, 1)]
    batches = list(batches_by_length(sentences, [1], bucket=bucket))
    ordered = one_of_each_shape_first(batches)
    assert [indices for indices, _ in ordered] == [[0], [3], [1], [2], [4], [5]]
