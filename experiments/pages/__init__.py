# SPDX-License-Identifier: Apache-2.0
"""HTML pages: evaluation of a model, comparison of systems, a model on one sentence."""
