# SPDX-License-Identifier: Apache-2.0
"""Looking inside changes nothing, a trace adds up to the output, interventions do what they say."""

import dataclasses
import functools

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import oracle
import pytest

from transformer.errors import InputError
from transformer.inspection.trace import no_interventions
from transformer.models import base
from transformer.models import transformer as model_file
from transformer.nn import layers, multi_head_attention
from transformer.nn.attention import masked_softmax
from transformer.nn.capture import KINDS, gate, patch
from transformer.nn.masks import causal_mask, padding_mask


@pytest.fixture(scope="module")
def run(model, source, target_in):
    """The compiled pass with everything captured: (params, interventions) -> (logits, trace)."""
    return jax.jit(
        lambda params, interventions: model.apply(
            {"params": params}, source, target_in, capture="full", interventions=interventions
        )
    )


@pytest.fixture(scope="module")
def by_hand(model, params, source, target_in):
    """The pass operation by operation, so that no compiler reorders a sum: options -> result."""
    return functools.cache(
        lambda capture: model.apply({"params": params}, source, target_in, capture=capture)
    )


@pytest.fixture(scope="module")
def trace(by_hand):
    """What the tiny model's pass looks like, with nothing changed."""
    return by_hand("full")[1]


@pytest.fixture(scope="module")
def nothing(config, source, target_in):
    """No intervention, spelled out."""
    return no_interventions(config, source.shape[1], target_in.shape[1])


def check_annotations(value):
    """Holds the fields of a pytree, and of those inside it, to the annotated shapes."""
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    check = jaxtyping.jaxtyped(type(value).__init__, typechecker=beartype.beartype)
    check(object.__new__(type(value)), **fields)
    for field in fields.values():
        if dataclasses.is_dataclass(field):
            check_annotations(field)


def layer_norm(params, x, config):
    """The norm of a residual connection, from its parameters."""
    norm = params["norm"]
    return layers.layer_norm(x, norm["scale"], norm["bias"], config.norm_epsilon)


# Traces.


def test_every_captured_array_has_the_shape_its_annotation_says(trace):
    for value in (trace, trace.encoder, trace.decoder):
        assert all(
            getattr(value, f.name) is not None
            for f in dataclasses.fields(value)
            if not (value is trace.encoder and f.name == "cross_attention")
        )
    for attention in (
        trace.encoder.self_attention,
        trace.decoder.self_attention,
        trace.decoder.cross_attention,
    ):
        check_annotations(attention)
    assert trace.encoder.self_attention.weights.shape == (2, 3, 3, 5, 5)
    assert trace.decoder.self_attention.weights.shape == (3, 3, 3, 4, 4)
    assert trace.decoder.cross_attention.weights.shape == (3, 3, 3, 4, 5)
    assert trace.encoder.residual.shape == (3, 3, 5, 12)
    assert trace.decoder.residual.shape == (4, 3, 4, 12)
    assert trace.encoder.self_attention.value.shape == (2, 3, 3, 5, 4)
    assert trace.decoder.cross_attention.query.shape == (3, 3, 3, 4, 5)
    assert trace.encoder.sublayers.shape == (2, 2, 3, 5, 12)
    assert trace.decoder.sublayers.shape == (3, 3, 3, 4, 12)


def test_a_whole_trace_and_the_interventions_pass_the_check_of_their_annotations(trace, nothing):
    check_annotations(trace)
    check_annotations(nothing)


@pytest.mark.parametrize("capture", ["weights", "full"])
def test_capture_leaves_the_logits_bitwise_the_same(by_hand, capture):
    np.testing.assert_array_equal(by_hand(capture)[0], by_hand("none")[0])


def test_capturing_weights_gives_the_weights_of_a_full_capture_and_nothing_else(by_hand, trace):
    _, weights = by_hand("weights")
    assert len(jax.tree.leaves(weights)) == 3
    for stack, full in ((weights.encoder, trace.encoder), (weights.decoder, trace.decoder)):
        np.testing.assert_array_equal(stack.self_attention.weights, full.self_attention.weights)
    np.testing.assert_array_equal(
        weights.decoder.cross_attention.weights, trace.decoder.cross_attention.weights
    )


def test_no_capture_gives_no_trace(by_hand):
    assert by_hand("none")[1] is None


def test_weights_are_the_softmax_of_the_scores_under_the_mask_and_sum_to_one(
    trace, source, target_in
):
    pairs = [
        (trace.encoder.self_attention, padding_mask(source)),
        (trace.decoder.self_attention, causal_mask(target_in.shape[1])),
        (trace.decoder.cross_attention, padding_mask(source)),
    ]
    for attention, mask in pairs:
        for weights, scores in zip(attention.weights, attention.scores, strict=True):
            np.testing.assert_allclose(weights, masked_softmax(scores, mask), atol=1e-6)
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
            assert not np.asarray(weights)[~np.broadcast_to(mask, weights.shape)].any()


def test_scores_and_z_follow_from_queries_keys_and_values(trace):
    for attention in (trace.encoder.self_attention, trace.decoder.cross_attention):
        scores = jnp.einsum("LBNTH,LBNSH->LBNTS", attention.query, attention.key) / 5**0.5
        np.testing.assert_allclose(attention.scores, scores, atol=1e-5)
        z = jnp.einsum("LBNTS,LBNSH->LBNTH", attention.weights, attention.value)
        np.testing.assert_allclose(attention.z, z, atol=1e-5)


def test_what_sub_layers_put_out_is_what_is_added_to_the_residual_stream(trace, params, config):
    """The output of attention is the sum of its heads; norm(x + output) is the stream after it."""
    for name in ("encoder", "decoder"):
        stack = getattr(trace, name)
        for layer in range(len(stack.feed_forward)):
            p, before = params[name][f"layer_{layer}"], stack.residual[layer]
            outputs = {"feed_forward": stack.feed_forward[layer]}
            for attention in ("cross_attention", "self_attention"):
                if (captured := getattr(stack, attention)) is not None:
                    heads = captured.head_out[layer].sum(1)
                    np.testing.assert_allclose(captured.output[layer], heads, atol=1e-5)
                    outputs = {attention: captured.output[layer]} | outputs
            for (sublayer, output), after in zip(
                outputs.items(), stack.sublayers[layer], strict=True
            ):
                expected = layer_norm(p[f"{sublayer}_residual"], before + output, config)
                np.testing.assert_allclose(after, expected, atol=1e-5)
                before = after


def test_the_residual_stream_begins_with_embedding_plus_position_and_ends_in_the_logits(
    trace, params
):
    for stack in (trace.encoder, trace.decoder):
        np.testing.assert_allclose(stack.residual[0], stack.embedded + stack.positions, atol=1e-6)
        np.testing.assert_array_equal(stack.residual[1:], stack.sublayers[:, -1])
    logits = trace.decoder.residual[-1] @ params["embedding"]["table"].T
    np.testing.assert_allclose(trace.logits, logits, atol=1e-5)


def test_the_fused_kernel_refuses_to_be_captured_and_names_the_remedy(
    config, params, source, target_in
):
    fused = base.build(dataclasses.replace(config, d_v=5, attention_kernel="fused"))
    with pytest.raises(InputError, match="use model.attention_kernel='einsum' to look inside"):
        jax.eval_shape(
            lambda: fused.init_with_output(jax.random.key(0), source, target_in, capture="weights")
        )


# Without capture.


def training_jaxpr(model, params, source, target_in, **options):
    """The text of the training pass, traced anew."""

    def logits(params, key):
        return model.apply(
            {"params": params}, source, target_in, train=True, rngs={"dropout": key}, **options
        )[0]

    return str(jax.make_jaxpr(logits)(params, jax.random.key(0)))


@pytest.mark.slow
def test_without_capture_and_interventions_the_training_jaxpr_is_that_without_this_file(
    model, params, source, target_in, nothing, monkeypatch
):
    tokens = source, target_in
    plain = training_jaxpr(model, params, *tokens)
    assert training_jaxpr(model, params, *tokens, capture="none", interventions=None) == plain
    assert training_jaxpr(model, params, *tokens, interventions=nothing) != plain
    monkeypatch.setattr(multi_head_attention, "gate", lambda z, gates: z)
    monkeypatch.setattr(model_file, "patch", lambda x, interventions, layer: x)
    assert training_jaxpr(model, params, *tokens) == plain


def test_no_intervention_is_bitwise_a_no_op(model, params, source, target_in, by_hand, nothing):
    logits, _ = model.apply({"params": params}, source, target_in, interventions=nothing)
    np.testing.assert_array_equal(logits, by_hand("none")[0])


# What can be changed.


@pytest.mark.parametrize(
    ("side", "gates", "sublayer"),
    [
        ("encoder", "self_heads", "self_attention"),
        ("decoder", "self_heads", "self_attention"),
        ("decoder", "cross_heads", "cross_attention"),
    ],
)
def test_gate_zero_removes_a_head_as_zero_rows_of_the_output_kernel_do(
    params, run, nothing, side, gates, sublayer
):
    layer, head = 1, 2
    stack = getattr(nothing, side)
    closed = getattr(stack, gates).at[layer, head].set(0.0)
    gated = nothing.replace(**{side: stack.replace(**{gates: closed})})
    without = jax.tree.map(lambda leaf: leaf, params)
    kernels = without[side][f"layer_{layer}"][sublayer]
    kernels["output"] = kernels["output"].at[head].set(0.0)
    logits = run(params, gated)[0]
    np.testing.assert_allclose(logits, run(without, nothing)[0], atol=1e-5)
    assert float(jnp.abs(logits - run(params, nothing)[0]).max()) > 1e-3


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_a_patch_overwrites_the_residual_stream_there_and_nowhere_else(
    params, run, nothing, trace, layer
):
    position, value = 1, jnp.arange(12.0)
    residual = nothing.decoder.residual
    mask = residual.mask[..., 0].at[layer, position].set(True)
    values = residual.value.at[layer, position].set(value)
    _, changed = run(params, nothing.patched("decoder", mask, values))
    expected = trace.decoder.residual[layer].at[:, position].set(value)
    np.testing.assert_allclose(changed.decoder.residual[layer], expected, atol=1e-5)
    before = changed.logits[:, :position] - trace.logits[:, :position]
    np.testing.assert_allclose(before, 0, atol=1e-5)
    assert float(jnp.abs(changed.logits[:, position] - trace.logits[:, position]).min()) > 0


def test_attention_is_found_by_its_kind(trace):
    assert trace.attention("encoder") is trace.encoder.self_attention
    assert trace.attention("decoder") is trace.decoder.self_attention
    assert trace.attention("cross") is trace.decoder.cross_attention


def test_gates_are_read_and_replaced_by_kind_and_patches_stay(nothing):
    ones = nothing.gates
    assert [getattr(ones, kind).shape for kind in KINDS] == [(2, 3), (3, 3), (3, 3)]
    patch_of_stack = nothing.decoder.residual
    everywhere = ~patch_of_stack.mask[..., 0]
    other = nothing.patched("decoder", everywhere, patch_of_stack.value)
    other = other.with_gates(ones.replace(cross=2 * ones.cross))
    assert (other.decoder.cross_heads == 2).all() and other.decoder.residual.mask.all()
    assert (other.encoder.self_heads == 1).all() and (other.decoder.self_heads == 1).all()


def test_the_memory_of_one_sentence_can_be_patched_into_the_others(params, run, nothing, trace):
    """Row 0 keeps its logits; the others read row 0's memory and predict something else."""
    residual = nothing.encoder.residual
    mask = residual.mask[..., 0].at[-1].set(True)
    values = residual.value.at[-1].set(trace.encoder.residual[-1, 0])
    _, changed = run(params, nothing.patched("encoder", mask, values))
    np.testing.assert_allclose(changed.logits[0], trace.logits[0], atol=1e-5)
    for row in (1, 2):
        np.testing.assert_allclose(
            changed.encoder.residual[-1, row], trace.encoder.residual[-1, 0], atol=1e-6
        )
        assert float(jnp.abs(changed.logits[row] - trace.logits[row]).max()) > 1e-3


def with_cross_gates(nothing, gates):
    """Interventions with these gates on the heads that attend to the memory."""
    return nothing.replace(decoder=nothing.decoder.replace(cross_heads=gates))


@pytest.fixture(scope="module")
def energies(model, params, source, target_in, nothing):
    """Compiled: many sets of cross-attention gates -> mean squared logit of each, its gradient."""

    def energy(gates):
        changed = with_cross_gates(nothing, gates)
        logits, _ = model.apply({"params": params}, source, target_in, interventions=changed)
        return jnp.square(logits).mean()

    return jax.jit(jax.vmap(jax.value_and_grad(energy)))


def test_all_heads_are_switched_off_one_by_one_in_one_call_of_vmap(params, run, nothing, energies):
    gates = 1.0 - jnp.eye(9).reshape(9, 3, 3)
    together, _ = energies(gates)
    for head in (0, 4):
        alone = jnp.square(run(params, with_cross_gates(nothing, gates[head]))[0]).mean()
        assert float(together[head]) == pytest.approx(float(alone), rel=1e-5)
    assert len(set(together.tolist())) == 9


def test_the_gradient_of_a_gate_is_the_slope_in_it(energies):
    step, ones = 0.03, jnp.ones((9, 3, 3))
    values, gradients = energies(ones.at[0, 1, 0].add(step).at[1, 1, 0].add(-step))
    slope = (float(values[0]) - float(values[1])) / (2 * step)
    assert float(gradients[2, 1, 0]) == pytest.approx(slope, rel=0.02)
    assert (gradients[2] != 0).all()


def test_gate_multiplies_each_head_by_its_number():
    z = jnp.ones((1, 2, 3, 4))
    gated = gate(z, jnp.array([1.0, 0.0, 0.5]))
    np.testing.assert_array_equal(gated[0, :, :, 0], [[1, 0, 0.5], [1, 0, 0.5]])
    assert gate(z, None) is z


def test_patch_takes_the_value_where_the_mask_is_true(nothing):
    x = jnp.ones((2, 4, 12))
    residual = nothing.decoder.residual
    mask, value = residual.mask[..., 0].at[2, 3].set(True), residual.value.at[2].set(7.0)
    stack = nothing.patched("decoder", mask, value).decoder
    np.testing.assert_array_equal(patch(x, stack, 2)[:, :, 0], [[1, 1, 1, 7], [1, 1, 1, 7]])
    np.testing.assert_array_equal(patch(x, stack, 1), x)
    assert patch(x, None, 2) is x


def test_sublayer_outputs_add_up_in_pre_norm_too(config, source, target_in):
    pre = base.build(dataclasses.replace(config, norm="pre", attention_bias=True))
    params = oracle.random_params(pre, seed=3)
    _, trace = jax.jit(
        lambda params: pre.apply({"params": params}, source, target_in, capture="full")
    )(params)
    for layer in range(2):
        bias = params["encoder"][f"layer_{layer}"]["self_attention"]["output_bias"]
        added = trace.encoder.self_attention.head_out[layer].sum(1) + bias
        after = trace.encoder.sublayers[layer, 0]
        np.testing.assert_allclose(after, trace.encoder.residual[layer] + added, atol=1e-5)
