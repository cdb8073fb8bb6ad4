# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: parts of a model that stay frozen, and low-rank adapters of kernels.

With low-rank adapters, LoRA (Hu et al. 2021), a kernel W `[inputs, outputs]` of the base model
becomes W + alpha / rank * A B, with A `[inputs, rank]` and B `[rank, outputs]`. Only A and B are
trained. The sum is formed before the forward pass, so models know nothing of adapters, and a merged
model is an ordinary model.

The adapters of a model are a tree with the path of each adapted kernel, and below it A and B.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.arrays import Array, Key, Params
from transformer.config import TrainingConfig
from transformer.errors import InputError
from transformer.models.protocol import Model
from transformer.nn.parameters import Parameter, is_parameter

A, B = "lora_a", "lora_b"
"""Keys of the two factors, below the path of the kernel."""


def frozen_mask(model: Model, metadata: Params, parts: Sequence[str]) -> Params:
    """True for each parameter of the parts.

    Parts are defined for every family: ``embedding`` is the tables of vectors `embed`, of tokens
    and of absolute positions, ``encoder`` the other parameters that `Model.encode` reads, and
    ``decoder`` the rest, with the map to the logits.

    Args:
      model: from `models.protocol.build`.
      metadata: from `models.protocol.parameter_metadata`.
      parts: names from `config.PARTS`.

    Raises:
      InputError: for a part without parameters, or if no parameter is left to train.
    """
    source, _ = model.example_inputs()
    encode = functools.partial(model.init, method="encode")
    encoder = jax.eval_shape(encode, jax.random.key(0), source).get("params", {})
    leaves = jax.tree_util.tree_leaves_with_path(encoder, is_leaf=is_parameter)
    encoder_paths = {path for path, _ in leaves}

    def part_of(path: tuple, parameter: Parameter) -> str:
        # The tables of relative positions that a stack has are not as wide as the model.
        if parameter.kind == "embedding" and "embed" in parameter.names:
            return "embedding"
        # Modules declare the map to the logits together with the embedding, which encoding reads.
        if "vocab" in parameter.names:
            return "decoder"
        return "encoder" if path in encoder_paths else "decoder"

    part = jax.tree_util.tree_map_with_path(part_of, metadata, is_leaf=is_parameter)
    present = set(jax.tree.leaves(part))
    for name in parts:
        if name not in present:
            raise InputError(
                f"training.freeze has {name!r}, but model.family {model.config.family!r} has no "
                f"such parameters; choose from {', '.join(sorted(present))}"
            )
    if present <= {*parts}:
        raise InputError(
            f"training.freeze is {tuple(parts)}, which leaves no parameter to train; leave one of "
            "them out"
        )
    return jax.tree.map(lambda name: name in parts, part)


def freeze(optimizer: optax.GradientTransformation, frozen: Params) -> optax.GradientTransformation:
    """An optimizer that never changes the frozen parameters and keeps no moments for them."""
    trained = jax.tree.map(lambda fixed: not fixed, frozen)
    return optax.chain(optax.masked(optimizer, trained), optax.masked(optax.set_to_zero(), frozen))


def stop_gradients(params: Params, base: None = None, *, frozen: Params) -> Params:
    """Stop the gradients of the frozen parameters, so that none are computed for them."""
    return jax.tree.map(
        lambda leaf, fixed: jax.lax.stop_gradient(leaf) if fixed else leaf, params, frozen
    )


def declare(
    metadata: Params, rank: int, targets: Sequence[str], frozen: Params | None = None
) -> Params:
    """Declarations of the adapters, as `models.protocol.parameter_metadata` gives those of a model.

    The axes of A are those that the kernel contracts with its input, and ``rank``; the axes of B
    are ``rank`` and the others. They are sharded like those of the kernel.

    Args:
      metadata: from `models.protocol.parameter_metadata`.
      rank: rank of the adapters.
      targets: logical axes; each kernel with at least one of them is adapted.
      frozen: from `frozen_mask`; frozen kernels are not adapted.

    Raises:
      InputError: if no kernel has one of these axes.
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
    unknown = {*targets} - axes - {*TrainingConfig.lora_targets}  # the default is of all families
    if unknown or not adapters:
        raise InputError(
            f"training.lora_targets is {tuple(targets)}, but no kernel that may be adapted has "
            f"{'such an axis' if not unknown else f'the axis {min(unknown)!r}'}; their axes are "
            f"{', '.join(sorted(axes)) or 'none'}"
        )
    return unflatten_dict(adapters)


def init(key: Key[Array, ""], metadata: Params) -> Params:
    """Initial adapters: A is normal with variance 1 / inputs, B is zero, so A B is zero.

    Args:
      key: random key.
      metadata: from `declare`.
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


def merge(adapters: Params, base: Params, scale: float) -> Params:
    """The parameters of the adapted model: W + scale * A B for each adapted kernel.

    Args:
      adapters: adapters of the base model.
      base: parameters of the base model.
      scale: alpha / rank.
    """
    merged, factors = flatten_dict(base), flatten_dict(adapters)
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
