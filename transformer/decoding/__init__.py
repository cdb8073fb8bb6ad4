# SPDX-License-Identifier: Apache-2.0
"""Beam search, sampling and minimum Bayes risk decoding over an abstract step function."""
