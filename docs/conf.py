# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration: MyST pages, the executed notebooks, and an API reference from docstrings.

python -m sphinx -W --keep-going docs docs/_build
"""

import pathlib
import shutil

import transformer

# Links between notebooks are followed within this folder alone, which a symbolic link would leave.
_here = pathlib.Path(__file__).parent
shutil.rmtree(_here / "notebooks", ignore_errors=True)
shutil.copytree(_here.parent / "notebooks", _here / "notebooks")

project = "attention-transformer"
copyright = "the authors"  # noqa: A001 - the name that Sphinx reads
html_title = "The Transformer, to learn from and to run"

extensions = [
    "myst_nb",
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "notebooks/*.py"]

# The API pages, one per subpackage, are generated from the source tree into docs/api.
apidoc_modules = [
    {"path": "../transformer", "destination": "api", "module_first": True, "include_private": False}
]

# Notebooks are committed with their outputs (scripts/notebooks.py runs them).
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type"]

# A single backtick in a docstring is code.
default_role = "code"
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "ignore-module-all": True,
    "exclude-members": "__init__, replace, set, setup, parent, name, scope",
}
autodoc_typehints = "none"  # array types with axis letters stay in the signature
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "sphinx_book_theme"
html_theme_options = {"show_toc_level": 2, "show_navbar_depth": 1}
html_show_sourcelink = False

version = release = "0.1.0"
assert transformer.__doc__, "the package must be importable for the API reference"
