# SPDX-License-Identifier: Apache-2.0
"""The building blocks of figure 1: their formulae, their widths, and where dropout acts."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import TransformerConfig
from transformer.models import protocol
from transformer.nn.embedding import Embedding
from transformer.nn.feed_forward import ACTIVATIONS, FeedForward, feed_forward
from transformer.nn.linear import project
from transformer.nn.multi_head_attention import MultiHeadAttention
from transformer.nn.norm import NORMS, LayerNorm, layer_norm
from transformer.nn.residual import Residual
from transformer.platforms import compiling_for


def random(*shape, seed=0):
    """Random float32 values."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def random_params(module, *inputs):
    """Random parameters of a module."""
    shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"])
    return jax.tree.map(lambda leaf: random(*leaf.shape, seed=leaf.size), shapes)


# Linear maps, layer norm and the feed-forward network.


def test_project_is_a_matmul_plus_bias():
    kernel = jnp.array([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]])
    x = jnp.array([[[1.0, 10.0]]])
    output = project("BTD,DF->BTF", x, kernel, jnp.array([0.5, 0.0, 0.0]))
    np.testing.assert_array_equal(output, [[[1.5, 12.0, -7.0]]])


def test_project_computes_in_the_dtype_of_the_activations():
    x = jnp.ones((1, 1, 2), jnp.bfloat16)
    output = project("BTD,DF->BTF", x, jnp.ones((2, 3)), jnp.ones(3))
    assert output.dtype == jnp.bfloat16


def test_the_gradient_of_a_bias_is_summed_in_float32():
    """301 rows of 1: bfloat16 has 300 and 302, but not 301."""
    rows, kernel = jnp.ones((1, 301, 2), jnp.bfloat16), jnp.zeros((2, 3))

    def total(bias):
        return project("BTD,DF->BTF", rows, kernel, bias).sum(dtype=jnp.float32)

    np.testing.assert_array_equal(jax.grad(total)(jnp.zeros(3)), [301, 301, 301])


def test_layer_norm_by_hand():
    """Mean 3, variance 4: 1 and 5 become -1 and 1, times 10 and 100, plus 7."""
    normed = layer_norm(jnp.array([1.0, 5.0]), jnp.array([10.0, 100.0]), jnp.array([7.0, 7.0]), 0.0)
    np.testing.assert_allclose(normed, [-3.0, 107.0], rtol=1e-6)


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    """The mean of 256 and 258 is 257, which bfloat16 lacks."""
    normed = layer_norm(jnp.array([256.0, 258.0], jnp.bfloat16), jnp.ones(2), jnp.zeros(2), 0.0)
    assert normed.dtype == jnp.bfloat16
    np.testing.assert_array_equal(normed, [-1.0, 1.0])


def test_layer_norm_adds_epsilon_to_the_variance():
    normed = layer_norm(jnp.array([1.0, 5.0]), jnp.ones(2), jnp.zeros(2), 12.0)
    np.testing.assert_allclose(normed, [-0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", NORMS)
def test_a_sentence_alone_is_normalized_as_beside_another_one(kind, platform):
    """And so are its gradients; a CPU has another form for a batch of one."""
    module = NORMS[kind](1e-6)
    sentences, gradients = random(2, 3, 6), random(2, 3, 6, seed=1)
    params = random_params(module, sentences)

    @jax.jit
    def of_the_first(x, gradient):
        y, pull = jax.vjp(lambda x, params: module.apply({"params": params}, x), x, params)
        x_gradient, of_params = pull(gradient)
        return y[0], x_gradient[0], of_params

    with compiling_for(platform):
        beside = of_the_first(sentences, gradients.at[1].set(0))
        alone = of_the_first(sentences[:1], gradients[:1])
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(beside), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_feed_forward_by_hand():
    """Hidden: (3 - 2, 1 - 4) after relu is (1, 0); out: 1 * (2, 5) + (0.5, 0)."""
    output = feed_forward(
        jnp.array([[[3.0, 1.0]]]),
        jnp.array([[1.0, 0.0], [0.0, 1.0]]),
        jnp.array([-2.0, -4.0]),
        jnp.array([[2.0, 5.0], [100.0, 100.0]]),
        jnp.array([0.5, 0.0]),
    )
    np.testing.assert_array_equal(output, [[[2.5, 5.0]]])


def test_gelu_is_exact_and_its_approximation_has_a_name():
    """1 Phi(1) is 0.841345, and the tanh form 0.841192: the two differ in the fourth digit."""
    assert float(ACTIVATIONS["gelu"](1.0)) == pytest.approx(0.841345, abs=1e-6)
    assert float(ACTIVATIONS["gelu_tanh"](1.0)) == pytest.approx(0.841192, abs=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_the_oracles(name):
    x = np.linspace(-4, 4, 33)
    expected = oracle.activate(x, name)
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x)), expected, atol=1e-6)


# Attention of many heads.


def test_a_config_gives_each_side_its_heads_and_their_widths():
    config = TransformerConfig(d_model=12, encoder_heads=2, decoder_heads=6, d_v=7)
    x = jnp.zeros((1, 1, 12))
    for side, heads, d_k in (("encoder", 2, 6), ("decoder", 6, 2)):
        params = random_params(MultiHeadAttention(config, side), x, x, x)
        shapes = jax.tree.map(jnp.shape, params)
        assert shapes["key"] == shapes["query"] == (12, heads, d_k)
        assert (shapes["value"], shapes["output"]) == ((12, heads, 7), (heads, 7, 12))


# Dropout.


def drawn_shapes(config, source, target_in, train=True):
    """The shape, of one row, of all the random bits that a forward pass draws."""
    model = protocol.build(config)
    params = oracle.random_params(model, seed=0)

    def run(params, key):
        return model.apply(
            {"params": params}, source, target_in, train=train, rngs={"dropout": key}
        )

    jaxpr = jax.make_jaxpr(run)(params, jax.random.key(0))
    return [
        equation.params["shape"]
        for equation in oracle.equations(jaxpr.jaxpr)
        if equation.primitive.name == "random_bits"
    ]


def test_dropout_is_on_every_sub_layers_output_and_on_both_embeddings(config, source, target_in):
    """2 sub-layers an encoder layer, 3 a decoder layer, and source and target: paper 5.4."""
    config = config.replace(encoder_layers=1, decoder_layers=2)
    encoder, decoder = config.encoder_layers, config.decoder_layers
    drawn = drawn_shapes(config, source, target_in)
    of_source, of_target = ((each.shape[1], config.d_model) for each in (source, target_in))
    assert drawn.count(of_source) == 2 * encoder + 1
    assert drawn.count(of_target) == 3 * decoder + 1
    assert len(drawn) == 2 * encoder + 3 * decoder + 2
    assert drawn_shapes(config, source, target_in, train=False) == []


def test_the_other_two_dropouts_act_on_weights_and_hidden_layers_alone(config, source, target_in):
    config = config.replace(encoder_layers=1, decoder_layers=2)
    encoder, decoder = config.encoder_layers, config.decoder_layers
    s, t, n = source.shape[1], target_in.shape[1], config.num_heads
    only = dataclasses.replace(config, dropout=0.0, attention_dropout=0.1)
    drawn = drawn_shapes(only, source, target_in)
    assert drawn.count((n, s, s)) == encoder
    assert drawn.count((n, t, t)) == drawn.count((n, t, s)) == decoder
    assert len(drawn) == encoder + 2 * decoder
    only = dataclasses.replace(config, dropout=0.0, activation_dropout=0.1)
    drawn = drawn_shapes(only, source, target_in)
    assert drawn.count((s, config.d_ff)) == encoder
    assert drawn.count((t, config.d_ff)) == decoder
    assert len(drawn) == encoder + decoder


# Residual connections and norms.


def residual(norm, **options):
    """(module, params): a residual connection whose norm has a random scale and bias."""
    config = TransformerConfig(d_model=4, num_heads=1, norm=norm, dropout=0.25)
    return Residual(config), {"norm": {"scale": random(4, seed=8), "bias": random(4, seed=9)}}


def add(module, params, x, sublayer, **options):
    """The residual connection around a sub-layer."""
    y = sublayer(module.apply({"params": params}, x, method="prepare"))
    return module.apply({"params": params}, x, y, **options)


def double(x):
    """A sub-layer: twice its input, plus one."""
    return 2 * x + 1


def test_post_norm_is_the_norm_of_the_sum():
    module, params = residual("post")
    x = random(2, 3, 4)
    norm = LayerNorm(module.config.norm_epsilon)
    expected = norm.apply({"params": params["norm"]}, x + (2 * x + 1))
    np.testing.assert_allclose(add(module, params, x, double), expected, atol=1e-6)


def test_pre_norm_is_the_sum_with_the_sub_layer_of_the_norm():
    module, params = residual("pre")
    x = random(2, 3, 4)
    normed = LayerNorm(module.config.norm_epsilon).apply({"params": params["norm"]}, x)
    np.testing.assert_allclose(add(module, params, x, double), x + (2 * normed + 1), atol=1e-6)


def test_dropout_is_on_the_output_of_the_sub_layer_and_not_on_its_input():
    module, params = residual("pre")
    x = random(8, 9, 4)
    output = add(
        *(module, params, x, lambda y: jnp.full_like(y, 3.0)),
        dropout=jnp.arange(8),
        rngs={"dropout": jax.random.key(0)},
    )
    added = np.asarray(output - x)
    kept = np.isclose(added, 4.0, atol=1e-5)
    assert (kept | np.isclose(added, 0.0, atol=1e-5)).all()
    assert 0.6 < kept.mean() < 0.9


# The embedding.


def test_embedding_is_scaled_by_the_root_of_d_model_and_positions_are_not():
    config = TransformerConfig(vocab_size=5, d_model=16, num_heads=1)
    module = Embedding(config)
    table = random(5, 16)
    positions = jnp.asarray(oracle.sinusoids(3, 16, "interleaved"), jnp.float32)
    embedded = module.apply(
        {"params": {"table": table}}, jnp.array([[4, 1, 4]]), positions, method="embed"
    )
    np.testing.assert_allclose(embedded[0], 4.0 * table[jnp.array([4, 1, 4])] + positions)
    encodings = module.apply({"params": {"table": table}}, 3, method="positions")
    np.testing.assert_array_equal(encodings, positions)


def test_dropout_is_on_the_sum_of_embedding_and_position():
    config = TransformerConfig(vocab_size=5, d_model=16, num_heads=1, dropout=0.5)
    module = Embedding(config)
    params = {"table": jnp.ones((5, 16))}
    tokens, positions = jnp.full((9, 7), 4), jnp.ones((7, 16))
    embedded = module.apply(
        {"params": params},
        tokens,
        positions,
        dropout=jnp.arange(9),
        method="embed",
        rngs={"dropout": jax.random.key(0)},
    )
    assert set(np.unique(embedded)) == {0.0, 10.0}


def test_logits_are_dot_products_with_the_rows_of_the_same_table():
    config = TransformerConfig(vocab_size=5, d_model=4, num_heads=1)
    table, x = random(5, 4), random(1, 2, 4, seed=1)
    logits = Embedding(config).apply({"params": {"table": table}}, x, method="logits")
    np.testing.assert_allclose(logits[0], np.asarray(x[0]) @ np.asarray(table).T, rtol=1e-5)


def test_learned_positions_are_rows_of_a_table_of_limited_length():
    config = TransformerConfig(
        vocab_size=5, d_model=4, num_heads=1, positions="learned", max_positions=6
    )
    params = {"table": random(5, 4), "positions": random(6, 4, seed=1)}
    module = Embedding(config)
    table = module.apply({"params": params}, 3, method="positions")
    np.testing.assert_array_equal(table, params["positions"][:3])
    with pytest.raises(ValueError, match="7 positions requested.*model.max_positions = 6; shorten"):
        module.apply({"params": params}, 7, method="positions")


# Fresh parameters.


def test_fresh_kernels_are_glorot_uniform_over_all_heads():
    config = TransformerConfig(d_model=64, num_heads=4, d_k=8, d_v=24, d_ff=96)
    x = jnp.zeros((1, 1, 64))

    @jax.jit
    def fresh(key):
        attention = MultiHeadAttention(config, "encoder").init(key, x, x, x)["params"]
        return nn.unbox(attention | FeedForward(config).init(key, x)["params"])

    params = fresh(jax.random.key(0))
    fans = {
        "query": (64, 4 * 8),
        "key": (64, 4 * 8),
        "value": (64, 4 * 24),
        "output": (4 * 24, 64),
        "kernel_in": (64, 96),
        "kernel_out": (96, 64),
    }
    for name, (fan_in, fan_out) in fans.items():
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert 0.98 * bound < float(jnp.abs(params[name]).max()) <= bound, name
        assert abs(float(params[name].std()) - bound / math.sqrt(3)) < 0.03 * bound, name


def test_fresh_norms_change_nothing_and_fresh_biases_are_zero():
    x = jnp.zeros((1, 1, 8))
    norm = nn.unbox(LayerNorm(1e-6).init(jax.random.key(0), x)["params"])
    np.testing.assert_array_equal(norm["scale"], 1)
    np.testing.assert_array_equal(norm["bias"], 0)
    network = jax.jit(FeedForward(TransformerConfig(d_model=8)).init)(jax.random.key(0), x)
    network = nn.unbox(network["params"])
    np.testing.assert_array_equal(network["bias_in"], 0)
    np.testing.assert_array_equal(network["bias_out"], 0)


def test_fresh_embeddings_times_the_root_of_d_model_have_variance_one():
    config = TransformerConfig(vocab_size=500, d_model=64)
    module = Embedding(config)
    tokens = jnp.arange(500)[None]
    params = module.init(jax.random.key(0), tokens, method="tokens")["params"]
    vectors = module.apply({"params": nn.unbox(params)}, tokens, method="tokens")
    assert abs(float(vectors.std()) - 1) < 0.02
