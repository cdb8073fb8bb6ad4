# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of kernels, LoRA (Hu et al. 2021).

A kernel W `[inputs, outputs]` of the base model becomes W + alpha / rank * A B, with A `[inputs,
rank]` and B `[rank, outputs]`. Only A and B are trained. The sum is formed before the forward pass,
so models know nothing of adapters, and a merged model is an ordinary model.

The adapters of a model are a tree with the path of each adapted kernel, and below it A and B.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.arrays import Array, Key, Params
from transformer.errors import InputError
from transformer.nn.parameters import Parameter

A, B = "lora_a", "lora_b"
"""Keys of the two factors, below the path of the kernel."""


def adapter_metadata(
    metadata: Params, rank: int, targets: Sequence[str], frozen: Params | None = None
) -> Params:
    """Declarations of the adapters, as `models.base.parameter_metadata` gives those of a model.

    The axes of A are those that the kernel contracts with its input, and ``rank``; the axes of B
    are ``rank`` and the others. They are sharded like those of the kernel.

    Args:
      metadata: from `models.base.parameter_metadata`.
      rank: of the adapters.
      targets: logical axes; each kernel with at least one of them is adapted.
      frozen: from `freezing.frozen_mask`; frozen kernels are not adapted.

    Raises:
      InputError: if no kernel has such an axis.
    """
    adapters, axes = {}, set()
    fixed = {} if frozen is None else flatten_dict(frozen)
    for path, kernel in flatten_dict(metadata).items():
        if kernel.kind != "kernel" or fixed.get(path):
            continue
        axes.update(kernel.names)
        if not {*targets} & {*kernel.names}:
            continue
        n, shape, names = kernel.num_input_axes, kernel.value.shape, kernel.names
        adapters[*path, A] = _declared((*shape[:n], rank), (*names[:n], "rank"), n)
        adapters[*path, B] = _declared((rank, *shape[n:]), ("rank", *names[n:]), 1)
    if not adapters:
        raise InputError(
            f"training.lora_targets is {tuple(targets)}, but no kernel that may be adapted has "
            f"such an axis; their axes are {', '.join(sorted(axes)) or 'none'}"
        )
    return unflatten_dict(adapters)


def init(key: Key[Array, ""], metadata: Params) -> Params:
    """Initial adapters: A is normal with variance 1 / inputs, B is zero, so A B is zero.

    Args:
      key: random key.
      metadata: from `adapter_metadata`.
    """
    declared = flatten_dict(metadata)
    adapters = {}
    for path, kernel_key in zip(declared, jax.random.split(key, len(declared)), strict=True):
        shape = declared[path].value.shape
        adapters[path] = jnp.zeros(shape)
        if path[-1] == A:
            num_inputs = adapters[path].size // shape[-1]
            adapters[path] = jax.random.normal(kernel_key, shape) * num_inputs**-0.5
    return unflatten_dict(adapters)


def merge(params: Params, adapters: Params, scale: float) -> Params:
    """The parameters of the adapted model: W + scale * A B for each adapted kernel.

    Args:
      params: of the base model.
      adapters: its adapters.
      scale: alpha / rank.
    """
    merged, factors = flatten_dict(params), flatten_dict(adapters)
    for *kernel, factor in factors:
        if factor == A:
            path = tuple(kernel)
            a, b = factors[*path, A], factors[*path, B]
            # In the full precision of the dtype, because W is as precise.
            product = jnp.tensordot(a, b, axes=1, precision=jax.lax.Precision.HIGHEST)
            merged[path] += scale * product
    return unflatten_dict(merged)


def _declared(shape: tuple[int, ...], names: tuple[str, ...], num_input_axes: int) -> Parameter:
    value = jax.ShapeDtypeStruct(shape, jnp.float32)
    return Parameter(value, names, kind="kernel", num_input_axes=num_input_axes)
