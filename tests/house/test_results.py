# SPDX-License-Identifier: Apache-2.0
"""What the README promises of symbols and of SCAN: each trained by its command, then scored."""

import json
import os
import subprocess
import sys

import pytest
import variables

pytestmark = pytest.mark.slow


def run(app: str, *arguments: str, text: str = "") -> str:
    command = [sys.executable, "-m", f"experiments.{app}", *arguments]
    done = subprocess.run(
        command,
        env=os.environ | variables.USUAL,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def last_json(output: str) -> dict:
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_a_symbol_task_is_learned(task, tmp_path):
    run("train", f"--config=experiments/configs/{task}.py", f"--workdir={tmp_path}")
    scores = last_json(run("evaluate", f"--workdir={tmp_path}"))
    assert scores["exact_match"] >= 0.99


def test_scan_commands_like_those_of_training_are_translated_to_the_last_action(tmp_path):
    run("train", "--config=scan", f"--workdir={tmp_path}")
    scores = last_json(run("evaluate", f"--workdir={tmp_path}"))
    assert scores["sentences"] == 4_182
    assert scores["exact_match"] >= 0.999
