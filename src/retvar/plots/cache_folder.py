"""Where matplotlib cannot write a folder of its own, it gets a temporary one of retvar's.

It would make one itself, with a warning, and leave it behind when the program is ended by a signal.
Imported before matplotlib.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from retvar.errors import InputError
from retvar.files import discard, make_temporary_folder, require_writable

__all__ = ["provide_folder"]


def provide_folder() -> None:
    """Set ``MPLCONFIGDIR`` to a temporary folder where matplotlib can write nowhere else.

    >>> provide_folder()  # matplotlib is loaded already, or has a folder
    """
    if "matplotlib" not in sys.modules and not _has_one():
        folder = make_temporary_folder("retvar-figures")
        atexit.register(discard, folder)
        os.environ["MPLCONFIGDIR"] = str(folder)


def _has_one() -> bool:
    """Whether the folder that matplotlib looks for first can be made and written."""
    own = os.environ.get("MPLCONFIGDIR")
    try:
        parent = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        folder = Path(own or Path(parent, "matplotlib"))
        folder.mkdir(parents=True, exist_ok=True)
        require_writable("MPLCONFIGDIR", folder)
    except (OSError, RuntimeError, InputError):
        return False
    return True


provide_folder()
