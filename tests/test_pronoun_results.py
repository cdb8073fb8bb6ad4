# SPDX-License-Identifier: Apache-2.0
"""The results that the README promises for `pronouns`: train with the command, then evaluate."""

import jax
import numpy as np
import pytest
from PIL import Image
from test_live_page import logits_error, logits_of
from test_results import last_json, run

from experiments.corpora import registry
from experiments.studies import (
    antecedent_measures,
    antecedent_paths,
    antecedent_sentences,
    readme_picture,
)
from transformer.inspection import figures
from transformer.inspection.live import live_page, weight_encoding
from transformer.translator import Translator

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


def test_the_german_model_finds_the_noun_in_the_encoder_and_the_answer_is_at_it(pronouns):
    """What docs/antecedent.md and the README say of `runs/de`; measure again if it fails."""
    language, workdir = pronouns
    if language != "de":
        pytest.skip("the statement is about runs/de")
    translator = Translator.from_workdir(workdir, average=1)
    batch, _ = antecedent_sentences.read(translator.tokenizer, language, 24)
    measured = antecedent_measures.quick(translator.params, translator.config.model, batch)
    choice, gender = (antecedent_paths.carried(measured, kind) for kind in ("adjective", "noun"))
    # Two trainings here, with and without threads in the matmuls, are right in 100% and 97%.
    assert measured["right"] >= 0.95
    assert choice["it"] >= antecedent_paths.CARRIES > choice["adjective"]
    assert gender["it"] >= 0.3
    assert gender["it"] + gender["nouns"] >= 0.9
    assert antecedent_paths.reading_heads(measured), "no encoder head reads the noun from it"


def test_ctranslate2_translates_as_this_project_does(pronouns, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    _, workdir = pronouns
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


def test_overwriting_one_state_in_the_live_page_turns_the_pronoun(pronouns, show):
    language, workdir = pronouns
    translator = Translator.from_workdir(workdir)
    sentence = "The animal didn't cross the street because it was too {}."
    twins = (sentence.format("tired"), sentence.format("wide"))
    arguments = translator.params, translator.config, translator.tokenizer, twins
    shown = show(live_page.live_page(*arguments))
    because = {"de": ("weil es", "weil sie"), "fr": ("parce qu'il", "parce qu'elle")}[language]
    translated = shown.locator(".translation")
    assert because[0] in translated.get_attribute("aria-label")
    shown.locator("[data-key='do it']").click()
    assert because[1] in translated.get_attribute("aria-label")


def test_the_live_page_computes_what_this_project_computes(pronouns, show):
    language, workdir = pronouns
    translator = Translator.from_workdir(workdir)
    tokenizer, config = translator.tokenizer, translator.config
    sentences = list(registry.load(config.data, "test").sources[: {"de": 200, "fr": 20}[language]])
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


def test_the_readme_picture_is_true_of_the_trained_model(pronouns, tmp_path):
    """What its caption says: after the encoder, the vector at "it" carries the answer."""
    language, workdir = pronouns
    shown = readme_picture.analyze(Translator.from_workdir(workdir))
    assert shown.pronouns == {"de": ("es", "sie"), "fr": ("il", "elle")}[language]
    distance = np.abs(shown.rows[0] - shown.rows[1]).sum() / 2
    assert distance > 0.5, "the head reads the same in both sentences"
    adjective, it = (shown.words[0].index(word) for word in ("tired", "it"))
    np.testing.assert_allclose(shown.effect[0], np.eye(len(shown.words[0]))[adjective], atol=1e-3)
    if language == "de":
        assert shown.effect[-1, it] > 0.9
        assert abs(shown.effect[-1, adjective]) < 0.1
    figure = readme_picture.draw(shown)
    with Image.open(figures.save(figure, tmp_path / "pronoun.png")) as image:
        assert image.text["Description"] == figure.description
