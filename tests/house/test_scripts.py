# SPDX-License-Identifier: Apache-2.0
"""The scripts for clusters and single machines: the commands they run, and their exit status."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from apps import REPOSITORY, TINY, environment, lines_of, run

SCRIPTS = sorted(path for path in (REPOSITORY / "scripts").iterdir() if path.suffix != ".py")
README_COMMANDS = re.findall(
    r"```bash\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL
)
RECORD = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv) + "\\n")
name = os.path.basename(sys.argv[0])
print(os.environ.get("SAYS_" + name, ""))
sys.exit(int(os.environ.get("STATUS_" + name, 0)))
"""


@pytest.fixture(scope="module")
def flags():
    """Every flag of train."""
    helped = run("experiments.train", "--help").out
    return {line.split(":")[0].strip() for line in helped.splitlines() if line.startswith("  --")}


@pytest.fixture
def recorded(tmp_path):
    """Run a script with commands that only record their arguments.

    (script, *arguments, **variables) -> the finished script and the calls.
    """
    commands, log = tmp_path / "commands", tmp_path / "log"
    commands.mkdir()
    for name in ("gcloud", "git", "srun", "squeue", "scontrol", "python"):
        (commands / name).write_text(RECORD.format(python=sys.executable, log=str(log)))
        (commands / name).chmod(0o755)
    copy = tmp_path / "repository"
    shutil.copytree(REPOSITORY / "scripts", copy / "scripts")
    (copy / ".venv" / "bin").mkdir(parents=True)
    (copy / ".venv" / "bin" / "python").symlink_to(commands / "python")

    def script(name, *arguments, **variables):
        log.write_text("")
        finished = subprocess.run(
            ["bash", f"scripts/{name}", *arguments],
            cwd=copy,
            env=os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"} | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return finished, lines_of(log)

    return script


def require_flags_of_train(name, flags, command):
    """Check that every flag of a command line is one of train, or a ``--config.FIELD``."""
    found = [word.partition("=")[0] for word in command if word.startswith("--")]
    assert {"--config", "--workdir"} <= set(found), name
    unknown = [flag for flag in found if not flag.startswith("--config.") and flag not in flags]
    assert unknown == [], name


def test_every_script_is_tested():
    assert {"one_gpu.sh", "slurm.sbatch", "tpu_slice.sh", "two_processes.sh"} == {
        path.name for path in SCRIPTS
    }


def test_a_script_stops_at_the_first_error():
    for script in SCRIPTS:
        text = script.read_text()
        assert text.startswith("#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n")
        assert "\nset -euo pipefail\n" in text
        assert os.access(script, os.X_OK)


def test_shellcheck_finds_nothing_in_the_scripts_and_the_commands_of_the_readme(tmp_path):
    """zsh does not split unquoted variables into words; shellcheck reports each (SC2086)."""
    commands = [tmp_path / f"{number}.sh" for number in range(len(README_COMMANDS))]
    for path, command in zip(commands, README_COMMANDS, strict=True):
        path.write_text(f"# shellcheck shell=bash\n{command}")
    shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, *SCRIPTS, *commands], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_without_arguments_a_script_prints_its_usage(recorded):
    for script in SCRIPTS:
        finished, calls = recorded(script.name, CHIPS="8")
        assert finished.returncode != 0
        assert "usage: " in finished.stderr
        assert calls == []


def test_one_gpu_trains_and_evaluates(recorded, flags):
    finished, [train, evaluate] = recorded("one_gpu.sh", "c.py", "runs/a", "--config.model.d_ff=8")
    assert finished.returncode == 0, finished.stderr
    assert train[1:3] == ["-m", "experiments.train"]
    assert train[3:] == ["--config=c.py", "--workdir=runs/a", "--config.model.d_ff=8"]
    require_flags_of_train("one_gpu.sh", flags, train)
    assert evaluate[1:] == ["-m", "experiments.evaluate", "--workdir=runs/a", "--split=test"]
    finished, calls = recorded("one_gpu.sh", "c.py", "runs/a", STATUS_python="143")
    assert finished.returncode == 143
    assert len(calls) == 1, "a stopped training is not evaluated"


SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "SLURM_CPUS_PER_TASK": "8"}


def test_under_slurm_one_task_trains_on_each_gpu(recorded, flags):
    finished, [srun] = recorded("slurm.sbatch", "c.py", "runs/a", "--profile=3", **SLURM)
    assert finished.returncode == 0, finished.stderr
    program = srun.index(".venv/bin/python")
    assert srun[program + 1 : program + 3] == ["-m", "experiments.train"]
    require_flags_of_train("slurm.sbatch", flags, srun[program:])
    assert {"--distributed", "--config.parallel.data=16", "--profile=3"} <= set(srun)


def test_under_slurm_a_stopped_training_is_queued_again(recorded):
    for status, state, again in (
        ("143", "RUNNING", True),
        ("143", "COMPLETING", False),  # it was cancelled
        ("1", "RUNNING", False),
        ("0", "RUNNING", False),
    ):
        variables = {**SLURM, "STATUS_srun": status, "SAYS_squeue": state}
        finished, calls = recorded("slurm.sbatch", "c.py", "runs/a", **variables)
        assert finished.returncode == int(status), finished.stderr
        queued = [call[1:] for call in calls if call[0].endswith("scontrol")]
        assert queued == [["requeue", "7"]] * again


def test_on_a_tpu_slice_every_host_runs_the_same_command(recorded, flags, tmp_path):
    field = "--config.parallel.rules=('vocab=', 'kv=model')"
    arguments = "my-slice", "zone-b", "c.py", "gs://bucket/a b", field
    finished, [archive, copied, installed, trained] = recorded(
        "tpu_slice.sh", *arguments, CHIPS="32"
    )
    assert finished.returncode == 0, finished.stderr
    assert archive[1] == "archive"
    assert {"scp", "my-slice:transformer.tar.gz"} <= set(copied)
    for call in (copied, installed, trained):
        assert {"--zone=zone-b", "--worker=all"} <= set(call)
    for call in (installed, trained):
        command = call[-1].removeprefix("--command=")
        assert command != call[-1]
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    # The words that the shell of the host makes of the command.
    print_them = 'cd() { :; }; .venv/bin/python() { printf "%s\\\\0" "$@"; }; '
    shell = ["bash", "-c", print_them + command]
    words = subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split("\0")
    assert words[:2] == ["-m", "experiments.train"]
    require_flags_of_train("tpu_slice.sh", flags, words)
    assert {"--workdir=gs://bucket/a b", "--distributed", "--config.parallel.data=32"} <= set(words)
    assert field in words


def test_two_processes_get_the_same_coordinator(recorded, flags):
    finished, calls = recorded("two_processes.sh", "c.py", "runs/a", PORT="77")
    assert finished.returncode == 0, finished.stderr
    assert len(calls) == 2
    for call in calls:
        require_flags_of_train("two_processes.sh", flags, call)
        assert {"--coordinator=localhost:77", "--processes=2"} <= set(call)
    assert {"--process=0", "--process=1"} <= {word for call in calls for word in call}
    finished, _ = recorded("two_processes.sh", "c.py", "runs/a", STATUS_python="143")
    assert finished.returncode == 143


def started(workdir, *arguments):
    """Start scripts/two_processes.sh with a tiny model."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = {"PYTHON": sys.executable, "PORT": str(port)}
    return subprocess.Popen(
        [
            *("scripts/two_processes.sh", "experiments/configs/copy.py", str(workdir)),
            *(*TINY, "--config.data.tokens_per_batch=192", *arguments),
        ],
        cwd=REPOSITORY,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_train_and_one_prints_the_result(tmp_path):
    short = "--config.training.steps=4", "--config.training.validate_every=2"
    process = started(tmp_path / "run", *short)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    [line] = out.splitlines()
    assert json.loads(line)["step"] == 4
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == json.loads(line)


@pytest.mark.slow
def test_two_processes_save_when_the_script_is_stopped(tmp_path):
    long = "--config.training.steps=100000", "--config.training.validate_every=50000"
    process = started(tmp_path / "run", *long)
    for _ in range(1200):
        if (tmp_path / "run" / "metrics.jsonl").exists() and lines_of(
            tmp_path / "run" / "metrics.jsonl"
        ):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (143, ""), err
    assert "saved; repeat the command to continue" in err
    assert any(path.name.isdigit() for path in (tmp_path / "run" / "checkpoints").iterdir())
