# SPDX-License-Identifier: Apache-2.0
"""Two systems are compared: by hand, from files, and from workdirs."""

import json
import shutil

import pytest
from apps import run
from test_bad_input import WORDS, given  # noqa: F401 - a fixture
from test_html import Reader

from experiments.reports import comparison_report
from experiments.reports.comparison_report import System, compare
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


@pytest.fixture(scope="module")
def comparison():
    """The comparison of the two systems."""
    return compare(SOURCES, REFERENCES, (System("first", FIRST), System("second", SECOND)))


def test_scores_and_p_values_are_those_of_the_metrics(comparison):
    result = comparison_report.as_json(comparison)
    for system, texts in zip(result["systems"], (FIRST, SECOND), strict=True):
        assert system.items() >= corpus_scores(texts, REFERENCES).items()
    tests = paired_tests(FIRST, SECOND, REFERENCES)
    for metric in ("bleu", "chrf"):
        first, second = (system[metric] for system in result["systems"])
        assert result["differences"][metric] == second - first
        for test in ("paired_bootstrap", "approximate_randomization"):
            assert result["p_values"][metric][test] == tests[metric][test]["p"]
            assert result["test_signatures"][metric][test] == tests[metric][test]["signature"]


def test_the_scores_by_length_are_those_of_the_sentences_counted_by_hand(comparison):
    short, longer = comparison.by_length
    assert (short["name"], short["sentences"], short["mean"]) == ("0 to 5", 2, 1.5)
    assert (longer["name"], longer["sentences"], longer["mean"]) == ("6 to 10", 3, 7.0)
    part = [0, 2, 4]
    for which, texts in enumerate((FIRST, SECOND)):
        scores = corpus_scores([texts[row] for row in part], [REFERENCES[row] for row in part])
        assert (longer["bleu"][which], longer["chrf"][which]) == (scores["bleu"], scores["chrf"])
    # "no" for "yes" shares no character; "a dog" is correct in both.
    assert short["chrf"][1] == pytest.approx(100)
    assert short["chrf"][0] < 100


def test_equal_sentences_are_counted(comparison):
    assert comparison.num_equal() == 1
    assert comparison_report.as_json(comparison)["equal"] == 1


def test_sentences_that_differ_most_are_listed_for_each_system_largest_difference_first(comparison):
    first_better, second_better = comparison.largest_differences()
    assert first_better == [0, 4]
    assert second_better == [3, 2], "100 against 0 comes before 100 against some"


def test_at_most_five_sentences_are_shown_for_each_system():
    references = [f"sentence number {n}" for n in range(20)]
    worse = [reference[: n + 1] for n, reference in enumerate(references)]
    comparison = compare(None, references, (System("a", references), System("b", worse)))
    first_better, second_better = comparison.largest_differences()
    assert (first_better, second_better) == ([0, 1, 2, 3, 4], [])


def test_the_text_shows_scores_intervals_p_values_and_sentences(comparison):
    text = comparison_report.as_text(comparison)
    result = comparison_report.as_json(comparison)
    for measure, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        [row] = [line for line in text.split("\n") if line.startswith(f"{name} ")]
        for system in result["systems"]:
            low, high = system[f"{measure}_ci"]
            assert f"{system[measure]:.2f} [{low:.2f}, {high:.2f}]" in row
        for p in result["p_values"][measure].values():
            assert f"{p:.4f}" in row
    assert "5 sentences, 1 of them translated the same" in text
    assert text.index("line 4 ") < text.index("line 3 ")
    assert "source     S4" in text


def test_the_page_shows_the_same_and_is_well_formed(comparison):
    read = Reader(comparison_report.as_page(comparison))
    for system in comparison_report.as_json(comparison)["systems"]:
        assert f"{system['bleu']:.2f}" in read.text
        assert system["bleu_signature"] in read.text
    for text in (*REFERENCES[2:], FIRST[2], SECOND[0], "S1"):
        assert text in read.text
    [chart] = read.all("img")
    assert "BLEU by length" in chart["alt"]


def test_identical_outputs_leave_nothing_to_test():
    comparison = compare(None, REFERENCES, (System("a", FIRST), System("b", FIRST)))
    assert comparison.largest_differences() == ([], [])
    assert comparison_report.as_json(comparison)["differences"] == {"bleu": 0, "chrf": 0}
    for shown in (comparison_report.as_text(comparison), comparison_report.as_page(comparison)):
        assert "all translated the same: there is no difference to test" in shown


def test_one_sentence_and_empty_translations_are_compared():
    comparison = compare(None, [""], (System("a", [""]), System("b", [""])))
    Reader(comparison_report.as_page(comparison))
    comparison = compare(None, ["a b"], (System("a", [""]), System("b", ["a b"])))
    assert comparison.largest_differences() == ([], [0])
    Reader(comparison_report.as_page(comparison))


def test_the_variant_of_bleu_is_in_both_signatures():
    systems = (System("a", FIRST), System("b", SECOND))
    comparison = compare(None, REFERENCES, systems, bleu_tokenize="none", bleu_lowercase=True)
    result = comparison_report.as_json(comparison)
    for signature in (
        *(system["bleu_signature"] for system in result["systems"]),
        *result["test_signatures"]["bleu"].values(),
    ):
        assert {"tok:none", "case:lc"} <= set(signature.split("|"))


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
    finished = run(
        "experiments.compare",
        outputs(files, "a.txt", "b.txt"),
        f"--target={files / 'ref'}",
        f"--source={files / 'src'}",
        f"--output={files / 'page.html'}",
    )
    assert finished.status == 0, finished.err
    expected = comparison_report.as_json(comparison)
    for system, name in zip(expected["systems"], ("a.txt", "b.txt"), strict=True):
        system["name"] = str(files / name)
    assert finished.result == json.loads(json.dumps(expected))
    assert "5 sentences, 1 of them translated the same" in finished.out
    assert f"page: {files / 'page.html'}" in finished.err
    Reader((files / "page.html").read_text(encoding="utf-8"))


def test_two_workdirs_are_compared_each_with_its_config(given, tmp_path):  # noqa: F811
    first, second = given / "run", shutil.copytree(given / "run", tmp_path / "second")
    config = json.loads((second / "config.json").read_text())
    config["decode"]["max_length"] = 1
    (second / "config.json").write_text(json.dumps(config))
    words = f"--source={given / 'words'}", f"--target={given / 'words'}"
    finished = run("experiments.compare", f"--workdirs={first},{second}", *words)
    assert finished.status == 0, finished.err
    result = finished.result
    assert [system["name"] for system in result["systems"]] == [str(first), str(second)]
    assert result["sentences"] == len(WORDS)
    assert result["systems"][1]["bleu"] == 0, "the only token is EOS: the translations are empty"


BAD = {
    "neither": ([], ["--workdirs=A,B or --outputs=A.txt,B.txt"]),
    "both": (["--outputs=a,b", "--workdirs=a,b"], ["exclude each other"]),
    "one file": (["--outputs={here}/a.txt", "--target={here}/ref"], ["names 1", "two"]),
    "three files": (["--outputs=a,b,c", "--target={here}/ref"], ["names 3", "two"]),
    "one workdir": (["--workdirs={here}"], ["names 1", "two"]),
    "no references": (["--outputs=a,b"], ["missing --target=FILE"]),
    "fewer lines": (
        ["--outputs={here}/a.txt,{here}/short", "--target={here}/ref"],
        ["{here}/short has 2 lines", "{here}/ref has 5"],
    ),
    "no such file": (
        ["--outputs={here}/a.txt,{here}/none", "--target={here}/ref"],
        ["{here}/none"],
    ),
    "fewer sources": (
        ["--outputs={here}/a.txt,{here}/b.txt", "--target={here}/ref", "--source={here}/short"],
        ["{here}/short has 2 lines", "{here}/ref has 5"],
    ),
    "no such workdir": (["--workdirs={here}/x,{here}/y"], ["{here}/x does not exist"]),
    "source alone": (["--workdirs=a,b", "--source=x"], ["--source and --target go together"]),
    "a config field": (
        ["--workdirs=a,b", "--config.decode.beams=2"],
        ["--config.decode.beams=2", "no config"],
    ),
    "no folder": (["--outputs=a,b", "--output={here}/x/y.html"], ["{here}/x/y.html", "folder"]),
    "tokenization": (
        ["--workdirs=a,b", "--bleu_tokenize=13b"],
        ["'13b' is unknown"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_is_rejected_with_the_reason(files, name):
    arguments, words = BAD[name]
    finished = run("experiments.compare", *(a.format(here=files) for a in arguments))
    assert (finished.status, finished.out) == (1, "")
    assert "Traceback" not in finished.err
    for word in words:
        assert word.format(here=files) in finished.err


def test_workdirs_with_different_test_sets_are_rejected_with_the_difference(given, tmp_path):  # noqa: F811
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


def test_different_numbers_of_lines_are_an_error_from_python_too():
    with pytest.raises(InputError, match="2 translations and 5 references"):
        compare(None, REFERENCES, (System("a", FIRST), System("b", ["x", "y"])))
