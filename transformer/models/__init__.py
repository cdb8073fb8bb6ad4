# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoder model families behind one protocol (`transformer.models.base`)."""
