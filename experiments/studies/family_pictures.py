# SPDX-License-Identifier: Apache-2.0
"""Draw the source tokens that each prediction reads, for a model of each family.

python -m experiments.studies.family_pictures --workdirs=runs/sutskever,runs/bahdanau --output=docs

Each picture, OUTPUT/family_NAME.png, has two maps of the model's translation of one sentence:
the cross-attention weights, if the family has any, and the omission, which all families have (see
transformer/inspection/omission.py).
"""

import dataclasses
import os

import numpy as np

from experiments.cli import command_line
from transformer import inspection, paths
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import parts, style
from transformer.inspection.omission import omission
from transformer.inspection.words import display_tokens
from transformer.translator import Translator


@dataclasses.dataclass(frozen=True)
class Options:
    """The models, the sentence, and the folder of the pictures."""

    workdirs: tuple[str, ...] | None = None
    """Directories written by train: A,B,..."""
    output: str = "docs"
    """Directory of the pictures."""
    sentence: str = "The animal didn't cross the street because it was too tired."
    """Sentence that is translated."""


def run(options: Options) -> list[str]:
    """Draw the picture of every workdir; returns the paths."""
    if not options.workdirs:
        raise InputError("missing --workdirs=A,B,..., directories that train wrote")
    folder, drawn = paths.absolute(options.output), []
    for workdir in options.workdirs:
        name = os.path.basename(os.path.normpath(workdir))
        figure = picture(Translator.from_workdir(workdir), options.sentence, name)
        drawn.append(str(figures.save(figure, folder / f"family_{name}.png")))
    return drawn


def main(options: Options) -> None:
    """Print the paths."""
    print(*run(options), sep="\n")


@style.styled
def picture(translator: Translator, sentence: str, name: str) -> figures.DescribedFigure:
    """Draw the omission of each source token and, if there is any, the mean attention."""
    best, model, params = translator(sentence), translator.model, translator.params
    [source], target = translator.vocabularies.source.encode([sentence]), list(best.tokens)
    columns = display_tokens(translator.vocabularies.source.pieces(source))
    rows = display_tokens(translator.vocabularies.target.pieces(target))
    labels = {"rows": rows, "columns": columns, "cell": (0.32, 0.26)}
    lost = omission(model, params, source, target)
    panels = [
        parts.Panel(
            values=lost,
            name="omission",
            heading="omission: log-probability lost without the source token",
            legend="nats",
            **labels,
            **parts.signed(5.0),
        )
    ]
    if "cross" in model.describe().attention:
        target_in = [translator.config.model.bos_id, *target[:-1]]
        _, seen = inspection.run(model, params, source, target_in, capture="weights")
        panels.insert(
            0,
            parts.Panel(
                values=np.asarray(seen.attention("cross").weights).mean((0, 1)),
                name="attention",
                heading="attention: mean weight over layers and heads",
                legend="weight",
                **labels,
            ),
        )
    figure, _ = parts.draw_panels(
        [[panel] for panel in panels],
        title=f"{name}: {best.text}",
        note="Rows: the tokens of the model's translation, each where it is predicted. Omissions "
        "of 5 nats or more have the same color. One sentence is an example, not evidence.",
        gap=0.3,
    )
    read = [columns[int(row.argmax())] for row in lost]
    figure.description = f"{name} translates {sentence!r} as {best.text!r}. " + " ".join(
        f"{word!r} loses most without {source!r}." for word, source in zip(rows, read, strict=True)
    )
    return figure


if __name__ == "__main__":
    command_line.run(main, None, Options)
