# SPDX-License-Identifier: Apache-2.0
"""Scores of translations, and tests of their differences; no HTML."""
