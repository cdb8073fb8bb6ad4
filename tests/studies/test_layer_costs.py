# SPDX-License-Identifier: Apache-2.0
"""The measured costs of layers have the exponents of table 1."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies.layer_costs import __main__ as layer_costs
from experiments.studies.layer_costs import measurements
from experiments.studies.layer_costs.layers import LAYERS

BY_NAME = {layer.name.split(" ")[0]: layer for layer in LAYERS if "dilated" not in layer.name}
LSTM = BY_NAME["recurrent"]


def test_the_longest_chain_of_matmuls_by_hand():
    """Two side by side and one after them, three times in a loop: 2 times 3."""

    def body(x, _):
        return (x @ x) @ (x @ (x + 1)), None

    def looped(x):
        return jax.lax.scan(body, x, length=3)[0]

    jaxpr = jax.make_jaxpr(looped)(jnp.ones((2, 2))).jaxpr
    assert measurements.sequential_matmuls(jaxpr) == 6


def test_xla_counts_the_body_of_a_loop_once():
    """Why the study adds the body's operations for every further step."""
    d = 16
    once = [
        measurements._xla_flops(LSTM.forward, (jnp.zeros((1, n, d)), *LSTM.weights(d)))
        for n in (32, 64)
    ]
    inputs = 2 * 32 * d * 4 * d  # the matmul of 32 further inputs, which is not in the loop
    assert once[1] - once[0] == pytest.approx(inputs, rel=0.02)
    with_loop = measurements.measured_flops(LSTM, 64, d)
    assert with_loop - once[1] == pytest.approx(63 * 2 * d * 4 * d, rel=0.2)


def test_a_recurrent_layer_reaches_one_position_more_with_each_application():
    reached = measurements.reached_inputs(LSTM, 4, 2)
    found = [list(np.flatnonzero(inputs)) for inputs in reached]
    assert found == [[3], [2, 3], [1, 2, 3], [0, 1, 2, 3]]


def test_applying_a_recurrent_layer_to_all_positions_n_times_is_its_loop():
    n, d = 5, 3
    x, weights = jnp.asarray(np.random.default_rng(0).standard_normal((1, n, d))), LSTM.weights(d)
    state = jnp.zeros((1, n, 2 * d))
    for count in range(n):
        state = LSTM.apply_once(count)(x, state, *weights)
    np.testing.assert_allclose(state[..., :d], LSTM.forward(x, *weights), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_exponents_are_within_015_of_the_theory_and_paths_are_exact(tmp_path):
    rows = layer_costs.run(layer_costs.Options(output=str(tmp_path)))
    assert json.loads((tmp_path / "layer_costs.json").read_text())["runs"] == rows
    for layer, row in zip(LAYERS, rows, strict=True):
        assert row["layer"] == layer.name
        expected = dict(zip(("flops_n", "flops_d"), layer.exponents, strict=True))
        for name, theory in (expected | {"sequential_n": layer.sequential}).items():
            if theory is not None:
                assert row["exponents"][name] == pytest.approx(theory, abs=0.15), layer.name
        paths = [layer.path(n) for n in (3, 9, 27, 81, 243)]
        assert row["measured"]["path_n"] == row["path_theory"] == paths, layer.name
    assert paths == [1, 2, 3, 4, 5], "log_3 n, dilated"
    for exponent in ("flops_n", "flops_d"):
        assert 1 < rows[1]["exponents"][exponent] < 2, "a sum of n² d and n d²"
    for layer in (LSTM, BY_NAME["convolutional,"]):
        row = rows[LAYERS.index(layer)]
        assert row["exponents"]["path_n"] == pytest.approx(1, abs=0.15)
