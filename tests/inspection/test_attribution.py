# SPDX-License-Identifier: Apache-2.0
"""Contributions add up to what the words change; words that cannot matter contribute nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.errors import InputError
from transformer.inspection.attribution import (
    Attribution,
    input_x_gradient,
    integrated_gradients,
    occlusion,
)
from transformer.inspection.interventions import no_interventions
from transformer.inspection.readout import LogProbability
from transformer.inspection.trace import run

SOURCE, TARGET_IN = np.array([4, 7, 5, 2, 0]), np.array([1, 5, 9, 4])
METRIC = LogProbability(position=2, token=4)


@pytest.fixture(scope="module")
def attribution(shallow):
    """Attribution with the default number of steps."""
    return integrated_gradients(*shallow, SOURCE, TARGET_IN, METRIC)


def scaled(trace, nothing, source_scale, target_scale):
    """Interventions that multiply every embedding, but not its positional encoding."""
    for side, scale in (("encoder", source_scale), ("decoder", target_scale)):
        stack, captured = getattr(nothing, side), getattr(trace, side)
        inputs = captured.embedded * scale[:, None] + captured.positions
        values = stack.residual.value.at[0].set(inputs)
        mask = jnp.zeros(values.shape[:2], bool).at[0].set(True)
        nothing = nothing.patch_residual(side, mask, values)
    return nothing


@pytest.fixture(scope="module")
def scaled_metric(traced, nothing):
    """(source_scale, target_scale) -> the metric with scaled embeddings."""
    logits, trace = traced(SOURCE, TARGET_IN)

    def metric(*scales):
        changed = scaled(trace, nothing, *scales)
        return float(METRIC(traced(SOURCE, TARGET_IN, changed)[0]))

    return metric


def test_occlusion_is_the_cost_of_one_token_without_its_embedding(
    shallow, attribution, scaled_metric
):
    occluded = occlusion(*shallow, SOURCE, TARGET_IN, METRIC)
    assert float(occluded.value) == pytest.approx(float(attribution.value), abs=1e-5)
    assert float(occluded.baseline) == pytest.approx(float(attribution.baseline), abs=1e-5)
    for side, index in ((0, 1), (1, 2)):
        scales = [np.ones(5), np.ones(4)]
        scales[side][index] = 0.0
        cost = float(occluded.value) - scaled_metric(*scales)
        contribution = (occluded.source, occluded.target)[side][index]
        assert float(contribution) == pytest.approx(cost, abs=1e-5)
        assert abs(cost) > 1e-3
    # Padding is not read, and neither is what follows the metric's row.
    np.testing.assert_allclose([occluded.source[4], occluded.target[3]], 0, atol=1e-6)


def test_the_completeness_gap_is_the_missing_part_of_the_sum():
    attribution = Attribution(
        jnp.array([1.0, -0.5]), jnp.array([2.0]), jnp.array(3.0), jnp.array(1.0)
    )
    assert float(attribution.gap) == 0.5
    assert float(attribution.relative_gap) == 0.25


def test_contributions_add_up_along_the_path_from_positions_without_tokens(
    attribution, traced, scaled_metric
):
    plain = float(METRIC(traced(SOURCE, TARGET_IN)[0]))
    assert float(attribution.value) == pytest.approx(plain, abs=1e-5)
    baseline = scaled_metric(np.zeros(5), np.zeros(4))
    assert float(attribution.baseline) == pytest.approx(baseline, abs=1e-5)
    assert abs(plain - baseline) > 0.1
    assert 0 < float(attribution.relative_gap) < 0.02
    # Padding and tokens after the metric's position contribute exactly nothing.
    np.testing.assert_array_equal(np.asarray(attribution.source) != 0, [True] * 4 + [False])
    np.testing.assert_array_equal(np.asarray(attribution.target) != 0, [True] * 3 + [False])


def test_an_answer_that_depends_on_one_token_is_attributed_to_it_alone(shallow):
    """With every sublayer silent, row 2 depends only on the token that is read there."""
    model, params = shallow
    silent = jax.tree.map(lambda leaf: leaf, params)
    for side in ("encoder", "decoder"):
        for layer in silent[side].values():
            for sublayer in layer.values():
                for name in {"output", "kernel_out", "bias_out"} & sublayer.keys():
                    sublayer[name] = jnp.zeros_like(sublayer[name])
    attribution = integrated_gradients(model, silent, SOURCE, TARGET_IN, METRIC)
    np.testing.assert_array_equal(attribution.source, 0)
    np.testing.assert_array_equal(np.delete(attribution.target, 2), 0)
    assert float(attribution.target[2]) == pytest.approx(
        float(attribution.value - attribution.baseline), rel=0.02
    )
    assert abs(float(attribution.target[2])) > 0.1


@pytest.mark.slow
def test_input_times_gradient_is_the_slope_in_the_norm_of_an_embedding(shallow):
    """In float64 by central differences."""
    with jax.enable_x64(True):
        model = shallow[0], oracle.float64(shallow[1])
        attribution = input_x_gradient(*model, SOURCE, TARGET_IN, METRIC)

        @jax.jit
        def metric(scale):
            _, trace = run(*model, SOURCE, TARGET_IN, capture="full")
            changed = scaled(trace, no_interventions(shallow[0], 5, 4), scale[:5], scale[5:])
            return METRIC(run(*model, SOURCE, TARGET_IN, interventions=changed)[0])

        step, contributions = 1e-6, [*attribution.source, *attribution.target]
        for word, contribution in enumerate(contributions):
            up, down = (float(metric(jnp.ones(9).at[word].add(by))) for by in (step, -step))
            slope = (up - down) / (2 * step)
            assert float(contribution) == pytest.approx(slope, rel=1e-5, abs=1e-8)
        assert float(attribution.relative_gap) > 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0, but it must be at least 1"),
        ({"metric": lambda logits: logits[0]}, "it must return one number"),
        ({"metric": LogProbability(4, 4)}, "the metric is nan in the sentence pair"),
    ],
)
def test_invalid_arguments_of_attribution_are_rejected(shallow, options, message):
    arguments = {"metric": METRIC} | options
    with pytest.raises(InputError, match=message):
        integrated_gradients(*shallow, SOURCE, TARGET_IN, **arguments)
