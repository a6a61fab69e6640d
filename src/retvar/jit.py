"""Compile functions with numba and cache them on disk under a digest of their sources."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba import njit, types
from numba.extending import intrinsic, register_jitable

from retvar import rules, step_sizes

__all__ = [
    "callable_from_compiled",
    "called",
    "compiled",
    "inlined",
    "log_slow_compilation",
    "nested",
    "switch",
    "wide_noalias",
]  # fmt: skip

log = logging.getLogger("retvar")
SLOW_AFTER = 0.5  # seconds of compiling after which a line is logged
_cache_dir_lock = threading.Lock()
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Any, *sources: str, **options: Any) -> Any:
    """Compile a function and cache the result on disk under a digest of all its source files.

    numba's own cache checks only the file of the function itself and would miss changes of code
    inlined from other files: `sources`, and always the rules and random numbers.
    """
    files = (
        function.__code__.co_filename,
        __file__,
        rules.__file__,
        step_sizes.__file__,
        str(Path(__file__).with_name("random.py")),
        *sources,
    )
    digest = hashlib.sha256(b"".join(Path(source).read_bytes() for source in files)).hexdigest()
    with _cache_dir_lock:  # numba reads the folder from a global setting
        before = numba.config.CACHE_DIR
        root = before or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = os.path.join(root, "retvar", digest[:16])
        try:
            os.makedirs(folder, exist_ok=True)
            numba.config.CACHE_DIR = folder
            return njit(cache=os.access(folder, os.W_OK), **options)(function)
        except (OSError, RuntimeError):  # no writable cache: compile in each process
            return njit(**options)(function)
        finally:
            numba.config.CACHE_DIR = before


def inlined(function: Any) -> Any:
    """Compile a function that is inlined into its callers."""
    return njit(forceinline=True, _nrt=False)(function)


def nested(function: Any) -> Any:
    """Like :func:`inlined`, for functions that Python never calls: quicker to compile.

    The wrapper of a function that takes tuples of arrays takes longer than the function itself.
    """
    return njit(forceinline=True, _nrt=False, **_NO_WRAPPERS)(function)


def called(function: Any) -> Any:
    """Compile a function that is not inlined; only compiled code may call it."""
    return njit(_nrt=False, **_NO_WRAPPERS)(function)


def callable_from_compiled(*functions: Any) -> None:
    """Let compiled code call functions of plain Python, inlined."""
    for function in functions:
        register_jitable(forceinline=True, _nrt=False)(function)


def switch(numbers: Sequence[int], functions: Sequence[Any]) -> Any:
    """Return an inlined function of a number and arguments that calls the function of that number.

    The last function is called for any other number.

    >>> pick = switch([3, 4], [inlined(lambda x: x + 1), inlined(lambda x: x)])
    >>> njit(lambda x: pick(4, x))(-2)
    -2
    """
    mine, first = numbers[0], functions[0]
    if len(functions) == 1:

        def pick(number, *args):
            return first(*args)
    else:
        others = switch(numbers[1:], functions[1:])

        def pick(number, *args):
            if number == mine:
                return first(*args)
            return others(number, *args)

    return nested(pick)


@contextmanager
def log_slow_compilation(what: str) -> Iterator[None]:
    """Log that `what` is being compiled if it takes longer than `SLOW_AFTER` seconds."""
    timer = threading.Timer(
        SLOW_AFTER, log.info, (f"compiling {what}; the result is cached on disk",)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@intrinsic
def _wide_noalias(typingctx: Any) -> Any:
    """Declare the arguments of the calling function as not overlapping, and prefer wide vectors.

    Loops over lanes are then vectorised without overlap checks and with the widest registers. This
    changes the speed, not the results.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.function
        set.add(function.attributes, '"prefer-vector-width"="512"')
        for argument in function.args:
            if argument.type.is_pointer:
                argument.add_attribute("noalias")
        return context.get_dummy_value()

    return types.void(), codegen


def _do_nothing() -> None:
    """Do nothing, where compilation is disabled."""


wide_noalias = _do_nothing if numba.config.DISABLE_JIT else _wide_noalias
