# SPDX-License-Identifier: Apache-2.0
"""The convolutional model is that of a slow NumPy oracle in float64, its layers those of PyTorch.

Gehring et al. 2017; numbers in parentheses are its sections.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.config import Config, ConvolutionalConfig, DataConfig
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.interventions import no_interventions
from transformer.models import protocol
from transformer.models.convolutional import convolution
from transformer.nn.embedding import ZEROED

TINY = ConvolutionalConfig(
    vocab_size=11, encoder_layers=2, decoder_layers=2, d_model=6, max_positions=9, dropout=0.0
)
VARIANTS = {
    "two layers": {},
    "a vocabulary for each side, wide kernels": {"source_vocab_size": 13, "kernel_width": 5},
    "kernels of one position": {"kernel_width": 1, "decoder_layers": 3},
}
SOURCE = jnp.array([[4, 7, 5, 8, 2], [6, 5, 2, 0, 0]])
TARGET_IN = jnp.array([[1, 5, 8, 4], [1, 7, 2, 0]])


def random(*shape, seed=0):
    """Random float64 values."""
    return np.random.default_rng(seed).standard_normal(shape)


# The oracle: one sentence, one position and one window at a time.


def slow_convolution(x, kernel, bias, before, dilation=1):
    """y[t] = sum over e of x[t - before + e * dilation] kernel[e] + bias; zeros beyond the ends."""
    output = np.zeros((len(x), kernel.shape[-1])) + bias
    for t in range(len(x)):
        for e, matrix in enumerate(kernel):
            position = t - before + e * dilation
            if 0 <= position < len(x):
                output[t] += x[position] @ matrix
    return output


def slow_gates(x):
    """The first half of the channels times the sigmoid of the second (3.2)."""
    half = x.shape[-1] // 2
    return x[..., :half] / (1 + np.exp(-x[..., half:]))


def slow_kernel(p):
    """The kernel: for each output, a direction of the length that its scale gives."""
    kernel = np.zeros_like(p["direction"])
    for o, scale in enumerate(p["scale"]):
        column = p["direction"][..., o]
        kernel[..., o] = scale * column / math.sqrt((column**2).sum())
    return kernel


def slow_linear(p, x):
    """x W + b."""
    return x @ slow_kernel(p) + p["bias"]


def slow_attention(query, keys, values):
    """m sqrt(1/m) times the mean of the values, weighted by exp(query . key) (3.3, 3.4)."""
    exponentials = [math.exp(query @ key) for key in keys]
    mean = sum(e * value for e, value in zip(exponentials, values, strict=True))
    return len(keys) * math.sqrt(1 / len(keys)) * mean / sum(exponentials)


def slow_logits(p, config, source, target_in):
    """The logits of one sentence pair without padding of the source, [T,V]."""
    half, k = math.sqrt(0.5), config.kernel_width

    def embed(side, tokens):
        q = p[f"{side}_embedding"]
        return np.array([q["table"][w] + q["positions"][i] for i, w in enumerate(tokens)])

    e, q = embed("source", source), p["encoder"]
    x = slow_linear(q["linear_in"], e)
    for index in range(config.depth("encoder")):
        layer = q[f"layer_{index}"]
        y = slow_gates(slow_convolution(x, slow_kernel(layer), layer["bias"], k // 2))
        x = (x + y) * half
    z = slow_linear(q["linear_out"], x)
    values = (z + e) * half

    g, q = embed("target", target_in), p["decoder"]
    x = slow_linear(q["linear_in"], g)
    for index in range(config.depth("decoder")):
        layer = q[f"layer_{index}"]["convolution"]
        y = slow_gates(slow_convolution(x, slow_kernel(layer), layer["bias"], k - 1))
        h = (x + y) * half
        queries = (slow_linear(q[f"layer_{index}"]["query"], h) + g) * half
        x = np.array([(h[t] + slow_attention(d, z, values)) * half for t, d in enumerate(queries)])
    return slow_linear(p["output"], slow_linear(q["linear_out"], x))


@functools.cache
def built(name="two layers", **changes):
    """(model, params) of a variant."""
    model = protocol.build(TINY.replace(**VARIANTS[name] | changes))
    return model, oracle.random_params(model, seed=1)


@functools.cache
def forward():
    """(source, target_in, params) -> logits of the first variant, compiled."""
    model, params = built()
    return jax.jit(lambda *tokens, params=params: model.apply({"params": params}, *tokens))


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_the_oracles_to_1e_9(name):
    model, params = built(name)
    with jax.enable_x64(True):
        run = jax.jit(lambda params: model.apply({"params": params}, SOURCE, TARGET_IN))
        logits = run(oracle.float64(params))
        assert logits.dtype == jnp.float64
    p = oracle.arrays(params)
    for row, (source, target_in) in enumerate(zip(SOURCE, TARGET_IN, strict=True)):
        real = np.asarray(source)[np.asarray(source) != 0]
        expected = slow_logits(p, model.config, real, np.asarray(target_in))
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=1e-9)


# The formulas.


@pytest.mark.parametrize(("width", "dilation"), [(1, 1), (2, 3), (5, 1), (5, 3)])
def test_convolutions_are_those_of_loops(width, dilation):
    x, kernel, bias = random(2, 7, 3), random(width, 3, 4, seed=1), random(4, seed=2)
    after = (width - 1) // 2 * dilation
    with jax.enable_x64(True):
        arrays = jnp.asarray(kernel), jnp.asarray(bias)
        for pad, before in (
            (convolution.causal_padding, (width - 1) * dilation),
            (convolution.centered_padding, (width - 1) * dilation - after),
        ):
            padded = pad(jnp.asarray(x), width, dilation)
            y = convolution.convolve(padded, *arrays, dilation=dilation)
            for row in range(2):
                expected = slow_convolution(x[row], kernel, bias, before, dilation)
                np.testing.assert_allclose(y[row], expected, rtol=0, atol=1e-12)


def test_a_gated_linear_unit_by_hand():
    """The gate of 0 is a half, that of 100 is 1."""
    gated = convolution.gated_linear_unit(jnp.array([3.0, 5.0, 0.0, 100.0]))
    np.testing.assert_allclose(gated, [1.5, 5.0], rtol=1e-6)


def test_attention_grows_with_the_square_root_of_the_number_of_source_positions():
    """Equal scores: the mean of the values, 2, times sqrt(4); padding is not counted."""
    query, key = jnp.zeros((1, 1, 3)), jnp.zeros((1, 6, 3))
    value = jnp.full((1, 6, 3), 2.0).at[:, 4:].set(9.0)
    mask = jnp.arange(6)[None] < 4
    tapped = {}
    tap = tapped.setdefault
    context = convolution.dot_product_attention(query, key, value, mask, tap)
    np.testing.assert_allclose(context, jnp.full((1, 1, 3), 4.0), rtol=1e-6)
    np.testing.assert_allclose(tapped["weights"][0, 0, 0], [0.25] * 4 + [0, 0], rtol=1e-6)


def test_the_gradient_alone_is_scaled():
    square = jax.value_and_grad(lambda x: jnp.square(convolution.scale_gradient(x, 0.25)))
    value, gradient = square(jnp.array(3.0))
    assert (value, gradient) == (9.0, 1.5)


@pytest.mark.slow
def test_in_training_the_encoder_alone_has_its_gradient_divided_by_the_decoders_layers():
    """All of its parameters; the source embeddings also have the one through the values (3.4)."""
    model, params = built(decoder_layers=3)

    @functools.partial(jax.jit, static_argnums=1)
    def gradient(params, train):
        def total(params):
            logits = model.apply({"params": params}, SOURCE, TARGET_IN, train=train)
            return (logits * jnp.arange(11.0)).sum()

        return jax.grad(total)(params)

    scaled, plain = gradient(params, True), gradient(params, False)
    for name in ("encoder", "decoder"):
        factor = 3 if name == "encoder" else 1
        for a, b in zip(jax.tree.leaves(scaled[name]), jax.tree.leaves(plain[name]), strict=True):
            np.testing.assert_allclose(a * factor, b, rtol=1e-4, atol=1e-4)


# PyTorch, in float64.


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_gated_convolution_and_its_gradients_are_pytorchs(torch, causal):
    """`Conv1d` under `weight_norm`, then `glu`, with the same weights."""
    width, x, weighting = 3, random(2, 5, 4), random(2, 5, 4, seed=1)
    pad = convolution.causal_padding if causal else convolution.centered_padding
    module = convolution.GatedConvolution(width)
    with jax.enable_x64(True):
        shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(x)))["params"]
        params = {name: random(*shape.shape, seed=2) for name, shape in shapes.items()}

        def total(params, x):
            y = module.apply({"params": params}, pad(x, width))
            return (y * weighting).sum(), y

        run = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))
        gradients, y = run(jax.tree.map(jnp.asarray, params), jnp.asarray(x))

    theirs = torch.nn.Conv1d(4, 8, width, dtype=torch.float64)
    theirs = torch.nn.utils.parametrizations.weight_norm(theirs, dim=0)
    direction = theirs.parametrizations.weight.original1
    scale = theirs.parametrizations.weight.original0
    with torch.no_grad():
        direction.copy_(torch.tensor(params["direction"].transpose(2, 1, 0)))
        scale.copy_(torch.tensor(params["scale"][:, None, None]))
        theirs.bias.copy_(torch.tensor(params["bias"]))
    tensor = torch.tensor(x, requires_grad=True)
    before, after = (width - 1, 0) if causal else (1, 1)
    padded = torch.nn.functional.pad(tensor.transpose(1, 2), (before, after))
    expected = torch.nn.functional.glu(theirs(padded), dim=1).transpose(1, 2)
    (expected * torch.tensor(weighting)).sum().backward()

    near = {"rtol": 0, "atol": 1e-12}
    np.testing.assert_allclose(y, expected.detach().numpy(), **near)
    np.testing.assert_allclose(gradients[1], tensor.grad.numpy(), **near)
    ours = gradients[0]
    np.testing.assert_allclose(ours["direction"], direction.grad.numpy().transpose(2, 1, 0), **near)
    np.testing.assert_allclose(ours["scale"], scale.grad.numpy().ravel(), **near)
    np.testing.assert_allclose(ours["bias"], theirs.bias.grad.numpy(), **near)


# The initial model.


def test_initial_layers_keep_the_variance_of_their_inputs():
    """Kernels followed by gates have variance 4 p / n, others p / n, with n inputs (3.5)."""
    dropout = 0.4
    model = protocol.build(
        ConvolutionalConfig(vocab_size=50, num_layers=1, d_model=64, dropout=dropout)
    )
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET_IN)["params"])
    expected = {
        ("encoder", "layer_0"): 4 * (1 - dropout) / (3 * 64),
        ("encoder", "linear_in"): (1 - dropout) / 64,
        ("encoder", "linear_out"): 1 / 64,
        ("decoder", "layer_0", "query"): 1 / 64,
        ("decoder", "layer_0", "convolution"): 4 * (1 - dropout) / (3 * 64),
        ("output",): (1 - dropout) / 64,
    }
    for path, variance in expected.items():
        p = functools.reduce(lambda tree, key: tree[key], path, params)
        kernel = convolution.normalized_kernel(p["direction"], p["scale"], p["scale"].dtype)
        assert float(kernel.var()) == pytest.approx(variance, rel=1e-2), path
        assert not p["bias"].any()
    for side in ("source_embedding", "target_embedding"):
        assert float(params[side]["table"].std()) == pytest.approx(0.1, rel=0.05)


# What a position can see.


def reach(function, x):
    """[T,S]: whether output t depends on input s, from the Jacobian."""
    jacobian = jax.jit(jax.jacobian(function))(x)  # [T, ..., S, ...]
    axes = [axis for axis in range(jacobian.ndim) if axis not in (0, jacobian.ndim - 2)]
    return np.abs(np.asarray(jacobian)).sum(tuple(axes)) > 0


def test_a_memory_position_depends_on_the_windows_of_all_layers():
    """Two layers of width 3: two positions on either side, and for the value its own token."""
    model, params = built(encoder_layers=2)
    source = jnp.array([[4, 7, 5, 8, 6, 9, 2]])
    tables = params["source_embedding"]["table"]

    def keys(embedded):
        changed = params | {
            "source_embedding": params["source_embedding"]
            | {"table": tables.at[source[0]].set(embedded)}
        }
        memory = model.apply({"params": changed}, source, method="encode")
        return memory.key[0]

    position = np.arange(7)
    expected = np.abs(position[:, None] - position) <= 2
    np.testing.assert_array_equal(reach(keys, tables[source[0]]), expected)


def test_no_prediction_depends_on_a_later_target_token():
    changed = forward()(SOURCE, TARGET_IN.at[:, 2].set(9)) != forward()(SOURCE, TARGET_IN)
    assert not np.asarray(changed[:, :2]).any()
    assert np.asarray(changed[:, 2:]).any(-1).all()


# Capture and interventions.


@pytest.mark.slow
def test_a_gate_of_zero_removes_the_attention_of_a_layer_and_one_keeps_it():
    model, params = built()
    source, target_in = SOURCE[0], TARGET_IN[0]
    nothing = no_interventions(model, len(source), len(target_in))
    run = functools.partial(trace.run, model, params, source, target_in)
    plain, _ = run()
    np.testing.assert_array_equal(run(interventions=nothing)[0], plain)
    removed = nothing.with_gates(nothing.gates.replace(cross=jnp.zeros((2, 1))))
    logits, captured = run(capture="full", interventions=removed)
    assert not captured.decoder.cross_attention.output.any()
    other_source, _ = trace.run(model, params, source[::-1], target_in, interventions=removed)
    np.testing.assert_array_equal(other_source, logits)
    assert np.abs(np.asarray(logits - plain)).max() > 1e-3


@pytest.mark.slow
def test_capture_changes_no_logit_and_the_trace_explains_the_output():
    model, params = built()
    run = functools.partial(trace.run, model, params, SOURCE[0], TARGET_IN[0])
    logits, captured = run(capture="full")
    np.testing.assert_array_equal(logits, run()[0])
    attention = captured.attention("cross")
    assert attention.weights.shape == (2, 1, 4, 5)
    np.testing.assert_allclose(jax.nn.softmax(attention.scores), attention.weights, rtol=1e-5)
    z = jnp.einsum("LNTS,LNSD->LNTD", attention.weights, attention.value) * 5**0.5
    np.testing.assert_allclose(attention.z, z, rtol=1e-5, atol=1e-5)
    assert captured.attention("encoder") is captured.attention("decoder") is None


# Refusals.


def test_a_length_beyond_the_tables_of_positions_is_refused():
    model, params = built()
    with pytest.raises(InputError, match=r"model.max_positions is 9, .* must reach 10"):
        jax.eval_shape(
            lambda: model.apply({"params": params}, SOURCE, jnp.ones((2, 10), jnp.int32))
        )
    with pytest.raises(InputError, match=r"model.max_positions is 9, .* must reach 150"):
        Config(model=TINY)


def test_the_vector_of_a_cut_token_is_zero():
    """As if the row of another token were zero."""
    _, params = built()
    expected = forward()(SOURCE.at[0, 2].set(ZEROED), TARGET_IN, params=params)
    embedding = params["source_embedding"]
    embedding = embedding | {"table": embedding["table"].at[9].set(0.0)}
    zeroed = params | {"source_embedding": embedding}
    actual = forward()(SOURCE.at[0, 2].set(9), TARGET_IN, params=zeroed)
    np.testing.assert_array_equal(actual, expected)


def test_an_even_kernel_width_and_packed_rows_are_refused():
    with pytest.raises(InputError, match="model.kernel_width is 4, but must be odd"):
        TINY.replace(kernel_width=4)
    with pytest.raises(InputError, match="data.packing.*'convolutional'"):
        Config(model=TINY.replace(max_positions=150), data=DataConfig(packing=True))
    model = protocol.build(TINY)
    with pytest.raises(InputError, match="cannot keep the sentences of a packed row apart"):
        model.apply(
            *({"params": oracle.random_params(model, 1)}, SOURCE, SOURCE),
            source_segments=jnp.ones_like(SOURCE),
            target_segments=jnp.ones_like(SOURCE),
        )
