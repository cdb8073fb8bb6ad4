# SPDX-License-Identifier: Apache-2.0
"""A sentence pair with everything that one forward pass of a trained model computes for it."""

import dataclasses
import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float, Int, Params
from transformer.config import ModelConfig
from transformer.inspection import Trace, measures, readout, residual, run
from transformer.inspection.views.attention_kinds import (
    Label,
    LabeledAttention,
    trace_attention_kinds,
    visible_token,
)
from transformer.inspection.words import display_tokens
from transformer.models.protocol import Model
from transformer.text.tokenizer import Tokenizer


@flax.struct.dataclass
class Computed:
    """Results of one forward pass on one sentence pair."""

    trace: Trace
    log_probs: Float[Array, "T V"]
    """Natural-log probabilities of the next token at every position."""
    distance: dict[str, Float[Array, "L N"]]
    """Mean distance between a query and the keys it reads, by kind of attention."""
    roles: dict[str, measures.HeadRoles]
    lens: Float[Array, "L+1 T V"] | None
    """Token probabilities from the decoder's residual stream at its input and after each layer."""
    flows: dict[str, residual.ResidualFlow]
    """Residual flow of each stack that has a residual stream."""


@functools.partial(jax.jit, static_argnames="model")
def _compute(
    model: Model,
    params: Params,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
) -> Computed:
    """Compute everything in one program, which compiles faster than many small ones."""
    logits, trace = run(model, params, source, target_in, capture="full")
    described = model.describe()
    weights = {kind: trace.attention(kind).weights for kind in described.attention}
    lens = None
    if "decoder" in described.residual_layers:
        early_logits = readout.logit_lens(model, params, trace.decoder.residual)
        lens = jax.nn.softmax(early_logits)
    flows = {
        side: residual.residual_flow(getattr(trace, side)) for side in described.residual_layers
    }
    return Computed(
        trace=trace,
        log_probs=jax.nn.log_softmax(logits),
        distance={k: measures.row_mean(measures.attention_distance(w)) for k, w in weights.items()},
        roles={kind: measures.head_roles(w) for kind, w in weights.items()},
        lens=lens,
        flows=jax.tree.map(lambda vectors: vectors.astype(jnp.float32), flows),
    )


@dataclasses.dataclass(frozen=True)
class AnalyzedPair:
    """A model, one sentence pair, and everything that one forward pass computes for it."""

    model: Model
    params: Params
    tokenizer: Tokenizer
    source: list[int]
    target: list[int]
    """Predicted tokens, ending with EOS."""
    computed: Computed

    @classmethod
    def of(
        cls,
        model: Model,
        params: Params,
        tokenizer: Tokenizer,
        source: Sequence[int],
        target: Sequence[int],
    ) -> "AnalyzedPair":
        """Run the model on a sentence pair."""
        target_in = np.array([model.config.bos_id, *target[:-1]])
        computed = jax.device_get(_compute(model, params, np.array(source), target_in))
        return cls(model, params, tokenizer, list(source), list(target), computed)

    def with_source(self, source: Sequence[int]) -> "AnalyzedPair":
        """The same model and target with another source."""
        return self.of(self.model, self.params, self.tokenizer, source, self.target)

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""
        return self.model.config

    @property
    def target_in(self) -> list[int]:
        """Tokens that the decoder reads."""
        return [self.config.bos_id, *self.target[:-1]]

    @property
    def has_residual_streams(self) -> bool:
        """Whether both stacks have a residual stream."""
        return len(self.computed.flows) == 2

    @functools.cached_property
    def pieces(self) -> list[str]:
        """Every token of the vocabulary, in the order of the ids."""
        return self.tokenizer.pieces(range(self.config.vocab_size))

    @functools.cached_property
    def _shown(self) -> list[str]:
        return list(map(visible_token, display_tokens(self.pieces)))

    def text(self, token: int) -> str:
        """One token of the vocabulary as it is shown."""
        return self._shown[token]

    def label(self, *tokens: int) -> Label:
        """The label of a row or column."""
        return tuple(map(self.text, tokens))

    @property
    def source_labels(self) -> list[Label]:
        """Labels of the source positions."""
        return list(map(self.label, self.source))

    @property
    def prefix_labels(self) -> list[Label]:
        """Labels of the tokens that the decoder reads."""
        return list(map(self.label, self.target_in))

    @property
    def decoder_labels(self) -> list[Label]:
        """Labels of decoder rows: the token that is read, and the one that is predicted."""
        return list(map(self.label, self.target_in, self.target))

    @functools.cached_property
    def attention(self) -> tuple[LabeledAttention, ...]:
        """The weights of every kind of attention, with their labels."""
        shown = {
            "source_tokens": self.source,
            "target_in": self.target_in,
            "target_out": self.target,
        }
        return trace_attention_kinds(
            self.computed.trace, **{name: list(map(self.text, ids)) for name, ids in shown.items()}
        )
