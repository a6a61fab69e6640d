"""Compile functions with numba and cache them on disk under a digest of their sources."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numba
import numpy as np
from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.typed_passes import AnnotateTypes
from numba.extending import intrinsic, register_jitable

from retvar.td import rules

log = logging.getLogger("retvar")
SLOW_AFTER = 0.5  # seconds of compiling after which a line is logged
_cache_dir_lock = threading.Lock()


def compiled(function: Any, *sources: str, key: str = "", **options: Any) -> Any:
    """Compile a function and cache the result on disk under a digest of all its source files.

    numba's own cache checks only the file of the function itself and would miss changes of code
    inlined from other files: `sources`, and always those of this folder. `key` tells apart
    functions that are made of the same sources.
    """
    files = (*sorted(map(str, Path(__file__).parent.glob("*.py"))), *sources)
    parts = [_read(source) for source in (function.__code__.co_filename, *files)]
    digest = hashlib.sha256(b"".join([*parts, key.encode()])).hexdigest()
    with _cache_dir_lock:  # numba reads the folder from a global setting
        before = numba.config.CACHE_DIR
        root = Path(before or os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        try:
            folder = root.expanduser() / "retvar" / digest[:16]
            folder.mkdir(parents=True, exist_ok=True)
            numba.config.CACHE_DIR = str(folder)
            return njit(cache=os.access(folder, os.W_OK), **options)(function)
        except (OSError, RuntimeError):  # no writable cache: compile in each process
            return njit(**options)(function)
        finally:
            numba.config.CACHE_DIR = before


@functools.cache
def _read(source: str) -> bytes:
    return Path(source).read_bytes()


def read_only(column: Any) -> Any:
    """The same numbers in one piece, which may not be written: one type for compiled functions.

    Otherwise they are compiled for each mixture of columns that may be written and that may not.

    >>> import numpy as np
    >>> read_only(np.zeros(3)).flags.writeable
    False
    """
    found = np.ascontiguousarray(column).view()
    found.flags.writeable = False
    return found


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """Code of a function that is optimised and made into machine code within its callers alone."""

    codegen = SimpleNamespace(set_env=lambda *args: None)  # it has no Python objects

    def _optimize_final_module(self) -> None:
        """Do nothing."""

    def _finalize_final_module(self) -> None:
        """Leave the code to the callers."""
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """There is none."""
        self._ensure_finalized()
        return 0


@register_pass(mutates_CFG=False, analysis_only=True)
class _MakePart(AnalysisPass):  # type: ignore[misc]
    _name = "retvar_make_part"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return True


class _PartCompiler(CompilerBase):  # type: ignore[misc]
    """The usual compiler, for functions that are inlined."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_MakePart, AnnotateTypes)
        passes.finalize()
        return [passes]


_PART: dict[str, Any] = {  # options of functions that Python does not call
    "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
    "pipeline_class": _PartCompiler,
}  # fmt: skip


def inlined(function: Any) -> Any:
    """Compile a function that is inlined into its callers."""
    return njit(forceinline=True, _nrt=False)(function)


def part(function: Any) -> Any:
    """Like `inlined`, in a fraction of the time if arguments are large; Python cannot call it."""
    return njit(forceinline=True, **_PART)(function)


def called_part(function: Any) -> Any:
    """Like `part`, but not inlined, for code outside the innermost loops."""
    return njit(**_PART)(function)


def callable_from_compiled(*functions: Any) -> None:
    """Let compiled code call functions of plain Python, inlined."""
    for function in functions:
        register_jitable(forceinline=True, _nrt=False)(function)


callable_from_compiled(*(getattr(rules, name) for name in rules.__all__))


def in_turn(functions: Sequence[Any], own: int = 0) -> Any:
    """Return an inlined function that calls all functions with its arguments, one after another.

    Of the first `own` arguments, the k-th takes the k-th entries. None does nothing.

    >>> in_turn([None, lambda x: print(x)], own=1).py_func([6, 7])
    7
    """
    there = {f"f{k}": function for k, function in enumerate(functions) if function is not None}
    given = list(signature(next(iter(there.values()))).parameters) if there else ["*given"]
    calls = [
        f"{f}({', '.join(f'{x}[{f[1:]}]' if k < own else x for k, x in enumerate(given))})"
        for f in there
    ]
    exec(f"def all_of_them({', '.join(given)}): {'; '.join(calls) or 'pass'}", there)
    return part(there["all_of_them"])


@contextmanager
def log_slow_compilation(what: str) -> Iterator[None]:
    """Log that `what` is being compiled if it takes longer than `SLOW_AFTER` seconds."""
    words = f"compiling {what}; the result is cached on disk"
    timer = threading.Timer(SLOW_AFTER, log.info, (words,))
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


wide_noalias = (lambda: None) if numba.config.DISABLE_JIT else _wide_noalias


def specialised(function: Any, made: dict[str, Any], *sources: str, key: str) -> Any:
    """Compile a function with some of its globals replaced by inlined functions.

    As globals: numba's cache takes functions in a closure for new ones in each process.
    """
    names = function.__globals__ | made
    copy = FunctionType(function.__code__, names, function.__name__)
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    copy.__defaults__ = function.__defaults__
    return compiled(copy, *sources, key=key, nogil=True, _nrt=False, no_cfunc_wrapper=True)
