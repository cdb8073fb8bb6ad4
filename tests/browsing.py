# SPDX-License-Identifier: Apache-2.0
"""Open pages in a browser and fail on anything that a page must not do.

These are requests, errors, and violations of the page's policy.
"""

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


@pytest.fixture
def show(browser, tmp_path):
    """Open the text of a page: (text, options of the browser's context) -> the page.

    At the end of the test, there must have been no request except for the page, and no error.
    """
    contexts, requests, reports = [], [], []

    def show(text, **options):
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(**options))
        shown = contexts[-1].new_page()
        shown.set_default_timeout(60_000)
        shown.on("request", lambda request: requests.append(request.url))
        shown.on("pageerror", lambda error: reports.append(str(error)))
        shown.on("console", lambda message: reports.append(message.text))
        shown.goto(path.as_uri())
        requests.remove(path.as_uri())
        return shown

    yield show
    for context in contexts:
        context.close()
    assert [url for url in requests if url != "about:srcdoc" and not url.startswith("data:")] == []
    assert reports == []


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
