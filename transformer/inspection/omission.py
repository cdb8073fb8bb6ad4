# SPDX-License-Identifier: Apache-2.0
"""Omission: what each prediction loses when one source token is left out.

It asks a model only for probabilities, so that families with and without attention are compared by
the same measure (Kádár et al. 2017, "omission score"; Li et al. 2016, "erasure").
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from transformer.arrays import Array, Float, Int, Params
from transformer.errors import InputError
from transformer.models.protocol import Model
from transformer.nn.positions import shift_right


def omission(
    model: Model, params: Params, source: Sequence[int], target: Sequence[int]
) -> Float[np.ndarray, "T S"]:
    """Log-probability of each target token minus that without one source token, in nats.

    Above 0: the token speaks for the prediction. The decoder reads the given target in every case.
    The last source token, EOS, is left out like any other.

    Args:
      source: S token ids, at least 2, without padding.
      target: T token ids, ending with EOS.

    Raises:
      InputError: for a source of fewer than two tokens.
    """
    if len(source) < 2:
        raise InputError(
            f"the source has {len(source)} tokens, but leaving one out must leave another; give a "
            "longer sentence"
        )
    without = [[*source[:s], *source[s + 1 :], model.config.pad_id] for s in range(len(source))]
    sources = jnp.array([list(source), *without], jnp.int32)  # [S+1, S]
    log_probs = np.asarray(_log_probs(model, params, sources, jnp.array(target, jnp.int32)))
    return (log_probs[0] - log_probs[1:]).T  # [T, S]


@functools.partial(jax.jit, static_argnames="model")
def _log_probs(
    model: Model, params: Params, sources: Int[Array, "B S"], target: Int[Array, " T"]
) -> Float[Array, "B T"]:
    """The log-probability of each target token, given each source."""
    targets = jnp.broadcast_to(target, (len(sources), len(target)))
    target_in = shift_right(targets, bos_id=model.config.bos_id)
    logits = model.apply({"params": params}, sources, target_in)  # [B, T, V]
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
