# SPDX-License-Identifier: Apache-2.0
"""Versions of the program and of the packages that its results depend on."""

import importlib.metadata
import pathlib
import platform
import subprocess

DISTRIBUTION = "attention-transformer"
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "sentencepiece", "sacrebleu")


def provenance() -> dict[str, str | None]:
    """The versions of this distribution, of Python and of the packages, and the git commit.

    Packages that are not installed have the version None.
    """
    return {
        "version": _version(DISTRIBUTION),
        "commit": _commit(pathlib.Path(__file__).parent.parent),
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit(checkout: pathlib.Path) -> str | None:
    """The commit of a git checkout, with ``-dirty`` if tracked files differ from it."""
    if not (checkout / ".git").exists():  # installed, even if below a checkout of something else
        return None
    command = ["git", "-C", checkout, "describe", "--always", "--dirty", "--exclude=*"]
    try:
        git = subprocess.run(
            [*command, "--abbrev=40"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):  # no git, or a checkout that git refuses
        return None
    return git.stdout.strip()
