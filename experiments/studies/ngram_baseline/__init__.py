# SPDX-License-Identifier: Apache-2.0
"""An n-gram language model as a baseline for neural ones."""
