# SPDX-License-Identifier: Apache-2.0
"""JAX's persistent cache of compiled programs, in the user's cache folder."""

import logging
import os
import pathlib

import jax

from transformer import paths
from transformer.errors import InputError

logger = logging.getLogger(__name__)


def enable() -> None:
    """Let later processes reuse compiled programs, unless JAX has a compilation cache already."""
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        jax.config.update("jax_compilation_cache_dir", str(folder("compiled")))
    except InputError as error:
        logger.warning("compiled programs are not kept for the next start: %s", error)
        return
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def folder(name: str) -> pathlib.Path:
    """Return ``attention-transformer/<name>`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
      InputError: when the directory cannot be created.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = pathlib.Path(base, "attention-transformer", name)
    try:
        path = path.expanduser()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        raise InputError(
            f"the cache folder {path} cannot be created: {paths.reason(error)}; set the "
            "environment variable XDG_CACHE_HOME to a writable folder"
        ) from None
    return path
