"""Compiling: what is compiled is kept on disk under a digest of all that it is made of."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba import njit, types
from numba.extending import intrinsic

from retvar import rules, step_sizes

__all__ = ["called", "compiled", "inlined", "log_slow_compilation", "wide_and_apart"]

log = logging.getLogger("retvar")
PATIENCE = 0.5  # seconds of compiling after which a line is logged
_setting = threading.Lock()


def compiled(function: Any, *sources: str, **options: Any) -> Any:
    """Compile, and keep the result on disk under a digest of all files that the code is made of.

    numba looks at the file of the function alone; what it inlines from other files (`sources`;
    the rules and the random words are always among them) would go stale.
    """
    made_of = (
        function.__code__.co_filename,
        __file__,
        rules.__file__,
        step_sizes.__file__,
        str(Path(__file__).with_name("random.py")),
        *sources,
    )
    digest = hashlib.sha256(b"".join(Path(source).read_bytes() for source in made_of)).hexdigest()
    with _setting:  # numba takes the folder from a setting that all threads share
        before = numba.config.CACHE_DIR
        home = before or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(home, "retvar", digest[:16])
        try:
            os.makedirs(folder, exist_ok=True)
            numba.config.CACHE_DIR = folder
            return njit(cache=os.access(folder, os.W_OK), **options)(function)
        except (OSError, RuntimeError):  # nowhere to keep it: compile anew in each process
            return njit(**options)(function)
        finally:
            numba.config.CACHE_DIR = before


def inlined(function: Any) -> Any:
    """Compile as a part of whatever calls it."""
    return njit(forceinline=True, _nrt=False)(function)


def called(function: Any) -> Any:
    """Compile as a function that is called: for what is not in the innermost loops."""
    return njit(_nrt=False)(function)


@contextmanager
def log_slow_compilation(what: str) -> Iterator[None]:
    """Log that something is being compiled, if it takes long enough for people to wonder."""
    timer = threading.Timer(
        PATIENCE, log.info, (f"compiling {what}: once; it is kept on disk for the next time",)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@intrinsic
def _wide_and_apart(typingctx: Any) -> Any:
    """Promise that the arrays given to this function do not overlap, and ask for wide vectors.

    Loops over lanes are then vectorised without a check of every pair of arrays each time, and
    with the widest registers of the machine. It changes the speed, not the bits.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.function
        set.add(function.attributes, '"prefer-vector-width"="512"')
        for argument in function.args:
            if argument.type.is_pointer:
                argument.add_attribute("noalias")
        return context.get_dummy_value()

    return types.void(), codegen


def _nothing() -> None:
    """Do nothing: for plain Python, which has no vectors."""


wide_and_apart = _nothing if numba.config.DISABLE_JIT else _wide_and_apart
