# SPDX-License-Identifier: Apache-2.0
"""The command that writes a page about one sentence in a trained model."""

import re
import types

import numpy as np
import pytest
from apps import run
from exhibits import data_of, pair
from html_reader import Reader
from workdirs import make_workdir

from experiments.pages.sentence import sentence_page
from transformer.config import ConvolutionalConfig
from transformer.inspection.views.attention_kinds import Focus

ONE_SENTENCE = ["headView", "headOverview", "attentionSteps", "searchReplay", "valueMap"]
TWO_SENTENCES = ["valueMap", "sentenceComparison", *ONE_SENTENCE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the workdir of a model whose stacks differ in layers and heads."""
    folder = tmp_path_factory.mktemp("look")
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "encoder_heads": 4, "decoder_heads": 2}
    make_workdir(folder / "run", 3, **sizes)
    return folder


@pytest.fixture(scope="module")
def look(folder):
    """Run the command with these flags."""
    return lambda *flags: run("experiments.look", f"--workdir={folder / 'run'}", *flags)


@pytest.fixture(scope="module")
def result(folder, look):
    """The finished command and its page, for two sentences that differ in a word."""
    finished = look("--sentence=a b c", "--compare=a d c", f"--output={folder / 'page.html'}")
    assert finished.status == 0, finished.err
    return finished, (folder / "page.html").read_text(encoding="utf-8")


def page_of(folder, *flags):
    """The page that the command writes with these flags, of the workdir in this folder."""
    page = folder / "other.html"
    finished = run("experiments.look", f"--workdir={folder / 'run'}", *flags, f"--output={page}")
    assert finished.status == 0, finished.err
    return page.read_text(encoding="utf-8")


def scripts(text):
    """The scripts of the views of a page."""
    return [view["script"] for view in data_of(text)["views"]]


def options_of(text, script):
    """The options of the last view that this script draws."""
    return [view for view in data_of(text)["views"] if view["script"] == script][-1]["options"]


def test_the_page_shows_every_layer_and_head_of_both_stacks(folder, result):
    assert result[0].out == f"{folder / 'page.html'}\n", "its path, and nothing else"
    data = data_of(result[1])
    pair = data["pairs"][0]
    assert [np.shape(kind["weights"])[:2] for kind in pair] == [(1, 4), (2, 2), (2, 2)]
    assert scripts(result[1]) == TWO_SENTENCES
    assert pair[0]["columns"] == [["a"], ["b"], ["c"], ["</s>"]]
    assert len(options_of(result[1], "attentionSteps")["heads"]) == 4 + 2 * 2 * 2


def test_the_decoder_reads_the_result_of_the_search(result):
    data = data_of(result[1])
    translation = options_of(result[1], "searchReplay")["results"][0]["tokens"]
    read, predicted = zip(*data["pairs"][0][1]["rows"], strict=True)
    assert list(read) == ["<s>", *translation[:-1]]
    assert list(predicted) == translation
    assert "while the decoder reads the model's own translation" in Reader(result[1]).text


def test_every_head_has_its_measures_and_every_layer_its_prediction(result):
    measures = options_of(result[1], "headOverview")["measures"]
    of_question, loss, *others = measures
    assert of_question["name"].endswith("lost without the head (nats)")
    assert loss["name"] == "loss increase without the head (nats per token)"
    kinds = {each["name"]: [bool(values) for values in each["values"]] for each in others}
    every, self_attention = [True, True, True], [True, True, False]
    # Encoder, decoder and cross-attention; a measure that means nothing for a kind has no values.
    assert kinds == {
        "mean distance": self_attention,
        "weight on the previous position": self_attention,
        "weight on the next position": [True, False, False],
        "weight on the same position": self_attention,
        "weight on the first position": every,
        "weight on the last position": [True, False, True],
        "mean entropy in bits": every,
    }
    text = Reader(result[1]).text
    for heading in ("Logit lens", "Residual stream", "Attribution of each prediction"):
        assert heading in text
    assert "layer 2: output" in text


def test_contributions_and_the_gap_add_up_to_the_difference_from_the_baseline(result):
    contributions = numbers_of(result[1], "Contribution of each token")
    sums = numbers_of(result[1], "Sum of the contributions")
    assert len(contributions) == 2 + len(sums) > 2
    # The first rows are the question of the page, of both sentences.
    for values, (value, baseline, total, gap) in zip(contributions[2:], sums, strict=True):
        assert total == pytest.approx(sum(values), abs=0.01)
        assert abs(total - (value - baseline)) == pytest.approx(gap, abs=0.003)
    # Tokens of the prefix that cannot count have no contribution.
    source, length = 4, len(contributions) - 2
    assert [len(row) for row in contributions[2:]] == [source + t + 1 for t in range(length)]


def numbers_of(text, caption):
    """The numbers of each row of the table with this caption."""
    table = text.split(f"<caption>{caption}")[1].split("</table>")[0]
    rows = [
        re.findall(r'<td class="number[^>]*>([-0-9.]+)</td>', row) for row in table.split("<tr")
    ]
    return [list(map(float, row)) for row in rows if row]


def test_the_page_opens_with_an_answer_that_is_true_of_its_numbers(result):
    text = Reader(result[1]).text
    findings = text[text.index("After the same beginning") : text.index("The same in numbers")]
    [(token, other)] = re.findall("“\u2068(.*?)\u2069” or “\u2068(.*?)\u2069”: what decides", text)[
        :1
    ]
    rows = options_of(result[1], "valueMap")["rows"]
    assert rows[0] == [f"\u2068{token}\u2069 over \u2068{other}\u2069 (first)"]

    # The position that is said to carry the answer is the largest of the patch map.
    effect = np.array(numbers_of(result[1], "Share of the preference"))[-1]
    columns = data_of(result[1])["views"][0]["options"]["columns"]
    assert columns[effect.argmax()][0].split(" / ")[0] in findings
    assert f"{effect.max():.0%}" in findings

    # Nothing but the head that is named loses more of the answer.
    lost = options_of(result[1], "headOverview")["measures"][0]["values"]
    encoder = np.array(lost[0])
    layer, head = np.unravel_index(encoder.argmax(), encoder.shape)
    named = f"head {layer + 1}.{head + 1} of encoder self-attention"
    assert (named in findings) == (encoder.max() > 0)


def test_every_view_opens_on_the_head_and_the_words_of_the_answer(result):
    overview = options_of(result[1], "headOverview")
    lost = np.array(overview["measures"][0]["values"][overview["kind"]])
    assert (overview["layer"], overview["head"]) == np.unravel_index(lost.argmax(), lost.shape)
    heads = options_of(result[1], "headView")
    assert (heads["kind"], heads["layer"]) == (overview["kind"], overview["layer"])
    assert heads["heads"] == [overview["head"]]
    comparison = options_of(result[1], "sentenceComparison")
    assert heads["rows"] == overview["rows"] == comparison["rows"]
    steps = options_of(result[1], "attentionSteps")
    title = f"layer {overview['layer'] + 1}, head {overview['head'] + 1}"
    assert title in steps["heads"][steps["first"]]["title"]
    assert list(steps["rows"].values()) == overview["rows"]
    patched = data_of(result[1])["views"][0]["options"]
    assert patched["cursor"] == [1, overview["rows"][0]]
    assert options_of(result[1], "searchReplay")["first"] == overview["rows"][1]


def test_two_sentences_of_equal_length_have_a_difference_and_a_patch_map(result):
    comparison = data_of(result[1])["views"][1]
    assert "Second sentencea d c" in Reader(result[1]).text
    assert comparison["pairs"] == [0, 1]
    assert "too large" not in Reader(result[1]).text, "every layer is here"
    effect = np.array(numbers_of(result[1], "Share of the preference"))
    assert effect.shape == (2, 4)
    # The sentences differ in the second token: at the input, no other site can restore anything.
    assert effect[0, [0, 2, 3]].tolist() == [0, 0, 0]
    assert effect[0, 1] == pytest.approx(1, abs=1e-3)
    assert effect[1].sum() != 0


def test_a_large_comparison_has_the_layer_of_the_answer_and_says_which_layers_it_has():
    attention = pair(source=14, target=14, encoder=(6, 8), decoder=(6, 8))
    first = types.SimpleNamespace(source=range(14), attention=attention, has_residual_streams=False)
    first.with_source = lambda source: first
    focus = Focus("encoder", 1, 3, source=2, target=5)
    evidence = types.SimpleNamespace(pairs=[first], focus=focus)
    _, view = sentence_page.comparison(evidence, first)
    kept = view.attention[0]
    assert [(each.first_layer, len(each.weights)) for each in kept] == [(1, 4), (2, 4), (2, 4)]
    assert (kept[0].first_layer + view.options["layer"], view.options["head"]) == (1, 3)
    assert (
        "would make the page too large. These layers are here, among them that of the head in the "
        "answer: encoder self-attention 2 to 5 of 6; decoder self-attention 3 to 6 of 6; "
        "cross-attention 3 to 6 of 6."
    ) in Reader(view.note).text


@pytest.mark.slow
def test_different_lengths_and_equal_sentences_have_no_patch_map_and_the_page_says_why(folder):
    text = page_of(folder, "--sentence=a b c", "--compare=a b")
    assert "The first sentence has 4 tokens and the second 3, so positions" in Reader(text).text
    assert scripts(text) == ["headView", *ONE_SENTENCE]
    assert data_of(text)["pairs"][0][0]["columns"] == [["a"], ["b"], ["</s>"]]
    text = page_of(folder, "--sentence=a b", "--compare=a b", "--target=g")
    assert "There is no patch map: the sentences are the same." in Reader(text).text
    assert "restored" not in text


@pytest.mark.slow
def test_a_given_target_is_read_instead_of_the_translation(folder):
    text = page_of(folder, "--sentence=a b", "--target=g d")
    rows = data_of(text)["pairs"][0][1]["rows"]
    assert rows == [["<s>", "g"], ["g", "d"], ["d", "</s>"]]
    read = Reader(text).text
    assert "Target that the decoder readsg d" in read
    assert "while the decoder reads the given target" in read
    assert "The token of which the model is least sure is" in read


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        {"norm": "pre", "positions": "learned", "attention_bias": True, "activation": "gelu"},
        {"sinusoid_layout": "halves", "attention_kernel": "chunked", "d_k": 3, "d_v": 5},
        {"compute_dtype": "bfloat16"},
        {"positions": "shaw", "num_kv_heads": 1, "shared_layers": True, "activation": "swiglu"},
    ],
    ids=["pre-norm", "chunked", "bfloat16", "shaw"],
)
def test_a_model_with_any_options_has_a_page(tmp_path, sizes):
    make_workdir(tmp_path / "run", 1, **sizes)
    assert scripts(page_of(tmp_path, "--sentence=a b c")) == ONE_SENTENCE


@pytest.mark.slow
def test_a_family_with_cross_attention_alone_has_a_page_that_names_what_it_lacks(tmp_path):
    family = ConvolutionalConfig(vocab_size=11, num_layers=2, d_model=8, dropout=0.0)
    make_workdir(tmp_path / "run", 1, family=family)
    text = page_of(tmp_path, "--sentence=a b c", "--compare=a d c")
    views = ["sentenceComparison", "headView", "headOverview", "searchReplay"]
    assert scripts(text) == views
    assert [len(pair) for pair in data_of(text)["pairs"]] == [1, 1]
    read = Reader(text).text
    assert "The model family 'convolutional' captures no residual streams, so this page has" in read
    assert "There is no patch map: the model captures no residual stream." in read


@pytest.mark.slow
def test_a_page_says_that_the_six_steps_do_not_show_an_additive_score(tmp_path):
    make_workdir(tmp_path / "run", 1, attention_score="additive", tied_embeddings="none")
    text = page_of(tmp_path, "--sentence=a b c")
    assert scripts(text) == [name for name in ONE_SENTENCE if name != "attentionSteps"]
    assert "no kind of attention has plain dot products as scores" in Reader(text).text


@pytest.mark.slow
def test_a_page_of_6_layers_8_heads_and_30_tokens_is_under_2_megabytes(tmp_path):
    """For an untrained model: its weights are small but not 0, and need the most characters."""
    words = [f"word{number}" for number in range(7)]
    make_workdir(
        tmp_path / "run", 1, words=" ".join(words), num_layers=6, num_heads=8, d_model=64, d_k=64
    )
    sentences = [" ".join(words[(index + first) % 7] for index in range(29)) for first in (0, 1)]
    text = page_of(
        tmp_path,
        f"--sentence={sentences[0]}",
        f"--target={sentences[1]}",
        "--config.data.max_length=30",
        "--config.data.bucket_lengths=(30,)",
        "--config.data.tokens_per_batch=240",
        "--config.decode.extra_length=1",
    )
    assert [len(kind["rows"]) for kind in data_of(text)["pairs"][0]] == [30, 30, 30]
    assert len(text.encode()) < 2_000_000


@pytest.mark.slow
def test_the_same_command_writes_the_same_bytes(folder, result):
    again = page_of(folder, "--sentence=a b c", "--compare=a d c")
    assert again == result[1]


def test_the_page_names_its_limits_and_has_no_address(result):
    assert "What this page does not show." in Reader(result[1]).text
    assert "://" not in result[1].replace("http://www.w3.org/2000/svg", "the namespace")


PAGE = "--output=x.html"
INVALID = [
    (["--sentence=a"], "missing --output=FILE.html"),
    ([PAGE], "missing --sentence=TEXT"),
    ([PAGE, "--sentence= "], "--sentence is empty"),
    ([PAGE, "--sentence=a\nb"], "--sentence has several lines"),
    ([PAGE, "--sentence=a \udcff"], "--sentence has the byte 0xFF as character 3"),
    ([PAGE, "--sentence=a", "--target="], "--target is empty"),
    ([PAGE, "--sentence=a", "--compare= "], "--compare is empty"),
    ([PAGE, "--sentence=a", "--workdir=no"], "no"),
    ([PAGE, "--sentence=a b c d e f g"], "8 tokens, more than data.max_length = 6"),
    ([PAGE, "--sentence=a", "--ensemble=other"], "a page shows one model"),
    ([PAGE, "--sentence=a", "--config.decode.method=sample"], "decode.method"),
    (["--output=no/x.html", "--sentence=a"], "--output=no/x.html: its folder does not exist"),
    (["--output=.", "--sentence=a"], "--output=. is a directory"),
]


def test_invalid_input_is_rejected_in_one_line(look):
    for flags, message in INVALID:
        finished = look(*flags)
        assert (finished.status, finished.out) == (1, ""), flags
        [line] = finished.err.splitlines()
        assert line.startswith("error: ")
        assert message in line
