# SPDX-License-Identifier: Apache-2.0
"""The environment, marks and order of all tests; `environment.py` has their fixtures."""

import gc
import os

import variables

# The processes that run tests inherit what the C library, XLA and JAX read when they start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ |= variables.QUICK


def pytest_configure(config):
    """Import the fixtures, and JAX with them, in the processes that run tests."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        config.pluginmanager.import_plugin("environment")


LONGEST = (
    *("test_results", "test_pronoun_results", "test_notebooks", "test_seams", "test_training"),
    *("test_devices", "test_model", "test_apps"),
)
"""These files are begun first, so that neither process has to finish one when the other is done."""


def pytest_collection_modifyitems(items):
    """Mark each test with its folder, so that ``-m "nn or decoding"`` runs these rooms."""
    for item in items:
        item.add_marker(item.path.parent.name)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else 9)


def pytest_collection_finish():
    """What importing has made stays; else it is gone through again and again for garbage."""
    gc.collect()
    gc.freeze()
