# SPDX-License-Identifier: Apache-2.0
"""Each view in a real browser, driven by keyboard and pointer."""

import re
import xml.etree.ElementTree

import numpy as np
import pytest
from browsing import cells, isolated, press, said
from exhibits import NATS, one_head, pair, pieces, search

from transformer.inspection.views.compare_view import compare
from transformer.inspection.views.grid import grid
from transformer.inspection.views.head_view import head_view, shares_between_heads
from transformer.inspection.views.number_packing import STEPS
from transformer.inspection.views.numbers import numbers as numbers_view
from transformer.inspection.views.replay import replay
from transformer.inspection.views.step_view import recomputed, steps
from transformer.inspection.views.view import page


def test_a_page_of_every_view_works_and_asks_for_nothing(show):
    both = pair()
    views = [
        head_view(both),
        grid(both),
        steps([one_head()]),
        replay(search(), pieces),
        numbers_view([[0.25, -1.0, 0.0]], ["r"], ["a", "b", "c"], **NATS),
        compare(both, pair(seed=9), patch=np.linspace(-1, 1, 15).reshape(3, 5)),
    ]
    shown = show(page("Everything", views))
    assert shown.locator("svg[role=img]").count() == 0, "every picture has made room for its view"
    assert shown.locator("section.view").count() == len(views)

    [head] = shown.locator("[role=listbox][aria-label=Rows]").all()
    head.focus()
    press(shown, "ArrowDown")
    encoder = both[0]
    rows = cells(shown)
    for column in range(5):
        expected = encoder.weights[-1, :, 1, column]
        found = [float(cell) for cell in rows[column][1:-1]]
        np.testing.assert_allclose(found, expected, atol=0.5 / STEPS + 0.0005)
    assert rows[-1][0] == "sum"
    assert [float(cell) for cell in rows[-1][1:]] == pytest.approx([1.0] * 5, abs=1e-6)
    best = encoder.weights[-1, :, 1].mean(0).argmax()
    assert f"of heads 1 2 3 4: {isolated(f's{best}')}" in said(shown)


# The head view.


def selects(shown):
    return shown.locator("select")


@pytest.mark.slow
def test_every_layer_of_stacks_of_unequal_depth_and_heads_is_there(show):
    both = pair(encoder=(2, 4), decoder=(5, 3))
    shown = show(head_view(both).html)
    for place, family in enumerate(both):
        selects(shown).nth(0).select_option(index=place)
        layers = selects(shown).nth(1).locator("option").all_text_contents()
        assert layers == [str(layer + 1) for layer in range(len(family.weights))]
        heads = family.weights.shape[1]
        assert shown.locator("button[aria-pressed=true]").count() == heads
        for layer in range(len(family.weights)):
            selects(shown).nth(1).select_option(index=layer)
            shown.locator("[role=listbox]").focus()
            press(shown, *["ArrowUp"] * 5)
            found = np.array(cells(shown))[:-1, 1:-1].astype(float)
            np.testing.assert_allclose(found.T, family.weights[layer, :, 0], atol=0.00063)


@pytest.mark.slow
def test_heads_are_shown_hidden_and_singled_out_by_keyboard(show):
    shown = show(head_view(pair()).html)
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


@pytest.mark.slow
def test_tokens_are_chosen_by_keys_and_pointer_and_kept(show):
    shown = show(head_view(pair(), row=2).html)
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
def test_a_line_is_as_strong_as_its_weight_and_weak_ones_are_left_out(show):
    both = pair()
    shown = show(head_view(both, layer=0, heads=[1], row=3).html)
    drawn = shown.locator("line").evaluate_all(
        "all => all.map(line => +line.getAttribute('stroke-opacity'))"
    )
    weights = both[0].weights[0, 1, 3]
    np.testing.assert_allclose(drawn, weights[weights > 0.01], atol=0.5 / STEPS)


@pytest.mark.slow
def test_shares_between_heads_are_an_option_that_says_what_it_is(show):
    both = pair()
    shown = show(head_view(both, row=1).html)
    choice = selects(shown).nth(2)
    assert "Illustrated Transformer" in choice.locator("option").nth(1).text_content()
    choice.select_option(index=1)
    shares = shares_between_heads(both[0].weights[-1])[:, 1]
    found = np.array(cells(shown))[:, 1:-1].astype(float)
    np.testing.assert_allclose(found.T, shares, atol=0.02)
    np.testing.assert_allclose(found.sum(1), 1, atol=0.003)
    head, key = np.unravel_index(shares.argmax(), shares.shape)
    assert f"top shares of heads 1 2 3 4: {isolated(f's{key}')}" in said(shown)
    assert f"of head {head + 1}" in said(shown)


@pytest.mark.slow
def test_rows_of_the_decoder_are_named_after_both_tokens(show):
    shown = show(head_view(pair()[1:]).html)
    named = shown.locator("[role=option]").all_text_contents()
    assert named[0] == f"{isolated('<s>')} → {isolated('t0')}"


@pytest.mark.slow
@pytest.mark.parametrize("frame", [False, True], ids=["page", "notebook"])
def test_the_drawing_is_saved_as_a_picture_with_colours_of_its_own(show, frame):
    view = head_view(pair())
    text = f"<!DOCTYPE html>{view._repr_html_()}" if frame else view.html
    shown = show(text, color_scheme="dark")
    place = shown.frame_locator("iframe") if frame else shown
    with shown.expect_download() as download:
        place.get_by_role("button", name="Save as SVG").press("Enter")
    assert download.value.suggested_filename == "attention.svg"
    root = xml.etree.ElementTree.parse(download.value.path()).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "color:#1b1b1b" in root.get("style")
    assert "var(" not in xml.etree.ElementTree.tostring(root, encoding="unicode")


# The overview.


@pytest.mark.slow
def test_the_overview_is_gone_through_by_keys_and_ordered_by_a_measure(show):
    both = pair()
    shown = show(page("x", [head_view(both), grid(both)]))
    overview = shown.locator("section").nth(1)
    names = overview.locator(".overview button").evaluate_all(
        "all => all.map(one => one.textContent)"
    )
    assert names == [f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
    overview.locator(".overview button").first.focus()
    press(shown, "ArrowRight", "ArrowDown")
    assert "layer 2, head 2" in overview.locator("[aria-live]").text_content()

    overview.get_by_role("application").focus()
    press(shown, "ArrowDown", "ArrowRight", "ArrowRight")
    weight = both[0].weights[1, 1, 1, 2]
    told = overview.locator("[aria-live]").text_content()
    assert f"{isolated('s1')} reads {isolated('s2')}: " in told
    assert float(told.rstrip(".").split()[-1]) == pytest.approx(weight, abs=0.00063)

    overview.get_by_role("button", name="Show in the head view").press("Enter")
    assert "layer 2, row 1 of 5" in said(shown)
    assert "of heads 2:" in said(shown)
    assert shown.evaluate("document.activeElement.getAttribute('aria-label')") == "Rows"

    overview.locator("select").nth(1).select_option(index=1)
    first = overview.locator(".overview button").first.text_content()
    layer, head = np.unravel_index(both[0].entropy().argmax(), (2, 4))
    assert first == f"{layer + 1}.{head + 1}"
    overview.locator("select").nth(0).select_option(index=2)
    assert overview.locator(".overview button").count() == 3 * 2


# Six steps.


def numbers(rows):
    return np.array([[float(cell) for cell in row[1:]] for row in rows])


@pytest.mark.slow
def test_every_number_of_the_six_steps_is_right(show):
    head = one_head()
    shown = show(steps([head], row=1).html)
    scaled, weights, z = recomputed(head.query, head.key, head.value, head.weights > 0)
    close = {"atol": 0.00006}

    assert said(shown).startswith("Step 1 of 6")
    np.testing.assert_allclose(numbers(cells(shown))[0], head.query[1], **close)
    np.testing.assert_allclose(numbers(cells(shown, 1)), head.key, **close)
    np.testing.assert_allclose(numbers(cells(shown, 2)), head.value, **close)

    following = shown.get_by_role("button", name="Next")
    following.press("Enter")
    scores = numbers(cells(shown))
    np.testing.assert_allclose(scores[:, 0], head.key @ head.query[1], **close)
    np.testing.assert_allclose(scores[:, 1:], head.key * head.query[1], **close)

    following.press("Enter")
    np.testing.assert_allclose(numbers(cells(shown))[:, 1], scaled[1], **close)

    following.press("Enter")
    *rows, total = cells(shown)
    powers = np.exp(scaled[1] - scaled[1].max())
    np.testing.assert_allclose(numbers(rows), np.stack([scaled[1], powers, weights[1]], 1), **close)
    assert total == ["sum", "", f"{powers.sum():.4f}", "1.000000"]

    following.press("Enter")
    np.testing.assert_allclose(
        numbers(cells(shown))[:, 1:], weights[1][:, None] * head.value, **close
    )

    following.press("Enter")
    np.testing.assert_allclose(numbers(cells(shown)), np.stack([z[1], head.z[1]]), **close)
    assert float(said(shown).rstrip(".").split()[-1]) < 1e-6
    shown.get_by_role("button", name="Back").press("Enter")
    assert said(shown).startswith("Step 5 of 6")


@pytest.mark.slow
def test_what_is_masked_is_named_and_gets_no_weight(show):
    full = one_head()
    allowed = np.array([[True, False, True, True]] * 3)
    _, weights, z = recomputed(full.query, full.key, full.value, allowed)
    head = type(full)("x", full.rows, full.columns, full.query, full.key, full.value, weights, z)
    shown = show(steps([full, head]).html)
    selects(shown).nth(0).select_option(index=1)
    shown.get_by_role("button", name="4 softmax").press("Enter")
    assert cells(shown)[1][1:] == ["masked", "0.0000", "0.0000"]
    assert cells(shown)[-1][-1] == "1.000000"


# Decoding.


@pytest.mark.slow
def test_a_search_is_gone_through_step_by_step(show):
    log = search()
    shown = show(replay(log, pieces).html)
    assert said(shown).startswith("Step 1 of 3, hypothesis 1 of 1: (start)")
    assert cells(shown)[0] == [isolated("one"), "0.5000", "lives on"]
    shown.get_by_role("button", name="Next").press("Enter")
    assert f"hypothesis 2 of 2: {isolated('two')}" in said(shown), "the best translation's path"
    tree = shown.get_by_role("listbox")
    tree.focus()
    press(shown, "ArrowUp")
    assert f"hypothesis 1 of 2: {isolated('one')}" in said(shown)
    press(shown, "ArrowRight")
    assert f"Step 3 of 3, hypothesis 1 of 2: {isolated('one')} {isolated('two')}" in said(shown)
    press(shown, "ArrowDown")
    assert "It ends here, score -1.500" in said(shown)
    assert tree.locator("text", has_text="■ end -1.50").count() == 1
    press(shown, "ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert said(shown).startswith("Step 1 of 3")

    reads = numbers([row[:2] for row in cells(shown, 1)])[:, 0]
    expected = log.steps[0].cross_attention[0].mean(1)
    np.testing.assert_allclose(reads, expected[-1], atol=0.00063)
    selects(shown).select_option(index=0)
    reads = numbers([row[:2] for row in cells(shown, 1)])[:, 0]
    np.testing.assert_allclose(reads, expected[0], atol=0.00063)

    slider = shown.get_by_role("slider")
    slider.focus()
    press(shown, "ArrowRight", "ArrowRight")
    assert said(shown).startswith("Step 3 of 3")
    words = f"{isolated('two')} {isolated('one')} {isolated('</s>')}"
    assert cells(shown, 2) == [[words, "-1.500"]]


@pytest.mark.slow
def test_a_search_plays_only_where_motion_is_welcome(show):
    text = replay(search(cross=False), pieces).html
    shown = show(text)
    shown.get_by_role("button", name="Play").press("Enter")
    shown.get_by_text("Step 3 of 3").wait_for()
    assert shown.get_by_role("button", name="Play").count() == 1, "it has stopped"
    still = show(text, reduced_motion="reduce")
    assert still.get_by_role("button", name="Play").count() == 0
    assert still.get_by_role("button", name="Next").count() == 1


# Numbers of both signs.


@pytest.mark.slow
def test_numbers_are_read_by_keys_and_have_a_shape_for_each_sign(show):
    shown = show(numbers_view([[0.25, -1.0, -1e-9]], ["r"], ["a", "b", "c"], **NATS).html)
    cells_drawn = shown.locator("rect[data-at]").evaluate_all(
        "all => all.map(cell => [cell.getAttribute('rx') > 0, +cell.getAttribute('fill-opacity')])"
    )
    assert cells_drawn == [[False, 0.5], [True, 1], [False, 0]]
    shown.get_by_role("application").focus()
    press(shown, "ArrowRight")
    assert said(shown) == f"{isolated('r')}, {isolated('b')}: -1.000"
    press(shown, "ArrowRight", "ArrowRight")
    assert said(shown) == f"{isolated('r')}, {isolated('c')}: 0.000"
    shown.locator("summary").press("Enter")
    assert cells(shown) == [[isolated("r"), "0.250", "-1.000", "0.000"]]


# Two sentences.


@pytest.mark.slow
def test_the_difference_of_two_sentences_and_the_patch_map_are_read_by_keys(show):
    first, second = pair(), pair(seed=9, tokens=["s0", "s1", "s2", "s3", "wide"])
    patch = np.linspace(-1, 1, 15).reshape(3, 5)
    shown = show(compare(first, second, names=("tired", "wide"), layer=0, patch=patch).html)
    maps = shown.get_by_role("application")
    assert maps.count() == 4
    maps.nth(2).focus()
    press(shown, "ArrowDown", *["ArrowRight"] * 4)
    before, after = first[0].weights[0, 0, 1, 4], second[0].weights[0, 0, 1, 4]
    both = f"{isolated('s4')} / {isolated('wide')}"
    told = said(shown)
    assert told.startswith(f"{isolated('s1')} reads {both}: ")
    values = [float(number) for number in re.findall(r"-?[01]\.\d+", told)]
    np.testing.assert_allclose(values, [before, after, after - before], atol=0.001)
    round_cells = maps.nth(2).locator("rect[rx]:not([rx='0'])").count()
    difference = np.rint(second[0].weights[0, 0] * STEPS) - np.rint(first[0].weights[0, 0] * STEPS)
    assert round_cells == (difference < 0).sum()

    maps.nth(3).focus()
    press(shown, "ArrowDown", "ArrowRight")
    assert said(shown, 1) == f"after layer 1, {isolated('s1')}: {patch[1, 1]:.3f}"
    np.testing.assert_allclose(numbers(cells(shown)), patch, atol=0.0051)
    selects(shown).nth(0).select_option(index=1)
    assert selects(shown).nth(1).locator("option").count() == 3
    assert selects(shown).nth(2).locator("option").count() == 2
