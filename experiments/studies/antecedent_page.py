# SPDX-License-Identifier: Apache-2.0
"""The results of the study `antecedent` from measured files: findings, table and picture."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from etils import epath

from experiments.studies import antecedent_paths
from experiments.studies.antecedent_atlas import COLORS
from experiments.studies.antecedent_effects import GROUPS
from experiments.studies.antecedent_models import CENTER
from experiments.studies.antecedent_paths import CARRIES, PATHS
from experiments.studies.study_tables import Column
from transformer.errors import InputError
from transformer.inspection import figures
from transformer.inspection.figures import style

COLUMNS = (
    Column("model", "name"),
    Column("right", "right", "{:.0%}"),
    Column("path", "path"),
    Column('"it": choice', "it_choice", "{:.2f}"),
    Column('"it": gender', "it_gender", "{:.2f}"),
    Column("adjective: choice", "adjective_choice", "{:.2f}"),
    Column("adjective: gender", "adjective_gender", "{:.2f}"),
    Column("nouns: gender", "nouns_gender", "{:.2f}"),
    Column('heads that read the noun from "it"', "reading_heads"),
    Column("best coreference score", "score", "{:.2f}"),
)


def refreshed(page: str, sections: Mapping[str, str]) -> str:
    """The page with other text between ``<!-- NAME -->`` and ``<!-- end of NAME -->``."""
    for name, text in sections.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise InputError(f"the page has no {begin.strip()} and {end}; write them into it")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


def read(folder: epath.Path) -> list[dict[str, Any]]:
    """The measured files of a directory: those of the design, then those of other workdirs.

    Raises:
      InputError: when there are none.
    """
    files = sorted(folder.glob("*.json"), key=lambda file: (file.name.startswith("w"), file.name))
    if not files:
        raise InputError(
            f"--measured={folder} has no measured model; run experiments.studies.antecedent first"
        )
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def findings(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sentences of docs/antecedent.md that have numbers, which a test looks for there."""
    small = [model for model in models if model.get("recipe") == "small"]
    of_readme = [model for model in models if model.get("recipe") != "small"]
    sentences = _of_group("the small recipe", small)
    sentences += [_of_factor(factor, CENTER, small) for factor in CENTER]
    sentences.append(_of_factor("language", {}, small))
    sentences += [_of_model(model) for model in of_readme]
    return sentences + [_of_training(model) for model in of_readme if model["stages"]]


def _of_group(name: str, models: Sequence[Mapping[str, Any]]) -> list[str]:
    """What models of one recipe have in common."""
    sentences = []
    of_group = antecedent_paths.statements(models)
    learned = of_group["learned"]
    sentences.append(
        f"Of {learned['of']} models of {name}, {learned['count']} give the right pronoun in at "
        "least 90% of the sentences."
    )
    for path, share in of_group["paths"].items():
        if share["count"]:
            sentences.append(f"{_share(share)} of these: {PATHS[path]} (`{path}`).")
    for kind, row in (("encoder", '"it"'), ("cross", "the row that predicts the pronoun")):
        share = of_group["heads that read the noun"][kind]
        score = of_group["best coreference score"][kind]
        sentences.append(
            f"With {name}, {_share(share)} models have a head of kind `{kind}` that gives the "
            f"antecedent more weight than the other noun in {row}, above chance; the best "
            f"head's score is {_mean(score)}."
        )
    effects = of_group["effects"]
    sentences.append(
        f'With {name}, the memory at "it" carries {_mean(effects["adjective"]["it"])} of the '
        f"choice and {_mean(effects['noun']['it'])} of the gender; at the adjective "
        f"{_mean(effects['adjective']['adjective'])} and "
        f"{_mean(effects['noun']['adjective'])}; at the nouns "
        f"{_mean(effects['adjective']['nouns'])} and {_mean(effects['noun']['nouns'])}."
    )
    whole = of_group["gender of the whole memory"]["event_first"]
    sentences.append(
        f"With {name}, where the translated nouns precede the pronoun, the whole memory "
        f"carries {_mean(whole)} of the gender; the rest comes from the target read so far."
    )
    cross, without = of_group["choice in cross-attention"], of_group["right without"]
    sentences.append(
        f"With {name}, cross-attention in the pronoun's row carries {_mean(cross['output'])} "
        f"of the choice, its attention weights alone {_mean(cross['pattern'])}."
    )
    sentences.append(
        f"With {name}, the share of right answers is {_mean(without['encoder'])} when all "
        f"encoder heads put out their means, {_mean(without['decoder'])} with those of the "
        f"decoder's self-attention, and {_mean(without['cross'])} of cross-attention."
    )
    pairs = of_group["pairs that replace each other"]
    sentences.append(
        f"With {name}, {_share(pairs['encoder'])} models have two encoder heads, and "
        f"{_share(pairs['cross'])} two cross-attention heads, whose joint loss costs at least "
        "5 points more than both losses together."
    )
    deletion, rank = of_group["deletion"], of_group["rank correlation"]
    sentences.append(
        f"With {name}, the preference that is left after the first word is "
        f"{_mean(deletion['integrated gradients'][0])} of the whole in the order of integrated "
        f"gradients, {_mean(deletion['occlusion'][0])} of occlusion, "
        f"{_mean(deletion['attention'][0])} of attention weights and "
        f"{_mean(deletion['random'][0])} at random."
    )
    sentences.append(
        f"With {name}, the rank correlation of integrated gradients is "
        f"{_mean(rank['occlusion'])} with occlusion, {_mean(rank['random decoder'])} with "
        "those of a model whose decoder is random, and "
        f"{_mean(rank['random all'])} with those of a random model."
    )
    carriers = Counter(
        (antecedent_paths.carrier(model, "adjective"), antecedent_paths.carrier(model, "noun"))
        for model in models
        if antecedent_paths.path(model) == "decoder"
    )
    joined = ", ".join(
        f"{number} with the choice at `{choice}` and the gender at `{gender}`"
        for (choice, gender), number in carriers.most_common()
    )
    sentences.append(f"The `decoder` models: {joined}.")
    scores = [
        antecedent_paths.best_head(model)[1]
        for model in models
        if antecedent_paths.path(model) == "decoder"
    ]
    sentences.append(
        f"In these, the largest coreference score of an encoder head is {max(scores):.2f}."
    )
    return sentences


def _of_factor(factor: str, center: Mapping[str, int], models: Sequence[Mapping[str, Any]]) -> str:
    """The paths by one factor, of the models whose other factors are those of the center."""
    others = [name for name in center if name != factor]
    chosen = [model for model in models if all(model[name] == center[name] for name in others)]
    parts = []
    for value in sorted({model[factor] for model in chosen}):
        paths = Counter(antecedent_paths.path(model) for model in chosen if model[factor] == value)
        counts = ", ".join(f"{number} `{path}`" for path, number in paths.most_common())
        parts.append(f"{value}: {counts}")
    return f"By {factor}: {'; '.join(parts)}."


def _share(share: Mapping[str, Any]) -> str:
    low, high = share["interval"]
    return f"{share['count']} of {share['of']} ({low:.0%} to {high:.0%})"


def _mean(numbers: Sequence[float]) -> str:
    value, low, high = numbers
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _of_model(model: Mapping[str, Any]) -> str:
    """What one model does."""
    name = model["name"] if "recipe" in model else f"runs/{model['name']}"
    (layer, head), score = antecedent_paths.best_head(model)
    choice, gender = (model[kind]["memory"] for kind in ("adjective", "noun"))
    text = (
        f"`{name}` is right in {model['right']:.0%}; its path is `{antecedent_paths.path(model)}`. "
        f'The memory at "it" carries {_mean(choice["it"])} of the choice and '
        f"{_mean(gender['it'])} of the gender; the nouns carry {_mean(choice['nouns'])} and "
        f"{_mean(gender['nouns'])}. Head {layer}.{head} of the encoder has a coreference score of "
        f"{score:.2f}"
    )
    pair = antecedent_paths.backed_up(model, "encoder")
    if pair is None:
        return f"{text}."
    (first, second), excess = pair
    return (
        f"{text}; without heads {first} and {second} together it loses {100 * excess:.0f} points "
        "more than without the one and without the other."
    )


def _of_training(model: Mapping[str, Any]) -> str:
    """When the path of a model forms."""
    stages = [*model["stages"], model | {"step": model["steps"]}]
    path = antecedent_paths.carrier(model, "adjective"), antecedent_paths.carrier(model, "noun")
    steps = [
        f"{stage['step']}: {stage['right']:.0%} right, {stage['adjective']['right']} in both "
        "twins, choice "
        f"{antecedent_paths.carried(stage, 'adjective').get(path[0], float('nan')):.2f}, gender "
        f"{antecedent_paths.carried(stage, 'noun').get(path[1], float('nan')):.2f}"
        for stage in stages
    ]
    return (
        f"`{model['name']}` by step, at the parts that carry both in the last one "
        f"({path[0]}, {path[1]}): "
        f"{'; '.join(steps)}."
    )


def row_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    choice, gender = (antecedent_paths.carried(model, kind) for kind in ("adjective", "noun"))
    heads = antecedent_paths.reading_heads(model)
    return {
        "name": model["name"],
        "right": model["right"],
        "path": antecedent_paths.path(model),
        "it_choice": choice["it"],
        "it_gender": gender["it"],
        "adjective_choice": choice["adjective"],
        "adjective_gender": gender["adjective"],
        "nouns_gender": gender["nouns"],
        "reading_heads": ", ".join(f"{layer}.{head}" for layer, head in heads),
        "score": antecedent_paths.best_head(model)[1],
    }


@style.styled
def picture(models: Sequence[Mapping[str, Any]]) -> figures.DescribedFigure:
    """For each part of the memory, the choice and the gender that it carries in every model."""
    figure = plt.figure(
        FigureClass=figures.DescribedFigure, figsize=(9.6, 2.9), layout="constrained"
    )
    panels = figure.subplots(1, len(GROUPS), sharex=True, sharey=True)

    for panel, group in zip(panels, GROUPS, strict=True):
        for model in models:
            choice, gender = (
                antecedent_paths.carried(model, kind)[group] for kind in ("adjective", "noun")
            )
            panel.plot(
                choice,
                gender,
                marker={"de": "o", "fr": "^"}[model["language"]],
                color=COLORS[antecedent_paths.path(model)],
                alpha=0.75,
                markersize=5,
                markeredgewidth=0,
            )
        panel.axvline(CARRIES, color="0.75", linewidth=0.8, zorder=0)
        panel.axhline(CARRIES, color="0.75", linewidth=0.8, zorder=0)
        panel.set_title({"reason": "rest of the reason", "rest": "rest"}.get(group, group))
        panel.set_xlabel("choice")
    panels[0].set_ylabel("gender")
    panels[0].set_xlim(-0.15, 1.15)
    panels[0].set_ylim(-0.15, 1.15)
    counts = dict.fromkeys(PATHS, 0)
    for model in models:
        counts[antecedent_paths.path(model)] += 1
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", color=COLORS[name], label=f"{name} ({number})")
        for name, number in counts.items()
        if number
    ]
    shapes = {"o": "German", "^": "French"}
    handles += [
        plt.Line2D(
            [], [], marker=marker, linestyle="", color="0.4", markerfacecolor="none", label=language
        )
        for marker, language in shapes.items()
    ]
    figure.legend(handles=handles, title="path", loc="outside right center", frameon=False)
    figure.description = (
        f"What each part of the encoder's output carries in {len(models)} models. Paths: "
        + ", ".join(f"{name} {number}" for name, number in counts.items() if number)
        + "."
    )
    return figure
