# SPDX-License-Identifier: Apache-2.0
"""The einsums of a CPU are `jnp.einsum`, in values and in derivatives of any order."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from programs import matmul_dtypes, operand_types

from transformer.cpu import matmul
from transformer.nn import linear
from transformer.platforms import compiling_for

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="these forms are for XLA's CPU backend"
)

SIZES = dict(zip("BTSDNHFV", (2, 3, 4, 5, 2, 3, 7, 11), strict=True))
MAPS = ["BTD,DNH->BTNH", "BTNH,NHD->BTD", "BTD,DF->BTF", "BTD,VD->BTV"]
SCORES, SUMS = "BTNH,BSNH->BNTS", "BNTS,BSNH->BTNH"
"""The matmuls of attention: of queries and keys, and of weights and values."""
OTHERS = ["BTNH,NHD->BNTD", SCORES, "BTD,BTD->BTD"]


def random(axes, seed, dtype="float32"):
    """A random array with these axes."""
    shape = [SIZES[axis] for axis in axes]
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def arrays(spec, dtype="float32"):
    """(x, kernel, cotangent of the output)."""
    inputs, output = spec.split("->")
    return [random(axes, seed, dtype) for seed, axes in enumerate((*inputs.split(","), output))]


def plain(spec, x, kernel):
    """The reference."""
    return jnp.einsum(spec, x, kernel)


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradients(matmul, spec, x, kernel, cotangent):
    """Output, and the gradients by x and kernel."""
    output, pull = jax.vjp(lambda *both: matmul(spec, *both), x, kernel)
    return output, *pull(cotangent)


@pytest.mark.parametrize("spec", MAPS)
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", pytest.param("float64", marks=pytest.mark.slow)]
)
def test_values_and_gradients_are_those_of_the_einsum(spec, dtype):
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2, "float64": 1e-14}[dtype]
    with jax.enable_x64(dtype == "float64"):
        given = arrays(spec, dtype)
        expected = gradients(plain, spec, *given)
        ours = gradients(matmul.transposing_matmul, spec, *given)
        for one, other in zip(ours, expected, strict=True):
            assert one.dtype == other.dtype == dtype
            one, other = (np.asarray(each, np.float64) for each in (one, other))
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(ours[0], expected[0])


@pytest.mark.parametrize("spec", MAPS)
def test_bfloat16_sums_are_accumulated_in_float32_and_rounded_once(spec):
    """Output and both gradients, to half a unit in the last of bfloat16's 8 bits."""
    given = arrays(spec, "bfloat16")
    exact = gradients(plain, spec, *(array.astype("float32") for array in given))
    ours = gradients(matmul.einsum, spec, *given)
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == "bfloat16"
        np.testing.assert_allclose(one.astype("float32"), other, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("spec", MAPS[1:3])
def test_second_order_and_batched_bfloat16_gradients_are_those_of_the_einsum(spec):
    x, kernel, cotangent = arrays(spec, "bfloat16")

    def all_of(product):
        def loss(x, kernel):
            return (product(spec, x, kernel).astype("float32") ** 2 * cotangent).sum()

        def slope(x, kernel):
            return (jax.grad(loss, 1)(x, kernel).astype("float32") ** 2).sum()

        twice = jax.grad(slope, (0, 1))(x, kernel)
        return twice, jax.vmap(jax.grad(loss, (0, 1)), (0, None))(jnp.stack([x, 2 * x]), kernel)

    ours, theirs = map(jax.jit(all_of, static_argnums=0), (matmul.rounding_matmul, plain))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        one, other = one.astype("float32"), other.astype("float32")
        assert jnp.linalg.norm(one - other) < 0.02 * jnp.linalg.norm(other)


def test_all_matmuls_of_bfloat16_training_are_of_bfloat16_with_a_float32_result():
    """Only these have special CPU instructions."""
    given = arrays("BTD,DF->BTF", "bfloat16")
    jaxpr = jax.make_jaxpr(lambda *x: gradients(matmul.einsum, "BTD,DF->BTF", *x))(*given)
    assert matmul_dtypes(jaxpr) == [("bfloat16", "bfloat16", "float32")] * 3


def test_xla_multiplies_in_bfloat16_in_the_backward_pass_if_it_does_in_the_forward_pass():
    """Which depends on the processor."""
    spec = "BTD,DF->BTF"
    x, kernel, cotangent = (
        jnp.ones(shape, "bfloat16") for shape in ((8, 16, 64), (64, 128), (8, 16, 128))
    )
    (forward,) = operand_types(lambda x, kernel: matmul.einsum(spec, x, kernel), x, kernel)
    all_three = operand_types(
        lambda *given: gradients(matmul.einsum, spec, *given), x, kernel, cotangent
    )
    assert all_three == [forward] * 3


def test_a_weight_gradient_by_hand():
    """Rows (1, 2) and (3, 4), output gradients (10, 0) and (0, 1): x^T y'."""
    x, kernel = jnp.array([[[1.0, 2], [3, 4]]]), jnp.zeros((2, 2))
    cotangent = jnp.array([[[10.0, 0], [0, 1]]])
    _, _, gradient = gradients(matmul.transposing_matmul, "BTD,DF->BTF", x, kernel, cotangent)
    np.testing.assert_array_equal(gradient, [[10, 3], [20, 4]])


@pytest.mark.parametrize("spec", MAPS[1:3])
def test_every_other_transformation_is_that_of_the_einsum(spec):
    """Forward mode, both modes together, gradients of gradients, and a batch of them."""
    x, kernel, cotangent = arrays(spec)

    def loss(product):
        return lambda x, kernel: (jnp.sin(product(spec, x, kernel)) * cotangent).sum()

    def all_of(product):
        f = loss(product)
        forward = jax.jvp(f, (x, kernel), (jnp.cos(x), jnp.sin(kernel)))
        slope = lambda x, kernel: jax.grad(f, 1)(x, kernel)  # noqa: E731
        curved = jax.jvp(slope, (x, kernel), (jnp.cos(x), jnp.sin(kernel)))
        twice = jax.grad(lambda x, kernel: (slope(x, kernel) ** 2).sum(), (0, 1))(x, kernel)
        many = jax.vmap(jax.grad(f, (0, 1)), (0, None))(jnp.stack([x, 2 * x]), kernel)
        each = jax.vmap(jax.grad(f, (0, 1)))(jnp.stack([x, 2 * x]), jnp.stack([kernel, -kernel]))
        return forward, curved, twice, many, each

    ours, theirs = map(jax.jit(all_of, static_argnums=0), (matmul.transposing_matmul, plain))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", OTHERS)
def test_an_einsum_that_is_no_linear_map_is_jaxs_in_float32(spec):
    x, kernel, cotangent = arrays(spec)
    jaxpr = jax.make_jaxpr(lambda *both: matmul.einsum(spec, *both))(x, kernel)
    assert "custom_jvp" not in str(jaxpr)
    expected = gradients(plain, spec, x, kernel, cotangent)
    ours = gradients(matmul.einsum, spec, x, kernel, cotangent)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


ATTENTION = {SCORES: linear.wide_einsum, SUMS: linear.einsum, "BTD,VD->BTV": linear.wide_einsum}
"""The einsums of two activations, and the logits."""


@pytest.mark.parametrize(
    ("spec", "platform"),
    [(SCORES, "cpu"), (SUMS, "cpu"), (SCORES, "cuda"), ("BTD,VD->BTV", "cuda")],
)
def test_bfloat16_einsums_of_activations_are_those_of_jax(spec, platform):
    """In values and gradients, also of second order and of a batch."""
    dtype = jnp.bfloat16 if spec == SUMS else jnp.float32
    x, y, cotangent = arrays(spec, "bfloat16")

    def all_of(product):
        def loss(x, y):
            return (jnp.sin(product(spec, x, y).astype("float32")) * cotangent).sum()

        def slope(x, y):
            return (jax.grad(loss, 1)(x, y).astype("float32") ** 2).sum()

        gradients = jax.grad(loss, (0, 1))
        many = jax.vmap(gradients)(jnp.stack([x, 2 * x]), jnp.stack([y, -y]))
        return product(spec, x, y), gradients(x, y), jax.grad(slope, (0, 1))(x, y), many

    reference = functools.partial(jnp.einsum, preferred_element_type=dtype)
    with compiling_for(platform):
        found = jax.jit(all_of, static_argnums=0)(ATTENTION[spec])
    expected = jax.jit(all_of, static_argnums=0)(reference)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        one, other = one.astype("float32"), other.astype("float32")
        assert jnp.linalg.norm(one - other) < 0.02 * jnp.linalg.norm(other)


@pytest.mark.parametrize("spec", [SCORES, SUMS])
def test_xla_multiplies_in_bfloat16_in_attention_if_it_does_in_a_matmul(spec):
    """Forward and backward; which depends on the processor."""
    sizes = {"B": 2, "T": 256, "S": 512, "N": 2, "H": 64}
    inputs, output = spec.split("->")
    x, y, cotangent = (
        jnp.ones([sizes[axis] for axis in axes], "bfloat16")
        for axes in (*inputs.split(","), output)
    )
    matrices = [jnp.ones(shape, "bfloat16") for shape in ((256, 512), (512, 64))]
    (expected,) = operand_types(functools.partial(matmul.einsum, "xr,ry->xy"), *matrices)

    def with_gradients(x, y, cotangent):
        z, pull = jax.vjp(functools.partial(ATTENTION[spec], spec), x, y)
        return z, pull(cotangent.astype(z.dtype))

    assert operand_types(with_gradients, x, y, cotangent) == [expected] * 3


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(("spec", "dtype"), [("BTD,DF->BTF", "float32"), (SUMS, "bfloat16")])
def test_accelerators_compute_jaxs_einsum(platform, spec, dtype):
    def program():
        step = functools.partial(gradients, linear.einsum, spec)
        return str(jax.make_jaxpr(step)(*arrays(spec, dtype)))

    words = ("optimization_barrier", "layout_constraint")
    assert any(word in program() for word in words)
    with compiling_for(platform):
        assert not any(word in program() for word in words)
        assert "custom" not in program()


@pytest.mark.parametrize("spec", MAPS)
def test_the_compiled_weight_gradient_reads_both_operands_along_their_rows(spec):
    """In the compiled program no operand is read across its rows."""
    given = arrays(spec)

    def weight_gradient(x, kernel, cotangent):
        return jax.vjp(lambda kernel: matmul.einsum(spec, x, kernel), kernel)[1](cotangent)[0]

    program = jax.jit(weight_gradient).lower(*given).compile().as_text()
    matmuls = re.findall(
        r" dot\(.*lhs_contracting_dims=\{(\d)\}, rhs_contracting_dims=\{(\d)\}", program
    )
    assert matmuls == [("1", "0")]


def test_no_float32_product_is_transposed_in_bfloat16():
    """XLA would transpose its factors instead, into a matmul that its CPU backend cannot run."""
    x, table = random("BTD", 0, "bfloat16"), random("VD", 1, "bfloat16")
    total = lambda table: linear.wide_einsum("BTD,VD->BTV", x, table).sum()  # noqa: E731
    program = jax.make_jaxpr(jax.grad(total))(table)
    transposes = [
        each.invars[0].aval.dtype
        for each in oracle.equations(program.jaxpr)
        if each.primitive.name == "transpose"
    ]
    assert transposes and set(transposes) == {jnp.dtype("bfloat16")}
