# SPDX-License-Identifier: Apache-2.0
"""Taps: reading and patching activations, in every transformation, changes nothing else."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from transformer.kernels import KERNELS
from transformer.models import protocol
from transformer.nn.taps import Patch, tap


class Twice(nn.Module):
    """2 (2 x + w) + w, with a tap that is passed twice."""

    @nn.compact
    def __call__(self, x):
        """Apply the map two times."""
        weight = self.param("weight", nn.initializers.ones, ())
        for _ in range(2):
            x = tap(self, "y", 2 * x + weight)
        return x


VARIABLES = {"params": {"weight": jnp.array(1.0)}}


def add(number):
    """A patch: a function that is a pytree."""
    return jax.tree_util.Partial(jnp.add, number)


# The mechanism.


def test_a_trace_has_a_value_for_each_time_that_a_tap_is_passed():
    y, tapped = Twice().apply(VARIABLES, jnp.array(3.0), mutable=["trace"])
    assert y == 15
    assert tapped == {"trace": {"y": (7, 15)}}


def test_one_patch_acts_each_time_and_a_tuple_has_one_for_each_time():
    def call(patch, **options):
        return Twice().apply({**VARIABLES, "patches": {"y": patch}}, jnp.array(3.0), **options)

    assert call(add(10)) == 2 * 17 + 1 + 10
    y, tapped = call((add(10), add(0)), mutable=["trace"])
    assert y == 2 * 17 + 1
    assert tapped["trace"]["y"] == (17, 35)  # after the patches
    with pytest.raises(ValueError, match=r"patches of 'y' by number need mutable=\['trace'\]"):
        call((add(10), add(0)))


def test_a_patch_takes_the_value_where_the_mask_is_true_in_the_dtype_of_the_activation():
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]], jnp.bfloat16)
    patched = Patch(jnp.array([[True], [False]]), 10 * x.astype(jnp.float32))(x)
    assert patched.dtype == jnp.bfloat16
    np.testing.assert_array_equal(patched, [[10, 20], [3, 4]])


def test_fresh_variables_are_parameters_alone(model, source, target_in):
    variables = jax.eval_shape(model.init, jax.random.key(0), source, target_in)
    assert variables.keys() == {"params"}


# In a model.


@pytest.fixture(scope="module")
def model(shallow):
    """One encoder layer of three heads, and one decoder layer of two."""
    return protocol.build(shallow[0].config.replace(decoder_layers=1))


@pytest.fixture(scope="module")
def params(model):
    """Random parameters."""
    return oracle.random_params(model, seed=0)


@pytest.fixture(scope="module")
def collection():
    """Patches of four taps: of one head, of weights, of a network, of one residual stream."""
    encoder_head = Patch(jnp.arange(3)[:, None] == 1, jnp.ones(()))
    decoder_head = Patch(jnp.arange(2)[:, None, None] == 1, jnp.array(0.2))
    return {
        "encoder": {
            "layer_0": {
                "self_attention": {"z": encoder_head},
                "feed_forward": {"hidden": add(0.5)},
            },
        },
        "decoder": {
            "layer_0": {"cross_attention": {"weights": decoder_head}},
            "residual": (add(1.0), add(0.0)),
        },
    }


@pytest.fixture(scope="module")
def call(model, params, source, target_in):
    """(patches, params) -> logits and trace."""

    def call(patches, params=params):
        variables = {"params": params, "patches": patches}
        logits, tapped = model.apply(variables, source, target_in, mutable=["trace"])
        return logits, tapped["trace"]

    return call


def test_without_collections_the_program_is_that_of_a_traced_call(
    model, params, source, target_in, call
):
    jaxpr = str(jax.make_jaxpr(lambda p: model.apply({"params": p}, source, target_in))(params))
    noted = str(jax.make_jaxpr(lambda p: call({}, p)[0])(params))
    assert jaxpr == noted  # reading costs nothing either, where the formula is used anyway


def test_patched_taps_under_vmap_and_grad_are_those_of_a_compiled_call(
    model, params, source, target_in, call, collection
):
    logits, trace = jax.jit(call)(collection)
    plain = jax.jit(lambda params: model.apply({"params": params}, source, target_in))(params)
    assert float(jnp.abs(logits - plain).max()) > 1e-2
    many = jax.jit(jax.vmap(call, in_axes=(0, None)))(
        jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), collection), params
    )
    jax.tree.map(
        lambda one, same: np.testing.assert_allclose(one[1], same, rtol=1e-5, atol=1e-5),
        *(many, (logits, trace)),
    )
    value = trace["encoder"]["layer_0"]["self_attention"]["z"][0]
    np.testing.assert_array_equal(value[:, :, 1], 1)

    @jax.jit
    @jax.value_and_grad
    def energy(number):
        patched = {**collection, "encoder": {"layer_0": {"feed_forward": {"hidden": add(number)}}}}
        return jnp.square(call(patched)[0]).mean()

    step = 1e-2
    slope = (energy(0.5 + step)[0] - energy(0.5 - step)[0]) / (2 * step)
    assert float(energy(0.5)[1]) == pytest.approx(float(slope), rel=0.02)


def test_each_application_of_a_shared_layer_has_a_trace_and_a_patch(model, source):
    model = protocol.build(model.config.replace(shared_layers=True, encoder_layers=3))
    params = oracle.random_params(model, seed=0)

    @jax.jit
    def encode(patches):
        variables = {"params": params, "patches": {"encoder": {"layer_0": patches}}}
        return model.apply(variables, source, method="encode", mutable=["trace"])

    memory, tapped = encode({})
    outputs = tapped["trace"]["encoder"]["layer_0"]["feed_forward"]["output"]
    assert len(outputs) == 3
    zero = Patch(jnp.array(True), jnp.array(0.0))
    keep = Patch(jnp.array(False), jnp.array(0.0))
    changed, after = encode({"feed_forward": {"output": (keep, zero, keep)}})
    after = after["trace"]["encoder"]["layer_0"]["feed_forward"]["output"]
    np.testing.assert_array_equal(after[0], outputs[0])
    np.testing.assert_array_equal(after[1], 0)
    assert (after[2] != outputs[2]).any() and (changed != memory).any()


# Kernels without weights.


def test_weights_that_are_read_or_patched_are_those_of_the_formula(
    monkeypatch, model, params, source, target_in
):
    """Whatever `model.attention_kernel` is; other patches leave the kernel."""

    @functools.partial(jax.jit, static_argnames=("kernel", "mutable"))
    def call(kernel, patches, mutable=False):
        other = protocol.build(model.config.replace(attention_kernel=kernel))
        variables = {"params": params, "patches": patches}
        return other.apply(variables, source, target_in, mutable=mutable)

    def patches(name):
        attention = {"self_attention": {name: add(0.1)}, "cross_attention": {name: add(0.1)}}
        encoder = {"layer_0": {"self_attention": {name: add(0.1)}}}
        return {"encoder": encoder, "decoder": {"layer_0": attention}}

    for kernel in ("chunked", "fused"):
        _, tapped = call(kernel, {}, mutable="trace")
        _, expected = call("einsum", {}, mutable="trace")
        jax.tree.map(np.testing.assert_array_equal, tapped, expected)
        used, function = set(), KERNELS[kernel]
        for name in ("scores", "weights", "value"):

            def noted(*arrays, name=name, used=used, function=function, **options):
                used.add(name)
                return function(*arrays, **options)

            monkeypatch.setitem(KERNELS, kernel, noted)
            changed = call(kernel, patches(name))
            np.testing.assert_allclose(changed, call("einsum", patches(name)), atol=1e-5)
        assert used == {"value"}


def test_linens_capture_of_intermediates_works_under_jit(model, params, source, target_in):
    @jax.jit
    def captured(params):
        options = {"capture_intermediates": True, "mutable": ["intermediates"]}
        logits, state = model.apply({"params": params}, source, target_in, **options)
        return logits, state["intermediates"]

    logits, intermediates = captured(params)
    assert len(jax.tree.leaves(intermediates)) > 5 * 3
    [output] = intermediates["__call__"]
    np.testing.assert_array_equal(output, logits)
