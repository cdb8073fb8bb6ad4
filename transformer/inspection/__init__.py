# SPDX-License-Identifier: Apache-2.0
"""Interpretability tools for trained encoder-decoder models.

- `trace`: run one sentence pair, capture everything, intervene on anything.
- `search_log`: record every step of a beam search.
- `measures`, `rollout`, `words`, `alignment`: measures of attention weights.
- `residual`, `readout`: the residual stream and the logit lens.
- `ablation`, `patching`, `omission`, `attribution`, `value_zeroing`: causal and gradient methods.
- `direct_logits`, `head_circuits`: what parts of the model write, and heads by their parameters.
- `figures` (matplotlib) and `views` (interactive pages): presentation.

In all functions `params` and `config` (``Config.model``) are of one model. Source ids end with
EOS; `target_in` are the ids that the decoder reads, BOS first. Parameters of another model, a model
without the attention or residual stream that a function needs, and tokens that are not sentences of
the vocabulary raise `InputError`.
"""

from transformer.inspection.trace import run

__all__ = ["run"]
