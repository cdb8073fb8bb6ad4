# SPDX-License-Identifier: Apache-2.0
"""Execute the notebooks and write them with their outputs.

python scripts/notebooks.py            all of them
python scripts/notebooks.py 01 03      these
python scripts/notebooks.py --headers  only rewrite the headers and the reading order

The sources are ``notebooks/NN_name.py`` in jupytext's percent format; each is executed and written
to ``NN_name.ipynb`` in the same directory. The file does not depend on the time, the machine or the
Python version. The small model is trained in the directory ``runs`` if it is missing.
Notebook 02 trains models itself: the environment variable TRAINING_STEPS shortens it for a test.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import sys
import tempfile

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SOURCES = REPOSITORY / "notebooks"
CELL_TIMEOUT = 3600
"""Seconds per cell; generous, for a machine under load."""


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What the reading order says of a notebook."""

    subject: str
    seconds: int
    """CPU time that this script prints, with an empty compile cache and the small model trained."""


SMALL_MODEL_SECONDS = 126
"""CPU time of the training that the first of notebooks 01 and 04 to 07 starts, once."""

LESSONS = {
    "01_the_illustrated_transformer_live": Lesson(
        "every picture of *The Illustrated Transformer*, drawn from a trained model", 70
    ),
    "02_build_it_break_it_look_inside": Lesson(
        "the model in plain JAX, then without each of its parts", 290
    ),
    "03_training_from_scratch": Lesson("from a config to a model that translates", 190),
    "04_decoding_greedy_and_beam": Lesson("from probabilities to a translation", 150),
    "05_attention_heads": Lesson("every head drawn, measured and switched off", 80),
    "06_where_does_it_find_the_animal": Lesson('how this model resolves "it"', 95),
    "07_alignment": Lesson("attention evaluated as a word alignment", 120),
    "08_cnn_rnn_self_attention": Lesson("what came before the Transformer, side by side", 170),
}
"""The notebooks in their reading order."""


def main() -> int:
    """Execute the notebooks named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        epilog=course(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NN", help="prefix of a notebook's name")
    parser.add_argument(
        "--output", type=pathlib.Path, default=SOURCES, help="directory of the .ipynb files"
    )
    parser.add_argument(
        "--folder", type=pathlib.Path, default=REPOSITORY, help="working directory of the kernel"
    )
    parser.add_argument(
        "--headers", action="store_true", help="rewrite the headers; execute nothing"
    )
    arguments = parser.parse_args()
    if arguments.headers:
        return write_headers()
    for source in select_sources(arguments.names):
        start = cpu_seconds()
        try:
            notebook = execute(source, arguments.folder)
        except CellExecutionError as error:
            print(f"{source.name}: {error}", file=sys.stderr)
            return 1
        path = arguments.output / f"{source.stem}.ipynb"
        nbformat.write(notebook, path)
        size, seconds = path.stat().st_size, cpu_seconds() - start
        print(f"{path.name}: {size / 1e3:.0f} kB, {seconds:.0f} s of CPU time", flush=True)
    return 0


def cpu_seconds() -> float:
    """CPU time of this process and of the kernels that it has ended."""
    return sum(os.times()[:4])


def course() -> str:
    """The reading order as plain text, with the time of each notebook."""
    lines = ["CPU time of each notebook on one core, compilation included:"]
    lines += [f"  {name:36} {lesson.seconds:4} s" for name, lesson in LESSONS.items()]
    lines.append(f"  {'the small model, trained once':36} {SMALL_MODEL_SECONDS:4} s")
    return "\n".join(lines)


def select_sources(names: list[str]) -> list[pathlib.Path]:
    """Sources whose name begins with one of these; all if there are none."""
    sources = sorted(SOURCES.glob("*.py"))
    for name in names:
        if not any(source.name.startswith(name) for source in sources):
            known = ", ".join(source.stem for source in sources)
            sys.exit(f"error: there is no notebook {name!r}; choose among {known}")
    return [source for source in sources if source.name.startswith(tuple(names or [""]))]


def read(source: pathlib.Path) -> nbformat.NotebookNode:
    """Read a source as a notebook, with its header."""
    notebook = jupytext.read(source)
    # The license comment and the docstring of the Python file are no part of the notebook.
    del notebook.cells[0]
    notebook.cells[0].source = with_header(notebook.cells[0].source, source.stem)
    return notebook


def with_header(text: str, name: str) -> str:
    """Insert neighbors and running time after the title of a notebook's first cell."""
    title, _, rest = text.partition("\n\n")
    names = list(LESSONS)
    number = names.index(name)
    parts = [f"Notebook {number + 1} of {len(names)} ([reading order](README.md))"]
    parts += [f"previous: [{each[:2]}]({each}.ipynb)" for each in names[:number][-1:]]
    parts += [f"next: [{each[:2]}]({each}.ipynb)" for each in names[number + 1 :][:1]]
    parts.append(f"about {LESSONS[name].seconds} s of one CPU core")
    return f"{title}\n\n{' · '.join(parts)}\n\n{rest}"


def write_headers() -> int:
    """Rewrite the header of each committed notebook and the table of `notebooks/README.md`."""
    for source in select_sources([]):
        path = source.with_suffix(".ipynb")
        notebook = nbformat.read(path, as_version=4)
        cells = read(source).cells
        if len(cells) != len(notebook.cells):
            sys.exit(f"error: {path.name} has other cells than {source.name}; execute it again")
        for fresh, cell in zip(cells, notebook.cells, strict=True):
            if cell.cell_type == "markdown":
                cell.source = fresh.source
        nbformat.write(notebook, path)
    page = SOURCES / "README.md"
    text = page.read_text(encoding="utf-8")
    begin, end = text.index(TABLE_BEGIN), text.index(TABLE_END)
    page.write_text(text[:begin] + table() + text[end:], encoding="utf-8")
    return 0


TABLE_BEGIN, TABLE_END = "| | notebook |", "\n<!-- end of the table -->"


def table() -> str:
    """The reading order as a Markdown table."""
    rows = [f"{TABLE_BEGIN} subject | CPU time |", "|---|---|---|---:|"]
    for number, (name, lesson) in enumerate(LESSONS.items(), 1):
        heading = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
        title = re.search(r"^# # (.*)", heading, re.MULTILINE)[1]
        link = f"[{title}]({name}.ipynb)"
        rows.append(f"| {number} | {link} | {lesson.subject} | {lesson.seconds} s |")
    return "\n".join(rows) + "\n"


def execute(source: pathlib.Path, folder: pathlib.Path) -> nbformat.NotebookNode:
    """Execute a source and return the notebook with its outputs.

    Args:
      source: in the percent format.
      folder: working directory of the kernel.

    Raises:
      CellExecutionError: when a cell fails.
    """
    notebook = read(source)
    with tempfile.TemporaryDirectory() as scratch:
        # The kernel writes its history and settings to the temporary directory, not to the user's.
        # It imports the packages of this repository from any working directory.
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        os.environ |= {"IPYTHONDIR": scratch, "JUPYTER_RUNTIME_DIR": scratch, "PYTHONPATH": path}
        # Sockets are files in the temporary directory, so nothing uses the network.
        sockets = {"transport": "ipc", "connection_file": os.path.join(scratch, "kernel.json")}
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT,
            kernel_name="python3",
            config=Config({"KernelManager": sockets}),
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    return _reproducible(notebook)


def _reproducible(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove everything that differs between runs or machines."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02}"
        if cell.cell_type == "code":
            # Standard error has only progress: a failing cell raises CellExecutionError instead.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.validate(notebook)
    return notebook


if __name__ == "__main__":
    sys.exit(main())
