# SPDX-License-Identifier: Apache-2.0
"""The flow through a stack adds up to what the model's own stream is."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer import families
from transformer.errors import InputError
from transformer.inspection.sublayers import flow
from transformer.layers import layer_norm

CHANGES = {
    "post": {},
    "pre": {"norm": "pre", "attention_bias": True, "activation": "gelu"},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_what_a_sublayer_adds_is_what_the_stream_becomes(config, source, target_in, changes):
    config = config.replace(**changes)
    model = families.build(config)
    params = oracle.random_params(model, seed=1)
    _, trace = jax.jit(lambda p: model.apply({"params": p}, source, target_in, capture="full"))(
        params
    )
    for side, stack in (("encoder", trace.encoder), ("decoder", trace.decoder)):
        found = flow(params, config, stack, side)
        sublayers = 2 if side == "encoder" else 3
        assert len(found.names) == sublayers * config.depth(side) == len(found.after)
        summed = found.before + found.added
        for place, name in enumerate(found.names):
            layer, kind = name.split(" ")
            residual = f"{kind.replace('-', '_')}_residual"
            norm = params[side][f"layer_{int(layer) - 1}"][residual]["norm"]
            expected = summed[place]
            if config.norm == "post":
                scale, bias = norm["scale"], norm["bias"]
                expected = layer_norm(expected, scale, bias, config.norm_epsilon)
            np.testing.assert_allclose(found.after[place], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.before[1:], found.after[:-1])
        np.testing.assert_array_equal(found.after[-1], stack.residual[-1])


def test_a_trace_without_a_batch_axis_has_the_same_flow(config, model, params):
    source, target_in = jnp.array([[4, 7, 5, 10, 2]]), jnp.array([[1, 5, 9, 4]])
    _, trace = model.apply({"params": params}, source, target_in, capture="full")
    one = trace.decoder
    attention = {
        name: jax.tree.map(lambda leaf: leaf[:, 0], getattr(one, name))
        for name in ("self_attention", "cross_attention")
    }
    one = one.replace(residual=one.residual[:, 0], sublayers=one.sublayers[:, :, 0], **attention)
    alone = flow(params, config, one, "decoder")
    both = flow(params, config, trace.decoder, "decoder")
    assert alone.added.shape == (9, 4, 12)
    np.testing.assert_allclose(alone.added, both.added[:, 0], atol=1e-6)


def test_a_trace_of_weights_alone_is_refused(config, model, params, source, target_in):
    _, trace = model.apply({"params": params}, source, target_in, capture="weights")
    with pytest.raises(InputError, match="no sub-layers; capture it with capture='full'"):
        flow(params, config, trace.encoder, "encoder")
