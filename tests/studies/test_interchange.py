# SPDX-License-Identifier: Apache-2.0
"""Interchange interventions on a tiny model, and the measures of the study `antecedent` on it."""

import itertools
import json

import jax
import numpy as np
import oracle
import pytest

from experiments.studies import antecedent_faithfulness, antecedent_measures, twins
from experiments.studies import antecedent_sentences as sentences
from experiments.studies.antecedent_effects import Effects, Subject
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


def test_the_whole_memory_of_the_adjective_twin_gives_its_answer(subject):
    """The prefix is the same, so all that differs comes from the encoder."""
    edit = subject.nothing()
    edit.encoder_residual[:, -1] = True
    preference, _ = subject.edited(subject.donor(sentences.ADJECTIVE), edit)
    twin = subject.preference[np.arange(8) ^ sentences.ADJECTIVE]
    np.testing.assert_allclose(preference, -twin, atol=1e-4)
    assert np.abs(preference - subject.preference).max() > 1e-3


def test_decoder_rows_of_a_donor_are_moved_to_the_row_that_predicts_the_pronoun(subject):
    donor = subject.donor(sentences.NOUN)
    for row in range(8):
        twin = row ^ sentences.NOUN
        expected = subject.activations.heads["cross"][twin, :, :, subject.batch.position[twin]]
        found = donor.heads["cross"][row, :, :, subject.batch.position[row]]
        np.testing.assert_array_equal(found, expected)


def test_the_last_vector_of_the_pronouns_row_is_the_whole_answer(subject):
    for kind in (sentences.ADJECTIVE, sentences.NOUN):
        edit = subject.nothing()
        edit.decoder_residual[:, -1] = subject.has_pronoun_row
        preference, _ = subject.edited(subject.donor(kind), edit)
        np.testing.assert_allclose(preference, -subject.preference[np.arange(8) ^ kind], atol=1e-4)


def test_all_paths_through_cross_attention_carry_what_the_memory_does(subject, monkeypatch):
    """With one layer, cross-attention in the pronoun's row is the only way out of the memory."""
    monkeypatch.setattr(Effects, "right", property(lambda effects: np.ones(8, bool)))
    effects = Effects(subject, sentences.ADJECTIVE, subject.donor(sentences.ADJECTIVE))
    to_cross = antecedent_measures.path_patching(effects)["to_cross"]
    memory = antecedent_measures.memory(effects)["memory"]
    for group, [effect] in to_cross.items():
        assert effect == pytest.approx(memory[group][0], abs=1e-3)


def test_a_mean_is_over_tokens_without_padding_and_a_sample_is_of_another_quadruple(subject):
    real = np.asarray(subject.batch.source_roles) >= 0
    z = np.asarray(subject.activations.heads["encoder"])  # [B, L, N, S, H]
    expected = z.transpose(0, 3, 1, 2, 4)[real].mean(0)
    found = antecedent_measures._means(subject).heads["encoder"][3, :, :, 2]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    resampled = np.asarray(antecedent_measures._resampled(subject).heads["encoder"])
    for row in range(8):
        others = [other for other in range(8) if other // 4 != row // 4]
        assert any(np.array_equal(resampled[row], z[other]) for other in others)


def test_all_measures_of_a_model_are_numbers_that_json_holds(subject, tokenizer_and_batch):
    tokenizer, batch = tokenizer_and_batch
    arguments = (subject.model, subject.params, batch, batch[:2], tokenizer)
    measured = antecedent_measures.measure(*arguments)
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured
    assert measured["sentences"] == 8
    assert len(measured["headline"]["twins"]) == 2
    assert len(measured["ablation"]["mean"]["cross"]["pairs"]) == 1
    curve = measured["attribution"]["deletion"]["integrated gradients"]
    assert len(curve) == antecedent_faithfulness.DELETIONS + 1 and curve[0] in (1.0, None)
