"""`retvar lab` in a real browser: play, drag, read numbers off the page; `make browser` runs this.

Every test waits for what must happen, not for a time. The browser may reach nothing but the lab,
and what it asks of other hosts is recorded.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.patience import patience

playwright = pytest.importorskip("playwright.sync_api", reason="playwright: make browser")
pytest.importorskip("marimo", reason="marimo: make browser")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = os.environ.get("RETVAR_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
]
LAB = [sys.executable, "-m", "retvar", "lab", "--no-browser"]
STEP = "After ([0-9,]+) steps"


def limit() -> float:
    """Milliseconds after which what must happen has not; before pytest's own limit."""
    return 1_000 * min(patience(60), 240)


@contextmanager
def lab(*options):
    """The program while it runs, and the address that it prints."""
    process = subprocess.Popen([*LAB, *options], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("retvar lab: http://127.0.0.1:"), (line, process.poll())
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def server():
    with lab() as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        options = ["--no-sandbox", "--disable-background-networking"]
        started = engine.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


@pytest.fixture
def page(browser, server):
    """The lab, shown; whatever it asks of other hosts fails the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(limit())
    asked, failed = [], []
    context.on("request", lambda request: asked.append(request.url))
    shown = context.new_page()
    shown.on("websocket", lambda made: asked.append(made.url))
    shown.on("pageerror", lambda error: failed.append(str(error)))
    shown.goto(server)
    shown.wait_for_selector(".rv-said")
    yield shown
    context.close()
    hosts = {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(server).netloc}
    assert failed == []


def until(page, condition, argument=None):
    """Wait for a JavaScript condition on the text of the page and an argument."""
    body = f"(x) => {{ const text = document.body.innerText; return {condition}; }}"
    page.wait_for_function(body, arg=argument, timeout=limit())


def numbers(page) -> dict[str, list[float]]:
    """The table of a view: numbers by the first cell of their row."""
    rows = page.locator(".rv-numbers tbody tr").all_inner_texts()
    found = {}
    for row in rows:
        name, *cells = row.split("\t")
        found[name] = [float(cell.replace("−", "-").replace(",", "") or "nan") for cell in cells]
    return found


def slider(page, label: str):
    """The slider with this label."""
    return page.locator("marimo-slider").filter(has_text=re.compile(f"^{label}")).first


def drag(page, label: str, share: float) -> None:
    """Drag the handle of a slider to a share of the controls' width, in small moves."""
    handle = slider(page, label).get_by_role("slider").bounding_box()
    whole = page.locator("[data-cell-name=controls]").bounding_box()
    y = handle["y"] + handle["height"] / 2
    page.mouse.move(handle["x"] + handle["width"] / 2, y)
    page.mouse.down()
    page.mouse.move(whole["x"] + share * whole["width"], y, steps=8)
    page.mouse.up()


def set_to(page, label: str, value: float) -> None:
    """Move a slider to a value with the keyboard."""
    found, handle = slider(page, label), slider(page, label).get_by_role("slider")
    goal = json.loads(found.get_attribute("data-steps")).index(value)
    now = int(handle.get_attribute("aria-valuenow"))
    for k in range(abs(goal - now)):
        handle.press("ArrowRight" if goal > now else "ArrowLeft")
        reached = now + (k + 1 if goal > now else -k - 1)
        playwright.expect(handle).to_have_attribute("aria-valuenow", str(reached))


def finish(page) -> None:
    """Press play, and wait for the end."""
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Play").wait_for()


# ---------------------------------------------------------------------- the view of learning


def test_play_moves_the_estimates_and_pause_keeps_them(page):
    page.get_by_role("button", name="Play").click()
    until(page, "/After [1-9][0-9,]* steps/.test(text)")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Play").wait_for()
    kept = page.inner_text(".rv-said")
    page.get_by_role("button", name="Step").click()
    until(page, "document.querySelector('.rv-said').innerText !== x", kept)
    before, after = (int(re.search(STEP, text)[1].replace(",", "")) for text in
                     (kept, page.inner_text(".rv-said")))  # fmt: skip
    assert after - before == 50  # 2,000 steps in 40 frames
    page.get_by_role("button", name="Reset").click()
    until(page, "text.includes('Press play')")


def test_sliders_work_while_it_plays_and_vtd_parts_from_direct(page):
    """The central picture: α leaves ᾱ, and VTD's error rises above direct's."""
    page.get_by_role("button", name="Play").click()
    until(page, "/After [1-9][0-9,]* steps.*nearly the same/.test(text)")
    drag(page, "α", 0.7)
    until(page, "/VTD's is [0-9.]+ times larger/.test(text)")
    page.get_by_role("button", name="Play").wait_for()  # at the end
    until(page, "text.includes('After 2,000 steps')")
    found = numbers(page)
    assert found["VTD"][2] > 2 * found["direct"][2]  # measured
    assert found["VTD"][3] > 2 * found["direct"][3]  # expected
    assert found["exact"][0] == 3.00


def test_the_errors_on_the_page_are_those_of_the_library(page):
    import retvar as rv

    set_to(page, "α", 0.2)
    finish(page)
    until(page, "text.includes('After 2,000 steps')")
    found, mdp = numbers(page), rv.domains.chain()
    learners = {
        "direct": rv.Direct(alpha=0.2, alpha_bar=0.02), "VTD": rv.VTD(alpha=0.2, alpha_bar=0.02)
    }  # fmt: skip
    curve = rv.expected_curve(mdp, learners, steps=2_000, record=[2_000]).isel(step=0)
    data = rv.simulate(mdp, learners, steps=2_000, runs=20, seed=0, keep="runs", record=[2_000])
    errors = ((data.variance - data.true_variance) ** 2).mean(["run", "state", "step"]) ** 0.5
    for name in learners:
        expected = float(curve.variance_mse.sel(learner=name).mean() ** 0.5)
        assert found[name][3] == pytest.approx(expected, rel=0.006)  # three digits
        assert found[name][2] == pytest.approx(float(errors.sel(learner=name)), rel=0.006)


def test_vtd_and_direct_meet_again_when_alpha_returns(page):
    finish(page)
    set_to(page, "α", 0.2)
    until(page, "/VTD's is [0-9.]+ times larger/.test(text)")
    set_to(page, "α", 0.02)
    until(page, "text.includes('nearly the same')")
    assert "and they cancel" in page.inner_text(".rv-said")


def test_another_domain_brings_its_states_and_other_discounts(page):
    page.locator("marimo-dropdown").first.get_by_role("combobox").select_option("complex-mdp")
    until(page, "text.includes('variance of s3')")
    finish(page)
    found = numbers(page)
    assert found["exact"][0] == pytest.approx(0.238, abs=5e-4)
    assert abs(found["direct"][0] - 0.238) < 0.1


def test_while_the_page_computes_it_says_so_in_place_of_old_results(page):
    """The page marks an output whose cell runs; here the test does, however fast the machine is."""
    area = "document.querySelector('[data-cell-name=screen] .output-area')"
    until(page, f"{area}")
    page.evaluate(f"{area}.classList.add('marimo-output-loading')")
    until(page, f"getComputedStyle({area}, '::before').visibility === 'visible'")
    assert "Computing" in page.evaluate(f"getComputedStyle({area}, '::before').content")
    shown = page.locator("[data-cell-name=screen] .output").first
    until(page, f"getComputedStyle({area}.querySelector('.output')).visibility === 'hidden'")
    page.evaluate(f"{area}.classList.remove('marimo-output-loading')")
    until(page, f"getComputedStyle({area}.querySelector('.output')).visibility === 'visible'")
    assert shown.is_visible()


def test_a_small_step_size_is_written_without_an_exponent(page):
    set_to(page, "α", 0.00398)
    beside = "getComputedStyle(document.querySelector('.rv-at-alpha'), '::after').content"
    until(page, f"{beside} === '\"0.00398\"'")


def test_the_code_can_be_copied_and_gives_the_numbers_of_the_page(page, tmp_path, monkeypatch):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    set_to(page, "α", 0.1)
    finish(page)
    page.get_by_text("The Python that makes this").click()
    shown = page.locator("pre:visible").filter(has_text="alpha=0.1, alpha_bar=0.02")
    shown.hover()
    page.get_by_label("Copy to clipboard").last.click()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.strip() == shown.inner_text().replace("\u00a0", " ").strip()
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(text, names)
    found = numbers(page)
    for name, label in (("direct", "direct"), ("vtd", "VTD")):
        assert float(names["error"].sel(learner=name)) == pytest.approx(found[label][2], rel=0.006)


# ---------------------------------------------------------------------- the view of the bias


def test_the_error_slider_shows_the_closed_form_of_the_bias(page):
    """In the last state of the chain the return is N(1, 1): e² for direct, −e² − 2e for VTD."""
    page.get_by_role("tab", name="A wrong value").click()
    until(page, "text.includes('The value is frozen')")
    for error in (0.25, 0.1, -0.2):
        set_to(page, "error", error)
        e = 4 * error
        until(page, "text.includes(x)", f"wrong by {e:.3g}".replace("-", "−"))
        found = numbers(page)
        assert found["direct"][2] == pytest.approx(e * e, abs=0.006)
        assert found["VTD"][2] == pytest.approx(-e * e - 2 * e, abs=0.006)
        assert found["centred"][2] == 0
    finish(page)
    found = numbers(page)
    for name in ("direct", "VTD", "centred"):
        assert found[name][0] == pytest.approx(found[name][1], abs=0.25)  # learned, theory


# ---------------------------------------------------------------------- tabs, themes, widths


def test_a_closed_tab_changes_nothing(browser, server, page):
    other = browser.new_context()
    closed = other.new_page()
    closed.goto(server)
    closed.wait_for_selector(".rv-said", timeout=limit())
    closed.get_by_role("button", name="Play").click()
    other.close()
    finish(page)
    assert "After 2,000 steps" in page.inner_text(".rv-said")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_page_and_its_colours_follow_the_theme(
    browser, server, width, scheme
):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    shown = context.new_page()
    shown.goto(server)
    shown.wait_for_selector(".rv-chart svg", timeout=limit())
    app = "document.querySelector('#App')"
    assert shown.evaluate(f"{app}.scrollWidth <= {app}.clientWidth")
    ink = shown.evaluate("getComputedStyle(document.querySelector('.rv-lab')).color")
    paper = shown.evaluate(f"getComputedStyle({app}).backgroundColor")
    assert (lightness(ink) < lightness(paper)) == (scheme == "light"), (ink, paper)
    context.close()


def lightness(colour: str) -> float:
    """Of ``rgb(34, 34, 34)`` or ``color(srgb 1 1 1)``, between 0 and 1."""
    parts = [float(x) for x in re.findall(r"[0-9.]+", colour)[:3]]
    return sum(parts) / 3 / (255 if colour.startswith("rgb") else 1)


# ---------------------------------------------------------------------- who is answered


def status(url: str, path: str, **headers: str) -> tuple[int, bytes]:
    """Status and body of a request for another path of the same server."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=patience(20))
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_request_without_the_token_gets_a_refusal_and_nothing_else(server):
    token = urlsplit(server).path.strip("/")
    said, page = status(server, f"/{token}/")
    assert said == 200
    assets = re.findall(rb'(?:src|href)="\./?([^"]+)"', page)
    assert assets
    with_token = status(server, f"/{token}/{assets[0].decode()}")
    assert with_token[0] == 200
    for path in (
        "/",
        "/health",
        "/api/status",
        "/api/version",
        "/openapi.json",
        "/ws",
        "/@file/x",
        "/auth/login",
        f"/{token[:-1]}/",
        "/x/",
        *(f"/{a.decode()}" for a in assets[:5]),
    ):
        found = status(server, path)
        assert found[0] == 403, path
        assert found[1].startswith(b"retvar lab: open the address")
        assert token.encode() not in found[1]
    assert status(server, f"/{token}/", Host="evil.example")[0] == 403
    assert status(server, f"/{token}/", Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize("known", [False, True])
def test_a_websocket_needs_the_token(server, known):
    parts = urlsplit(server)
    prefix = parts.path if known else "/"
    request = (
        f"GET {prefix}ws?session_id=s_abcdef HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port), timeout=patience(20)) as raw:
        raw.sendall(request.encode())
        line = raw.recv(65536).split(b"\r\n")[0]
    assert line.split()[1] == (b"101" if known else b"403")


# ---------------------------------------------------------------------- the program


def test_a_port_in_use_is_reported_with_its_remedy():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*LAB, "--port", str(port)], capture_output=True, text=True, timeout=patience(60)
        )
    assert done.returncode == 2
    assert f"--port = {port}: is in use; give another port" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_lab_and_leaves_nothing(number, browser, tmp_path, monkeypatch):
    """While a page plays; what marimo remembers is in no folder of the user's settings."""
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    with lab() as (process, url):
        context = browser.new_context()
        shown = context.new_page()
        shown.goto(url)
        shown.wait_for_selector(".rv-said", timeout=limit())
        shown.get_by_role("button", name="Play").click()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert not children.exists() or not children.read_text().split()
        process.send_signal(number)
        assert process.wait(patience(2)) == 128 + number
        context.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_where_there_is_no_screen_the_lab_says_so():
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    bare = {k: v for k, v in os.environ.items() if k not in screens}
    words = [word for word in LAB if word != "--no-browser"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=bare) as process:  # fmt: skip
        try:
            assert "No browser was found;" in process.stderr.readline()
        finally:
            process.kill()
