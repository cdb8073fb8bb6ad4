# SPDX-License-Identifier: Apache-2.0
"""The measures of notebook 06 on a tiny model."""

import jax
import numpy as np
import oracle
import pytest
from test_twins import EXAMPLES

from experiments.studies.antecedent import resolution, twins
from experiments.studies.antecedent.twins import ROLES
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import patching, readout
from transformer.inspection.trace import run
from transformer.models import protocol
from transformer.models.protocol import KINDS
from transformer.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def sentences():
    """Ten pairs of twins."""
    texts = [each[side] for each in EXAMPLES for side in ("source", "target")]
    tokenizer = Tokenizer.train(texts * 2, 800)
    return twins.read(tokenizer, EXAMPLES, 10)


@pytest.fixture(scope="module")
def model():
    """A model that depends on the source and is right about some twins, and its parameters."""
    config = TransformerConfig(
        vocab_size=800, encoder_layers=1, decoder_layers=2, d_model=8, d_ff=8, num_heads=2
    )
    model = protocol.build(config)
    params = oracle.random_params(model, seed=2)
    for layer in params["decoder"].values():
        layer["cross_attention"] = jax.tree.map(lambda leaf: 8 * leaf, layer["cross_attention"])
    return model, params


@pytest.mark.slow
def test_the_queries_are_it_and_the_row_that_predicts_the_pronoun(model, sentences):
    result = resolution.coreference(*model, sentences)
    expected = {kind: [] for kind in KINDS}
    for one in sentences:
        _, trace = run(*model, one.source, one.target_in, capture="weights")
        rows = {
            "encoder": trace.attention("encoder").weights[:, :, one.has_role("it")].mean(2),
            "cross": trace.attention("cross").weights[:, :, one.position],
            "decoder": trace.attention("decoder").weights[:, :, one.position],
        }
        for kind, weights in rows.items():
            has_role = one.has_prefix_role if kind == "decoder" else one.has_role
            if has_role("antecedent").any() and has_role("distractor").any():
                nouns = (weights[..., has_role(n)].sum(-1) for n in ("antecedent", "distractor"))
                expected[kind].append(next(nouns) - next(nouns))
    for kind in KINDS:
        np.testing.assert_allclose(result[kind].score, np.mean(expected[kind], 0), atol=1e-5)
        assert result[kind].sentences == len(expected[kind])
    assert result["decoder"].sentences < len(sentences)


def test_a_positional_head_has_a_coreference_score_of_zero(model, sentences):
    """In the first layer "it" is equal in twins, and so is every key except the adjective's."""
    result = resolution.coreference(*model, sentences)
    assert np.abs(result["encoder"].score).max() < 0.02
    assert (result["encoder"].antecedent_ahead >= 0.4).all()


@pytest.mark.slow
def test_the_preference_is_the_mean_metric_of_the_model(model, sentences):
    result = resolution.pronoun_ablation(*model, sentences)
    each = [float(one.preference(run(*model, one.source, one.target_in)[0])) for one in sentences]
    assert result.preference == pytest.approx(np.mean(each), abs=1e-4)
    assert result.right == pytest.approx(np.mean(np.array(each) > 0))
    assert result.damage.cross.shape == result.right_without.cross.shape == (2, 2)


@pytest.mark.slow
def test_at_the_input_only_the_adjective_carries_the_answer(model, sentences):
    result = resolution.role_patching(*model, sentences)
    adjective = np.array([role == "adjective" for role in ROLES])
    np.testing.assert_allclose(result.encoder[0], adjective, atol=1e-4)
    assert result.encoder.shape == (2, len(ROLES)) and result.decoder.shape == (3, 2)
    # At the end of the decoder only the row that predicts matters.
    np.testing.assert_allclose(result.decoder[-1], [1, 0], atol=1e-4)
    assert result.sentences < len(sentences), "some twins get the same answer"
    assert (np.abs(result.estimate_correlation) <= 1).all()
    exact, _, _ = resolution._patched(*model, sentences)
    one, twin = sentences[4], sentences[5]
    metric = readout.LogitDifference(int(one.position), int(one.pronoun), int(one.other))
    alone = patching.patch_sites(*model, one.source, twin.source, one.target_in, metric)
    np.testing.assert_allclose(exact.patched[4], alone.patched, atol=1e-4)


@pytest.mark.slow
def test_a_model_that_is_never_right_is_rejected(model, sentences):
    zero = jax.tree.map(np.zeros_like, model[1])
    with pytest.raises(InputError, match="the model prefers the right pronoun in no pair of twins"):
        resolution.role_patching(model[0], zero, sentences)


def test_a_role_mean_is_over_tokens_and_then_over_sentences_with_the_role():
    values = np.array([[[1.0, 3.0, 5.0, 9.0]], [[2.0, 4.0, 6.0, 9.0]]])
    roles = np.array([[0, 0, 1, -1], [0, 2, 2, -1]])
    means = resolution.role_means(values, roles, 4)
    np.testing.assert_allclose(means, [[2.0, 5.0, 5.0, np.nan]])
