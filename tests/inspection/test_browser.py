# SPDX-License-Identifier: Apache-2.0
"""Each view in a browser, driven by keyboard and pointer."""

import re
import xml.etree.ElementTree

import numpy as np
import pytest
from browsing import announced, cells, isolated, press
from exhibits import VOCABULARY, every_view, one_head, pair, search

from transformer.inspection import html
from transformer.inspection.html import element, shaded
from transformer.inspection.views.attention_steps import attention_steps
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.search_replay import search_replay
from transformer.inspection.views.sentence_comparison import compare_sentences
from transformer.inspection.views.value_map import value_map
from transformer.inspection.views.view import page

ROUNDED = 0.5e-4
"""Rounding error of the weights in a page."""


def test_a_page_of_every_view_works_without_requests(show):
    views = every_view()
    shown = show(page("Everything", views))
    assert shown.locator("img").count() == 0, "every view has replaced its static content"
    assert shown.locator("section.view").count() == len(views)

    [head] = shown.locator("[role=listbox][aria-label=Rows]").all()
    head.focus()
    press(shown, "ArrowDown")
    encoder = pair()[0]
    rows = cells(shown)
    for column in range(5):
        expected = encoder.weights[-1, :, 1, column]
        found = [float(cell) for cell in rows[column][1:-1]]
        np.testing.assert_allclose(found, expected, atol=ROUNDED + 0.0005)
    assert rows[-1][0] == "sum"
    assert [float(cell) for cell in rows[-1][1:]] == pytest.approx([1.0] * 5, abs=1e-6)
    best = encoder.weights[-1, :, 1].mean(0).argmax()
    assert f"of heads 1 2 3 4: {isolated(f's{best}')}" in announced(shown)


# The head view.


def selects(shown):
    return shown.locator("select")


@pytest.mark.slow
def test_every_layer_of_stacks_that_differ_in_layers_and_heads_is_shown(show):
    both = pair(encoder=(2, 4), decoder=(5, 3))
    shown = show(head_view(both).html)
    for index, attention in enumerate(both):
        selects(shown).nth(0).select_option(index=index)
        layers, heads = attention.weights.shape[:2]
        names = selects(shown).nth(1).locator("option").all_text_contents()
        assert names == [str(layer + 1) for layer in range(layers)]
        assert shown.locator("button[aria-pressed=true]").count() == heads
        for layer in range(layers):
            selects(shown).nth(1).select_option(index=layer)
            shown.locator("[role=listbox]").focus()
            press(shown, *["ArrowUp"] * 5)
            found = np.array(cells(shown))[:-1, 1:-1].astype(float)
            np.testing.assert_allclose(found.T, attention.weights[layer, :, 0], atol=0.00056)
        if attention.kind == "decoder":
            named = shown.locator("[role=option]").first.text_content()
            assert named == f"{isolated('<s>')} → {isolated('t0')}"


@pytest.mark.slow
def test_heads_and_rows_are_chosen_by_keys_and_pointer(show):
    shown = show(head_view(pair(), row=2).html)
    heads = [shown.get_by_role("button", name=f"head {n + 1}") for n in range(4)]

    def pressed():
        return [n for n, head in enumerate(heads) if head.get_attribute("aria-pressed") == "true"]

    heads[1].focus()
    press(shown, "Enter")
    assert pressed() == [0, 2, 3]
    press(shown, "Space")
    assert pressed() == [0, 1, 2, 3]
    press(shown, "Shift+Enter")
    assert pressed() == [1]
    assert len(cells(shown)[0]) == 3, "the token, the head, the mean"
    press(shown, "Enter")
    assert pressed() == [0, 1, 2, 3], "never none"
    heads[2].click(modifiers=["Shift"])
    assert pressed() == [2]
    shown.get_by_role("button", name="all").press("Enter")
    assert pressed() == [0, 1, 2, 3]

    tokens = shown.locator("[role=listbox]")

    def chosen():
        return tokens.locator("[aria-selected=true]").evaluate_all("all => all.map(one => one.id)")

    tokens.focus()
    press(shown, "Space", "ArrowDown")
    assert chosen() == ["r2", "r3"]
    press(shown, "Escape")
    assert chosen() == ["r3"]
    press(shown, "ArrowDown", "ArrowDown", "ArrowDown")
    assert chosen() == ["r4"], "the last row stays the last"
    assert tokens.get_attribute("aria-activedescendant") == "r4"
    press(shown, "a")
    assert len(chosen()) == 5
    press(shown, "Escape")
    tokens.locator("#r1").hover()
    assert chosen() == ["r1"]
    tokens.locator("#r1").click()
    tokens.locator("#r0").hover()
    assert chosen() == ["r0", "r1"]


@pytest.mark.slow
def test_lines_have_the_opacity_of_their_weights_and_shares_between_heads_are_an_option(show):
    both = pair()
    shown = show(head_view(both, row=1).html)
    choice, weights = selects(shown).nth(2), both[0].weights[-1]
    assert "Illustrated Transformer" in choice.locator("option").nth(1).text_content()
    choice.select_option(index=1)
    shares = (weights / weights.sum(0))[:, 1]
    found = np.array(cells(shown))[:, 1:-1].astype(float)
    np.testing.assert_allclose(found.T, shares, atol=0.02)
    np.testing.assert_allclose(found.sum(1), 1, atol=0.003)
    head, key = np.unravel_index(shares.argmax(), shares.shape)
    assert f"largest shares of heads 1 2 3 4: {isolated(f's{key}')}" in announced(shown)
    assert f"of head {head + 1}" in announced(shown)
    choice.select_option(index=0)
    shown.get_by_role("button", name="head 2").press("Shift+Enter")
    drawn = shown.locator("line").evaluate_all(
        "all => all.map(line => +line.getAttribute('stroke-opacity'))"
    )
    np.testing.assert_allclose(drawn, weights[1, 1][weights[1, 1] > 0.01], atol=ROUNDED)


@pytest.mark.slow
@pytest.mark.parametrize("frame", [False, True], ids=["page", "notebook"])
def test_a_drawing_is_saved_as_svg_with_fixed_colors(show, frame):
    view = head_view(pair())
    text = f"<!DOCTYPE html>{view._repr_html_()}" if frame else view.html
    shown = show(text, color_scheme="dark")
    document = shown.frame_locator("iframe") if frame else shown
    with shown.expect_download() as download:
        document.get_by_role("button", name="Save as SVG").press("Enter")
    assert download.value.suggested_filename == "attention.svg"
    root = xml.etree.ElementTree.parse(download.value.path()).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "color:#1b1b1b" in root.get("style")
    assert "var(" not in xml.etree.ElementTree.tostring(root, encoding="unicode")


# The overview.


@pytest.mark.slow
def test_the_overview_is_navigated_by_keys_and_ordered_by_a_measure(show):
    both = pair()
    shown = show(page("x", [head_view(both), head_overview(both)]))
    overview = shown.locator("section").nth(1)
    buttons = overview.locator(".overview button")
    names = [f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
    assert buttons.all_text_contents() == names
    buttons.first.focus()
    press(shown, "ArrowRight", "ArrowDown")
    assert "layer 2, head 2" in overview.locator("[aria-live]").text_content()

    overview.get_by_role("application").focus()
    press(shown, *["ArrowLeft"] * 5, "ArrowDown", "ArrowRight", "ArrowRight")
    text = overview.locator("[aria-live]").text_content()
    assert f"{isolated('s1')} reads {isolated('s2')}: " in text
    weight = float(text.rstrip(".").split()[-1])
    assert weight == pytest.approx(both[0].weights[1, 1, 1, 2], abs=0.00056)

    overview.get_by_role("button", name="Show in the head view").press("Enter")
    assert "layer 2, row 2 of 5" in announced(shown)
    assert "of heads 2:" in announced(shown)
    assert shown.evaluate("document.activeElement.getAttribute('aria-label')") == "Rows"

    overview.locator("select").nth(1).select_option(index=1)
    layer, head = np.unravel_index(both[0].entropy().argmax(), (2, 4))
    assert buttons.first.text_content() == f"{layer + 1}.{head + 1}"
    overview.locator("select").nth(0).select_option(index=2)
    assert buttons.count() == 3 * 2


# Six steps.


def numbers(rows):
    return np.array([[float(cell) for cell in row[1:]] for row in rows])


@pytest.mark.slow
def test_every_number_of_the_six_steps_is_correct(show):
    trace, kinds, heads = one_head()
    shown = show(attention_steps(trace, kinds, heads, row=1).html)
    vectors = trace.attention("cross")
    names = ("query", "key", "value", "weights", "scores", "z")
    query, key, value, weights, scaled, z = (getattr(vectors, name)[0, 0] for name in names)
    close = {"atol": 0.00006}

    assert announced(shown).startswith("Step 1 of 6")
    np.testing.assert_allclose(numbers(cells(shown))[0], query[1], **close)
    np.testing.assert_allclose(numbers(cells(shown, 1)), key, **close)
    np.testing.assert_allclose(numbers(cells(shown, 2)), value, **close)

    following = shown.get_by_role("button", name="Next")
    following.press("Enter")
    scores = numbers(cells(shown))
    np.testing.assert_allclose(scores[:, 0], key @ query[1], **close)
    np.testing.assert_allclose(scores[:, 1:], key * query[1], **close)

    following.press("Enter")
    np.testing.assert_allclose(numbers(cells(shown))[:, 1], scaled[1], **close)

    following.press("Enter")
    *rows, total = cells(shown)
    powers = np.exp(scaled[1] - scaled[1].max())
    np.testing.assert_allclose(numbers(rows), np.stack([scaled[1], powers, weights[1]], 1), **close)
    assert total == ["sum", "", f"{powers.sum():.4f}", "1.000000"]

    following.press("Enter")
    np.testing.assert_allclose(numbers(cells(shown))[:, 1:], weights[1][:, None] * value, **close)

    following.press("Enter")
    np.testing.assert_allclose(numbers(cells(shown)), np.stack([z[1], z[1]]), **close)
    assert float(announced(shown).rstrip(".").split()[-1]) < 1e-6
    shown.get_by_role("button", name="Back").press("Enter")
    assert announced(shown).startswith("Step 5 of 6")

    mask = np.array([[True, False, True, True]] * 3)
    shown = show(attention_steps(*one_head(mask=mask)).html)
    shown.get_by_role("button", name="4 softmax").press("Enter")
    assert cells(shown)[1][1:] == ["masked", "0.0000", "0.0000"]
    assert cells(shown)[-1][-1] == "1.000000"


# Decoding.


@pytest.mark.slow
def test_a_search_is_replayed_step_by_step(show):
    log = search()
    shown = show(search_replay(log, VOCABULARY).html)
    assert announced(shown).startswith("Step 1 of 3, hypothesis 1 of 1: (start)")
    assert cells(shown)[0] == [isolated("one"), "0.5000", "kept"]
    shown.get_by_role("button", name="Next").press("Enter")
    on_best_path = f"hypothesis 2 of 2: {isolated('two')}"
    assert on_best_path in announced(shown)
    tree = shown.get_by_role("listbox")
    tree.focus()
    press(shown, "ArrowLeft")
    assert f"hypothesis 1 of 2: {isolated('one')}" in announced(shown)
    press(shown, "ArrowDown")
    extended = f"{isolated('one')} {isolated('two')}"
    assert f"Step 3 of 3, hypothesis 1 of 2: {extended}" in announced(shown)
    press(shown, "ArrowRight")
    assert "It ends here, score -1.500" in announced(shown)
    assert tree.locator("text", has_text="■ -1.50").count() == 1
    press(shown, "ArrowUp", "ArrowUp", "ArrowUp")
    assert announced(shown).startswith("Step 1 of 3")

    reads = numbers([row[:2] for row in cells(shown, 1)])[:, 0]
    expected = log.steps[0].cross_attention[0].mean(1)
    np.testing.assert_allclose(reads, expected[-1], atol=0.00056)
    selects(shown).select_option(index=0)
    reads = numbers([row[:2] for row in cells(shown, 1)])[:, 0]
    np.testing.assert_allclose(reads, expected[0], atol=0.00056)

    slider = shown.get_by_role("slider")
    slider.focus()
    press(shown, "ArrowRight", "ArrowRight")
    assert announced(shown).startswith("Step 3 of 3")
    words = f"{isolated('two')} {isolated('one')} {isolated('</s>')}"
    assert cells(shown, 2) == [[words, "-1.500"]]


@pytest.mark.slow
def test_a_search_does_not_play_if_the_reader_prefers_reduced_motion(show):
    text = search_replay(search(cross=False), VOCABULARY).html
    shown = show(text)
    shown.get_by_role("button", name="Play").press("Enter")
    shown.get_by_text("Step 3 of 3").wait_for()
    assert shown.get_by_role("button", name="Play").count() == 1, "it has stopped"
    still = show(text, reduced_motion="reduce")
    assert still.get_by_role("button", name="Play").count() == 0
    assert still.get_by_role("button", name="Next").count() == 1


# Two sentences.


@pytest.mark.slow
def test_two_sentences_and_their_difference_are_read_by_keys(show):
    first, second = pair(), pair(seed=9, tokens=["s0", "s1", "s2", "s3", "wide"])
    shown = show(compare_sentences(first, second, names=("tired", "wide"), layer=0).html)
    maps = shown.get_by_role("application")
    assert maps.count() == 3
    # The shape of a cell is the sign of the difference, and its opacity the value.
    drawn = maps.nth(2).locator("rect[data-row]")
    shapes = drawn.evaluate_all(
        "all => all.map(cell => [cell.getAttribute('rx') > 0, +cell.getAttribute('fill-opacity')])"
    )
    kinds = [each[0].to_json()["weights"][0][0] for each in (first, second)]
    difference = np.subtract(kinds[1], kinds[0]).ravel()
    assert [is_round for is_round, _ in shapes] == (difference < 0).tolist()
    opacities = [opacity for _, opacity in shapes]
    np.testing.assert_allclose(opacities, np.abs(difference), atol=0.0006)

    maps.nth(2).focus()
    press(shown, "ArrowDown", *["ArrowRight"] * 4)
    before, after = first[0].weights[0, 0, 1, 4], second[0].weights[0, 0, 1, 4]
    both = f"{isolated('s4')} / {isolated('wide')}"
    text = announced(shown)
    assert text.startswith(f"{isolated('s1')} reads {both}: ")
    values = [float(number) for number in re.findall(r"-?[01]\.\d+", text)]
    np.testing.assert_allclose(values, [before, after, after - before], atol=0.001)
    selects(shown).nth(0).select_option(index=1)
    assert selects(shown).nth(1).locator("option").count() == 3
    assert selects(shown).nth(2).locator("option").count() == 2


@pytest.mark.slow
def test_a_list_keeps_the_focus_so_that_its_choices_are_reached_by_keys(show):
    first, second = (pair(encoder=(3, 4), seed=seed) for seed in (0, 9))
    measures = {"distance": {"encoder": np.ones((3, 4))}}
    views = [head_overview(first, measures=measures), compare_sentences(first, second, layer=0)]
    shown = show(page("x", views))
    kind, order, _, layer, head = selects(shown).all()
    for choice in (order, layer, head):
        choice.focus()
        press(shown, "ArrowDown", "ArrowDown")
        assert choice.input_value() == "2"
    # Another kind of attention has other measures.
    kind.select_option(index=2)
    assert (order.input_value(), order.locator("option").count()) == ("0", 2)


# Values of any kind, and what all views share.


@pytest.mark.slow
def test_a_map_of_values_is_read_by_keys_and_has_no_cell_where_nothing_counts(show):
    values = [[0.5, -2.0, np.nan], [0.25, 0.0, 1.0]]
    rows, columns = [("r",), ("s",)], [("a",), ("b",), ("c",)]
    shown = show(value_map(values, rows, columns, name="Share", unit="nats").html)
    assert announced(shown) == f"{isolated('r')}, {isolated('a')}: 0.50 nats"
    drawn = shown.get_by_role("application").locator("rect[data-row]")
    opacities = drawn.evaluate_all("all => all.map(cell => +cell.getAttribute('fill-opacity'))")
    assert opacities == [0.25, 1, 0.125, 0, 0.5]
    shown.get_by_role("application").focus()
    press(shown, "ArrowRight")
    assert announced(shown).endswith(": -2.00 nats")
    press(shown, "ArrowRight")
    assert announced(shown).endswith(": cannot count")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_value_of_0_has_the_color_of_the_paper_and_1_the_full_color(show, scheme):
    cells = element("table", element("tr", *map(shaded, (0.0, 0.5, 1.0))))
    shown = show(html.page("x", cells), color_scheme=scheme)

    def channels(script):
        return [float(each) for each in re.findall(r"[\d.]+", shown.evaluate(script))[:3]]

    style = "getComputedStyle(document.querySelectorAll('td')[{}]).backgroundColor"
    zero, half, one = (channels(style.format(index)) for index in range(3))
    scale = 255 if max(zero) > 1 else 1  # color-mix gives shares of 1
    paper = channels("getComputedStyle(document.body).backgroundColor")
    np.testing.assert_allclose(np.array(zero) * 255 / scale, paper, atol=1)
    np.testing.assert_allclose(half, (np.array(zero) + one) / 2, atol=0.01 * scale)
