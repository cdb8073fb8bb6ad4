# SPDX-License-Identifier: Apache-2.0
"""Variants of the Transformer, each by its formula, and inspected like the paper's model.

Logits, gradients and cached decoding of every variant are compared with the oracle in
`test_equivalence`, and the protocol is tested in `test_families`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from families import ADDITIVE, SHAW, TINY, UNIVERSAL

from transformer import sharding
from transformer.config import ParallelConfig, TransformerConfig
from transformer.errors import InputError
from transformer.inspection import ablation, attribution
from transformer.inspection.activations import PARTS, stacked_kernels
from transformer.inspection.interventions import no_interventions
from transformer.inspection.readout import LogProbability, logit_lens
from transformer.inspection.residual import residual_flow
from transformer.inspection.trace import run
from transformer.inspection.views.attention_kinds import trace_attention_kinds
from transformer.inspection.views.attention_steps import attention_steps
from transformer.models import protocol
from transformer.models.cached_attention import cached_attention
from transformer.models.relative_positions import (
    SCHEMES,
    RelativeVectors,
    alibi_slopes,
    rotation_angles,
)
from transformer.nn import masks
from transformer.nn.attention import additive_scores, attention
from transformer.nn.feed_forward import gated_feed_forward
from transformer.nn.norm import rms_norm
from transformer.nn.parameters import is_parameter
from transformer.nn.positions import positions_within_segments, rotate_pairs

SOURCE, TARGET_IN = [4, 7, 5, 10, 2], [1, 5, 9, 4]
VARIANTS = {"shaw": SHAW, "universal": UNIVERSAL, "additive": ADDITIVE}


def random(*shape, seed=0):
    """Random float32 values."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


# Positions.


def test_alibi_slopes_are_the_published_ones():
    """Section 3 of Press et al.: for 8 heads 1/2, 1/4, ... 1/256."""
    np.testing.assert_array_equal(alibi_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_array_equal(alibi_slopes(1), [2**-8])
    np.testing.assert_allclose(alibi_slopes(3), [2**-4, 2**-8, 2**-2])


def test_alibi_slopes_are_the_oracles_and_the_bias_falls_in_both_directions():
    for heads in (1, 2, 3, 6, 12, 16):
        expected = [oracle.alibi_slope(head, heads) for head in range(heads)]
        np.testing.assert_allclose(alibi_slopes(heads), expected, rtol=1e-12)
    for side in ("encoder", "decoder"):
        scheme = SCHEMES["alibi"](TransformerConfig(num_heads=2, d_model=4), side)
        bias = scheme(jnp.array([1]), jnp.arange(4)).bias
        np.testing.assert_array_equal(bias[0, :, 0] * -256, [[16, 0, 16, 32], [1, 0, 1, 2]])


def test_a_rotation_by_hand():
    """Of size 4: the pairs turn by p and by p / 100; p = 0 leaves them as they are."""
    x = jnp.tile(jnp.array([1.0, 0.0, 0.0, 1.0]), (1, 2, 1, 1))  # [B, T, N, H]
    turned = rotate_pairs(x, rotation_angles(jnp.array([0, 2]), 4))[0, :, 0]
    expected = [np.cos(2), np.sin(2), -np.sin(0.02), np.cos(0.02)]
    np.testing.assert_allclose(turned, [[1, 0, 0, 1], expected], atol=1e-6)


def test_rotated_dot_products_depend_on_the_distance_alone():
    query, key = random(1, 1, 1, 8), random(1, 1, 1, 8, seed=1)

    def product(t, s):
        at = [rotation_angles(jnp.array([position]), 8) for position in (t, s)]
        return float((rotate_pairs(query, at[0]) * rotate_pairs(key, at[1])).sum())

    assert product(3, 1) == pytest.approx(product(32, 30), abs=1e-4)
    assert abs(product(3, 1) - product(3, 2)) > 1e-2
    assert product(5, 5) == pytest.approx(float((query * key).sum()), abs=1e-5)


def test_relative_vectors_are_those_of_the_clipped_distance():
    both = RelativeVectors(1, 1, max_distance=2, bidirectional=True)
    params = {"keys": jnp.arange(5.0)[:, None], "values": 10 * jnp.arange(5.0)[:, None]}
    term = both.apply({"params": params}, jnp.array([3]), jnp.arange(8))
    np.testing.assert_array_equal(term.keys[0, :, 0], [0, 0, 1, 2, 3, 4, 4, 4])
    np.testing.assert_array_equal(term.values, 10 * term.keys)
    past = RelativeVectors(1, 1, max_distance=2, bidirectional=False)
    params = jax.tree.map(lambda rows: rows[:3], params)
    term = past.apply({"params": params}, jnp.array([3]), jnp.arange(5))
    np.testing.assert_array_equal(term.keys[0, :, 0], [0, 0, 1, 2, 2])


@pytest.mark.parametrize("positions", ["shaw", "rotary", "alibi"])
def test_positions_of_packed_rows_count_within_each_sentence(positions):
    """The second sentence of a packed row has the scores that it has alone."""
    scheme = SCHEMES[positions](TransformerConfig(num_heads=2, d_model=8), "encoder")
    query, key, value = (random(1, 5, 2, 4, seed=seed) for seed in range(3))
    variables = {}
    if positions == "shaw":
        variables = jax.jit(scheme.init)(jax.random.key(0), jnp.arange(5), jnp.arange(5))
        scheme = functools.partial(scheme.apply, variables)

    def attended(position_ids, mask, rows):
        term = scheme(position_ids, position_ids)
        turned = (term.rotate(query[:, rows]), term.rotate(key[:, rows]))
        return attention(*turned, value[:, rows], mask, positions=term)

    @jax.jit
    def both(segments):
        packed = positions_within_segments(segments), masks.packed_mask(segments, segments)
        alone = jnp.arange(3), jnp.ones((1, 1, 3, 3), bool)
        return attended(*packed, slice(None)), attended(*alone, slice(2, 5))

    packed, alone = both(jnp.array([[1, 1, 2, 2, 2]]))
    np.testing.assert_allclose(packed[:, 2:], alone, atol=1e-6)


# Attention.


def test_a_neighborhood_is_centered_on_the_query():
    near = masks.neighborhood_mask(jnp.arange(4), jnp.arange(4), 3)
    expected = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    np.testing.assert_array_equal(near[0, 0], np.array(expected, bool))


def test_an_additive_score_by_hand():
    """1 tanh(1 + 0) + 10 tanh(0 - 1) = -9 tanh(1)."""
    query, key = jnp.array([[[[1.0, 0.0]]]]), jnp.array([[[[0.0, -1.0]]]])
    scores = additive_scores(query, key, jnp.array([[1.0], [10.0]]))
    assert scores.shape == (1, 1, 1, 1)
    assert float(scores[0, 0, 0, 0]) == pytest.approx(-9 * np.tanh(1), rel=1e-6)


@pytest.mark.parametrize(("kv_heads", "additive"), [(1, True), (2, False)])
def test_grouped_attention_over_a_cache_is_that_with_repeated_heads(kv_heads, additive):
    query = random(2, 4, 3, 5)  # [B, N, K, H]
    key, value = random(2, kv_heads, 5, 7, seed=1), random(2, kv_heads, 7, 6, seed=2)
    mask = jnp.asarray(np.random.default_rng(3).random((2, 1, 3, 7)) < 0.6)
    options = {"score_vector": random(5, 4, seed=4)} if additive else {}
    z = cached_attention(query, key, value, mask, **options)
    repeated = (jnp.repeat(each, 4 // kv_heads, axis=1) for each in (key, value))
    np.testing.assert_allclose(z, cached_attention(query, *repeated, mask, **options), atol=1e-6)


def test_a_cache_holds_the_heads_of_the_keys_alone():
    def cached(config):
        model, tokens = protocol.build(config), jnp.ones((1, 2), jnp.int32)

        def fresh():
            params = model.init(jax.random.key(0), tokens, tokens)
            memory = model.apply(params, tokens, method="encode")
            return model.apply(params, memory, tokens, 1, 8, method="init_cache")

        [first, *_] = jax.eval_shape(fresh).layers
        return [first.self_attention.key.shape[1], first.cross_attention.value.shape[1]]

    config = TINY.replace(num_heads=6)
    assert cached(config) == [6, 6]
    assert cached(config.replace(num_kv_heads=3)) == [3, 3]


# Norms, feed-forward networks and parameters.


def test_rms_norm_by_hand_does_not_see_the_scale_of_its_input_but_its_mean():
    """Mean square (1 + 49) / 2 = 25."""
    x, scale = jnp.array([1.0, 7.0]), jnp.array([10.0, 100.0])
    np.testing.assert_allclose(rms_norm(x, scale, 0.0), [2.0, 140.0], rtol=1e-6)
    np.testing.assert_allclose(rms_norm(3 * x, scale, 0.0), [2.0, 140.0], rtol=1e-6)
    assert abs(float(rms_norm(x + 5, scale, 0.0)[0]) - 2.0) > 1
    np.testing.assert_allclose(rms_norm(x, scale, 75.0), [1.0, 70.0], rtol=1e-6)


def test_a_gated_network_by_hand():
    """relu(x W) = (3, 0), x V = (2, 5), their product (6, 0), times W2 = (6, 12)."""
    x = jnp.array([[[1.0, 1.0]]])
    gate, kernel = jnp.array([[1.0, -1.0], [2.0, 0.0]]), jnp.array([[1.0, 2.0], [1.0, 3.0]])
    output = gated_feed_forward(x, gate, kernel, jnp.array([[1.0, 2], [7, 8]]), jax.nn.relu)
    np.testing.assert_array_equal(output, [[[6.0, 12.0]]])


def count(**changes):
    """The number of parameters of the tiny model with these fields."""
    metadata = protocol.parameter_metadata(protocol.build(TINY.replace(**changes)))
    leaves = jax.tree.leaves(metadata, is_leaf=is_parameter)
    return sum(parameter.value.size for parameter in leaves)


@pytest.mark.slow
def test_the_numbers_of_parameters_by_hand():
    """V 11, D 6, N 2, H 3, F 8; one encoder layer and two decoder layers."""
    plain, attention = count(), 5
    assert count(tied_embeddings="target_output") == count(tied_embeddings="source_target")
    assert count(tied_embeddings="target_output") - plain == 11 * 6
    assert count(tied_embeddings="none") - plain == 2 * 11 * 6
    assert count(source_vocab_size=13, tied_embeddings="none") - plain == 13 * 6 + 11 * 6
    assert plain - count(num_kv_heads=1) == attention * 2 * 6 * 3
    assert count(attention_score="additive") - plain == attention * 2 * 3
    assert plain - count(norm_kind="rms_norm") == 8 * 6
    assert count(activation="swiglu") - plain == 3 * (6 * 8 - 8 - 6)
    # Three keys and three values of head size 3 in each direction and for the position itself.
    assert count(positions="shaw", max_relative_position=3) - plain == 2 * 3 * (7 + 4)
    for free in ({"positions": "rotary", "d_k": 4}, {"positions": "alibi"}, {"positions": "none"}):
        free = {**free, "attention_window": 3, "timestep_encoding": True}
        d_k = free.get("d_k", 3)
        assert count(**free) - plain == attention * 2 * 6 * 2 * (d_k - 3)


@pytest.mark.slow
def test_shared_layers_have_the_parameters_of_one_layer_whatever_the_depth():
    sizes = {count(shared_layers=True, num_layers=n, decoder_layers=n) for n in (1, 3)}
    assert sizes == {count(num_layers=1, decoder_layers=1)}


@pytest.mark.slow
def test_every_application_of_a_shared_layer_has_other_dropout():
    config = TINY.replace(shared_layers=True, decoder_layers=1, encoder_layers=2, dropout=0.5)
    model = protocol.build(config)
    params = oracle.random_params(model, 0)
    # Without attention and network, a layer is dropout of their biases alone.
    silent = jax.tree.map(jnp.zeros_like, params["encoder"]["layer_0"])
    silent["feed_forward"]["bias_out"] = jnp.ones(6)
    for each in ("self_attention_residual", "feed_forward_residual"):
        silent[each] = params["encoder"]["layer_0"][each]
    params = {**params, "encoder": {**params["encoder"], "layer_0": silent}}
    options = {"train": True, "mutable": ["trace"], "rngs": {"dropout": jax.random.key(0)}}
    _, tapped = model.apply({"params": params}, jnp.array([SOURCE]), method="encode", **options)
    layer = tapped["trace"]["encoder"]["layer_0"]
    before, after = (
        layer[f"{name}_residual"]["output"] for name in ("self_attention", "feed_forward")
    )
    first, second = (np.asarray(y - x) for x, y in zip(before, after, strict=True))
    assert np.abs(first - second).max() > 0.1


# Inspection.


@functools.cache
def inspected(name):
    """(model, params, logits, trace) of a variant, with full capture."""
    model = protocol.build(VARIANTS[name])
    params = oracle.random_params(model, 0)
    compiled = jax.jit(run, static_argnames=("model", "capture"))
    tokens = jnp.array(SOURCE), jnp.array(TARGET_IN)
    return model, params, *compiled(model, params, *tokens, capture="full")


each_variant = pytest.mark.parametrize(
    "name", ["shaw", *(pytest.param(each, marks=pytest.mark.slow) for each in list(VARIANTS)[1:])]
)


@each_variant
def test_a_trace_holds_the_forward_pass_of_a_variant(name):
    model, params, logits, trace = inspected(name)
    config = model.config
    lens = jax.jit(logit_lens, static_argnums=0)(model, params, trace.decoder.residual)
    flows = jax.jit(lambda trace: [residual_flow(trace.encoder), residual_flow(trace.decoder)])(
        trace
    )
    trace, params = jax.tree.map(np.asarray, (trace, params))
    for kind, heads in model.describe().attention.items():
        attention = trace.attention(kind)
        assert attention.weights.shape[:2] == heads
        assert attention.key.shape[:2] == attention.value.shape[:2] == heads
        shares = np.where(attention.weights > 0, np.exp(attention.scores), 0)
        softmax = shares / shares.sum(-1, keepdims=True)
        np.testing.assert_allclose(attention.weights, softmax, atol=1e-6)
        np.testing.assert_allclose(attention.head_out.sum(1), attention.output, atol=1e-5)
        side, part = PARTS[kind]
        kernels = stacked_kernels(params[side], part, "output", heads.layers)
        assert kernels.shape[:2] == heads
        head_out = attention.z @ np.asarray(kernels)
        np.testing.assert_allclose(head_out, attention.head_out, atol=1e-5)
    for stack, flow in zip((trace.encoder, trace.decoder), flows, strict=True):
        np.testing.assert_allclose(stack.embedded + stack.positions, stack.residual[0], atol=1e-6)
        if config.norm == "pre":
            np.testing.assert_allclose(flow.total, flow.after, atol=1e-5)
    window = config.attention_window
    if window is not None:
        distance = np.abs(np.arange(5)[:, None] - np.arange(5))
        outside = trace.encoder.self_attention.weights[..., distance > window // 2]
        assert (outside == 0).all()
    np.testing.assert_allclose(lens[-1], logits, atol=1e-5)


@each_variant
def test_interventions_act_on_each_layer_of_a_variant(name):
    """Also on each application of shared layers: gates and patches are by layer."""
    model, params, logits, trace = inspected(name)
    nothing = no_interventions(model, len(SOURCE), len(TARGET_IN))
    one_off = nothing.replace(
        decoder=nothing.decoder.replace(self_heads=nothing.decoder.self_heads.at[1, 0].set(0.0))
    )
    patched = nothing
    for side in ("encoder", "decoder"):
        residual = getattr(trace, side).residual
        patched = patched.patch_residual(side, jnp.ones(residual.shape[:2], bool), residual)
    tokens = jnp.array(SOURCE), jnp.array(TARGET_IN)

    @jax.jit
    def run_with(interventions):
        options = {"interventions": interventions, "capture": "weights"}
        return run(model, params, *tokens, **options)

    for unchanged in (nothing, patched):
        np.testing.assert_allclose(run_with(unchanged)[0], logits, atol=1e-5)
    changed, other = run_with(one_off)
    assert np.abs(changed - logits).max() > 1e-3
    first = (each.decoder.self_attention.weights[0] for each in (trace, other))
    np.testing.assert_allclose(*first, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_attributions_and_head_ablations_of_a_variant(name):
    model, params, logits, _ = inspected(name)
    metric = LogProbability(3, 6)
    result = attribution.integrated_gradients(model, params, SOURCE, TARGET_IN, metric, steps=4096)
    assert float(result.value) == pytest.approx(float(metric(logits)), abs=1e-5)
    assert float(result.gap) < 0.02
    ablated = ablation.ablate_heads(model, params, [SOURCE], [[5, 9, 4, 2]])
    assert all(np.isfinite(each).all() for each in jax.tree.leaves(ablated.increase))


def test_the_six_steps_are_refused_where_scores_are_not_dot_products():
    tokens = {"source_tokens": list("abcde"), "target_in": list("abcd"), "target_out": list("bcde")}
    *_, trace = inspected("shaw")
    kinds = trace_attention_kinds(trace, **tokens)
    assert attention_steps(trace, kinds, [("cross", 0, 0)]).options["heads"]
    for kind in ("encoder", "decoder"):
        with pytest.raises(InputError, match="not q . k / sqrt.d_k. alone.*positions"):
            attention_steps(trace, kinds, [(kind, 0, 0)])


# What does not fit together.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"positions": "shaw", "attention_kernel": "fused"},
            "model.attention_kernel is 'fused', but must be 'auto' or 'einsum' with model.posit",
        ),
        (
            {"attention_score": "additive", "attention_kernel": "chunked"},
            "model.attention_kernel is 'chunked', but must be 'auto' or 'einsum' with model.at",
        ),
        (
            {"attention_score": "additive", "positions": "rotary"},
            "model.attention_score is 'additive', but must be 'dot' with model.positions='rotary'",
        ),
        ({"positions": "rotary", "d_k": 5}, "model.d_k is 5 in the encoder, but must be even"),
        ({"attention_window": 4}, "model.attention_window is 4, but must be odd"),
        (
            {"num_heads": 8, "decoder_heads": 6, "d_k": 8, "d_v": 8, "num_kv_heads": 4},
            "model.num_kv_heads is 4, but must be a divisor of the 6 heads of the decoder",
        ),
        (
            {"tied_embeddings": "source_target", "source_vocab_size": 10},
            "model.tied_embeddings is 'source_target', but must be another value with model.source",
        ),
    ],
)
def test_fields_that_exclude_each_other_are_refused_by_name(fields, message):
    with pytest.raises(InputError, match=message):
        TransformerConfig(**fields)


def test_heads_of_keys_that_the_mesh_does_not_divide_are_refused_with_the_remedy():
    metadata = protocol.parameter_metadata(protocol.build(TINY.replace(num_kv_heads=1)))
    parallel = ParallelConfig(model=2, preset="tensor", rules=("vocab=",))
    mesh = sharding.make_mesh(parallel)
    with pytest.raises(InputError, match=r"does not divide kv_heads = 1 .*'kv_heads='"):
        sharding.param_shardings(metadata, mesh, parallel)
    sharding.param_shardings(metadata, mesh, parallel.replace(rules=("vocab=", "kv_heads=")))
