# SPDX-License-Identifier: Apache-2.0
"""Checks of parallel text, line by line."""
