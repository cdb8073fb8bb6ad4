# SPDX-License-Identifier: Apache-2.0
"""Interchange interventions over a batch: activations of one run placed into another.

One function runs every sentence with the activations of a donor at the sites that an edit selects.
The donor is another sentence's run (activation patching, resample ablation), an array of zeros or
of means (ablation), or a run that was edited itself (path patching), so that all measures of a
model share one compiled program.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.twins import Sentences
from transformer import inspection
from transformer.arrays import Array, Float, Params
from transformer.inspection import Trace, no_interventions
from transformer.models.protocol import KINDS, Kind, Model


@flax.struct.dataclass
class Sites:
    """An array for each site of B sentences: activations, or the mask of an edit."""

    encoder_residual: Array
    """[B,L+1,S,D]; of a mask [B,L+1,S]."""
    decoder_residual: Array
    """[B,L+1,T,D]; of a mask [B,L+1,T]."""
    heads: dict[Kind, Array]
    """The heads' outputs, [B,L,N,T,Hv]; of a mask [B,L,N,T]."""
    patterns: dict[Kind, Array]
    """Attention weights, [B,L,N,T,S]; of a mask [B,L,N,T]."""
    values: dict[Kind, Array]
    """[B,L,N,S,Hv]; of a mask [B,L,N,S]."""

    def __getitem__(self, rows: np.ndarray) -> "Sites":
        return jax.tree.map(lambda leaf: leaf[rows], self)


_FIELDS = {"heads": "z", "patterns": "weights", "values": "value"}
"""The field of a trace of each field of `Sites`."""


def _sites(seen: Trace) -> Sites:
    """The activations of one sentence."""
    captured = {
        field: {kind: getattr(seen.attention(kind), site) for kind in KINDS}
        for field, site in _FIELDS.items()
    }
    return Sites(seen.encoder.residual, seen.decoder.residual, **captured)


@functools.partial(jax.jit, static_argnames="model")
def run(
    model: Model, params: Params, sentences: Sentences, donor: Sites, edit: Sites
) -> tuple[Float[Array, " B"], Sites]:
    """The preference for the correct pronoun and all activations, after an edit.

    Args:
      sentences: B sentences.
      donor: activations for every sentence.
      edit: masks; where they are true, the activation is the donor's.
    """

    def one(sentence: Sentences, donor: Sites, edit: Sites) -> tuple[Float[Array, ""], Sites]:
        lengths = len(sentence.source), len(sentence.target_in)
        changed = no_interventions(model, *lengths)
        changed = changed.patch_residual("encoder", edit.encoder_residual, donor.encoder_residual)
        changed = changed.patch_residual("decoder", edit.decoder_residual, donor.decoder_residual)
        for kind in KINDS:
            for field, site in _FIELDS.items():
                mask, value = getattr(edit, field)[kind], getattr(donor, field)[kind]
                changed = changed.patch_heads(kind, site, mask[..., None], value)
        logits, seen = inspection.run(
            model,
            params,
            sentence.source,
            sentence.target_in,
            capture="full",
            interventions=changed,
        )
        return sentence.preference(logits), _sites(seen)

    return jax.vmap(one)(sentences, donor, edit)


def no_edit(model: Model, sentences: Sentences) -> Sites:
    """Masks that are false everywhere, as NumPy arrays to be changed."""
    description = model.describe()
    batch, source = sentences.source.shape
    lengths = {"encoder": source, "decoder": sentences.target_in.shape[1]}
    queries = {kind: lengths["encoder" if kind == "encoder" else "decoder"] for kind in KINDS}
    keys = {kind: lengths["decoder" if kind == "decoder" else "encoder"] for kind in KINDS}

    def masks(positions: dict[Kind, int]) -> dict[Kind, np.ndarray]:
        sizes = description.attention
        return {kind: np.zeros((batch, *sizes[kind], positions[kind]), bool) for kind in KINDS}

    residual = {
        side: np.zeros((batch, description.residual_layers[side] + 1, length), bool)
        for side, length in lengths.items()
    }
    return Sites(
        residual["encoder"], residual["decoder"], masks(queries), masks(queries), masks(keys)
    )


def activations(model: Model, params: Params, sentences: Sentences) -> tuple[Array, Sites]:
    """Preference and activations of the unchanged model."""
    blank = _blank(model, params, sentences)
    return run(model, params, sentences, blank, no_edit(model, sentences))


def _blank(model: Model, params: Params, sentences: Sentences) -> Sites:
    """Zeros of the shapes of all activations."""

    def one(sentence: Sentences) -> Sites:
        tokens = sentence.source, sentence.target_in
        return _sites(inspection.run(model, params, *tokens, capture="full")[1])

    shapes = jax.eval_shape(jax.vmap(one), sentences)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def aligned(donor: Sites, by: np.ndarray) -> Sites:
    """Activations of the decoder moved by a number of rows of each sentence.

    Rows that predict the pronoun then have the same index as in the sentence that is edited. Keys
    of the decoder's self-attention are not moved.
    """

    def moved(array: Array, axis: int) -> Array:
        return jax.vmap(lambda one, shift: jnp.roll(one, shift, axis))(array, jnp.asarray(by))

    def of_decoder(arrays: dict[Kind, Array]) -> dict[Kind, Array]:
        return {
            kind: array if kind == "encoder" else moved(array, 2) for kind, array in arrays.items()
        }

    return donor.replace(
        decoder_residual=moved(donor.decoder_residual, 1),
        heads=of_decoder(donor.heads),
        patterns=of_decoder(donor.patterns),
    )
