# SPDX-License-Identifier: Apache-2.0
"""Looking at what a model does, and at what it does it with.

`trace` runs one sentence pair and keeps everything. On attention weights: `measures`, `words`,
`alignment`, `rollout`. On the model: `readout` (what logits say), `ablation` (heads removed),
`patching` (activations replaced), `attribution` (which words an answer rests on). `html` makes
pages that show it.
"""

from transformer.inspection.trace import run

__all__ = ["run"]
