# SPDX-License-Identifier: Apache-2.0
"""The live page: one file in which a trained model runs in the browser, in plain JavaScript."""
