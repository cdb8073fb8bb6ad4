# SPDX-License-Identifier: Apache-2.0
"""From sentence pairs to batches: checks, token cache, packing and batching."""
