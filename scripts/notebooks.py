# SPDX-License-Identifier: Apache-2.0
"""Execute the notebooks and write them with their outputs.

python scripts/notebooks.py            all of them
python scripts/notebooks.py 01 03      these

The sources are ``notebooks/NN_name.py`` in jupytext's percent format; each is executed and written
to ``NN_name.ipynb`` in the same directory. The file does not depend on the time, the machine or the
Python version. The small model is trained in the directory ``runs`` if it is missing.
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
CELL_TIMEOUT = 600
"""Seconds per cell; generous, for a machine under load."""


def main() -> int:
    """Execute the notebooks named on the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NN", help="prefix of a notebook's name")
    parser.add_argument(
        "--output", type=pathlib.Path, default=SOURCES, help="directory of the .ipynb files"
    )
    parser.add_argument(
        "--folder", type=pathlib.Path, default=REPOSITORY, help="working directory of the kernel"
    )
    arguments = parser.parse_args()
    for source in select_sources(arguments.names):
        start = time.monotonic()
        try:
            notebook = execute(source, arguments.folder)
        except CellExecutionError as error:
            print(f"{source.name}: {error}", file=sys.stderr)
            return 1
        path = arguments.output / f"{source.stem}.ipynb"
        nbformat.write(notebook, path)
        size, seconds = path.stat().st_size, time.monotonic() - start
        print(f"{path.name}: {size / 1e3:.0f} kB, {seconds:.0f} s", flush=True)
    return 0


def select_sources(names: list[str]) -> list[pathlib.Path]:
    """Sources whose name begins with one of these; all if there are none."""
    sources = sorted(SOURCES.glob("*.py"))
    for name in names:
        if not any(source.name.startswith(name) for source in sources):
            known = ", ".join(source.stem for source in sources)
            sys.exit(f"error: there is no notebook {name!r}; choose among {known}")
    return [source for source in sources if source.name.startswith(tuple(names or [""]))]


def execute(source: pathlib.Path, folder: pathlib.Path) -> nbformat.NotebookNode:
    """Execute a source and return the notebook with its outputs.

    Args:
      source: in the percent format.
      folder: working directory of the kernel.

    Raises:
      CellExecutionError: when a cell fails.
    """
    notebook = jupytext.read(source)
    # The license comment and the docstring of the Python file are no part of the notebook.
    del notebook.cells[0]
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
