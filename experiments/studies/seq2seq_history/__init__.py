# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoder models from 2014 to 2017 with equal parameters and equal training time."""
