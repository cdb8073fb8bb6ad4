# SPDX-License-Identifier: Apache-2.0
"""The Transformer: dependencies, the cache, the shared table, and the paper's parameter counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from programs import matmul_dtypes

from transformer.config import TransformerConfig
from transformer.models import protocol
from transformer.platforms import compiling_for

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


# Which inputs affect which outputs.


def test_a_row_of_padding_leaves_the_others_unchanged(forward, params, source, target_in):
    logits = forward(params, source, target_in)
    emptied = forward(params, source.at[1].set(0), target_in.at[1].set(0))
    np.testing.assert_allclose(emptied[jnp.array([0, 2])], logits[jnp.array([0, 2])], **CLOSE)
    assert jnp.isfinite(emptied).all()


def test_a_changed_target_token_leaves_earlier_predictions_unchanged(
    forward, params, source, target_in
):
    logits = forward(params, source, target_in)
    for t in range(4):
        changed = forward(params, source, target_in.at[:, t].set(8))
        np.testing.assert_array_equal(changed[:, :t], logits[:, :t])
        assert (jnp.abs(changed[:, t:] - logits[:, t:]).max((0, 2)) > 1e-4).all()


def test_a_changed_source_token_changes_every_prediction_of_its_sentence_alone(
    forward, params, source, target_in
):
    logits = forward(params, source, target_in)
    for s in range(3):
        changed = forward(params, source.at[0, s].set(9), target_in)
        assert (jnp.abs(changed[0] - logits[0]).max(-1) > 1e-4).all()
        np.testing.assert_array_equal(changed[1:], logits[1:])


def test_the_order_of_source_words_matters(forward, params, source, target_in):
    swapped = source.at[0, :2].set(source[0, 1::-1])
    difference = forward(params, swapped, target_in) - forward(params, source, target_in)
    assert float(jnp.abs(difference[0]).max()) > 1e-3


def test_permuting_the_batch_permutes_the_result(forward, params, source, target_in):
    order = jnp.array([2, 0, 1])
    permuted = forward(params, source[order], target_in[order])
    np.testing.assert_allclose(permuted, forward(params, source, target_in)[order], **CLOSE)


# One table for source, target and logits.


def test_there_is_one_embedding_table(params, config):
    shape = (config.vocab_size, config.d_model)
    assert [leaf.shape for leaf in jax.tree.leaves(params)].count(shape) == 1


def changed_by_row(forward, params, source, target_in, word):
    """Which logits change when one token's row of the table does."""
    table = params["embedding"]["table"]
    moved = params | {"embedding": {"table": table.at[word].add(0.5)}}
    logits = forward(params, source, target_in)
    return np.asarray(jnp.abs(forward(moved, source, target_in) - logits) > 1e-4)


def test_a_row_of_the_table_is_a_tokens_logit_and_its_embedding_on_both_sides(
    forward, params, source, target_in
):
    """Token 3 is in no source and no target here, so only its logit changes.

    Token 8 is in the third source only. Then token 3 is put into the first decoder input, at
    position 2, and nowhere else.
    """
    changed = changed_by_row(forward, params, source, target_in, 3)
    assert changed[..., 3].all()
    assert not np.delete(changed, 3, axis=-1).any()
    changed = np.delete(changed_by_row(forward, params, source, target_in, 8), 8, axis=-1)
    assert changed[2].any(-1).all()
    assert not changed[:2].any()
    target = target_in.at[0, 2].set(3)
    changed = np.delete(changed_by_row(forward, params, source, target, 3), 3, axis=-1)
    assert changed[0, 2:].any(-1).all()
    assert not changed[0, :2].any()
    assert not changed[1:].any()


# Cached decoding.


@pytest.fixture(scope="module")
def fresh(model, params, source):
    """(beams, length, groups) -> shapes of a cache at position 0."""

    def cache(*sizes):
        call = functools.partial(model.apply, {"params": params})
        return call(call(source, method="encode"), source, *sizes, method="init_cache")

    return lambda *sizes: jax.eval_shape(lambda: cache(*sizes))


def test_beam_groups_have_shorter_caches(fresh, config):
    for groups in (1, 2, 4):
        attention = fresh(4, 5, groups).layers[0].self_attention
        shape = (3 * groups, config.num_heads)
        assert attention.key.shape == (*shape, config.d_k, 5 * 4 // groups)
        assert attention.value.shape == (*shape, 5 * 4 // groups, config.d_v)


def test_cross_attention_keys_exist_once_per_sentence_and_never_change(
    model, params, fresh, config
):
    def cross(cache):
        return [(each.cross_attention.key, each.cross_attention.value) for each in cache.layers]

    n, tokens = config.num_heads, jnp.ones((3, 2), jnp.int32)
    for key, value in cross(fresh(2, 4)):
        assert key.shape == (3, n, config.d_k, 5)
        assert value.shape == (3, n, 5, config.d_v)

    def move_and_step(cache):
        moved = model.reorder(cache, tokens)
        _, stepped = model.apply({"params": params}, tokens, moved, method=model.step)
        for before, after in zip(cross(cache), cross(stepped), strict=True):
            assert before[0] is after[0]
            assert before[1] is after[1]

    jax.eval_shape(move_and_step, fresh(2, 4))


def test_the_search_carries_no_copy_of_the_memory_per_beam(fresh):
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(fresh(beams, 4))) for beams in (1, 2)]
    self_attention = 3 * 3 * 4 * 3 * (5 + 4)  # layers, rows, length, heads, widths
    ancestry = 3 * 4
    assert sizes[1] - sizes[0] == self_attention + ancestry


# Parameters.

SIZES = {
    "base": {},
    "d_k 16": {"d_k": 16},
    "d_k 32": {"d_k": 32},
    "N 2": {"num_layers": 2},
    "N 4": {"num_layers": 4},
    "N 8": {"num_layers": 8},
    "d_model 256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "d_model 1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "d_ff 1024": {"d_ff": 1024},
    "d_ff 4096": {"d_ff": 4096},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16},
}
"""The rows of the paper's table 3 that give a number of parameters."""

MILLIONS = dict(zip(SIZES, [65, 58, 60, 36, 50, 80, 28, 168, 53, 90, 213], strict=True))

EXACT_AT_37_000 = {
    "base": 63_045_632,
    "d_k 16": 55_967_744,
    "d_k 32": 58_327_040,
    "N 2": 33_644_544,
    "N 4": 48_345_088,
    "N 8": 77_746_176,
    "d_model 256": 26_816_512,
    "d_model 1024": 163_815_424,
    "d_ff 1024": 50_450_432,
    "d_ff 4096": 88_236_032,
    "big": 214_171_648,
}


@functools.cache
def count(vocab_size=37_000, **sizes):
    """Number of parameters, from shapes alone."""
    model = protocol.build(TransformerConfig(vocab_size=vocab_size, **sizes))
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row == "base" else pytest.mark.slow) for row in SIZES],
)
def test_parameter_counts_are_those_of_table_3(row):
    """The vocabulary counts once, as rows of the one table."""
    sizes = SIZES[row]
    assert count(**sizes) == EXACT_AT_37_000[row]
    vocabulary = 36_000 if row == "big" else 41_100
    total = count(**sizes) + (vocabulary - 37_000) * sizes.get("d_model", 512)
    assert round(total / 1e6) == MILLIONS[row]


def test_the_exact_counts_are_those_of_the_formulae():
    """Kernels of attention, kernels and biases of the network, scales and biases of norms."""
    base = {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64}
    for row, sizes in SIZES.items():
        layers, d, f, n, d_k, d_v = (base | sizes).values()
        attention, network, norm = 2 * d * n * (d_k + d_v), 2 * d * f + f + d, 2 * d
        encoder = layers * (attention + network + 2 * norm)
        decoder = layers * (2 * attention + network + 3 * norm)
        assert 37_000 * d + encoder + decoder == EXACT_AT_37_000[row], row


# Number formats.


@pytest.fixture(scope="module")
def half(config):
    """The tiny model in bfloat16."""
    return protocol.build(config.replace(compute_dtype="bfloat16"))


def test_bfloat16_keeps_parameters_gradients_weights_and_logits_float32(
    half, params, source, target_in
):
    def run(params):
        logits, tapped = half.apply({"params": params}, source, target_in, mutable=["trace"])
        return logits.sum(), (logits, tapped["trace"])

    gradients, (logits, trace) = jax.eval_shape(jax.grad(run, has_aux=True), params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(gradients)} == {"float32"}
    assert logits.dtype == jnp.float32
    assert {x.dtype.name for x in trace["decoder"]["residual"]} == {"bfloat16"}
    attention = trace["decoder"]["layer_0"]["cross_attention"]
    dtypes = {name: x.dtype.name for name, [x] in attention.items()}
    assert dtypes.pop("scores") == dtypes.pop("weights") == "float32"
    assert set(dtypes.values()) == {"bfloat16"}


def test_bfloat16_logits_are_near_the_float32_ones_and_not_rounded_to_bfloat16(
    half, params, forward, source, target_in
):
    logits = jax.jit(lambda params: half.apply({"params": params}, source, target_in))(params)
    expected = forward(params, source, target_in)
    error = float(jnp.abs(logits - expected).max())
    assert 0 < error < 0.05 * float(jnp.abs(expected).max())
    assert (logits != logits.astype(jnp.bfloat16)).mean() > 0.9


@pytest.mark.parametrize(
    ("platform", "options"),
    [
        ("cuda", {"positions": "shaw"}),
        ("tpu", {"attention_kernel": "chunked"}),
        *(pytest.param(each, {}, marks=pytest.mark.slow) for each in ("cuda", "tpu")),
    ],
)
def test_every_matmul_of_a_bfloat16_training_step_on_an_accelerator_is_of_bfloat16(
    shallow, source, target_in, platform, options
):
    """Also in the backward pass; scores and logits are summed in float32."""
    config = shallow[0].config.replace(compute_dtype="bfloat16", **options)
    model = protocol.build(config)
    params = oracle.random_params(model, seed=0)

    def loss(params, key):
        options = {"train": True, "rngs": {"dropout": key}}
        logits = model.apply({"params": params}, source, target_in, **options)
        return jax.nn.log_softmax(logits)[..., 3].mean()

    def results(function):
        matmuls = matmul_dtypes(jax.make_jaxpr(function)(params, jax.random.key(0)))
        assert {each[:2] for each in matmuls} == {("bfloat16", "bfloat16")}
        return [result for *_, result in matmuls]

    with compiling_for(platform):
        of_gradient = results(jax.grad(loss))
        if config.attention_kernel == "auto":
            attentions = config.depth("encoder") + 2 * config.depth("decoder")
            of_positions = config.depth("encoder") + config.depth("decoder")
            float32 = 1 + attentions + of_positions * (config.positions == "shaw")
            assert results(loss).count("float32") == float32
            assert of_gradient.count("float32") == float32
        assert of_gradient


def test_the_model_of_the_fixture_is_the_oracles(forward, params, config, source, target_in):
    expected = oracle.logits(oracle.arrays(params), config, source, target_in)
    np.testing.assert_allclose(forward(params, source, target_in), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "kept_in"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_bfloat16_caches_hold_bfloat16_values_and_give_the_logits_of_teacher_forcing(
    half, params, source, target_in, platform, kept_in
):
    """The CPU form stores them in a wider dtype, with the same values."""
    call = functools.partial(half.apply, {"params": params})
    expected = call(source, target_in)
    memory = call(source, method=half.encode)
    with compiling_for(platform):
        cache = call(memory, source, 1, 4, method=half.init_cache)
        for t in range(4):
            logits, cache = call(target_in[:, t : t + 1], cache, method=half.step)
            assert logits.dtype == jnp.float32
            difference = logits[:, 0] - expected[:, t]
            assert jnp.abs(difference).max() < 0.02 * jnp.abs(expected).max()
    for layer in cache.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            for kept in (attention.key, attention.value):
                assert kept.dtype == kept_in
                np.testing.assert_array_equal(kept.astype(jnp.bfloat16).astype(kept_in), kept)


# Recomputed activations.


@pytest.mark.parametrize("remat", ["full", pytest.param("dots", marks=pytest.mark.slow)])
def test_recomputed_activations_change_no_value_no_gradient_and_no_dropout(
    shallow, source, target_in, remat
):
    config = shallow[0].config.replace(decoder_layers=1)
    params = oracle.random_params(protocol.build(config), seed=0)

    def loss_of(remat):
        """The loss and its gradient, of a dropout key."""
        model = protocol.build(config.replace(remat=remat))

        def loss(params, key):
            options = {"train": True, "rngs": {"dropout": key}}
            logits = model.apply({"params": params}, source, target_in, **options)
            return jnp.square(logits).mean()

        return functools.partial(jax.jit(jax.value_and_grad(loss)), params)

    plain, key = loss_of("none"), jax.random.key(3)
    found = loss_of(remat)(key)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(plain(key)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert abs(found[0] - plain(jax.random.key(4))[0]) > 1e-3


@pytest.mark.parametrize(
    ("platform", "dtype"),
    [
        *[("cpu", "float32"), ("cuda", "bfloat16")],
        pytest.param("cpu", "bfloat16", marks=pytest.mark.slow),
        pytest.param("cuda", "float32", marks=pytest.mark.slow),
    ],
)
def test_recomputed_activations_are_not_saved_for_the_backward_pass(
    shallow, source, target_in, platform, dtype
):
    def saved(remat):
        """The number of elements."""
        model = protocol.build(shallow[0].config.replace(remat=remat, compute_dtype=dtype))

        def run(params):
            return jax.vjp(lambda p: model.apply({"params": p}, source, target_in), params)[1]

        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(run, shallow[1])))

    with compiling_for(platform):
        none, dots, full = map(saved, ("none", "dots", "full"))
    assert full < 0.8 * dots < 0.5 * none
