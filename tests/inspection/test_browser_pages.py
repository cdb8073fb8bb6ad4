# SPDX-License-Identifier: Apache-2.0
"""Pages in a browser window, in a notebook, and without scripts."""

import pytest
from browsing import announced, cells, isolated, press
from exhibits import EXHIBITS, exhibit, pair
from html_reader import AWKWARD
from workdirs import make_workdir

from experiments import look
from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.view import page

# The page of a sentence.


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of `look` with two sentences that differ in one of their awkward words."""
    workdir = tmp_path_factory.mktemp("report") / "run"
    make_workdir(workdir, 3, words="a </script> 😀 שלום d e f", decoder_layers=2)
    sentences = {"sentence": "</script> 😀 שלום", "compare": "</script> 😀 d"}
    return look.run(look.Options(workdir=str(workdir), target="d </script>", **sentences))


OPEN_ALL = "document.querySelectorAll('details').forEach(each => { each.open = true; })"


@pytest.mark.slow
def test_a_page_of_a_sentence_opens_with_its_answer_and_is_short(show, report):
    shown = show(report, viewport={"width": 1400, "height": 900})
    assert "what decides?" in shown.locator("h1").text_content()
    top = "node => node.getBoundingClientRect().bottom"
    assert shown.locator(".findings").evaluate(top) < 400
    assert shown.locator(".twins svg").count() == 2
    assert shown.locator(".twins").evaluate(top) < 900, "findings and pictures are one screen"
    assert shown.evaluate("document.documentElement.scrollHeight") < 2500
    assert shown.locator("details.part[open]").count() == 0
    # A link of the contents opens its part.
    headings = shown.locator("details.part h2").all_text_contents()
    assert shown.locator("nav a").all_text_contents() == headings
    for index in (0, len(headings) - 1):
        shown.locator("nav a").nth(index).press("Enter")
        part = shown.locator("details.part").nth(index)
        shown.wait_for_function("part => part.open", arg=part.element_handle())


@pytest.mark.slow
def test_a_page_of_a_sentence_is_read_by_keys_and_has_its_numbers_in_tables(show, report):
    shown = show(report)
    assert shown.locator(".view img").count() == 0, "every view has replaced its static content"
    assert shown.locator("script").count() == 2

    def part(heading):
        part = shown.locator("details.part", has=shown.get_by_role("heading", name=heading))
        part.locator("summary").first.press("Enter")
        return part

    attribution = part("Attribution of each prediction")
    attribution.get_by_role("application").focus()
    press(shown, "ArrowDown", "ArrowDown")
    assert "nats" in attribution.locator("[aria-live]").text_content()
    labels = attribution.locator("svg text").all_text_contents()
    assert isolated("שלום") in labels

    comparison = part("Both sentences, head by head")
    maps = comparison.get_by_role("application")
    assert maps.count() == 3
    maps.nth(2).focus()
    press(shown, "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight")
    assert " / " in "".join(comparison.locator("svg text").all_text_contents())
    assert "difference" in comparison.locator("[aria-live]").text_content()

    overview = part("Every layer and head")
    numbers = overview.locator("details")
    numbers.locator("summary").press("Enter")
    assert numbers.locator("tbody tr").count() == 2
    assert "loss increase without the head" in numbers.locator("thead").text_content()

    # A view that is closed opens when another one shows a head in it.
    overview.get_by_role("button", name="Show in the head view").press("Enter")
    assert shown.evaluate("document.activeElement.getAttribute('aria-label')") == "Rows"
    assert shown.locator("details.part[open] [role=listbox][aria-label=Rows]").is_visible()


TEXT_SIZES = """() => {
  const leaves = [...document.querySelectorAll("main *")].filter(node =>
    node.childElementCount === 0 && node.textContent.trim() && node.checkVisibility());
  return leaves.map(node => {
    const scale = node.ownerSVGElement?.getScreenCTM().a ?? 1;
    return [scale * parseFloat(getComputedStyle(node).fontSize), node.textContent];
  });
}"""


@pytest.mark.slow
def test_labels_have_12_pixels_are_never_vertical_and_are_words_and_the_page_fits_a_phone(
    show, report
):
    shown = show(report, viewport={"width": 1400, "height": 900})
    shown.evaluate(OPEN_ALL)
    for width in (1400, 390):
        shown.set_viewport_size({"width": width, "height": 800})
        sizes = shown.evaluate(TEXT_SIZES)
        assert len(sizes) > 100
        assert [text for size, text in sizes if size < 11.99] == []
        assert [text for _, text in sizes if "\u2581" in text] == []
        turned = shown.locator("svg text[transform]").evaluate_all(
            "all => all.map(label => label.getAttribute('transform'))"
        )
        assert turned
        assert all(each.startswith(("rotate(-45", "rotate(-60")) for each in turned)
    shown.set_viewport_size({"width": 360, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_a_page_of_a_sentence_can_be_read_without_scripts(show, report):
    shown = show(report, java_script_enabled=False, viewport={"width": 390, "height": 800})
    assert shown.locator(".findings").is_visible()
    assert shown.locator(".twins svg").first.is_visible()
    for summary in shown.locator("details.part > summary").all():
        summary.press("Enter")
    for view in shown.locator("section.view").all():
        assert view.locator("table, img[alt]").first.is_visible()
    assert shown.locator("button, select").count() == 0


# Windows, notebooks, and no scripts.


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_a_page_fits_any_window_is_reached_by_the_tab_key_and_is_read_without_scripts(show, name):
    view = exhibit(name)
    shown = show(view.html, viewport={"width": 360, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360
    shown.set_viewport_size({"width": 1200, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 1200
    wanted = shown.evaluate(
        "[...document.querySelectorAll('button, select, input, summary, [tabindex]')]"
        ".filter(node => node.tabIndex === 0 && node.checkVisibility())"
        ".map(node => node.outerHTML.slice(0, 80))"
    )
    reached = []
    for _ in wanted:
        press(shown, "Tab")
        reached.append(shown.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
    assert reached == wanted
    unnamed = shown.locator("button, select, input, svg[tabindex]").evaluate_all(
        "all => all.filter(node => !(node.textContent.trim() || node.ariaLabel"
        " || node.closest('label'))).length"
    )
    assert unnamed == 0

    shown = show(view.html, java_script_enabled=False)
    assert shown.locator("main table, main img[alt]").first.is_visible()
    assert shown.get_by_text(view.description, exact=True).last.is_visible()
    assert shown.locator("button, select").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_a_notebook_shows_either_the_view_or_the_static_content(browser, show, name):
    view = exhibit(name)

    def visible(shown):
        """Whether the static content is shown, and that of the frame, and the frame's controls."""
        frame = shown.frame_locator("iframe")
        in_frame = frame.get_by_text(view.description, exact=True).is_visible()
        controls = frame.locator("select, button, summary").count()
        return shown.locator(".transformer-view").is_visible(), in_frame, controls > 0

    output = f"<!DOCTYPE html><div>{view._repr_html_()}</div>"
    assert visible(show(output)) == (False, False, True)
    # Sites that remove frames, or their content.
    for stripped in (
        output.replace("<iframe", "<!--").replace("</iframe>", "-->"),
        output.replace(" srcdoc=", " data-srcdoc="),
    ):
        assert show(stripped).locator(".transformer-view").is_visible()
    # A notebook that blocks scripts; Playwright's switch does not reach frames in other processes.
    shown = browser.new_page()
    shown.set_content(view._repr_html_().replace("allow-scripts", ""))
    assert visible(shown)[:2] == (False, True)
    assert shown.frame_locator("iframe").locator("select, button").count() == 0
    shown.close()


@pytest.mark.slow
def test_a_view_cannot_read_the_notebook_and_an_added_script_does_not_run(browser, show):
    from playwright.sync_api import Error

    view = head_view(pair())
    shown = show(f"<!DOCTYPE html><title>notebook</title>{view._repr_html_()}")
    with pytest.raises(Error, match="Blocked a frame|cross-origin|SecurityError"):
        shown.frames[1].evaluate("parent.document.title")

    shown = browser.new_page()
    reports = []
    shown.on("console", lambda message: reports.append(message.text))
    script = "<main><script>document.title = 'x'</script>"
    shown.set_content(view.html.replace("<main>", script))
    assert shown.title() == "Attention, head by head"
    [report] = reports
    assert "Content Security Policy" in report
    shown.close()


@pytest.mark.slow
def test_any_token_is_shown_as_text(show):
    both = pair(source=len(AWKWARD), tokens=AWKWARD)
    shown = show(page("x", [head_view(both), head_overview(both)]))
    expected = [isolated(text) for text in AWKWARD]
    options = shown.locator("[role=listbox][aria-label=Rows] [role=option]")
    assert options.all_text_contents() == expected
    assert [row[0] for row in cells(shown)[: len(AWKWARD)]] == expected
    assert expected[0] in announced(shown)
    assert shown.locator("script").count() == 2
    static = show(head_view(both).html, java_script_enabled=False)
    assert "alert(1)" in static.locator("main").text_content() + static.content()
