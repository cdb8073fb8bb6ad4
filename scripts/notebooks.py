# SPDX-License-Identifier: Apache-2.0
"""Runs the notebooks and writes them with their outputs.

python scripts/notebooks.py            all of them
python scripts/notebooks.py 01 03      these

The sources are ``notebooks/NN_name.py`` in jupytext's percent format; ``NN_name.ipynb`` is made
beside each. Nothing in it depends on when, where and by which version it was made. The small model
is trained in the folder ``runs`` if it is not there.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SOURCES = REPOSITORY / "notebooks"
LONGEST = 600
"""Seconds that a cell may take on a machine that does much else."""


def main() -> int:
    """Runs those that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NN", help="the first characters of a name")
    parser.add_argument("--output", type=pathlib.Path, default=SOURCES, help="folder of .ipynb")
    parser.add_argument("--folder", type=pathlib.Path, default=REPOSITORY, help="where they run")
    arguments = parser.parse_args()
    for source in chosen(arguments.names):
        began = time.monotonic()
        try:
            notebook = executed(source, arguments.folder)
        except CellExecutionError as error:
            print(f"{source.name}: {error}", file=sys.stderr)
            return 1
        path = arguments.output / f"{source.stem}.ipynb"
        nbformat.write(notebook, path)
        size, seconds = path.stat().st_size, time.monotonic() - began
        print(f"{path.name}: {size / 1e3:.0f} kB, {seconds:.0f} s", flush=True)
    return 0


def chosen(names: list[str]) -> list[pathlib.Path]:
    """The sources whose names begin so; all unless any is given."""
    sources = sorted(SOURCES.glob("*.py"))
    for name in names:
        if not any(source.name.startswith(name) for source in sources):
            known = ", ".join(source.stem for source in sources)
            sys.exit(f"error: there is no notebook {name!r}; choose among {known}")
    return [source for source in sources if source.name.startswith(tuple(names or [""]))]


def executed(source: pathlib.Path, folder: pathlib.Path) -> nbformat.NotebookNode:
    """The notebook of a source, with its outputs.

    Args:
      source: in the percent format.
      folder: where the kernel works.

    Raises:
      CellExecutionError: when a cell fails.
    """
    notebook = jupytext.read(source)
    # The licence and what a Python file says of itself come before the first cell of the notebook.
    del notebook.cells[0]
    with tempfile.TemporaryDirectory() as scratch:
        # A kernel keeps its history and its settings there, and not in the user's own folders.
        # The packages are those of this repository, wherever the kernel works.
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"IPYTHONDIR": scratch, "JUPYTER_RUNTIME_DIR": scratch, "PYTHONPATH": path}
        os.environ |= own
        # Sockets are files of the scratch folder: nothing goes over a network.
        sockets = {"transport": "ipc", "connection_file": os.path.join(scratch, "kernel.json")}
        client = NotebookClient(
            notebook,
            timeout=LONGEST,
            kernel_name="python3",
            config=Config({"KernelManager": sockets}),
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    return _timeless(notebook)


def _timeless(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs from run to run or from machine to machine."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number:02}"
        if cell.cell_type == "code":
            # Progress and waiting; a cell that fails is no output but an error of this program.
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    nbformat.validate(notebook)
    return notebook


if __name__ == "__main__":
    sys.exit(main())
