# SPDX-License-Identifier: Apache-2.0
"""Pages in a browser window, in a notebook, and without scripts."""

import html

import pytest
from apps import run
from browsing import announced, cells, isolated, press
from exhibits import EXHIBITS, exhibit, pair
from test_html import AWKWARD
from workdirs import make_workdir

from transformer.inspection.views.head_overview import head_overview
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.view import page

# The page of a sentence.


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page of `look` with two sentences that differ in one of their awkward words."""
    folder = tmp_path_factory.mktemp("report")
    make_workdir(folder / "run", 3, words="a </script> 😀 שלום d e f", decoder_layers=2)
    finished = run(
        "experiments.look",
        f"--workdir={folder / 'run'}",
        "--sentence=</script> 😀 שלום",
        "--target=d </script>",
        "--compare=</script> 😀 d",
        f"--output={folder / 'page.html'}",
    )
    assert finished.status == 0, finished.err
    return (folder / "page.html").read_text(encoding="utf-8")


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


@pytest.mark.slow
def test_a_link_of_the_contents_opens_its_part(show, report):
    shown = show(report)
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
@pytest.mark.parametrize("width", [390, 1400])
def test_labels_have_12_pixels_are_never_vertical_and_are_words(show, report, width):
    shown = show(report, viewport={"width": width, "height": 900})
    shown.evaluate(OPEN_ALL)
    sizes = shown.evaluate(TEXT_SIZES)
    assert len(sizes) > 100
    assert [text for size, text in sizes if size < 11.99] == []
    assert [text for _, text in sizes if "\u2581" in text] == []
    turned = shown.locator("svg text[transform]").evaluate_all(
        "all => all.map(label => label.getAttribute('transform'))"
    )
    assert turned
    assert all(each.startswith(("rotate(-45", "rotate(-60")) for each in turned)


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


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_of_a_sentence_fits_a_phone(show, report, scheme):
    shown = show(report, viewport={"width": 360, "height": 800}, color_scheme=scheme)
    shown.evaluate(OPEN_ALL)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360


# Windows, notebooks, and no scripts.


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_the_tab_key_reaches_every_control(show, name):
    view = exhibit(name)
    shown = show(view.html)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_a_notebook_shows_either_the_view_or_the_static_content(show, name):
    view = exhibit(name)

    def visible(shown):
        static = shown.locator(".transformer-view").is_visible()
        frame = shown.frame_locator("iframe")
        controls = frame.locator("select, button, summary").count()
        return static, frame.get_by_text(view.description, exact=True).is_visible(), controls

    output = f"<!DOCTYPE html><div>{view._repr_html_()}</div>"
    static, static_in_frame, controls = visible(show(output))
    assert (static, static_in_frame) == (False, False)
    assert controls
    # Sites that remove frames, or their content.
    for stripped in (
        output.replace("<iframe", "<!--").replace("</iframe>", "-->"),
        output.replace(" srcdoc=", " data-srcdoc="),
    ):
        shown = show(stripped)
        assert shown.locator(".transformer-view").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_a_notebook_that_blocks_scripts_shows_the_static_content(browser, name):
    view = exhibit(name)
    shown = browser.new_page()
    # Playwright's switch does not reach frames in separate processes.
    shown.set_content(view._repr_html_().replace("allow-scripts", ""))
    assert not shown.locator(".transformer-view").is_visible()
    frame = shown.frame_locator("iframe")
    assert frame.get_by_text(view.description, exact=True).is_visible()
    assert frame.locator("select, button").count() == 0
    shown.close()


@pytest.mark.slow
def test_a_view_cannot_read_the_notebook(show):
    from playwright.sync_api import Error

    output = "<!DOCTYPE html><title>notebook</title>" + head_view(pair())._repr_html_()
    shown = show(output)
    frame = shown.frames[1]
    with pytest.raises(Error, match="Blocked a frame|cross-origin|SecurityError"):
        frame.evaluate("parent.document.title")


@pytest.mark.slow
@pytest.mark.parametrize("text", AWKWARD)
def test_any_token_is_shown_as_text(show, text):
    both = pair(tokens=[text, "s1", "s2", "s3", "s4"])
    shown = show(page("x", [head_view(both), head_overview(both)]))
    assert shown.locator("[role=option]").first.text_content() == isolated(text)
    assert cells(shown)[0][0] == isolated(text)
    assert isolated(text) in announced(shown)
    assert shown.locator("script").count() == 2
    static = show(head_view(both).html, java_script_enabled=False)
    assert html.escape(text, quote=False).split("&")[0] in static.content()


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", EXHIBITS)
def test_a_page_fits_a_window_of_any_width(show, name, width):
    view = exhibit(name)
    shown = show(view.html, viewport={"width": width, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_an_added_script_does_not_run(browser):
    text = head_view(pair()).html.replace("<main>", "<main><script>document.title = 'x'</script>")
    shown = browser.new_page()
    reports = []
    shown.on("console", lambda message: reports.append(message.text))
    shown.set_content(text)
    assert shown.title() == "Attention, head by head"
    [report] = reports
    assert "Content Security Policy" in report
    shown.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_without_scripts_a_page_shows_static_content_with_a_description(show, name):
    view = exhibit(name)
    shown = show(view.html, java_script_enabled=False)
    assert shown.locator("main table, main img[alt]").first.is_visible()
    assert shown.get_by_text(view.description, exact=True).last.is_visible()
    assert shown.locator("button, select").count() == 0
