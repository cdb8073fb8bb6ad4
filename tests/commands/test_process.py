# SPDX-License-Identifier: Apache-2.0
"""Signals, closed streams and environment variables end an app with one message."""

import os
import signal
import subprocess
import sys

import pytest
from apps import REPOSITORY, environment
from workdirs import make_workdir

from transformer import compile_cache
from transformer.errors import InputError

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A workdir with random parameters."""
    folder = tmp_path_factory.mktemp("process") / "run"
    make_workdir(folder, 1)
    return folder


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(n, marks=SLOW) for n in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_while_an_app_runs_ends_with_one_line(workdir, number):
    command = [sys.executable, "-m", "experiments.translate", f"--workdir={workdir}"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"cwd": REPOSITORY, "env": environment(), "text": True}
    with subprocess.Popen([*command, "--interactive"], **pipes, **options) as process:
        assert "hint" in process.stderr.readline()
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", f"stopped by {number.name}\n")
    assert process.returncode == 128 + number


def program(text, *words, **options):
    """Run a Python program to its end."""
    options = {"cwd": REPOSITORY, "env": environment(), "timeout": 50} | options
    command = [*words, sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


STOPPED = """
import os, signal, sys
from experiments.cli import process
process.prepare()
try:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        print("cleanup", flush=True)
        {during_cleanup}
except process.Stopped as stopped:
    sys.exit(f"{{stopped}}: {{stopped.code}}")
"""


@pytest.mark.parametrize(
    ("during_cleanup", "status", "message"),
    [
        ("pass", 1, "stopped by SIGTERM: 143\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, ""),
    ],
)
def test_the_first_signal_unwinds_and_the_second_does_not_wait(during_cleanup, status, message):
    finished = program(STOPPED.format(during_cleanup=during_cleanup))
    assert (finished.returncode, finished.stdout) == (status, "cleanup\n")
    assert finished.stderr == message


APP = """
import dataclasses, os, signal
from experiments.cli import command_line

@dataclasses.dataclass(frozen=True)
class Options:
    pass

def main(options):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:  # as some libraries do
        raise ValueError("a bug")

if __name__ == "__main__":
    command_line.run(main, None, Options)
"""


def test_a_signal_is_not_lost_in_another_exception(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    finished = program(
        "import runpy; runpy.run_module('app', None, '__main__', True)", cwd=tmp_path
    )
    assert (finished.returncode, finished.stderr) == (143, "stopped by SIGTERM\n")


def test_an_ignored_signal_stays_ignored():
    """`nohup` starts programs so that they outlive their terminal."""
    survives = (
        "import os, signal; from experiments.cli import process; process.prepare();"
        "os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    )
    finished = program(survives, "bash", "-c", 'trap "" HUP; exec "$@"', "bash")
    assert (finished.stdout, finished.stderr) == ("alive\n", "")


def shell(redirection, app, *arguments, **variables):
    """Run an app with redirected streams."""
    command = f'exec "$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", f"experiments.{app}", *arguments],
        cwd=REPOSITORY,
        env=environment() | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        ("<&-", "error: standard input is closed; give --input=FILE\n"),
        pytest.param("<<< a >/dev/full", "error: No space left on device\n", marks=SLOW),
    ],
)
def test_a_stream_that_does_not_work_is_named(workdir, redirection, message):
    finished = shell(redirection, "translate", f"--workdir={workdir}")
    assert (finished.returncode, finished.stdout, finished.stderr) == (1, "", message)


@pytest.mark.slow
def test_messages_to_a_closed_stream_are_not_results(workdir):
    """The line is too long, which results in a warning."""
    finished = shell("<<< 'a b c d e f g' 2>&-", "translate", f"--workdir={workdir}")
    assert finished.returncode == 0
    assert finished.stdout.count("\n") == 1


@pytest.mark.parametrize("value", ["cuda", pytest.param("cpuu", marks=SLOW)])
def test_a_platform_that_jax_cannot_use_is_named(workdir, value):
    finished = shell("", "translate", f"--workdir={workdir}", JAX_PLATFORMS=value)
    assert (finished.returncode, finished.stdout) == (1, "")
    [message] = finished.stderr.splitlines()
    assert message.startswith("error: ")
    assert f"JAX_PLATFORMS={value};" in message


def test_without_a_home_directory_the_remedy_is_a_cache_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as without $HOME and user
    with pytest.raises(InputError, match="home directory.; set the .* XDG_CACHE_HOME to a wri"):
        compile_cache.folder("tokens")
