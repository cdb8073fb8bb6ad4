# SPDX-License-Identifier: Apache-2.0
"""Write the results of the study: findings, table, picture, atlas.

python -m experiments.studies.antecedent.report --measured=docs/antecedent --output=docs

writes antecedent.png and antecedent_atlas.html: one dot a model, whose views a click opens. It also
writes the findings and the table into antecedent.md, between the comments that name them. Nothing
is measured here, so it takes seconds.
"""

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
from etils import epath

from experiments.cli.command_line import run
from experiments.studies.antecedent import atlas, paths
from experiments.studies.antecedent.effects import GROUPS
from experiments.studies.antecedent.models import CENTER
from experiments.studies.antecedent.paths import CARRIES, PATHS, Numbers
from transformer.checkpoints import workdir_files
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import style
from transformer.paths import absolute

TABLE: dict[str, Callable[[Numbers], str]] = {
    "model": lambda model: model["name"],
    "right": lambda model: f"{model['right']:.0%}",
    "path": paths.path,
    '"it": choice': lambda model: _effect(model, "adjective", "it"),
    '"it": gender': lambda model: _effect(model, "noun", "it"),
    "adjective: choice": lambda model: _effect(model, "adjective", "adjective"),
    "adjective: gender": lambda model: _effect(model, "noun", "adjective"),
    "nouns: gender": lambda model: _effect(model, "noun", "nouns"),
    'heads that read the noun from "it"': lambda model: ", ".join(
        f"{layer}.{head}" for layer, head in paths.reading_heads(model)
    ),
    "best coreference score": lambda model: f"{paths.best_head(model)[1]:z.2f}",
}
"""Columns of the table of models."""

FINDINGS = """\
With the small recipe, {reading[encoder]} models have a head of kind `encoder` that gives the \
antecedent more weight than the other noun in "it", above chance; the best head's score is \
{score[encoder]}.
With the small recipe, {reading[cross]} models have a head of kind `cross` that gives the \
antecedent more weight than the other noun in the row that predicts the pronoun, above chance; \
the best head's score is {score[cross]}.
With the small recipe, the memory at "it" carries {effects[adjective][it]} of the choice and \
{effects[noun][it]} of the gender; at the adjective {effects[adjective][adjective]} and \
{effects[noun][adjective]}; at the nouns {effects[adjective][nouns]} and {effects[noun][nouns]}.
With the small recipe, where the translated nouns precede the pronoun, the whole memory carries \
{gender} of the gender; the rest comes from the target read so far.
With the small recipe, cross-attention in the pronoun's row carries {choice[output]} of the \
choice, its attention weights alone {choice[pattern]}.
With the small recipe, the share of right answers is {without[encoder]} when all encoder heads \
put out their means, {without[decoder]} with those of the decoder's self-attention, and \
{without[cross]} of cross-attention.
With the small recipe, {pairs[encoder]} models have two encoder heads, and {pairs[cross]} two \
cross-attention heads, whose joint loss costs at least 5 points more than both losses together.
With the small recipe, the preference that is left after the first word is \
{deletion[integrated gradients]} of the whole in the order of integrated gradients, \
{deletion[occlusion]} of occlusion, {deletion[attention]} of attention weights and \
{deletion[random]} at random.
With the small recipe, the rank correlation of integrated gradients is {rank[occlusion]} with \
occlusion, {rank[random decoder]} with those of a model whose decoder is random, and \
{rank[random all]} with those of a random model."""
"""Sentences about the models of the small recipe; the fields are those of `paths.statements`."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the measurements are, and where the report goes."""

    measured: str = "docs/antecedent"
    """Directory of the measured files."""
    output: str = "docs"
    """Directory of page, picture and atlas."""


def main(options: Options) -> None:
    """Write the picture, the atlas and two sections of the page; print the findings."""
    output = absolute(options.output)
    models = read(absolute(options.measured))
    sentences = "".join(f"{item(finding)}\n" for finding in findings(models))
    print(sentences, end="")
    rows = [[cell(model) for cell in TABLE.values()] for model in models]
    lines = [[*TABLE], ["---"] * len(TABLE), *rows]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    figures.save(picture(paths.small_recipe(models)), output / "antecedent.png")
    workdir_files.write_text(output / "antecedent_atlas.html", atlas.page(models))
    page = output / "antecedent.md"
    text = page.read_text(encoding="utf-8")
    text = refreshed(text, {"findings": sentences, "models": table})
    workdir_files.write_text(page, text)


def read(folder: epath.Path) -> list[Numbers]:
    """The measured files of a directory: those of the design, then those of other workdirs."""
    files = sorted(folder.glob("*.json"), key=lambda file: (file.name.startswith("w"), file.name))
    if not files:
        raise InputError(
            f"--measured={folder} has no measured model; run experiments.studies.antecedent first"
        )
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def item(sentence: str) -> str:
    """A sentence as an item of a Markdown list."""
    return textwrap.fill(
        f"- {sentence}", 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )


def refreshed(page: str, sections: Mapping[str, str]) -> str:
    """The page with other text between ``<!-- NAME -->`` and ``<!-- end of NAME -->``."""
    for name, text in sections.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, opened, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise InputError(f"the page has no {begin.strip()} and {end}; write them into it")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def findings(models: Sequence[Numbers]) -> list[str]:
    """The sentences of docs/antecedent.md that have numbers, which a test looks for there."""
    small = paths.small_recipe(models)
    numbers = paths.statements(small)
    sentences = [
        f"Of {numbers['models']} models of the small recipe, {numbers['learned']} give the right "
        "pronoun in at least 90% of the sentences.",
        *(
            f"{share} of these: {PATHS[name]} (`{name}`)."
            for name, share in numbers["paths"].items()
        ),
        *FINDINGS.format_map(numbers).splitlines(),
        *_of_elimination([model for model in small if paths.path(model) == paths.ELIMINATION]),
    ]
    sentences += [_by_factor(factor, CENTER, small) for factor in CENTER]
    sentences.append(_by_factor("language", {}, small))
    return sentences + [_of_training(model) for model in models if model["stages"]]


def _of_elimination(models: Sequence[Numbers]) -> list[str]:
    """Sentences about the models that the class by elimination contains."""
    carriers = Counter(
        (paths.carrier(model, "adjective"), paths.carrier(model, "noun")) for model in models
    )
    joined = ", ".join(
        f"{number} with the choice at `{choice}` and the gender at `{gender}`"
        for (choice, gender), number in carriers.most_common()
    )
    highest = max((paths.best_head(model)[1] for model in models), default=float("nan"))
    return [
        f"The `{paths.ELIMINATION}` models: {joined}.",
        f"In these, the largest coreference score of an encoder head is {highest:.2f}.",
    ]


def _by_factor(factor: str, center: Mapping[str, int], models: Sequence[Numbers]) -> str:
    """The paths by one factor, of the models whose other factors are those of the center."""
    others = [name for name in center if name != factor]
    chosen = [model for model in models if all(model[name] == center[name] for name in others)]
    parts = []
    for value in sorted({model[factor] for model in chosen}):
        names = Counter(paths.path(model) for model in chosen if model[factor] == value)
        counts = ", ".join(f"{number} `{name}`" for name, number in names.most_common())
        parts.append(f"{value}: {counts}")
    return f"By {factor}: {'; '.join(parts)}."


def _of_training(model: Numbers) -> str:
    """When the path of a model forms."""
    choice, gender = (paths.leading(model, kind) for kind in ("adjective", "noun"))
    steps = [
        f"{stage['step']}: {stage['right']:.0%} right, {stage['adjective']['right']} in both "
        f"twins, choice {paths.carried(stage, 'adjective')[choice]:z.2f}, gender "
        f"{paths.carried(stage, 'noun')[gender]:z.2f}"
        for stage in [*model["stages"], {**model, "step": model["steps"]}]
    ]
    return (
        f"`{model['name']}` by step, at the parts with the largest effects in the last one "
        f"({choice}, {gender}): {'; '.join(steps)}."
    )


def _effect(model: Numbers, kind: str, part: str) -> str:
    return f"{paths.carried(model, kind)[part]:z.2f}"


@style.styled
def picture(models: Sequence[Numbers]) -> figures.DescribedFigure:
    """For each part of the memory, the choice and the gender that it carries in every model."""
    figure = plt.figure(
        FigureClass=figures.DescribedFigure, figsize=(9.6, 2.9), layout="constrained"
    )
    panels = figure.subplots(1, len(GROUPS), sharex=True, sharey=True)
    markers = {"de": "o", "fr": "^"}
    for panel, group in zip(panels, GROUPS, strict=True):
        for model in models:
            panel.plot(
                paths.carried(model, "adjective")[group],
                paths.carried(model, "noun")[group],
                marker=markers[model["language"]],
                color=atlas.COLORS[paths.path(model)],
                alpha=0.75,
                markersize=5,
                markeredgewidth=0,
            )
        panel.axvline(CARRIES, color="0.75", linewidth=0.8, zorder=0)
        panel.axhline(CARRIES, color="0.75", linewidth=0.8, zorder=0)
        panel.set_title("rest of the reason" if group == "reason" else group)
        panel.set_xlabel("choice")
    panels[0].set(ylabel="gender", xlim=(-0.15, 1.15), ylim=(-0.15, 1.15))
    labels = paths.count_labels(models)
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", color=atlas.COLORS[name], label=label)
        for name, label in labels.items()
    ]
    for language, label in {"de": "German", "fr": "French"}.items():
        shape = {"marker": markers[language], "markerfacecolor": "none", "color": "0.4"}
        handles.append(plt.Line2D([], [], linestyle="", label=label, **shape))
    figure.legend(handles=handles, title="path", loc="outside right center", frameon=False)
    figure.description = (
        f"What each part of the encoder's output carries in {len(models)} models. Paths: "
        f"{', '.join(labels.values())}."
    )
    return figure


if __name__ == "__main__":
    run(main, None, Options)
