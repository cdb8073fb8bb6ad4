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
SIZES = {"vocab_size": 11, "num_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2}
CONFIGS = {
    "post": {},
    "pre": {"norm": "pre", "attention_bias": True, "output_bias": True, "tied_embeddings": "none"},
    "universal": {"shared_layers": True, "timestep_encoding": True, "norm_kind": "rms_norm"},
}


def random_model(name):
    """A model, random parameters, and the compiled (params, row) -> shares, and full trace."""
    model = protocol.build(TransformerConfig(**SIZES | CONFIGS[name]))

    @jax.jit
    def shares(params, row):
        pair = (model, params, SOURCE, TARGET_IN)
        return direct_logits(*pair, LogitDifference(row, 4, 7)), run(*pair, capture="full")[1]

    return model, oracle.random_params(model, seed=4), shares


@pytest.mark.parametrize("name", ["post", "pre", pytest.param("universal", marks=pytest.mark.slow)])
def test_the_shares_add_up_to_the_logit_difference(name):
    model, params, shares = random_model(name)
    for row in (2, 3):
        found, seen = shares(params, row)
        logits = seen.logits[row]
        assert float(found.total) == pytest.approx(float(logits[4] - logits[7]), abs=1e-4)
    assert found.self_heads.shape == found.cross_heads.shape == (2, 2)
    assert found.feed_forward.shape == (2,) and found.biases.shape == ()
    assert np.abs(found.cross_heads).min() > 1e-4
    if name == "pre":  # by hand, from the trace: the output of a head through the final norm
        stream, norm = seen.decoder.residual[-1, row], params["decoder"]["final_norm"]
        direction = params["embedding"]["output"][:, 4] - params["embedding"]["output"][:, 7]
        written = seen.decoder.cross_attention.head_out[1, 0, row]
        divisor = jnp.sqrt(stream.var() + model.config.norm_epsilon)
        expected = ((written - written.mean()) / divisor * norm["scale"]) @ direction
        assert float(found.cross_heads[1, 0]) == pytest.approx(float(expected), rel=1e-4)
    if name == "post":  # a head that writes nothing has no share
        kernels = params["decoder"]["layer_0"]["cross_attention"]
        kernels["output"] = kernels["output"].at[1].set(0.0)
        found, _ = shares(params, row)
        assert found.cross_heads[0, 1] == 0 and found.cross_heads[0, 0] != 0


def test_a_row_a_token_or_a_family_that_has_no_shares_is_rejected():
    model = protocol.build(TransformerConfig(**SIZES | {"num_layers": 1}))
    params = oracle.random_params(model, seed=4)
    for metric in (LogitDifference(4, 4, 7), LogitDifference(2, 4, 11)):
        with pytest.raises(InputError, match="check that its position is a row of the logits and"):
            direct_logits(model, params, SOURCE, TARGET_IN, metric)
    model = protocol.build(ConvolutionalConfig(vocab_size=11, d_model=8, num_layers=1))
    with pytest.raises(InputError, match="family 'convolutional' has no residual stream"):
        direct_logits(model, {}, SOURCE, TARGET_IN, LogitDifference(2, 4, 7))
