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
from transformer.errors import InputError
from transformer.inspection import ablation, attribution, patching
from transformer.inspection.activations import describe
from transformer.inspection.interventions import no_interventions
from transformer.inspection.readout import LogProbability, logit_lens
from transformer.inspection.trace import apply, run
from transformer.models import protocol
from transformer.models.protocol import KINDS
from transformer.models.transformer import Transformer
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


# Contents of a trace.


def test_the_axes_of_a_trace_are_layers_heads_positions(full):
    assert inspection.run is run
    trace = full[1]
    shapes = {"encoder": (1, 5, 5), "decoder": (2, 4, 4), "cross": (2, 4, 5)}
    for kind, (layers, t, s) in shapes.items():
        attention = trace.attention(kind)
        assert attention.weights.shape == attention.scores.shape == (layers, 3, t, s)
        assert attention.query.shape == (layers, 3, t, 5)
        assert attention.key.shape == (layers, 3, s, 5)
        assert attention.value.shape == (layers, 3, s, 4)
        assert attention.z.shape == (layers, 3, t, 4)
        assert attention.head_out.shape == (layers, 3, t, 12)
        assert attention.output.shape == (layers, t, 12)


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


def check_annotations(value):
    """Holds the fields of a pytree, and of those inside it, to the annotated shapes."""
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    check = jaxtyping.jaxtyped(type(value).__init__, typechecker=beartype.beartype)
    check(object.__new__(type(value)), **fields)
    for field in fields.values():
        if dataclasses.is_dataclass(field):
            check_annotations(field)


@pytest.fixture(scope="module")
def batched(model, params, source, target_in):
    """Logits and trace of the batch, compiled."""
    call = jax.jit(apply, static_argnames=("model", "capture"))
    return call(model, params, source, target_in, capture="full")


def test_the_trace_of_a_pair_is_its_row_of_a_batch_and_has_the_annotated_shapes(
    full, batched, model
):
    logits, trace = full
    np.testing.assert_allclose(logits, batched[0][ROW], atol=1e-4)
    np.testing.assert_array_equal(trace.logits, logits)
    for name in ("encoder", "decoder"):
        stack, row = getattr(trace, name), getattr(batched[1], name)
        np.testing.assert_allclose(stack.embedded, row.embedded[ROW], atol=1e-5)
        np.testing.assert_array_equal(stack.positions, row.positions)
        np.testing.assert_allclose(stack.sublayers, row.sublayers[:, :, ROW], atol=1e-4)
        fields = ("self_attention", "cross_attention", "feed_forward", "residual")
        for one, other in zip(*(jax.tree.leaves([getattr(each, field) for field in fields])
                                for each in (stack, row)), strict=True):  # fmt: skip
            np.testing.assert_allclose(one, other[:, ROW], atol=1e-4)
    absent = [
        f"{side}.{f.name}"
        for side in ("encoder", "decoder")
        for f in dataclasses.fields(getattr(trace, side))
        if getattr(getattr(trace, side), f.name) is None
    ]
    assert absent == ["encoder.cross_attention"]
    check_annotations(trace)
    check_annotations(batched[1])
    check_annotations(no_interventions(model, 5, 4))


# Sums of a trace.


def test_weights_follow_from_scores_and_mask_and_z_from_weights_and_values(full, pair):
    trace, source = full[1], pair[0]
    padding = padding_mask(source[None])[0]
    masks = {"encoder": padding, "decoder": causal_mask(4)[0], "cross": padding}
    for kind, mask in masks.items():
        attention = trace.attention(kind)
        scores = np.einsum("LNTH,LNSH->LNTS", attention.query, attention.key) / 5**0.5
        np.testing.assert_allclose(attention.scores, scores, atol=1e-5)
        weights, shares = np.asarray(attention.weights), np.where(mask, np.exp(scores), 0)
        np.testing.assert_allclose(weights, shares / shares.sum(-1, keepdims=True), atol=1e-5)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        assert not weights[~np.broadcast_to(mask, weights.shape)].any(), "exactly 0"
        z = np.einsum("LNTS,LNSH->LNTH", weights, attention.value)
        np.testing.assert_allclose(attention.z, z, atol=1e-5)
    assert (np.asarray(source) == 0).sum() == 2, "the sentence is padded"


def added_to_the_stream(stack, layer, params):
    """What each sublayer of a layer adds, in order: its heads and its bias, or its output."""
    for name in ("self_attention", "cross_attention"):
        if (attention := getattr(stack, name)) is not None:
            bias = params[f"layer_{layer}"][name].get("output_bias", 0.0)
            output = attention.head_out[layer].sum(0) + bias
            np.testing.assert_allclose(attention.output[layer], output, atol=1e-5)
            yield name, output
    yield "feed_forward", stack.feed_forward[layer]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_residual_stream_is_the_sum_of_what_sublayers_put_out(norm, model, params, pair, full):
    """From embedding and positions to the logits, normed after each sum or, in pre-norm, never."""
    trace = full[1]
    if norm == "pre":
        model = protocol.build(model.config.replace(norm="pre", attention_bias=True))
        params = oracle.random_params(model, seed=3)
        trace = jax.jit(lambda: run(model, params, *pair, capture="full")[1])()
    for side in ("encoder", "decoder"):
        stack = getattr(trace, side)
        np.testing.assert_allclose(stack.residual[0], stack.embedded + stack.positions, atol=1e-6)
        np.testing.assert_array_equal(stack.residual[1:], stack.sublayers[:, -1])
        for layer in range(len(stack.feed_forward)):
            before = stack.residual[layer]
            added = list(added_to_the_stream(stack, layer, params[side]))
            for (name, output), after in zip(added, stack.sublayers[layer], strict=True):
                expected = before + output
                if norm == "post":
                    p = params[side][f"layer_{layer}"][f"{name}_residual"]["norm"]
                    expected = layer_norm(expected, p["scale"], p["bias"], 1e-6)
                np.testing.assert_allclose(after, expected, atol=1e-5)
                before = after
    stream = trace.decoder.residual[-1]
    if norm == "pre":
        p = params["decoder"]["final_norm"]
        stream = layer_norm(stream, p["scale"], p["bias"], 1e-6)
    np.testing.assert_allclose(trace.logits, stream @ params["embedding"]["table"].T, atol=1e-5)


# Capturing and interventions.


def test_the_logits_are_bitwise_equal_for_every_capture_and_with_no_interventions(
    model, params, pair, full
):
    plain, trace = run(model, params, *pair)
    assert trace is None
    np.testing.assert_array_equal(full[0], plain)
    weights_only, trace = run(model, params, *pair, capture="weights")
    np.testing.assert_array_equal(weights_only, plain)
    assert len(jax.tree.leaves(trace)) == 3, "nothing but the weights"
    for kind in KINDS:
        expected = full[1].attention(kind).weights
        np.testing.assert_array_equal(trace.attention(kind).weights, expected)
    nothing = no_interventions(model, 5, 4)
    unchanged, _ = run(model, params, *pair, interventions=nothing)
    np.testing.assert_array_equal(unchanged, plain)
    lists, _ = run(model, params, *(tokens.tolist() for tokens in pair))
    np.testing.assert_array_equal(lists, plain)


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


@pytest.mark.slow
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


# Invalid arguments.


def test_tokens_that_are_not_one_sentence_are_rejected(model, params):
    for source, message in (
        (jnp.ones((1, 5), jnp.int32), r"source has the shape \[1, 5\].*use jax.vmap"),
        ([], r"source has the shape \[0\]"),
        (np.array([0.5, 2.0]), "source is float64, but token ids are integers"),
        ([4, 11, 2], r"source\[1\] is 11, but this model's tokens are 0 to 10"),
        ([4, -1, 2], r"source\[1\] is -1"),
        ([0, 0], "source is only padding"),
    ):
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


def test_interventions_of_another_length_or_model_and_unknown_arguments_are_rejected(model, params):
    nothing = no_interventions(model, 2, 1)
    lacking = nothing.replace(decoder=nothing.decoder.replace(cross_heads=None))
    message = r"residual.mask has the shape \[2, 6, 1\].*need \[2, 5, 1\]"
    with pytest.raises(InputError, match=f"interventions.encoder.{message}"):
        run(model, params, [4] * 5, [1], interventions=no_interventions(model, 6, 1))
    with pytest.raises(InputError, match=r"interventions lack a part"):
        run(model, params, [4, 2], [1], interventions=lacking)
    # Without the type checks of the tests, which would raise first.
    with pytest.raises(InputError, match=r"capture 'all' is unknown; choose one of \['none', 'we"):
        inspect.unwrap(run)(model, params, [4, 2], [1], capture="all")
    with pytest.raises(InputError, match="model is a TransformerConfig, but it must be a model"):
        inspect.unwrap(describe)(model.config)


def test_weights_that_are_nan_are_rejected(model, params, pair):
    broken = jax.tree.map(lambda leaf: leaf, params)
    attention = broken["decoder"]["layer_0"]["cross_attention"]
    attention["query"] = attention["query"].at[0, 2].set(jnp.nan)
    with pytest.raises(InputError, match=r"decoder attention: row \[1, 0, 0\] sums to nan"):
        run(model, broken, *pair, capture="weights")
