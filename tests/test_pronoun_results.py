# SPDX-License-Identifier: Apache-2.0
"""The results that the README promises for `pronouns`: train with the command, then evaluate."""

import pytest
from test_results import last_json, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["de", "fr"])
def pronouns(request, tmp_path_factory) -> tuple[str, str]:
    workdir = str(tmp_path_factory.mktemp(request.param))
    run(
        "train",
        f"--config=experiments/configs/pronouns.py:{request.param}",
        f"--workdir={workdir}",
    )
    return request.param, workdir


def test_pronouns_are_correct_in_unseen_sentences(pronouns):
    _, workdir = pronouns
    scores = last_json(run("evaluate", f"--workdir={workdir}"))
    assert scores["pronoun_accuracy"] >= 0.99
    assert scores["twin_accuracy"] >= 0.98
    assert scores["exact_match"] >= 0.95
    assert scores["majority"] <= 0.6
    assert scores["subject"] <= 0.6


def test_pronouns_are_correct_for_unseen_noun_pairs(pronouns):
    _, workdir = pronouns
    scores = last_json(run("evaluate", f"--workdir={workdir}", "--split=test_unseen"))
    assert scores["pronoun_accuracy"] >= 0.97


def test_the_animal_is_tired_and_the_street_is_wide(pronouns):
    language, workdir = pronouns
    sentence = "The animal didn't cross the street because it was too {}.\n"
    text = sentence.format("tired") + sentence.format("wide")
    tired, wide = run("translate", f"--workdir={workdir}", text=text).splitlines()
    because = {"de": ("weil es", "weil sie"), "fr": ("parce qu'il", "parce qu'elle")}[language]
    assert because[0] in tired
    assert because[1] in wide
