# SPDX-License-Identifier: Apache-2.0
"""Layers of the model: each formula as a pure function, then as a small Linen module."""
