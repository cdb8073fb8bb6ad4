# SPDX-License-Identifier: Apache-2.0
"""A table of the parameters of a training state: shape, sharding, and bytes per device."""

import math
import re

import jax

from transformer.training.step import TrainState

_LAYER = re.compile(r"layer_(\d+)")


def parameter_table(state: TrainState) -> str:
    """One line per parameter; equal layers share one, such as ``encoder/layer_{0..5}/...``.

    Args:
      state: of arrays or `jax.ShapeDtypeStruct`, each with a `NamedSharding`.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    # (name with layer_*, columns) -> names of equal parameters
    equal: dict[tuple[str, ...], list[str]] = {}
    for path, leaf in leaves:
        name = "/".join(key.key for key in path)
        equal.setdefault((_LAYER.sub("layer_*", name), *_columns(leaf)), []).append(name)
    rows = [("parameter", "shape", "dtype", "divided along", "bytes per device")]
    for (name, *columns, size), names in equal.items():
        if len(names) > 1:
            layers = [int(_LAYER.search(each)[1]) for each in names]
            name = name.replace("layer_*", f"layer_{{{min(layers)}..{max(layers)}}}")
            rows.append((name, *columns, f"{len(names)} x {size}"))
        else:
            rows.append((names[0], *columns, size))
    *widths, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    line = "  ".join([*(f"{{:<{width}}}" for width in widths), f"{{:>{last}}}"])
    mesh = " x ".join(f"{axis}={size}" for axis, size in leaves[0][1].sharding.mesh.shape.items())
    count = sum(leaf.size for _, leaf in leaves)
    params, total = (sum(map(_bytes, jax.tree.leaves(tree))) for tree in (state.params, state))
    return "\n".join(
        [
            f"mesh {mesh}",
            *(line.format(*row) for row in rows),
            f"{count:,} parameters; each device holds {params:,} bytes of parameters and {total:,} "
            "bytes of training state",
        ]
    )


def _columns(leaf: jax.ShapeDtypeStruct | jax.Array) -> tuple[str, ...]:
    """Shape, dtype, mesh axes and bytes per device, as text."""
    axes = ", ".join(axis or "-" for axis in leaf.sharding.spec)
    return str(list(leaf.shape)), str(leaf.dtype), f"[{axes}]", f"{_bytes(leaf):,}"


def _bytes(leaf: jax.ShapeDtypeStruct | jax.Array) -> int:
    """Bytes of an array on each device."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
