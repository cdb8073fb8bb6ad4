# SPDX-License-Identifier: Apache-2.0
"""The user's cache folder: generated corpora and compiled programs, which any run may share."""

import logging
import os
import pathlib

import jax

logger = logging.getLogger(__name__)


def folder(name: str) -> pathlib.Path:
    """``attention-transformer/<name>`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; made if missing."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    path = pathlib.Path(base) / "attention-transformer" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def keep_compiled_programs() -> None:
    """Lets a second start find what the first compiled; a cache given to JAX already stays."""
    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        jax.config.update("jax_compilation_cache_dir", str(folder("compiled")))
    except OSError as error:
        logger.warning("compiled programs are not kept for the next start: %s", error)
        return
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
