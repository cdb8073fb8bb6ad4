# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser wherever they stand: in a window, in a notebook, without scripts."""

import html

import pytest
from apps import run
from browsing import cells, isolated, press, said
from exhibits import every_view, pair
from test_html import AWKWARD
from test_translate import make_workdir

from transformer.inspection.views.grid import grid
from transformer.inspection.views.head_view import head_view
from transformer.inspection.views.view import page

# The report of a sentence.


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of `look`: two sentences that differ in a word, the words awkward."""
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


@pytest.mark.slow
def test_a_report_is_read_by_keys_and_tells_its_numbers(show, report):
    shown = show(report)
    assert shown.locator("svg[role=img]:not(figure svg)").count() == 0
    assert shown.locator("script").count() == 2
    sections = {
        heading: shown.locator("section", has=shown.get_by_role("heading", name=heading))
        for heading in shown.get_by_role("heading", level=2).all_text_contents()
    }
    rests = sections["Where each prediction rests"]
    rests.get_by_role("application").focus()
    press(shown, "ArrowRight", "ArrowRight")
    told = rests.locator("[aria-live]").text_content()
    rests.locator("summary").press("Enter")
    number = rests.locator("tbody tr").first.locator("td").nth(2).text_content()
    assert told == f"{isolated('predicts ▁d')}, {isolated('x ▁שלום')}: {number}"

    both = sections["Attention in both, its difference, and patching"]
    maps = both.get_by_role("application")
    assert maps.count() == 4
    maps.nth(3).focus()
    press(shown, "ArrowDown", "ArrowRight", "ArrowRight")
    assert both.locator("[aria-live]").nth(1).text_content().startswith("after layer 1, ")

    numbers = sections["Every layer and head"].locator("details")
    numbers.locator("summary").press("Enter")
    assert numbers.locator("tbody tr").count() == 2
    assert "loss added without the head" in numbers.locator("thead").text_content()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_fits_a_telephone(show, report, scheme):
    shown = show(report, viewport={"width": 360, "height": 800}, color_scheme=scheme)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360


# Wherever a page stands.


@pytest.mark.slow
@pytest.mark.parametrize("view", every_view(patch=None), ids=lambda view: view.kind)
def test_every_control_is_reached_by_the_tab_key(show, view):
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
@pytest.mark.parametrize("view", every_view(patch=None), ids=lambda view: view.kind)
def test_a_notebook_shows_the_view_or_the_picture_but_never_both(show, view):
    def visible(shown):
        picture = shown.locator(".transformer-view").is_visible()
        frame = shown.frame_locator("iframe")
        controls = frame.locator("select, button, summary").count()
        return picture, frame.locator("svg[role=img]").is_visible(), controls

    output = f"<!DOCTYPE html><div>{view._repr_html_()}</div>"
    picture, still, controls = visible(show(output))
    assert (picture, still) == (False, False)
    assert controls > 1
    # Where a site takes out frames, or what is in them.
    for stripped in (
        output.replace("<iframe", "<!--").replace("</iframe>", "-->"),
        output.replace(" srcdoc=", " data-srcdoc="),
    ):
        shown = show(stripped)
        assert shown.locator(".transformer-view svg").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("view", every_view(patch=None), ids=lambda view: view.kind)
def test_a_notebook_that_lets_no_script_run_shows_the_picture(browser, view):
    shown = browser.new_page()
    # Playwright's own switch does not reach frames in processes of their own.
    shown.set_content(view._repr_html_().replace("allow-scripts", ""))
    assert not shown.locator(".transformer-view").is_visible()
    frame = shown.frame_locator("iframe")
    assert frame.locator("svg[role=img]").first.is_visible()
    assert frame.locator("select, button").count() == 0
    shown.close()


@pytest.mark.slow
def test_a_notebook_is_out_of_the_view_s_reach(show):
    from playwright.sync_api import Error

    output = "<!DOCTYPE html><title>notebook</title>" + head_view(pair())._repr_html_()
    shown = show(output)
    frame = shown.frames[1]
    with pytest.raises(Error, match="Blocked a frame|cross-origin|SecurityError"):
        frame.evaluate("parent.document.title")


@pytest.mark.slow
@pytest.mark.parametrize("text", AWKWARD)
def test_any_token_is_shown_as_it_is(show, text):
    both = pair(tokens=[text, "s1", "s2", "s3", "s4"])
    shown = show(page("x", [head_view(both), grid(both)]))
    assert shown.locator("[role=option]").first.text_content() == isolated(text)
    assert cells(shown)[0][0] == isolated(text)
    assert isolated(text) in said(shown)
    assert shown.locator("script").count() == 2
    still = show(head_view(both).html, java_script_enabled=False)
    assert html.escape(text, quote=False).split("&")[0] in still.content()


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("view", every_view(patch=None), ids=lambda view: view.kind)
def test_a_page_fits_a_window_of_any_width(show, view, width):
    shown = show(view.html, viewport={"width": width, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_a_script_that_was_added_does_not_run(browser):
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
@pytest.mark.parametrize("view", every_view(patch=None), ids=lambda view: view.kind)
def test_without_scripts_a_page_shows_a_picture_and_says_what_it_is(show, view):
    shown = show(view.html, java_script_enabled=False)
    assert shown.locator("svg[role=img]").first.is_visible()
    assert shown.get_by_text(view.told, exact=True).last.is_visible()
    assert shown.locator("button, select").count() == 0
