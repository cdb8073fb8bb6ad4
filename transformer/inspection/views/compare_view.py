# SPDX-License-Identifier: Apache-2.0
"""Two sentences side by side: the same head, the difference, and where patching matters."""

import numpy as np

from transformer.errors import InputError
from transformer.inspection.html import Html
from transformer.inspection.views import picture
from transformer.inspection.views.attention_data import Family
from transformer.inspection.views.view import View


def compare(
    first: tuple[Family, ...],
    second: tuple[Family, ...],
    *,
    names: tuple[str, str] = ("first sentence", "second sentence"),
    layer: int = -1,
    head: int = 0,
    patch=None,
    measure: str = "Share of the change in the answer that a patch brings about",
    title: str = "Two sentences",
) -> View:
    """The attention of two sentence pairs that have equally many tokens, and its difference.

    Args:
      first: from `families` or `families_of`.
      second: of the other sentence pair.
      names: what to call the two.
      layer: shown first, from 0, or from -1 backwards.
      head: shown first.
      patch: effects ``[L+1,S]``: of the encoder's residual stream, overwritten at its input or
        after layer l, at each source position. A view without a patch map if None.
      measure: what these numbers are.
      title: of the page.

    Raises:
      InputError: when the two differ in their kinds of attention or their shapes, when there is no
        such layer or head, or when `patch` has another shape.
    """
    shapes = [{family.kind: family.weights.shape for family in pair} for pair in (first, second)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"the sentences have attention of shapes {shapes[0]} and {shapes[1]}; compare pairs of "
            "one model with equally many tokens"
        )
    before, after = first[0], second[0]
    layer, [head] = before.layer(layer), before.heads([head])
    difference = after.weights[layer, head] - before.weights[layer, head]
    told = (
        f"{before.title}, layer {before.since + layer + 1}, head {head + 1}: {names[1]} minus "
        f"{names[0]}; round cells are negative."
    )
    rows, columns = _both(before.rows, after.rows), _both(before.columns, after.columns)
    options = {"layer": layer, "head": head, "names": names, "measure": measure}
    still = picture.heat_map(told, difference, rows, columns)
    if patch is not None:
        effects, tokens = _effects(patch, first)
        options |= {"patch": effects.round(4).tolist(), "patched": tokens}
        levels = ["the stack's input", *(f"after layer {n}" for n in range(1, len(effects)))]
        still += picture.heat_map(measure, effects, levels, [picture.joined(t) for t in tokens])
    return View(
        kind="compare",
        title=title,
        told=told,
        picture=Html(still),
        options=options,
        families=(first, second),
        height=1000,
    )


def _both(first, second) -> list[str]:
    """The labels; both, where they differ."""
    pairs = zip(map(picture.joined, first), map(picture.joined, second), strict=True)
    return [one if one == other else f"{one} / {other}" for one, other in pairs]


def _effects(patch, families: tuple[Family, ...]):
    """The patch map and the tokens of its columns, if it fits the encoder."""
    encoder = next((family for family in families if family.kind == "encoder"), None)
    if encoder is None:
        raise InputError("a patch map needs the encoder's attention, whose tokens it is about")
    effects = np.asarray(patch, np.float64)
    tokens, layers = len(encoder.columns), encoder.since + len(encoder.weights)
    if effects.shape != (layers + 1, tokens) or not np.isfinite(effects).all():
        raise InputError(
            f"the patch map has shape {effects.shape}; finite effects of [layers + 1, tokens] = "
            f"{(layers + 1, tokens)} are needed"
        )
    return effects, encoder.columns
