# SPDX-License-Identifier: Apache-2.0
"""Interchange interventions on a tiny model, and the measures of the study of "it" on it."""

import itertools
import json

import jax
import numpy as np
import oracle
import pytest

from experiments.studies.antecedent import measures, sentences, twins
from experiments.studies.antecedent.effects import Effects, Subject
from transformer.config import TransformerConfig
from transformer.inspection.trace import run
from transformer.models import protocol
from transformer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer_and_batch():
    """A tokenizer, and two quadruples."""
    fours = list(itertools.islice(sentences._drawn("de"), 60))
    texts = [each[side] for four in fours for each in four for side in ("source", "target")]
    tokenizer = Tokenizer.train(texts * 2, 700)
    rows = []
    for four in fours:
        new = [*twins.rows_of(tokenizer, four[:2]), *twins.rows_of(tokenizer, four[2:])]
        if len(new) == 4 and all(map(sentences._fits, new)):
            rows += new
    assert len(rows) >= 8
    return tokenizer, twins.stacked(tokenizer, rows[:8], sentences.LENGTHS)


@pytest.fixture(scope="module")
def subject(tokenizer_and_batch):
    """A random model that depends on the source, and its run."""
    config = TransformerConfig(vocab_size=700, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    model = protocol.build(config)
    params = oracle.random_params(model, seed=2)
    layer = params["decoder"]["layer_0"]
    layer["cross_attention"] = jax.tree.map(lambda leaf: 4 * leaf, layer["cross_attention"])
    return Subject.of(model, params, tokenizer_and_batch[1])


def test_without_an_edit_the_preference_is_that_of_the_model(subject):
    for row in (0, 5):
        one = subject.batch[row]
        logits, _ = run(subject.model, subject.params, one.source, one.target_in)
        expected = float(logits[one.position, one.pronoun] - logits[one.position, one.other])
        assert subject.preference[row] == pytest.approx(expected, abs=1e-4)


def test_the_whole_memory_of_the_adjective_twin_gives_its_answer(subject, monkeypatch):
    """The prefix is the same, so all that differs comes from the encoder.

    With one layer, cross-attention in the pronoun's row is the only way out of the memory.
    """
    monkeypatch.setattr(Effects, "right", property(lambda effects: np.ones(8, bool)))
    effects = Effects(subject, sentences.ADJECTIVE)
    preference = subject.with_residual(effects.donor, -1, True)
    np.testing.assert_allclose(preference, -subject.preference[effects.twins], atol=1e-4)
    assert np.abs(preference - subject.preference).max() > 1e-3
    assert measures.memory(effects)["memory"]["all"][0] == pytest.approx(1, abs=1e-3)
    assert measures.cross_attention(effects)["output"] == pytest.approx(1, abs=1e-3)


def test_decoder_rows_of_a_donor_are_moved_to_the_row_that_predicts_the_pronoun(subject):
    effects = Effects(subject, sentences.NOUN)
    for row, twin in enumerate(effects.twins):
        expected = subject.activations.heads["cross"][twin, :, :, subject.batch.position[twin]]
        moved = effects.donor.heads["cross"][row, :, :, subject.batch.position[row]]
        np.testing.assert_array_equal(moved, expected)


def test_a_mean_is_over_tokens_without_padding(subject):
    tokens = np.asarray(subject.batch.source_roles) >= 0
    z = np.asarray(subject.activations.heads["encoder"])  # [B, L, N, S, H]
    expected = z.transpose(0, 3, 1, 2, 4)[tokens].mean(0)
    mean = measures._means(subject).heads["encoder"][3, :, :, 2]
    np.testing.assert_allclose(mean, expected, atol=1e-5)


def test_all_measures_of_a_model_are_numbers_that_json_holds(subject, tokenizer_and_batch):
    tokenizer, batch = tokenizer_and_batch
    measured = measures.measure(subject.model, subject.params, batch, batch[:2], tokenizer)
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured
    assert measured["sentences"] == 8
    assert len(measured["headline"]["twins"]) == 2
    assert len(measured["ablation"]["cross"]["pairs"]) == 1
    assert measured["attribution"]["deletion"]["random"] is not None
