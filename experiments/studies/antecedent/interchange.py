# SPDX-License-Identifier: Apache-2.0
"""Interchange interventions over a batch: activations of one run placed into another.

One function runs every sentence with the activations of a donor at the sites that an edit selects.
The donor is the run of another sentence (activation patching) or an array of means or of vectors
without token embeddings (ablation), so that all measures of a model share one compiled program.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.antecedent.twins import Sentences
from transformer import inspection
from transformer.arrays import Array, Float, Params
from transformer.inspection import Trace, no_interventions
from transformer.models.protocol import KINDS, Kind, Model


@flax.struct.dataclass
class Sites:
    """An array for each site of B sentences: activations, or the mask of an edit."""

    residual: Array
    """Residual stream of the encoder, [B,L+1,S,D]; mask [B,L+1,S]."""
    heads: dict[Kind, Array]
    """Outputs of the heads, [B,L,N,T,Hv]; mask [B,L,N,T]."""
    patterns: dict[Kind, Array]
    """Attention weights, [B,L,N,T,S]; mask [B,L,N,T]."""

    def __getitem__(self, rows: np.ndarray) -> "Sites":
        return jax.tree.map(lambda leaf: leaf[rows], self)


_FIELDS = {"heads": "z", "patterns": "weights"}
"""The field of a trace of each field of `Sites`."""


def _sites(trace: Trace) -> Sites:
    """The activations of one sentence."""
    captured = {
        field: {kind: getattr(trace.attention(kind), site) for kind in KINDS}
        for field, site in _FIELDS.items()
    }
    return Sites(trace.encoder.residual, **captured)


@functools.partial(jax.jit, static_argnames="model")
def run(
    model: Model, params: Params, sentences: Sentences, donor: Sites, edit: Sites
) -> tuple[Float[Array, " B"], Sites]:
    """Run every sentence with an edit; returns the preferences and all activations.

    Args:
      sentences: B sentences.
      donor: activations for every sentence.
      edit: masks; where they are true, the activation is the donor's.
    """

    def run_one(sentence: Sentences, donor: Sites, edit: Sites) -> tuple[Float[Array, ""], Sites]:
        tokens = sentence.source, sentence.target_in
        changed = no_interventions(model, *map(len, tokens))
        changed = changed.patch_residual("encoder", edit.residual, donor.residual)
        for kind in KINDS:
            for field, site in _FIELDS.items():
                mask, value = getattr(edit, field)[kind], getattr(donor, field)[kind]
                changed = changed.patch_heads(kind, site, mask[..., None], value)
        logits, trace = inspection.run(
            model, params, *tokens, capture="full", interventions=changed
        )
        return sentence.preference(logits), _sites(trace)

    return jax.vmap(run_one)(sentences, donor, edit)


def no_edit(model: Model, sentences: Sentences) -> Sites:
    """Masks that are false everywhere, as NumPy arrays to be changed."""
    description = model.describe()
    batch, source = sentences.source.shape
    queries = dict.fromkeys(KINDS, sentences.target_in.shape[1]) | {"encoder": source}

    def masks() -> dict[Kind, np.ndarray]:
        sizes = description.attention
        return {kind: np.zeros((batch, *sizes[kind], queries[kind]), bool) for kind in KINDS}

    levels = description.residual_layers["encoder"] + 1
    return Sites(np.zeros((batch, levels, source), bool), masks(), masks())


def activations(model: Model, params: Params, sentences: Sentences) -> tuple[Array, Sites]:
    """Preference and activations of the unchanged model."""

    def run_one(sentence: Sentences) -> Sites:
        tokens = sentence.source, sentence.target_in
        return _sites(inspection.run(model, params, *tokens, capture="full")[1])

    shapes = jax.eval_shape(jax.vmap(run_one), sentences)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return run(model, params, sentences, zeros, no_edit(model, sentences))


def aligned(donor: Sites, by: np.ndarray) -> Sites:
    """Activations of the decoder moved by a number of rows of each sentence.

    Rows that predict the pronoun then have the same index as in the sentence that is edited. Keys
    of the decoder's self-attention are not moved.
    """

    def moved(arrays: dict[Kind, Array]) -> dict[Kind, Array]:
        roll = jax.vmap(lambda array, shift: jnp.roll(array, shift, 2))
        return {
            kind: array if kind == "encoder" else roll(array, jnp.asarray(by))
            for kind, array in arrays.items()
        }

    return donor.replace(heads=moved(donor.heads), patterns=moved(donor.patterns))
