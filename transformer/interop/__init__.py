# SPDX-License-Identifier: Apache-2.0
"""Weights in and out: Hugging Face, Marian, CTranslate2, StableHLO."""
