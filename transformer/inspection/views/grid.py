# SPDX-License-Identifier: Apache-2.0
"""The overview: a small map of every layer and head, in the order of a measure if one likes."""

from collections.abc import Mapping

import numpy as np

from transformer.errors import InputError
from transformer.inspection.views import picture
from transformer.inspection.views.attention_data import Family
from transformer.inspection.views.view import View


def grid(
    families: tuple[Family, ...],
    *,
    measures: Mapping[str, Mapping[str, object]] | None = None,
    title: str = "Every layer and head",
) -> View:
    """All heads of one sentence pair's attention as small maps, and the chosen one large.

    Args:
      families: from `families` or `families_of`; the first is shown first.
      measures: further numbers of every head, by which they can be ordered: the measure's name ->
        the kind of attention -> values ``[L,N]``. The entropy of the rows is always there.
      title: of the page.

    Raises:
      InputError: when a measure has no values for a kind of attention, or not one for every head.
    """
    given = {"mean entropy in bits": {family.kind: family.entropy() for family in families}}
    given |= measures or {}
    first = families[0]
    layers, heads = first.weights.shape[:2]
    told = f"{first.title}: every head of {layers} layers x {heads} heads, darker where it attends."
    return View(
        kind="grid",
        title=title,
        told=told,
        picture=picture.thumbnails(told, first.weights),
        options={
            "measures": [
                {"name": name, "values": [_values(name, values, family) for family in families]}
                for name, values in given.items()
            ]
        },
        families=(families,),
        height=900,
    )


def _values(name: str, values: Mapping[str, object], family: Family) -> list[list[float]]:
    """A measure of one kind of attention, rounded to be shown."""
    if family.kind not in values:
        raise InputError(f"measure {name!r} has no values for {family.kind!r}; give all kinds")
    array = np.asarray(values[family.kind], np.float64)
    if array.shape != family.weights.shape[:2] or not np.isfinite(array).all():
        raise InputError(
            f"measure {name!r} of {family.kind!r} has shape {array.shape}; one finite number for "
            f"each of {family.weights.shape[:2]} layers and heads is needed"
        )
    return array.round(4).tolist()
