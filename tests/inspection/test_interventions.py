# SPDX-License-Identifier: Apache-2.0
"""Gates on heads, and patches of every activation that inspection can overwrite."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import ConvolutionalConfig
from transformer.errors import InputError
from transformer.inspection.activations import PARTS
from transformer.inspection.interventions import no_interventions
from transformer.inspection.trace import apply, run
from transformer.models import protocol
from transformer.models.protocol import KINDS
from transformer.nn.taps import Patch

SOURCE, OTHER = np.array([4, 7, 5, 10, 2]), np.array([4, 9, 5, 10, 2])
TARGET_IN = np.array([1, 5, 9, 4])
SITES = ("query", "key", "value", "weights", "z")


def everywhere(nothing, kind, trace):
    """Every site of one kind of attention, overwritten by the values of a trace."""
    for site in SITES:
        value = getattr(trace.attention(kind), site)
        nothing = nothing.patch_heads(kind, site, jnp.ones(value.shape, bool), value)
    return nothing


# Gates.


def test_gate_zero_removes_a_head_as_zeros_for_its_output_or_its_kernel_do(
    shallow, traced, nothing
):
    logits, trace = traced()
    for kind, layer, head in (("encoder", 0, 2), ("decoder", 1, 0), ("cross", 1, 1)):
        gates = nothing.gates
        gate = getattr(gates, kind).at[layer, head].set(0.0)
        closed = traced(interventions=nothing.with_gates(gates.replace(**{kind: gate})))[0]
        side, sublayer = PARTS[kind]
        without = jax.tree.map(lambda leaf: leaf, shallow[1])
        kernels = without[side][f"layer_{layer}"][sublayer]
        kernels["output"] = kernels["output"].at[head].set(0.0)
        np.testing.assert_allclose(closed, traced(params=without)[0], atol=1e-5)
        z = trace.attention(kind).z
        mask = jnp.zeros((*z.shape[:3], 1), bool).at[layer, head].set(True)
        zeros = nothing.patch_heads(kind, "z", mask, jnp.zeros_like(z))
        np.testing.assert_allclose(traced(interventions=zeros)[0], closed, atol=1e-6)
        assert np.abs(closed - logits).max() > 1e-3


def test_gates_are_read_and_replaced_by_kind_and_patches_stay(nothing):
    ones = nothing.gates
    assert [getattr(ones, kind).shape for kind in KINDS] == [(1, 3), (2, 2), (2, 2)]
    residual = nothing.decoder.residual
    other = nothing.patch_residual("decoder", ~residual.mask[..., 0], residual.value)
    other = other.with_gates(ones.replace(cross=2 * ones.cross))
    assert (other.decoder.cross_heads == 2).all() and other.decoder.residual.mask.all()
    assert (other.encoder.self_heads == 1).all() and (other.decoder.self_heads == 1).all()


# Patches of attention and of the feed-forward network.


def test_patches_of_a_runs_own_values_change_nothing(traced, nothing):
    logits, trace = traced()
    for kind in KINDS:
        again, _ = traced(interventions=everywhere(nothing, kind, trace))
        np.testing.assert_allclose(again, logits, atol=1e-5, err_msg=kind)


def test_a_patched_pattern_reads_the_values_that_it_names(traced, nothing):
    """Head 1 of the encoder, query 3 is made to read key 1 alone."""
    seen = traced()[1].encoder.self_attention
    mask = jnp.zeros((*seen.weights.shape[:3], 1), bool).at[0, 1, 3].set(True)
    one_key = jnp.zeros_like(seen.weights).at[..., 1].set(1.0)
    patched = nothing.patch_heads("encoder", "weights", mask, one_key)
    after = traced(interventions=patched)[1].encoder.self_attention
    np.testing.assert_allclose(after.z[0, 1, 3], seen.value[0, 1, 1], atol=1e-6)
    np.testing.assert_array_equal(after.weights[0, 1, 3], [0, 1, 0, 0, 0])
    np.testing.assert_allclose(after.z[0, 1, :3], seen.z[0, 1, :3], atol=1e-6)
    np.testing.assert_allclose(after.z[0, 0], seen.z[0, 0], atol=1e-6)


def test_a_zeroed_value_is_missing_from_the_sum(traced, nothing):
    seen = traced()[1].encoder.self_attention
    mask = jnp.zeros((*seen.value.shape[:3], 1), bool).at[0, :, 2].set(True)
    zeroed = nothing.patch_heads("encoder", "value", mask, jnp.zeros_like(seen.value))
    after = traced(interventions=zeroed)[1].encoder.self_attention
    without = seen.z - seen.weights[..., 2, None] * seen.value[:, :, 2, None]
    np.testing.assert_allclose(after.z, without, atol=1e-5)
    np.testing.assert_allclose(after.weights, seen.weights, atol=1e-6)


def test_patched_queries_and_keys_give_the_other_runs_pattern_but_not_its_values(traced, nothing):
    seen, other = (traced(source)[1].encoder.self_attention for source in (SOURCE, OTHER))
    changed = nothing
    for site in ("query", "key"):
        mask = jnp.ones((1, 3, 5, 1), bool)
        changed = changed.patch_heads("encoder", site, mask, getattr(other, site))
    after = traced(interventions=changed)[1].encoder.self_attention
    np.testing.assert_allclose(after.weights, other.weights, atol=1e-6)
    np.testing.assert_allclose(after.value, seen.value, atol=1e-6)
    assert np.abs(seen.weights - other.weights).max() > 1e-3


def test_the_other_runs_attention_and_feed_forward_outputs_leave_the_own_inputs(traced, nothing):
    """With the own embedding, since the residual connection is not patched."""
    own, other = (traced(source)[1] for source in (SOURCE, OTHER))
    value = other.encoder.feed_forward
    changed = everywhere(nothing, "encoder", other)
    patch = Patch(jnp.ones(value.shape, bool), value)
    changed = changed.replace(encoder=changed.encoder.replace(feed_forward=patch))
    after = traced(interventions=changed)[1].encoder
    np.testing.assert_allclose(after.feed_forward, value, atol=1e-6)
    output = other.encoder.self_attention.output
    np.testing.assert_allclose(after.self_attention.output, output, atol=1e-5)
    np.testing.assert_allclose(after.residual[0], own.encoder.residual[0], atol=1e-6)
    assert np.abs(after.residual[1, 1] - other.encoder.residual[1, 1]).max() > 1e-3


def test_keys_shared_by_heads_are_patched_as_each_head_reads_them(shallow):
    config = shallow[0].config.replace(
        encoder_heads=4, decoder_heads=4, num_kv_heads=2, d_model=8, decoder_layers=1
    )
    model = protocol.build(config)
    params, nothing = oracle.random_params(model, seed=1), no_interventions(model, 5, 4)

    @jax.jit
    def encoder(mask):
        changed = nothing.patch_heads("encoder", "value", mask, jnp.zeros((1, 4, 5, 2)))
        trace = run(*(model, params, SOURCE, TARGET_IN), capture="full", interventions=changed)[1]
        return trace.encoder.self_attention

    mask = jnp.zeros((1, 4, 5, 1), bool)
    seen, after = encoder(mask), encoder(mask.at[:, 3].set(True))
    np.testing.assert_array_equal(after.z[:, 3], 0)
    np.testing.assert_allclose(after.z[:, :3], seen.z[:, :3], atol=1e-6)
    assert np.abs(seen.z[:, 3]).max() > 1e-3


# Patches of the residual stream.


def test_a_patch_overwrites_the_residual_stream_there_and_nowhere_else(traced, nothing):
    logits, trace = traced()
    position, value = 1, jnp.arange(6.0)
    for level in range(3):
        residual = nothing.decoder.residual
        mask = residual.mask[..., 0].at[level, position].set(True)
        values = residual.value.at[level, position].set(value)
        after, changed = traced(interventions=nothing.patch_residual("decoder", mask, values))
        expected = trace.decoder.residual[level].at[position].set(value)
        np.testing.assert_allclose(changed.decoder.residual[level], expected, atol=1e-5)
        np.testing.assert_allclose(after[:position], logits[:position], atol=1e-5)
        assert float(jnp.abs(after[position] - logits[position]).min()) > 0


def test_the_memory_of_one_sentence_can_be_patched_into_the_others_of_a_batch(
    shallow, nothing, source, target_in
):
    """Row 0 keeps its logits; the others read row 0's memory and predict something else."""

    @jax.jit
    def batch(interventions):
        options = {"capture": "full", "interventions": interventions}
        return apply(*shallow, source, target_in, **options)[1]

    trace = batch(nothing)
    residual = nothing.encoder.residual
    mask = residual.mask[..., 0].at[-1].set(True)
    values = residual.value.at[-1].set(trace.encoder.residual[-1, 0])
    changed = batch(nothing.patch_residual("encoder", mask, values))
    np.testing.assert_allclose(changed.logits[0], trace.logits[0], atol=1e-5)
    for row in (1, 2):
        np.testing.assert_allclose(
            changed.encoder.residual[-1, row], trace.encoder.residual[-1, 0], atol=1e-6
        )
        assert float(jnp.abs(changed.logits[row] - trace.logits[row]).max()) > 1e-3


# Refused interventions.


def test_a_patch_of_another_shape_or_of_an_absent_site_is_rejected(shallow, nothing):
    for mask, value, shape in (
        ((2, 2, 5, 1), (2, 2, 5, 6), r"\[2, 2, 5, 1\]"),
        ((1, 2, 4, 1), (2, 2, 4, 6), r"\[1, 2, 4, 1\]"),  # one mask for all layers
    ):
        wrong = nothing.patch_heads("cross", "z", jnp.ones(mask, bool), jnp.ones(value))
        with pytest.raises(InputError, match=f"cross_attention.z.mask has the shape {shape}"):
            run(*shallow, SOURCE, TARGET_IN, interventions=wrong)
    model = protocol.build(ConvolutionalConfig(vocab_size=11, d_model=8, num_layers=1))
    patch = jnp.ones((1, 1, 4, 8), bool), jnp.ones((1, 1, 4, 8))
    absent = no_interventions(model, 5, 4).patch_heads("encoder", "z", *patch)
    with pytest.raises(InputError, match="family 'convolutional' cannot be changed there"):
        run(model, {}, SOURCE, TARGET_IN, interventions=absent)
