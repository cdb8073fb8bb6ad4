# SPDX-License-Identifier: Apache-2.0
"""The platform that a computation is compiled for, and the forms of operations for it.

Code outside this module names no backend. It asks for an operation by name and says what JAX's own
form is: ``operation("top_k", plain_top_k)``.
"""

import contextlib
from collections.abc import Callable

import jax

from transformer import cpu

# A user context is a part of the key of jit's cache, so each platform is traced separately.
_platform = jax.make_user_context(None)


def platform() -> str:
    """The platform being compiled for, as `jax.export` names it; the default backend if unset."""
    name = _platform.value
    return jax.export.default_export_platform() if name in (None, "gpu") else name


def compiling_for(platform: str) -> contextlib.AbstractContextManager[None]:
    """Trace what runs inside for this platform, for example ``"cuda"``, in the current thread."""
    return _platform(platform)


def operation(name: str, default: Callable) -> Callable:
    """The form of an operation for the platform being compiled for.

    Args:
      name: a key of `cpu.OPERATIONS`; a CPU has a form of every operation that is asked for.
      default: the form for all other platforms.
    """
    return cpu.OPERATIONS[name] if platform() == "cpu" else default
