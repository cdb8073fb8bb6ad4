# SPDX-License-Identifier: Apache-2.0
"""Direct logit attribution: a logit difference as a sum over the parts of the decoder.

The output of every head and network is added to the residual stream, which the output map reads. In
a row of the decoder, the difference of two logits is therefore a sum over the stack's input, the
heads, the networks, and the biases. A norm is linear once its divisor is known, so each part passes
every later norm with the divisor of the actual run; the paper's post-norm has one after every
sub-layer. A part's share says what it writes that the output map reads directly, not what later
layers make of it. In TransformerLens: ``cache.logit_attrs(cache.decompose_resid(...))``.
"""

import flax.struct
import jax
import jax.numpy as jnp

from transformer.arrays import Array, Float, Int, Params, wide
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection import trace
from transformer.inspection.activations import StackTrace
from transformer.inspection.readout import LogitDifference, check_finite, checked_metric
from transformer.inspection.trace import Tokens
from transformer.models.protocol import Model


@flax.struct.dataclass
class DirectLogits:
    """Shares of the difference of two logits, in nats; `total` is the difference."""

    input: Float[Array, "..."]
    """Share of the decoder's input, the embedding and the position of the token read."""
    self_heads: Float[Array, "L N ..."]
    cross_heads: Float[Array, "L N ..."] | None
    feed_forward: Float[Array, "L ..."]
    biases: Float[Array, "..."]
    """Share of the biases of attention outputs, norms, and the output map."""

    @property
    def total(self) -> Float[Array, ""]:
        """The sum of all shares."""
        return sum(leaf.sum() for leaf in jax.tree.leaves(self))


def direct_logits(
    model: Model,
    params: Params,
    source: Tokens,
    target_in: Tokens,
    metric: LogitDifference,
) -> DirectLogits:
    """Attribute a logit difference to the heads and networks of the decoder.

    Raises:
      InputError: for a model that is not a Transformer with a decoder, or for a row or a token
        that does not exist.
    """
    if not isinstance(model.config, TransformerConfig) or "decoder" not in (
        trace.describe(model).residual_layers
    ):
        raise InputError(
            f"the model family {model.config.family!r} has no residual stream that its logits "
            "read, so they cannot be split among its parts; give a Transformer"
        )
    checked_metric(metric, len(target_in), model.config)
    _, seen = trace.run(model, params, source, target_in, capture="full")
    if trace.is_concrete(seen, metric):
        check_finite(metric(seen.logits), "sentence pair")
    parts = _parts(params["decoder"], model.config, seen.decoder, metric.position)
    direction, offset = _output_map(model, params, metric)
    shares = jax.tree.map(lambda part: part @ direction, parts)
    return shares.replace(biases=shares.biases + offset)


def _parts(
    params: Params, config: TransformerConfig, decoder: StackTrace, row: Int[Array, ""] | int
) -> DirectLogits:
    """The vectors [...,D] whose sum is the input of the output map in a row, by part."""
    attentions = {"self_heads": decoder.self_attention, "cross_heads": decoder.cross_attention}
    attentions = {name: each for name, each in attentions.items() if each is not None}
    dtype = wide(decoder.residual.dtype)
    rows = jax.tree.map(lambda stream: stream[..., row, :].astype(dtype), decoder.residual)
    heads = jnp.zeros_like(decoder.self_attention.head_out[:, :, row], dtype)
    parts = DirectLogits(
        input=rows[0],
        self_heads=heads,
        cross_heads=heads if "cross_heads" in attentions else None,
        feed_forward=jnp.zeros_like(rows[1:]),
        biases=jnp.zeros_like(rows[0]),
    )
    for layer in range(len(parts.feed_forward)):
        # With `model.shared_layers`, all layers have the parameters of layer_0.
        of_layer = params.get(f"layer_{layer}", params["layer_0"])
        stream = rows[layer]
        for index, name in enumerate([*attentions, "feed_forward"]):
            if name == "feed_forward":
                output = decoder.feed_forward[layer, row].astype(dtype)
                written = parts.feed_forward.at[layer].set(output)
            else:
                output = attentions[name].output[layer, row].astype(dtype)
                heads = attentions[name].head_out[layer, :, row].astype(dtype)  # [N, D]
                written = getattr(parts, name).at[layer].set(heads)
                parts = parts.replace(biases=parts.biases + output - heads.sum(0))
            parts = parts.replace(**{name: written})
            if config.norm == "post":
                norm = of_layer[f"{_SUBLAYERS[name]}_residual"]["norm"]
                parts = _normed(parts, config, norm, stream + output)
            stream = decoder.sublayers[layer, index, row].astype(dtype)
        # The timestep encoding of the next layer, if there is one.
        parts = parts.replace(input=parts.input + rows[layer + 1] - stream)
    return (
        parts if config.norm == "post" else _normed(parts, config, params["final_norm"], rows[-1])
    )


_SUBLAYERS = {
    "self_heads": "self_attention",
    "cross_heads": "cross_attention",
    "feed_forward": "feed_forward",
}


def _normed(
    parts: DirectLogits, config: TransformerConfig, norm: Params, stream: Float[Array, " D"]
) -> DirectLogits:
    """The parts after a norm, whose divisor is that of the stream, their sum."""
    centers = config.norm_kind == "layer_norm"

    def centered(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return x - x.mean(-1, keepdims=True) if centers else x

    divisor = jnp.sqrt(jnp.square(centered(stream)).mean() + config.norm_epsilon)
    parts = jax.tree.map(lambda part: centered(part) / divisor * norm["scale"], parts)
    return parts.replace(biases=parts.biases + norm.get("bias", 0.0))


def _output_map(
    model: Model, params: Params, metric: LogitDifference
) -> tuple[Float[Array, " D"], Float[Array, ""]]:
    """The difference of two columns of the output map, and of their biases."""
    embedding = params["embedding"]
    columns = embedding["output"].T if "output" in embedding else embedding["table"]  # [V, D]
    direction = columns[metric.token] - columns[metric.other]
    if not model.config.output_bias:
        return direction, jnp.zeros((), direction.dtype)
    bias = embedding["output_bias"]
    return direction, bias[metric.token] - bias[metric.other]
