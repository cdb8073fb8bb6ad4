# SPDX-License-Identifier: Apache-2.0
"""Freezing: parts of a model whose parameters stay as they are while the others are trained."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from transformer.arrays import Params
from transformer.errors import InputError
from transformer.models.base import Model
from transformer.nn.parameters import is_parameter


def frozen_mask(model: Model, metadata: Params, parts: Sequence[str]) -> Params:
    """True for each parameter of the parts.

    Parts are defined for every family: ``embedding`` is the parameters of kind embedding,
    ``encoder`` the others that `Model.encode` reads, and ``decoder`` the rest, with the map to the
    logits.

    Args:
      model: from `models.base.build`.
      metadata: from `models.base.parameter_metadata`.
      parts: names from `config.PARTS`.

    Raises:
      InputError: for a part without parameters, or if no parameter is left to train.
    """
    tokens = jnp.zeros((1, 1), jnp.int32)
    encode = functools.partial(model.init, method="encode")
    encoder = jax.eval_shape(encode, jax.random.key(0), tokens).get("params", {})
    leaves = jax.tree_util.tree_leaves_with_path(encoder, is_leaf=is_parameter)
    encoder_paths = {path for path, _ in leaves}

    def part_of(path: tuple, parameter: object) -> str:
        if parameter.kind == "embedding":
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


def stop_gradients(params: Params, frozen: Params) -> Params:
    """Stop the gradients of the frozen parameters, so that none are computed for them."""
    return jax.tree.map(
        lambda leaf, fixed: jax.lax.stop_gradient(leaf) if fixed else leaf, params, frozen
    )
