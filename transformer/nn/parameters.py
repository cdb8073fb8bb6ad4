# SPDX-License-Identifier: Apache-2.0
"""Declarations of parameters: an array with its logical axes and its kind.

``model.init`` gives plain arrays. `declarations` gives what their declarations say, which sharding
rules, weight decay, Muon and the cast for inference read.
"""

import contextvars
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import flax.struct
import jax
from jax.nn.initializers import variance_scaling

from transformer.arrays import Array, Key, Params

Kind = Literal["kernel", "embedding", "bias", "scale"]
"""kernel: of a linear map. embedding: a lookup table. bias: added. scale: of a layer norm."""

Initializer = Callable[[Key[Array, ""], tuple[int, ...]], Array]


_declaring = contextvars.ContextVar("declaring", default=False)


@flax.struct.dataclass
class Parameter(nn.LogicallyPartitioned):
    """A parameter's shape with what its declaration says about it; `flax.linen.unbox` removes it.

    `names` are its logical axes, which `sharding` maps to mesh axes.
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
      axes: the logical name of each axis.
      initializer: from a key and a shape to the initial array.
      shape: shape of the array.
      num_input_axes: number of leading axes of a kernel that are contracted with its input.
    """
    if not _declaring.get():
        return module.param(name, initializer, shape)
    inputs = num_input_axes if kind == "kernel" else 0

    def boxed(key: Key[Array, ""], shape: tuple[int, ...]) -> Parameter:
        return Parameter(initializer(key, shape), axes, kind=kind, num_input_axes=inputs)

    return module.param(name, boxed, shape)


def declarations(init: Callable[[], Any]) -> Params:
    """The tree of `Parameter` declarations, with shapes and dtypes, of what `init` initializes.

    Args:
      init: calls the ``init`` of a module; it is traced, not computed.
    """
    token = _declaring.set(True)
    try:
        return jax.eval_shape(lambda: init())["params"]
    finally:
        _declaring.reset(token)


def glorot_uniform(in_axis: int | tuple[int, ...], out_axis: int | tuple[int, ...]) -> Initializer:
    """Uniform with variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis=in_axis, out_axis=out_axis)


def is_parameter(node: object) -> bool:
    """The `is_leaf` of tree maps over metadata."""
    return isinstance(node, Parameter)
