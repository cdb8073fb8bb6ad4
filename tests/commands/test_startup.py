# SPDX-License-Identifier: Apache-2.0
"""Libraries are imported when they are needed, so that ``import`` and ``--help`` are quick."""

import os
import subprocess
import sys

import pytest
from apps import REPOSITORY, environment


def printed(program, **variables):
    """What a program prints in a fresh interpreter."""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment() | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


HELP = """
import contextlib, io, runpy, sys
sys.argv = ["app", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module("experiments.{app}", run_name="__main__")
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
IMPORTS = """
import gc, logging, os, signal, sys, warnings
import transformer

libraries = {"jax", "flax", "optax", "orbax", "tensorstore", "numpy", "matplotlib"}
assert not (libraries | {"sentencepiece", "sacrebleu"}) & {*sys.modules}

def state():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    streams = sys.stdin, sys.stdout, sys.stderr, logging.root.handlers
    return gc.isenabled(), gc.get_freeze_count(), handlers, streams, dict(os.environ)

before = state()
import experiments.train, experiments.translate, experiments.serve, transformer.translator
assert state() == before
"""
TENSORFLOW = """
try:
    import tensorflow
except SystemExit as stop:
    print(stop)
"""
UNNEEDED = {"matplotlib", "sacrebleu", "sentencepiece", "tensorboard", "tensorflow", "torch"}


def test_imports_change_nothing_in_the_process_and_help_loads_no_library_that_only_running_needs(
    tmp_path,
):
    """Nor is one looked for: TensorFlow is here a module that ends the program."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('the_stand_in')\n")
    paths = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    again = "sys.modules.pop('experiments.train')"  # else runpy warns
    program = IMPORTS + again + HELP.format(app="train") + TENSORFLOW
    found = {*printed(program, PYTHONPATH=paths).split()}
    assert {"experiments", "the_stand_in"} <= found
    assert not found & UNNEEDED


@pytest.mark.slow
@pytest.mark.parametrize("app", ["translate", "score"])
def test_help_of_apps_that_read_a_workdir_loads_nothing_for_training(app):
    found = {*printed(HELP.format(app=app)).split()}
    assert "experiments" in found
    assert not found & (UNNEEDED | {"grain", "tensorflow_datasets"})


def test_the_public_names_are_loaded_when_they_are_used():
    import transformer

    assert set(transformer.__all__) <= set(dir(transformer))
    assert all(getattr(transformer, name) for name in transformer.__all__)
    with pytest.raises(AttributeError, match="'transformer' has no attribute 'Transformers'"):
        transformer.Transformers  # noqa: B018


WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None  # as on Windows
import jax
from transformer.translator import Translator

before = dict(jax.config.values)
translator = Translator.from_workdir("docs/pronouns_de.zip")
assert dict(jax.config.values) == before
Translator.from_workdir("docs/pronouns_de.zip", compile_cache=True)
print(jax.config.jax_compilation_cache_dir)
"""


def test_a_translator_needs_no_fcntl_and_changes_jax_only_when_asked(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    folder = printed(WITHOUT_FCNTL, XDG_CACHE_HOME=str(tmp_path))
    assert folder == f"{tmp_path}/attention-transformer/compiled\n"
