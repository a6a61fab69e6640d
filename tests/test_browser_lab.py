"""The lab in a real browser: every view draws, nothing is fetched from elsewhere, errors show."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.browser
BROWSER = os.environ.get("RETVAR_BROWSER")
if not BROWSER:
    pytest.skip("no browser: make browser", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
VIEWS = ("Two step sizes", "A wrong value", "A grid world", "Risk against return")


@pytest.fixture(scope="module")
def address():
    command = [sys.executable, "-m", "retvar", "lab", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split()[-1]
            process.terminate()
            assert process.wait(60) == 143  # though a page is open
        finally:
            process.kill()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield found
        found.close()


@pytest.mark.parametrize("width", [1400, 400])
def test_every_view_draws_within_the_window_and_asks_nobody_else(address, browser, width):
    page, asked = browser.new_page(viewport={"width": width, "height": 900}), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    said = ""
    for view in VIEWS:
        page.get_by_role("radio", name=view).click()
        page.wait_for_function(
            "old => ![undefined, old].includes(document.querySelector('.rv-said')?.innerText)",
            arg=said, timeout=120_000,
        )  # fmt: skip
        said = page.locator(".rv-said").inner_text()
        page.locator(".rv-charts").locator("canvas, svg").first.wait_for(timeout=120_000)
        assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("radio", name="Your own MDP").click()
    page.wait_for_selector(".rv-two img, .rv-two svg", timeout=60_000)
    home = address[: address.index("/", 8)]
    assert all(url.startswith((home, "data:", "blob:")) for url in asked)
    page.close()


def test_without_the_token_nothing_is_there(address, browser):
    page = browser.new_page()
    assert page.goto(address[: address.index("/", 8)] + "/").status == 404
    page.close()
