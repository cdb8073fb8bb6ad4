# SPDX-License-Identifier: Apache-2.0
"""The metadata is in pyproject.toml; this file serves tools that look for it."""

from setuptools import setup

setup()
