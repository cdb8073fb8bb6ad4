# SPDX-License-Identifier: Apache-2.0
"""Experiments: compose a model, an optimizer and a dataset, and run them from the command line."""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m experiments.NAME`, while Python locates the app
    from experiments.cli import startup
    from experiments.training import allocator

    allocator.restart_with_huge_pages()
    startup.prepare()
