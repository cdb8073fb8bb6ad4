# SPDX-License-Identifier: Apache-2.0
"""Taps: named activations that a caller can read and overwrite, without a line in the model.

A module names an activation where it computes it, ``z = tap(self, "z", z)``. Two of Linen's
collections do the rest, under the module's path and the tap's name, in `jit`, `grad` and `vmap`:

- ``trace``: ``model.apply(variables, ..., mutable=["trace"])`` also returns every tapped value.
- ``patches``: ``model.apply({"params": params, "patches": {...}}, ...)`` applies functions to them,
  for example a `Patch`.

A tap that a call passes several times (in shared layers; the residual stream of a stack) has one
value for each. Without the collections a tap does nothing and costs nothing.
"""

from collections.abc import Callable

import flax.linen as nn
import flax.struct
import jax.numpy as jnp

from transformer.arrays import Array, Bool, Float, Shown


@flax.struct.dataclass(repr=False)
class Patch(Shown):
    """Overwrite an activation with `value` where `mask` is true."""

    mask: Bool[Array, "..."]
    """The axes of the activation, or axes that broadcast to them."""
    value: Float[Array, "..."]

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The patched activation."""
        return jnp.where(self.mask, self.value.astype(x.dtype), x)


def tap(module: nn.Module, name: str, x: Array) -> Array:
    """Return the activation `x`, patched; append it to the trace, if one is recorded."""
    x = patch_of(module, name)(x)
    record(module, name, x)
    return x


def patch_of(module: nn.Module, name: str) -> Callable[[Array], Array]:
    """Return the function that patches the next value of a tap.

    ``patches`` holds a function that is a pytree, or for a tap that is passed several times a tuple
    of one for each. The length of the trace tells which is next, so a tuple needs
    ``mutable=["trace"]``.
    """
    if not module.has_variable("patches", name):
        return lambda x: x
    patch = module.get_variable("patches", name)
    if isinstance(patch, tuple):
        if not module.is_mutable_collection("trace"):
            raise ValueError(f"patches of {name!r} by number need mutable=['trace']")
        patch = patch[len(module.get_variable("trace", name, ()))]
    return patch


def record(module: nn.Module, name: str, x: Array) -> None:
    """Append a value to the trace, if one is recorded."""
    if not module.is_initializing():
        module.sow("trace", name, x)


def is_tapped(module: nn.Module, *names: str) -> bool:
    """Whether a caller reads the taps of this module, or patches one of these."""
    reads = module.is_mutable_collection("trace") and not module.is_initializing()
    return reads or any(module.has_variable("patches", name) for name in names)
