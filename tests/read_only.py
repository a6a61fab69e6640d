"""Commands where nothing but the working folder can be written: neither installation nor caches.

``python -m tests.read_only FOLDER COMMANDS`` makes the whole file system read-only, for itself
alone, but for a folder in memory, and runs the commands in the JSON file COMMANDS in it. It ends
with status 77 where it may not mount.
"""

import contextlib
import ctypes
import json
import os
import sys
from pathlib import Path

from tests.full_disk import mount

PAGES = 20_000
READ_ONLY = 0x1 | 0x20 | 0x1000  # of the mount that is there: remount, bind


def main() -> None:
    disk, words = Path(sys.argv[1]) / "disk", json.loads(Path(sys.argv[2]).read_text())
    disk.mkdir()
    mount(disk, PAGES)
    if ctypes.CDLL(None, use_errno=True).mount(b"none", b"/", None, READ_ONLY, None):
        sys.exit(77)
    with contextlib.suppress(OSError):  # the test looks whether it is there
        (Path(__file__).parent / "written").touch()
    os.chdir(disk)
    from retvar.cli import main as retvar

    for line in words:
        retvar(line, standalone_mode=False)
    found = sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path.is_file())
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
