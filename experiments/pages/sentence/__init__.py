# SPDX-License-Identifier: Apache-2.0
"""The page of `look`: what a trained model does with one sentence."""
