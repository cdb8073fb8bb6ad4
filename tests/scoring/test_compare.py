# SPDX-License-Identifier: Apache-2.0
"""Systems are compared: by hand, from files, and from workdirs."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from apps import REPOSITORY, run
from html_reader import Reader
from workdirs import WORDS

from experiments.pages import comparison as comparison_page
from experiments.pages.comparison import differing_words
from experiments.scoring import significance
from experiments.scoring.comparison import Run, as_json, compare, default_names
from transformer.errors import InputError
from transformer.text.metrics import corpus_scores, paired_tests

REFERENCES = [
    "the cat sat on the mat",
    "a dog",
    "one two three four five six seven",
    "yes",
    "the end of it all is near now",
]
FIRST = ["the cat sat on the mat", "a dog", "one two three", "no", "the end of it all is near"]
SECOND = ["the cat sat", "a dog", "one two three four five six seven", "yes", "the end of it all"]
SOURCES = ["S1", "S2", "S3", "S4", "S5"]
MEASURES = ("bleu", "chrf")
TESTS = ("paired_bootstrap", "approximate_randomization")


def single(**translations):
    """Systems of one run each."""
    return {name: [Run(name, texts)] for name, texts in translations.items()}


@pytest.fixture(scope="module")
def comparison():
    """The comparison of the two systems."""
    return compare(SOURCES, REFERENCES, single(first=FIRST, second=SECOND))


@pytest.fixture(scope="module")
def seeds():
    """The comparison of two systems with three runs each, with a measure of the dataset."""
    better = [[*FIRST[:3], text, FIRST[4]] for text in ("yes", "yes", "no")]
    runs = {
        name: [
            Run(f"{name}/{seed}", texts, {"pronoun_accuracy": accuracy})
            for seed, (texts, accuracy) in enumerate(zip(each, accuracies, strict=True))
        ]
        for name, each, accuracies in (
            ("small", [FIRST, FIRST, SECOND], (0.1, 0.2, 0.3)),
            ("large", better, (0.7, 0.8, 0.9)),
        )
    }
    return compare(SOURCES, REFERENCES, runs)


def test_scores_and_p_values_are_those_of_the_metrics(comparison):
    result = as_json(comparison)
    for system, texts in zip(result["systems"], (FIRST, SECOND), strict=True):
        assert system.items() >= corpus_scores(texts, REFERENCES).items()
    tests = paired_tests(FIRST, SECOND, REFERENCES)
    [pair] = result["pairs"]
    assert pair["systems"] == ["first", "second"]
    for metric in MEASURES:
        first, second = (system[metric] for system in result["systems"])
        assert pair["differences"][metric] == second - first
        for test in TESTS:
            assert pair["p_values"][metric][test] == tests[metric][test]["p"]
            assert result["test_signatures"][metric][test] == tests[metric][test]["signature"]
    assert pair["corrected_p_values"] == pair["p_values"], "one pair needs no correction"


def test_the_scores_by_length_are_those_of_the_sentences_counted_by_hand(comparison):
    short, longer = as_json(comparison)["by_length"]
    assert (short["name"], short["sentences"], short["mean"]) == ("0 to 5", 2, 1.5)
    assert (longer["name"], longer["sentences"], longer["mean"]) == ("6 to 10", 3, 7.0)
    part = [0, 2, 4]
    for which, texts in enumerate((FIRST, SECOND)):
        scores = corpus_scores([texts[row] for row in part], [REFERENCES[row] for row in part])
        assert (longer["bleu"][which], longer["chrf"][which]) == (scores["bleu"], scores["chrf"])
    # "no" for "yes" shares no character; "a dog" is correct in both.
    assert short["chrf"][1] == pytest.approx(100)
    assert short["chrf"][0] < 100


def test_at_most_five_sentences_that_differ_most_are_listed_for_each_system(comparison):
    assert [pair["equal"] for pair in as_json(comparison)["pairs"]] == [1]
    first, second = comparison.systems
    assert comparison.largest_gains(worse=second, better=first) == [0, 4]
    assert comparison.largest_gains(worse=first, better=second) == [3, 2], (
        "100 against 0 comes before 100 against some"
    )
    references = [f"sentence number {n}" for n in range(20)]
    worse = [reference[: n + 1] for n, reference in enumerate(references)]
    comparison = compare(None, references, single(a=references, b=worse))
    a, b = comparison.systems
    assert comparison.largest_gains(worse=b, better=a) == [0, 1, 2, 3, 4]
    assert comparison.largest_gains(worse=a, better=b) == []
    Reader(comparison_page.as_page(compare(None, [""], single(a=[""], b=[""]))))
    comparison = compare(None, ["a b"], single(a=[""], b=["a b"]))
    assert comparison.largest_gains(*comparison.systems) == [0]
    Reader(comparison_page.as_page(comparison))


def test_the_text_shows_scores_intervals_p_values_and_sentences(comparison):
    text = comparison_page.as_text(comparison)
    result = as_json(comparison)
    for measure, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        [row] = [line for line in text.split("\n") if line.startswith(f"{name} ")]
        for system in result["systems"]:
            low, high = system[f"{measure}_ci"]
            assert f"{system[measure]:.2f} [{low:.2f}, {high:.2f}]" in row
        [row] = [line for line in text.split("\n") if line.startswith(f"second − first  {name}")]
        for p in result["pairs"][0]["p_values"][measure].values():
            assert f"{p:.4f}" in row
    assert "5 sentences." in text
    assert "first and second translate 1 of them the same." in text
    assert text.index("line 4 ") < text.index("line 3 ")
    assert "source     S4" in text


def test_the_page_shows_the_same_and_is_well_formed(comparison):
    read = Reader(comparison_page.as_page(comparison))
    for system in as_json(comparison)["systems"]:
        assert f"{system['bleu']:.2f}" in read.text
        assert system["bleu_signature"] in read.text
    for text in (*REFERENCES[2:], FIRST[2], SECOND[0], "S1"):
        assert text in read.text
    [chart] = read.all("img")
    assert "BLEU by length" in chart["alt"]
    assert "first: from" in chart["alt"] and "second: from" in chart["alt"], "curves have names"
    # The words that the other lacks are in brackets in the text, and marked on the page.
    assert "first      [no]" in comparison_page.as_text(comparison)
    assert "second     [yes]" in comparison_page.as_text(comparison)
    page = comparison_page.as_page(comparison)
    assert "<mark> on the mat</mark>" in page
    assert '<bdi dir="auto">the cat sat<mark>' in page


def test_identical_outputs_leave_nothing_to_test():
    comparison = compare(None, REFERENCES, single(a=FIRST, b=FIRST))
    [pair] = as_json(comparison)["pairs"]
    assert pair["differences"] == {"bleu": 0, "chrf": 0, "exact_match": 0}
    assert pair["p_values"] == {measure: dict.fromkeys(TESTS) for measure in MEASURES}
    assert not any(examples for _, examples in comparison_page._examples(comparison))
    for shown in (comparison_page.as_text(comparison), comparison_page.as_page(comparison)):
        assert "all of them the same: there is no difference to test" in shown


def test_the_variant_of_bleu_is_in_both_signatures():
    systems = single(a=FIRST, b=SECOND)
    comparison = compare(None, REFERENCES, systems, bleu_tokenize="none", bleu_lowercase=True)
    result = as_json(comparison)
    for signature in (
        *(system["bleu_signature"] for system in result["systems"]),
        *result["test_signatures"]["bleu"].values(),
    ):
        assert {"tok:none", "case:lc"} <= set(signature.split("|"))


def test_the_sentences_of_each_length_are_tokenized_as_all_references_are():
    thai, latin = "สวัสดีชาวโลกทั้งหลาย", "one two three four five six seven"
    references, texts = [thai, thai, latin], [thai, thai, "one two three four five six eight"]
    comparison = compare(None, references, single(a=texts, b=references))
    latin_only, _ = as_json(comparison)["by_length"]
    options = {"bootstrap": 0, "bleu_tokenize": "char"}
    assert latin_only["bleu"][0] == corpus_scores(texts[2:], [latin], **options)["bleu"]


# More than two systems.


def test_holms_correction_of_hand_worked_p_values():
    # Sorted: .01 * 3, .02 * 2 and .03 * 1, each at least the one before.
    assert significance.holm_correction([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert significance.holm_correction([0.6, 0.01, 0.5]) == pytest.approx([1.0, 0.03, 1.0])
    assert significance.holm_correction([0.01, None, 0.04]) == [0.02, None, 0.04]


@pytest.mark.slow
def test_every_two_of_three_systems_are_tested_and_corrected_for_their_number():
    three = compare(SOURCES, REFERENCES, single(first=FIRST, second=SECOND, right=REFERENCES))
    result = as_json(three)
    pairs = result["pairs"]
    names = [["first", "second"], ["first", "right"], ["second", "right"]]
    assert [pair["systems"] for pair in pairs] == names
    texts = {"first": FIRST, "second": SECOND, "right": REFERENCES}
    for measure in MEASURES:
        for test in TESTS:
            p_values = [pair["p_values"][measure][test] for pair in pairs]
            expected = [
                paired_tests(*(texts[name] for name in pair), REFERENCES)[measure][test]["p"]
                for pair in names
            ]
            assert p_values == expected
            corrected = [pair["corrected_p_values"][measure][test] for pair in pairs]
            assert corrected == significance.holm_correction(p_values)
    text = comparison_page.as_text(three)
    assert "p, paired bootstrap, corrected" in text
    assert "corrected for the 3 pairs (Holm)" in text
    assert "Sentences that right translates better than first, by chrF" in text


# Several seeds a system.


def test_the_score_of_a_system_is_the_mean_of_its_runs_with_their_deviation(seeds):
    small, large = as_json(seeds)["systems"]
    each = [run["bleu"] for run in small["runs"]]
    assert each == [corpus_scores(texts, REFERENCES)["bleu"] for texts in (FIRST, FIRST, SECOND)]
    assert small["bleu"] == pytest.approx(sum(each) / 3)
    assert large["pronoun_accuracy"] == pytest.approx(0.8)
    assert large["pronoun_accuracy_std"] == pytest.approx(0.1)
    assert "0.8000 ± 0.1000" in comparison_page.as_text(seeds)
    # The most frequent translation of the runs is shown.
    small, large = seeds.systems
    assert small.translations == FIRST
    assert large.translations[3] == "yes"
    assert small.chrf[3] == pytest.approx(100 / 3), "no, no and yes"


def test_systems_of_several_runs_are_compared_by_welchs_t_test(seeds):
    [pair] = as_json(seeds)["pairs"]
    assert pair["differences"]["pronoun_accuracy"] == pytest.approx(0.6)
    # t = .6 / sqrt(2 * .01 / 3) = 7.348 with 4 degrees of freedom, whose two tails are
    # 1 - 3/2 s + s^3 / 2 of s = t / sqrt(4 + t^2).
    s = 7.348469 / (4 + 7.348469**2) ** 0.5
    expected = 1 - 1.5 * s + s**3 / 2
    assert pair["p_values"]["pronoun_accuracy"] == pytest.approx({"welch": expected}, rel=1e-4)
    assert pair["p_values"].keys() == {*MEASURES, "exact_match", "pronoun_accuracy"}
    assert significance.welch_test([0.5, 0.5], [0.5, 0.5]) is None
    assert significance.welch_test([0.5, 0.5], [0.4, 0.5]) == pytest.approx(0.5)


# Marks inside sentences.


def test_the_words_that_the_other_translation_lacks_are_marked():
    for first, second, *marked in (
        ("the cat sat", "the dog sat", ["cat"], ["dog"]),
        ("weil es müde war.", "weil sie müde war!", ["es", "."], ["sie", "!"]),
        ("a b", "a b c", [], [" c"]),
        ("他在睡觉", "她在睡觉", ["他"], ["她"]),
        ("", "yes", [], ["yes"]),
        ("same", "same", [], []),
    ):
        pieces = differing_words(first, second)
        assert [[text for text, differs in each if differs] for each in pieces] == marked
        assert ["".join(text for text, _ in each) for each in pieces] == [first, second]


def test_differences_of_long_texts_are_not_marked_which_is_said():
    long = "a " * comparison_page.MOST_MARKED
    assert differing_words(long, "b") == ([(long, False)], [("b", False)])
    shown = comparison_page.as_text(compare(None, ["b"], single(a=[long], b=["b"])))
    assert "differences are marked up to 5,000 characters" in shown


# The command.


@pytest.fixture
def files(tmp_path):
    """A folder with the sentences above in files."""
    for name, lines in (("src", SOURCES), ("ref", REFERENCES), ("a.txt", FIRST), ("b.txt", SECOND)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "short").write_text("one\ntwo\n")
    return tmp_path


def outputs(files, *names):
    """The flag that names the two files."""
    return f"--outputs={','.join(str(files / name) for name in names)}"


def test_two_files_are_compared_and_the_last_line_is_json(files, comparison):
    page, target = f"--output={files / 'page.html'}", f"--target={files / 'ref'}"
    flags = (outputs(files, "a.txt", "b.txt"), target, f"--source={files / 'src'}", page)
    finished = run("experiments.compare", *flags)
    assert finished.status == 0, finished.err
    expected = as_json(comparison)
    for system, name in zip(expected["systems"], ("a.txt", "b.txt"), strict=True):
        system["name"], system["runs"][0]["name"] = name, str(files / name)
    expected["pairs"][0]["systems"] = ["a.txt", "b.txt"]
    assert finished.result == json.loads(json.dumps(expected))
    assert "a.txt and b.txt translate 1 of them the same" in finished.out
    assert f"page: {files / 'page.html'}" in finished.err
    Reader((files / "page.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_is_written_where_nobody_reads_the_scores(files):
    arguments = (outputs(files, "a.txt", "b.txt"), f"--target={files / 'ref'}")
    command = [sys.executable, "-m", "experiments.compare", *arguments]
    reader, writer = os.pipe()
    os.close(reader)
    page = files / "page.html"
    finished = subprocess.run([*command, f"--output={page}"], stdout=writer, cwd=REPOSITORY)
    os.close(writer)
    assert finished.returncode == 0
    assert page.exists()


def test_a_repeated_flag_names_the_runs_of_one_system(files):
    for name in ("c.txt", "d.txt"):
        shutil.copy(files / "b.txt", files / name)
    systems = outputs(files, "a.txt", "b.txt"), outputs(files, "c.txt", "d.txt")
    arguments = (*systems, f"--target={files / 'ref'}")
    finished = run("experiments.compare", *arguments, "--names=old,new")
    assert finished.status == 0, finished.err
    old, new = finished.result["systems"]
    assert (old["name"], new["name"]) == ("old", "new")
    assert [each["name"] for each in new["runs"]] == [str(files / n) for n in ("c.txt", "d.txt")]
    assert finished.result["pairs"][0]["p_values"]["bleu"].keys() == {"welch"}
    finished = run("experiments.compare", *arguments, "--names=same,same")
    assert finished.status == 1
    assert "--names=same,same gives 1 different names, but there are 2 systems" in finished.err


def test_a_system_is_named_by_what_the_names_of_its_runs_have_in_common():
    for systems, names in (
        ([["runs/de"], ["runs/fr/"]], ["de", "fr"]),
        ([["a/run"], ["b/run"]], ["a/run", "b/run"]),
        ([["small_0", "small_1"], ["big_0", "big_1"]], ["small", "big"]),
        ([["x0", "y1"], ["z0", "z1"]], ["x0", "z"]),
    ):
        assert default_names(systems) == names


def test_two_workdirs_are_compared_each_with_its_config(given, tmp_path):
    first, second = given / "run", shutil.copytree(given / "run", tmp_path / "second")
    config = json.loads((second / "config.json").read_text())
    config["decode"]["max_length"] = 1
    (second / "config.json").write_text(json.dumps(config))
    words = f"--source={given / 'words'}", f"--target={given / 'words'}"
    finished = run("experiments.compare", f"--workdirs={first},{second}", *words)
    assert finished.status == 0, finished.err
    result = finished.result
    assert [system["name"] for system in result["systems"]] == ["run", "second"]
    assert result["sentences"] == len(WORDS)
    assert result["systems"][1]["bleu"] == 0, "the only token is EOS: the translations are empty"


AB, REF = "--outputs={here}/a.txt,{here}/b.txt", "--target={here}/ref"
BAD = [
    ("", ["--workdirs=A,B or --outputs=A.txt,B.txt"]),
    ("--outputs=a,b --workdirs=a,b", ["exclude each other"]),
    ("--outputs={here}/a.txt " + REF, ["names 1", "two or more"]),
    ("--outputs=a,a " + REF, ["names a run twice"]),
    (f"{AB} --outputs={{here}}/ref {REF}", ["'ref' has one run, but another system has 2"]),
    ("--workdirs={here}", ["names 1", "two"]),
    ("--outputs=a,b", ["missing --target=FILE"]),
    (
        "--outputs={here}/a.txt,{here}/short " + REF,
        ["{here}/short has 2 lines", "{here}/ref has 5"],
    ),
    ("--outputs={here}/a.txt,{here}/none " + REF, ["{here}/none"]),
    (f"{AB} {REF} --source={{here}}/short", ["{here}/short has 2 lines", "{here}/ref has 5"]),
    ("--workdirs={here}/x,{here}/y", ["{here}/x does not exist"]),
    ("--workdirs=a,b --source=x", ["--source and --target go together"]),
    ("--outputs=a,b --output={here}/x/y.html", ["{here}/x/y.html", "folder"]),
    ("--outputs=a,b --output={here}", ["{here} is a directory; name a"]),
    ("--workdirs=a,b --bleu_tokenize=13b", ["'13b' is unknown"]),
]


def test_invalid_input_is_rejected_with_the_reason(files):
    for flags, words in BAD:
        finished = run("experiments.compare", *flags.format(here=files).split())
        assert (finished.status, finished.out) == (1, ""), flags
        assert "Traceback" not in finished.err
        for word in words:
            assert word.format(here=files) in finished.err
    with pytest.raises(InputError, match="2 translations and 5 references"):
        compare(None, REFERENCES, single(a=FIRST, b=["x", "y"]))


def test_workdirs_with_different_test_sets_are_rejected_with_the_difference(given, tmp_path):
    first, second = given / "run", shutil.copytree(given / "run", tmp_path / "second")
    config = json.loads((second / "config.json").read_text())
    for lines, words in (
        (WORDS[:-1], [f"has {len(WORDS)} pairs", f"has {len(WORDS) - 1}"]),
        ([*WORDS[:2], "c c", *WORDS[3:]], ["pair 3 has other sources"]),
    ):
        other = tmp_path / "other"
        other.write_text("".join(line + "\n" for line in lines))
        config["data"] |= {"validation_source": str(other), "validation_target": str(other)}
        (second / "config.json").write_text(json.dumps(config))
        finished = run("experiments.compare", f"--workdirs={first},{second}", "--split=validation")
        assert (finished.status, finished.out) == (1, "")
        for word in [*words, str(second), "--source=FILE --target=FILE"]:
            assert word in finished.err
