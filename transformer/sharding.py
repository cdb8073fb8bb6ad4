# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and which logical axis of a parameter lies along which of its axes.

Parameters declare logical axes once, where they are made; a preset maps those names to the mesh
axes ``data`` and ``model``. A mesh of one device is a mesh like any other.
"""

from typing import TypeVar

import flax.linen as nn
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.arrays import Params
from transformer.config import ParallelConfig
from transformer.errors import InputError
from transformer.training import TrainState

Rules = tuple[tuple[str, str | None], ...]
Placed = TypeVar("Placed")

LOGICAL_AXES = ("vocab", "position", "embed", "heads", "kv", "mlp", "norm")
"""What the axes of parameters are called where they are declared."""
MESH_AXES = ("data", "model")

_FSDP = {"embed": "data"}
_TENSOR = {"vocab": "model", "heads": "model", "mlp": "model"}

PRESETS: dict[str, Rules] = {
    name: tuple((axis, divided.get(axis)) for axis in LOGICAL_AXES)
    for name, divided in {
        "replicated": {},
        "fsdp": _FSDP,
        "tensor": _TENSOR,
        "fsdp_tensor": _FSDP | _TENSOR,
    }.items()
}
"""replicated: every device holds everything. fsdp: parameters are divided along ``data``. tensor:
heads, d_ff and vocabulary are divided along ``model``. fsdp_tensor: both.
"""


def rules_of(config: ParallelConfig) -> Rules:
    """The preset's rules, with those of ``parallel.rules`` in their place."""
    own = dict(rule.split("=", 1) for rule in config.rules)
    return tuple((axis, own.get(axis, to) or None) for axis, to in PRESETS[config.preset])


def make_mesh(config: ParallelConfig) -> Mesh:
    """The mesh ``data`` x ``model`` over the first devices there are.

    Raises:
      InputError: when there are fewer devices.
    """
    needed, devices = config.data * config.model, jax.devices()
    if needed > len(devices):
        raise InputError(
            f"parallel.data x parallel.model = {config.data} x {config.model} needs {needed} "
            f"devices, but there are {len(devices)} ({devices[0].platform}); lower one of the two"
        )
    # Linen's partitioning works with Auto axes only; jax.make_mesh makes Explicit ones by default.
    return jax.make_mesh(
        (config.data, config.model),
        ("data", "model"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices[:needed],
    )


def shardings_of(boxed: Params, mesh: Mesh, rules: Rules) -> Params:
    """A sharding for every array of a tree whose parameters still carry their logical axes.

    Args:
      boxed: the abstract result of a model's ``init``.
      mesh: from `make_mesh`.
      rules: from `rules_of`.
    """
    specs = nn.get_partition_spec(boxed)
    return nn.logical_to_mesh_sharding(specs, mesh, rules)


def shardings_of_state(boxed: TrainState, mesh: Mesh, rules: Rules) -> TrainState:
    """A sharding for every array of a training state.

    What an optimizer keeps in the shape of a parameter (moments, averages) lies where the parameter
    does; all the rest, for example factored moments and counters, is on every device.

    Args:
      boxed: the abstract result of `training.init_state`.
      mesh: from `make_mesh`.
      rules: from `rules_of`.
    """
    of_params = shardings_of(boxed.params, mesh, rules)
    shapes = jax.tree_util.tree_leaves_with_path(nn.unbox(boxed.params))
    places = {
        path: (leaf.shape, sharding)
        for (path, leaf), sharding in zip(shapes, jax.tree.leaves(of_params), strict=True)
    }

    def place(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        for begin in range(len(path)):
            shape, sharding = places.get(path[begin:], (None, None))
            if shape == leaf.shape:
                return sharding
        return replicated(mesh)

    everything = jax.tree_util.tree_map_with_path(place, nn.unbox(boxed))
    return everything.replace(params=of_params)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch are divided along ``data``."""
    return NamedSharding(mesh, PartitionSpec("data"))


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def place(tree: Placed, where: NamedSharding) -> Placed:
    """Host arrays as arrays on the mesh. Where the mesh spans several processes, each of them has
    the whole arrays and takes its own part.
    """
    if where.is_fully_addressable:
        return jax.device_put(tree, where)
    return jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, where, lambda index: leaf[index]),
        tree,
    )


def describe(params: Params, shardings: Params) -> str:
    """One line a parameter: name, shape, where it lies, and its bytes on one device."""
    lines = []
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True):
        name = "/".join(str(key.key) for key in path)
        held = sharding.shard_shape(leaf.shape)
        size = leaf.dtype.itemsize
        for width in held:
            size *= width
        lines.append(f"{name:60} {str(leaf.shape):20} {str(sharding.spec):30} {size:>12,} B")
    return "\n".join(lines)
