# SPDX-License-Identifier: Apache-2.0
"""Interactive views of a model: self-contained pages, and sandboxed frames in a notebook."""
