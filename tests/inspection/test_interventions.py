# SPDX-License-Identifier: Apache-2.0
"""Gates on heads, and patches of every activation that inspection can overwrite."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import ConvolutionalConfig, TransformerConfig
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


@pytest.fixture(scope="module")
def nothing(shallow):
    """Interventions that change nothing."""
    return no_interventions(shallow[0], len(SOURCE), len(TARGET_IN))


@pytest.fixture(scope="module")
def traced(shallow):
    """Source, interventions -> logits and trace."""

    @jax.jit
    def call(source, interventions):
        return run(*shallow, source, TARGET_IN, capture="full", interventions=interventions)

    return call


def everywhere(nothing, kind, trace):
    """Every site of one kind of attention, overwritten by the values of a trace."""
    for site in SITES:
        value = getattr(trace.attention(kind), site)
        nothing = nothing.patch_heads(kind, site, jnp.ones(value.shape, bool), value)
    return nothing


@pytest.mark.parametrize("kind", KINDS)
def test_patches_of_a_runs_own_values_change_nothing(traced, nothing, kind):
    logits, trace = traced(SOURCE, nothing)
    again, _ = traced(SOURCE, everywhere(nothing, kind, trace))
    np.testing.assert_allclose(again, logits, atol=1e-5)


def test_zeros_for_the_output_of_a_head_are_its_gate_closed(traced, nothing):
    gates = nothing.gates
    closed = nothing.with_gates(gates.replace(cross=gates.cross.at[1, 0].set(0.0)))
    z = traced(SOURCE, nothing)[1].attention("cross").z
    mask = jnp.zeros((*z.shape[:3], 1), bool).at[1, 0].set(True)
    zeros = nothing.patch_heads("cross", "z", mask, jnp.zeros_like(z))
    np.testing.assert_allclose(traced(SOURCE, zeros)[0], traced(SOURCE, closed)[0], atol=1e-6)
    assert np.abs(traced(SOURCE, zeros)[0] - traced(SOURCE, nothing)[0]).max() > 1e-3


def test_a_patched_pattern_reads_the_values_that_it_names(traced, nothing):
    """Head 1 of the encoder, query 3 is made to read key 1 alone."""
    seen = traced(SOURCE, nothing)[1].encoder.self_attention
    mask = jnp.zeros((*seen.weights.shape[:3], 1), bool).at[0, 1, 3].set(True)
    one_key = jnp.zeros_like(seen.weights).at[..., 1].set(1.0)
    changed = traced(SOURCE, nothing.patch_heads("encoder", "weights", mask, one_key))[1]
    after = changed.encoder.self_attention
    np.testing.assert_allclose(after.z[0, 1, 3], seen.value[0, 1, 1], atol=1e-6)
    np.testing.assert_array_equal(after.weights[0, 1, 3], [0, 1, 0, 0, 0])
    np.testing.assert_allclose(after.z[0, 1, :3], seen.z[0, 1, :3], atol=1e-6)
    np.testing.assert_allclose(after.z[0, 0], seen.z[0, 0], atol=1e-6)


def test_a_zeroed_value_is_missing_from_the_sum(traced, nothing):
    seen = traced(SOURCE, nothing)[1].encoder.self_attention
    mask = jnp.zeros((*seen.value.shape[:3], 1), bool).at[0, :, 2].set(True)
    zeroed = nothing.patch_heads("encoder", "value", mask, jnp.zeros_like(seen.value))
    after = traced(SOURCE, zeroed)[1].encoder.self_attention
    without = seen.z - seen.weights[..., 2, None] * seen.value[:, :, 2, None]
    np.testing.assert_allclose(after.z, without, atol=1e-5)
    np.testing.assert_allclose(after.weights, seen.weights, atol=1e-6)


def test_patched_queries_and_keys_give_the_other_runs_pattern_but_not_its_values(traced, nothing):
    seen = traced(SOURCE, nothing)[1].encoder.self_attention
    other = traced(OTHER, nothing)[1].encoder.self_attention
    changed = nothing
    for site in ("query", "key"):
        mask = jnp.ones((1, 3, 5, 1), bool)
        changed = changed.patch_heads("encoder", site, mask, getattr(other, site))
    after = traced(SOURCE, changed)[1].encoder.self_attention
    np.testing.assert_allclose(after.weights, other.weights, atol=1e-6)
    np.testing.assert_allclose(after.value, seen.value, atol=1e-6)
    assert np.abs(seen.weights - other.weights).max() > 1e-3


def test_the_other_runs_attention_and_feed_forward_outputs_leave_the_own_inputs(traced, nothing):
    """With the own embedding, since the residual connection is not patched."""
    own, other = (traced(source, nothing)[1] for source in (SOURCE, OTHER))
    value = other.encoder.feed_forward
    changed = everywhere(nothing, "encoder", other)
    patch = Patch(jnp.ones(value.shape, bool), value)
    changed = changed.replace(encoder=changed.encoder.replace(feed_forward=patch))
    after = traced(SOURCE, changed)[1].encoder
    np.testing.assert_allclose(after.feed_forward, value, atol=1e-6)
    output = other.encoder.self_attention.output
    np.testing.assert_allclose(after.self_attention.output, output, atol=1e-5)
    np.testing.assert_allclose(after.residual[0], own.encoder.residual[0], atol=1e-6)
    assert np.abs(after.residual[1, 1] - other.encoder.residual[1, 1]).max() > 1e-3


def test_patches_pass_through_vmap_one_for_each_head(shallow, traced, nothing):
    z = traced(OTHER, nothing)[1].attention("encoder").z
    heads = jnp.eye(3, dtype=bool)[:, None, :, None, None]  # [3, L, N, 1, 1]

    def logits(mask):
        changed = nothing.patch_heads("encoder", "z", mask, z)
        return run(*shallow, SOURCE, TARGET_IN, interventions=changed)[0]

    together = jax.vmap(logits)(heads)
    for head in range(3):
        np.testing.assert_allclose(together[head], logits(heads[head]), atol=1e-5)
    assert len(np.unique(np.round(together[:, -1, 4], 5))) == 3


def test_keys_shared_by_heads_are_patched_as_each_head_reads_them():
    config = TransformerConfig(
        vocab_size=11, num_layers=1, d_model=8, d_ff=8, num_heads=4, num_kv_heads=2
    )
    model = protocol.build(config)
    params = oracle.random_params(model, seed=1)
    nothing = no_interventions(model, len(SOURCE), len(TARGET_IN))
    _, seen = run(model, params, SOURCE, TARGET_IN, capture="full")
    value = jnp.zeros_like(seen.encoder.self_attention.value)
    mask = jnp.zeros((1, 4, 5, 1), bool).at[:, 3].set(True)
    changed = nothing.patch_heads("encoder", "value", mask, value)
    _, after = run(model, params, SOURCE, TARGET_IN, capture="full", interventions=changed)
    z = after.encoder.self_attention.z
    np.testing.assert_array_equal(z[:, 3], 0)
    np.testing.assert_allclose(z[:, :3], seen.encoder.self_attention.z[:, :3], atol=1e-6)


# Refused interventions.


def test_a_patch_of_another_shape_is_rejected(shallow, nothing):
    wrong = nothing.patch_heads("cross", "z", jnp.ones((2, 2, 5, 1), bool), jnp.ones((2, 2, 5, 6)))
    with pytest.raises(InputError, match=r"cross_attention.z.mask has the shape \[2, 2, 5, 1\]"):
        run(*shallow, SOURCE, TARGET_IN, interventions=wrong)
    no_layers = nothing.patch_heads(
        "cross", "z", jnp.ones((1, 2, 4, 1), bool), jnp.ones((2, 2, 4, 6))
    )
    with pytest.raises(InputError, match=r"z.mask has the shape \[1, 2, 4, 1\]"):
        run(*shallow, SOURCE, TARGET_IN, interventions=no_layers)


def test_a_family_without_the_site_is_rejected():
    config = ConvolutionalConfig(vocab_size=11, d_model=8, num_layers=1)
    model = protocol.build(config)
    params = oracle.random_params(model, seed=1)
    nothing = no_interventions(model, len(SOURCE), len(TARGET_IN))
    patch = jnp.ones((1, 1, 4, 8), bool), jnp.ones((1, 1, 4, 8))
    with pytest.raises(InputError, match="family 'convolutional' cannot be changed there"):
        run(
            model,
            params,
            SOURCE,
            TARGET_IN,
            interventions=nothing.patch_heads("encoder", "z", *patch),
        )


@pytest.mark.parametrize("kernel", ["chunked", "fused"])
def test_patches_of_weights_act_whatever_the_kernel_is(shallow, nothing, kernel):
    model, params = shallow
    weights = jnp.ones((1, 3, 5, 5)) / 5
    changed = nothing.patch_heads("encoder", "weights", weights > 0, weights)
    other = protocol.build(model.config.replace(attention_kernel=kernel))
    tokens = params, SOURCE, TARGET_IN
    expected, _ = run(model, *tokens, interventions=changed)
    np.testing.assert_array_equal(run(other, *tokens, interventions=changed)[0], expected)
    assert np.abs(run(other, *tokens)[0] - expected).max() > 1e-3


# Gates and the residual stream, of a batch.


@pytest.fixture(scope="module")
def batch(model, source, target_in):
    """The compiled pass of the tests' batch: (params, interventions) -> (logits, trace)."""
    return jax.jit(
        lambda params, interventions: apply(
            *(model, params, source, target_in), capture="full", interventions=interventions
        )
    )


@pytest.fixture(scope="module")
def unchanged(model, source, target_in):
    """Interventions in that batch that change nothing."""
    return no_interventions(model, source.shape[1], target_in.shape[1])


@pytest.fixture(scope="module")
def trace(batch, params, unchanged):
    """The trace of that batch."""
    return batch(params, unchanged)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_gate_zero_removes_a_head_as_zero_rows_of_the_output_kernel_do(
    params, batch, unchanged, kind
):
    layer, head, (side, sublayer) = 1, 2, PARTS[kind]
    gates = unchanged.gates
    closed = gates.replace(**{kind: getattr(gates, kind).at[layer, head].set(0.0)})
    without = jax.tree.map(lambda leaf: leaf, params)
    kernels = without[side][f"layer_{layer}"][sublayer]
    kernels["output"] = kernels["output"].at[head].set(0.0)
    logits = batch(params, unchanged.with_gates(closed))[0]
    np.testing.assert_allclose(logits, batch(without, unchanged)[0], atol=1e-5)
    assert float(jnp.abs(logits - batch(params, unchanged)[0]).max()) > 1e-3


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_a_patch_overwrites_the_residual_stream_there_and_nowhere_else(
    params, batch, unchanged, trace, layer
):
    position, value = 1, jnp.arange(12.0)
    residual = unchanged.decoder.residual
    mask = residual.mask[..., 0].at[layer, position].set(True)
    values = residual.value.at[layer, position].set(value)
    _, changed = batch(params, unchanged.patch_residual("decoder", mask, values))
    expected = trace.decoder.residual[layer].at[:, position].set(value)
    np.testing.assert_allclose(changed.decoder.residual[layer], expected, atol=1e-5)
    before = changed.logits[:, :position] - trace.logits[:, :position]
    np.testing.assert_allclose(before, 0, atol=1e-5)
    assert float(jnp.abs(changed.logits[:, position] - trace.logits[:, position]).min()) > 0


def test_gates_are_read_and_replaced_by_kind_and_patches_stay(unchanged):
    ones = unchanged.gates
    assert [getattr(ones, kind).shape for kind in KINDS] == [(2, 3), (3, 3), (3, 3)]
    patch_of_stack = unchanged.decoder.residual
    everywhere = ~patch_of_stack.mask[..., 0]
    other = unchanged.patch_residual("decoder", everywhere, patch_of_stack.value)
    other = other.with_gates(ones.replace(cross=2 * ones.cross))
    assert (other.decoder.cross_heads == 2).all() and other.decoder.residual.mask.all()
    assert (other.encoder.self_heads == 1).all() and (other.decoder.self_heads == 1).all()


def test_the_memory_of_one_sentence_can_be_patched_into_the_others(params, batch, unchanged, trace):
    """Row 0 keeps its logits; the others read row 0's memory and predict something else."""
    residual = unchanged.encoder.residual
    mask = residual.mask[..., 0].at[-1].set(True)
    values = residual.value.at[-1].set(trace.encoder.residual[-1, 0])
    _, changed = batch(params, unchanged.patch_residual("encoder", mask, values))
    np.testing.assert_allclose(changed.logits[0], trace.logits[0], atol=1e-5)
    for row in (1, 2):
        np.testing.assert_allclose(
            changed.encoder.residual[-1, row], trace.encoder.residual[-1, 0], atol=1e-6
        )
        assert float(jnp.abs(changed.logits[row] - trace.logits[row]).max()) > 1e-3


@pytest.fixture(scope="module")
def energies(model, params, source, target_in, unchanged):
    """Compiled: many sets of cross-attention gates -> mean squared logit of each, its gradient."""

    def energy(gates):
        changed = unchanged.with_gates(unchanged.gates.replace(cross=gates))
        logits, _ = apply(model, params, source, target_in, interventions=changed)
        return jnp.square(logits).mean()

    return jax.jit(jax.vmap(jax.value_and_grad(energy)))


def test_all_heads_are_switched_off_one_by_one_in_one_call_of_vmap(
    params, batch, unchanged, energies
):
    gates = 1.0 - jnp.eye(9).reshape(9, 3, 3)
    together, _ = energies(gates)
    for head in (0, 4):
        closed = unchanged.with_gates(unchanged.gates.replace(cross=gates[head]))
        alone = jnp.square(batch(params, closed)[0]).mean()
        assert float(together[head]) == pytest.approx(float(alone), rel=1e-5)
    assert len(set(together.tolist())) == 9


def test_the_gradient_of_a_gate_is_the_slope_in_it(energies):
    step, ones = 0.03, jnp.ones((9, 3, 3))
    values, gradients = energies(ones.at[0, 1, 0].add(step).at[1, 1, 0].add(-step))
    slope = (float(values[0]) - float(values[1])) / (2 * step)
    assert float(gradients[2, 1, 0]) == pytest.approx(slope, rel=0.02)
    assert (gradients[2] != 0).all()
