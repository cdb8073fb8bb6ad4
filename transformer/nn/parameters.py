# SPDX-License-Identifier: Apache-2.0
"""Declarations of parameters: an array with its logical axes and its kind.

Sharding rules, weight decay, Muon and the cast for inference read this metadata. No code matches on
a parameter's name. `models.base.parameter_metadata` returns the metadata of a model.
"""

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import flax.struct
import jax
from jax.nn.initializers import variance_scaling

from transformer.arrays import Array, Key, Params

Kind = Literal["kernel", "embedding", "bias", "scale"]
"""kernel: of a linear map. embedding: a lookup table. bias: added. scale: of a layer norm."""

Initializer = Callable[[Key[Array, ""], tuple[int, ...]], Array]


@flax.struct.dataclass
class Parameter(nn.LogicallyPartitioned):
    """A parameter's value or shape, boxed with what its declaration says about it.

    `names` are its logical axes, which `sharding` maps to mesh axes. Linen unboxes the value when a
    module reads it; `flax.linen.unbox` does so for a tree.
    """

    kind: Kind = flax.struct.field(pytree_node=False, default="kernel")
    num_input_axes: int = flax.struct.field(pytree_node=False, default=0)
    """The number of leading axes that a kernel contracts with its input; 0 for other kinds."""

    @property
    def is_weight(self) -> bool:
        """Whether this is a kernel or an embedding: decayed, and cast to the compute dtype."""
        return self.kind in ("kernel", "embedding")


def declare(
    module: nn.Module,
    name: str,
    kind: Kind,
    axes: tuple[str, ...],
    initializer: Initializer,
    shape: tuple[int, ...],
    *,
    num_input_axes: int = 1,
) -> Array:
    """Declare a float32 parameter of a Linen module and return its array.

    Args:
      module: the module that owns the parameter; this is called from its `setup` or `__call__`.
      name: the last part of the parameter's path.
      kind: see `Kind`.
      axes: the logical name of each axis, from `config.LOGICAL_AXES`.
      initializer: from a key and a shape to the initial array.
      shape: of the array.
      num_input_axes: of a kernel, the number of leading axes that are contracted with its input.
    """
    inputs = num_input_axes if kind == "kernel" else 0

    def boxed(key: Key[Array, ""], shape: tuple[int, ...]) -> Parameter:
        return Parameter(initializer(key, shape), axes, kind=kind, num_input_axes=inputs)

    return module.param(name, boxed, shape)


def glorot_uniform(in_axis: int | tuple[int, ...], out_axis: int | tuple[int, ...]) -> Initializer:
    """Uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis=in_axis, out_axis=out_axis)


def is_parameter(node: object) -> bool:
    """The `is_leaf` of tree maps over metadata."""
    return isinstance(node, Parameter)


def cast_params(params: Params, metadata: Params, dtype: str) -> Params:
    """Cast kernels and embeddings to the compute dtype once, not at every call.

    The model's results are the same with either. Biases and scales stay float32, the dtype in which
    they are added and multiplied.
    """
    if dtype == "float32":
        return params
    return jax.tree.map(
        lambda parameter, leaf: leaf.astype(dtype) if parameter.is_weight else leaf,
        *(metadata, params),
        is_leaf=is_parameter,
    )
