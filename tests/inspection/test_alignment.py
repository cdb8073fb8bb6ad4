# SPDX-License-Identifier: Apache-2.0
"""The alignment error rate by hand, and of a model with constructed gold alignments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.errors import InputError
from transformer.inspection import alignment
from transformer.inspection.alignment import (
    AlignedBatch,
    aligned_batch,
    count_links,
    hard_links,
    target_rows,
)
from transformer.inspection.words import NO_WORD
from transformer.nn.positions import shift_right
from transformer.text.tokenizer import Tokenizer


def links(*pairs, size=(3, 4)):
    """A matrix that is true at these (target, source) pairs."""
    matrix = np.zeros(size, bool)
    matrix[tuple(np.transpose(pairs))] = True
    return matrix


# Links and their error rate.


def test_a_hand_worked_alignment_error_rate():
    """A has 4 links; of 3 sure ones it has 2, of 5 possible ones 3: 1 - (2 + 3) / (4 + 3)."""
    sure = links((0, 0), (1, 1), (2, 2))
    possible = sure | links((1, 2), (2, 3))
    counts = count_links(links((0, 0), (1, 1), (2, 3), (0, 3)), sure, possible)
    assert [float(n) for n in (counts.proposed, counts.sure)] == [4, 3]
    assert [float(n) for n in (counts.in_sure, counts.in_possible)] == [2, 3]
    assert float(counts.error_rate()) == pytest.approx(1 - 5 / 7)


def test_error_rates_of_other_links_by_hand():
    sure, possible = links((0, 0), (1, 1)), links((2, 2), (2, 3))
    nothing = np.zeros((3, 4), bool)
    for proposed, rate in (
        (sure, 0),
        (sure | links((2, 3)), 0),
        (links((0, 1), (1, 0)), 1),
        (links((2, 2)), 1 - 1 / 3),
    ):
        found = count_links(proposed, sure, possible).error_rate()
        assert float(found) == pytest.approx(rate)
    assert float(count_links(nothing, nothing).error_rate()) == 0
    # With sure links only, it is 1 - F of a precision of 2/4 and a recall of 2/3.
    proposed, sure = links((0, 0), (1, 1), (2, 2), (2, 3)), links((0, 0), (1, 1), (1, 2))
    expected = 1 - 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)
    assert float(count_links(proposed, sure).error_rate()) == pytest.approx(expected)
    # Counts of sentences are summed before the division.
    good = count_links(links((0, 0)), links((0, 0)))
    bad = count_links(links((0, 1), (1, 0), (2, 1)), links((0, 0)))
    assert float((good + bad).error_rate()) == pytest.approx(1 - 2 / 6)


def test_a_word_is_linked_to_the_word_with_the_highest_weight_the_first_of_ties():
    weights = jnp.array([[0.2, 0.5, 0.3, 0.0], [0.4, 0.1, 0.4, 0.1], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(hard_links(weights), links((0, 1), (1, 0)))


def test_a_row_is_that_of_the_token_it_predicts_or_of_the_token_it_reads():
    """Row t predicts y[t] and reads y[t-1]; y[2], the last, is read by no row."""
    weights = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(target_rows(weights, "predict"), weights)
    read = target_rows(weights, "read")
    np.testing.assert_array_equal(read[:, :2], weights[:, 1:])
    np.testing.assert_array_equal(read[:, 2], 0)
    with pytest.raises(InputError, match="row convention 'input' is unknown; choose 'predict'"):
        target_rows(jnp.ones((1, 1)), "input")


# From text.


def test_a_batch_has_the_word_of_every_token_and_the_gold_links_of_the_words():
    tokenizer = Tokenizer.train(["ab ab, ab ab abc.", "dd dd. dd, d"], 13)  # splits rarer words
    sources, targets = ["abc, dd.", "d"], ["dd abc", "ab"]
    split = lambda text: text.replace(",", " ,").replace(".", " .").split()  # noqa: E731
    batch = aligned_batch(tokenizer, sources, targets, [[(0, 1), (2, 0)], []], split=split)
    for side, texts in (("source", sources), ("target", targets)):
        tokens, word_indices = getattr(batch, side), getattr(batch, f"{side}_words")
        assert [[i for i in row if i] for row in tokens.tolist()] == tokenizer.encode(texts)
        for row, indices, text in zip(tokens, word_indices, texts, strict=True):
            rebuilt = [""] * len(split(text))
            for piece, word in zip(tokenizer.pieces(row.tolist()), indices.tolist(), strict=True):
                if word != NO_WORD:
                    rebuilt[word] += piece.replace("▁", "")
            assert rebuilt == split(text)
    np.testing.assert_array_equal(batch.sure[0], links((1, 0), (0, 2), size=(2, 4)))
    assert not batch.sure[1].any()
    for targets, gold, words in (
        (["dd"], [[(0, 0)]], "there are 2 sources, 1 targets and 1 alignments"),
        (["dd", "d"], [[], [(0, 1)]], r"pair 1 aligns the words \[0, 1\], but has 1 source and 1"),
        (["dd", "d"], [[(-1, 0)], []], r"pair 0 aligns the words \[-1, 0\]"),
    ):
        with pytest.raises(InputError, match=words):
            aligned_batch(tokenizer, ["ab", "ab"], targets, gold)


# A model.


@pytest.fixture(scope="module")
def batch(source):
    """Sentences in which every token except the last is one word."""
    target = np.array([[5, 9, 4, 2], [10, 7, 2, 0], [6, 2, 0, 0]])

    def words(tokens):
        return np.where(np.asarray(tokens) > 2, np.arange(tokens.shape[1]), NO_WORD)

    sure = np.random.default_rng(0).random((3, 4, 5)) < 0.4
    sure &= (words(target) != NO_WORD)[:, :, None] & (words(source) != NO_WORD)[:, None]
    return AlignedBatch(np.asarray(source), target, words(source), words(target), sure)


@pytest.fixture(scope="module")
def attention(traced, batch):
    """The cross-attention of each sentence pair [B,L,N,T,S], as computed."""
    pairs = zip(batch.source, shift_right(jnp.asarray(batch.target)), strict=True)
    return np.stack([traced(*pair)[1].attention("cross").weights for pair in pairs])


def by_hand(weights, batch, convention):
    """The error rate of one matrix per sentence [B,T,S], link by link."""
    proposed = correct = 0
    for b, rows in enumerate(weights):
        for t, word in enumerate(batch.target_words[b]):
            row = t if convention == "predict" else t + 1
            if word != NO_WORD and row < len(rows):
                keys = np.where(batch.source_words[b] == NO_WORD, -1, rows[row])
                proposed += 1
                correct += int(batch.sure[b, t, keys.argmax()])
    return 1 - 2 * correct / (proposed + batch.sure.sum())


@pytest.mark.parametrize("convention", ["predict", "read"])
def test_the_error_rates_of_every_head_and_layer_equal_a_count_by_hand(
    shallow, batch, attention, convention
):
    errors = alignment.alignment_errors(*shallow, batch, convention)
    assert errors.heads.shape == (2, 2) and errors.layers.shape == (2,)
    for layer, head in np.ndindex(2, 2):
        expected = by_hand(attention[:, layer, head], batch, convention)
        assert float(errors.heads[layer, head]) == pytest.approx(expected)
    for layer in range(2):
        expected = by_hand(attention[:, layer].mean(1), batch, convention)
        assert float(errors.layers[layer]) == pytest.approx(expected)
    assert len(np.unique(errors.heads)) > 1
    # A head that equals the gold alignment.
    words = (batch.target_words != NO_WORD)[:, :, None] & (batch.source_words != NO_WORD)[:, None]
    head = target_rows(jnp.asarray(attention[:, 1, 0]), convention)
    gold = batch.replace(sure=np.asarray(hard_links(jnp.where(words, head, 0))))
    errors = alignment.alignment_errors(*shallow, gold, convention)
    assert float(errors.heads[1, 0]) == pytest.approx(0)
    assert np.asarray(errors.heads).max() > 0.2


@pytest.mark.slow
def test_both_conventions_are_reported_for_the_trained_and_the_untrained_model(shallow, batch):
    model, params = shallow
    report = alignment.alignment_errors_against_untrained(model, params, batch)
    assert [(name, list(rates)) for name, rates in report.items()] == [
        ("trained", ["predict", "read"]),
        ("untrained", ["predict", "read"]),
    ]
    untrained = alignment.untrained_params(model)
    assert jax.tree.structure(untrained) == jax.tree.structure(params)
    for name, weights in (("trained", params), ("untrained", untrained)):
        for convention in ("predict", "read"):
            expected = alignment.alignment_errors(model, weights, batch, convention)
            np.testing.assert_array_equal(report[name][convention].heads, expected.heads)
    assert (report["trained"]["read"].heads != report["untrained"]["read"].heads).any()


def test_tokens_of_another_vocabulary_are_rejected(shallow, batch):
    with pytest.raises(InputError, match=r"target\[0, 0\] is 12, but this model's tokens are 0"):
        alignment.alignment_errors(*shallow, batch.replace(target=batch.target + 7), "read")
