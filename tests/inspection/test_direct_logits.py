# SPDX-License-Identifier: Apache-2.0
"""Direct logit attribution: the shares add up to the logit difference, and each is a head's own."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import ConvolutionalConfig, TransformerConfig
from transformer.errors import InputError
from transformer.inspection.direct_logits import direct_logits
from transformer.inspection.readout import LogitDifference
from transformer.inspection.trace import run
from transformer.models import protocol

SOURCE, TARGET_IN = np.array([4, 7, 5, 10, 2]), np.array([1, 5, 9, 4])
METRIC = LogitDifference(position=2, token=4, other=7)
SIZES = {"vocab_size": 11, "num_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2}
CONFIGS = {
    "post": {},
    "pre": {"norm": "pre", "attention_bias": True, "output_bias": True},
    "universal": {"shared_layers": True, "timestep_encoding": True, "norm_kind": "rms_norm"},
}


def random_model(**fields):
    """A model and random parameters."""
    model = protocol.build(TransformerConfig(**SIZES | fields))
    return model, oracle.random_params(model, seed=4)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_shares_add_up_to_the_logit_difference(name):
    model, params = random_model(**CONFIGS[name])
    shares = direct_logits(model, params, SOURCE, TARGET_IN, METRIC)
    logits, _ = run(model, params, SOURCE, TARGET_IN)
    assert float(shares.total) == pytest.approx(float(METRIC(logits)), abs=1e-4)
    assert shares.self_heads.shape == shares.cross_heads.shape == (2, 2)
    assert shares.feed_forward.shape == (2,) and shares.biases.shape == ()
    assert np.abs(shares.cross_heads).min() > 1e-4


def test_a_head_that_writes_nothing_has_no_share():
    model, params = random_model()
    kernels = params["decoder"]["layer_0"]["cross_attention"]
    kernels["output"] = kernels["output"].at[1].set(0.0)
    shares = direct_logits(model, params, SOURCE, TARGET_IN, METRIC)
    assert shares.cross_heads[0, 1] == 0 and shares.cross_heads[0, 0] != 0


def test_in_a_pre_norm_model_a_share_is_the_head_output_through_the_final_norm():
    """By hand, from the trace."""
    model, params = random_model(norm="pre")
    _, seen = run(model, params, SOURCE, TARGET_IN, capture="full")
    stream, norm = seen.decoder.residual[-1, 2], params["decoder"]["final_norm"]
    direction = params["embedding"]["table"][4] - params["embedding"]["table"][7]
    written = seen.decoder.cross_attention.head_out[1, 0, 2]
    divisor = jnp.sqrt(stream.var() + model.config.norm_epsilon)
    expected = ((written - written.mean()) / divisor * norm["scale"]) @ direction
    shares = direct_logits(model, params, SOURCE, TARGET_IN, METRIC)
    assert float(shares.cross_heads[1, 0]) == pytest.approx(float(expected), rel=1e-4)


def test_the_row_and_the_tokens_may_be_traced():
    model, params = random_model()

    @jax.jit
    def total(position):
        metric = LogitDifference(position, 4, 7)
        return direct_logits(model, params, SOURCE, TARGET_IN, metric).total

    logits, _ = run(model, params, SOURCE, TARGET_IN)
    assert float(total(3)) == pytest.approx(float(logits[3, 4] - logits[3, 7]), abs=1e-4)


@pytest.mark.parametrize("metric", [LogitDifference(4, 4, 7), LogitDifference(2, 4, 11)])
def test_a_row_or_a_token_that_does_not_exist_is_rejected(metric):
    with pytest.raises(InputError, match="check that its position is a row of the logits and its"):
        direct_logits(*random_model(), SOURCE, TARGET_IN, metric)


def test_a_family_without_a_residual_stream_is_rejected():
    model = protocol.build(ConvolutionalConfig(vocab_size=11, d_model=8, num_layers=1))
    with pytest.raises(InputError, match="family 'convolutional' has no residual stream"):
        direct_logits(model, {}, SOURCE, TARGET_IN, METRIC)
