# SPDX-License-Identifier: Apache-2.0
"""Model, loss, gradients and search are those of the NumPy oracle, the layers those of PyTorch."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import search_oracle

from transformer.batch import Batch
from transformer.config import DecodeConfig, TransformerConfig
from transformer.decoding import generate
from transformer.models import protocol
from transformer.models.transformer import Decoder, Encoder
from transformer.nn.masks import padding_mask
from transformer.nn.multi_head_attention import MultiHeadAttention
from transformer.nn.positions import shift_right
from transformer.training import losses, step

SMALL = TransformerConfig(
    vocab_size=9, encoder_layers=1, decoder_layers=2, d_model=12, num_heads=3, d_ff=16
)
VARIANTS = {
    "the paper's": {},
    "unequal depths and heads, d_k != d_v": {
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_heads": 2,
        "decoder_heads": 4,
        "d_k": 5,
        "d_v": 2,
    },
    "pre-norm, halves": {"norm": "pre", "sinusoid_layout": "halves", "norm_epsilon": 0.1},
    "learned positions, gelu, bias": {
        "positions": "learned",
        "max_positions": 6,
        "activation": "gelu",
        "attention_bias": True,
    },
    "t5 positions": {"positions": "t5", "position_buckets": 6, "position_max_distance": 7},
    "pre-norm, t5 positions, chunked kernel": {
        "norm": "pre",
        "positions": "t5",
        "position_buckets": 4,
        "position_max_distance": 5,
        "attention_kernel": "chunked",
    },
    "multi-query, t5 positions, fused kernel": {
        "positions": "t5",
        "num_kv_heads": 1,
        "attention_kernel": "fused",
        "d_k": 4,
        "d_v": 4,
    },
    "a vocabulary for each side, output bias": {"source_vocab_size": 12, "output_bias": True},
    "paper's halves from position 2, biases, no embedding tied": {
        "sinusoid_layout": "halves_paper",
        "position_offset": 2,
        "attention_bias": True,
        "output_bias": True,
        "tied_embeddings": "none",
    },
    "rotary positions, chunked kernel": {"positions": "rotary", "attention_kernel": "chunked"},
    "no positions, grouped-query, rms norm, source embedding untied, unscaled": {
        "positions": "none",
        "encoder_heads": 4,
        "decoder_heads": 6,
        "num_kv_heads": 2,
        "d_k": 3,
        "attention_bias": True,
        "norm_kind": "rms_norm",
        "tied_embeddings": "target_output",
        "embedding_scale": "none",
    },
    "multi-query, shaw positions, window, swiglu": {
        "positions": "shaw",
        "num_kv_heads": 1,
        "max_relative_position": 1,
        "attention_window": 3,
        "activation": "swiglu",
    },
    "additive score, t5 positions, grouped-query": {
        "attention_score": "additive",
        "positions": "t5",
        "encoder_heads": 4,
        "decoder_heads": 2,
        "num_kv_heads": 2,
        "d_k": 5,
    },
    "window, alibi, geglu, pre-norm, rms norm": {
        "attention_window": 3,
        "positions": "alibi",
        "activation": "geglu",
        "norm": "pre",
        "norm_kind": "rms_norm",
    },
    "shared layers, timestep encoding, reglu": {
        "num_layers": 3,
        "encoder_layers": None,
        "decoder_layers": None,
        "shared_layers": True,
        "timestep_encoding": True,
        "norm": "pre",
        "activation": "reglu",
    },
    "output map untied, positions scaled": {
        "tied_embeddings": "source_target",
        "embedding_scale": "positions",
    },
}
SLOW_VARIANTS = ("the paper's", "t5 positions")
"""Whose parts are in other variants of the default suite."""
SOURCE = jnp.array([[4, 7, 5, 8, 2], [6, 5, 2, 0, 0]])
TARGET = jnp.array([[5, 8, 4, 2], [7, 2, 0, 0]])


def variant(name):
    return dataclasses.replace(SMALL, **VARIANTS[name])


def mean_loss(params, model, smoothing, mass):
    """The model's loss per token."""
    sums = step.loss(model, params, Batch(SOURCE, TARGET), smoothing=smoothing, mass=mass)
    return sums.loss / sums.tokens


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW_VARIANTS else ())
        for name in VARIANTS
    ],
)
def test_logits_and_loss_are_the_oracles_to_1e_9(name):
    """To 1e-6 with the fused kernel: JAX takes its softmax in float32."""
    tolerance = 1e-6 if "fused kernel" in name else 1e-9
    config = variant(name)
    model = protocol.build(config)
    params = oracle.random_params(model, seed=1)
    with jax.enable_x64(True):
        logits = jax.jit(
            lambda params: model.apply({"params": params}, SOURCE, shift_right(TARGET))
        )(oracle.float64(params))
        assert logits.dtype == jnp.float64
        sums = losses.smoothed_cross_entropy(logits, TARGET, 0.1, "uniform_others")
        sums = [float(value) for value in (sums.loss, sums.nll, sums.correct, sums.tokens)]
    p = oracle.arrays(params)
    target_in = np.array([[1, 5, 8, 4], [1, 7, 2, 0]])
    expected = oracle.logits(p, config, SOURCE, target_in)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)
    expected = oracle.loss_sums(expected, TARGET, 0.1, "uniform_others")
    np.testing.assert_allclose(sums, expected, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mass"),
    [
        ("unequal depths and heads, d_k != d_v", "uniform_others"),
        ("learned positions, gelu, bias", "uniform"),
        ("pre-norm, halves", "uniform_others"),
        ("t5 positions", "uniform_others"),
        ("a vocabulary for each side, output bias", "uniform_others"),
        ("multi-query, shaw positions, window, swiglu", "uniform_others"),
        ("additive score, t5 positions, grouped-query", "uniform_others"),
        ("shared layers, timestep encoding, reglu", "uniform_others"),
        ("paper's halves from position 2, biases, no embedding tied", "uniform_others"),
    ],
)
def test_gradients_are_the_central_differences_of_the_oracles_loss(name, mass):
    config = variant(name)
    model = protocol.build(config)
    params = oracle.random_params(model, seed=2)
    with jax.enable_x64(True):
        gradients = jax.jit(jax.grad(lambda params: mean_loss(params, model, 0.1, mass)))(
            oracle.float64(params)
        )
    gradients = jax.tree.map(np.asarray, gradients)
    p, tokens, step = oracle.arrays(params), int((TARGET != 0).sum()), 1e-5
    rng = np.random.default_rng(3)
    for (path, leaf), gradient in zip(
        jax.tree_util.tree_leaves_with_path(p), jax.tree.leaves(gradients), strict=True
    ):
        for _ in range(2):
            place = tuple(rng.integers(size) for size in leaf.shape)
            value, ends = leaf[place], []
            for moved in (value + step, value - step):
                leaf[place] = moved
                ends.append(oracle.loss(p, config, SOURCE, TARGET, 0.1, mass) / tokens)
            leaf[place] = value
            slope = (ends[0] - ends[1]) / (2 * step)
            assert abs(gradient[place] - slope) < 1e-6, (jax.tree_util.keystr(path), place)


@pytest.mark.parametrize(
    ("name", "beams", "results", "penalty", "alpha"),
    [
        ("unequal depths and heads, d_k != d_v", 1, 1, "gnmt", 0.6),
        ("pre-norm, halves", 3, 1, "length", 1.0),
        ("multi-query, shaw positions, window, swiglu", 3, 2, "gnmt", 0.6),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("unequal depths and heads, d_k != d_v", 3, 3, "gnmt", 0.6),
                ("learned positions, gelu, bias", 2, 2, "none", 0.6),
                ("paper's halves from position 2, biases, no embedding tied", 2, 2, "length", 1.0),
                ("t5 positions", 3, 2, "gnmt", 0.6),
                ("a vocabulary for each side, output bias", 2, 2, "gnmt", 0.6),
                ("additive score, t5 positions, grouped-query", 2, 2, "gnmt", 0.6),
                ("shared layers, timestep encoding, reglu", 2, 2, "gnmt", 0.6),
            )
        ),
    ],
)
def test_search_over_the_cache_is_the_oracles_search_from_scratch(
    name, beams, results, penalty, alpha
):
    """Scores to 1e-6 only: the search takes its log-softmax in float32, by design."""
    config = dataclasses.replace(variant(name), max_positions=16)
    model = protocol.build(config)
    params = oracle.random_params(model, seed=4)
    sources = np.array([[4, 7, 5, 2], [0, 0, 0, 0], [6, 2, 0, 0], [8, 8, 2, 0]], np.int32)
    with jax.enable_x64(True):
        search = functools.partial(
            generate.generate,
            model,
            config=DecodeConfig(
                beams=beams, length_penalty=penalty, alpha=alpha, extra_length=4, max_length=None
            ),
            num_results=results,
            max_length=8,
        )
        found = jax.jit(search)(oracle.float64(params), jnp.asarray(sources))
    found = jax.tree.map(np.asarray, found)
    p = oracle.arrays(params)
    lengths = set()
    for row, source in enumerate(sources):
        if not source.any():
            assert not found.tokens[row].any()
            continue
        log_probs = search_oracle.next_words(p, config, source)
        limit = int((source != 0).sum()) + 4
        if beams == 1:
            tokens, log_prob = search_oracle.greedy(log_probs, limit)
            score = log_prob / search_oracle.penalty_of(len(tokens), penalty, alpha)
            expected = [(score, log_prob, tokens)]
        else:
            expected, _ = search_oracle.beam(log_probs, limit, beams, results, penalty, alpha)
        for k, (score, log_prob, tokens) in enumerate(expected):
            assert tuple(found.tokens[row, k, : len(tokens)]) == tokens
            assert not found.tokens[row, k, len(tokens) :].any()
            np.testing.assert_allclose(found.scores[row, k], score, rtol=1e-6)
            np.testing.assert_allclose(found.log_probs[row, k], log_prob, rtol=1e-6)
            lengths.add(len(tokens))
    assert len(lengths) > 1  # not all of them ended by the limit


# PyTorch, in float64.


def copy_attention(torch, ours, theirs):
    """Puts our attention parameters, as float64 arrays, into a `torch.nn.MultiheadAttention`."""
    width = ours["output"].shape[-1]

    def matrix(name):
        return torch.tensor(ours[name].reshape(len(ours[name]), -1).T.copy())

    kernels = [matrix(name) for name in ("query", "key", "value")]
    state = {"out_proj.weight": torch.tensor(ours["output"].reshape(-1, width).T.copy())}
    state["in_proj_weight"] = torch.cat(kernels)
    if "query_bias" in ours:
        biases = [ours[f"{name}_bias"].reshape(-1) for name in ("query", "key", "value")]
        state["in_proj_bias"] = torch.tensor(np.concatenate(biases))
        state["out_proj.bias"] = torch.tensor(ours["output_bias"])
    theirs.load_state_dict(state)


def copy_layer(torch, ours, theirs, cross):
    """Puts one of our encoder or decoder layers into PyTorch's."""
    copy_attention(torch, ours["self_attention"], theirs.self_attn)
    norms = ["self_attention_residual", "feed_forward_residual"]
    if cross:
        copy_attention(torch, ours["cross_attention"], theirs.multihead_attn)
        norms.insert(1, "cross_attention_residual")
    network = ours["feed_forward"]
    with torch.no_grad():
        for linear, end in ((theirs.linear1, "in"), (theirs.linear2, "out")):
            linear.weight.copy_(torch.tensor(network[f"kernel_{end}"].T.copy()))
            if linear.bias is not None:
                linear.bias.copy_(torch.tensor(network[f"bias_{end}"]))
        for number, name in enumerate(norms, start=1):
            norm = getattr(theirs, f"norm{number}")
            norm.weight.copy_(torch.tensor(ours[name]["norm"]["scale"]))
            if norm.bias is not None:
                norm.bias.copy_(torch.tensor(ours[name]["norm"]["bias"]))


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_and_its_gradients_are_pytorchs(torch, bias):
    config = TransformerConfig(d_model=12, num_heads=3, attention_bias=bias)
    module = MultiHeadAttention(config, "encoder")
    rng = np.random.default_rng(5)
    queries, keys, values = (rng.standard_normal((2, length, 12)) for length in (4, 5, 5))
    weighting = rng.standard_normal((2, 4, 12))
    padding = np.array([[True] * 5, [True, True, True, False, False]])
    band = np.abs(np.arange(4)[:, None] - np.arange(5)) < 3
    with jax.enable_x64(True):
        inputs = [jnp.asarray(array) for array in (queries, keys, values)]
        mask = jnp.asarray(padding[:, None, None, :] & band)
        params = jax.eval_shape(module.init, jax.random.key(0), *inputs, mask)["params"]
        params = jax.tree.map(lambda p: jnp.asarray(rng.standard_normal(p.shape)), nn.unbox(params))

        @jax.jit
        def ours(params, *inputs):
            output = module.apply({"params": params}, *inputs, mask)
            return (output * weighting).sum(), output

        gradients, output = jax.grad(ours, argnums=(0, 1, 2, 3), has_aux=True)(params, *inputs)
    theirs = torch.nn.MultiheadAttention(12, 3, bias=bias, batch_first=True, dtype=torch.float64)
    copy_attention(torch, jax.tree.map(np.asarray, params), theirs)
    tensors = [torch.tensor(array, requires_grad=True) for array in (queries, keys, values)]
    expected, _ = theirs(
        *tensors, key_padding_mask=torch.tensor(~padding), attn_mask=torch.tensor(~band)
    )
    (expected * torch.tensor(weighting)).sum().backward()

    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=0, atol=1e-9)
    for gradient, tensor in zip(gradients[1:], tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=0, atol=1e-9)
    of_params = gradients[0]
    flat = {
        name: np.asarray(of_params[name]).reshape(len(of_params[name]), -1).T
        for name in ("query", "key", "value")
    }
    of_kernels = np.split(theirs.in_proj_weight.grad.numpy(), 3)
    for name, gradient in zip(flat, of_kernels, strict=True):
        np.testing.assert_allclose(flat[name], gradient, rtol=0, atol=1e-9)
    of_output = np.asarray(of_params["output"]).reshape(-1, 12).T
    np.testing.assert_allclose(of_output, theirs.out_proj.weight.grad, rtol=0, atol=1e-9)
    if bias:
        ours_too = [np.asarray(of_params[f"{name}_bias"]).reshape(-1) for name in flat]
        theirs_too = np.split(theirs.in_proj_bias.grad.numpy(), 3)
        np.testing.assert_allclose(ours_too, theirs_too, rtol=0, atol=1e-9)
        np.testing.assert_allclose(
            of_params["output_bias"], theirs.out_proj.bias.grad, rtol=0, atol=1e-9
        )


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_both_stacks_and_their_input_gradients_are_pytorchs(torch, bias):
    """`torch.nn.Transformer` ends each stack with one more norm, which the paper lacks: left out.

    Without bias, PyTorch drops it from feed-forward network and norm too; ours are set to 0 there.
    """
    config = dataclasses.replace(SMALL, attention_bias=bias, norm_epsilon=1e-5)
    encoder, decoder = Encoder(config), Decoder(config)
    params = oracle.arrays(oracle.random_params(protocol.build(config), seed=6))
    if not bias:
        params = jax.tree_util.tree_map_with_path(
            lambda path, p: p * 0 if "bias" in path[-1].key else p, params
        )
    rng = np.random.default_rng(7)
    source, target, weighting = (rng.standard_normal((2, n, 12)) for n in (5, 4, 4))
    tokens = np.array([[4, 4, 4, 4, 4], [4, 4, 4, 0, 0]])
    with jax.enable_x64(True):
        of = oracle.float64(params)

        @jax.jit
        def ours(source, target):
            mask = padding_mask(jnp.asarray(tokens))
            memory = encoder.apply({"params": of["encoder"]}, source, mask, jnp.arange(5))
            output = decoder.apply(
                *({"params": of["decoder"]}, target, memory, None, mask, jnp.arange(4))
            )
            return (output * weighting).sum(), output

        arguments = jnp.asarray(source), jnp.asarray(target)
        gradients, output = jax.grad(ours, argnums=(0, 1), has_aux=True)(*arguments)

    size = {"d_model": 12, "nhead": 3, "dim_feedforward": 16, "dropout": 0.0, "activation": "relu"}
    options = {"layer_norm_eps": 1e-5, "batch_first": True, "bias": bias, "dtype": torch.float64}
    layer = torch.nn.TransformerEncoderLayer(**size, **options)
    theirs = torch.nn.Transformer(
        d_model=12,
        nhead=3,
        batch_first=True,
        custom_encoder=torch.nn.TransformerEncoder(layer, 1, None, enable_nested_tensor=False),
        custom_decoder=torch.nn.TransformerDecoder(
            torch.nn.TransformerDecoderLayer(**size, **options), 2, None
        ),
    )
    for stack, cross in ((theirs.encoder, False), (theirs.decoder, True)):
        side = "decoder" if cross else "encoder"
        for index, layer in enumerate(stack.layers):
            copy_layer(torch, params[side][f"layer_{index}"], layer, cross)
    tensors = [torch.tensor(array, requires_grad=True) for array in (source, target)]
    padded = torch.tensor(tokens == 0)
    expected = theirs(
        *tensors,
        tgt_mask=torch.ones(4, 4, dtype=torch.bool).triu(1),
        src_key_padding_mask=padded,
        memory_key_padding_mask=padded,
    )
    (expected * torch.tensor(weighting)).sum().backward()
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=0, atol=1e-9)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=0, atol=1e-9)
