# SPDX-License-Identifier: Apache-2.0
"""Run the apps as users do, in this process or another, and a tiny training for them."""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import logging
import os
import pathlib
import random
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from unittest import mock

import jax
import numpy as np
import pytest
import variables
from absl import logging as absl_logging
from absl.testing import flagsaver

from experiments.cli import command_line, process  # noqa: F401 - defines a flag
from transformer.checkpoints.manager import Checkpoints
from transformer.checkpoints.workdir_files import load_config
from transformer.trained_model import abstract_params

REPOSITORY = pathlib.Path(__file__).parent.parent
CONFIGS = REPOSITORY / "experiments" / "configs"


@dataclasses.dataclass(frozen=True)
class Finished:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def result(self):
        """The JSON object on the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


@functools.cache
def scratch():
    """The cache directory of every command of this test session; removed at exit."""
    return tempfile.TemporaryDirectory(prefix="apps")


def environment():
    """Environment of every command; the cache of the user is neither read nor written."""
    return os.environ | {
        **variables.QUICK,
        "XDG_CACHE_HOME": scratch().name,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(pathlib.Path(__file__).parent)]),
    }


def users_environment(cache):
    """Environment of a command as users start it, with all optimizations and glibc as it is."""
    others = environment() | variables.USUAL | {"XDG_CACHE_HOME": str(cache)}
    return {name: others[name] for name in others.keys() - variables.MEMORY}


def start(module, *arguments, devices=1):
    """Start ``python -m MODULE ARGUMENTS`` with a number of simulated devices."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment() | {"JAX_NUM_CPU_DEVICES": str(devices)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def memory_falls_below(share, pid):
    """Whether the resident memory of a process soon falls below this share of its peak."""
    status = pathlib.Path(f"/proc/{pid}/status")
    for _ in range(100):
        lines = dict(line.split(":") for line in status.read_text().splitlines())
        resident, peak = (int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
        if resident < share * peak:
            return True
        time.sleep(0.1)
    return False


def run(module, *arguments, stdin=b""):
    """Run a module as a program in this process; see `call`."""
    importlib.import_module(module)  # libraries define flags when they are imported
    file = importlib.util.find_spec(module).origin
    return call(lambda: runpy.run_path(file, run_name="__main__"), *arguments, stdin=stdin)


def call(program, *arguments, stdin=b""):
    """Call a function that reads its arguments from the command line, and return its output.

    Signal handlers, loggers, flags, JAX's config and the environment are restored. Tests about the
    process itself, such as its signals and closed streams, use `start` or `subprocess`.
    """
    root = logging.getLogger()
    out, err = io.BytesIO(), io.BytesIO()
    given = io.BufferedReader(io.BytesIO(stdin))
    streams = [io.TextIOWrapper(stream, encoding="utf-8") for stream in (given, out, err)]
    with contextlib.ExitStack() as changes:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            changes.enter_context(mock.patch.object(sys, name, stream))
        changes.enter_context(mock.patch.object(sys, "argv", ["app", *map(str, arguments)]))
        changes.enter_context(mock.patch.object(root, "handlers", []))
        changes.enter_context(mock.patch.object(process, "prepare"))
        changes.enter_context(mock.patch.dict(os.environ, XDG_CACHE_HOME=scratch().name))
        changes.enter_context(flagsaver.flagsaver())
        changes.callback(absl_logging.set_verbosity, absl_logging.get_verbosity())
        changes.callback(_restore_jax, dict(jax.config.values))
        status = _status_of(program)
        sys.stdout.flush()
        sys.stderr.flush()
        return Finished(status, out.getvalue().decode(), err.getvalue().decode())


def _restore_jax(values):
    for name, value in jax.config.values.items():
        if value != values[name]:
            jax.config.update(name, values[name])


def _status_of(program):
    """Call a program and return its exit status."""
    try:
        program()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


TINY = (
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.num_layers=1",
    "--config.model.num_heads=2",
    "--config.optimizer.warmup_steps=60",
    "--config.decode.beams=2",
    "--config.decode.extra_length=4",
    "--config.training.validation_sentences=4",
    "--config.logging.log_every=1",
)
STEPS = 100


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """Lines of letters and their capitals: the folder, and the flags that name its files."""
    folder = tmp_path_factory.mktemp("texts")
    generator = random.Random(0)
    flags = []
    for split, lines in (("train", 120), ("validation", 10), ("test", 9)):
        rows = [" ".join(generator.choices("abcdefgh", k=2 + i % 6)) for i in range(lines)]
        for side, text in (("source", rows), ("target", [row.upper() for row in rows])):
            path = folder / f"{split}.{side}"
            path.write_text("".join(row + "\n" for row in text))
            flags.append(f"--config.data.{split}_{side}={path}")
    return folder, flags


@pytest.fixture(scope="session")
def train(texts):
    """The arguments that train a tiny model on the letters: (workdir, flags) -> arguments."""

    def arguments(workdir, *flags):
        return (
            f"--config={CONFIGS / 'base.py'}",
            f"--workdir={workdir}",
            *texts[1],
            *TINY,
            "--config.model.vocab_size=20",
            "--config.data.tokenizer=word",
            "--config.data.max_length=8",
            "--config.data.bucket_lengths=(8,)",
            "--config.data.tokens_per_batch=128",
            f"--config.training.steps={STEPS}",
            f"--config.training.validate_every={STEPS // 4}",
            *flags,
        )

    return arguments


def lines_of(path):
    """The JSON objects of a file, one a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def parameters(workdir):
    """The last step, and the bytes of its parameters."""
    config = load_config(workdir)
    with Checkpoints(workdir, config.training) as checkpoints:
        params = checkpoints.restore_params(abstract_params(config), average=1)
        return checkpoints.steps()[-1], [np.asarray(p).tobytes() for p in jax.tree.leaves(params)]
