# SPDX-License-Identifier: Apache-2.0
"""Contributions add up to what the words change; words that cannot matter contribute nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.errors import InputError
from transformer.inspection.attribution import Attribution, input_x_gradient, integrated_gradients
from transformer.inspection.patching import with_patches
from transformer.inspection.readout import LogProbability
from transformer.inspection.trace import run
from transformer.nn.capture import Interventions

SOURCE, TARGET_IN = np.array([4, 7, 5, 2, 0]), np.array([1, 5, 9, 4])
METRIC = LogProbability(position=2, token=4)


@pytest.fixture(scope="module")
def found(shallow):
    """With the default number of steps."""
    return integrated_gradients(*shallow, SOURCE, TARGET_IN, METRIC)


@pytest.fixture(scope="module")
def value(shallow):
    """Compiled: tokens -> their metric."""
    return jax.jit(lambda source, target_in: METRIC(run(*shallow, source, target_in)[0]))


def metric_of_words(model, source_scale, target_scale):
    """The metric with every word's vector, but not its position, multiplied."""
    _, trace = run(*model, SOURCE, TARGET_IN, capture="full")
    changed = Interventions.none(model[1], 5, 4)
    for side, scale in (("encoder", source_scale), ("decoder", target_scale)):
        stack, own = getattr(changed, side), getattr(trace, side)
        values = stack.patch_value.at[0].set(own.embedded * scale[:, None] + own.positions)
        mask = jnp.zeros(values.shape[:2], bool).at[0].set(True)
        changed = with_patches(changed, side, mask, values)
    return METRIC(run(*model, SOURCE, TARGET_IN, interventions=changed)[0])


def test_the_gap_is_what_contributions_miss():
    attribution = Attribution(
        jnp.array([1.0, -0.5]), jnp.array([2.0]), jnp.array(3.0), jnp.array(1.0)
    )
    assert float(attribution.gap) == 0.5
    assert float(attribution.relative_gap) == 0.25


def test_the_completeness_gap_is_under_two_percent(found):
    assert abs(float(found.value - found.baseline)) > 0.1
    assert 0 < float(found.relative_gap) < 0.02


def test_the_way_leads_from_positions_without_words_to_the_sentence_pair(found, shallow, value):
    assert float(found.value) == pytest.approx(float(value(SOURCE, TARGET_IN)), abs=1e-5)
    wordless = jax.jit(lambda: metric_of_words(shallow, jnp.zeros(5), jnp.zeros(4)))()
    assert float(found.baseline) == pytest.approx(float(wordless), abs=1e-5)


def test_padding_and_tokens_read_after_the_position_asked_about_contribute_exactly_nothing(found):
    np.testing.assert_array_equal(np.asarray(found.source) != 0, [True] * 4 + [False])
    np.testing.assert_array_equal(np.asarray(found.target) != 0, [True] * 3 + [False])


def test_where_the_answer_rests_on_one_word_that_word_has_all_of_it(shallow):
    """With every sub-layer silent, row 2 depends on nothing but the word that is read there."""
    silent = jax.tree.map(lambda leaf: leaf, shallow[0])
    for side in ("encoder", "decoder"):
        for layer in silent[side].values():
            for sublayer in layer.values():
                for name in {"output", "kernel_out", "bias_out"} & sublayer.keys():
                    sublayer[name] = jnp.zeros_like(sublayer[name])
    found = integrated_gradients(silent, shallow[1], SOURCE, TARGET_IN, METRIC)
    np.testing.assert_array_equal(found.source, 0)
    np.testing.assert_array_equal(np.delete(found.target, 2), 0)
    assert float(found.target[2]) == pytest.approx(float(found.value - found.baseline), rel=0.02)
    assert abs(float(found.target[2])) > 0.1


@pytest.mark.slow
def test_against_a_token_only_the_words_that_differ_from_it_contribute(shallow, value):
    source, target_in = np.array([4, 7, 4, 4, 0]), np.array([4, 4, 9, 4])
    found = integrated_gradients(*shallow, source, target_in, METRIC, baseline_token=4)
    np.testing.assert_array_equal(np.asarray(found.source) != 0, np.arange(5) == 1)
    np.testing.assert_array_equal(np.asarray(found.target) != 0, np.arange(4) == 2)
    baseline = value(np.array([4, 4, 4, 4, 0]), np.full(4, 4))
    assert float(found.baseline) == pytest.approx(float(baseline), abs=1e-4)
    assert float(found.relative_gap) < 0.02


@pytest.mark.slow
def test_input_times_gradient_is_the_slope_in_the_length_of_a_words_vector(shallow):
    """In float64 by central differences."""
    with jax.enable_x64(True):
        model = oracle.float64(shallow[0]), shallow[1]
        found = input_x_gradient(*model, SOURCE, TARGET_IN, METRIC)
        scaled = jax.jit(lambda scale: metric_of_words(model, scale[:5], scale[5:]))
        step, contributions = 1e-6, [*found.source, *found.target]
        for word, contribution in enumerate(contributions):
            up, down = (float(scaled(jnp.ones(9).at[word].add(by))) for by in (step, -step))
            slope = (up - down) / (2 * step)
            assert float(contribution) == pytest.approx(slope, rel=1e-5, abs=1e-8)
        assert float(found.relative_gap) > 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0, but it must be at least 1"),
        ({"baseline_token": 11}, "baseline_token is 11, but this model's tokens are 0 to 10"),
        (
            {"metric": lambda logits: logits[0]},
            "it must give one number",
        ),
        ({"metric": LogProbability(4, 4)}, "the metric is nan in the sentence pair"),
    ],
)
def test_what_cannot_be_attributed_is_refused(shallow, options, message):
    arguments = {"metric": METRIC} | options
    with pytest.raises(InputError, match=message):
        integrated_gradients(*shallow, SOURCE, TARGET_IN, **arguments)
