# SPDX-License-Identifier: Apache-2.0
"""Batch i depends on (seed, i) alone, and an epoch holds every pair that fits exactly once."""

import contextlib
import itertools

import jax
import numpy as np
import pytest

from experiments.datasets import Split
from experiments.datasets.batching import Batches, Corpus, Side, in_order
from transformer.arrays import EOS_ID, PAD_ID
from transformer.config import DataConfig
from transformer.errors import InputError
from transformer.tokenizer import Tokenizer

CONFIG = DataConfig(
    max_length=20,
    bucket_lengths=(5, 8, 20),
    tokens_per_batch=90,
    row_multiple=4,
)


def numbered(lengths):
    """A corpus whose pair i is told by its first source token, 10 + i, and by all of its target."""
    pairs = list(enumerate(lengths))
    source = [[10 + i, *[4] * (s - 2), EOS_ID] for i, (s, _) in pairs]
    target = [[10 + i] * (t - 1) + [EOS_ID] for i, (_, t) in pairs]
    return Corpus(Side.of(source), Side.of(target))


def lengths_of(count, longest, seed=0):
    """Pairs of lengths from 2 on, the two sides unlike."""
    return np.random.default_rng(seed).integers(2, longest + 1, (count, 2)).tolist()


@pytest.fixture(scope="module")
def corpus():
    """A hundred pairs, some of them longer than the longest bucket."""
    return numbered(lengths_of(100, 22))


@pytest.fixture(scope="module")
def batches(corpus):
    """Its batches with seed 7."""
    return Batches(corpus, CONFIG, seed=7)


def pairs_in(batch):
    """The places in the corpus of a batch's pairs."""
    return [int(first) - 10 for first in batch.source[:, 0] if first != PAD_ID]


def same(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def epoch_of(batches, epoch):
    """All batches of one epoch."""
    return [batches[epoch * batches.per_epoch + place] for place in range(batches.per_epoch)]


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_epoch_holds_every_pair_that_fits_exactly_once(batches, corpus, epoch):
    seen = sorted(itertools.chain.from_iterable(map(pairs_in, epoch_of(batches, epoch))))
    assert seen == np.flatnonzero(corpus.longer <= CONFIG.max_length).tolist()
    assert 0 < len(seen) < len(corpus.longer), "some must be left out, or this shows little"


def test_pairs_stay_together_and_whole(batches, corpus):
    for batch in epoch_of(batches, 0):
        for row, pair in enumerate(pairs_in(batch)):
            for side, padded in ((corpus.source, batch.source), (corpus.target, batch.target)):
                ids = side.ids[side.offsets[pair] : side.offsets[pair + 1]]
                assert padded[row].tolist() == [*ids, *[PAD_ID] * (padded.shape[1] - len(ids))]


def test_what_is_left_out_is_counted(batches, corpus):
    assert batches.left_out == sum(longer > 20 for longer in corpus.longer) > 0
    assert Batches(numbered([(2, 20), (21, 3), (20, 2), (3, 21)]), CONFIG, 0).left_out == 2


def test_a_pair_lies_in_the_shortest_bucket_that_holds_both_sides(batches, corpus):
    for batch in epoch_of(batches, 0):
        length = batch.source.shape[1]
        shorter = {5: 0, 8: 5, 20: 8}[length]
        assert batch.target.shape == batch.source.shape
        assert all(shorter < corpus.longer[pair] <= length for pair in pairs_in(batch))


def test_rows_are_a_multiple_and_fill_the_token_budget(batches):
    assert batches.shapes() == [(16, 5), (8, 8), (4, 20)]
    for rows, length in batches.shapes():
        assert rows % CONFIG.row_multiple == 0
        assert rows * length <= CONFIG.tokens_per_batch < (rows + CONFIG.row_multiple) * length


def test_batches_come_in_the_announced_shapes_only(batches):
    shapes = {batch.source.shape for epoch in range(3) for batch in epoch_of(batches, epoch)}
    assert shapes == set(batches.shapes())


def test_a_bucket_without_pairs_makes_no_shape():
    assert Batches(numbered([(4, 4), (3, 20)]), CONFIG, 0).shapes() == [(16, 5), (4, 20)]


def test_the_rows_below_a_bucket_s_last_pairs_are_padding():
    [batch] = epoch_of(Batches(numbered([(3, 4)] * 3), CONFIG, 0), 0)
    assert batch.source.shape == (16, 5)
    assert (batch.source[3:] == PAD_ID).all()
    assert (batch.target[3:] == PAD_ID).all()
    assert (batch.target[:3, 0] >= 10).all()


def test_the_number_of_batches_does_not_depend_on_the_epoch(batches):
    assert {len(batches.plan(epoch)) for epoch in range(20)} == {batches.per_epoch}


def test_a_plan_is_a_function_of_seed_and_epoch(batches, corpus):
    again = Batches(corpus, CONFIG, seed=7)
    again.plan(0), again[3 * again.per_epoch]  # what was asked before must not matter
    for epoch in (0, 1, 4):
        pairs = zip(batches.plan(epoch), again.plan(epoch), strict=True)
        assert all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)


def test_batches_asked_for_in_any_order_are_the_same(batches, corpus):
    count = 3 * batches.per_epoch
    forward = [batches[index] for index in range(count)]
    fresh = Batches(corpus, CONFIG, seed=7)
    for index in np.random.default_rng(0).permutation(count).tolist():
        assert same(fresh[index], forward[index])


def test_epochs_and_seeds_differ(batches, corpus):
    def order(plan):
        return [pairs.tolist() for _, pairs in plan]

    other = Batches(corpus, CONFIG, seed=8)
    plans = [order(batches.plan(0)), order(batches.plan(1)), order(other.plan(0))]
    assert all(a != b for a, b in itertools.combinations(plans, 2))
    company = [{frozenset(pairs) for pairs in plan} for plan in plans]
    assert all(a != b for a, b in itertools.combinations(company, 2)), "not only their order"


def test_short_and_long_batches_are_mixed(batches):
    lengths = [length for length, _ in batches.plan(0)]
    assert lengths != sorted(lengths)


@pytest.mark.parametrize("start", [0, 1, 5, 31])
def test_starting_at_an_index_equals_skipping_to_it(batches, start):
    with contextlib.closing(batches.iterate(start)) as iterator:
        found = list(itertools.islice(iterator, 6))
    assert len(found) == 6
    for index, batch in enumerate(found, start):
        assert same(batch, batches[index])


def test_iteration_goes_on_beyond_an_epoch(batches):
    with contextlib.closing(batches.iterate(batches.per_epoch - 1)) as iterator:
        last, first = itertools.islice(iterator, 2)
    assert same(last, batches[batches.per_epoch - 1])
    assert same(first, batches[batches.per_epoch])


def test_the_padding_share_by_hand():
    # Buckets: 16 x 5 positions with target lengths 2 and 4; 4 x 20 positions with one of 9.
    batches = Batches(numbered([(3, 2), (2, 4), (20, 9), (21, 5)]), CONFIG, 0)
    assert batches.padding_share() == pytest.approx(1 - (2 + 4 + 9) / (80 + 80))


def test_the_padding_share_is_that_of_the_batches(batches):
    targets = np.concatenate([batch.target.ravel() for batch in epoch_of(batches, 2)])
    assert batches.padding_share() == pytest.approx((targets == PAD_ID).mean())


def test_a_corpus_of_too_long_pairs_only_is_refused():
    with pytest.raises(InputError, match="all 2 training pairs are longer than data.max_length"):
        Batches(numbered([(21, 3), (3, 30)]), CONFIG, 0)


@pytest.mark.parametrize("row_multiple", [1, 4, 8])
def test_in_order_has_every_pair_once_whatever_its_length(row_multiple):
    corpus = numbered([*lengths_of(60, 20), (21, 2), (2, 40), (41, 41), (130, 2), (20, 20)])
    config = CONFIG.replace(row_multiple=row_multiple, tokens_per_batch=160)
    seen = []
    for batch in in_order(corpus, config):
        rows, length = batch.source.shape
        assert batch.target.shape == (rows, length)
        for row, pair in enumerate(pairs_in(batch)):
            seen.append(pair)
            assert corpus.longer[pair] <= length
            assert (batch.source[row] != PAD_ID).sum() == corpus.source.lengths[pair]
            assert (batch.target[row] != PAD_ID).sum() == corpus.target.lengths[pair]
        assert rows * length <= config.tokens_per_batch or rows == 1
        assert rows % row_multiple == 0 or rows < row_multiple
    assert sorted(seen) == list(range(len(corpus.longer)))


def test_in_order_has_few_shapes_and_multiples_of_the_longest_bucket_beyond_it():
    corpus = numbered([(length, 2) for length in range(2, 62)])
    shapes = {batch.source.shape for batch in in_order(corpus, CONFIG)}
    assert shapes == {(16, 5), (8, 8), (4, 20), (2, 40), (1, 60), (1, 80)}


def test_in_order_is_the_same_twice(corpus):
    first, second = (list(in_order(corpus, CONFIG)) for _ in range(2))
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


def test_a_side_keeps_sentence_i_between_its_offsets():
    side = Side.of([[5, 6, EOS_ID], [EOS_ID], [7, EOS_ID]])
    assert side.ids.dtype == np.int32
    assert side.ids.tolist() == [5, 6, EOS_ID, EOS_ID, 7, EOS_ID]
    assert side.lengths.tolist() == [3, 1, 2]
    padded = side.padded(np.array([2, 0]), (3, 4))
    assert padded.tolist() == [[7, EOS_ID, 0, 0], [5, 6, EOS_ID, 0], [0, 0, 0, 0]]


def test_a_tokenized_split_has_the_end_token_in_every_length():
    tokenizer = Tokenizer.train(["a b c"], 7, "word")
    corpus = Corpus.tokenized(Split("text_files", ["a b", ""], ["c", "a b c"]), tokenizer)
    assert corpus.source.lengths.tolist() == [3, 1]
    assert corpus.target.lengths.tolist() == [2, 4]
    assert corpus.longer.tolist() == [3, 4]
