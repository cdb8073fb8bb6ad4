# SPDX-License-Identifier: Apache-2.0
"""What a head reads and writes, from its parameters alone (Elhage et al. 2021).

A head scores a key vector y for a query vector x with ``x W_QK y``, and copies ``y W_OV`` into the
output. Both matrices are [D,D] of rank at most d_k and d_v. They act on the inputs of the
sub-layer, so a pre-norm model's norm comes before them. In TransformerLens they are
``model.QK[layer, head].AB / sqrt(d_k)`` and ``model.OV[layer, head].AB``.
"""

import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float, Params
from transformer.config import TransformerConfig
from transformer.errors import InputError
from transformer.inspection.activations import PARTS, describe, stacked_kernels
from transformer.models import limits
from transformer.models.protocol import Kind, Model
from transformer.nn.attention import repeat_heads

_ANY_VALUE = (
    *("source_vocab_size", "d_k", "d_v", "num_kv_heads", "attention_bias", "attention_window"),
    *("shared_layers", "timestep_encoding", "activation", "norm_kind", "tied_embeddings"),
    *("embedding_scale", "sinusoid_layout", "position_offset", "output_bias", "pooling"),
    *limits.COMMON_FIELDS,
)
"""Fields with which scores are products of vectors and a matrix, whatever the values."""


def ov_circuits(model: Model, params: Params, kind: Kind) -> Float[Array, "L N D D"]:
    """W^V W^O of every head: its output for a key vector that gets all weight, without biases."""
    kernels = _kernels(model, params, kind)
    return jnp.einsum("LDNH,LNHE->LNDE", kernels["value"], kernels["output"])


def qk_circuits(model: Model, params: Params, kind: Kind) -> Float[Array, "L N D D"]:
    """W^Q (W^K)^T / sqrt(d_k) of every head: the score of a query vector and a key vector.

    Without biases, and without what positions add to the scores.

    Raises:
      InputError: for rotary positions and the additive score, whose scores are no such product, and
        for a field that may change the scores in an unknown way.
    """
    config = model.config
    kernels = _kernels(model, params, kind)
    rules = [
        ("positions", config.positions != "rotary", "rotary positions turn queries and keys"),
        ("attention_score", config.attention_score == "dot", "the additive score is no product"),
    ]
    limits.require_fields(
        config,
        rules,
        (*_ANY_VALUE, *config.free_after_training),
        "the heads of this model have no QK matrix; see the scores of a trace",
    )
    d_k = kernels["query"].shape[-1]
    products = jnp.einsum("LDNH,LENH->LNDE", kernels["query"], kernels["key"])
    return products / jnp.sqrt(d_k).astype(products.dtype)


def copying_score(circuits: Float[Array | np.ndarray, "L N D D"]) -> Float[np.ndarray, "L N"]:
    """Sum of the eigenvalues of each OV matrix over the sum of their magnitudes, from -1 to 1.

    1 for a head that adds what it reads to the stream, -1 for one that subtracts it (Elhage et al.
    2021, section "Detecting copying behavior", there with embeddings around the matrix).
    """
    values = np.linalg.eigvals(np.asarray(circuits, np.float64))
    return values.sum(-1).real / np.abs(values).sum(-1).clip(1e-30)


def _kernels(model: Model, params: Params, kind: Kind) -> dict[str, Float[Array, "L ..."]]:
    """The four kernels of every layer, as each query head uses them."""
    description = describe(model)
    if not isinstance(model.config, TransformerConfig) or kind not in description.attention:
        raise InputError(
            f"the model family {model.config.family!r} has no multi-head attention of kind "
            f"{kind!r}; give a Transformer and one of its kinds"
        )
    stack, sublayer = PARTS[kind]
    depth, heads = description.attention[kind]
    kernels = {
        name: stacked_kernels(params[stack], sublayer, name, depth)
        for name in ("query", "key", "value", "output")
    }
    repeated = {name: repeat_heads(kernels[name], heads) for name in ("key", "value")}
    return kernels | repeated
