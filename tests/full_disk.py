"""Every kind of write on a disk that is full, in a process that has such a disk: a small tmpfs.

``python -m tests.full_disk FOLDER`` mounts it, for itself alone, and prints what happened as JSON:
for each kind and each number of free pages the error, and which files were left. It ends with
status 77 where it may not mount.
"""

import contextlib
import ctypes
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

PAGE = 4096
SIZE = 600  # pages
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
FREE = (0, 1, 3, 7) if os.environ.get("RETVAR_SOAK") else (0, 1)  # pages


def mount(folder: Path, pages: int = SIZE) -> None:
    """Mount a tmpfs that this process alone sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    user = os.getuid(), os.getgid()
    if libc.unshare(NEW_MOUNTS) and libc.unshare(NEW_USER | NEW_MOUNTS):
        sys.exit(77)
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user[0]} 1")
        Path("/proc/self/gid_map").write_text(f"0 {user[1]} 1")
    private = 1 << 18 | 1 << 14  # recursively: other processes do not see the mount
    libc.mount(b"none", b"/", None, private, None)
    size = f"size={pages * PAGE}".encode()
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, size):
        sys.exit(77)


def kinds(disk: Path) -> dict:
    """Each kind of write: a function of the path."""
    import numpy as np
    import pyarrow as pa
    import xarray

    import retvar as rv
    from retvar import cache, files
    from retvar.estimation.folder import ESTIMATOR, write_data
    from retvar.experience import arrangement, from_gymnasium, from_table, write_table
    from retvar.report.output_folder import OutputFolder
    from retvar.sweep import Store, save

    numbers = xarray.Dataset({"x": ("n", np.random.default_rng(1).random(4_000))})
    lake = from_gymnasium("FrozenLake-v1", steps=3_000)
    found = rv.estimate(lake, gamma=0.9)
    online = rv.Direct(gamma=0.9, alpha=0.1).online(2_000)
    figure = rv.plots.draw_mdp(rv.domains.chain())
    store = Store.open(disk.parent / "store")

    def compile_one(path: Path) -> None:
        import numba

        from retvar.jit import compiled

        numba.config.CACHE_DIR = str(path.parent)
        assert compiled(lambda x: x + 1, key=str(os.statvfs(disk).f_bavail))(1) == 2

    def times(path: Path) -> None:
        folder = OutputFolder(path.parent)
        folder.times = {f"simulation {k}": 1.0 for k in range(1_000)}
        folder.record_time("another", 1.0)

    def sort(path: Path) -> None:
        tempfile.tempdir, arrangement.RUN_ROWS = str(path.parent), 1_000
        number = np.arange(5_000)
        rows = {"state": number % 7, "reward": 0.5 * number, "terminated": 0 * number,
                "who": number % 50, "when": number}  # fmt: skip
        log = from_table(pa.table(rows), entity="who", time="when")
        assert sum(len(chunk["reward"]) for chunk in log.chunks()) == 5_000 - 50  # last rows

    return {
        "text.txt": lambda path: files.write_text(path, "long " * 4_000),
        "classic.nc": lambda path: cache.write(path, numbers, "key", classic=True),
        "netcdf4.nc": lambda path: cache.write(path, numbers, "key"),
        "online.safetensors": lambda path: online.save(path),
        "estimator.safetensors": lambda path: found.save(path),
        "estimate.nc": lambda path: write_data(found.data, path.with_name(ESTIMATOR)),
        "figure.png": lambda path: rv.plots.save(figure, path),
        "figure.svg": lambda path: rv.plots.save(figure, path),
        "figure.pdf": lambda path: rv.plots.save(figure, path),
        "log.parquet": lambda path: write_table(lake, path),
        "mdp.toml": lambda path: rv.domains.random_walk(300).to_toml(path),
        "collected.nc": lambda path: save(store, path),
        "collected.parquet": lambda path: save(store, path),
        "manifest.json": lambda path: files.write_new(path, "long " * 4_000),
        "times.json": times,
        "compiled code": compile_one,
        "temporary folder": sort,
    }


def attempt(write, path: Path) -> dict:
    """Write once: the error's type and text, and the files that are there afterwards."""
    from retvar.errors import RetvarError

    before = {file.name for file in path.parent.iterdir()}
    said, kind = "", ""
    try:
        write(path)
    except RetvarError as error:
        said, kind = str(error), "typed"
    except BaseException as error:
        said, kind = repr(error), "untyped"
    left = sorted({file.name for file in path.parent.iterdir()} - before)
    return {"kind": kind, "said": said, "left": left}


def fill(ballast: Path, disk: Path, free: int) -> None:
    """Leave so many pages of the disk free."""
    left = os.statvfs(disk).f_bavail - free
    with ballast.open("ab") as file:
        file.write(b"x" * PAGE * left)


def full_store(disk: Path) -> dict:
    """A sweep on a disk that becomes full stops; with room it goes on where it stopped."""
    from retvar.sweep import Local, Store, operations
    from tests.sweeping import small

    sweep, ballast = small(count=2, runs=4), disk / "ballast"
    fill(ballast, disk, 6)
    found = attempt(lambda path: operations.run(sweep, path, Local(threads=1)), disk / "store")
    store = Store.open(disk / "store")
    before = operations.status(store)
    hidden = [str(path) for path in (disk / "store").rglob(".*")]
    leases = [path.name for path in (disk / "store" / "leases").iterdir()]
    ballast.unlink()
    after = operations.run(sweep, disk / "store", Local(threads=1))
    return found | {
        "left": hidden + leases, "done": before.done, "damaged": before.damaged,
        "computed": after.computed, "cells": after.cells,
        "digest": after.digest == Store.open(disk.parent / "store").digest(),
    }  # fmt: skip


def main() -> None:
    disk = Path(sys.argv[1]) / "disk"
    disk.mkdir()
    mount(disk)
    os.environ["RETVAR_TEST_LENGTH"] = "10"
    found = {}
    for name, write in kinds(disk).items():
        for free in FREE:
            folder = disk / "folder"
            folder.mkdir(exist_ok=True)
            fill(disk / "ballast", disk, free)
            found[f"{name}, {free}"] = attempt(write, folder / name)
            (disk / "ballast").unlink()
        again = attempt(write, folder / name)
        whole = (folder / name).exists() and (folder / name).stat().st_size > PAGE
        found[f"{name}, room"] = again | {"whole": whole}
        shutil.rmtree(folder)
    found["store"] = full_store(disk)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
