# SPDX-License-Identifier: Apache-2.0
"""Experiments: compose a model, an optimizer and a dataset, and run them from the command line."""
