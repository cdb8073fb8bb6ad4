# SPDX-License-Identifier: Apache-2.0
"""The notebooks run, and the committed files match their sources."""

import html
import importlib.util
import json
import re
import subprocess
import sys

import pytest
import variables
from apps import REPOSITORY, environment

SCRIPT = REPOSITORY / "scripts" / "notebooks.py"
SOURCES = sorted((REPOSITORY / "notebooks").glob("*.py"))
COMMITTED = [source.with_suffix(".ipynb") for source in SOURCES]
SHORT = {"TRAINING_STEPS": "20"}
"""Shortens the trainings of notebook 02, whose committed outputs come from the complete ones."""
BYTES = 1_000_000


def read(path):
    """A notebook."""
    return json.loads(path.read_text(encoding="utf-8"))


def cells_of(notebook):
    """Type and text of each cell."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def outputs_of(notebook):
    """All outputs of a notebook."""
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def output_types(notebook):
    """The MIME types of each output of each cell."""
    return [
        [sorted(output.get("data", {output["output_type"]: ""})) for output in outputs]
        for outputs in (cell.get("outputs", []) for cell in notebook["cells"])
    ]


def text_of_outputs(notebook):
    """All outputs as text, without the bytes of images."""
    outputs = outputs_of(notebook)
    for output in outputs:
        output.get("data", {}).pop("image/png", None)
    return json.dumps(outputs, ensure_ascii=False)


TRAINING = "from experiments.studies import small_model; small_model.load(seed=0, folder='runs')"
"""What the first cell of a notebook does if the model is missing."""


def execute(command, folder, **more):
    """Run a program as users do; the notebooks compute for longer than they compile."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment() | variables.USUAL | more,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Working directory with the trained small model, shared by all notebooks."""
    folder = tmp_path_factory.mktemp("notebooks")
    finished = execute(["-c", TRAINING], folder)
    assert finished.returncode == 0, finished.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_notebook_runs_to_its_end_and_has_the_kinds_of_output_that_are_committed(trained, source):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(trained / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    folders = [f"--folder={trained}", f"--output={trained}"]
    finished = execute([str(SCRIPT), source.stem, *folders], REPOSITORY, **cache, **SHORT)
    assert finished.returncode == 0, finished.stderr
    fresh, committed = read(trained / f"{source.stem}.ipynb"), read(source.with_suffix(".ipynb"))
    kind, text = cells_of(fresh)[-1]
    assert kind == "code" and "assert" in text, "the last cell checks the claims of the text"
    assert committed["metadata"] == fresh["metadata"]
    assert output_types(committed) == output_types(fresh)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_notebook_is_small_loads_nothing_and_has_no_machine_paths(path):
    assert path.stat().st_size < BYTES
    notebook = read(path)
    assert [cell["id"] for cell in notebook["cells"]] == [
        f"cell-{number:02}" for number in range(1, len(notebook["cells"]) + 1)
    ]
    for cell in notebook["cells"]:
        assert "execution" not in cell["metadata"], "times differ between runs"
    figures = [output for output in outputs_of(notebook) if "image/png" in output.get("data", {})]
    assert figures
    for figure in figures:
        assert len(figure["metadata"]["image/png"]["alt"]) > 40, "the alternative text"
    outputs = text_of_outputs(notebook)
    loaded = re.findall(r"(?:src|href|url\(|@import)[^>]{0,9}https?://[^\s\"']*", outputs)
    assert loaded == []
    assert "Traceback" not in outputs
    assert re.findall(r"(?:/home|/root|/tmp|/Users)/[\w./-]*", outputs) == []
    assert str(REPOSITORY) not in outputs


@pytest.mark.slow
def test_the_frame_of_every_view_is_as_high_as_its_content(show):
    heights = []
    for source in SOURCES:
        for output in outputs_of(read(source.with_suffix(".ipynb"))):
            text = "".join(output.get("data", {}).get("text/html", ""))
            for page, height in re.findall(
                r'<iframe srcdoc="(.*?)" sandbox.*?;?height:(\d+)px', text, re.DOTALL
            ):
                # The width of a cell of JupyterLab in a window of 1,200 pixels.
                shown = show(html.unescape(page), viewport={"width": 860, "height": 600})
                content = shown.evaluate("document.documentElement.scrollHeight")
                assert content <= int(height), source.stem
                heights.append(content)
    assert len(heights) >= 5


@pytest.fixture(scope="module")
def script():
    """The module scripts/notebooks.py."""
    spec = importlib.util.spec_from_file_location("notebooks_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # A dataclass looks its module up.
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_committed_notebook_has_the_cells_of_its_source(script, source):
    assert cells_of(read(source.with_suffix(".ipynb"))) == cells_of(script.read(source))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_notebook_has_its_neighbors_and_its_time_under_the_title(script, source):
    title, place = script.read(source).cells[0].source.split("\n\n")[:2]
    number = 1 + SOURCES.index(source)
    assert title.startswith("# ")
    assert place.startswith(f"Notebook {number} of {len(SOURCES)} ")
    links = re.findall(r"\((\w+\.ipynb)\)", place)
    assert links == [
        path.with_suffix(".ipynb").name
        for path in SOURCES[max(number - 2, 0) : number + 1]
        if path != source
    ]
    assert f"about {script.LESSONS[source.stem].seconds} s of one CPU core" in place


def test_the_reading_order_lists_every_notebook_with_its_time(script):
    page = (REPOSITORY / "notebooks" / "README.md").read_text(encoding="utf-8")
    assert [*script.LESSONS] == [source.stem for source in SOURCES]
    assert script.table() in page
    assert f"about {script.SMALL_MODEL_SECONDS} s" in page
    for name, lesson in script.LESSONS.items():
        assert re.search(rf"{name} +{lesson.seconds} s", script.course())


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_every_exercise_has_one_folded_answer_that_a_cell_computes(source):
    notebook = read(source.with_suffix(".ipynb"))
    text = "\n".join(text for kind, text in cells_of(notebook) if kind == "markdown")
    numbers = [int(number) for number in re.findall(r"\*\*Exercise (\d+)\.\*\*", text)]
    assert len(numbers) >= 3 and numbers == [*range(1, len(numbers) + 1)]
    answers = [
        "".join(output["data"]["text/markdown"])
        for output in outputs_of(notebook)
        if "text/markdown" in output.get("data", {})
    ]
    folded = [answer for answer in answers if answer.startswith("<details>\n<summary>Answer")]
    assert len(folded) == len(numbers)
    assert all(answer.endswith("\n\n</details>") for answer in folded)


def test_the_committed_comparison_of_notebook_02_comes_from_complete_trainings():
    [source] = [source for source in SOURCES if source.stem.startswith("02_")]
    steps = re.search(r"^FULL_TRAINING = (\d+)$", source.read_text(encoding="utf-8"), re.MULTILINE)
    assert f"{steps[1]} steps of " in text_of_outputs(read(source.with_suffix(".ipynb")))


def test_an_unknown_notebook_is_an_error_that_lists_the_known_ones():
    finished = execute([str(SCRIPT), "99"], REPOSITORY)
    assert finished.returncode == 1
    assert "no notebook '99'" in finished.stderr
    assert SOURCES[0].stem in finished.stderr


def test_every_source_has_a_committed_notebook_and_there_is_no_other():
    committed = {path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    assert committed == {source.stem for source in SOURCES}
