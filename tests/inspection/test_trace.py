# SPDX-License-Identifier: Apache-2.0
"""A trace adds up to the output and equals its row of a batch; capturing changes nothing."""

import dataclasses
import inspect

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import oracle
import pytest

from transformer import inspection
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import ablation, attribution, patching
from transformer.inspection.activations import describe
from transformer.inspection.interventions import no_interventions
from transformer.inspection.readout import LogProbability, logit_lens
from transformer.inspection.trace import apply, run
from transformer.models import protocol
from transformer.models.protocol import KINDS
from transformer.models.transformer import Transformer
from transformer.nn.attention import masked_softmax
from transformer.nn.masks import causal_mask, padding_mask
from transformer.nn.norm import layer_norm

ROW = 1
"""The traced sentence pair of the tests' batch; its source is padded."""


@pytest.fixture(scope="module")
def config(config):
    """The tests' tiny model with one layer less in each stack, which compiles faster."""
    return config.replace(encoder_layers=1, decoder_layers=2)


@pytest.fixture(scope="module")
def model(config):
    """The model."""
    return protocol.build(config)


@pytest.fixture(scope="module")
def params(model):
    """Its parameters."""
    return oracle.random_params(model, seed=0)


@pytest.fixture(scope="module")
def pair(source, target_in):
    """(source [S], target_in [T])."""
    return source[ROW], target_in[ROW]


@pytest.fixture(scope="module")
def full(model, params, pair):
    """Logits and trace of the pair, without jit."""
    return run(model, params, *pair, capture="full")


@pytest.fixture(scope="module")
def batched(model, params, source, target_in):
    """Logits and trace of the batch, compiled."""
    call = jax.jit(apply, static_argnames=("model", "capture"))
    return call(model, params, source, target_in, capture="full")


# Contents of a trace.


def test_run_is_exported_by_the_package():
    assert inspection.run is run


@pytest.mark.slow
def test_the_trace_of_a_pair_is_its_row_of_a_batch(full, batched):
    logits, trace = full
    np.testing.assert_allclose(logits, batched[0][ROW], atol=1e-4)
    np.testing.assert_array_equal(trace.logits, logits)
    for kind in KINDS:
        rows = jax.tree.map(lambda array: array[:, ROW], batched[1].attention(kind))
        jax.tree.map(
            lambda pair, row: np.testing.assert_allclose(pair, row, atol=1e-4),
            trace.attention(kind),
            rows,
        )
    for name in ("encoder", "decoder"):
        stack, row = getattr(trace, name), getattr(batched[1], name)
        np.testing.assert_allclose(stack.embedded, row.embedded[ROW], atol=1e-5)
        np.testing.assert_array_equal(stack.positions, row.positions)
        np.testing.assert_allclose(stack.feed_forward, row.feed_forward[:, ROW], atol=1e-4)
        np.testing.assert_allclose(stack.sublayers, row.sublayers[:, :, ROW], atol=1e-4)
        np.testing.assert_allclose(stack.residual, row.residual[:, ROW], atol=1e-4)


def test_the_axes_of_a_trace_are_layers_heads_positions(full):
    trace = full[1]
    shapes = {
        "encoder": {"L": 1, "T": 5, "S": 5},
        "decoder": {"L": 2, "T": 4, "S": 4},
        "cross": {"L": 2, "T": 4, "S": 5},
    }
    for kind, size in shapes.items():
        attention, layers, t, s = trace.attention(kind), size["L"], size["T"], size["S"]
        assert attention.weights.shape == attention.scores.shape == (layers, 3, t, s)
        assert attention.query.shape == (layers, 3, t, 5)
        assert attention.key.shape == (layers, 3, s, 5)
        assert attention.value.shape == (layers, 3, s, 4)
        assert attention.z.shape == (layers, 3, t, 4)
        assert attention.head_out.shape == (layers, 3, t, 12)
        assert attention.output.shape == (layers, t, 12)


@pytest.mark.parametrize("bias", [False, True])
def test_heads_plus_the_bias_sum_to_the_sublayers_output(bias, model, pair, full, params):
    trace = full[1]
    if bias:
        model = protocol.build(model.config.replace(attention_bias=True))
        params = oracle.random_params(model, seed=4)
        trace = jax.jit(lambda: run(model, params, *pair, capture="full")[1])()
    for kind in KINDS:
        stack = params["encoder" if kind == "encoder" else "decoder"]
        name = "cross_attention" if kind == "cross" else "self_attention"
        attention = trace.attention(kind)
        for layer, output in enumerate(attention.output):
            heads = attention.head_out[layer].sum(0)
            constant = stack[f"layer_{layer}"][name].get("output_bias", 0.0)
            np.testing.assert_allclose(output, heads + constant, atol=1e-5)
            assert not bias or np.abs(constant).max() > 0.1


def test_the_six_steps_of_a_head_recomputed_by_hand_equal_the_model(full, params, pair):
    """Projections, dot products, scaling, masked softmax, weighted values, and their sum."""
    kernels = oracle.arrays(params)["encoder"]["layer_0"]["self_attention"]
    trace, head, query = full[1].encoder, 2, 1
    x = np.asarray(trace.residual[0], np.float64)
    q, k, v = (x @ kernels[name][:, head] for name in ("query", "key", "value"))
    scores = [q[query] @ k[s] / 5**0.5 for s in range(5)]
    shares = np.exp(scores) * (np.asarray(pair[0]) != 0)
    weights = shares / shares.sum()
    z = sum(weight * value for weight, value in zip(weights, v, strict=True))
    attention = trace.self_attention
    np.testing.assert_allclose(attention.scores[0, head, query], scores, atol=1e-5)
    np.testing.assert_allclose(attention.weights[0, head, query], weights, atol=1e-5)
    np.testing.assert_allclose(attention.z[0, head, query], z, atol=1e-5)


def test_rows_sum_to_one_and_masked_weights_are_exactly_zero(full, pair):
    trace = full[1]
    for kind in KINDS:
        np.testing.assert_allclose(trace.attention(kind).weights.sum(-1), 1, atol=1e-6)
    padding = np.asarray(pair[0]) == 0
    assert padding.sum() == 2
    assert not np.asarray(trace.attention("encoder").weights)[..., padding].any()
    assert not np.asarray(trace.attention("cross").weights)[..., padding].any()
    assert not np.triu(trace.attention("decoder").weights, k=1).any()


def test_encoder_and_decoder_may_differ_in_depth_and_heads(pair):
    config = TransformerConfig(
        vocab_size=11, d_model=12, d_ff=16,
        encoder_layers=1, decoder_layers=3, encoder_heads=4, decoder_heads=2,
    )  # fmt: skip
    model = protocol.build(config)
    params = oracle.random_params(model, seed=5)
    _, trace = jax.eval_shape(lambda: run(model, params, *pair, capture="full"))
    shapes = [trace.attention(kind).weights.shape for kind in KINDS]
    assert shapes == [(1, 4, 5, 5), (3, 2, 4, 4), (3, 2, 4, 5)]


# Sums of a trace, of the batch.


def check_annotations(value):
    """Holds the fields of a pytree, and of those inside it, to the annotated shapes."""
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    check = jaxtyping.jaxtyped(type(value).__init__, typechecker=beartype.beartype)
    check(object.__new__(type(value)), **fields)
    for field in fields.values():
        if dataclasses.is_dataclass(field):
            check_annotations(field)


def normed(params, x, config):
    """The norm of a residual connection, from its parameters."""
    norm = params["norm"]
    return layer_norm(x, norm["scale"], norm["bias"], config.norm_epsilon)


def test_every_captured_array_has_the_shape_its_annotation_says(batched, model):
    trace = batched[1]
    absent = [
        f"{side}.{f.name}"
        for side in ("encoder", "decoder")
        for f in dataclasses.fields(getattr(trace, side))
        if getattr(getattr(trace, side), f.name) is None
    ]
    assert absent == ["encoder.cross_attention"]
    check_annotations(trace)
    check_annotations(no_interventions(model, 5, 4))


def test_capturing_weights_gives_the_weights_of_a_full_capture_and_nothing_else(
    model, params, pair, full
):
    _, weights = run(model, params, *pair, capture="weights")
    assert len(jax.tree.leaves(weights)) == 3
    for kind in KINDS:
        expected = full[1].attention(kind).weights
        np.testing.assert_array_equal(weights.attention(kind).weights, expected)


def test_weights_are_the_softmax_of_the_scores_under_the_mask_and_sum_to_one(
    batched, source, target_in
):
    trace = batched[1]
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


def test_scores_and_z_follow_from_queries_keys_and_values(batched):
    trace = batched[1]
    for attention in (trace.encoder.self_attention, trace.decoder.cross_attention):
        scores = jnp.einsum("LBNTH,LBNSH->LBNTS", attention.query, attention.key) / 5**0.5
        np.testing.assert_allclose(attention.scores, scores, atol=1e-5)
        z = jnp.einsum("LBNTS,LBNSH->LBNTH", attention.weights, attention.value)
        np.testing.assert_allclose(attention.z, z, atol=1e-5)


def test_what_sub_layers_put_out_is_what_is_added_to_the_residual_stream(batched, params, config):
    """The output of attention is the sum of its heads; norm(x + output) is the stream after it."""
    trace = batched[1]
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
                expected = normed(p[f"{sublayer}_residual"], before + output, config)
                np.testing.assert_allclose(after, expected, atol=1e-5)
                before = after


def test_the_residual_stream_begins_with_embedding_plus_position_and_ends_in_the_logits(
    batched, params
):
    trace = batched[1]
    for stack in (trace.encoder, trace.decoder):
        np.testing.assert_allclose(stack.residual[0], stack.embedded + stack.positions, atol=1e-6)
        np.testing.assert_array_equal(stack.residual[1:], stack.sublayers[:, -1])
    logits = trace.decoder.residual[-1] @ params["embedding"]["table"].T
    np.testing.assert_allclose(trace.logits, logits, atol=1e-5)


def test_sublayer_outputs_add_up_in_pre_norm_too(config, source, target_in):
    pre = protocol.build(config.replace(norm="pre", attention_bias=True))
    params = oracle.random_params(pre, seed=3)
    _, trace = apply(pre, params, source, target_in, capture="full")
    for layer in range(2):
        bias = params["decoder"][f"layer_{layer}"]["self_attention"]["output_bias"]
        added = trace.decoder.self_attention.head_out[layer].sum(1) + bias
        after = trace.decoder.sublayers[layer, 0]
        np.testing.assert_allclose(after, trace.decoder.residual[layer] + added, atol=1e-5)


# Capturing and interventions.


def test_the_logits_are_bitwise_equal_for_every_capture_and_with_no_interventions(
    model, params, pair, full
):
    plain, trace = run(model, params, *pair)
    assert trace is None
    np.testing.assert_array_equal(full[0], plain)
    weights_only, trace = run(model, params, *pair, capture="weights")
    np.testing.assert_array_equal(weights_only, plain)
    assert len(jax.tree.leaves(trace)) == 3
    nothing = no_interventions(model, 5, 4)
    unchanged, _ = run(model, params, *pair, interventions=nothing)
    np.testing.assert_array_equal(unchanged, plain)


def test_a_forward_pass_patched_everywhere_equals_the_run_it_is_patched_from(
    model, params, pair, full, source
):
    """Another source with every vector of the residual stream overwritten is bitwise equal."""
    logits, trace = full
    nothing = no_interventions(model, 5, 4)
    everywhere = nothing
    for side in ("encoder", "decoder"):
        residual = getattr(trace, side).residual
        everywhere = everywhere.patch_residual(side, jnp.ones(residual.shape[:2], bool), residual)
    padded_alike = jnp.where(pair[0] == 0, 0, source[0])
    patched, _ = run(model, params, padded_alike, pair[1], interventions=everywhere)
    np.testing.assert_array_equal(patched, logits)
    assert np.abs(run(model, params, padded_alike, pair[1])[0] - logits).max() > 1e-2


class WithoutPositions(Transformer):
    """A model with the same parameters that leaves the positions of the source out."""

    def embed_source(self, source, positions, dropout):
        return super().embed_source(source, 0 * positions, dropout)


def test_inspection_runs_the_model_that_it_is_given(model, params, pair, full):
    other = WithoutPositions(model.config)
    expected = other.apply({"params": params}, *(tokens[None] for tokens in pair))[0]
    logits, trace = run(other, params, *pair, capture="full")
    np.testing.assert_array_equal(logits, expected)
    np.testing.assert_array_equal(trace.encoder.positions, 0)
    assert np.abs(logits - full[0]).max() > 0.1


# Transformations.


def test_run_supports_jit_with_a_static_model_and_vmap_over_a_batch(
    model, params, source, target_in, batched
):
    def each(model, params, sources, targets):
        return jax.vmap(lambda s, t: run(model, params, s, t, capture="full"))(sources, targets)

    logits, trace = jax.jit(each, static_argnums=0)(model, params, source, target_in)
    np.testing.assert_allclose(logits, batched[0], atol=1e-4)
    assert trace.attention("cross").weights.shape == (3, 2, 3, 4, 5)
    np.testing.assert_allclose(
        trace.attention("cross").weights,
        batched[1].attention("cross").weights.swapaxes(0, 1),
        atol=1e-4,
    )


def test_a_trace_can_be_differentiated(model, params, pair):
    """The weights of layer 0 depend on the query kernel of layer 0, not of layer 1."""

    @jax.jit
    @jax.grad
    def gradient(params):
        trace = run(model, params, *pair, capture="weights")[1]
        return trace.attention("decoder").weights[0, 0, 1, 0]

    layers = gradient(params)["decoder"]
    assert np.abs(layers["layer_0"]["self_attention"]["query"]).max() > 0
    assert not np.abs(layers["layer_1"]["self_attention"]["query"]).any()


def test_token_ids_may_be_lists(model, params, pair, full):
    logits, _ = run(model, params, *(tokens.tolist() for tokens in pair))
    np.testing.assert_array_equal(logits, full[0])


# Invalid arguments.


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (jnp.ones((1, 5), jnp.int32), r"source has the shape \[1, 5\].*use jax.vmap"),
        ([], r"source has the shape \[0\]"),
        (np.array([0.5, 2.0]), "source is float64, but token ids are integers"),
        ([4, 11, 2], r"source\[1\] is 11, but this model's tokens are 0 to 10"),
        ([4, -1, 2], r"source\[1\] is -1"),
        ([0, 0], "source is only padding"),
    ],
)
def test_tokens_that_are_not_one_sentence_are_rejected(model, params, source, message):
    with pytest.raises(InputError, match=message):
        run(model, params, source, [1, 4])


def test_parameters_of_another_model_are_rejected(model, params):
    def shapes(model, params):
        return jax.eval_shape(lambda: run(model, params, [4, 2], [1])[0])

    assert shapes(model, params).shape == (1, 11)
    for other in ({"decoder_layers": 4}, {"vocab_size": 12}, {"d_k": 6}):
        with pytest.raises(InputError, match="the parameters are not those of this model"):
            shapes(protocol.build(model.config.replace(**other)), params)
    with pytest.raises(InputError, match="the parameters are not those of this model"):
        shapes(model, {"params": params})


def test_an_unknown_capture_and_a_config_in_place_of_the_model_are_rejected(model, params):
    """Without the type checks of the tests, which would raise first."""
    unchecked = inspect.unwrap(run)
    with pytest.raises(InputError, match=r"capture 'all' is unknown; choose one of \['none', 'we"):
        unchecked(model, params, [4, 2], [1], capture="all")
    with pytest.raises(InputError, match="model is a TransformerConfig, but it must be a model"):
        inspect.unwrap(describe)(model.config)


class NoAttention(Transformer):
    """A model that describes itself as one without attention."""

    def describe(self):
        return protocol.Description(4, attention={}, residual_layers={}, forward_flops=lambda *_: 0)


def test_a_model_without_attention_is_rejected_by_every_method(config):
    model, metric = NoAttention(config), LogProbability(0, 4)
    calls = [
        lambda: run(model, {}, [4, 2], [1]),
        lambda: no_interventions(model, 2, 1),
        lambda: ablation.ablate_heads(model, {}, [[4, 2]], [[5, 2]]),
        lambda: patching.patch_sites(model, {}, [4, 2], [5, 2], [1], metric),
        lambda: attribution.integrated_gradients(model, {}, [4, 2], [1], metric),
        lambda: logit_lens(model, {}, jnp.zeros((1, 1, 4))),
    ]
    for call in calls:
        with pytest.raises(InputError, match="family 'transformer' has no attention, so there is"):
            call()


def test_interventions_for_another_length_or_model_are_rejected(model, params):
    with pytest.raises(
        InputError,
        match=r"interventions.encoder.residual.mask has the shape \[2, 6, 1\].*need \[2, 5, 1\]",
    ):
        run(model, params, [4] * 5, [1], interventions=no_interventions(model, 6, 1))
    nothing = no_interventions(model, 2, 1)
    lacking = nothing.replace(decoder=nothing.decoder.replace(cross_heads=None))
    with pytest.raises(InputError, match=r"interventions lack a part"):
        run(model, params, [4, 2], [1], interventions=lacking)


def test_weights_that_are_nan_are_rejected(model, params, pair):
    broken = jax.tree.map(lambda leaf: leaf, params)
    attention = broken["decoder"]["layer_0"]["cross_attention"]
    attention["query"] = attention["query"].at[0, 2].set(jnp.nan)
    with pytest.raises(InputError, match=r"decoder attention: row \[1, 0, 0\] sums to nan"):
        run(model, broken, *pair, capture="weights")
