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
from transformer.models import protocol as families
from transformer.models.transformer import Transformer
from transformer.platforms import compiling_for

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


# Which inputs affect which outputs.


def test_a_row_of_padding_leaves_the_others_unchanged(forward, params, source, target_in):
    logits = forward(params, source, target_in)
    emptied = forward(params, source.at[1].set(0), target_in.at[1].set(0))
    np.testing.assert_allclose(emptied[jnp.array([0, 2])], logits[jnp.array([0, 2])], **CLOSE)
    assert jnp.isfinite(emptied).all()


def test_columns_of_padding_appended_to_source_and_target_change_nothing(
    forward, params, source, target_in
):
    wider = forward(params, jnp.pad(source, ((0, 0), (0, 3))), jnp.pad(target_in, ((0, 0), (0, 2))))
    np.testing.assert_allclose(wider[:, :4], forward(params, source, target_in), **CLOSE)


@pytest.mark.parametrize("t", range(4))
def test_a_changed_target_token_leaves_earlier_predictions_unchanged(
    forward, params, source, target_in, t
):
    logits = forward(params, source, target_in)
    changed = forward(params, source, target_in.at[:, t].set(8))
    np.testing.assert_array_equal(changed[:, :t], logits[:, :t])
    assert (jnp.abs(changed[:, t:] - logits[:, t:]).max((0, 2)) > 1e-4).all()


@pytest.mark.parametrize("s", range(3))
def test_a_changed_source_token_changes_every_prediction_of_its_sentence_alone(
    forward, params, source, target_in, s
):
    logits = forward(params, source, target_in)
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


def test_a_row_of_the_table_is_a_tokens_logit(forward, params, source, target_in):
    """Token 3 is in no source and no target here, so only its logit changes."""
    changed = changed_by_row(forward, params, source, target_in, 3)
    assert changed[..., 3].all()
    assert not np.delete(changed, 3, axis=-1).any()


def test_a_row_of_the_table_is_a_tokens_source_embedding(forward, params, source, target_in):
    """Token 8 is in the third source only."""
    changed = np.delete(changed_by_row(forward, params, source, target_in, 8), 8, axis=-1)
    assert changed[2].any(-1).all()
    assert not changed[:2].any()


def test_a_row_of_the_table_is_a_tokens_target_embedding(forward, params, source, target_in):
    """Token 3 is in the first decoder input, at position 2, and nowhere else."""
    target = target_in.at[0, 2].set(3)
    changed = np.delete(changed_by_row(forward, params, source, target, 3), 3, axis=-1)
    assert changed[0, 2:].any(-1).all()
    assert not changed[0, :2].any()
    assert not changed[1:].any()


# Cached decoding.


@pytest.fixture(scope="module")
def calls(model):
    """The compiled calls of decoding: encode, init_cache, step."""

    def call(method, params, *arguments):
        return model.apply({"params": params}, *arguments, method=method)

    return {
        "encode": jax.jit(lambda params, source: call("encode", params, source)),
        "init_cache": jax.jit(functools.partial(call, "init_cache"), static_argnums=(3, 4, 5)),
        "step": jax.jit(functools.partial(call, "step")),
    }


def fresh_cache(calls, params, source, beams, length, groups=1):
    """A cache at position 0."""
    memory = calls["encode"](params, source)
    return calls["init_cache"](params, memory, source, beams, length, groups)


def moved(cache, parents):
    """The reference of `reorder`: every beam has separate keys and values, which move."""
    beams, length = cache.ancestry.shape[1:]

    def move(kept, axis):
        """Reorder along the beams of each position."""
        by_beam = kept.reshape(*kept.shape[:axis], length, beams, *kept.shape[axis + 1 :])
        by_beam = jnp.moveaxis(by_beam, axis + 1, 1)
        reordered = jnp.take_along_axis(by_beam, parents.reshape(*parents.shape, 1, 1, 1), axis=1)
        return jnp.moveaxis(reordered, 1, axis + 1).reshape(kept.shape)

    layers = (layer.self_attention for layer in cache.layers)
    layers = [each.replace(key=move(each.key, 3), value=move(each.value, 2)) for each in layers]
    return cache.replace(
        layers=tuple(
            layer.replace(self_attention=each)
            for layer, each in zip(cache.layers, layers, strict=True)
        )
    )


def test_an_ancestry_is_equivalent_to_moving_keys_and_values(calls, params, source):
    """Four beams continue random parents for six steps."""
    rng = np.random.default_rng(5)
    by_ancestry = by_moving = fresh_cache(calls, params, source, 4, 6)
    for _ in range(6):
        tokens = jnp.asarray(rng.integers(3, 11, (3, 4)))
        expected, by_moving = calls["step"](params, tokens, by_moving)
        logits, by_ancestry = calls["step"](params, tokens, by_ancestry)
        np.testing.assert_allclose(logits, expected, **CLOSE)
        parents = jnp.asarray(rng.integers(0, 4, (3, 4)))
        by_moving = moved(by_moving, parents)
        by_ancestry = Transformer.reorder(by_ancestry, parents)
        assert jax.tree.map(jnp.shape, by_moving) == jax.tree.map(jnp.shape, by_ancestry)
    assert (by_ancestry.ancestry != by_moving.ancestry).any()


@pytest.mark.slow
def test_beam_groups_have_shorter_caches_and_the_same_logits(calls, params, source):
    """Four beams as one group, two groups and four."""
    rng = np.random.default_rng(6)
    for groups in (2, 4):
        apart, together = (fresh_cache(calls, params, source, 4, 5, each) for each in (groups, 1))
        size = 4 // groups
        assert len(apart.layers[0].self_attention.key) == 3 * groups
        assert apart.layers[0].self_attention.key.shape[3] == 5 * size
        for _ in range(5):
            tokens = jnp.asarray(rng.integers(3, 11, (3, 4)))
            expected, together = calls["step"](params, tokens, together)
            logits, apart = calls["step"](params, tokens, apart)
            np.testing.assert_allclose(logits, expected, **CLOSE)
            parents = jnp.asarray(within_groups(rng, groups))
            apart, together = (Transformer.reorder(cache, parents) for cache in (apart, together))


def within_groups(rng, groups):
    """Random parents for four beams of three sentences, each within the beam's group."""
    size = 4 // groups
    return rng.integers(0, size, (3, 4)) + np.arange(4) // size * size


@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_cache_that_grows_twice_gives_the_logits_of_a_full_one(calls, params, source, groups):
    rng = np.random.default_rng(7)
    full = fresh_cache(calls, params, source, 4, 6, groups)
    growing = fresh_cache(calls, params, source, 4, 2, groups)
    for length in (2, 3, 6):
        growing = Transformer.grow(growing, length)
        while growing.index < length:
            tokens = jnp.asarray(rng.integers(3, 11, (3, 4)))
            parents = jnp.asarray(within_groups(rng, groups))
            expected, full = calls["step"](params, tokens, full)
            logits, growing = calls["step"](params, tokens, growing)
            np.testing.assert_allclose(logits, expected, **CLOSE)
            full, growing = (Transformer.reorder(cache, parents) for cache in (full, growing))
    assert jax.tree.map(jnp.shape, growing) == jax.tree.map(jnp.shape, full)


def test_cross_attention_keys_exist_once_per_sentence_and_never_change(
    model, params, source, calls, config
):
    def cross(cache):
        return [(each.cross_attention.key, each.cross_attention.value) for each in cache.layers]

    n = config.num_heads
    cache = fresh_cache(calls, params, source, 2, 4)
    for key, value in cross(cache):
        assert key.shape == (3, n, config.d_k, 5)
        assert value.shape == (3, n, 5, config.d_v)

    def move_and_step(cache):
        moved = model.reorder(cache, jnp.ones((3, 2), jnp.int32))
        tokens = jnp.ones((3, 2), jnp.int32)
        _, stepped = model.apply({"params": params}, tokens, moved, method=model.step)
        for before, after in zip(cross(cache), cross(stepped), strict=True):
            assert before[0] is after[0]
            assert before[1] is after[1]
        return stepped

    stepped = move_and_step(cache)
    _, compiled = calls["step"](params, jnp.ones((3, 2), jnp.int32), cache)
    jax.tree.map(np.testing.assert_array_equal, cross(compiled), cross(cache))
    assert stepped.layers[0].self_attention.key.shape == (3, n, config.d_k, 4 * 2)
    assert stepped.layers[0].self_attention.value.shape == (3, n, 4 * 2, config.d_v)


def test_the_search_carries_no_copy_of_the_memory_per_beam(calls, params, source):
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(fresh_cache(calls, params, source, beams, 4)))
        for beams in (1, 2)
    ]
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
    model = families.build(TransformerConfig(vocab_size=vocab_size, **sizes))
    tokens = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=() if row in ("base", "d_k 16", "big") else pytest.mark.slow)
        for row in SIZES
    ],
)
def test_parameter_counts_are_those_of_table_3(row):
    """The vocabulary counts once, as rows of the one table."""
    sizes = SIZES[row]
    assert count(**sizes) == EXACT_AT_37_000[row]
    vocabulary = 36_000 if row == "big" else 41_100
    total = count(**sizes) + (vocabulary - 37_000) * sizes.get("d_model", 512)
    assert round(total / 1e6) == MILLIONS[row]


def test_the_vocabulary_adds_one_row_per_token():
    assert count(41_100) - count() == 4_100 * 512


@pytest.mark.parametrize("row", SIZES)
def test_the_exact_counts_are_those_of_the_formulae(row):
    """Kernels of attention, kernels and biases of the network, scales and biases of norms."""
    base = {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64}
    layers, d, f, n, d_k, d_v = (base | SIZES[row]).values()
    attention, network, norm = 2 * d * n * (d_k + d_v), 2 * d * f + f + d, 2 * d
    encoder = layers * (attention + network + 2 * norm)
    decoder = layers * (2 * attention + network + 3 * norm)
    assert 37_000 * d + encoder + decoder == EXACT_AT_37_000[row]


# Number formats.


@pytest.fixture(scope="module")
def half(config):
    """The tiny model in bfloat16."""
    return families.build(config.replace(compute_dtype="bfloat16"))


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


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("options", [{}, {"positions": "shaw"}, {"attention_kernel": "chunked"}])
def test_every_matmul_of_a_bfloat16_training_step_on_an_accelerator_is_of_bfloat16(
    half, source, target_in, platform, options
):
    """Also in the backward pass; scores and logits are summed in float32."""
    config = half.config.replace(**options)
    model = families.build(config)
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
        if config.attention_kernel == "auto":
            attentions = config.depth("encoder") + 2 * config.depth("decoder")
            of_positions = config.depth("encoder") + config.depth("decoder")
            float32 = 1 + attentions + of_positions * (config.positions == "shaw")
            assert results(loss).count("float32") == float32
            assert results(jax.grad(loss)).count("float32") == float32
        assert results(jax.grad(loss))


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


def training_loss(config, source, target_in):
    """(loss, gradient) of the parameters and a dropout key, traced but not compiled."""
    model = families.build(config)

    def loss(params, key):
        options = {"train": True, "rngs": {"dropout": key}}
        logits = model.apply({"params": params}, source, target_in, **options)
        return jnp.square(logits).mean()

    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize("remat", ["full", "dots"])
def test_recomputed_activations_change_no_value_no_gradient_and_no_dropout(
    config, params, source, target_in, remat
):
    key = jax.random.key(3)
    expected = training_loss(config, source, target_in)(params, key)
    found = training_loss(config.replace(remat=remat), source, target_in)(params, key)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (
        abs(found[0] - training_loss(config, source, target_in)(params, jax.random.key(4))[0])
        > 1e-3
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_recomputed_activations_are_not_saved_for_the_backward_pass(
    config, params, source, target_in, platform, dtype
):
    def saved(remat):
        """The number of elements."""
        model = families.build(config.replace(remat=remat, compute_dtype=dtype))

        def run(params):
            return jax.vjp(lambda p: model.apply({"params": p}, source, target_in), params)[1]

        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(run, params)))

    with compiling_for(platform):
        none, dots, full = map(saved, ("none", "dots", "full"))
    assert full < 0.8 * dots < 0.5 * none
