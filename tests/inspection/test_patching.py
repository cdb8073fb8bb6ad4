# SPDX-License-Identifier: Apache-2.0
"""Activation patching: all sites give the clean run, no site the corrupt run."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.errors import InputError
from transformer.inspection.interventions import no_interventions
from transformer.inspection.patching import (
    HeadSite,
    Patching,
    ResidualSite,
    attribution_patching,
    patch_path,
    patch_sites,
)
from transformer.inspection.readout import LogitDifference
from transformer.inspection.trace import run

CLEAN, CORRUPT = np.array([4, 7, 5, 10, 2]), np.array([4, 9, 5, 10, 2])
"""They differ at position 1."""
TARGET_IN = np.array([1, 5, 9, 4])
METRIC = LogitDifference(position=2, token=4, other=7)
ENCODER, DECODER = (2, 5), (3, 4)
"""Sites of the two stacks: L + 1 levels times positions."""


@pytest.fixture(scope="module")
def sites(shallow):
    """Every site of the encoder."""
    return patch_sites(*shallow, CLEAN, CORRUPT, TARGET_IN, METRIC)


@pytest.fixture(scope="module")
def patched(traced, nothing):
    """(side, mask) -> the metric of the corrupt run with the clean run's vectors there."""
    clean = traced(CLEAN)[1]

    def metric(side, mask):
        changed = nothing.patch_residual(side, mask, getattr(clean, side).residual)
        return float(METRIC(traced(CORRUPT, interventions=changed)[0]))

    return metric


def only(shape, *index):
    """A mask that is true only at one site, or at one layer."""
    return jnp.zeros(shape, bool).at[index].set(True)


def test_the_effect_is_the_restored_share_of_the_difference():
    patching = Patching(jnp.array([[-2.0, 0.0, 2.0, 3.0]]), jnp.array(2.0), jnp.array(-2.0))
    np.testing.assert_allclose(patching.effect, [[0, 0.5, 1, 1.25]])


def test_each_site_is_patched_separately_and_the_metrics_are_those_of_the_two_runs(
    sites, patched, traced
):
    for source, value in ((CLEAN, sites.clean), (CORRUPT, sites.corrupt)):
        logits, _ = traced(source)
        assert float(value) == pytest.approx(float(logits[2, 4] - logits[2, 7]), abs=1e-5)
    assert abs(float(sites.clean - sites.corrupt)) > 1e-2
    assert sites.patched.shape == sites.effect.shape == ENCODER
    for site in np.ndindex(ENCODER):
        alone = patched("encoder", only(ENCODER, *site))
        assert float(sites.patched[site]) == pytest.approx(alone, abs=1e-5)
    assert len(np.unique(np.round(sites.patched[1], 4))) == 5
    # At the input, only the token that differs restores the answer, and completely.
    np.testing.assert_allclose(sites.effect[0], [0, 1, 0, 0, 0], atol=1e-4)


@pytest.mark.parametrize("kind", ["residual", "decoder", "cross"])
def test_a_path_carries_what_its_sender_tells_its_receiver(shallow, sites, kind):
    """From the input of the differing token, or of an equal one, to three kinds of receivers."""

    def effect(receiver, position=1):
        sender = ResidualSite(only(ENCODER, 0, position))
        runs = (*shallow, CLEAN, CORRUPT, TARGET_IN, METRIC)
        return float(patch_path(*runs, sender, receiver).effect)

    if kind == "residual":  # of the memory: patching that vector alone
        for position in (0, 1, 3):
            alone = float(sites.effect[1, position])
            receiver = ResidualSite(only(ENCODER, 1, position))
            assert effect(receiver) == pytest.approx(alone, abs=1e-4)
        memory = ResidualSite(only(ENCODER, 1))
        assert effect(memory) == pytest.approx(1, abs=1e-4)
        assert effect(memory, position=2) == pytest.approx(0, abs=1e-4), "equal in both runs"
    elif kind == "decoder":  # its first self-attention reads the target alone
        receiver = HeadSite(only((2, 2, 4), 0), kind="decoder")
        assert effect(receiver) == pytest.approx(0, abs=1e-4)
    else:  # all that the encoder changes passes through cross-attention
        every_head = HeadSite(jnp.ones((2, 2, 4), bool), kind="cross")
        assert effect(every_head) == pytest.approx(1, abs=1e-4)
        one_layer = HeadSite(only((2, 2, 4), 0), kind="cross")
        assert 1e-3 < abs(effect(one_layer)) != pytest.approx(1, abs=1e-2)


@pytest.mark.slow
def test_in_the_decoder_the_last_vector_of_the_metrics_row_determines_the_answer(shallow, patched):
    """The decoder reads the same in both runs; a row does not depend on later ones."""
    sites = patch_sites(
        *shallow, CLEAN, CORRUPT, TARGET_IN, METRIC, side="decoder", sites_at_once=5
    )
    assert sites.patched.shape == DECODER
    np.testing.assert_allclose(sites.effect[0], [0, 0, 0, 0], atol=1e-4)
    np.testing.assert_allclose(sites.effect[-1], [0, 0, 1, 0], atol=1e-4)
    np.testing.assert_allclose(sites.effect[:, 3], [0, 0, 0], atol=1e-4)
    alone = patched("decoder", only(DECODER, 1, 1))
    assert float(sites.patched[1, 1]) == pytest.approx(alone, abs=1e-5)
    assert abs(float(sites.effect[1, 1])) > 1e-3


@pytest.mark.slow
def test_attribution_patching_is_the_slope_from_the_corrupt_run_to_the_clean_run(shallow):
    """In float64 by central differences: each site moved slightly towards the clean run."""
    with jax.enable_x64(True):
        model = shallow[0], oracle.float64(shallow[1])
        estimate = attribution_patching(*model, CLEAN, CORRUPT, TARGET_IN, METRIC)
        nothing, step = no_interventions(shallow[0], 5, 4), 1e-5

        def residual(source):
            return run(*model, source, TARGET_IN, capture="full")[1].encoder.residual

        @jax.jit
        def towards(mask, by):
            clean, corrupt = residual(CLEAN), residual(CORRUPT)
            values = corrupt + by * (clean - corrupt)
            changed = nothing.patch_residual("encoder", mask, values)
            return METRIC(run(*model, CORRUPT, TARGET_IN, interventions=changed)[0])

        for site in np.ndindex(ENCODER):
            mask = only(ENCODER, *site)
            slope = float(towards(mask, step) - towards(mask, -step)) / (2 * step)
            change = float(estimate.patched[site] - estimate.corrupt)
            assert change == pytest.approx(slope, rel=1e-5, abs=1e-8)
        assert float(jnp.abs(estimate.effect[1]).min()) > 1e-3


@pytest.mark.parametrize(
    ("corrupt", "metric", "options", "message"),
    [
        ([4, 9, 2], METRIC, {}, "clean_source has 5 tokens and corrupt_source 3.*of one length"),
        (CLEAN, METRIC, {}, "in both runs, so no site can restore it; choose sentences"),
        (CORRUPT, LogitDifference(9, 4, 7), {}, "the metric is nan in the clean run"),
        ([4, 99, 5, 10, 2], METRIC, {}, r"corrupt_source\[1\] is 99"),
        (CORRUPT, METRIC, {"side": "both"}, r"'both' is unknown; choose one of \['encoder', 'dec"),
        (CORRUPT, METRIC, {"sites_at_once": 0}, "sites_at_once is 0, but it must be at least 1"),
    ],
    ids=["lengths", "equal runs", "position", "vocabulary", "side", "sites_at_once"],
)
def test_runs_that_cannot_be_compared_and_invalid_options_are_rejected(
    shallow, corrupt, metric, options, message
):
    with pytest.raises(InputError, match=message):
        patch_sites(*shallow, CLEAN, corrupt, TARGET_IN, metric, **options)
