"""Commands that write, killed at random moments: what is there is whole, and a restart ends right.

In `make soak` 200 kills by SIGKILL over all commands; in `make test` a few.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import xarray

import retvar as rv
from retvar import cache, files
from tests import killing
from tests.oracle import SOAK, fresh_seed

KILLS = {"sweep": 34, "collect": 34, "estimate": 34, "rollouts": 30, "reproduce": 34,
         "checkpoint": 34}  # fmt: skip
SHARE = {"estimate": 1, "reproduce": 1, "checkpoint": 1}
ROUND = 5  # kills before the command may end


def digest_of(path: Path) -> str:
    """A digest of what a file says; an error if it is not whole."""
    if path.suffix == ".nc":
        footer = cache.footer_of(path)
        if footer is not None:
            return footer.contents
        with xarray.open_dataset(path, engine="h5netcdf") as data:
            return cache.contents(data.load())
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        raw = repr(pq.read_table(path).to_pydict()).encode()
    elif path.suffix == ".json":
        return str(type(json.loads(path.read_text())))  # run times differ
    elif path.suffix in (".html", ".md"):
        return path.read_text(encoding="utf-8")[-8:]  # those of the page, too
    else:
        raw = path.read_bytes()
    return hashlib.sha256(raw).hexdigest()


def written(folder: Path, printed: Path) -> dict[str, str]:
    """Digests of all files that a command made, by name; of pages and times only whether whole."""
    kept = (path for path in sorted(folder.rglob("*")) if path.is_file() and path != printed)
    return {
        str(path.relative_to(folder)): digest_of(path)
        for path in kept
        if not files.is_temporary(path) and path.parent.name != "leases" and path.name[0] != "."
    }


def completed(words, printed: Path) -> None:
    process = killing.started(words, printed)
    process.join()
    assert process.exitcode == 0, printed.read_text()


def make_folder(command: str, folder: Path):
    """The words of a command, with what it needs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if command == "collect":
        completed(killing.words_of("sweep", folder), folder / "printed")
    return killing.words_of(command, folder)


def check_whole(command: str, folder: Path, expected: dict[str, str]) -> None:
    """Whatever is there is as in the end; a checkpoint is one of some earlier step."""
    found = written(folder, folder / "printed")
    if command == "checkpoint":
        for name in found:
            if name.endswith(".safetensors"):
                assert rv.load(folder / name).steps % killing.CHUNK == 0
    else:
        assert found.items() <= expected.items()


def killed_and_restarted(command: str, root: Path, kills: int) -> int:
    """Kill a command again and again; the number of kills that came in time."""
    rng, whole, folder = random.Random(seed := fresh_seed()), root / "whole", root / "killed"
    words = make_folder(command, whole)
    completed(words, whole / "printed")  # the first one starts what forks them
    shutil.rmtree(whole)
    words, began = make_folder(command, whole), time.monotonic()
    completed(words, whole / "printed")
    took = time.monotonic() - began
    expected, said = written(whole, whole / "printed"), (whole / "printed").read_text()
    words, done, tries = make_folder(command, folder), 0, 0
    while done < kills and tries < 4 * kills + 10:
        process, tries = killing.started(words, folder / "printed"), tries + 1
        time.sleep(rng.uniform(0.0, took))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        in_time = process.exitcode == -signal.SIGKILL
        done, took = (
            done + in_time,
            took if in_time else 0.9 * took,
        )  # the machine has become faster
        check_whole(command, folder, expected)
        if tries % ROUND == 0 or done >= kills:
            completed(words, folder / "printed")
            assert written(folder, folder / "printed") == expected, f"RETVAR_SEED={seed}"
            if command == "rollouts":
                assert (folder / "printed").read_text() == said
            assert not [path for path in folder.rglob(".*") if path.is_file()]
            words = make_folder(command, folder)
    return done


@pytest.mark.soak
@pytest.mark.parametrize("command", killing.COMMANDS)
def test_a_command_killed_at_random_moments_ends_with_the_same_files(command, tmp_path):
    kills = KILLS[command] if SOAK else SHARE.get(command, 0)
    if not kills:
        pytest.skip("run by make soak")
    done = killed_and_restarted(command, tmp_path, kills)
    assert done == kills, "the kills came too late"
