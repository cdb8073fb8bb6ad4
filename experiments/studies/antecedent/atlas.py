# SPDX-License-Identifier: Apache-2.0
"""The atlas of the study: one dot a model, whose views a click opens.

The page is one file without a script: a dot is a link to the views of its model, which are shown
while they are the target of the page's address.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.studies.antecedent import paths
from experiments.studies.antecedent.effects import GROUPS
from experiments.studies.antecedent.paths import PATHS, Numbers
from experiments.studies.antecedent.twins import ROLES
from transformer.inspection import html
from transformer.inspection.html import Html, element, paragraph
from transformer.inspection.words import display_tokens

COLORS = {
    "it": "#08519c",
    "adjective": "#b34700",
    "nouns": "#1b7a3d",
    "reason": "#7b3294",
    "rest": "#a6611a",
    paths.ELIMINATION: "#c51b8a",
    paths.UNDECIDED: "#333333",
    paths.NOT_LEARNED: "#b8b8b8",
}
"""Color of each path."""

_STYLE = """
.dots { display: grid; grid-template-columns: max-content 1fr; gap: .35rem .9rem; }
.dots > div { display: flex; flex-wrap: wrap; gap: .3rem; }
.dot { width: 1.75rem; height: 1.75rem; border-radius: 50%; color: #fff; font-size: .75rem;
  display: grid; place-items: center; text-decoration: none; }
.dot.fr { border-radius: 20%; }
.dot.light { color: #1b1b1b; }
.dot:hover { outline: 3px solid var(--accent); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none; }
.legend .dot { display: inline-grid; width: 1rem; height: 1rem; vertical-align: -.15rem; }
.model { display: none; }
.model:target { display: block; }
.model:target ~ .none { display: none; }
.model table { width: max-content; }
.model thead th { max-width: 6rem; }
/* A caption wraps at the width of its table and does not widen it. */
.model caption { width: 0; min-width: 100%; }
@media (max-width: 40rem) { .dots { grid-template-columns: 1fr; } }
"""


def page(models: Sequence[Numbers]) -> str:
    """The page of all measured models."""
    small = paths.small_recipe(models)
    labels = paths.count_labels(small)
    legend = [
        element("li", _swatch(name), f" {labels.get(name, name)}: {PATHS[name]}")
        for name in paths.counts(models)
    ]
    cells: dict[str, list[Numbers]] = {}
    for model in models:
        cells.setdefault(_cell(model), []).append(model)
    rows = []
    for name, members in sorted(cells.items(), key=lambda item: -len(item[1])):
        rows += [element("span", name), element("div", *map(_dot, members))]
    return html.page(
        'How models resolve "it"',
        paragraph(
            f"{len(models)} models that translate “The animal didn't cross the street because it "
            "was too tired / wide.” One dot a model: round for German, square for French, with the "
            "number of its seed; the color is the path of the answer. The counts are of the models "
            "of the small recipe that learned the task; the last one is of all models of it. "
            "Choose a dot to open its views."
        ),
        element("ul", *legend, class_="legend"),
        element("div", *rows, class_="dots"),
        *map(_views, models),
        element("p", element("em", "No dot is chosen."), class_="none"),
        style=_STYLE,
    )


def title(model: Numbers) -> str:
    """Name of a model; those that were trained outside the study are workdirs."""
    return model["name"] if "recipe" in model else f"runs/{model['name']}"


def _cell(model: Numbers) -> str:
    """Title of the row of a model, which it shares with those that differ in the seed."""
    if "recipe" not in model:
        return "trained outside the study"
    layers = f"{model['layers']} layer{'s' if model['layers'] > 1 else ''}"
    return f"{model['recipe']}: width {model['width']}, {layers}, {model['steps']} steps"


def _dot(model: Numbers) -> Html:
    name = paths.path(model)
    label = f"{model['name']}: {name}"
    light = " light" if name == paths.NOT_LEARNED else ""
    return element(
        "a",
        str(model["seed"]),
        href=f"#{model['name']}",
        class_=f"dot {model['language']}{light}",
        style=f"background:{COLORS[name]}",
        title=label,
        aria_label=label,
    )


def _swatch(name: str) -> Html:
    return element("span", class_="dot", style=f"background:{COLORS[name]}")


# The views of one model.


def _views(model: Numbers) -> Html:
    name = paths.path(model)
    (layer, head), score = paths.best_head(model)
    reading = paths.reading_heads(model)
    finding = (
        f"Right in {model['right']:.0%} of {model['sentences']} sentences. Path: {name} "
        f"({PATHS[name]}). The encoder head that reads the antecedent most from “it” is "
        f"{layer}.{head}, with a coreference score of {score:.2f}"
        f"{'' if reading else ', which is not above chance'}."
    )
    return element(
        "section",
        element("h2", title(model)),
        paragraph(finding),
        *_headline(model),
        *_maps(model),
        id=model["name"],
        class_="model",
    )


def _headline(model: Numbers) -> list[Html]:
    """Both twins, shaded by two heads' weights and by the effect of patching each word."""
    tables = []
    encoder, cross = (paths.best_head(model, kind)[0] for kind in ("encoder", "cross"))
    for twin in model["headline"].get("twins", ()):
        target = [piece.replace("\u2581", " ") for piece in twin["target"][:-1]]
        target[twin["position"]] = html.mark(target[twin["position"]])
        rows = {
            "encoder head {}.{}, from “it”".format(*encoder): _weights(twin["it"], encoder),
            "cross head {}.{}, for the pronoun".format(*cross): _weights(twin["cross"], cross),
            "effect of the twin's memory there": twin["effect"],
        }
        words = display_tokens(twin["words"])
        tables.append(_map(element("span", *target), words, [*rows.items()]))
    return tables


def _weights(weights: Sequence[Any], head: tuple[int, int]) -> Sequence[float]:
    return weights[head[0] - 1][head[1] - 1]


def _map(
    caption: str | Html, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Any]]]
) -> Html:
    """A table of numbers from -1 to 1, shaded; None is an empty cell."""
    empty = element("td", class_="number")
    cells = [
        (heading, [empty if value is None else html.shaded(value) for value in values])
        for heading, values in rows
    ]
    return html.shaded_table(caption, ["", *columns], cells)


def _maps(model: Numbers) -> list[Html]:
    """The effects of parts and roles, and what each head reads and costs."""
    twins = {"adjective": "choice", "noun": "gender"}
    parts = [*GROUPS, "all"]
    memory = [
        (f"{label} ({kind} twins)", [model[kind]["memory"][part][0] for part in parts])
        for kind, label in twins.items()
    ]
    encoder = [
        (f"{label}, after layer {layer}", values)
        for kind, label in twins.items()
        for layer, values in enumerate(model[kind]["encoder"], 1)
    ]
    caption = "Share of the way to the twin's answer when the memory of one part is the twin's"
    tables = [
        _map(caption, parts, memory),
        _map("By role of the token, after each encoder layer", ROLES, encoder),
    ]
    for kind, row in (("encoder", "“it”"), ("cross", "the pronoun's row")):
        scores = model["coreference"][kind]["score"]
        cost = model["right"] - np.array(model["ablation"][kind]["heads"], float)
        heads = [f"head {index}" for index in range(1, len(scores[0]) + 1)]
        rows = [(f"layer {layer}, reads", values) for layer, values in enumerate(scores, 1)]
        rows += [(f"layer {layer}, costs", values) for layer, values in enumerate(cost.tolist(), 1)]
        caption = (
            f"{kind}: coreference score in {row}, and loss of accuracy with the head's mean output"
        )
        tables.append(_map(caption, heads, rows))
    return tables
