# SPDX-License-Identifier: Apache-2.0
"""The measured costs of layers have the exponents of table 1."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apps import run
from etils import epath

from experiments.studies import layer_measurements
from experiments.studies.layer_measurements import LAYERS, Measurements, Point

BY_NAME = {layer.name.split(",")[0]: layer for layer in LAYERS if "dilated" not in layer.name}
DILATED = next(layer for layer in LAYERS if "dilated" in layer.name)


def test_the_longest_chain_of_matmuls_by_hand():
    """Two side by side and one after them, three times in a loop: 2 times 3."""

    def body(x, _):
        return (x @ x) @ (x @ (x + 1)), None

    def looped(x):
        return jax.lax.scan(body, x, length=3)[0]

    jaxpr = jax.make_jaxpr(looped)(jnp.ones((2, 2))).jaxpr
    assert layer_measurements.sequential_matmuls(jaxpr) == 6


def test_xla_counts_the_body_of_a_loop_once():
    """Why the study adds the body's operations for every further step."""
    layer, d = BY_NAME["recurrent (LSTM)"], 16
    once = [
        layer_measurements._xla_flops(layer.forward(d), (jnp.zeros((1, n, d)), *layer.weights(d)))
        for n in (32, 64)
    ]
    inputs = 2 * 32 * d * 4 * d  # the matmul of 32 further inputs, which is not in the loop
    assert once[1] - once[0] == pytest.approx(inputs, rel=0.02)
    with_loop = layer_measurements.measured_flops(layer, 64, d)
    assert with_loop - once[1] == pytest.approx(63 * 2 * d * 4 * d, rel=0.2)


def test_a_recurrent_layer_reaches_one_position_more_with_each_application():
    reached = list(layer_measurements.reached_inputs(BY_NAME["recurrent (LSTM)"], 4, 2))
    assert [list(np.flatnonzero(inputs)) for inputs in reached] == [
        [3],
        [2, 3],
        [1, 2, 3],
        [0, 1, 2, 3],
    ]


def test_applying_a_recurrent_layer_to_all_positions_n_times_is_its_loop():
    layer, n, d = BY_NAME["recurrent (LSTM)"], 5, 3
    x, weights = jnp.asarray(np.random.default_rng(0).standard_normal((1, n, d))), layer.weights(d)
    state = jnp.zeros((1, n, 2 * d))
    for count in range(n):
        state = layer.apply_once(count)(x, state, *weights)
    expected = layer.forward(d)(x, *weights)
    np.testing.assert_allclose(state[..., :d], expected, rtol=1e-5, atol=1e-6)


def test_a_measurement_is_made_once_and_kept(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(
        layer_measurements.MEASURES, "path", lambda layer, n, d: calls.append(n) or 10 * n
    )
    path = epath.Path(tmp_path) / "measurements.jsonl"
    points = [Point(LAYERS[0].name, "path", n, 4) for n in (3, 9)]
    assert Measurements(path).measure(points[0]) == 30
    again = Measurements(path)
    assert [again.measure(point) for point in points] == [30, 90]
    assert calls == [3, 9]


@pytest.mark.slow
def test_exponents_are_within_015_of_the_theory_and_paths_are_exact(tmp_path):
    command = ("experiments.studies.layer_costs", f"--output={tmp_path}")
    finished = run(*command)
    assert (finished.status, finished.out) == (0, f"{tmp_path / 'layer_costs.md'}\n"), finished.err
    rows = json.loads((tmp_path / "layer_costs.json").read_text())
    for layer, row in zip(LAYERS, rows, strict=True):
        assert row["layer"] == layer.name
        for along, theory in zip(("n", "d"), layer.exponents, strict=True):
            if theory is not None:
                assert row["flops"][along] == pytest.approx(theory, abs=0.15), layer.name
        assert row["sequential"]["n"] == pytest.approx(layer.sequential, abs=0.15), layer.name
        assert row["path"] == {str(n): layer.path(n) for n in (3, 9, 27, 81, 243)}, layer.name
    by_name = {row["layer"]: row for row in rows}
    with_projections = by_name["self-attention with projections"]["flops"]
    assert 1 < with_projections["n"] < 2
    assert 1 < with_projections["d"] < 2
    for layer in (BY_NAME["recurrent (LSTM)"], BY_NAME["convolutional"]):
        assert by_name[layer.name]["path_exponent"] == pytest.approx(1, abs=0.15)
    assert list(by_name[DILATED.name]["path"].values()) == [1, 2, 3, 4, 5]  # log_3 n
    assert (tmp_path / "layer_costs.png").stat().st_size > 10_000
    # A second run repeats nothing and changes nothing.
    files = ("measurements.jsonl", "layer_costs.md")
    before = [(tmp_path / name).read_text() for name in files]
    assert run(*command).status == 0
    assert [(tmp_path / name).read_text() for name in files] == before
