# SPDX-License-Identifier: Apache-2.0
"""The page of the service in a browser: typing, words, keys, errors, phones, and no network."""

import time

import pytest
from browsing import opening, press
from capitals import running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service():
    """A service that writes capitals and knows where each came from."""
    with running(attention=True) as service:
        yield service


@pytest.fixture
def visit(browser):
    """Open the page of a service: (service, options of the context) -> the page.

    At the end there must have been no request to another host, and no error but the named ones.
    """
    hosts = []

    def visit(service, **options):
        hosts.append(service.url)
        page = open_page(service.url, **options)
        page.set_default_timeout(30_000)
        page.wait_for_selector("#source:focus")
        return page

    with opening(browser, lambda url: url.startswith((*hosts, "data:"))) as open_page:
        visit.requests, visit.reports = open_page.requests, open_page.reports
        yield visit


def translated(page, *lines):
    """Wait until the box of the translation has these lines."""
    end = time.monotonic() + 30
    while (shown := page.locator("#target .line").all_text_contents()) != list(lines):
        assert time.monotonic() < end, shown
        page.wait_for_timeout(20)


def marked(page):
    """The source words that are marked, with the opacity of their marks in percent."""
    words = page.locator("#marks mark")
    styles = words.evaluate_all("marks => marks.map(m => m.getAttribute('style'))")
    percents = [int(style.partition("%")[0].rpartition(" ")[2]) for style in styles]
    return dict(zip(words.all_text_contents(), percents, strict=True))


def test_the_translation_follows_what_is_typed(service, visit):
    page = visit(service)
    page.keyboard.type("one two")
    translated(page, "ONE TWO")
    page.keyboard.type(" six\n\nlast")
    translated(page, "ONE TWO SIX", "", "LAST")
    sent = [url for url in visit.requests if url.endswith("/translate")]
    for _ in range(4):
        press(page, "Backspace")
    translated(page, "ONE TWO SIX", "", "")
    assert [url for url in visit.requests if url.endswith("/translate")] == sent, (
        "lines that are known are not sent again"
    )
    page.get_by_role("button", name="Clear").click()
    translated(page)


def test_only_the_last_text_counts_however_replies_overtake_each_other(service, visit):
    page = visit(service)
    service.translator.hold()
    page.keyboard.type("first")
    assert service.translator.entered.wait(30)
    page.keyboard.type(" second", delay=1)
    page.wait_for_timeout(300)
    service.translator.may_go.set()
    translated(page, "FIRST SECOND")
    page.wait_for_timeout(200)
    translated(page, "FIRST SECOND")


def test_a_chosen_word_marks_the_source_words_that_it_reads(service, visit):
    page = visit(service)
    page.locator("#source").fill("one two, three")
    translated(page, "ONE TWO, THREE")
    page.get_by_role("button", name="THREE", exact=True).click()
    page.get_by_label("Layer").select_option("2")
    assert marked(page) == {"one": 99, "two": 4, "three": 4}
    assert page.locator(".weights dt").all_text_contents()[0] == "one"
    assert page.locator(".weights .number").all_text_contents()[0] == "0.90"
    page.get_by_label("Layer").select_option("1")
    assert marked(page) == {"one": 4, "two": 4, "three": 99}
    # The marks lie exactly behind the text.
    positions = page.evaluate(
        """() => ["#marks", "#source"].map(id => {
          const box = document.querySelector(id), style = getComputedStyle(box);
          return [box.clientWidth, box.clientHeight, style.font, style.padding, style.whiteSpace];
        })"""
    )
    assert positions[0] == positions[1]
    page.locator("summary").click()
    application = page.get_by_role("application")
    application.focus()
    press(page, "ArrowUp", "ArrowRight")
    assert "TWO" in page.locator("details [aria-live]").text_content()


def test_the_keyboard_reaches_everything(service, visit):
    page = visit(service)
    page.keyboard.type("one two\nthree four")
    translated(page, "ONE TWO", "THREE FOUR")
    focused = page.locator(":focus")
    for _ in range(4):
        if "word" in (focused.get_attribute("class") or ""):
            break
        press(page, "Tab")
    assert focused.text_content() == "ONE"
    press(page, "Enter")
    page.wait_for_selector(".weights")
    for key, word in (
        ("ArrowRight", "TWO"),
        ("ArrowRight", "THREE"),
        ("ArrowDown", "THREE"),
        ("ArrowRight", "FOUR"),
        ("ArrowLeft", "THREE"),
        ("ArrowUp", "ONE"),
    ):
        press(page, key)
        page.wait_for_selector(f'.word[aria-pressed=true]:focus:text-is("{word}")')
    press(page, "Tab")
    assert "ONE TWO" in focused.text_content()
    press(page, "Tab", "Enter")
    translated(page, "ONE TWO!", "THREE FOUR")
    assert focused.get_attribute("aria-pressed") == "true"
    assert page.locator(".alternatives .score").all_text_contents() == [
        "\u22120.500",
        "\u22121.500",
        "\u22122.500",
    ]
    page.locator(".word").first.focus()
    press(page, "Escape")
    assert focused.get_attribute("id") == "source"


def test_markup_in_text_and_translation_is_shown_as_text(service, visit):
    attack = "<img src=x onerror=alert(1)> </script><script>alert(1)</script> <b>x</b>"
    page = visit(service)
    page.on("dialog", lambda dialog: visit.reports.append(dialog.message))
    page.locator("#source").fill(attack)
    translated(page, attack.upper())
    page.locator(".word").first.click()
    page.wait_for_selector(".weights")
    assert page.locator("#marks").text_content().strip() == attack
    assert page.locator("main img, main script:not([type]), main #target b").count() == 0


def test_errors_are_told_and_what_was_translated_stays(service, visit):
    page = visit(service)
    page.locator("#source").fill("fine")
    translated(page, "FINE")
    page.locator("#source").fill("fine\n" + "w " * 30)
    page.wait_for_selector("#status.problem")
    assert "has 31 tokens" in page.locator("#status").text_content()
    translated(page, "FINE")
    page.locator("#source").fill("fine again")
    translated(page, "FINE AGAIN")
    assert page.locator("#status.problem").count() == 0
    [report] = visit.reports  # Chromium's own line about the status
    assert "422" in report
    visit.reports.clear()


def test_the_page_waits_for_a_model_that_is_warming_up(visit):
    with running(ready=False) as service:
        page = visit(service)
        page.keyboard.type("one")
        page.wait_for_selector('#status:text("warming up")')
        service.engine.ready.set()
        translated(page, "ONE")
    visit.reports.clear()


def test_the_page_asks_for_a_token(visit):
    with running(token="secret") as service:
        page = visit(service)
        page.keyboard.type("one")
        page.get_by_label("Token").fill("secret")
        press(page, "Enter")
        translated(page, "ONE")
        assert page.get_by_label("Token").count() == 0
    assert all("secret" not in url for url in visit.requests)
    visit.reports.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_the_page_fits_a_phone_and_follows_the_color_scheme(service, visit, width, scheme):
    page = visit(service, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.locator("#source").fill(f"one {'long' * 40} two\nand three more words in a line")
    page.wait_for_selector("#target .line:nth-child(2) .word")
    page.locator("#target .line:nth-child(2) .word").first.click()
    page.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [page.locator(f"#{name}").bounding_box() for name in ("source", "target")]
    assert (boxes[0]["y"] == boxes[1]["y"]) == (width == 1400), "beside each other if there is room"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 28)"}[scheme]
    # The contrast of ink and background, of the chosen word too.
    for selector in ("body", ".word[aria-pressed=true]", ".alternatives b"):
        ink, paper = page.locator(selector).first.evaluate(
            """element => {
              const ink = getComputedStyle(element).color;
              let paper = "rgba(0, 0, 0, 0)";
              for (let e = element; e && paper === "rgba(0, 0, 0, 0)"; e = e.parentElement)
                paper = getComputedStyle(e).backgroundColor;
              return [ink, paper];
            }"""
        )
        assert contrast(ink, paper) >= 3.9, (selector, ink, paper)


def contrast(*colors):
    """The ratio of relative luminances (WCAG 2)."""

    def luminance(color):
        channels = [int(part) / 255 for part in color[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted(map(luminance, colors))
    return (lighter + 0.05) / (darker + 0.05)
