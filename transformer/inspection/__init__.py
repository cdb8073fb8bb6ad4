# SPDX-License-Identifier: Apache-2.0
"""Looking at what a model does, and at what it does it with.

`trace` runs one sentence pair and keeps everything; `search_log` keeps what a beam search did. On
attention weights: `weights` (what they must be), `measures`, `words`, `alignment`, `rollout`. On
the model: `residual` (what every sub-layer adds), `readout` (what logits say), `ablation` (heads
removed), `patching` (activations replaced), `attribution` (which words an answer rests on).
`figures` draws it, `views` are pages that one goes through it with, made of `html`.
"""

from transformer.inspection.trace import run

__all__ = ["run"]
