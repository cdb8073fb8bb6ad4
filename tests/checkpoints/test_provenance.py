# SPDX-License-Identifier: Apache-2.0
"""Results name the versions and the commit that made them."""

import importlib.metadata
import subprocess

import jax
import pytest

from transformer import provenance as module
from transformer.provenance import provenance


def test_the_versions_are_those_of_the_installed_packages():
    versions = provenance()
    assert versions["version"] == importlib.metadata.version("attention-transformer")
    assert versions["jax"] == jax.__version__
    assert None not in (versions[name] for name in ("flax", "sacrebleu", "orbax-checkpoint"))


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(module, "_PACKAGES", ("no-such-package",))
    assert provenance()["no-such-package"] is None


@pytest.fixture
def checkout(tmp_path):
    """A git repository with one commit of one file, and its hash."""

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", tmp_path, *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    return tmp_path, git("rev-parse", "HEAD")


def test_the_commit_of_a_checkout_is_marked_when_a_file_has_changed(checkout):
    folder, commit = checkout
    assert module._commit(folder) == commit
    (folder / "file").write_text("two")
    assert module._commit(folder) == f"{commit}-dirty"


def test_a_folder_inside_another_checkout_has_no_commit(checkout):
    folder, _ = checkout
    (folder / "site-packages").mkdir()
    assert module._commit(folder / "site-packages") is None


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert module._commit(checkout[0]) is None
