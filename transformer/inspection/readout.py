# SPDX-License-Identifier: Apache-2.0
"""Metrics of logits, which patching and attribution explain; certainty; and the logit lens."""

import math
from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from transformer.arrays import Array, Float, Int, Params, wide
from transformer.config import ModelConfig
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.interventions import no_interventions
from transformer.models.protocol import Model

Metric = Callable[[Float[Array, "T V"]], Float[Array, ""]]
"""One number of a sentence pair's logits: `LogProbability`, `LogitDifference`, or a function."""


@flax.struct.dataclass
class LogProbability:
    """Natural-log probability of `token` in row `position` of the logits."""

    position: Int[Array, ""] | int
    token: Int[Array, ""] | int

    def __call__(self, logits: Float[Array, "T V"]) -> Float[Array, ""]:
        """The log-probability in nats."""
        row = _row(logits, self.position)
        return _entry(row, self.token) - jax.nn.logsumexp(row)


@flax.struct.dataclass
class LogitDifference:
    """Logit of `token` minus that of `other` in row `position`, in nats."""

    position: Int[Array, ""] | int
    token: Int[Array, ""] | int
    other: Int[Array, ""] | int

    def __call__(self, logits: Float[Array, "T V"]) -> Float[Array, ""]:
        """Negative if the model prefers `other`."""
        row = _row(logits, self.position)
        return _entry(row, self.token) - _entry(row, self.other)


def contrast(target: Sequence[int], other: Sequence[int]) -> LogitDifference:
    """Metric: log P(token) - log P(other) where two targets differ first, after the same prefix.

    The question of contrastive attribution (Yin and Neubig 2022): why "es", and not "sie"? The
    softmax cancels, so the difference of the log-probabilities is that of the logits.

    Raises:
      InputError: when one target begins with the other.
    """
    pairs = enumerate(zip(target, other, strict=False))
    position = next((index for index, (one, two) in pairs if one != two), None)
    if position is None:
        raise InputError(
            f"the targets {list(target)} and {list(other)} do not differ in a token at which both "
            "go on; give two translations that differ in one"
        )
    return LogitDifference(position, int(target[position]), int(other[position]))


@flax.struct.dataclass
class Certainty:
    """How certain each prediction is."""

    entropy: Float[Array, " T"]
    """Entropy in bits: 0 if one token has all probability, log2 V if all have the same."""
    margin: Float[Array, " T"]
    """Probability of the most probable token minus that of the next one."""


def certainty(logits: Float[Array, "T V"]) -> Certainty:
    """Entropy and margin of the prediction in every row of the logits."""
    probabilities = jax.nn.softmax(logits.astype(wide(logits.dtype)))
    first, second = jnp.moveaxis(jax.lax.top_k(probabilities, 2)[0], -1, 0)
    return Certainty(entr(probabilities).sum(-1) / math.log(2), first - second)


def _row(logits: Float[Array, "T V"], position: Int[Array, ""] | int) -> Float[Array, " V"]:
    """A row in float32 or wider; NaN out of range, where JAX would clip the index."""
    exact = logits.astype(wide(logits.dtype))
    return exact.at[position].get(mode="fill", fill_value=jnp.nan)


def _entry(row: Float[Array, " V"], token: Int[Array, ""] | int) -> Float[Array, ""]:
    return row.at[token].get(mode="fill", fill_value=jnp.nan)


def checked_metric(metric: Metric, positions: int, config: ModelConfig) -> Metric:
    """The metric as an argument of a compiled function.

    The metrics of this module are pytrees: other positions and tokens do not recompile. Any other
    function is compiled anew.

    Raises:
      InputError: when it does not return one number.
    """
    logits = jax.ShapeDtypeStruct((positions, config.vocab_size), jnp.float32)
    shapes = [list(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(metric, logits))]
    if shapes != [[]]:
        raise InputError(
            f"for logits {list(logits.shape)} the metric returns arrays of the shapes {shapes}, "
            "but it must return one number"
        )
    return as_pytree(metric)


def as_pytree(metric: Metric) -> Metric:
    """The metric as a pytree; a plain function becomes a `jax.tree_util.Partial`."""
    is_leaf = jax.tree_util.treedef_is_leaf(jax.tree.structure(metric))
    return jax.tree_util.Partial(metric) if is_leaf else metric


def check_finite(value: Float[Array, ""], where: str) -> None:
    """Check the value of a metric.

    Raises:
      InputError: when it is not finite, naming the run.
    """
    if not jnp.isfinite(value):
        raise InputError(
            f"the metric is {float(value)} in the {where}; check that its position is a row of the "
            "logits and its tokens are in the vocabulary"
        )


def logit_lens(
    model: Model, params: Params, residual: Float[Array, "levels T D"]
) -> Float[Array, "levels T V"]:
    """Logits that the model would predict from the residual stream of each decoder layer.

    The logit lens of nostalgebraist (2020): the residual stream after each layer is read as if it
    were that of the last layer. Row 0 is the decoder's input, the last row equals the logits. Early
    layers are not trained to be read this way.

    Args:
      residual: `Trace.decoder.residual` of one sentence pair with full capture.
    """
    # The stream after the last layer is overwritten everywhere, so the tokens do not matter.
    source = jnp.full(1, model.config.eos_id)
    target_in = jnp.full(residual.shape[1], model.config.bos_id)
    nothing = no_interventions(model, len(source), len(target_in))
    last_layer = jnp.zeros(residual.shape[:2], bool).at[-1].set(True)

    def read(layer: Float[Array, "T D"]) -> Float[Array, "T V"]:
        value = jnp.zeros_like(residual).at[-1].set(layer)
        changed = nothing.patch_residual("decoder", last_layer, value)
        return trace.run(model, params, source, target_in, interventions=changed)[0]

    return jax.vmap(read)(residual)
