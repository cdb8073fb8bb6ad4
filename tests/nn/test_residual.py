# SPDX-License-Identifier: Apache-2.0
"""The vectors around every sublayer add up to the model's residual stream."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.errors import InputError
from transformer.inspection.activations import AttentionTrace, StackTrace
from transformer.inspection.residual import residual_flow
from transformer.inspection.trace import run
from transformer.models import protocol
from transformer.nn.norm import layer_norm

PAIR = [4, 7, 5, 10, 2], [1, 5, 9, 4]
NORMS = {"post": {}, "pre": {"norm": "pre", "attention_bias": True, "activation": "gelu"}}


@pytest.fixture(scope="module", params=NORMS)
def traced(request, shallow):
    """(config, params, trace) of a small model with pre-norm or post-norm."""
    model = protocol.build(shallow[0].config.replace(**NORMS[request.param]))
    params = oracle.random_params(model, seed=6)
    trace = jax.jit(lambda: run(model, params, *PAIR, capture="full")[1])()
    return model.config, params, trace


def test_the_output_of_a_sublayer_plus_its_input_is_the_next_stream(traced):
    config, params, trace = traced
    for side, names in (
        ("encoder", ["self_attention", "feed_forward"]),
        ("decoder", ["self_attention", "cross_attention", "feed_forward"]),
    ):
        stack = getattr(trace, side)
        flow = residual_flow(stack)
        sublayers = [(layer, name) for layer in range(config.depth(side)) for name in names]
        assert len(flow.before) == len(flow.after) == len(sublayers)
        for index, (layer, name) in enumerate(sublayers):
            assert flow.names[index] == f"{layer + 1} {name.replace('_', '-')}"
            expected = flow.total[index]
            if config.norm == "post":
                norm = params[side][f"layer_{layer}"][f"{name}_residual"]["norm"]
                expected = layer_norm(expected, norm["scale"], norm["bias"], config.norm_epsilon)
            np.testing.assert_allclose(flow.after[index], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(flow.before[0], stack.residual[0])
        np.testing.assert_array_equal(flow.before[1:], flow.after[:-1])
        np.testing.assert_array_equal(flow.after[-1], stack.residual[-1])


def test_a_hand_worked_residual_flow():
    """x = (3, 4) plus (-3, 0): norms 5, 3 and 4, and a cosine of 16/20."""
    attention = AttentionTrace(weights=jnp.ones((1, 1, 1, 1)), output=jnp.array([[[-3.0, 0.0]]]))
    stack = StackTrace(
        self_attention=attention,
        feed_forward=jnp.array([[[0.0, 2.0]]]),
        sublayers=jnp.array([[[[0.0, 1.0]], [[0.0, 6.0]]]]),
        residual=jnp.array([[[3.0, 4.0]], [[0.0, 6.0]]]),
    )
    flow = residual_flow(stack)
    assert flow.names == ("1 self-attention", "1 feed-forward")
    norms = [each[:, 0].tolist() for each in flow.norms().values()]
    assert norms == [[5, 1], [3, 2], [4, 3], [1, 6]]
    np.testing.assert_allclose(flow.cosine()[:, 0], [0.8, 1], rtol=1e-6)


def test_a_stream_of_norm_0_has_a_cosine_of_0():
    flow = residual_flow(
        StackTrace(
            AttentionTrace(weights=jnp.ones((1, 1, 1, 1)), output=jnp.ones((1, 1, 2))),
            feed_forward=jnp.ones((1, 1, 2)),
            sublayers=jnp.zeros((1, 2, 1, 2)),
            residual=jnp.zeros((2, 1, 2)),
        )
    )
    assert flow.cosine().tolist() == [[0], [0]]


def test_the_flow_needs_a_full_capture(shallow):
    trace = jax.jit(lambda: run(*shallow, *PAIR, capture="weights")[1])()
    with pytest.raises(InputError, match="run with capture='full'"):
        residual_flow(trace.encoder)
