# SPDX-License-Identifier: Apache-2.0
"""Open pages in a browser and fail on anything that a page must not do.

These are requests, errors, and violations of the page's policy.
"""

import contextlib
import itertools
import shutil

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright; continuous integration has it"
    )
    if BROWSER is None:
        pytest.skip("no browser; continuous integration has one")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"], timeout=120_000
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def opening(browser, is_allowed):
    """A function that opens pages: (address, options of the browser's context) -> the page.

    It records `requests` and `reports`. At the end there must have been no request to an address
    that `is_allowed` rejects, and no error.
    """
    contexts = []

    def open_page(address, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: open_page.requests.append(request.url))
        page.on("pageerror", lambda error: open_page.reports.append(str(error)))
        page.on("console", lambda message: open_page.reports.append(message.text))
        page.goto(address)
        return page

    open_page.requests, open_page.reports = [], []
    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in open_page.requests if not is_allowed(url)] == []
    assert open_page.reports == []


@pytest.fixture
def show(browser, tmp_path):
    """Open the text of a page: (text, options of the browser's context) -> the page.

    At the end of the test, there must have been no request except for the page, and no error.
    """
    numbers = itertools.count()

    def show(text, **options):
        path = tmp_path / f"page{next(numbers)}.html"
        path.write_text(text, encoding="utf-8")
        shown = open_page(path.as_uri(), **options)
        open_page.requests.remove(path.as_uri())
        return shown

    with opening(
        browser, lambda url: url == "about:srcdoc" or url.startswith("data:")
    ) as open_page:
        yield show


def cells(shown, table=0):
    """The rows of a table, without the header."""
    return (
        shown.locator("table")
        .nth(table)
        .evaluate(
            "table => [...table.tBodies[0].rows].map(row => [...row.cells].map(c => c.textContent))"
        )
    )


def announced(shown, index=0):
    """The text that screen readers announce."""
    return shown.locator("[aria-live=polite]").nth(index).text_content()


def press(shown, *keys):
    """Press keys one after the other."""
    for key in keys:
        shown.keyboard.press(key)


def isolated(token):
    return f"\u2068{token}\u2069"
