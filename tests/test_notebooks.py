# SPDX-License-Identifier: Apache-2.0
"""The notebooks run, soon enough, and what is kept of them is what they are."""

import json
import re
import resource
import subprocess
import sys

import pytest
import variables
from apps import REPOSITORY, environment

SOURCES = sorted((REPOSITORY / "notebooks").glob("*.py"))
QUICK = ("01", "03")
"""Run by the default suite; the others are slow."""
SECONDS = 2 * 120
"""Of processor time: two minutes on two cores."""
QUICK_SECONDS = SECONDS - 40
"""By default notebooks are compiled more quickly than by their readers, which saves about 17."""
BYTES = 1_000_000

NOTEBOOKS = [
    pytest.param(
        source, id=source.stem, marks=() if source.stem[:2] in QUICK else (pytest.mark.slow,)
    )
    for source in SOURCES
]


def cells_of(notebook):
    """(type, text) of each cell."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def outputs_of(notebook):
    """Every output as text, without the bytes of pictures."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    for output in outputs:
        output.get("data", {}).pop("image/png", None)
    return json.dumps(outputs, ensure_ascii=False)


TRAINING = "from experiments.studies import small_model; small_model.load(seed=0, folder='runs')"
"""What the first cells of a notebook do where nobody did it before."""


def measured(command, folder, own):
    """How a command ended, and its seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(
        command,
        cwd=folder,
        env=environment() | own,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    names = ("ru_utime", "ru_stime")
    return finished, sum(getattr(after, name) - getattr(before, name) for name in names)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder where all of them work, so that the small model is trained once; the seconds."""
    folder = tmp_path_factory.mktemp("notebooks")
    command = [sys.executable, "-c", TRAINING]
    finished, seconds = measured(command, folder, variables.USUAL)
    assert finished.returncode == 0, finished.stderr
    return folder, seconds


@pytest.fixture(scope="module")
def ran(trained):
    """Runs a notebook once; (source) -> how the command ended, the notebook, and its seconds, those
    of the training included.
    """
    folder, training = trained
    done = {}
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(source):
        if source not in done:
            program = [sys.executable, str(REPOSITORY / "scripts" / "notebooks.py"), source.stem]
            folders = [f"--folder={folder}", f"--output={folder}"]
            # Of the slow ones one trains, and what they compile runs for long.
            own = variables.QUICK if source.stem[:2] in QUICK else variables.USUAL
            finished, seconds = measured([*program, *folders], REPOSITORY, own | cache)
            path = folder / f"{source.stem}.ipynb"
            notebook = json.loads(path.read_text("utf-8")) if path.exists() else None
            done[source] = finished, notebook, training + seconds
        return done[source]

    return run


@pytest.mark.parametrize("source", NOTEBOOKS)
def test_a_notebook_runs_to_its_end_in_time(ran, source):
    finished, notebook, seconds = ran(source)
    assert finished.returncode == 0, finished.stderr
    assert notebook["cells"][-1]["cell_type"] == "code"
    assert "assert" in "".join(notebook["cells"][-1]["source"]), "it ends by checking its text"
    assert seconds < (QUICK_SECONDS if source.stem[:2] in QUICK else SECONDS)


@pytest.mark.parametrize("source", NOTEBOOKS)
def test_what_is_kept_has_the_cells_of_the_source_and_outputs_of_the_same_kinds(ran, source):
    _, fresh, _ = ran(source)
    kept = json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))
    assert cells_of(kept) == cells_of(fresh)
    assert kept["metadata"] == fresh["metadata"]

    def kinds(notebook):
        return [
            [sorted(output.get("data", {output["output_type"]: ""})) for output in outputs]
            for outputs in (cell.get("outputs", []) for cell in notebook["cells"])
        ]

    assert kinds(kept) == kinds(fresh)


@pytest.mark.parametrize("path", [source.with_suffix(".ipynb") for source in SOURCES], ids=str)
def test_what_is_kept_is_small_fetches_nothing_and_names_no_machine(path):
    assert path.stat().st_size < BYTES
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert [cell["id"] for cell in notebook["cells"]] == [
        f"cell-{number:02}" for number in range(1, len(notebook["cells"]) + 1)
    ]
    for cell in notebook["cells"]:
        assert "execution" not in cell["metadata"], "times differ from run to run"
    outputs = outputs_of(notebook)
    fetched = re.findall(r"(?:src|href|url\(|@import)[^>]{0,9}https?://[^\s\"']*", outputs)
    assert fetched == []
    assert "Traceback" not in outputs
    assert re.findall(r"(?:/home|/root|/tmp|/Users)/[\w./-]*", outputs) == []
    assert str(REPOSITORY) not in outputs


@pytest.mark.parametrize("path", [source.with_suffix(".ipynb") for source in SOURCES], ids=str)
def test_every_figure_has_a_text_in_its_place(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert figures
    for figure in figures:
        assert len(figure["metadata"]["image/png"]["alt"]) > 40


def test_an_unknown_notebook_is_refused_with_the_known_ones():
    finished = subprocess.run(
        [sys.executable, "scripts/notebooks.py", "99"],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 1
    assert "no notebook '99'" in finished.stderr
    assert SOURCES[0].stem in finished.stderr


def test_an_ipynb_of_each_source_is_kept_and_no_other():
    kept = {path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    assert kept == {source.stem for source in SOURCES}
