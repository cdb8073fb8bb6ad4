# SPDX-License-Identifier: Apache-2.0
"""softmax(Q K^T / sqrt(d_k)) V: by hand, its invariances, and one result for every kernel."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from programs import operand_types

from transformer import kernels
from transformer.kernels import chunked, cudnn_computes, fused
from transformer.kernels.chunked import chunked_attention
from transformer.kernels.fused import fused_attention
from transformer.models.cached_attention import cached_attention
from transformer.nn.attention import attention, masked_softmax
from transformer.nn.linear import project
from transformer.nn.masks import causal_mask
from transformer.nn.positions import PositionTerm
from transformer.platforms import compiling_for

CHUNK = 32
"""Queries per chunk in these tests, so that short sentences have several."""


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", CHUNK)


def formula(query, key, value, mask, bias=None, **options):
    """The formula with the signature of a kernel."""
    return attention(query, key, value, mask, positions=PositionTerm(bias=bias), **options)


KERNELS = {"formula": formula, **kernels.KERNELS}


def tapped(*inputs, **options):
    """(z, what the taps see by their names) of the formula."""
    seen = {}
    z = attention(*inputs, tap=lambda name, x: seen.setdefault(name, x), **options)
    return z, seen


def random_inputs(d_k=4, d_v=4, batch=2, queries=3, keys=5, heads=2):
    """Queries, keys, values and a mask in which every query may attend to something."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    mask = rng.random((batch, 1, queries, keys)) < 0.6
    mask[..., 0] = True
    return (
        draw(batch, queries, heads, d_k),
        draw(batch, keys, heads, d_k),
        draw(batch, keys, heads, d_v),
        jnp.asarray(mask),
    )


def test_one_query_and_two_keys_by_hand():
    """q . k is 2 ln 3 and 0; over sqrt(4), ln 3 and 0; so the weights are 3/4 and 1/4."""
    query = jnp.array([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    keys = jnp.array([[math.log(3), math.log(3), 0, 9], [0, 0, 7, 0.0]]).reshape(1, 2, 1, 4)
    values = jnp.array([[4.0, 0.0], [0.0, 8.0]]).reshape(1, 2, 1, 2)
    z, seen = tapped(query, keys, values)
    np.testing.assert_allclose(seen["scores"][0, 0, 0], [math.log(3), 0], rtol=1e-6)
    np.testing.assert_allclose(seen["weights"][0, 0, 0], [0.75, 0.25], rtol=1e-6)
    np.testing.assert_allclose(z[0, 0, 0], [3.0, 2.0], rtol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_the_oracle_head_by_head(name):
    query, key, value, mask = random_inputs()
    z = KERNELS[name](query, key, value, mask)
    for b, t, n in np.ndindex(2, 3, 2):
        q, k, v = (np.asarray(array[b, :, n], np.float64) for array in (query, key, value))
        expected = oracle.attend(q[t], k, v, np.asarray(mask[b, 0, t]))
        np.testing.assert_allclose(z[b, t, n], expected, atol=1e-6)


def test_rows_sum_to_one_and_masked_weights_are_exactly_zero():
    query, key, value, mask = random_inputs()
    weights = tapped(query, key, value, mask)[1]["weights"]
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    allowed = np.broadcast_to(mask, weights.shape)
    assert (np.asarray(weights)[~allowed] == 0).all()
    assert (np.asarray(weights)[allowed] > 0).all()


def test_a_query_without_keys_has_equal_weights_and_its_gradients_are_finite():
    query, key, value, mask = random_inputs()
    z, seen = tapped(query, key, value, mask.at[0, 0, 1].set(False))
    np.testing.assert_allclose(seen["weights"][0, :, 1], 1 / 5, rtol=1e-6)
    assert jnp.isfinite(z).all()
    nothing = jnp.zeros((2, 1, 3, 5), bool)
    gradients = jax.grad(lambda *a: formula(*a, nothing).sum(), (0, 1, 2))(query, key, value)
    assert all(jnp.isfinite(gradient).all() for gradient in gradients)


def test_masked_values_and_keys_have_no_influence():
    query, key, value, mask = random_inputs()
    mask = mask.at[..., 3].set(False)
    changed = formula(query, key.at[:, 3].add(9.0), value.at[:, 3].add(9.0), mask)
    np.testing.assert_array_equal(changed, formula(query, key, value, mask))


def test_no_mask_is_a_mask_of_true():
    query, key, value, mask = random_inputs()
    for kernel in KERNELS.values():
        expected = kernel(query, key, value, jnp.ones_like(mask))
        np.testing.assert_allclose(kernel(query, key, value, None), expected, atol=1e-6)


def test_a_constant_added_to_all_scores_changes_no_weight():
    scores = jnp.array([[[[1.0, 2.0, 4.0]]]])
    np.testing.assert_allclose(
        masked_softmax(scores + 80.0, None), masked_softmax(scores, None), rtol=1e-5
    )


def test_a_masked_key_has_no_weight_however_low_the_score_of_the_others():
    scores, mask = jnp.array([[[[-3e4, 0.0, -3e4]]]]), jnp.array([[[[True, False, True]]]])
    np.testing.assert_array_equal(masked_softmax(scores, mask), [[[[0.5, 0.0, 0.5]]]])


def assert_is_the_formula(kernel, inputs, masks, reference=formula):
    """In its values and in the gradients of its three inputs."""

    @jax.jit
    def both(mask):
        def gradients(kernel):
            def total(query, key, value):
                z = kernel(query, key, value, mask)
                return (z * jnp.cos(jnp.arange(z.size).reshape(z.shape))).sum(), z

            return jax.grad(total, (0, 1, 2), has_aux=True)(*inputs)

        return gradients(kernel), gradients(reference)

    for mask in masks:
        for ours, theirs in zip(*map(jax.tree.leaves, both(mask)), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_fused_kernel_is_the_formula_with_a_mask_and_in_its_gradients():
    *inputs, mask = random_inputs()
    assert_is_the_formula(fused_attention, inputs, [mask])


CUDNN = [
    ("cuda", jnp.bfloat16, (4, 6), (64, 64), True),
    ("cuda", jnp.float16, (4, 6), (64, 64), True),
    ("cuda", jnp.float32, (4, 6), (64, 64), False),
    ("cuda", jnp.bfloat16, (5, 6), (64, 64), False),
    ("cuda", jnp.bfloat16, (4, 7), (64, 64), False),
    ("cuda", jnp.bfloat16, (4, 6), (60, 60), False),
    ("cuda", jnp.bfloat16, (4, 6), (136, 136), False),
    ("cuda", jnp.bfloat16, (4, 6), (64, 32), False),
    ("rocm", jnp.bfloat16, (4, 6), (64, 64), False),
    ("tpu", jnp.bfloat16, (4, 6), (64, 64), False),
    ("cpu", jnp.bfloat16, (4, 6), (64, 64), False),
]
"""Platform, dtype, lengths (T, S), sizes (d_k, d_v), and whether cuDNN has a kernel."""


def test_cudnn_is_chosen_where_it_has_a_kernel():
    for platform, dtype, (t, s), (d_k, d_v), computes in CUDNN:
        query, key, value = (
            jnp.zeros((1, length, 2, size), dtype)
            for length, size in ((t, d_k), (s, d_k), (s, d_v))
        )
        with compiling_for(platform):
            assert cudnn_computes(query, key, value) == computes
            chosen = kernels.choose("auto", query, key, value, None)
            assert chosen is (fused_attention if computes else None)
            assert kernels.choose("auto", query, key, value, jnp.zeros((1, 2, t, s))) is None
            assert kernels.choose("einsum", query, key, value, None) is None
            assert kernels.choose("chunked", query, key, value, None) is chunked_attention


def test_auto_takes_the_formula_for_short_sentences_and_chunks_for_long_ones():
    for queries, expected in ((1023, None), (1024, chunked_attention)):
        arrays = [jnp.zeros((1, queries, 2, 8))] * 3
        assert kernels.choose("auto", *arrays, None) is expected


@pytest.mark.parametrize("biased", [False, True])
def test_cudnn_gets_a_mask_of_every_query_and_no_bias(biased, monkeypatch):
    query, key, value, mask = random_inputs(d_k=8, d_v=8, queries=4, keys=6)
    calls = []

    def record(*arrays, mask, implementation, **_):
        calls.append((implementation, mask.shape))
        return arrays[0]

    monkeypatch.setattr(fused, "cudnn_computes", lambda *_: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", record)
    bias = jnp.ones((1, 2, 4, 6)) if biased else None
    fused_attention(query, key, value, mask[:, :, :1], bias)
    assert calls == [("xla", (2, 1, 1, 6)) if biased else ("cudnn", (2, 1, 4, 6))]


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU")
@pytest.mark.parametrize("causal", [False, True])
def test_the_fused_kernel_on_a_gpu_is_cudnns_and_the_formula_but_for_rounding(causal):
    *inputs, mask = random_inputs(d_k=64, d_v=64, queries=32, keys=32)
    inputs = [x.astype(jnp.bfloat16) for x in inputs]

    def results(kernel, inputs):
        def total(*inputs):
            z = kernel(*inputs, mask[:, :1, :1], causal=causal)
            return (z * jnp.cos(jnp.arange(z.size).reshape(z.shape))).sum(), z

        return jax.jit(jax.grad(total, (0, 1, 2), has_aux=True)).trace(*inputs)

    assert "cudnn" in results(fused_attention, inputs).lower().as_text()
    ours = results(fused_attention, inputs).lower().compile()(*inputs)
    exact = [x.astype(jnp.float32) for x in inputs]
    theirs = results(formula, exact).lower().compile()(*exact)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one.astype(jnp.float32), other, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "queries",
    [2 * CHUNK + 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, CHUNK, 2 * CHUNK))],
)
def test_the_chunked_kernel_is_the_formula_for_any_length_mask_and_width(queries):
    *inputs, mask = random_inputs(d_k=4, d_v=6, queries=queries, keys=7)
    of_keys = mask[:, :, :1]
    of_heads = jnp.concatenate([mask, mask[::-1]], axis=1)
    assert_is_the_formula(chunked_attention, inputs, [None, mask, mask[:1], of_keys, of_heads])


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_the_chunked_kernel_is_the_formula_for_a_query_without_keys(platform):
    *inputs, mask = random_inputs(queries=2 * CHUNK, keys=7)
    mask = mask.at[0, 0, 1].set(False).at[1, 0, -1].set(False)
    with compiling_for(platform):
        assert_is_the_formula(chunked_attention, inputs, [mask])


@pytest.mark.parametrize(("name", "length"), [("fused", 3), ("chunked", 9 * CHUNK + 1)])
def test_a_causal_kernel_is_the_formula_with_a_causal_mask(name, length):
    *inputs, mask = random_inputs(queries=length, keys=length, batch=1)
    bias = jnp.sin(jnp.arange(2.0 * length**2)).reshape(1, 2, length, length)

    def reference(query, key, value, mask):
        causal = causal_mask(length) if mask is None else mask & causal_mask(length)
        return formula(query, key, value, causal, bias)

    kernel = functools.partial(KERNELS[name], bias=bias, causal=True)
    assert_is_the_formula(kernel, inputs, [None, mask], reference)


@pytest.mark.parametrize(
    ("sizes", "causal"), [((1, 2, 2 * CHUNK + 3), False), ((2, 2, 1), True), ((1, 2, 1), False)]
)
def test_the_chunked_kernels_gradient_of_a_bias_is_the_formulas(sizes, causal):
    length = 2 * CHUNK + 3
    query, key, value, _ = random_inputs(queries=length, keys=length)
    bias = jnp.sin(jnp.arange(float(np.prod(sizes) * length))).reshape(*sizes, length)
    mask = causal_mask(length) if causal else None

    def total(z):
        return (z * jnp.cos(jnp.arange(z.size).reshape(z.shape))).sum()

    @jax.jit
    def gradients(bias):
        ours = lambda bias: chunked_attention(query, key, value, None, bias, causal=causal)  # noqa: E731
        theirs = lambda bias: formula(query, key, value, mask, bias)  # noqa: E731
        return [jax.grad(lambda bias, f=f: total(f(bias)))(bias) for f in (ours, theirs)]

    np.testing.assert_allclose(*gradients(bias), atol=1e-5)


def test_the_causal_chunked_kernel_does_not_read_later_parts():
    """A weight of 0 times NaN would be NaN."""
    query, key, value, _ = random_inputs(queries=16 * CHUNK, keys=16 * CHUNK, batch=1)
    value = value.at[:, 2 * CHUNK :].set(jnp.nan)
    z = chunked_attention(query, key, value, None, causal=True)
    assert np.isfinite(z[:, : 2 * CHUNK]).all()
    assert np.isnan(z[:, 2 * CHUNK :]).all()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="XLA's CPU backend decides this")
@pytest.mark.parametrize("causal", [False, True])
def test_xla_multiplies_in_bfloat16_in_the_whole_chunked_kernel_if_it_does_in_a_matmul(
    causal, monkeypatch
):
    """Which depends on the processor; small matmuls are always in float32."""
    monkeypatch.setattr(chunked, "CHUNK", 256)
    matmul = functools.partial(project, "TH,HS->TS")
    shapes = (256, 64), (64, 512)
    (expected,) = operand_types(matmul, *(jnp.ones(shape, "bfloat16") for shape in shapes))

    def with_gradients(z_gradient, *inputs):
        z, pull = jax.vjp(lambda *x: chunked_attention(*x, None, causal=causal), *inputs)
        return z, pull(z_gradient)

    found = operand_types(with_gradients, *[jnp.ones((2, 512, 2, 64), "bfloat16")] * 4)
    assert len(found) == (14 if causal else 7)  # two parts of the queries, or one
    assert all(types == expected for types in found)


def test_the_memory_of_the_chunked_kernel_grows_linearly():
    """Sentences four times as long take four times the temporary memory, not sixteen times."""

    def temporaries(length):
        inputs = [jax.ShapeDtypeStruct((1, length, 2, 4), jnp.float32)] * 3
        gradient = jax.grad(lambda *inputs: chunked_attention(*inputs, None).sum(), (0, 1, 2))
        return jax.jit(gradient).lower(*inputs).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(8 * CHUNK) < 4.5 * temporaries(2 * CHUNK)
    assert temporaries(8 * CHUNK) < (8 * CHUNK) ** 2 * 2 * 4


def test_dropout_acts_on_the_mixing_and_not_on_the_weights_shown():
    inputs = random_inputs()
    plain, seen = tapped(*inputs)
    doubled, also_seen = tapped(*inputs, dropout=lambda weights: 2 * weights)
    np.testing.assert_array_equal(also_seen["weights"], seen["weights"])
    np.testing.assert_allclose(doubled, 2 * plain, rtol=1e-5)


def test_bfloat16_inputs_have_float32_scores_and_bfloat16_values():
    query, key, value, mask = random_inputs()
    half = [array.astype(jnp.bfloat16) for array in (query, key, value)]
    z, seen = tapped(*half, mask)
    assert seen["scores"].dtype == seen["weights"].dtype == jnp.float32
    assert z.dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_attention_over_a_cache_is_the_formula_in_another_layout(dtype):
    *inputs, mask = random_inputs(d_k=4, d_v=6)
    query, key, value = (array.astype(dtype) for array in inputs)
    expected = formula(query, key, value, mask)
    z = cached_attention(
        query.swapaxes(1, 2), key.transpose(0, 2, 3, 1), value.swapaxes(1, 2), mask
    )
    assert z.dtype == dtype
    np.testing.assert_allclose(
        z.swapaxes(1, 2).astype(jnp.float32),
        expected.astype(jnp.float32),
        rtol=1e-6 if dtype == jnp.float32 else 1e-2,
        atol=1e-6 if dtype == jnp.float32 else 1e-2,
    )
