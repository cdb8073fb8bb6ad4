# SPDX-License-Identifier: Apache-2.0
"""The results that the README promises for `pronouns:de`: train with the command, then evaluate."""

import apps
import jax
import numpy as np
import pytest
from live_pages import logits_error, logits_of
from PIL import Image
from test_results import last_json, run

from experiments.data import registry
from experiments.studies import readme_picture
from experiments.studies.antecedent import measures, paths, sentences
from transformer.inspection import figures
from transformer.inspection.live import live_page, weight_encoding
from transformer.translator import Translator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> str:
    workdir = str(tmp_path_factory.mktemp("de"))
    run("train", "--config=pronouns:de", f"--workdir={workdir}")
    return workdir


@pytest.fixture(scope="module")
def committed() -> Translator:
    """The model of the README's picture. Another training may resolve "it" in another way."""
    return Translator.from_workdir(apps.REPOSITORY / "docs" / "pronouns_de.zip")


def test_pronouns_are_correct_in_unseen_sentences(workdir):
    scores = last_json(run("evaluate", f"--workdir={workdir}"))
    assert scores["pronoun_accuracy"] >= 0.99
    assert scores["twin_accuracy"] >= 0.98
    assert scores["exact_match"] >= 0.95
    assert scores["majority"] <= 0.6
    assert scores["subject"] <= 0.6


def test_pronouns_are_correct_for_unseen_noun_pairs(workdir):
    scores = last_json(run("evaluate", f"--workdir={workdir}", "--split=test_unseen"))
    assert scores["pronoun_accuracy"] >= 0.97


def test_the_animal_is_tired_and_the_street_is_wide(workdir):
    sentence = "The animal didn't cross the street because it was too {}.\n"
    text = sentence.format("tired") + sentence.format("wide")
    tired, wide = run("translate", f"--workdir={workdir}", text=text).splitlines()
    assert "weil es" in tired
    assert "weil sie" in wide


def test_the_encoder_finds_the_noun_and_puts_the_answer_at_it(committed):
    """What docs/antecedent.md and the README say of this model."""
    batch, _ = sentences.read(committed.tokenizer, "de", 24)
    measured = measures.quick(committed.model, committed.params, batch)
    choice, gender = (paths.carried(measured, kind) for kind in ("adjective", "noun"))
    assert measured["right"] == 1
    assert choice["it"] > 0.98
    assert gender["it"] > 0.97
    assert paths.reading_heads(measured) == [(2, 2), (2, 4)]


def test_ctranslate2_translates_as_this_project_does(workdir, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    exported = tmp_path / "exported"
    run("convert", "--to=ctranslate2", f"--workdir={workdir}", f"--output={exported}")
    ours, theirs = Translator.from_workdir(workdir), ctranslate2.Translator(str(exported))
    split = registry.load(ours.config.data, "test")
    sources, targets = split.sources[:500], split.targets[:500]
    tokenizer = ours.vocabularies.tokenizer
    pieces, references = (
        [tokenizer.pieces(ids[:-1]) for ids in tokenizer.encode(texts)]
        for texts in (sources, targets)
    )
    results = theirs.translate_batch(pieces, beam_size=1, min_decoding_length=0)
    greedy = [result.text for result in ours(sources, beams=1)]
    assert len(greedy) == 500
    assert [tokenizer.decode(tokenizer.ids(one.hypotheses[0])) for one in results] == greedy
    scored = theirs.score_batch(pieces, references)
    np.testing.assert_allclose(
        [sum(one.log_probs) for one in scored],
        [log_prob for log_prob, _ in ours.score(sources, targets)],
        atol=1e-4,
    )


def test_overwriting_one_state_in_the_live_page_turns_the_pronoun(committed, show):
    sentence = "The animal didn't cross the street because it was too {}."
    twins = (sentence.format("tired"), sentence.format("wide"))
    arguments = committed.params, committed.config, committed.tokenizer, twins
    shown = show(live_page.live_page(*arguments))
    translated = shown.locator(".translation")
    assert "weil es" in translated.get_attribute("aria-label")
    shown.locator("[data-key='do it']").click()
    assert "weil sie" in translated.get_attribute("aria-label")


def test_the_live_page_computes_what_this_project_computes(workdir, show):
    translator = Translator.from_workdir(workdir)
    tokenizer, config = translator.tokenizer, translator.config
    sentences = list(registry.load(config.data, "test").sources[:200])
    text = live_page.live_page(translator.params, config, tokenizer, (sentences[0], sentences[1]))
    assert len(text.encode()) < live_page.LARGE_BYTES
    assert logits_error(show(text), translator, sentences) < 1e-3

    def error(rounded):
        """The largest difference of a logit with rounded weights."""
        params = jax.tree.map(lambda leaf: rounded(np.asarray(leaf)), translator.params)
        pairs = zip(tokenizer.encode(sentences), translator(sentences), strict=True)
        return max(
            np.abs(
                logits_of(translator, params, source, best.tokens)
                - logits_of(translator, translator.params, source, best.tokens)
            ).max()
            for source, best in pairs
        )

    errors = error(weight_encoding.rounded), error(lambda leaf: np.float32(np.float16(leaf)))
    print("largest error of a logit, 24 bits and float16:", *errors)
    assert errors[0] < 1e-3 < errors[1]


def test_the_readme_picture_is_true_of_its_model(committed, tmp_path):
    """What its caption says: at "it" a head reads the noun, and its vector carries the answer."""
    shown = readme_picture.analyze(committed)
    assert shown.pronouns == ("es", "sie")
    for row, words, noun in zip(shown.rows, shown.words, ("animal", "street"), strict=True):
        assert row[words.index(noun)] > 0.95
    adjective, it = (shown.words[0].index(word) for word in ("tired", "it"))
    np.testing.assert_allclose(shown.effect[0], np.eye(len(shown.words[0]))[adjective], atol=1e-3)
    assert (shown.effect[1:, it] > 0.9).all()
    assert (abs(shown.effect[1:, adjective]) < 0.1).all()
    figure = readme_picture.draw(shown)
    with Image.open(figures.save(figure, tmp_path / "pronoun.png")) as image:
        made = image.text["Description"]
    with Image.open(apps.REPOSITORY / "docs" / "pronoun.png") as image:
        assert image.text["Description"] == figure.description == made
