# SPDX-License-Identifier: Apache-2.0
"""What is read off logits: the one number that patching and attribution explain, and the logit
lens.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params, wide
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.trace import apply

Metric = Callable[[Float[Array, "T V"]], Float[Array, ""]]
"""One number of a sentence pair's logits: `LogProbability`, `LogitDifference`, or a function."""


@flax.struct.dataclass
class LogProbability:
    """The natural-log probability of `token` in row `position` of the logits."""

    position: Int[Array, ""] | int
    token: Int[Array, ""] | int

    def __call__(self, logits: Float[Array, "T V"]) -> Float[Array, ""]:
        """In nats."""
        row = _row(logits, self.position)
        return _entry(row, self.token) - jax.nn.logsumexp(row)


@flax.struct.dataclass
class LogitDifference:
    """By how many nats the model prefers `token` to `other` in row `position` of the logits."""

    position: Int[Array, ""] | int
    token: Int[Array, ""] | int
    other: Int[Array, ""] | int

    def __call__(self, logits: Float[Array, "T V"]) -> Float[Array, ""]:
        """In nats; below 0 where `other` is preferred."""
        row = _row(logits, self.position)
        return _entry(row, self.token) - _entry(row, self.other)


def _row(logits: Float[Array, "T V"], position: Int[Array, ""] | int) -> Float[Array, " V"]:
    """A row in float32 or wider; NaN where there is none, since JAX would take the last one."""
    exact = logits.astype(wide(logits.dtype))
    return exact.at[position].get(mode="fill", fill_value=jnp.nan)


def _entry(row: Float[Array, " V"], token: Int[Array, ""] | int) -> Float[Array, ""]:
    return row.at[token].get(mode="fill", fill_value=jnp.nan)


def checked(metric: Metric, positions: int, config: TransformerConfig) -> Metric:
    """The metric as an argument of a compiled function.

    Those of this file are pytrees: other positions and tokens need no second compilation. For any
    other function there is one.

    Args:
      metric: of the logits.
      positions: the number T of rows that the logits have.
      config: of the model.

    Raises:
      InputError: when it gives anything but one number.
    """
    logits = jax.ShapeDtypeStruct((positions, config.vocab_size), jnp.float32)
    shapes = [list(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(metric, logits))]
    if shapes != [[]]:
        raise InputError(
            f"of logits {list(logits.shape)} the metric gives arrays of the shapes {shapes}, but "
            "it must give one number"
        )
    is_leaf = jax.tree_util.treedef_is_leaf(jax.tree.structure(metric))
    return jax.tree_util.Partial(metric) if is_leaf else metric


def require_finite(value: Float[Array, ""], where: str) -> None:
    """Refuses a metric that is no number.

    Raises:
      InputError: naming the run that it was read in.
    """
    if not jnp.isfinite(value):
        raise InputError(
            f"the metric is {float(value)} in the {where}; check that its position is a row of the "
            "logits and its tokens are in the vocabulary"
        )


def logit_lens(
    params: Params, config: TransformerConfig, residual: Float[Array, "P T D"]
) -> Float[Array, "P T V"]:
    """What the model would predict if the decoder ended at each layer (nostalgebraist 2020).

    The residual stream after each layer goes through what stands after the last one: with pre-norm
    the final norm, and the embedding table. Row 0 is the decoder's input, the last row is the
    logits. Early layers need not write in the basis that the table reads.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      residual: `Trace.decoder.residual` of one sentence pair, captured in full; P = L + 1.
    """

    def head(model, x: Float[Array, "P T D"]) -> Float[Array, "P T V"]:
        return model.embedding.logits(model.decoder.final_norm(x) if config.norm == "pre" else x)

    return apply(params, config, residual, method=head)
