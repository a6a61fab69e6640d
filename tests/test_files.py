"""Files appear whole or not at all, only where files belong, and leave nothing behind."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

import retvar as rv
from retvar import files
from retvar.files import write_text, write_with


def temporaries(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    def fails(temporary):
        temporary.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_with(tmp_path / "a.txt", fails)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert temporaries(tmp_path) == []


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    """Also where the target lies elsewhere, and where it does not exist yet."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(elsewhere / "target.txt")
    for text in ("one", "two"):
        write_text(link, text)
        assert link.is_symlink()
        assert (elsewhere / "target.txt").read_text() == text
    assert not (elsewhere / "target.txt").is_symlink()


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to a pipe", "no folder"])
def test_only_files_are_written(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = type(path)(os.devnull)
    elif kind == "no folder":
        path = tmp_path / "none" / "x"
    else:
        os.mkfifo(tmp_path / "pipe")
        path = tmp_path / "pipe"
        if kind != "pipe":
            (tmp_path / "link").symlink_to(path)
            path = tmp_path / "link"
    with pytest.raises(rv.InputError) as error:
        write_text(path, "text")
    wanted = {"folder": "is a folder", "no folder": "does not exist"}
    assert wanted.get(kind, "is a device or a pipe; name a file") in str(error.value)
    if kind == "device":
        assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_follows_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask


def test_the_umask_of_the_process_is_never_changed(tmp_path, monkeypatch):
    """Another thread's files would get the wrong mode for a moment."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask was called"))
    write_text(tmp_path / "a", "text")


def test_many_threads_write_one_path(tmp_path):
    texts = [str(i) * 10_000 for i in range(8)]
    threads = [threading.Thread(target=write_text, args=(tmp_path / "a", x)) for x in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_text() in texts
    assert temporaries(tmp_path) == []


def test_file_and_folder_are_synced(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(handle):
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a", "text")
    assert synced == [False, True]


def test_every_new_folder_is_synced_into_the_one_above(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    files.make_folder(tmp_path / "a" / "b" / "c")
    above = (tmp_path, tmp_path / "a", tmp_path / "a" / "b")
    assert {path.stat().st_ino for path in above} <= set(synced)


def test_a_file_that_does_not_reach_the_disk_is_not_written(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_text(tmp_path / "a.txt", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(rv.WriteError, match="No space left"):
        write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert temporaries(tmp_path) == []


HANGS = """
import sys, time, pathlib
from retvar.files import write_with
def hang(temporary):
    temporary.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
write_with(pathlib.Path(sys.argv[1]), hang)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_and_a_living_one_is_spared(tmp_path):
    path = tmp_path / "a.txt"
    writers = [
        subprocess.Popen([sys.executable, "-c", HANGS, str(path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline().strip() == b"writing"
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        assert len(temporaries(tmp_path)) == 2
        write_text(path, "whole")
        assert len(temporaries(tmp_path)) == 1
        assert f".{writers[1].pid}." in temporaries(tmp_path)[0]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    write_text(path, "again")
    assert temporaries(tmp_path) == []


def test_the_temporary_file_of_another_user_is_spared(tmp_path, monkeypatch):
    """The process exists, and this one may not signal it."""

    def forbidden(pid, number):
        raise PermissionError

    theirs = files.create_temporary(tmp_path / "a.txt")
    monkeypatch.setattr(os, "kill", forbidden)
    write_text(tmp_path / "a.txt", "whole")
    assert temporaries(tmp_path) == [theirs.name]
    files.discard(theirs)


def test_temporaries_of_other_machines_are_removed_by_age(tmp_path):
    young, old = (tmp_path / f".a-00000000.1.{token}.txt" for token in ("0" * 8, "1" * 8))
    for each in (young, old):
        each.write_text("half")
    then = time.time() - files.OLD - 60
    os.utime(old, (then, then))
    write_text(tmp_path / "a.txt", "whole")
    assert young.exists()
    assert not old.exists()


def test_other_peoples_hidden_files_are_left_alone(tmp_path):
    for name in (".a-notes.txt", ".a-", ".b-00000000.1.00000000.txt", ".a[1]-x"):
        (tmp_path / name).write_text("mine")
    write_text(tmp_path / "a.txt", "whole")
    write_text(tmp_path / "a[1].txt", "whole")
    assert len(temporaries(tmp_path)) == 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(rv.InputError, match="Permission denied"):
        write_text(tmp_path / "a", "text")


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    for name in ("a\0b", "x" * 300):
        with pytest.raises(rv.InputError, match="cannot be written"):
            write_text(tmp_path / name, "text")


def test_a_name_as_long_as_any_can_be_written(tmp_path):
    write_text(tmp_path / ("x" * 251 + ".txt"), "text")
    assert temporaries(tmp_path) == []


def test_a_folder_in_which_no_file_can_be_made_is_named_and_nothing_is_remembered(tmp_path):
    with pytest.raises(rv.InputError, match=r"--out = .*gone: cannot be written: No such file"):
        files.require_writable("--out", tmp_path / "gone")
    assert not [path for path in files.unfinished if path.parent == tmp_path / "gone"]


def test_what_is_at_a_path(tmp_path):
    file, folder, pipe = (tmp_path / name for name in ("file", "folder", "pipe"))
    file.touch()
    folder.mkdir()
    os.mkfifo(pipe)
    for link, target in (("to-file", file), ("to-nothing", "gone"), ("loop", "loop")):
        (tmp_path / link).symlink_to(target)
    names = ["file", "folder", "pipe", "to-file", "to-nothing", "gone", "file/below"]
    kinds = ["file", "folder", "device", "file", "", "", ""]
    assert [files.kind_of("path", tmp_path / name) for name in names] == kinds
    for name, problem in (("loop", "Too many levels"), ("a\0", "null"), ("a" * 300, "too long")):
        with pytest.raises(rv.InputError, match=f"--out = .*: cannot be looked at: .*{problem}"):
            files.kind_of("--out", tmp_path / name)


@pytest.mark.parametrize(
    "name", ["😀" * 60 + ".png", "a." + "b" * 240, "a\nb.nc", "a.2026-11-17", ".x"]
)
def test_any_name_can_be_written_and_its_temporaries_are_known(tmp_path, name):
    seen = []
    write_with(tmp_path / name, lambda temporary: seen.append(temporary))
    assert (tmp_path / name).exists()
    assert files.is_temporary(seen[0])


DEAD = 2**22 + 1  # larger than any process id


def test_a_write_removes_what_dead_writers_of_other_files_left_in_its_folder(tmp_path):
    """Files and folders, whatever they were for; those of living writers stay."""
    dead = [tmp_path / f".{name}-{files._host()}.{DEAD}.00000000{suffix}"
            for name, suffix in (("b", ".nc"), ("c\nd", ".2026-11-17"), ("empty", ""))]  # fmt: skip
    for path in dead:
        path.write_text("half")
    folder = tmp_path / f".sort-{files._host()}.{DEAD}.00000000"
    folder.mkdir()
    (folder / "part").write_text("half")
    living = files.create_temporary(tmp_path / "e.txt")
    write_text(tmp_path / "a.txt", "whole")
    assert temporaries(tmp_path) == [living.name]
    files.discard(living)


FOLDER = """
import sys
from retvar.files import make_temporary_folder
print(make_temporary_folder("retvar-test"), flush=True)
input()
"""


def test_the_temporary_folder_of_a_killed_process_is_removed_by_the_next(tmp_path, monkeypatch):
    words = [sys.executable, "-c", FOLDER]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": own}
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    with subprocess.Popen(words, **pipes) as one, subprocess.Popen(words, **pipes) as two:
        folders = [files.Path(each.stdout.readline().strip()) for each in (one, two)]
        for folder in folders:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            (folder / "part").write_text("rows")
        one.kill()
        one.wait()
        own_folder = files.make_temporary_folder("retvar-test")
        assert not folders[0].exists()
        assert (folders[1] / "part").exists()
        two.kill()
    files.discard(own_folder)
    assert not own_folder.exists()


def test_no_folder_for_temporary_files_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    with pytest.raises(rv.InputError, match=r"TMPDIR = .*; set TMPDIR to one"):
        files.make_temporary_folder("retvar-test")


def test_a_folder_that_cannot_be_read_is_written_all_the_same(tmp_path, monkeypatch):
    """It cannot be synced then."""
    real = os.open

    def forbidden(path, flags, *mode, **extra):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, *mode, **extra)

    monkeypatch.setattr(os, "open", forbidden)
    write_text(tmp_path / "a.txt", "whole")
    files.make_folder(tmp_path / "b")
    monkeypatch.undo()
    assert (tmp_path / "a.txt").read_text() == "whole"
    assert (tmp_path / "b").is_dir()
