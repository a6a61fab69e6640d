"""The page on a running estimate: for this machine and its token alone; it changes nothing."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

import retvar as rv
from retvar.cli import main
from retvar.cli.browser import opened
from retvar.estimation.estimate import prepare
from retvar.estimation.folder import save_folder
from retvar.web import live_page, live_server
from retvar.web.live_page import LivePage
from retvar.web.live_server import LiveServer, Served
from tests.html_pages import Page
from tests.patience import patience

LAKE = ["estimate", "gymnasium:FrozenLake-v1", "--gamma", "0.9"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ask(url, path=None, method="GET", **headers):
    """Status, headers and body of an answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=patience(10))
    try:
        connection.request(method, parts.path if path is None else path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def state_of(url):
    return json.loads(ask(url + "state.json")[2])


def lake(steps=9_000):
    return prepare(rv.experience.from_gymnasium("FrozenLake-v1", steps=steps), gamma=0.9)


@pytest.fixture(scope="module")
def server():
    with LiveServer(security="default-src 'none'") as made:
        made.files[""] = Served("text/plain", b"secret")
        yield made


def test_who_has_the_token_gets_the_page(server):
    status, headers, body = ask(server.url)
    assert (status, body) == (200, b"secret")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "HEAD", "OPTIONS", "NONSENSE"])
@pytest.mark.parametrize("path", ["/", "/state.json", "/x/", "//", "/../", "*"])
def test_a_request_without_the_token_gets_a_refusal_and_nothing_else(server, method, path):
    status, _, body = ask(server.url, path, method)
    assert (status, body) == (403, b"")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path[:-2] + "/",
        lambda path: path.swapcase(),
        lambda path: path[1:],
        lambda path: "/%2e" + path,
        lambda path: path + "../" * 3 + "etc/passwd",
        lambda path: path + "unknown",
    ],
)
def test_a_wrong_token_or_a_name_that_is_not_there_gets_nothing(server, change):
    status, _, body = ask(server.url, change(urlsplit(server.url).path))
    assert (status, body) == (403, b"")


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Host": ""}, {"Origin": "http://evil.example"}]
)
def test_pages_of_other_machines_get_nothing_even_with_the_token(server, headers):
    status, _, body = ask(server.url, **headers)
    assert (status, body) == (403, b"")


def test_only_reading_is_answered(server):
    assert ask(server.url, method="POST")[0] == 403


def test_it_listens_on_loopback_alone(server):
    assert urlsplit(server.url).hostname == "127.0.0.1"
    assert server._http.socket.getsockname()[0] == "127.0.0.1"


def test_tokens_differ_and_are_long():
    with LiveServer(security="") as one, LiveServer(security="") as other:
        assert one.token != other.token
        assert len(one.token) >= 32


@contextlib.contextmanager
def connections(server, count):
    """Connections that have sent the beginning of a request."""
    address = urlsplit(server.url)
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            each = socket.create_connection((address.hostname, address.port), patience(10))
            made.append(stack.enter_context(each))
            with contextlib.suppress(OSError):
                each.sendall(b"GET /")
        yield made


def is_closed(connection):
    """Whether the other side closes it; fails if it does not in time."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_however_many_connections_wait_few_are_open_and_the_page_is_answered(monkeypatch):
    monkeypatch.setattr(live_server, "PATIENCE", patience(60))
    with LiveServer(security="") as server:
        server.files[""] = Served("text/plain", b"hello")
        with connections(server, 3 * live_server.MOST) as made:
            assert ask(server.url)[2] == b"hello"
            assert len(server._http._began) <= live_server.MOST
            assert all(map(is_closed, made[: live_server.MOST]))
            names = [thread.name for thread in threading.enumerate()]
            assert sum("process_request" in name for name in names) <= live_server.MOST + 1
        assert ask(server.url)[2] == b"hello"


def test_a_connection_that_sends_a_byte_now_and_then_is_closed_in_time(monkeypatch):
    monkeypatch.setattr(live_server, "PATIENCE", 0.2)
    with LiveServer(security="") as server, connections(server, 1) as [slow]:
        end = time.monotonic() + patience(10)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                slow.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() < end
        while server._http._began and time.monotonic() < end:
            time.sleep(0.01)
        assert not server._http._began


def test_a_port_in_use_is_reported_before_anything_is_learned(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [*LAKE, "--steps", "100", "--out", "a", "--live", "--port", str(port)]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert f"--port = {port}: is in use; give another port, or none" in result.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("words", [["--port", "8000"], ["--no-browser"]])
def test_options_of_the_page_need_it(words):
    result = CliRunner().invoke(main, [*LAKE, *words])
    assert result.exit_code == 2
    assert f"{words[0]} = " in result.stderr
    assert "only with --live" in result.stderr


def test_the_page_fills_in_and_ends_with_checks_and_report(tmp_path):
    found = lake(20_000)
    with LivePage(found) as page:
        read = Page(ask(page.url)[2].decode())
        assert not read.open
        before = state_of(page.url)
        assert (before["phase"], before["transitions"]) == ("starting", 0)
        found.learn(page.advance)
        during = state_of(page.url)
        assert (during["phase"], during["transitions"]) == ("learning", 20_000)
        save_folder(found, tmp_path / "a", formats=())
        page.finish(tmp_path / "a")
        after = state_of(page.url)
        assert after["phase"] == "done"
        assert [each["title"] for each in after["checks"]] == ["The data's own returns"]
        report = ask(page.url + after["report"])[2]
    assert report == (tmp_path / "a" / "index.html").read_bytes()
    data = found.data
    assert after["map"]["value"][0] == pytest.approx(float(data["value"][0]), rel=1e-5)
    assert after["map"]["value"][15] is None
    assert (after["map"]["rows"], after["map"]["columns"]) == (4, 4)
    assert len(after["table"]["rows"]) == 11
    curves = after["curves"]
    assert curves["at"][-1] == 20_000
    assert len(curves["states"]) == 6
    assert curves["states"][0]["label"] == "0"  # the most visited one
    assert curves["states"][0]["value"][-1] == after["map"]["value"][0]


def test_the_numbers_are_the_same_with_and_without_the_page(tmp_path):
    words = [*LAKE, "--steps", "20000", "--formats", "none"]
    for name, more in (("a", []), ("b", ["--live", "--no-browser"])):
        result = CliRunner().invoke(main, [*words, "--out", name, *more])
        assert result.exit_code == 0, result.output
        assert "http" not in result.stdout
    assert "live page: http://127.0.0.1:" in result.stderr
    assert (tmp_path / "a/estimate.csv").read_bytes() == (tmp_path / "b/estimate.csv").read_bytes()


def test_without_a_screen_the_missing_browser_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(
        main, [*LAKE, "--steps", "100", "--formats", "none", "--out", "a", "--live"]
    )
    assert result.exit_code == 0
    assert "No browser was found; open the address in one on this machine." in result.stderr


@pytest.mark.parametrize("ending", [None, OSError])
def test_the_browser_gets_a_file_that_its_owner_alone_may_read(tmp_path, monkeypatch, ending):
    """Every user sees the command lines of all: the token is not among their words."""
    given = []
    monkeypatch.setenv("BROWSER", "some")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda url: not given.append(url))
    secret = "http://127.0.0.1:1/token&x/"
    with contextlib.suppress(ending or ()), opened(secret, no_browser=False) as said:
        [path] = [Path(urlsplit(url).path) for url in given]
        assert urlsplit(given[0]).scheme == "file"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "0; url=http://127.0.0.1:1/token&amp;x/" in path.read_text()
        assert said == "A browser was asked to open the address."
        if ending is not None:
            raise ending
    assert not list(tmp_path.iterdir())


def test_without_a_folder_for_temporary_files_the_browser_is_reported_missing(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("BROWSER", "some")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with opened("http://127.0.0.1:1/token/", no_browser=False) as said:
        assert said.startswith("No browser was found")


@pytest.mark.skipif(os.name != "posix", reason="a script is the browser")
def test_the_token_is_in_no_command_line_while_the_page_is_served(tmp_path, monkeypatch):
    words, page = tmp_path / "words", tmp_path / "page"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {words}\ncp "${{1#file://}}" {page}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.setattr(webbrowser, "_tryorder", None)
    result = CliRunner().invoke(
        main, [*LAKE, "--steps", "100", "--formats", "none", "--out", "a", "--live"]
    )
    url = re.search(r"http://\S+", result.stderr)[0]
    assert url in page.read_text()
    token = urlsplit(url).path.strip("/")
    assert token not in words.read_text()
    assert not Path(words.read_text().strip().removeprefix("file://")).exists()


def test_nothing_waits_for_a_page_that_nobody_opened_or_that_was_closed(monkeypatch):
    with LiveServer(security="") as server:
        server.files["state.json"] = Served("text/plain", b"new")
        began = time.monotonic()
        server.farewell("state.json")
        assert time.monotonic() - began < 0.5
        ask(server.url + "state.json")
        server.farewell("state.json")  # it has the newest
        assert time.monotonic() - began < patience(2)
        server.files["state.json"] = Served("text/plain", b"newer")
        monkeypatch.setattr(live_server, "FAREWELL", 0.2)
        began = time.monotonic()
        server.farewell("state.json")  # the tab was closed: a moment, and no more
        assert 0.2 <= time.monotonic() - began < patience(2)


def test_an_open_page_gets_the_end():
    with LiveServer(security="") as server:
        server.files["state.json"] = Served("text/plain", b"old")
        ask(server.url + "state.json")
        server.files["state.json"] = Served("text/plain", b"new")
        got = []
        thread = threading.Timer(0.1, lambda: got.append(ask(server.url + "state.json")[2]))
        thread.start()
        server.farewell("state.json")
        thread.join()
    assert got == [b"new"]


def test_estimates_that_cannot_be_read_yet_do_not_stop_it(monkeypatch):
    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(live_page, "brief_dataset", fail)
    found = lake(100)
    with LivePage(found) as page:
        found.learn(page.advance)
        assert page.state["transitions"] == 100
        assert "table" not in page.state


def test_tables_that_take_long_are_not_followed(monkeypatch):
    monkeypatch.setattr(live_page, "MOST_STATES", 3)
    found = lake(100)
    with LivePage(found) as page:
        found.learn(page.advance)
        assert "table" not in page.state


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_the_command_as_without_the_page(tmp_path):
    words = [*LAKE, "--steps", "100000000", "--out", "a", "--live", "--no-browser"]
    with subprocess.Popen(
        [sys.executable, "-m", "retvar", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        try:
            line = next(line for line in process.stderr if "live page" in line)
            url = re.search(r"http://\S+", line)[0]
            end = time.monotonic() + patience(60)
            while not state_of(url)["transitions"] and time.monotonic() < end:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=patience(20))
        finally:
            process.kill()
    assert process.returncode == 130
    assert "The estimator is saved; continue with --resume a/estimator.safetensors" in stderr
    with pytest.raises(OSError, match="refused"):
        ask(url)
