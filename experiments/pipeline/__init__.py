# SPDX-License-Identifier: Apache-2.0
"""From sentence pairs to batches: tokenization cache, packing, batching, text checks."""
