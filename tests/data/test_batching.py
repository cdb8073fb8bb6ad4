# SPDX-License-Identifier: Apache-2.0
"""Batch i is a function of (seed, i), and an epoch has every pair that fits exactly once."""

import contextlib
import itertools

import jax
import numpy as np
import pytest

from experiments.data.batching import Batches, evaluation_batches, fill_rows
from experiments.data.token_corpus import TokenCorpus, TokenSequences
from transformer.arrays import SpecialIds
from transformer.config import DataConfig
from transformer.errors import InputError
from transformer.text.subword_sampling import SubwordSampler
from transformer.text.tokenizer import Tokenizer, Vocabularies

PAD_ID, EOS_ID = SpecialIds().pad, SpecialIds().eos

CONFIG = DataConfig(
    max_length=20,
    bucket_lengths=(5, 8, 20),
    tokens_per_batch=90,
    row_multiple=4,
)
PACKED = CONFIG.replace(packing=True)


def numbered(lengths):
    """A corpus in which the first source token, and all of the target, of pair i is 10 + i."""
    pairs = list(enumerate(lengths))
    source = [[10 + i, *[4] * (s - 2), EOS_ID] for i, (s, _) in pairs]
    target = [[10 + i] * (t - 1) + [EOS_ID] for i, (_, t) in pairs]
    return TokenCorpus(TokenSequences.from_lists(source), TokenSequences.from_lists(target))


def batches_of(corpus, config=CONFIG, seed=0):
    """The batches of one corpus."""
    return Batches([(1.0, corpus)], config, seed)


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
    return batches_of(corpus, seed=7)


def pairs_in(batch):
    """The corpus indices of the pairs of a batch."""
    return [int(first) - 10 for first in batch.source[:, 0] if first != PAD_ID]


def same(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def same_plan(a, b):
    return (
        a.length == b.length and np.array_equal(a.pairs, b.pairs) and np.array_equal(a.rows, b.rows)
    )


def epoch_of(batches, epoch):
    """All batches of one epoch."""
    return [batches[epoch * batches.per_epoch + index] for index in range(batches.per_epoch)]


def test_an_epoch_holds_every_pair_that_fits_exactly_once_and_complete(batches, corpus):
    for epoch in (0, 1, 5):
        seen = sorted(itertools.chain.from_iterable(map(pairs_in, epoch_of(batches, epoch))))
        assert seen == np.flatnonzero(corpus.max_lengths <= CONFIG.max_length).tolist()
        assert 0 < len(seen) < len(corpus.max_lengths), "otherwise this shows nothing"
    for batch in epoch_of(batches, 0):
        for row, pair in enumerate(pairs_in(batch)):
            for side, padded in ((corpus.source, batch.source), (corpus.target, batch.target)):
                ids = side.ids[side.offsets[pair] : side.offsets[pair + 1]]
                assert padded[row].tolist() == [*ids, *[PAD_ID] * (padded.shape[1] - len(ids))]


def test_pairs_that_are_left_out_are_counted(batches, corpus):
    with pytest.raises(
        InputError, match="of 2 training pairs 0 have an empty side and 2 are longer than"
    ):
        batches_of(numbered([(21, 3), (3, 30)]))
    assert batches.too_long == sum(longer > 20 for longer in corpus.max_lengths) > 0
    assert batches_of(numbered([(2, 20), (21, 3), (20, 2), (3, 21)])).too_long == 2
    # So is a pair with an empty side.
    batches = batches_of(numbered([(3, 4), (4, 1), (5, 1), (21, 1), (30, 5), (2, 2)]))
    assert counted(batches, 0).tolist() == [1, 0, 0, 0, 0, 1]
    assert (batches.empty, batches.too_long) == (3, 1)


def test_a_pair_is_in_the_shortest_bucket_that_holds_both_sides(batches, corpus):
    for batch in epoch_of(batches, 0):
        length = batch.source.shape[1]
        shorter = {5: 0, 8: 5, 20: 8}[length]
        assert batch.target.shape == batch.source.shape
        assert all(shorter < corpus.max_lengths[pair] <= length for pair in pairs_in(batch))


def test_rows_are_a_multiple_and_fill_the_token_budget(batches):
    assert batches.shapes() == [(16, 5), (8, 8), (4, 20)]
    for rows, length in batches.shapes():
        assert rows % CONFIG.row_multiple == 0
        assert rows * length <= CONFIG.tokens_per_batch < (rows + CONFIG.row_multiple) * length


def test_batches_have_only_the_shapes_that_are_announced(batches):
    shapes = {batch.source.shape for epoch in range(3) for batch in epoch_of(batches, epoch)}
    assert shapes == set(batches.shapes())
    for start, count in ((0, 1), (3, 4), (5, 1000)):
        indices = range(start, start + min(count, batches.per_epoch))
        seen = [batches[index].source.shape for index in indices]
        assert batches.shapes_between(start, start + count) == list(dict.fromkeys(seen))
    # Rows after the last pair of a bucket are padding.
    [batch] = epoch_of(batches_of(numbered([(3, 4)] * 3)), 0)
    assert batch.source.shape == (16, 5)
    assert (batch.source[3:] == PAD_ID).all()
    assert (batch.target[3:] == PAD_ID).all()
    assert (batch.target[:3, 0] >= 10).all()
    # A bucket without pairs makes no shape.
    assert batches_of(numbered([(4, 4), (3, 20)])).shapes() == [(16, 5), (4, 20)]


def test_another_pad_id_changes_the_padding_only(corpus):
    pairs = []
    for config in (CONFIG, PACKED):
        usual = Batches([(1.0, corpus)], config, 0)
        other = Batches([(1.0, corpus)], config, 0, pad_id=9)
        pairs += [(usual[index], other[index]) for index in range(5)]
    pairs += zip(
        evaluation_batches(corpus, CONFIG),
        evaluation_batches(corpus, CONFIG, pad_id=9),
        strict=True,
    )
    for a, b in pairs:
        for side in ("source", "target"):
            zeros, nines = getattr(a, side), getattr(b, side)
            assert np.array_equal(nines, np.where(zeros == PAD_ID, 9, zeros))


def test_a_plan_is_a_function_of_seed_and_epoch(batches, corpus):
    assert {len(batches.plan(epoch)) for epoch in range(20)} == {batches.per_epoch}
    again = batches_of(corpus, seed=7)
    again.plan(0), again[3 * again.per_epoch]  # earlier requests must not matter
    for epoch in (0, 1, 4):
        pairs = zip(batches.plan(epoch), again.plan(epoch), strict=True)
        assert all(same_plan(a, b) for a, b in pairs)
    # Batches are the same in any order of access.
    count = 3 * batches.per_epoch
    forward = [batches[index] for index in range(count)]
    fresh = batches_of(corpus, seed=7)
    for index in np.random.default_rng(0).permutation(count).tolist():
        assert same(fresh[index], forward[index])


def test_epochs_and_seeds_differ(batches, corpus):
    def order(plan):
        return [planned.pairs.tolist() for planned in plan]

    other = batches_of(corpus, seed=8)
    plans = [order(batches.plan(0)), order(batches.plan(1)), order(other.plan(0))]
    assert all(a != b for a, b in itertools.combinations(plans, 2))
    company = [{frozenset(pairs) for pairs in plan} for plan in plans]
    assert all(a != b for a, b in itertools.combinations(company, 2)), "not only their order"
    # Short and long batches are mixed.
    lengths = [planned.length for planned in batches.plan(0)]
    assert lengths != sorted(lengths)


def test_starting_at_an_index_equals_skipping_to_it(batches):
    """In the next epoch too."""
    for start in (0, 1, 5, 31, batches.per_epoch - 1):
        with contextlib.closing(batches.iterate(start)) as iterator:
            taken = list(itertools.islice(iterator, 6))
        assert len(taken) == 6
        assert all(same(batch, batches[index]) for index, batch in enumerate(taken, start))


def test_the_padding_share_by_hand_and_of_the_batches(batches):
    targets = np.concatenate([batch.target.ravel() for batch in epoch_of(batches, 2)])
    assert batches.padding_share() == pytest.approx((targets == PAD_ID).mean())
    # Buckets: 16 x 5 positions with target lengths 2 and 4; 4 x 20 positions with one of 9.
    batches = batches_of(numbered([(3, 2), (2, 4), (20, 9), (21, 5)]))
    assert batches.padding_share() == pytest.approx(1 - (2 + 4 + 9) / (80 + 80))


def test_evaluation_batches_have_every_pair_once_whatever_its_length():
    corpus = numbered([*lengths_of(60, 20), (21, 2), (2, 40), (41, 41), (130, 2), (20, 20)])
    for row_multiple in (1, 4, 8):
        config = CONFIG.replace(row_multiple=row_multiple, tokens_per_batch=160)
        seen = []
        for batch in evaluation_batches(corpus, config):
            rows, length = batch.source.shape
            assert batch.target.shape == (rows, length)
            for row, pair in enumerate(pairs_in(batch)):
                seen.append(pair)
                assert corpus.max_lengths[pair] <= length
                assert (batch.source[row] != PAD_ID).sum() == corpus.source.lengths[pair]
                assert (batch.target[row] != PAD_ID).sum() == corpus.target.lengths[pair]
            assert rows * length <= config.tokens_per_batch or rows == 1
            assert rows % row_multiple == 0 or rows < row_multiple
        assert sorted(seen) == list(range(len(corpus.max_lengths)))


def test_evaluation_batches_are_deterministic_and_few_in_shape(corpus):
    """Lengths beyond the longest bucket are its multiples."""
    first, second = (list(evaluation_batches(corpus, CONFIG)) for _ in range(2))
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    corpus = numbered([(length, 2) for length in range(2, 62)])
    shapes = {batch.source.shape for batch in evaluation_batches(corpus, CONFIG)}
    assert shapes == {(16, 5), (8, 8), (4, 20), (2, 40), (1, 60), (1, 80)}


def test_sentence_i_is_between_its_offsets():
    side = TokenSequences.from_lists([[5, 6, EOS_ID], [EOS_ID], [7, EOS_ID]])
    assert side.ids.dtype == np.int32
    assert side.ids.tolist() == [5, 6, EOS_ID, EOS_ID, 7, EOS_ID]
    assert side.lengths.tolist() == [3, 1, 2]
    padded, segments = fill_rows([side[2], side[0]], np.arange(2), (3, 4), pad_id=0)
    assert padded.tolist() == [[7, EOS_ID, 0, 0], [5, 6, EOS_ID, 0], [0, 0, 0, 0]]
    assert segments.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]


def test_token_lengths_include_eos():
    tokenizer = Tokenizer.train(["a b c"], 7, "word")
    corpus = TokenCorpus.encode(["a b", ""], ["c", "a b c"], Vocabularies.shared(tokenizer))
    assert corpus.source.lengths.tolist() == [3, 1]
    assert corpus.target.lengths.tolist() == [2, 4]
    assert corpus.max_lengths.tolist() == [3, 4]


# Several corpora.


def counted(batches, epoch):
    """How often each pair is read in an epoch, by its number."""
    pairs = np.concatenate([planned.pairs for planned in batches.plan(epoch)])
    return np.bincount(pairs, minlength=len(batches.source_lengths))


def test_a_weight_is_how_often_a_pair_is_read_in_an_epoch():
    """A third of 30 pairs with weight 1/3; each of 20 pairs twice, and half of them once more."""
    thirty, twenty = numbered(lengths_of(30, 20, 1)), numbered(lengths_of(20, 20, 2))
    batches = Batches([(1 / 3, thirty), (2.5, twenty)], CONFIG, 0)
    epochs = [counted(batches, epoch) for epoch in range(40)]
    for counts in epochs:
        assert set(counts[:30].tolist()) == {0, 1}
        assert abs(counts[:30].sum() - 10) <= 1, "rounded in each of three buckets"
        assert set(counts[30:].tolist()) == {2, 3}
        assert abs(counts[30:].sum() - 50) <= 1
    assert len({tuple(counts) for counts in epochs}) == 40
    assert (sum(epochs)[:30] > 0).all(), "every pair is read at some time"
    assert {len(batches.plan(epoch)) for epoch in range(5)} == {batches.per_epoch}


def test_pairs_of_several_corpora_keep_their_tokens():
    first, second = numbered([(3, 4), (5, 5)]), numbered([(6, 3), (4, 8), (2, 2)])
    batches = Batches([(1.0, first), (1.0, second)], CONFIG, 0)
    rows = {
        (tuple(source[source != PAD_ID]), tuple(target[target != PAD_ID]))
        for batch in epoch_of(batches, 0)
        for source, target in zip(batch.source, batch.target, strict=True)
        if source.any()
    }
    corpora = [(corpus, pair) for corpus in (first, second) for pair in range(len(corpus))]
    assert rows == {(tuple(c.source[pair]), tuple(c.target[pair])) for c, pair in corpora}


# Packed rows.


def test_packed_rows_have_every_pair_once_and_complete(corpus):
    batches = batches_of(corpus, PACKED)
    seen = []
    for batch in epoch_of(batches, 3):
        assert batch.source.shape == (4, 20)
        assert ((batch.source == PAD_ID) == (batch.source_segments == 0)).all()
        assert ((batch.target == PAD_ID) == (batch.target_segments == 0)).all()
        for row in range(4):
            both = batch.source_segments[row].max()
            assert both == batch.target_segments[row].max()
            for segment in range(1, both + 1):
                source = batch.source[row][batch.source_segments[row] == segment]
                target = batch.target[row][batch.target_segments[row] == segment]
                pair = int(source[0]) - 10
                seen.append(pair)
                assert source.tolist() == corpus.source[pair].tolist()
                assert target.tolist() == corpus.target[pair].tolist()
            segments = batch.source_segments[row][batch.source_segments[row] > 0]
            assert (np.diff(segments) >= 0).all()
    assert sorted(seen) == np.flatnonzero(corpus.max_lengths <= 20).tolist()


def test_packing_leaves_less_padding_and_the_same_number_of_batches_every_epoch(corpus):
    packed, plain = batches_of(corpus, PACKED), batches_of(corpus)
    assert packed.padding_share() < 0.75 * plain.padding_share()
    assert {len(packed.plan(epoch)) for epoch in range(10)} == {packed.per_epoch}
    targets = np.concatenate([batch.target.ravel() for batch in epoch_of(packed, 2)])
    assert packed.padding_share() == pytest.approx((targets == PAD_ID).mean())


def test_packed_epochs_combine_different_pairs():
    """Of 200 pairs with few lengths nearly all have other neighbours in the next epoch."""
    batches = batches_of(numbered([(4 + i % 3, 5) for i in range(200)]), PACKED)

    def neighbours(epoch):
        rows = {}
        for number, planned in enumerate(batches.plan(epoch)):
            for pair, row in zip(planned.pairs, planned.rows, strict=True):
                rows.setdefault((number, row), set()).add(int(pair))
        return {frozenset(row) for row in rows.values()}

    assert len(neighbours(0) & neighbours(1)) < 5 < len(neighbours(0))
    assert neighbours(0) == neighbours(0)


def test_a_packed_mixture_reads_each_pair_as_its_weight_says():
    mixture = [(2.0, numbered([(3, 3)] * 9)), (0.5, numbered([(4, 6)] * 8))]
    batches = Batches(mixture, PACKED, 0)
    for epoch in range(3):
        counts = counted(batches, epoch)
        assert counts[:9].tolist() == [2] * 9
        assert sorted(counts[9:].tolist()) == [0] * 4 + [1] * 4


def test_a_fraction_is_the_same_for_pairs_of_all_lengths():
    """600 pairs, many of which are alone with their lengths."""
    corpus = numbered(lengths_of(600, 20, 3))
    for weight, config in itertools.product((0.1, 1.7), (CONFIG, PACKED)):
        batches = Batches([(weight, corpus)], config, 0)
        mean = np.mean([counted(batches, epoch) for epoch in range(100)], axis=0)
        assert mean.sum() == pytest.approx(weight * 600, rel=0.01)
        assert (mean > 0).all(), "every pair is read at some time"
        long = np.argsort(corpus.max_lengths)[-60:]
        assert mean[long].mean() == pytest.approx(weight, rel=0.05)


def test_no_batch_is_empty_where_each_has_one_packed_row():
    config = PACKED.replace(tokens_per_batch=20, row_multiple=1)
    batches = Batches([(0.5, numbered(lengths_of(60, 20, 3)))], config, 0)
    plans = [batches.plan(epoch) for epoch in range(50)]
    assert {len(plan) for plan in plans} == {batches.per_epoch}
    assert min(planned.pairs.size for plan in plans for planned in plan) > 0
    # A weight that takes less than a pair takes one.
    batches = Batches([(0.01, numbered([(3, 3)] * 5))], CONFIG, 0)
    assert counted(batches, 0).sum() == batches.per_epoch == 1


# Subword sampling.

TEXT = ["the small house stands there", "the houses stood here", "a house is there"] * 5


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def sampling(request):
    """(tokenizer, corpus, config, samplers)."""
    tokenizer = Tokenizer.train(TEXT, {"bpe": 30, "unigram": 24}[request.param], request.param)
    corpus = TokenCorpus.encode(TEXT, TEXT[::-1], Vocabularies.shared(tokenizer))
    config = CONFIG.replace(
        tokenizer=request.param,
        subword_sampling=0.3,
        max_length=32,
        bucket_lengths=(32,),
        tokens_per_batch=640,
    )
    samplers = dict.fromkeys(("source", "target"), SubwordSampler(tokenizer, request.param, 0.3))
    return tokenizer, corpus, config, samplers


def texts(tokenizer, padded):
    return [tokenizer.decode(row[row != PAD_ID].tolist()) for row in padded if row.any()]


def test_sampled_subwords_spell_the_same_text_and_vary_with_the_epoch(sampling):
    tokenizer, corpus, config, samplers = sampling
    batches = Batches([(1.0, corpus)], config, 3, samplers)
    plain = Batches([(1.0, corpus)], config, 3)
    assert texts(tokenizer, batches[0].source) == texts(tokenizer, plain[0].source)
    assert texts(tokenizer, batches[0].target) == texts(tokenizer, plain[0].target)
    assert not same(batches[0], plain[0])
    again = Batches([(1.0, corpus)], config, 3, samplers)
    again[5], again[2]  # earlier requests must not matter
    assert same(again[0], batches[0])
    [pair] = {int(pair) for pair in batches.plan(0)[0].pairs} & {0}
    sentences = {
        tuple(batches[epoch].source[batches.plan(epoch)[0].pairs.tolist().index(pair)])
        for epoch in range(6)
    }
    assert len(sentences) > 1, "an epoch is one batch here"


def test_a_sampled_sentence_that_does_not_fit_is_not_used(sampling):
    tokenizer, corpus, config, samplers = sampling
    longest = int(corpus.max_lengths.max())
    tight = config.replace(max_length=longest, bucket_lengths=(longest,))
    batches = Batches([(1.0, corpus)], tight, 0, samplers)
    kept = 0
    for epoch in range(5):
        planned, batch = batches.plan(epoch)[0], batches[epoch]
        for pair, row in zip(planned.pairs, batch.source, strict=False):
            ids = row[row != PAD_ID].tolist()
            assert tokenizer.decode(ids) == TEXT[pair]
            kept += len(corpus.source[pair]) == longest and ids == corpus.source[pair].tolist()
    assert kept


def test_sampled_subwords_share_the_capacity_of_a_packed_row(sampling):
    tokenizer, corpus, config, samplers = sampling
    batches = Batches([(1.0, corpus)], config.replace(packing=True), 0, samplers)
    decoded = []
    for index in range(batches.per_epoch):
        batch = batches[index]
        for row, segments in zip(batch.target, batch.target_segments, strict=True):
            decoded += [
                tokenizer.decode(row[segments == number].tolist())
                for number in range(1, segments.max() + 1)
            ]
    assert sorted(decoded) == sorted(TEXT)
