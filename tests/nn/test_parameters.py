# SPDX-License-Identifier: Apache-2.0
"""Every parameter is declared with its logical axes and its kind."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.config import TransformerConfig
from transformer.models import protocol
from transformer.nn import parameters as declaring
from transformer.nn.parameters import Parameter, declare, is_parameter

SMALL = TransformerConfig(
    vocab_size=9, num_layers=1, d_model=8, d_ff=12, num_heads=2, attention_bias=True, d_v=3
)


def declarations(config=SMALL):
    """Every parameter's declaration, by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(
        protocol.parameter_metadata(protocol.build(config)), is_leaf=is_parameter
    )
    return {"/".join(key.key for key in path): leaf for path, leaf in leaves}


class Linear(nn.Module):
    """One kernel with two input axes and one bias."""

    @nn.compact
    def __call__(self, x):
        """A linear map of the last two axes."""
        ones = nn.initializers.ones
        axes = ("heads", "kv", "embed")
        kernel = declare(self, "kernel", "kernel", axes, ones, (2, 3, 5), num_input_axes=2)
        bias = declare(self, "bias", "bias", ("embed",), ones, (5,))
        return jnp.einsum("BNH,NHD->BD", x, kernel) + bias


def test_a_declaration_says_what_a_parameter_is_and_init_gives_plain_arrays():
    module, x = Linear(), jnp.ones((1, 2, 3))
    params = module.init(jax.random.key(0), x)["params"]
    declared = declaring.declarations(lambda: module.init(jax.random.key(0), x))
    kernel, bias = declared["kernel"], declared["bias"]
    assert (kernel.names, kernel.kind, kernel.num_input_axes) == (
        ("heads", "kv", "embed"),
        "kernel",
        2,
    )
    assert (bias.names, bias.kind, bias.num_input_axes) == (("embed",), "bias", 0)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    assert module.apply({"params": params}, x).tolist() == [[7.0] * 5]


def test_metadata_holds_shapes_and_no_arrays():
    table = declarations()["embedding/table"]
    assert isinstance(table, Parameter)
    assert (table.value.shape, table.value.dtype) == ((9, 8), jnp.float32)
    assert isinstance(table.value, jax.ShapeDtypeStruct)


def test_every_parameter_of_the_transformer_has_the_kind_of_its_formula():
    kinds = {path: parameter.kind for path, parameter in declarations().items()}
    attention = {
        **dict.fromkeys(["query", "key", "value", "output"], "kernel"),
        **dict.fromkeys(["query_bias", "key_bias", "value_bias", "output_bias"], "bias"),
    }
    network = {
        **dict.fromkeys(["kernel_in", "kernel_out"], "kernel"),
        **dict.fromkeys(["bias_in", "bias_out"], "bias"),
    }
    norm = {"norm/scale": "scale", "norm/bias": "bias"}
    layer = {"self_attention": attention, "feed_forward": network}
    layer |= {f"{name}_residual": norm for name in ("self_attention", "feed_forward")}
    cross = {"cross_attention": attention, "cross_attention_residual": norm}
    expected = {"embedding/table": "embedding"}
    for stack, modules in (("encoder", layer), ("decoder", layer | cross)):
        for module, parameters in modules.items():
            for name, kind in parameters.items():
                expected[f"{stack}/layer_0/{module}/{name}"] = kind
    assert kinds == expected


def test_position_tables_are_an_embedding_if_added_to_tokens_and_a_bias_if_added_to_scores():
    learned = declarations(SMALL.replace(positions="learned"))["embedding/positions"]
    assert (learned.kind, learned.names) == ("embedding", ("position", "embed"))
    relative = declarations(SMALL.replace(positions="t5"))["decoder/position_scheme/bias"]
    assert (relative.kind, relative.names) == ("bias", ("position", "heads"))


def test_only_the_attention_output_contracts_two_axes():
    inputs = {
        path.rpartition("/")[2]: parameter.num_input_axes
        for path, parameter in declarations().items()
        if parameter.kind == "kernel"
    }
    ones = dict.fromkeys(["query", "key", "value", "kernel_in", "kernel_out"], 1)
    assert inputs == {**ones, "output": 2}


def test_kernels_and_embeddings_are_cast_and_biases_and_scales_are_not():
    half = protocol.build(SMALL.replace(compute_dtype="bfloat16"))
    metadata = protocol.parameter_metadata(half)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), nn.unbox(metadata))
    cast = half.cast_params(params)
    dtypes = {
        parameter.kind: set() for parameter in jax.tree.leaves(metadata, is_leaf=is_parameter)
    }
    jax.tree.map(
        lambda parameter, leaf: dtypes[parameter.kind].add(leaf.dtype.name),
        *(metadata, cast),
        is_leaf=is_parameter,
    )
    assert dtypes == {
        "kernel": {"bfloat16"},
        "embedding": {"bfloat16"},
        "bias": {"float32"},
        "scale": {"float32"},
    }
    assert protocol.build(SMALL).cast_params(params) is params
