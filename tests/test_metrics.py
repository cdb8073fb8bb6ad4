# SPDX-License-Identifier: Apache-2.0
"""The scores are sacreBLEU's own, to the last digit that it prints."""

import random

import pytest
import sacrebleu

from transformer.errors import InputError
from transformer.metrics import corpus_scores

REFERENCES = [
    "The cat sat on the mat, and the dog didn't mind.",
    "Ein großer Hund überquert die Straße; es regnet stark.",
    "“Quoted” text — with dashes, 3.5 numbers and 1,000 more.",
    "An exact match stays an exact match.",
    "C'est la vie, n'est-ce pas ?",
] * 8


def noisy(lines):
    """Translations with words dropped, doubled and put into capitals; every fifth is exact."""
    generator = random.Random(0)
    made = []
    for index, line in enumerate(lines):
        words = line.split()
        if index % 5 != 3:
            del words[generator.randrange(len(words))]
            words.insert(generator.randrange(len(words)), generator.choice(words).upper())
        made.append(" ".join(words))
    return made


HYPOTHESES = noisy(REFERENCES)


@pytest.fixture(scope="module")
def scores():
    """Of the noisy translations, with an interval."""
    return corpus_scores(HYPOTHESES, REFERENCES)


@pytest.fixture(scope="module")
def bleu():
    """sacreBLEU's own answer."""
    metric = sacrebleu.BLEU()
    return metric.corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=1000), metric.get_signature()


def test_bleu_is_sacrebleus(scores, bleu):
    own = bleu[0]
    assert 20 < own.score < 90, "a score at the edge would show little"
    assert scores["bleu"] == own.score == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score


def test_the_interval_is_sacrebleus_to_the_last_printed_digit(scores, bleu):
    printed = bleu[0].format(width=3, signature=str(bleu[1]))
    low, high = scores["bleu_ci"]
    assert f"(μ = {(low + high) / 2:.3f} ± {(high - low) / 2:.3f})" in printed
    assert low < scores["bleu"] < high


def test_the_signature_names_version_case_tokenizer_and_resampling(scores, bleu):
    assert scores["bleu_signature"] == str(bleu[1])
    for part in ("nrefs:1", "bs:1000", "case:mixed", "tok:13a", f"version:{sacrebleu.__version__}"):
        assert part in scores["bleu_signature"].split("|")


def test_chrf_is_sacrebleus(scores):
    metric = sacrebleu.CHRF()
    assert scores["chrf"] == metric.corpus_score(HYPOTHESES, [REFERENCES]).score
    assert scores["chrf_signature"] == str(metric.get_signature())


def test_exact_match_is_the_share_of_identical_lines(scores):
    assert scores["exact_match"] == 8 / 40


@pytest.mark.parametrize("hypothesis", ["Same", "same ", " same", "same.", ""])
def test_exact_match_forgives_nothing(hypothesis):
    assert corpus_scores([hypothesis], ["same"], bootstrap=0)["exact_match"] == 0


def test_case_counts():
    lower = [line.lower() for line in REFERENCES]
    assert corpus_scores(lower, REFERENCES, bootstrap=0)["bleu"] < 90


def test_a_perfect_translation_scores_100_with_a_narrow_interval():
    scores = corpus_scores(REFERENCES, REFERENCES)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["bleu_ci"] == pytest.approx([100, 100])
    assert scores["chrf"] == pytest.approx(100)
    assert scores["exact_match"] == 1


def test_a_translation_without_a_common_word_scores_nothing():
    scores = corpus_scores(["xyzzy"] * 3, ["a b c d e"] * 3)
    assert scores["bleu"] == 0
    assert scores["bleu_ci"] == [0, 0]
    assert scores["exact_match"] == 0


def test_the_same_translations_have_the_same_interval(scores):
    assert corpus_scores(HYPOTHESES, REFERENCES) == scores


def test_without_resampling_there_is_no_interval_and_the_same_bleu(scores):
    plain = corpus_scores(HYPOTHESES, REFERENCES, bootstrap=0)
    assert "bleu_ci" not in plain
    assert plain["bleu"] == scores["bleu"]
    assert plain["bleu_signature"] == str(_signature_without_resampling())


def _signature_without_resampling():
    metric = sacrebleu.BLEU()
    metric.corpus_score(HYPOTHESES, [REFERENCES])
    return metric.get_signature()


@pytest.mark.parametrize(("translations", "references"), [(3, 2), (2, 3), (0, 1), (0, 0)])
def test_unequal_counts_and_none_at_all_are_refused_with_both_counts(translations, references):
    with pytest.raises(InputError) as raised:
        corpus_scores(["a"] * translations, ["a"] * references)
    assert f"{translations} translations and {references} references" in str(raised.value)
