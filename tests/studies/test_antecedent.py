# SPDX-License-Identifier: Apache-2.0
"""The study `antecedent`: its sentences, its design, its paths, and the numbers of its page."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from experiments.data.grammars.pronouns import words
from experiments.studies import antecedent_effects, antecedent_page, antecedent_paths
from experiments.studies import antecedent_sentences as sentences
from experiments.studies.antecedent_models import models
from transformer.errors import InputError
from transformer.inspection import html

DOCS = pathlib.Path(__file__).parents[2] / "docs"


# The sentences.


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


# The design.


def test_the_design_has_forty_models_in_both_languages_and_no_seed_twice():
    every = models()
    assert len(every) == 40
    draws = [(model.recipe, model.language, model.seed) for model in every.values()]
    assert len(set(draws)) == 40
    assert {model.language for model in every.values()} == {"de", "fr"}
    for factor in ("width", "layers", "steps"):
        assert len({getattr(model, factor) for model in every.values()}) >= 3


def test_stages_of_a_training_do_not_change_its_schedule():
    staged = next(model for model in models().values() if model.stages)
    early, late = staged.config(staged.stages[0]), staged.config()
    assert early.training.steps < late.training.steps == 800
    assert early.optimizer == late.optimizer and early.optimizer.schedule == "noam"


# Paths.


def measured(adjective=None, noun=None, *, right=1.0, of_memory=1.0):
    """The numbers of a model: effects of the parts that are not 0."""

    def memory(effects):
        return {group: [(effects or {}).get(group, 0.0)] for group in antecedent_effects.GROUPS}

    return {
        "right": right,
        "adjective": {"memory": memory(adjective)},
        "noun": {"memory": memory(noun), "event_first": {"all": [of_memory]}},
    }


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (measured({"it": 0.9}, {"it": 0.8, "nouns": 0.6}), "it"),
        (measured({"adjective": 0.9, "it": 0.6}, {"adjective": 0.7}), "adjective"),
        (measured({"adjective": 0.9}, {"nouns": 0.9}), "decoder"),
        (measured({"adjective": 0.9}, {"nouns": 0.2}, of_memory=0.3), "decoder"),
        (measured({"adjective": 0.9}, {"nouns": 0.4}), "several"),
        (measured({"adjective": 0.4, "it": 0.4}, {"it": 0.9}), "several"),
        (measured({"it": 1.0}, {"it": 1.0}, right=0.89), "not learned"),
    ],
)
def test_the_path_is_where_choice_and_gender_are(model, expected):
    assert antecedent_paths.path(model) == expected


def test_an_effect_is_the_way_to_the_twins_answer_over_all_right_twins():
    """One quadruple: preferences 2, 4, 1, -1, so that the last pair of twins does not count."""

    class Subject:
        preference = np.array([2.0, 4.0, 1.0, -1.0])

    effects = antecedent_effects.Effects(Subject(), 1, None)
    assert effects.right.tolist() == [True, True, False, False]
    # From 2 to -1 and from 4 to 1, of 2 to -4 and of 4 to -2: (3 + 3) / (6 + 6).
    assert effects.of(np.array([-1.0, 1.0, 9.0, 9.0])) == 0.5
    assert effects.of(Subject.preference) == 0
    assert effects.of(np.array([-4.0, -2.0, 0.0, 0.0])) == 1
    noun = antecedent_effects.Effects(Subject(), 2, None)
    assert noun.right.tolist() == [True, False, True, False]


def test_two_heads_that_cost_2_and_4_points_alone_and_15_together_replace_each_other():
    model = {
        "right": 0.99,
        "ablation": {
            "mean": {"encoder": {"heads": [[0.97, 0.99], [0.95, 0.99]], "pairs": [0.97] * 6}}
        },
    }
    pairs = model["ablation"]["mean"]["encoder"]["pairs"]
    pairs[1] = 0.84  # heads 1.1 and 2.1, the second pair
    names, excess = antecedent_paths.backed_up(model, "encoder")
    assert names == ("1.1", "2.1")
    assert excess == pytest.approx(0.15 - 0.02 - 0.04)


def test_wilson_intervals_are_the_published_ones():
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for count, total, expected in (
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ):
        np.testing.assert_allclose(antecedent_paths.wilson(count, total), expected, atol=1e-4)


def test_a_mean_over_equal_models_has_an_interval_without_width():
    assert antecedent_paths.mean_interval([0.5, 0.5, None]) == [0.5, 0.5, 0.5]


def test_a_section_of_the_page_is_replaced_and_a_page_without_it_is_refused():
    page = "Before\n<!-- models -->\nold\n<!-- end of models -->\nAfter\n"
    expected = "Before\n<!-- models -->\n\nnew\n\n<!-- end of models -->\nAfter\n"
    assert antecedent_page.refreshed(page, {"models": "new\n"}) == expected
    assert antecedent_page.refreshed(expected, {"models": "new\n"}) == expected
    with pytest.raises(InputError, match="the page has no <!-- findings --> and <!-- end of find"):
        antecedent_page.refreshed(page, {"findings": "new"})


# The page of the study, from the committed measurements.


@pytest.fixture(scope="module")
def committed():
    """The measured files."""
    return antecedent_page.read(DOCS / "antecedent")


def test_the_readme_counts_the_models_that_the_study_measured(committed):
    learned = [
        antecedent_paths.path(model) for model in committed if model.get("recipe") == "small"
    ]
    learned = [path for path in learned if path != "not learned"]
    count = f"in {learned.count('decoder')} of {len(learned)} small ones that learned the task"
    assert count in (DOCS.parent / "README.md").read_text(encoding="utf-8")


def test_every_model_of_the_design_is_measured(committed):
    of_design = [model["name"] for model in committed if "recipe" in model]
    assert len(of_design) >= 30
    assert set(of_design) <= set(models())


def test_the_findings_of_the_page_are_those_of_the_measurements(committed):
    page = (DOCS / "antecedent.md").read_text(encoding="utf-8")
    for finding in antecedent_page.findings(committed):
        assert finding in page, f"docs/antecedent.md does not say: {finding}"


def test_the_table_and_the_atlas_are_those_of_the_measurements(committed):
    table = (DOCS / "antecedent.md").read_text(encoding="utf-8")
    atlas = (DOCS / "antecedent_atlas.html").read_text(encoding="utf-8")
    for model in committed:
        path = antecedent_paths.path(model)
        assert f"| {model['name']} | {model['right']:.0%} | {path} |" in table
        label = html.escape(f"{model['name']}: {path}")
        assert f'aria-label="{label}"' in atlas
        assert f'id="{model["name"]}"' in atlas


def test_the_picture_has_a_point_for_each_model_of_the_design(committed):
    of_design = [model for model in committed if "recipe" in model]
    figure = antecedent_page.picture(of_design)
    panels = figure.get_axes()
    assert len(panels) == len(antecedent_effects.GROUPS)
    for panel in panels:
        points = [line for line in panel.get_lines() if len(line.get_xdata()) == 1]
        assert len(points) == len(of_design)
    assert f"in {len(of_design)} models" in figure.description


def test_the_measured_files_hold_numbers_and_no_paths_of_a_machine(committed):
    for model in committed:
        assert "/" not in json.dumps({key: model[key] for key in model if key != "headline"})
