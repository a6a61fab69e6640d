"""Compile functions with numba and cache them on disk under a digest of their sources."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass
from numba.core.typed_passes import AnnotateTypes
from numba.extending import intrinsic, register_jitable
from numba.np.arrayobj import make_array

from retvar import rules, step_sizes

__all__ = [
    "cache_root",
    "callable_from_compiled",
    "called",
    "called_part",
    "compiled",
    "copy_numbers",
    "in_step",
    "in_turn",
    "inlined",
    "log_slow_compilation",
    "part",
    "read_only",
    "switch",
    "wide_noalias",
]  # fmt: skip

log = logging.getLogger("retvar")
SLOW_AFTER = 0.5  # seconds of compiling after which a line is logged
_cache_dir_lock = threading.Lock()


def compiled(function: Any, *sources: str, key: str = "", **options: Any) -> Any:
    """Compile a function and cache the result on disk under a digest of all its source files.

    numba's own cache checks only the file of the function itself and would miss changes of code
    inlined from other files: `sources`, and always the rules and random numbers. `key` tells apart
    functions that are made of the same sources.
    """
    files = (
        function.__code__.co_filename,
        __file__,
        rules.__file__,
        step_sizes.__file__,
        str(Path(__file__).with_name("random.py")),
        *sources,
    )
    parts = [*(Path(source).read_bytes() for source in files), key.encode()]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    with _cache_dir_lock:  # numba reads the folder from a global setting
        before = numba.config.CACHE_DIR
        root = before or cache_root()
        folder = os.path.join(root, "retvar", digest[:16])
        try:
            if not root:
                return njit(**options)(function)
            os.makedirs(folder, exist_ok=True)
            numba.config.CACHE_DIR = folder
            return _forgiving(njit(cache=os.access(folder, os.W_OK), **options)(function))
        except (OSError, RuntimeError):  # no writable cache: compile in each process
            return njit(**options)(function)
        finally:
            numba.config.CACHE_DIR = before


def cache_root() -> str:
    """The user's folder for caches; empty for a user whom the system does not know.

    >>> os.path.isabs(cache_root()) or not cache_root()
    True
    """
    for root in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(root):
            return root
    return ""


def _forgiving(function: Any) -> Any:
    """Let compiled code be used although its cache cannot be read or written: a full disk."""
    cache = getattr(function, "_cache", None)
    if cache is None:  # not compiled at all
        return function

    def forgive(act: Any) -> Any:
        def acting(*args: Any) -> Any:
            try:
                return act(*args)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                log.debug("the cache of compiled code: %s", error)
                return None

        return acting

    for name in ("load_overload", "save_overload"):
        setattr(cache, name, forgive(getattr(cache, name)))
    return function


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


class _NoMachineCode:
    """Stands for the code generator where a compiled function would be prepared for calls."""

    def set_env(self, *args: Any) -> None:
        """Do nothing: Python objects are used by functions that Python calls."""


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """Code of a function that is optimised and made into machine code within its callers alone."""

    codegen = _NoMachineCode()

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


def called(function: Any) -> Any:
    """Compile a function that is not inlined, for code outside the innermost loops."""
    return njit(_nrt=False)(function)


def part(function: Any) -> Any:
    """Like `inlined`, in a fraction of the time if arguments are large; Python cannot call it."""
    return njit(forceinline=True, **_PART)(function)


def called_part(function: Any) -> Any:
    """Like `called`, in a fraction of the time if arguments are large; Python cannot call it."""
    return njit(**_PART)(function)


def callable_from_compiled(*functions: Any) -> None:
    """Let compiled code call functions of plain Python, inlined."""
    for function in functions:
        register_jitable(forceinline=True, _nrt=False)(function)


callable_from_compiled(*(getattr(rules, name) for name in rules.__all__))


def in_turn(functions: Sequence[Any]) -> Any:
    """Return an inlined function that calls all functions with its arguments, one after another.

    >>> in_turn([print]) is print
    True
    """

    def nothing(*args):
        return None

    def two(*args):
        first(*args)
        second(*args)

    def three(*args):
        first(*args)
        second(*args)
        others(*args)

    if len(functions) < 2:
        return functions[0] if functions else part(nothing)
    first, second, *more = functions
    if not more:
        return part(two)
    others = in_turn(more)
    return part(three)


def in_step(functions: Sequence[Any]) -> Any:
    """Return an inlined function of a tuple: each function is called with its own entry.

    Further arguments are given to all of them. Nothing is called where a function is None.

    >>> call = in_step([None, print])
    """

    def one(entries, *args):
        first(entries[number], *args)

    def several(entries, *args):
        first(entries[number], *args)
        others(entries[after:], *args)

    there = [number for number, function in enumerate(functions) if function is not None]
    if not there:
        return in_turn([])
    number, after = there[0], there[0] + 1
    first, others = functions[number], in_step(functions[after:])
    return part(one if len(there) == 1 else several)


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

    return part(pick)


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


@intrinsic(prefer_literal=True)
def _copy_numbers(typingctx: Any, out: Any, to: Any, x: Any, at: Any, count: Any) -> Any:
    """Copy `count` numbers, a literal, from place `at` of one array to place `to` of another.

    That is one load and one store if registers are wide enough; a loop would be unrolled.
    """
    length = count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = []
        for k in (0, 2):
            array = make_array(signature.args[k])(context, builder, args[k])
            places.append(builder.gep(array.data, [args[k + 1]]))
        size = context.get_constant(types.intp, length)
        cgutils.raw_memcpy(builder, *places, size, 8)
        return context.get_dummy_value()

    return types.void(out, to, x, at, count), codegen


def _copy_plainly(out: Any, to: int, x: Any, at: int, count: int) -> None:
    """Copy numbers, where compilation is disabled."""
    out[to : to + count] = x[at : at + count]


def _do_nothing() -> None:
    """Do nothing, where compilation is disabled."""


copy_numbers = _copy_plainly if numba.config.DISABLE_JIT else _copy_numbers
wide_noalias = _do_nothing if numba.config.DISABLE_JIT else _wide_noalias
