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


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A workdir with random parameters."""
    folder = tmp_path_factory.mktemp("process") / "run"
    make_workdir(folder, 1)
    return folder


def start(app, *arguments, **options):
    """Start an app as users do."""
    variables = options.pop("variables", {})
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{app}", *arguments],
        cwd=REPOSITORY,
        env=environment() | variables,
        text=True,
        **options,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_an_app_runs_ends_with_one_line(workdir, number):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start("translate", f"--workdir={workdir}", "--interactive", **pipes) as process:
        assert "hint" in process.stderr.readline()
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", f"stopped by {number.name}\n")
    assert process.returncode == 128 + number


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
    finished = subprocess.run(
        [sys.executable, "-c", STOPPED.format(during_cleanup=during_cleanup)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
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
    finished = subprocess.run(
        [sys.executable, "-m", "app"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (143, "stopped by SIGTERM\n")


def test_an_ignored_signal_stays_ignored():
    """`nohup` starts programs so that they outlive their terminal."""
    program = (
        "import os, signal; from experiments.cli import process; process.prepare();"
        "os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    )
    command = f'trap "" HUP; exec {sys.executable} -c "{program}"'
    finished = subprocess.run(
        ["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
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
        pytest.param(
            "<<< a >/dev/full", "error: No space left on device\n", marks=pytest.mark.slow
        ),
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


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("JAX_PLATFORMS", "cuda", "=cuda;"),
        ("JAX_PLATFORMS", "cpuu", "=cpuu;"),
    ],
)
def test_an_environment_variable_that_jax_cannot_use_is_named(workdir, variable, value, words):
    finished = shell("", "translate", f"--workdir={workdir}", **{variable: value})
    assert (finished.returncode, finished.stdout) == (1, "")
    [message] = finished.stderr.splitlines()
    assert message.startswith("error: ")
    assert variable in message
    assert words in message


def test_without_a_home_directory_the_remedy_is_a_cache_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as without $HOME and user
    with pytest.raises(InputError, match="home directory.; set the .* XDG_CACHE_HOME to a wri"):
        compile_cache.folder("tokens")
