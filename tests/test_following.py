"""Logs that grow: only complete lines and whole files are read, and every change is noticed."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import retvar as rv
from retvar.errors import InputError, SourceError
from retvar.estimation.tabular import TabularEstimator
from retvar.experience import Growing, from_table
from tests.patience import patience

HEADER = "state,reward,next_state,terminated\n"


def line(rng):
    return f"{rng.integers(3)},{rng.normal():.3f},{rng.integers(3)},{int(rng.random() < 0.2)}\n"


def following(path, events, **columns):
    """Follow a log to which the next event is applied at each look; the log ends with them."""
    left = list(events)

    def wait():
        if left:
            left.pop(0)()
            return True
        return False

    return from_table(Growing(path, wait=wait), **columns)


def append(path, text):
    def event():
        with path.open("a") as file:
            file.write(text)

    return event


@pytest.mark.parametrize("infer", [False, True])
def test_a_file_that_grows_gives_the_same_answer_as_the_whole_file(tmp_path, infer):
    """Lines arrive in pieces of any length; without next states rows are linked across pieces."""
    rng = np.random.default_rng(0)
    text = "".join(line(rng) for _ in range(400))
    cuts = [0, *sorted(rng.choice(len(text), 30, replace=False)), len(text)]
    path, whole = tmp_path / "log.csv", tmp_path / "whole.csv"
    path.write_text(HEADER + line(rng))
    whole.write_text(path.read_text() + text)
    columns = {"next_state": None} if infer else {}
    events = [append(path, text[a:b]) for a, b in itertools.pairwise(cuts)]
    settings = {"gamma": 0.9, "by": "least_squares"}
    seen = []
    for last in rv.follow(following(path, events, **columns), **settings):
        seen.append(last.estimator.steps)
    once = rv.estimate(from_table(whole, **columns), **settings)
    assert seen == sorted(seen)
    assert len(seen) > 10
    np.testing.assert_allclose(last.value(), once.value(), rtol=1e-12)
    np.testing.assert_allclose(last.std(), once.std(), rtol=1e-12)
    assert last.experience.counts == once.experience.counts


def test_half_a_line_is_left_for_later(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "0,1,1,0\n1,2,")
    log = following(path, [append(path, "2,1\n0,"), lambda: None])
    assert [t.reward for t in log] == [1.0, 2.0]


def change(path, how):
    def event():
        if how == "cut":
            path.write_text(HEADER)
        elif how == "replace":
            other = path.with_name("other.csv")
            other.write_text(path.read_text() + "0,1,1,0\n")
            other.rename(path)
        elif how == "rewrite":
            with path.open("r+") as file:
                file.write(HEADER + "2,9,1,0\n0,1,1,0\n0,1,1,0\n")
        else:
            path.unlink()

    return event


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "cut from 43 to 35 bytes"),
        ("replace", "replaced by another file"),
        ("rewrite", "lines that were read have changed"),
        ("remove", "No such file"),
    ],
)
def test_a_file_that_changes_behind_the_reader_is_an_error_that_keeps_what_was_learned(
    tmp_path, how, message
):
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "0,1,1,0\n")
    log = following(path, [change(path, how)])
    with pytest.raises(SourceError, match=message) as caught:
        list(rv.follow(log, gamma=0.9, by="least_squares"))
    assert caught.value.estimate.estimator.steps == 1


def table(first, rows):
    state = np.arange(first, first + rows) % 3
    return pa.table({"state": state, "reward": np.arange(rows) * 1.0, "next_state": (state + 1) % 3,
                     "terminated": np.arange(rows) == rows - 1})  # fmt: skip


def test_new_files_of_a_folder_are_read_once_they_are_complete(tmp_path, caplog):
    pq.write_table(table(0, 4), tmp_path / "0.parquet")
    whole = tmp_path / "whole"
    pq.write_table(table(1, 5), whole)
    data = whole.read_bytes()
    events = [
        lambda: (tmp_path / "1.parquet").write_bytes(data[:50]),
        lambda: (tmp_path / "1.parquet").write_bytes(data),
        lambda: (tmp_path / "notes.txt").write_text("no log"),
    ]
    seen = [
        found.estimator.steps
        for found in rv.follow(following(tmp_path, events), gamma=0.9, by="least_squares")
    ]
    assert seen == [4, 9]
    assert "1.parquet is not read yet" in caplog.text


def test_a_file_of_a_folder_that_changes_is_an_error(tmp_path):
    pq.write_table(table(0, 4), tmp_path / "0.parquet")
    log = following(tmp_path, [lambda: pq.write_table(table(0, 9), tmp_path / "0.parquet")])
    with pytest.raises(SourceError, match=r"0\.parquet has changed after it was read"):
        list(rv.follow(log, gamma=0.9))


@pytest.mark.parametrize("name", ["log.parquet", "log.csv.gz"])
def test_files_that_cannot_grow_are_refused(tmp_path, name):
    pq.write_table(table(0, 4), tmp_path / name)
    with pytest.raises(InputError, match="cannot grow"):
        from_table(Growing(tmp_path / name))
    with pytest.raises(InputError, match="there is no such file yet"):
        from_table(Growing(tmp_path / "*.csv"))


def test_the_command_follows_a_log_until_it_is_interrupted(tmp_path):
    """Exit status 130, with everything saved that had arrived."""
    path, rng = tmp_path / "log.csv", np.random.default_rng(0)
    path.write_text(HEADER + "".join(line(rng) for _ in range(200)))
    words = [
        sys.executable, "-m", "retvar", "estimate", str(path), "--gamma", "0.9", "--follow",
        "--by", "least_squares", "--every", "0.1", "--formats", "none", "--rows", "1",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    program = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    watchdog = threading.Timer(patience(60), program.kill)
    watchdog.start()
    assert program.stdout is not None
    files = 0
    for text in program.stdout:
        files += text.startswith("written:")
        if re.search("(199|200) transitions", text):  # the last row may wait for the next
            append(path, "".join(line(rng) for _ in range(100)))()
        if re.search("(299|300) transitions", text):
            break
    program.send_signal(signal.SIGINT)
    rest, errors = program.communicate()
    watchdog.cancel()
    assert files + rest.count("written:") <= 2  # of three or more rounds: the first and the last
    assert program.returncode == 130, errors
    data = TabularEstimator.load(tmp_path / "out" / "estimator.safetensors")
    assert data.steps == 300
    again = subprocess.run(
        [*words[:5], "--follow", "--resume", str(tmp_path / "out" / "estimator.safetensors"),
         "--out", str(tmp_path / "again")],
        capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert again.returncode == 2
    assert "its rows would count twice" in again.stderr


BAD = {
    "empty": b"",
    "no line": b"state,reward,terminated",
    "long header": b"a" * 2_000_000 + b"\n0,1,0\n",
    "long line": HEADER.encode() + b"0" * (5 << 20) + b",1,1,0\n",
    "UTF-16": HEADER.encode("utf-16") + "0,1,1,0\n".encode("utf-16-le"),
    "twice": b"state,state,reward,terminated\n0,0,1,0\n",
    "semicolons": b"state;reward;terminated\n0;1;0\n",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_is_refused_alike_whether_it_is_followed_or_read(tmp_path, kind):
    path = tmp_path / "log.csv"
    path.write_bytes(BAD[kind])
    for given in (path, Growing(path, wait=lambda: False)):
        with pytest.raises(InputError):
            from_table(given)


def test_a_line_that_is_too_long_ends_the_log_and_keeps_what_was_learned(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "0,1,1,0\n1,2,0,1\n")
    log = following(path, [append(path, "0" * (5 << 20) + ",1,1,0\n")])
    with pytest.raises(SourceError, match="too long") as caught:
        list(rv.follow(log, gamma=0.9, by="least_squares"))
    assert caught.value.estimate.estimator.steps == 2


def test_a_link_to_nothing_in_a_folder_is_not_read_yet(tmp_path, caplog):
    pq.write_table(table(0, 4), tmp_path / "0.parquet")
    (tmp_path / "1.parquet").symlink_to(tmp_path / "nothing")
    log = following(tmp_path, [lambda: None])
    assert len(list(log)) == 4
    assert "1.parquet is not read yet" in caplog.text
