# SPDX-License-Identifier: Apache-2.0
"""From a corpus to batches: sentence pairs by name, token cache, packing, batching."""
