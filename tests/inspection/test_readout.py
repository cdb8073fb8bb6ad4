# SPDX-License-Identifier: Apache-2.0
"""Metrics of logits, and the logit lens."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import readout
from transformer.inspection.readout import LogitDifference, LogProbability, logit_lens
from transformer.inspection.trace import run
from transformer.models import protocol

CONFIG = TransformerConfig(vocab_size=5)
LOGITS = jnp.log(jnp.array([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]])) + 3.0


def test_metrics_of_hand_worked_probabilities():
    assert float(LogProbability(0, 2)(LOGITS)) == pytest.approx(np.log(0.5), abs=1e-6)
    assert float(LogProbability(1, 1)(LOGITS)) == pytest.approx(np.log(0.2), abs=1e-6)
    assert float(LogitDifference(1, 0, 2)(LOGITS)) == pytest.approx(np.log(7), abs=1e-6)
    assert float(LogitDifference(1, 2, 0)(LOGITS)) == pytest.approx(-np.log(7), abs=1e-6)


def test_a_contrast_is_the_log_odds_where_two_targets_differ_first():
    metric = readout.contrast([1, 0, 2], [1, 2])
    assert (metric.position, metric.token, metric.other) == (1, 0, 2)
    with pytest.raises(InputError, match=r"\[1, 0\] and \[1, 0, 2\] do not differ"):
        readout.contrast([1, 0], [1, 0, 2])


def test_certainty_is_the_entropy_in_bits_and_the_lead_of_the_first_token():
    half, quarter = np.log(0.5), np.log(0.25)
    rows = jnp.array(
        [[0.0, 0.0, 0.0, 0.0], [half, quarter, quarter, -1e9], [0.0, -1e9, -1e9, -1e9]]
    )
    result = readout.certainty(rows)
    np.testing.assert_allclose(result.entropy, [2, 1.5, 0], atol=1e-6)
    np.testing.assert_allclose(result.margin, [0, 0.25, 1], atol=1e-6)


def test_a_metric_outside_the_logits_is_nan_and_rejected():
    for metric in (LogProbability(2, 0), LogProbability(0, 3)):
        with pytest.raises(InputError, match="is nan in the clean run; check that its position"):
            readout.check_finite(metric(LOGITS), "clean run")
    readout.check_finite(LogProbability(-1, -1)(LOGITS), "clean run")


def test_a_metric_of_the_same_type_does_not_recompile_and_a_function_is_a_metric():
    compilations = []

    @jax.jit
    def read(metric):
        compilations.append(metric)
        return metric(LOGITS)

    values = [
        read(readout.checked_metric(LogProbability(0, token), 2, CONFIG)) for token in range(3)
    ]
    assert len(compilations) == 1
    np.testing.assert_allclose(np.exp(values), [0.2, 0.3, 0.5], atol=1e-6)
    total = read(readout.checked_metric(lambda logits: jnp.exp(logits - 3.0).sum(), 2, CONFIG))
    assert float(total) == pytest.approx(2, abs=1e-5)


def test_a_metric_that_is_not_one_number_is_rejected():
    for metric in (lambda logits: logits[0], lambda logits: {"sum": logits.sum(0)}):
        with pytest.raises(InputError, match=r"for logits \[2, 5\] the metric .* \[\[5\]\], but"):
            readout.checked_metric(metric, 2, CONFIG)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_last_row_of_the_logit_lens_equals_the_logits_and_the_first_reads_the_input(
    norm, shallow, traced
):
    model, params = shallow
    logits, trace = traced()
    residual = trace.decoder.residual
    if norm == "pre":
        model = protocol.build(model.config.replace(norm="pre"))
        params = oracle.random_params(model, seed=2)
        pair = np.array([4, 7, 5, 10, 2]), np.array([1, 5, 9, 4])

        @jax.jit
        def seen():
            logits, trace = run(model, params, *pair, capture="full")
            return logits, trace.decoder.residual

        logits, residual = seen()
    lens = jax.jit(lambda residual: logit_lens(model, params, residual))(residual)
    assert lens.shape == (3, 4, 11)
    np.testing.assert_allclose(lens[-1], logits, atol=1e-5)
    x = np.asarray(residual[0], np.float64)
    if norm == "pre":
        p = oracle.arrays(params)["decoder"]["final_norm"]
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = x * p["scale"] + p["bias"]
    expected = x @ np.asarray(params["embedding"]["table"], np.float64).T
    np.testing.assert_allclose(lens[0], expected, atol=1e-4)
