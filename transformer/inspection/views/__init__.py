# SPDX-License-Identifier: Apache-2.0
"""Interactive views of what a model does: self-contained pages, and frames in a notebook."""
