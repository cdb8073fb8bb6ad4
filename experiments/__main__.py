# SPDX-License-Identifier: Apache-2.0
"""The command ``transformer``, which runs the apps: transformer train --config=pronouns:de ...

``transformer NAME`` is ``python -m experiments.NAME``, but works in any directory: there, a folder
with the name of this package would hide it.
"""

import ast
import pathlib
import runpy
import sys

from transformer.provenance import provenance

APPS = (
    "train",
    "evaluate",
    "translate",
    "score",
    "sample",
    "serve",
    "look",
    "compare",
    "doctor",
    "plan",
    "bundle",
    "back_translate",
    "convert",
)


def main() -> None:
    """Run the app that the first argument names; list the apps if there is none."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-help", "-h"):
        print("Usage: transformer APP [FLAGS], or python -m experiments.APP [FLAGS]\n")
        for app in APPS:
            print(f"  {app:<16} {_summary(app)}")
        print("\ntransformer APP --help describes an app and its flags.")
        return
    if name in ("--version", "-version"):
        print(provenance()["version"])
        return
    if name not in APPS:
        sys.exit(f"error: there is no app {name!r}; choose from {', '.join(APPS)}")
    sys.argv = [f"transformer {name}", *arguments]
    runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=True)


def _summary(app: str) -> str:
    """First line of an app's docstring, without importing the app."""
    source = pathlib.Path(__file__).with_name(f"{app}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)).partition("\n")[0].removesuffix(".")


if __name__ == "__main__":
    main()
