# SPDX-License-Identifier: Apache-2.0
"""Libraries are imported when they are needed, so that ``import`` and ``--help`` are quick."""

import subprocess
import sys

import pytest
from apps import REPOSITORY, environment

PROGRAM = """
import contextlib, io, runpy, sys
{statements}
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""

HELP = """
sys.argv = ["app", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module("experiments.{app}", run_name="__main__")
"""


def loaded(statements):
    """The top-level modules that a fresh interpreter has loaded after these statements."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statements=statements)],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


def test_import_transformer_loads_no_library():
    libraries = {"jax", "flax", "optax", "orbax", "tensorstore", "numpy", "matplotlib"}
    assert not loaded("import transformer") & (libraries | {"sentencepiece", "sacrebleu"})


UNCHANGED = """
import gc, logging, os, signal, warnings

def state():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    streams = sys.stdin, sys.stdout, sys.stderr, logging.root.handlers
    return gc.isenabled(), gc.get_freeze_count(), handlers, streams, dict(os.environ)

before = state()
import experiments.train, experiments.translate, experiments.serve, transformer.translator
assert state() == before
"""


def test_importing_the_apps_changes_nothing_in_the_process():
    assert "experiments" in loaded(UNCHANGED)


def test_the_public_names_are_loaded_when_they_are_used():
    import transformer

    assert "jax" in loaded("import transformer; transformer.build")
    assert set(transformer.__all__) <= set(dir(transformer))
    assert all(getattr(transformer, name) for name in transformer.__all__)
    with pytest.raises(AttributeError, match="'transformer' has no attribute 'Transformers'"):
        transformer.Transformers  # noqa: B018


@pytest.mark.parametrize(
    "app", ["train", *(pytest.param(app, marks=pytest.mark.slow) for app in ("translate", "score"))]
)
def test_help_loads_no_library_that_only_running_needs(app):
    unneeded = {"matplotlib", "sacrebleu", "sentencepiece", "tensorboard", "tensorflow", "torch"}
    if app != "train":
        unneeded |= {"grain", "tensorflow_datasets"}
    found = loaded(HELP.format(app=app))
    assert "experiments" in found
    assert not found & unneeded


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


def test_a_translator_needs_no_fcntl_and_changes_jax_only_when_asked(tmp_path):
    variables = environment() | {"XDG_CACHE_HOME": str(tmp_path)}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT_FCNTL],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == f"{tmp_path}/attention-transformer/compiled\n"
