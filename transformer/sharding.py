# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and the sharding of parameters, training state and batches on it.

Parameters declare logical axes (``embed``, ``heads``, or any other name). Rules map them to the
mesh axes ``data`` and ``model``; an axis without a rule is not divided. One device is a mesh of
size 1 x 1.
"""

import functools
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.arrays import Array, Params
from transformer.config import MESH_AXES, ParallelConfig
from transformer.errors import InputError
from transformer.fields import nearest
from transformer.nn.parameters import Parameter, is_parameter

Tree = TypeVar("Tree")
State = TypeVar("State")

_FSDP = {"embed": "data"}
_TENSOR = dict.fromkeys(("vocab", "source_vocab", "heads", "kv_heads", "mlp"), "model")

PRESETS: dict[str, dict[str, str]] = {
    "replicated": {},
    "fsdp": _FSDP,
    "tensor": _TENSOR,
    "fsdp_tensor": _FSDP | _TENSOR,
}
"""Logical axis -> mesh axis; a logical axis without an entry is not divided."""


def rules_of(config: ParallelConfig) -> dict[str, str]:
    """The mesh axis of each logical axis that is divided, by ``parallel.rules`` or the preset."""
    overrides = dict(rule.split("=") for rule in config.rules)
    rules = PRESETS[config.preset] | overrides
    return {axis: mesh_axis for axis, mesh_axis in rules.items() if mesh_axis}


def require_axes(metadata: Params, config: ParallelConfig) -> None:
    """Refuse rules of axes that neither a parameter of the model nor a LoRA adapter has.

    `metadata` is from `models.protocol.parameter_metadata`, here and below.
    """
    parameters = jax.tree.leaves(metadata, is_leaf=is_parameter)
    axes = dict.fromkeys([*(axis for leaf in parameters for axis in leaf.names), "rank"])
    for rule in config.rules:
        axis = rule.partition("=")[0]
        if axis not in axes:
            raise InputError(
                f"parallel.rules has {rule!r}, but the model has no logical axis {axis!r}; did you "
                f"mean {nearest(axis, axes)!r}? (logical axes: {', '.join(axes)})"
            )


def make_mesh(config: ParallelConfig) -> Mesh:
    """The mesh ``data`` x ``model`` over the first devices; an InputError if there are too few."""
    needed, devices = config.data * config.model, jax.devices()
    if needed > len(devices):
        raise InputError(
            f"parallel.data x parallel.model = {config.data} x {config.model} needs {needed} "
            f"devices, but there are {len(devices)} ({devices[0].platform}); lower one of the two"
        )
    # Linen's partitioning needs Auto axes; jax.make_mesh makes Explicit ones by default.
    return jax.make_mesh(
        (config.data, config.model),
        MESH_AXES,
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices[:needed],
    )


def param_shardings(metadata: Params, mesh: Mesh, config: ParallelConfig) -> Params:
    """The sharding of every parameter.

    Raises:
      InputError: when two rules divide a parameter along the same mesh axis, or when a mesh axis
        does not divide the length of a parameter's axis.
    """
    rules = rules_of(config)
    failures: dict[str, str] = {}  # the first of each logical axis
    for path, leaf in jax.tree_util.tree_leaves_with_path(metadata, is_leaf=is_parameter):
        name, shape = "/".join(key.key for key in path), leaf.value.shape
        parameter = f"parameter {name} {[*shape]} ({', '.join(leaf.names)})"
        divided: dict[str, str] = {}
        for axis, length in zip(leaf.names, shape, strict=True):
            mesh_axis = rules.get(axis)
            if mesh_axis is None:
                continue
            first = divided.setdefault(mesh_axis, axis)
            if first != axis:
                raise InputError(
                    f"the rules {_rule(first, config)} and {_rule(axis, config)} both divide "
                    f"{parameter} along the mesh axis {mesh_axis}, which can divide only one of "
                    "them; leave one axis unsharded, for example with "
                    f"{_unsharded([first], config)}"
                )
            size = mesh.shape[mesh_axis]
            if length % size and axis not in failures:
                failures[axis] = (
                    f"parallel.{mesh_axis} = {size} does not divide {axis} = {length} of "
                    f"{parameter}, as required by the rule {_rule(axis, config)}"
                )
    if failures:
        raise InputError(
            f"{'; '.join(failures.values())}. Choose another number of devices or another size, or "
            f"leave the axis unsharded with {_unsharded([*failures], config)}"
        )

    def sharding(parameter: Parameter) -> NamedSharding:
        # For example [embed, heads, kv] -> PartitionSpec("data", "model", None).
        return NamedSharding(mesh, PartitionSpec(*(rules.get(axis) for axis in parameter.names)))

    return jax.tree.map(sharding, metadata, is_leaf=is_parameter)


def abstract_params(metadata: Params, mesh: Mesh, config: ParallelConfig) -> Params:
    """Shapes, dtypes and shardings of the parameters, without arrays; see `param_shardings`."""
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        nn.unbox(metadata),
        param_shardings(metadata, mesh, config),
    )


def state_shardings(state: State, of_params: Params) -> State:
    """The sharding of every array of a training state.

    Moments and averages in the shape of a parameter are sharded as the parameter. Everything else,
    for example factored moments and counters, is replicated. Of a `training.step.TrainState` only
    the shapes are read; `of_params` is from `param_shardings`.
    """
    everywhere = replicated(jax.tree.leaves(of_params)[0].mesh)
    parameters = jax.tree_util.tree_leaves_with_path(state.params)
    by_path = {
        path: (leaf.shape, sharding)
        for (path, leaf), sharding in zip(parameters, jax.tree.leaves(of_params), strict=True)
    }

    def sharding(path: tuple, leaf: jax.ShapeDtypeStruct | jax.Array) -> NamedSharding:
        # Moments are trees like the parameters: the path of a moment ends in that of a parameter.
        for begin in range(len(path)):
            shape, of_parameter = by_path.get(path[begin:], (None, None))
            if shape == leaf.shape:
                return of_parameter
        return everywhere

    return jax.tree_util.tree_map_with_path(sharding, state)


def all_gathered(of_params: Params) -> Params:
    """Shardings of the parameters after the FSDP all-gather: no axis is divided along ``data``.

    The rows of a batch are divided along ``data``. With parameters in this sharding each device
    computes its own rows, and activations are never sent between devices.
    """

    def without_data(sharding: NamedSharding) -> NamedSharding:
        axes = (None if axis == "data" else axis for axis in sharding.spec)
        return NamedSharding(sharding.mesh, PartitionSpec(*axes))

    return jax.tree.map(without_data, of_params)


def all_gather(params: Params, metadata: Params, of_params: Params, dtype: str) -> Params:
    """The parameters as the forward pass needs them: see `all_gathered`.

    Kernels are cast to the compute dtype first, so that in bfloat16 half as much is sent.
    Embeddings are not: their gradient is a sum over tokens, which has to be in float32.
    """

    def gather(
        parameter: Parameter, leaf: Array, sharded: NamedSharding, gathered: NamedSharding
    ) -> Array:
        if gathered == sharded:
            return leaf
        is_cast = parameter.kind == "kernel" and dtype == "bfloat16"
        return _cast_and_gather(leaf, dtype if is_cast else str(leaf.dtype), sharded, gathered)

    shardings = of_params, all_gathered(of_params)
    return jax.tree.map(gather, metadata, params, *shardings, is_leaf=is_parameter)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _cast_and_gather(
    leaf: Array, dtype: str, sharded: NamedSharding, gathered: NamedSharding
) -> Array:
    # Without the first constraint, XLA would cast what it has gathered.
    leaf = jax.lax.with_sharding_constraint(leaf.astype(dtype), sharded)
    return jax.lax.with_sharding_constraint(leaf, gathered)


def _cast_and_gather_forward(leaf: Array, *options: Any) -> tuple[Array, Array]:
    return _cast_and_gather(leaf, *options), leaf[:0]  # for the dtype of the gradient


def _cast_and_gather_backward(
    dtype: str, sharded: NamedSharding, gathered: NamedSharding, like: Array, gradient: Array
) -> tuple[Array]:
    # The derivative of a constraint is the same constraint, with which XLA would all-reduce each
    # part of the gradient of a tied table by itself.
    return (gradient.astype(like.dtype),)


_cast_and_gather.defvjp(_cast_and_gather_forward, _cast_and_gather_backward)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch `[B, ...]` are divided along ``data``."""
    return NamedSharding(mesh, PartitionSpec("data"))


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the complete array."""
    return NamedSharding(mesh, PartitionSpec())


def put_on_mesh(tree: Tree, sharding: NamedSharding) -> Tree:
    """Put host arrays on the mesh; each of several processes passes the complete arrays."""
    return jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(sharding, leaf, leaf.shape), tree
    )


def local_rows(sharding: NamedSharding, num_rows: int) -> np.ndarray:
    """Ascending indices of the rows of a batch that are on this process's devices."""
    slices = sharding.addressable_devices_indices_map((num_rows,)).values()
    return np.unique(np.concatenate([np.arange(num_rows)[rows] for (rows,) in slices]))


def put_batch(batch: Tree, sharding: NamedSharding, num_rows: int) -> Tree:
    """Put a batch of `num_rows` rows on the mesh; each process passes its `local_rows`."""

    def put(rows: np.ndarray) -> jax.Array:
        shape = (num_rows, *rows.shape[1:])  # [local rows, T] in each process -> [B, T]
        return jax.make_array_from_process_local_data(sharding, rows, shape)

    return jax.tree.map(put, batch)


def require_divisible_rows(shapes: list[tuple[int, int]], mesh: Mesh, micro_batches: int) -> None:
    """Refuse batches (rows, length) unless every device has an equal share of each micro-batch."""
    data = mesh.shape["data"]
    parts, remedy = "", "parallel.data"
    if micro_batches > 1:
        parts, remedy = f" in {micro_batches} micro-batches", f"{remedy} or training.micro_batches"
    for rows, length in shapes:
        if rows % (data * micro_batches):
            raise InputError(
                f"batches of {rows} x {length} tokens cannot be divided over parallel.data = "
                f"{data} devices{parts}: {rows} rows are not a multiple of {data * micro_batches}; "
                "set data.row_multiple to a multiple of it (data.tokens_per_batch must be at least "
                f"data.max_length times data.row_multiple), or lower {remedy}"
            )


def _rule(axis: str, config: ParallelConfig) -> str:
    """The rule of a logical axis, and the field that sets it."""
    is_override = any(rule.startswith(f"{axis}=") for rule in config.rules)
    origin = "parallel.rules" if is_override else f"parallel.preset={config.preset!r}"
    return f"{axis}={rules_of(config)[axis]} ({origin})"


def _unsharded(axes: list[str], config: ParallelConfig) -> str:
    """The flag that leaves these logical axes unsharded and keeps the other rules."""
    kept = (rule for rule in config.rules if rule.split("=")[0] not in axes)
    value = (*kept, *(f"{axis}=" for axis in axes))
    return f'--config.parallel.rules="{value!r}"'
