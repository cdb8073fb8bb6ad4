# SPDX-License-Identifier: Apache-2.0
"""The source distribution installs a command that works in any directory."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from apps import REPOSITORY, call, environment
from packaging.requirements import Requirement

from experiments.__main__ import APPS, main

BUILD = "from setuptools import build_meta; build_meta.build_sdist('dist')"


def apps_of_the_repository():
    """Modules of `experiments` that are run with a config or a workdir, or with neither."""
    files = (REPOSITORY / "experiments").glob("*.py")
    return {path.stem for path in files if "command_line.run(" in path.read_text(encoding="utf-8")}


def test_every_app_is_listed_with_one_line():
    finished = call(main)
    listed = dict(re.findall(r"^  (\w+) +(\S.*)$", finished.out, re.MULTILINE))
    assert listed.keys() == apps_of_the_repository() == set(APPS)
    assert listed["score"] == "Score given translations"
    assert (finished.status, finished.err) == (0, "")
    refused = call(main, "trian")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.startswith("error: there is no app 'trian'; choose from train, ")


def test_every_dependency_is_pinned_within_its_bounds():
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line[0] != "#")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["serve"], *extras["test"], *extras["docs"]]
    for line in wanted:
        requirement = Requirement(line)
        if requirement.name != project["name"]:
            pin = pins[requirement.name.lower().replace("_", "-")]
            assert requirement.specifier.contains(pin), line


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which pip installed the source distribution."""
    folder = tmp_path_factory.mktemp("install")
    parts = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "transformer", "experiments")
    listing = {"cwd": REPOSITORY, "capture_output": True, "text": True, "check": True}
    tracked = subprocess.run(["git", "ls-files", *parts], **listing)
    for name in tracked.stdout.splitlines():
        if (REPOSITORY / name).exists():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / "source" / name)
    quiet = {"check": True, "capture_output": True, "cwd": folder / "source"}
    subprocess.run([sys.executable, "-c", BUILD], **quiet)
    [archive] = (folder / "source" / "dist").iterdir()
    options = ["--no-deps", "--no-index", "--no-build-isolation", f"--target={folder / 'target'}"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, archive], **quiet)
    return folder / "target"


@pytest.mark.slow
def test_the_command_works_beside_a_folder_with_the_name_of_the_package(installed, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise SystemExit('hidden')\n")

    def transformer(*arguments):
        return subprocess.run(
            [installed / "bin" / "transformer", *arguments],
            cwd=tmp_path,
            env=environment() | {"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert "  train  " in transformer().stdout
    # The config is found by its name, and its argument is read.
    started = transformer("train", "--config=pronouns:fr")
    assert started.stderr == "error: missing --workdir=DIRECTORY, where the results go\n"
    refused = transformer("train", "--config=pronuons")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "base, big, copy" in refused.stderr


@pytest.mark.slow
def test_the_installed_packages_have_all_files_of_the_repository(installed):
    for package in ("transformer", "experiments"):
        files = {
            path.relative_to(REPOSITORY)
            for path in (REPOSITORY / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        missing = [path for path in files if not (installed / path).exists()]
        assert missing == [], os.fspath(installed)
