# SPDX-License-Identifier: Apache-2.0
"""A table of the parameters of a training state: shape, sharding, and bytes per device."""

import math
import re

import jax

from experiments.console.formatting import table
from transformer.training.step import TrainState

_LAYER = re.compile(r"layer_(\d+)")


def parameter_table(state: TrainState) -> str:
    """One line per parameter; equal layers share one, such as ``encoder/layer_{0..5}/...``."""
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    # (name with layer_*, shape, dtype, sharding, bytes) -> layers with this parameter
    layers: dict[tuple[str, ...], list[int]] = {}
    for path, leaf in leaves:
        name = "/".join(key.key for key in path)
        axes = ", ".join(axis or "-" for axis in leaf.sharding.spec)
        columns = str([*leaf.shape]), str(leaf.dtype), f"[{axes}]", f"{_bytes(leaf):,}"
        numbers = layers.setdefault((_LAYER.sub("layer_*", name), *columns), [])
        numbers += map(int, _LAYER.findall(name))
    rows = [("parameter", "shape", "dtype", "divided along", "bytes per device")]
    for (name, *columns, size), numbers in layers.items():
        which = str(numbers[0]) if numbers else ""
        if len(numbers) > 1:
            which = f"{{{min(numbers)}..{max(numbers)}}}"
            size = f"{len(numbers)} x {size}"
        rows.append((name.replace("*", which), *columns, size))
    mesh = " x ".join(f"{axis}={size}" for axis, size in leaves[0][1].sharding.mesh.shape.items())
    count = sum(leaf.size for _, leaf in leaves)
    params, total = (sum(map(_bytes, jax.tree.leaves(tree))) for tree in (state.params, state))
    return "\n".join(
        [
            f"mesh {mesh}",
            table(rows, left=4),
            f"{count:,} parameters; each device holds {params:,} bytes of parameters and {total:,} "
            "bytes of training state",
        ]
    )


def _bytes(leaf: jax.ShapeDtypeStruct | jax.Array) -> int:
    """Bytes of an array on each device."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
