# SPDX-License-Identifier: Apache-2.0
"""The question of a page and its evidence, compared with direct measurements of the model."""

import dataclasses
import types

import numpy as np
import pytest

from experiments.pages.sentence import sentence_answer, sentence_question
from experiments.pages.sentence.analyzed_pair import AnalyzedPair
from experiments.pages.sentence.sentence_question import Question, first_difference, least_certain
from transformer.arrays import SpecialIds
from transformer.inspection import ablation, attribution, no_interventions, readout, trace

FIRST, SECOND, TARGET, OTHER = [4, 7, 5, 2], [4, 9, 5, 2], [6, 8, 2], [6, 5, 2]


def predicted(target, rows=None):
    """The parts of a pair that a question reads."""
    log_probs = None if rows is None else np.log(np.array(rows))
    return types.SimpleNamespace(
        target=target,
        config=types.SimpleNamespace(special_ids=SpecialIds()),
        computed=types.SimpleNamespace(log_probs=log_probs),
    )


def test_the_question_of_two_sentences_is_their_first_difference():
    question = first_difference(predicted([6, 8, 2]), predicted([6, 5, 2]))
    assert question == Question(position=1, token=8, other=5)
    assert first_difference(predicted([6, 2]), predicted([6, 8, 2])) == Question(1, 2, 8)
    assert first_difference(predicted([6, 2]), predicted([6, 2])) is None


def test_the_question_of_one_sentence_is_its_smallest_margin_among_tokens_that_it_has_chosen():
    # The second row has the smallest margin; padding and <s> are never the rival.
    rows = [[0.2, 0.1, 0.1, 0.0999, 0.5001], [0.3, 0.2, 0.01, 0.2, 0.29], [0.1, 0.1, 0.6, 0.1, 0.1]]
    pair = predicted([4, 4, 2], rows)
    assert least_certain(pair) == Question(position=1, token=4, other=3)
    assert least_certain(pair, slice(2, 3)).position == 2
    assert least_certain(pair, slice(0, 1)).position == 0


@pytest.fixture(scope="module")
def pairs(shallow):
    """Two sentences that differ in one token, with the first's translation."""
    tokenizer = types.SimpleNamespace(pieces=lambda ids: [f"t{token}" for token in ids])
    return [AnalyzedPair.of(*shallow, tokenizer, each, TARGET) for each in (FIRST, SECOND)]


QUESTION = Question(1, 8, 5)


def preference(pair, interventions=None):
    """log P(8) - log P(5) at position 1."""
    arguments = (pair.model, pair.params, np.array(pair.source), np.array(pair.target_in))
    logits, _ = trace.run(*arguments, interventions=interventions)
    return float(logits[1, 8] - logits[1, 5])


@pytest.mark.slow
def test_what_is_lost_without_a_head_is_what_a_run_without_it_loses(pairs):
    first, second = pairs
    effects = sentence_question.head_effects(QUESTION, first, second)
    increase = ablation.ablate_heads(first.model, first.params, [FIRST], [TARGET]).increase
    np.testing.assert_allclose(effects.loss["cross"], increase.cross, atol=1e-5)

    nothing = no_interventions(first.model, len(FIRST), len(TARGET))
    gates = nothing.gates
    without = nothing.with_gates(gates.replace(encoder=gates.encoder.at[0, 1].set(0.0)))
    lost = [preference(pair) - preference(pair, without) for pair in pairs]
    assert effects.preference["encoder"][0, 1] == pytest.approx(lost[0] - lost[1], abs=1e-4)

    alone = sentence_question.head_effects(QUESTION, first, None)
    assert alone.preference["encoder"][0, 1] == pytest.approx(lost[0], abs=1e-4)


@pytest.mark.slow
def test_contributions_to_the_preference_are_those_to_the_difference_of_the_logits(pairs):
    found = sentence_question.contributions(QUESTION, *pairs)
    for pair, values in zip(pairs, found.preferences, strict=True):
        direct = attribution.integrated_gradients(
            *(pair.model, pair.params, pair.source, pair.target_in),
            readout.LogitDifference(1, 8, 5),
            steps=sentence_question.GRADIENT_POINTS,
        )
        np.testing.assert_allclose(values[:4], direct.source, atol=1e-4)
        np.testing.assert_allclose(values[4:], direct.target, atol=1e-4)
    assert found.predictions.shape == (3, 7)


@pytest.mark.slow
def test_sentences_of_different_lengths_have_the_encoder_row_of_the_first_alone(shallow):
    """Whichever is longer; the row of the other is that of another word."""
    tokenizer = types.SimpleNamespace(pieces=lambda ids: [f"t{token}" for token in ids])
    long, short = (
        AnalyzedPair.of(*shallow, tokenizer, source, target)
        for source, target in (([4, 7, 5, 9, 10, 8, 2], TARGET), ([4, 7, 2], OTHER))
    )
    for first, second in ((long, short), (short, long)):
        evidence = sentence_question.gather(first, second)
        focus = dataclasses.replace(evidence.focus, source=len(first.source) - 1)
        evidence = dataclasses.replace(evidence, focus=focus)
        assert evidence.reads(first, "encoder").shape == (len(first.source),)
        assert evidence.reads(second, "encoder") is None
        assert evidence.reads(second, "cross").shape == (len(second.source),)
        [finding] = [
            finding
            for name, finding in sentence_answer.evidence_items(evidence)
            if "Encoder head" in name
        ]
        assert "in the second" not in finding
        assert sentence_answer.opening(evidence).count("<figure") == 2


@pytest.mark.slow
def test_the_evidence_of_two_sentences_is_about_the_position_of_the_largest_patch(pairs, shallow):
    first = pairs[0]
    second = AnalyzedPair.of(*shallow, first.tokenizer, SECOND, OTHER)
    evidence = sentence_question.gather(first, second)
    assert evidence.question == QUESTION
    assert evidence.focus.target == 1
    assert evidence.focus.source == evidence.patched[-1].argmax()
    assert evidence.total == pytest.approx(preference(pairs[0]) - preference(pairs[1]), abs=1e-4)
    same = sentence_question.gather(first, first)
    assert not same.is_about_two
    assert same.patched is None
