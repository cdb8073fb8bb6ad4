# SPDX-License-Identifier: Apache-2.0
"""The compilations of an app are counted and timed from its log."""

import json
import shlex

import nbformat
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


def test_the_share_counts_the_time_of_several_threads_once():
    """A thread is busy from 2.5 to 6 s, from 7.75 to 8 and from 8.5 to 9."""
    times = [4.0, 4.0, 5.0, 6.0, 6.0, 7.0, 8.0, 8.5, 9.0]
    figures = compilations.summarize(LOG.splitlines(), seconds=10.0, times=times)
    assert figures["share"] == pytest.approx((3.5 + 0.25 + 0.5) / 10, abs=1e-3)


def test_the_cells_of_a_notebook_are_summed_and_those_that_compile_longest_are_named():
    quiet, loud = compilations.Cell([], 3.0), compilations.Cell(LOG.splitlines(), 7.0)
    figures = compilations.summarize_cells([quiet, loud])
    assert figures["share"] == 0.5
    assert figures["code_cells"] == 2
    assert figures["longest_cells"] == [(2, 7.0, 2, 5.0), (1, 3.0, 0, 0.0)]


@pytest.fixture
def notebook(tmp_path):
    """Function of the sources of code cells: the path of a notebook with them."""

    def write(*sources):
        path = tmp_path / "notebook.ipynb"
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
        return path

    return write


@pytest.mark.slow
def test_the_compilations_of_a_notebook_are_counted_by_cell(notebook):
    path = notebook("import jax", "jax.jit(lambda x: x + 1)(1.0)", "1 + 1")
    finished = run("experiments.benchmarks.compilations", f"--notebook={path}")
    assert finished.status == 0, finished.err
    cold, _ = map(json.loads, finished.out.splitlines())
    assert (cold["notebook"], cold["code_cells"]) == (str(path), 3)
    number, _, count, seconds = cold["longest_cells"][0]
    assert (number, count) == (2, cold["compilations"])
    assert seconds > 0


@pytest.mark.slow
def test_a_notebook_that_fails_is_reported_with_its_reason(notebook):
    path = notebook("1 / 0")
    finished = run("experiments.benchmarks.compilations", f"--notebook={path}")
    assert finished.status == 1
    assert finished.err.endswith(f"error: {path} failed: ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "cannot be read: No such file"), ("no JSON", "is no notebook: ")],
)
def test_a_file_that_is_no_notebook_is_an_error(tmp_path, text, reason):
    path = tmp_path / "notebook.ipynb"
    if text is not None:
        path.write_text(text, "utf-8")
    finished = run("experiments.benchmarks.compilations", f"--notebook={path}")
    assert finished.status == 1
    assert f"error: {path} {reason}" in finished.err


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
