# SPDX-License-Identifier: Apache-2.0
"""The scores equal those of sacreBLEU to the last digit that it prints."""

import json
import random
import re
import subprocess
import sys

import pytest
import sacrebleu

from transformer.errors import InputError
from transformer.text import metrics
from transformer.text.metrics import corpus_scores, paired_tests, sentence_chrf

REFERENCES = [
    "The cat sat on the mat, and the dog didn't mind.",
    "Ein großer Hund überquert die Straße; es regnet stark.",
    "“Quoted” text — with dashes, 3.5 numbers and 1,000 more.",
    "An exact match stays an exact match.",
    "C'est la vie, n'est-ce pas ?",
] * 8


def noisy(lines, seed=0):
    """Translations with words dropped, repeated and capitalized; every fifth is exact."""
    generator = random.Random(seed)
    made = []
    for index, line in enumerate(lines):
        words = line.split()
        if index % 5 != 3:
            del words[generator.randrange(len(words))]
            words.insert(generator.randrange(len(words)), generator.choice(words).upper())
        made.append(" ".join(words))
    return made


HYPOTHESES = noisy(REFERENCES)
OTHERS = noisy(REFERENCES, seed=1)


def printed(folder, *arguments, systems=(HYPOTHESES,), references=REFERENCES, digits=4):
    """Output of the command `sacrebleu` for systems that are written to files."""
    for name, lines in [("references", references), *zip("AB", systems, strict=False)]:
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "--input", *"AB"[: len(systems)]]
    command += ["--metrics", "bleu", "chrf", "--width", str(digits), "--quiet", "--no-color"]
    finished = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, encoding="utf-8", check=True
    )
    return finished.stdout


@pytest.fixture(scope="module")
def scores():
    """Scores of the noisy translations, with intervals."""
    return corpus_scores(HYPOTHESES, REFERENCES)


@pytest.fixture(scope="module")
def bleu():
    """BLEU and signature computed by sacreBLEU directly."""
    metric = sacrebleu.BLEU()
    return metric.corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=1000), metric.get_signature()


def test_bleu_and_its_interval_are_sacrebleus_to_the_last_printed_digit(scores, bleu):
    expected = bleu[0]
    assert 20 < expected.score < 90, "a score at the boundary would show little"
    assert scores["bleu"] == expected.score == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    printed = bleu[0].format(width=3, signature=str(bleu[1]))
    low, high = scores["bleu_ci"]
    assert f"(μ = {(low + high) / 2:.3f} ± {(high - low) / 2:.3f})" in printed
    assert low < scores["bleu"] < high
    assert scores["bleu_signature"] == str(bleu[1])
    for part in ("nrefs:1", "bs:1000", "case:mixed", "tok:13a", f"version:{sacrebleu.__version__}"):
        assert part in scores["bleu_signature"].split("|")


def test_chrf_is_sacrebleus(scores):
    metric = sacrebleu.CHRF()
    expected = metric.corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=1000)
    assert 20 < expected.score < 99
    assert scores["chrf"] == expected.score
    assert scores["chrf_signature"] == str(metric.get_signature())
    low, high = scores["chrf_ci"]
    assert low < scores["chrf"] < high


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}),
        (("--tokenize=none",), {"bleu_tokenize": "none"}),
        (("--tokenize=intl", "--lowercase"), {"bleu_tokenize": "intl", "bleu_lowercase": True}),
    ],
    ids=["13a", "none", "intl in lower case"],
)
def test_scores_intervals_and_signatures_are_what_the_sacrebleu_command_prints(
    tmp_path, arguments, options
):
    scores = corpus_scores(HYPOTHESES, REFERENCES, **options)
    expected = json.loads(printed(tmp_path, "--confidence", *arguments))
    for name, lines in zip(("bleu", "chrf"), expected, strict=True):
        low, high = scores[f"{name}_ci"]
        assert f"{scores[name]:.4f}" == f"{lines['score']:.4f}"
        assert f"{(low + high) / 2:.4f}" == f"{lines['confidence_mean']:.4f}"
        assert f"{(high - low) / 2:.4f}" == f"{lines['confidence_var']:.4f}"
        assert scores[f"{name}_signature"] == lines["signature"]


def test_another_tokenization_is_another_bleu_and_the_same_chrf(scores):
    none = corpus_scores(HYPOTHESES, REFERENCES, bleu_tokenize="none")
    lower = corpus_scores(HYPOTHESES, REFERENCES, bleu_lowercase=True)
    assert len({scores["bleu"], none["bleu"], lower["bleu"]}) == 3
    assert "tok:none" in none["bleu_signature"].split("|")
    assert "case:lc" in lower["bleu_signature"].split("|")
    assert scores["chrf"] == none["chrf"] == lower["chrf"]
    assert scores["chrf_signature"] == lower["chrf_signature"]


def test_an_unknown_tokenization_raises_an_error_with_the_known_ones():
    with pytest.raises(InputError, match="'13b' is unknown; sacreBLEU has .*13a"):
        corpus_scores(HYPOTHESES, REFERENCES, bleu_tokenize="13b")


def test_a_tokenization_that_lacks_its_package_raises_an_error_with_its_requirement(monkeypatch):
    def lacking(**_):
        raise RuntimeError("Please install:\n\n  pip install sacrebleu[ja]")

    lacking.TOKENIZERS = sacrebleu.BLEU.TOKENIZERS
    monkeypatch.setattr(sacrebleu, "BLEU", lacking)
    with pytest.raises(InputError, match=r"'ja-mecab' needs more: .* pip install sacrebleu\[ja\]"):
        corpus_scores(HYPOTHESES, REFERENCES, bleu_tokenize="ja-mecab")


@pytest.fixture(scope="module")
def tests():
    """Paired tests of two similar systems."""
    return paired_tests(HYPOTHESES, OTHERS, REFERENCES)


def p_values(tests, test):
    """p-values of BLEU and chrF, with the digits that sacreBLEU prints."""
    return [f"{tests[metric][test]['p']:.4f}" for metric in ("bleu", "chrf")]


COMMANDS = {"paired_bootstrap": "--paired-bs", "approximate_randomization": "--paired-ar"}


@pytest.mark.parametrize("test", COMMANDS)
def test_p_values_are_what_the_sacrebleu_command_prints(tmp_path, tests, test):
    table = printed(tmp_path, COMMANDS[test], "--format=text", systems=(HYPOTHESES, OTHERS))
    assert p_values(tests, test) == re.findall(r"\(p = ([\d.]+)\)", table)
    assert all(0.002 < float(p) < 1 for p in p_values(tests, test)), "not at the boundary"


@pytest.mark.slow
def test_identical_translations_have_the_p_value_of_sacrebleu(tmp_path):
    tests = paired_tests(HYPOTHESES, HYPOTHESES, REFERENCES)
    assert p_values(tests, "paired_bootstrap") == [f"{1 / 1001:.4f}"] * 2
    expected = printed(tmp_path, "--paired-bs", "--format=text", systems=(HYPOTHESES, HYPOTHESES))
    assert re.findall(r"\(p = ([\d.]+)\)", expected) == p_values(tests, "paired_bootstrap")


def test_the_paired_tests_have_signatures_with_their_seeds_and_trials(tests):
    for metric in ("bleu", "chrf"):
        for test, trials in (
            ("paired_bootstrap", "bs:1000"),
            ("approximate_randomization", "ar:10000"),
        ):
            parts = tests[metric][test]["signature"].split("|")
            assert {trials, "seed:12345", "case:mixed"} <= set(parts)
            assert ("tok:13a" in parts) == (metric == "bleu")


def test_the_order_of_the_systems_does_not_change_a_p_value(tests):
    assert paired_tests(OTHERS, HYPOTHESES, REFERENCES) == tests


def test_sentence_chrf_is_sacrebleus():
    expected = [
        sacrebleu.sentence_chrf(h, [r]).score for h, r in zip(HYPOTHESES, REFERENCES, strict=True)
    ]
    assert sentence_chrf(HYPOTHESES, REFERENCES) == expected
    assert sentence_chrf(["", "a"], ["a", "a"]) == [0, 100]


def test_exact_match_is_the_share_of_identical_lines_and_scores_are_case_sensitive(scores):
    assert scores["exact_match"] == 8 / 40
    for hypothesis in ("Same", "same ", " same", "same.", ""):
        assert corpus_scores([hypothesis], ["same"], bootstrap=0)["exact_match"] == 0
    lower = [line.lower() for line in REFERENCES]
    assert corpus_scores(lower, REFERENCES, bootstrap=0)["bleu"] < 90


def test_a_perfect_translation_scores_100_with_a_narrow_interval():
    scores = corpus_scores(REFERENCES, REFERENCES)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["bleu_ci"] == pytest.approx([100, 100])
    assert scores["chrf_ci"] == pytest.approx([100, 100])
    assert scores["chrf"] == pytest.approx(100)
    assert scores["exact_match"] == 1
    # A translation without a common word scores 0.
    scores = corpus_scores(["xyzzy"] * 3, ["a b c d e"] * 3)
    assert scores["bleu"] == 0
    assert scores["bleu_ci"] == scores["chrf_ci"] == [0, 0]
    assert scores["exact_match"] == 0


def test_there_is_an_interval_if_only_some_resamples_score_zero(tmp_path):
    translations, references = ["the cat sat on the mat", "no"], ["the cat sat on the mat", "yes"]
    scores = corpus_scores(translations, references)
    # The better sentence is missing from a quarter of the resamples, which score 0.
    assert scores["bleu_ci"][1] - scores["bleu_ci"][0] == pytest.approx(100)
    assert "bs:1000" in scores["bleu_signature"].split("|")
    low, high = scores["chrf_ci"]
    table = printed(
        tmp_path,
        "--paired-bs",
        "--format=text",
        systems=(translations, ["a", "b"]),
        references=references,
        digits=2,
    )
    assert f"({(low + high) / 2:.2f} ± {(high - low) / 2:.2f})" in table
    assert f"{scores['bleu']:.2f} (" in table


def test_without_resampling_there_is_no_interval_and_the_same_bleu(scores):
    assert corpus_scores(HYPOTHESES, REFERENCES) == scores, "the resamples are the same"
    plain = corpus_scores(HYPOTHESES, REFERENCES, bootstrap=0)
    assert not {"bleu_ci", "chrf_ci"} & plain.keys()
    assert plain["bleu"] == scores["bleu"]
    metric = sacrebleu.BLEU()
    metric.corpus_score(HYPOTHESES, [REFERENCES])
    assert plain["bleu_signature"] == str(metric.get_signature())


@pytest.mark.parametrize(("translations", "references"), [(3, 2), (2, 3), (0, 1), (0, 0)])
def test_unequal_or_zero_numbers_of_sentences_raise_an_error_with_both(translations, references):
    lines, targets = ["a"] * translations, ["a"] * references
    for measure in (
        lambda: corpus_scores(lines, targets),
        lambda: paired_tests(targets, lines, targets),
        lambda: sentence_chrf(lines, targets),
    ):
        with pytest.raises(InputError) as raised:
            measure()
        assert f"{translations} translations and {references} references" in str(raised.value)


# The tokenization that fits the script of the references.

CHINESE = ["一个男人在睡觉。", "两只狗在草地上跑，很快。", "她在读 3 本书。"] * 5
JAPANESE = ["男の人が寝ています。", "二匹の犬が草の上を走る。", "彼女は本を読む。"] * 5


def test_the_tokenization_fits_the_script():
    for references, tokenization in (
        (REFERENCES, "13a"),
        (["السلام عليكم ورحمة الله"], "13a"),
        (["한국어 문장에는 띄어쓰기가 있다."], "13a"),
        (["Η γάτα κάθισε."], "13a"),
        (["", "3.5 %"], "13a"),
        (["The word 猫 means cat."], "13a"),
        (CHINESE, "zh"),
        (["GDP 增长了百分之三，低于去年。"], "zh"),
        (["แมวนอนหลับอยู่บนเสื่อ"], "char"),
        (["ឆ្មាកំពុងដេក"], "char"),
        (["แมวนอนหลับอยู่บนเสื่อ", "の"], "char"),
    ):
        assert metrics.tokenization_of(references) == tokenization, references


@pytest.mark.parametrize(("installed", "tokenization"), [(True, "ja-mecab"), (False, "char")])
def test_japanese_is_tokenized_by_mecab_where_it_is_installed(monkeypatch, installed, tokenization):
    def bleu(**options):
        if options["tokenize"] == "ja-mecab" and not installed:
            raise RuntimeError("Please install: pip install sacrebleu[ja]")

    bleu.TOKENIZERS = sacrebleu.BLEU.TOKENIZERS
    monkeypatch.setattr(sacrebleu, "BLEU", bleu)
    assert metrics.tokenization_of(JAPANESE) == tokenization


def test_bleu_of_chinese_is_sacrebleus_with_zh_and_that_is_said_once(caplog):
    metrics._log_once.cache_clear()
    hypotheses = [line[:3] + line[4:] for line in CHINESE]
    expected = sacrebleu.corpus_bleu(hypotheses, [CHINESE], tokenize="zh").score
    for _ in range(2):
        scores = corpus_scores(hypotheses, CHINESE, bootstrap=0)
        assert scores["bleu"] == expected > 30
    assert "tok:zh" in scores["bleu_signature"].split("|")
    assert corpus_scores(hypotheses, CHINESE, bootstrap=0, bleu_tokenize="13a")["bleu"] < 10
    assert [record.message for record in caplog.records] == [
        "BLEU is tokenized by zh, for the script of the references"
    ]
    tests = paired_tests(CHINESE, hypotheses, CHINESE)
    assert "tok:zh" in tests["bleu"]["paired_bootstrap"]["signature"].split("|")
