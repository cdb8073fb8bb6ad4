# SPDX-License-Identifier: Apache-2.0
"""The compilations of an app are counted and timed from its log."""

import json
import shlex

import pytest
from apps import run

from experiments.benchmarks import compilations

LOG = """\
warning: Finished tracing decode for jit in 1.5 sec
warning: Compiling jit(decode) with global shapes and types (ShapedArray(int32[2,4]),).
warning: Finished jaxpr to MLIR module conversion jit(decode) in 0.25 sec
warning: Finished XLA compilation of jit(decode) in 2 sec
warning: Finished tracing init for jit in 5e-1 sec
step 1/2  loss 1.0
warning: Finished jaxpr to MLIR module conversion jit(decode) in 0.25 sec
warning: Persistent compilation cache hit for 'jit_decode' with key 'jit_decode-0a'
warning: Finished XLA compilation of jit(decode) in 0.5 sec
"""


def test_a_log_is_summed_by_stage_and_by_program():
    assert compilations.summarize(LOG.splitlines(), seconds=10.0) == {
        "seconds": 10.0,
        "compilations": 2,
        "cache_hits": 1,
        "tracing_seconds": 2.0,
        "lowering_seconds": 0.5,
        "compiling_seconds": 2.5,
        "share": 0.5,
        "longest": {"decode": [2, 4.5], "init": [0, 0.5]},
    }


def test_an_app_that_fails_is_reported_with_its_reason():
    finished = run("experiments.benchmarks.compilations", "--command=translate --workdir=/nowhere")
    assert finished.status == 1
    assert "translate ended with status 1: error: " in finished.err
    assert "/nowhere" in finished.err


@pytest.mark.slow
def test_the_second_start_takes_its_programs_from_the_cache(train):
    command = shlex.join(["train", *train("{folder}/workdir")])
    finished = run("experiments.benchmarks.compilations", f"--command={command}")
    assert finished.status == 0, finished.err
    cold, warm = map(json.loads, finished.out.splitlines())
    assert (cold["caches"], warm["caches"]) == ("cold", "warm")
    assert cold["compilations"] == warm["compilations"] > 0
    assert cold["cache_hits"] < warm["cache_hits"]
    assert 0 < warm["share"] < cold["share"] < 1
    assert "train_step" in cold["longest"]
