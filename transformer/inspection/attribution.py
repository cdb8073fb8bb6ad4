# SPDX-License-Identifier: Apache-2.0
"""Which words of the source and of the target read so far an answer rests on.

Integrated gradients (Sundararajan et al. 2017) divide the difference that the words make among the
words: from a baseline in which every position has its positional encoding and no word, to the
sentence pair as it is. Gradients alone, times the input, are one backward pass and add up to
nothing in particular.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params, wide
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.patching import with_patches
from transformer.inspection.readout import Metric, checked, require_finite
from transformer.inspection.trace import Tokens, check_at_least_one, check_tokens, is_concrete, run
from transformer.nn.capture import Interventions

AT_ONCE = 64
"""Points of the way that are computed together; the memory of that many sentences is needed."""


@flax.struct.dataclass
class Attribution:
    """What each token contributes to a metric, in its units (nats)."""

    source: Float[Array, " S"]
    target: Float[Array, " T"]
    """Of the tokens that the decoder read; exactly 0 for those after the position asked about."""
    value: Float[Array, ""]
    """The metric of the sentence pair."""
    baseline: Float[Array, ""]
    """The metric where no position has a word."""

    @property
    def gap(self) -> Float[Array, ""]:
        """By how much all contributions miss value - baseline, which they should add up to."""
        total = self.source.sum() + self.target.sum()
        return jnp.abs(total - (self.value - self.baseline))

    @property
    def relative_gap(self) -> Float[Array, ""]:
        """The completeness gap as a share of |value - baseline|."""
        return self.gap / jnp.abs(self.value - self.baseline)


def integrated_gradients(
    params: Params,
    config: TransformerConfig,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    steps: int = 256,
    baseline_token: int | None = None,
) -> Attribution:
    """The mean gradient on the way from no words to the words, times the words, token by token.

    Args:
      params: of the model that `config` describes.
      config: of the model.
      source: ids [S].
      target_in: ids [T] that the decoder reads.
      metric: one number of the logits [T,V], such as a `readout.LogProbability`. A function of
        one's own is compiled for.
      steps: at how many points of the way the gradient is taken: the midpoints of so many equal
        parts. Where the completeness gap is not small, more: it comes from short stretches of the
        way on which the answer turns.
      baseline_token: the token that stands at every position of the baseline; unless given no
        token does, which is an embedding of 0.

    Raises:
      InputError: for parameters of another model, tokens that are not of the vocabulary, fewer
        than one step, or a metric that is not one number.
    """
    check_at_least_one("steps", steps)
    midpoints = (jnp.arange(steps) + 0.5) / steps
    return _checked(params, config, source, target_in, metric, midpoints, baseline_token)


def input_x_gradient(
    params: Params,
    config: TransformerConfig,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    *,
    baseline_token: int | None = None,
) -> Attribution:
    """The gradient at the words, times the words: integrated gradients with its end point alone.

    Args and errors are those of `integrated_gradients`.
    """
    return _checked(params, config, source, target_in, metric, jnp.ones(1), baseline_token)


def _checked(
    params: Params,
    config: TransformerConfig,
    source: Tokens,
    target_in: Tokens,
    metric: Metric,
    points: Float[Array, " P"],
    baseline_token: int | None,
) -> Attribution:
    """Checks what goes into an attribution and what comes out."""
    source = check_tokens("source", source, config)
    target_in = check_tokens("target_in", target_in, config)
    if baseline_token is not None and not 0 <= baseline_token < config.vocab_size:
        raise InputError(
            f"baseline_token is {baseline_token}, but this model's tokens are 0 to "
            f"{config.vocab_size - 1}"
        )
    metric = checked(metric, len(target_in), config)
    attribution = _attribute(params, config, source, target_in, metric, points, baseline_token)
    if is_concrete(attribution):
        require_finite(attribution.value, "sentence pair")
        require_finite(attribution.baseline, "baseline")
    return attribution


@functools.partial(jax.jit, static_argnames="config")
def _attribute(
    params: Params,
    config: TransformerConfig,
    source: Int[Array, " S"],
    target_in: Int[Array, " T"],
    metric: Metric,
    points: Float[Array, " P"],
    baseline_token: Int[Array, ""] | int | None,
) -> Attribution:
    def embedded(
        source: Int[Array, " S"], target_in: Int[Array, " T"]
    ) -> list[tuple[Float[Array, "S D"], Float[Array, "T D"]]]:
        """The words and the positions of source and target, in float32 or wider."""
        _, trace = run(params, config, source, target_in, capture="full")
        vectors = [(stack.embedded, stack.positions) for stack in (trace.encoder, trace.decoder)]
        dtype = wide(vectors[0][0].dtype)
        return [tuple(each.astype(dtype) for each in kind) for kind in zip(*vectors, strict=True)]

    words, positions = embedded(source, target_in)
    if baseline_token is None:
        start = jax.tree.map(jnp.zeros_like, words)
    else:
        start, _ = embedded(*(jnp.full_like(ids, baseline_token) for ids in (source, target_in)))
    difference = jax.tree.map(jnp.subtract, words, start)
    nothing = Interventions.none(config, len(source), len(target_in))

    def value(inputs: tuple[Float[Array, "S D"], Float[Array, "T D"]]) -> Float[Array, ""]:
        """The metric with these words in place of the embedded tokens."""
        changed = nothing
        for side, own, position in zip(("encoder", "decoder"), inputs, positions, strict=True):
            residual = getattr(nothing, side).patch_value.at[0].set(own + position)
            mask = jnp.zeros(residual.shape[:2], bool).at[0].set(True)
            changed = with_patches(changed, side, mask, residual)
        return metric(run(params, config, source, target_in, interventions=changed)[0])

    def gradient(point: Float[Array, ""]):
        return jax.grad(value)(jax.tree.map(lambda b, d: b + point * d, start, difference))

    gradients = jax.lax.map(gradient, points, batch_size=AT_ONCE)
    contributions = jax.tree.map(lambda each, d: (each.mean(0) * d).sum(-1), gradients, difference)
    return Attribution(*contributions, value=value(words), baseline=value(start))
