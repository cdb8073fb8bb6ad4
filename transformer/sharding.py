# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and which logical axis of a parameter lies along which of its axes.

Parameters declare logical axes once, where they are made; rules map those names to the mesh axes
``data`` and ``model``. A mesh of one device is a mesh like any other.
"""

import math
import re
from typing import NamedTuple, TypeVar

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.arrays import Params
from transformer.config import LOGICAL_AXES, MESH_AXES, ParallelConfig
from transformer.errors import InputError
from transformer.training.step import TrainState

Placed = TypeVar("Placed")


class Rule(NamedTuple):
    """A logical axis of parameters is divided along an axis of the mesh, or along none."""

    logical: str
    mesh: str | None
    origin: str
    """The field that says so."""

    def __str__(self) -> str:
        return f"{self.logical}={self.mesh or ''} ({self.origin})"


Rules = tuple[Rule, ...]

_FSDP = {"embed": "data"}
_TENSOR = {"vocab": "model", "source_vocab": "model", "heads": "model", "mlp": "model"}

PRESETS: dict[str, tuple[tuple[str, str | None], ...]] = {
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
    """A rule for each logical axis: the preset's, or in its place that of ``parallel.rules``."""
    own = dict(rule.split("=") for rule in config.rules)
    preset = f"parallel.preset={config.preset!r}"
    return tuple(
        Rule(axis, own[axis] or None, "parallel.rules") if axis in own else Rule(axis, to, preset)
        for axis, to in PRESETS[config.preset]
    )


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
        MESH_AXES,
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices[:needed],
    )


def shardings_of(boxed: Params, mesh: Mesh, rules: Rules) -> Params:
    """A sharding for every parameter, by the logical axes that it still carries.

    Args:
      boxed: the abstract result of a model's ``init``.
      mesh: from `make_mesh`.
      rules: from `rules_of`.

    Raises:
      InputError: where two rules divide a parameter along one axis of the mesh, or a rule divides
        an axis of a parameter that the mesh does not divide.
    """
    parameters = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=_is_boxed)
    for path, leaf in parameters:
        _require_one_rule_a_mesh_axis(path, leaf, rules)
    _require_divisible(parameters, mesh, rules)

    def place(leaf: nn.LogicallyPartitioned) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(rule.mesh for rule in _rules_for(leaf, rules))))

    return jax.tree.map(place, boxed, is_leaf=_is_boxed)


def shardings_of_state(boxed: TrainState, mesh: Mesh, rules: Rules) -> TrainState:
    """A sharding for every array of a training state.

    What an optimizer keeps in the shape of a parameter (moments, averages) lies where the parameter
    does; all the rest, for example factored moments and counters, is on every device.

    Args:
      boxed: the abstract result of `training.init_state`.
      mesh: from `make_mesh`.
      rules: from `rules_of`.

    Raises:
      InputError: as `shardings_of`.
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


def gathered(shardings: Params) -> Params:
    """How parameters lie while they are used: what is divided along ``data``, as the rows of a
    batch are, is whole again, so that each device computes its own rows and no others.
    """

    def place(sharding: NamedSharding) -> NamedSharding:
        axes = (None if axis == "data" else axis for axis in sharding.spec)
        return NamedSharding(sharding.mesh, PartitionSpec(*axes))

    return jax.tree.map(place, shardings)


def _is_boxed(leaf: object) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)


def _rules_for(leaf: nn.LogicallyPartitioned, rules: Rules) -> list[Rule]:
    """The rule for each axis of a parameter."""
    by_axis = {rule.logical: rule for rule in rules}
    unknown = [name for name in leaf.names if name not in by_axis]
    assert not unknown, f"a parameter declares {unknown}, but LOGICAL_AXES are {LOGICAL_AXES}"
    return [by_axis[name] for name in leaf.names]


def _require_one_rule_a_mesh_axis(path: tuple, leaf: nn.LogicallyPartitioned, rules: Rules) -> None:
    """An axis of the mesh can divide a parameter once only."""
    taken: dict[str, Rule] = {}
    for rule in _rules_for(leaf, rules):
        if rule.mesh is None:
            continue
        if rule.mesh in taken:
            raise InputError(
                f"the rules {taken[rule.mesh]} and {rule} both divide {_named(path, leaf)} along "
                f"the mesh axis {rule.mesh}, which can divide it once; leave one of the two axes "
                f"whole, for example with {_left_whole([taken[rule.mesh].logical], rules)}"
            )
        taken[rule.mesh] = rule


def _require_divisible(parameters: list[tuple], mesh: Mesh, rules: Rules) -> None:
    """Names, for each rule that cannot be followed, the first parameter where it cannot."""
    failing: dict[Rule, str] = {}
    for path, leaf in parameters:
        for rule, width in zip(_rules_for(leaf, rules), leaf.value.shape, strict=True):
            if rule.mesh is not None and width % mesh.shape[rule.mesh]:
                failing.setdefault(
                    rule,
                    f"parallel.{rule.mesh} = {mesh.shape[rule.mesh]} does not divide "
                    f"{rule.logical} = {width} of {_named(path, leaf)}, as the rule {rule} asks",
                )
    if failing:
        whole = _left_whole([rule.logical for rule in failing], rules)
        raise InputError(
            "; ".join(failing.values())
            + ". Choose another number of devices or another width, or leave such an axis whole on "
            f"every device with {whole}"
        )


def _named(path: tuple, leaf: nn.LogicallyPartitioned) -> str:
    """A parameter's name, shape and logical axes."""
    axes = ", ".join(leaf.names)
    return f"parameter {_name(path)} {list(leaf.value.shape)} ({axes})"


def _left_whole(axes: list[str], rules: Rules) -> str:
    """The flag that leaves these logical axes whole and keeps the other rules given."""
    kept = [
        f"{rule.logical}={rule.mesh or ''}"
        for rule in rules
        if rule.origin == "parallel.rules" and rule.logical not in axes
    ]
    given = (*kept, *(f"{axis}=" for axis in axes))
    return f'--config.parallel.rules="{given!r}"'


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch are divided along ``data``."""
    return NamedSharding(mesh, PartitionSpec("data"))


def require_rows(shapes: list[tuple[int, int]], mesh: Mesh, parts: int) -> None:
    """Raises an InputError unless every device has as many rows of each micro-batch.

    Args:
      shapes: (rows, length) of every batch.
      mesh: from `make_mesh`.
      parts: micro-batches that each batch is computed in.
    """
    data = mesh.shape["data"]
    for rows, length in shapes:
        if rows % (data * parts):
            raise InputError(
                f"batches of {rows} x {length} tokens cannot be divided over parallel.data = "
                f"{data} devices"
                + (f" in {parts} micro-batches" if parts > 1 else "")
                + f": {rows} rows are no multiple of {data * parts}; give data.row_multiple such a "
                "multiple (data.tokens_per_batch must be at least data.max_length times as many), "
                "or lower parallel.data" + (" or training.micro_batches" if parts > 1 else "")
            )


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


def own_rows(where: NamedSharding, rows: int) -> np.ndarray:
    """Which of a batch's rows lie on this process's devices, ascending."""
    parts = where.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[part] for (part,) in parts]))


def place_rows(tree: Placed, where: NamedSharding, rows: int) -> Placed:
    """A batch of so many rows on the mesh, of which each process gives its `own_rows`."""
    if where.is_fully_addressable:
        return jax.device_put(tree, where)
    own = own_rows(where, rows)

    def placed(leaf: np.ndarray) -> jax.Array:
        def of_device(index: tuple[slice, ...]) -> np.ndarray:
            begin, end, _ = index[0].indices(rows)
            return leaf[np.searchsorted(own, begin) : np.searchsorted(own, end)]

        return jax.make_array_from_callback((rows, *leaf.shape[1:]), where, of_device)

    return jax.tree.map(placed, tree)


def describe(state: TrainState) -> str:
    """A table of the parameters and how they lie, and the bytes that each device holds.

    Layers that are alike share a line, ``encoder/layer_{0..5}/...``, its bytes written as ``6 x``
    those of one.

    Args:
      state: abstract or not; every array has a `NamedSharding`.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    alike: dict[tuple, list[str]] = {}
    for path, leaf in leaves:
        name = _name(path)
        alike.setdefault((_LAYER.sub("layer_*", name), _columns(leaf)), []).append(name)
    rows = [("parameter", "shape", "dtype", "divided along", "bytes on a device")]
    for (name, (*columns, size)), names in alike.items():
        if len(names) == 1:
            rows.append((names[0], *columns, size))
        else:
            numbers = [int(_LAYER.search(each)[1]) for each in names]
            layers = f"layer_{{{min(numbers)}..{max(numbers)}}}"
            rows.append((name.replace("layer_*", layers), *columns, f"{len(names)} x {size}"))
    *widths, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    line = "  ".join([*(f"{{:<{width}}}" for width in widths), f"{{:>{last}}}"])
    mesh = " x ".join(f"{axis}={size}" for axis, size in leaves[0][1].sharding.mesh.shape.items())
    count = sum(leaf.size for _, leaf in leaves)
    held, whole = (sum(map(_bytes_held, jax.tree.leaves(tree))) for tree in (state.params, state))
    return "\n".join(
        [
            f"mesh {mesh}",
            *(line.format(*row) for row in rows),
            f"{count:,} parameters; each device holds {held:,} bytes of parameters and {whole:,} "
            "bytes of training state",
        ]
    )


_LAYER = re.compile(r"layer_(\d+)")


def _columns(leaf: jax.ShapeDtypeStruct | jax.Array) -> tuple[str, ...]:
    """Shape, dtype, mesh axes and bytes on one device, as text."""
    axes = ", ".join(axis or "-" for axis in leaf.sharding.spec)
    return str(list(leaf.shape)), str(leaf.dtype), f"[{axes}]", f"{_bytes_held(leaf):,}"


def _bytes_held(leaf: jax.ShapeDtypeStruct | jax.Array) -> int:
    """Bytes of an array on each of its devices."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _name(path: tuple) -> str:
    """A parameter's place in the model, for example ``encoder/layer_0/self_attention/query``."""
    return "/".join(str(key.key) for key in path)
