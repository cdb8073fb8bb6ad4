# SPDX-License-Identifier: Apache-2.0
"""The study of pronoun resolution: its measures on a tiny model, and its committed results."""

import jax
import numpy as np
import oracle
import pytest
from test_twins import EXAMPLES

from experiments.studies import resolution, twins
from experiments.studies.twins import PREFIX_ROLES, ROLES
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import patching, readout
from transformer.inspection.trace import run
from transformer.models import base
from transformer.nn.capture import KINDS
from transformer.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def sentences():
    """Ten pairs of twins."""
    texts = [each[side] for each in EXAMPLES for side in ("source", "target")]
    tokenizer = Tokenizer.train(texts * 2, 800)
    return twins.read(tokenizer, EXAMPLES, 10)


@pytest.fixture(scope="module")
def model():
    """(params, config) of a model that depends on the source and is right about some twins."""
    config = TransformerConfig(
        vocab_size=800, encoder_layers=1, decoder_layers=2, d_model=8, d_ff=8, num_heads=2
    )
    params = oracle.random_params(base.build(config), seed=2)
    for layer in params["decoder"].values():
        layer["cross_attention"] = jax.tree.map(lambda leaf: 8 * leaf, layer["cross_attention"])
    return params, config


@pytest.mark.slow
def test_the_queries_are_it_and_the_row_that_predicts_the_pronoun(model, sentences):
    result = resolution.coreference(*model, sentences)
    antecedent = {kind: [] for kind in KINDS}
    for one in sentences:
        _, trace = run(*model, one.source, one.target_in, capture="weights")
        it = trace.attention("encoder").weights[:, :, one.has_role("it")].mean(2)
        antecedent["encoder"].append(it[..., one.has_role("antecedent")].sum(-1))
        cross = trace.attention("cross").weights[:, :, one.position]
        antecedent["cross"].append(cross[..., one.has_role("antecedent")].sum(-1))
        decoder = trace.attention("decoder").weights[:, :, one.position]
        if one.has_prefix_role("antecedent").any():
            antecedent["decoder"].append(decoder[..., one.has_prefix_role("antecedent")].sum(-1))
    for kind in KINDS:
        np.testing.assert_allclose(result[kind].antecedent, np.mean(antecedent[kind], 0), rtol=1e-4)
        np.testing.assert_allclose(
            result[kind].score, result[kind].antecedent - result[kind].distractor, atol=1e-6
        )
        assert result[kind].sentences == len(antecedent[kind])
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
    assert result.loss_increase.encoder.shape == (1, 2)


@pytest.mark.slow
def test_at_the_input_only_the_adjective_carries_the_answer(model, sentences):
    result = resolution.role_patching(*model, sentences)
    adjective = np.array([role == "adjective" for role in ROLES])
    np.testing.assert_allclose(result.encoder[0], adjective, atol=1e-4)
    np.testing.assert_array_equal(result.strongest[0], adjective)
    np.testing.assert_allclose(result.strongest.sum(-1), 1)
    assert result.encoder.shape == (2, len(ROLES)) and result.decoder.shape == (3, 2)
    # At the end of the decoder only the row that predicts matters.
    np.testing.assert_allclose(result.decoder[-1], [1, 0], atol=1e-4)
    assert result.sentences < len(sentences), "some twins get the same answer"
    assert (np.abs(result.estimate_correlation) <= 1).all()


@pytest.mark.slow
def test_effects_are_those_of_patching_the_twin(model, sentences):
    exact, _, _ = resolution._patched(*model, sentences)
    one, twin = sentences[4], sentences[5]
    metric = readout.LogitDifference(int(one.position), int(one.pronoun), int(one.other))
    alone = patching.patch_sites(*model, one.source, twin.source, one.target_in, metric)
    np.testing.assert_allclose(exact.patched[4], alone.patched, atol=1e-4)


@pytest.mark.slow
def test_a_model_that_is_never_right_is_rejected(model, sentences):
    params, config = model
    zero = jax.tree.map(np.zeros_like, params)
    with pytest.raises(InputError, match="the model prefers the right pronoun in no two twins"):
        resolution.role_patching(zero, config, sentences)


@pytest.mark.slow
def test_attributions_by_role_add_up_to_the_preference(model, sentences):
    result = resolution.role_attribution(*model, sentences[:4], steps=64)
    total = np.nansum(result.source) + result.prefix.sum()
    assert total == pytest.approx(result.value - result.baseline, abs=0.05)
    assert result.relative_gap.shape == (4,)


# Aggregation by role.


def test_a_role_mean_is_over_tokens_and_then_over_sentences_with_the_role():
    values = np.array([[[1.0, 3.0, 5.0, 9.0]], [[2.0, 4.0, 6.0, 9.0]]])
    roles = np.array([[0, 0, 1, -1], [0, 2, 2, -1]])
    means = resolution.role_means(values, roles, 4)
    np.testing.assert_allclose(means, [[2.0, 5.0, 5.0, np.nan]])


# Committed results.


@pytest.fixture(scope="module")
def committed():
    """The results read by the notebook."""
    return resolution.results()


def test_the_committed_results_have_several_seeds_and_their_command(committed):
    seeds = [model["seed"] for model in committed["models"] if model["seed"] is not None]
    assert len(set(seeds)) == len(seeds) >= 5
    assert committed["command"].startswith("python -m experiments.studies.antecedent --seeds=")
    assert ",".join(map(str, seeds)) in committed["command"]


def test_the_committed_results_have_the_fields_and_shapes_of_a_measurement(committed):
    """All names, and arrays of the shapes of the model's layers and heads."""
    for model in committed["models"]:
        encoder, decoder = model["model"]["layers"]
        heads, decoder_heads = model["model"]["heads"]
        shapes = dict(zip(KINDS, [(encoder, heads), *[(decoder, decoder_heads)] * 2], strict=True))
        for name in ("coreference", "untrained"):
            for kind, shape in shapes.items():
                scores = model[name][kind]
                assert scores.keys() == resolution.Coreference.__dataclass_fields__.keys()
                assert np.shape(scores["score"]) == np.shape(scores["antecedent_ahead"]) == shape
        assert model["ablation"].keys() == resolution.PronounAblation.__dataclass_fields__.keys()
        for kind, shape in shapes.items():
            assert np.shape(model["ablation"]["damage"][kind]) == shape
        assert model["rank_correlation"].keys() == {*KINDS, "all"}
        assert model["patching"].keys() == resolution.RolePatching.__dataclass_fields__.keys()
        assert np.shape(model["patching"]["encoder"]) == (encoder + 1, len(ROLES))
        assert np.shape(model["patching"]["decoder"]) == (decoder + 1, 2)
        assert model["attribution"].keys() == resolution.RoleAttribution.__dataclass_fields__.keys()
        assert len(model["attribution"]["source"]) == len(ROLES)
        assert len(model["attribution"]["prefix"]) == len(PREFIX_ROLES)
        assert model["pronoun_accuracy"].keys() == {"test", "test_unseen"}


def test_the_committed_results_satisfy_what_holds_for_every_model(committed):
    adjective = [float(role == "adjective") for role in ROLES]
    for model in committed["models"]:
        assert min(model["pronoun_accuracy"].values()) > 0.9
        np.testing.assert_allclose(model["patching"]["encoder"][0], adjective, atol=1e-3)
        assert max(model["attribution"]["relative_gap"]) < 0.02
        for kind in KINDS:
            untrained = model["untrained"][kind]
            assert np.abs(untrained["score"]).max() < 0.05
