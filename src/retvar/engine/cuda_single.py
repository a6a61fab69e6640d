"""Functions of the engine in single precision, made of those in double precision.

In compiled code one number of double precision makes a whole expression double. So the constants of
a function, and of all functions of retvar that it calls, become single. Random streams stay as they
are: the experience is the same.
"""

from __future__ import annotations

import dis
import math
import types
from typing import Any

import numpy as np

from retvar.jit import called_part, part

__all__ = ["in_single_precision"]

LARGEST, LEAST = 1e30, 1e-30  # bounds of constants; a weight above has diverged
LEFT = ("retvar.random", "retvar.engine.streams", "numba", "numpy")  # modules that stay double
FORMULAS = "retvar.rules"  # whole numbers in it are factors and terms, not indices


def in_single_precision(function: Any) -> Any:
    """A copy of a function of the engine with constants of single precision.

    >>> half = in_single_precision(lambda x: 0.5 * x)
    >>> half(np.float32(0.1)).dtype
    dtype('float32')
    """
    return _narrowed(function, {})


def _narrowed(x: Any, known: dict[int, Any]) -> Any:
    """A number or function, single; anything else as it is."""
    if type(x) is float:
        return _number(x)
    if isinstance(x, types.ModuleType) and x.__name__ == FORMULAS:
        module = types.ModuleType(FORMULAS)
        vars(module).update({name: _narrowed(getattr(x, name), known) for name in x.__all__})
        return module
    plain = getattr(x, "py_func", x)
    if not isinstance(plain, types.FunctionType) or (plain.__module__ or "").startswith(LEFT):
        return x
    if id(x) not in known:
        copy = _copy(plain, known)
        if plain is not x:
            copy = (part if x.targetoptions.get("forceinline") else called_part)(copy)
        elif plain.__module__ == FORMULAS:
            copy = part(copy)
        known[id(x)] = copy, x  # x is kept, so that its number stays its own
    return known[id(x)][0]


def _number(x: float) -> np.float32:
    if x == 0.0 or not math.isfinite(x):
        return np.float32(x)
    return np.float32(math.copysign(min(max(abs(x), LEAST), LARGEST), x))


def _copy(function: types.FunctionType, known: dict[int, Any]) -> types.FunctionType:
    code, formula = function.__code__, function.__module__ == FORMULAS
    constants = tuple(
        _number(float(x)) if formula and type(x) is int else _narrowed(x, known)
        for x in code.co_consts
    )
    read = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    names = {
        name: _narrowed(function.__globals__[name], known)
        for name in read & function.__globals__.keys()
    }
    cells = tuple(
        types.CellType(_narrowed(cell.cell_contents, known)) for cell in function.__closure__ or ()
    )
    copy = types.FunctionType(
        code.replace(co_consts=constants), {**function.__globals__, **names}, function.__name__,
        function.__defaults__, cells or None,
    )  # fmt: skip
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy
