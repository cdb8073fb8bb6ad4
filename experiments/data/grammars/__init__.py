# SPDX-License-Identifier: Apache-2.0
"""Corpora that are generated in this repository, without a download."""
