# SPDX-License-Identifier: Apache-2.0
"""Tokenization (SentencePiece) and translation metrics (sacreBLEU)."""
