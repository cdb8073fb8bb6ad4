# SPDX-License-Identifier: Apache-2.0
"""The study of "it": its sentences, its design, its paths, its files, and its page."""

import itertools
import json
import pathlib
import zipfile

import jax
import numpy as np
import pytest
from etils import epath

from experiments.data.grammars.pronouns import words
from experiments.studies.antecedent import __main__ as study
from experiments.studies.antecedent import paths, report, sentences
from experiments.studies.antecedent.effects import GROUPS, Effects
from experiments.studies.antecedent.models import models
from transformer.errors import InputError
from transformer.inspection import html
from transformer.translator import Translator

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("language", ["de", "fr"])
def test_a_quadruple_is_two_nouns_by_two_reasons_with_exchanged_answers(language):
    for four in itertools.islice(sentences._drawn(language), 5):
        texts = [words(example["source"]) for example in four]
        assert len({len(text) for text in texts}) == 1
        answers = [words(each["target"])[each["target_pronoun"]].lower() for each in four]
        assert answers[0] == answers[3] != answers[1] == answers[2]
        for first, second in ((0, 1), (2, 3)):  # adjective twins
            different = [a for a, b in zip(texts[first], texts[second], strict=True) if a != b]
            assert len(different) == 1
            nouns = four[first]["antecedent"], four[first]["distractor"]
            assert nouns == (four[second]["distractor"], four[second]["antecedent"])
        for first, second in ((0, 2), (1, 3)):  # noun twins
            nouns = {four[first]["antecedent"], four[first]["distractor"]}
            for index, pair in enumerate(zip(texts[first], texts[second], strict=True)):
                articles = {word.lower() for word in pair} == {"a", "an"}
                assert pair[0] == pair[1] or articles or index in nouns


def test_the_design_has_forty_models_in_both_languages_and_no_seed_twice():
    every = models().values()
    assert len({(model.recipe, model.language, model.seed) for model in every}) == len(every) == 40
    assert {model.language for model in every} == {"de", "fr"}
    staged = next(model for model in every if model.stages)
    early, late = staged.config(staged.stages[0]), staged.config()
    assert early.training.steps < late.training.steps == 800
    assert early.optimizer == late.optimizer and early.optimizer.schedule == "noam"


@pytest.mark.slow
def test_a_file_is_measured_again_if_an_option_or_the_weights_change(tmp_path, monkeypatch):
    """The trained model of the README stands for the last checkpoint of a workdir."""
    translator = Translator.from_workdir(DOCS / "pronouns_de.zip")
    directory, measured = epath.Path(tmp_path) / "de", []
    with zipfile.ZipFile(DOCS / "pronouns_de.zip") as bundle:
        bundle.extract("config.json", directory)
    result = {"step": 8, "parameters": 1, "validation": {"nll": 0.1, "pronoun_accuracy": 1.0}}
    (directory / "result.json").write_text(json.dumps(result))
    monkeypatch.setattr(study.Translator, "from_workdir", lambda *_, **__: translator)

    def counted(model, params, batch, *_):
        measured.append(len(batch))
        return {"sentences": len(batch)}

    monkeypatch.setattr(study.measures, "measure", counted)

    def measure(quadruples):
        return study.measure(directory, directory / "out" / "de.json", quadruples)

    assert measure(1) == measure(1) == {**measure(1), "language": "de", "sentences": 4}
    assert measured == [4]
    assert measure(2)["sentences"] == 8
    monkeypatch.setattr(
        translator, "params", jax.tree.map(lambda leaf: 2 * leaf, translator.params)
    )
    assert measure(2) == measure(2)
    assert measured == [4, 8, 8]


# Paths.


def measured(adjective=None, noun=None, *, right=1.0, event_first=1.0, half_width=0.05):
    """The numbers of a model: effects of the parts that are not 0."""

    def memory(effects):
        values = {group: (effects or {}).get(group, 0.0) for group in GROUPS}
        return {group: [v, v - half_width, v + half_width] for group, v in values.items()}

    whole = [event_first, event_first - half_width, event_first + half_width]
    return {
        "right": right,
        "adjective": {"memory": memory(adjective)},
        "noun": {"memory": memory(noun), "event_first": whole},
    }


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (measured({"it": 0.9}, {"it": 0.8, "nouns": 0.6}), "it"),
        (measured({"adjective": 0.9, "it": 0.6}, {"adjective": 0.7}), "adjective"),
        (measured({"adjective": 0.9}, {"nouns": 0.9}), paths.ELIMINATION),
        (measured({"adjective": 0.9}, {"nouns": 0.2}, event_first=0.3), paths.ELIMINATION),
        (measured({"adjective": 0.9}, {"nouns": 0.2}, event_first=0.46), paths.UNDECIDED),
        (measured({"adjective": 0.9}, {"nouns": 0.4}), paths.UNDECIDED),
        (measured({"adjective": 0.4, "it": 0.4}, {"it": 0.9}), paths.UNDECIDED),
        # The interval of the nouns, 0.46 to 0.56, contains the 0.49 of "it".
        (measured({"it": 0.9}, {"nouns": 0.51, "it": 0.49}), paths.UNDECIDED),
        (measured({"it": 0.9}, {"nouns": 0.51, "it": 0.49}, half_width=0.0), paths.ELIMINATION),
        (measured({"it": 1.0}, {"it": 1.0}, right=0.89), paths.NOT_LEARNED),
    ],
)
def test_the_path_is_where_choice_and_gender_are_beyond_the_runner_up(model, expected):
    assert paths.path(model) == expected


def test_an_effect_is_the_way_to_the_twins_answer_over_all_right_twins():
    """One quadruple: preferences 2, 4, 1, -1, so that the last pair of twins does not count."""

    class Subject:
        preference = np.array([2.0, 4.0, 1.0, -1.0])

    effects = Effects(Subject(), 1)
    assert effects.right.tolist() == [True, True, False, False]
    # From 2 to -1 and from 4 to 1, of 2 to -4 and of 4 to -2: (3 + 3) / (6 + 6).
    assert effects.effect(np.array([-1.0, 1.0, 9.0, 9.0])) == 0.5
    assert effects.effect(Subject.preference) == 0
    assert effects.effect(np.array([-4.0, -2.0, 0.0, 0.0])) == 1
    assert Effects(Subject(), 2).right.tolist() == [True, False, True, False]


def test_two_heads_that_cost_2_and_4_points_alone_and_15_together_replace_each_other():
    pairs = [0.97, 0.84, 0.97, 0.97, 0.97, 0.97]  # the second one is of heads 1.1 and 2.1
    ablation = {"encoder": {"heads": [[0.97, 0.99], [0.95, 0.99]], "pairs": pairs}}
    heads, excess = paths.backed_up({"right": 0.99, "ablation": ablation}, "encoder")
    assert heads == ("1.1", "2.1")
    assert excess == pytest.approx(0.15 - 0.02 - 0.04)


def test_wilson_intervals_are_the_published_ones():
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for count, total, expected in (
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ):
        np.testing.assert_allclose(paths.wilson(count, total), expected, atol=1e-4)
    assert paths.mean([0.5, 0.5, None]) == (0.5, 0.5, 0.5)


# The page of the study, from the committed measurements.


def test_a_section_of_the_page_is_replaced_and_a_page_without_it_is_refused():
    page = "Before\n<!-- models -->\nold\n<!-- end of models -->\nAfter\n"
    expected = "Before\n<!-- models -->\n\nnew\n\n<!-- end of models -->\nAfter\n"
    assert report.refreshed(page, {"models": "new\n"}) == expected
    assert report.refreshed(expected, {"models": "new\n"}) == expected
    with pytest.raises(InputError, match="the page has no <!-- findings --> and <!-- end of find"):
        report.refreshed(page, {"findings": "new"})


@pytest.fixture(scope="module")
def committed():
    """The measured files."""
    return report.read(DOCS / "antecedent")


def test_readme_page_atlas_and_picture_have_the_same_counts(committed):
    small = paths.small_recipe(committed)
    counts = paths.counts(small)
    learned = len(small) - counts[paths.NOT_LEARNED]
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    remaining = counts[paths.ELIMINATION]
    assert f"in {remaining} of {learned} small ones that learned the task" in readme
    assert "by elimination" in readme
    text = (DOCS / "antecedent_atlas.html").read_text(encoding="utf-8")
    picture = report.picture(small)
    for label in paths.count_labels(small).values():
        assert label in text and label in picture.description
    assert len(picture.get_axes()) == len(GROUPS)
    for panel in picture.get_axes():
        points = [line for line in panel.get_lines() if len(line.get_xdata()) == 1]
        assert len(points) == len(small)


def test_page_and_atlas_are_those_of_the_measurements(committed):
    page = (DOCS / "antecedent.md").read_text(encoding="utf-8")
    for finding in report.findings(committed):
        assert report.item(finding) in page, f"docs/antecedent.md does not say: {finding}"
    text = (DOCS / "antecedent_atlas.html").read_text(encoding="utf-8")
    for model in committed:
        path = paths.path(model)
        assert f"| {model['name']} | {model['right']:.0%} | {path} |" in page
        label = html.escape(f"{model['name']}: {path}")
        assert f'aria-label="{label}"' in text and f'id="{model["name"]}"' in text


def test_the_measured_files_are_of_the_design_and_hold_no_paths_of_a_machine(committed):
    design = {model["name"] for model in committed if "recipe" in model}
    assert len(design) >= 30 and design <= set(models())
    for model in committed:
        assert "/" not in json.dumps({key: model[key] for key in model if key != "headline"})
