"""The arrays of a block of lanes: what a learner's nodes are, and where their numbers lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import get_cfarray_intrinsic
from numpy.typing import NDArray

from retvar.support.errors import InputError
from retvar.td.features import Features, Rows, States, Vector
from retvar.td.jit import part
from retvar.td.lazy import DEFERRED
from retvar.td.nodes import (
    ALL,
    DENSE,
    EAGER,
    FEW,
    KEPT,
    LAZY,
    LIMIT,
    NONE,
    SPARSE,
    TABLE,
    Arrays,
    Spec,
)  # fmt: skip
from retvar.td.step_sizes import CONSTANT, is_bounded, may_be_lazy

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
WIDTH = 8  # the doubles in the widest registers
COMPILED = not numba.config.DISABLE_JIT


class Prepared(NamedTuple):
    """A node of a learner with its features: settings as arrays."""

    kind: int  #: step-size rule
    trace: int  #: NONE, EAGER or LAZY
    parameters: tuple[float, float]  #: of the step-size rule
    kappa: Array  #: one, or one for each state
    initial: Array  #: [weight]
    features: Features


def prepare(description: Any, features: Sequence[Features]) -> list[Prepared]:
    """The nodes of a learner by place, also of places that its network has not."""
    count = features[0].states
    nodes = description.nodes(tabular=all(isinstance(f, States) for f in features))
    found = []
    for node, kind in zip(nodes, features, strict=True):
        kappa = np.atleast_1d(np.asarray(node.kappa, dtype=np.float64))
        if kappa.size not in (1, count):
            raise InputError("kappa", f"{kappa.size} numbers", f"must be one or {count}")
        traced = EAGER if kappa.any() or is_bounded(node.step.kind) else NONE
        if traced and count is None and may_be_lazy(node.step.kind):
            traced = LAZY
        start = _initial(node, kind)
        found.append(Prepared(node.step.kind, traced, node.step.parameters(), kappa, start, kind))
    return found


def _initial(node: Any, features: Features) -> Array:
    """Initial weights of a node."""
    initial = np.asarray(node.initial, dtype=np.float64)
    if initial.ndim and initial.shape != (features.size,):
        remedy = f"must be one or {features.size}"
        raise InputError(node.initial_name, f"{initial.size} numbers", remedy)
    if initial.ndim == 0 and initial != 0 and not isinstance(features, States):
        remedy = f"with features, give the {features.size} weights to start from"
        raise InputError(node.initial_name, float(initial), remedy)
    if not np.all(np.abs(initial) <= LIMIT):
        raise InputError(node.initial_name, "too large", f"must stay below {LIMIT:g}")
    return np.broadcast_to(initial + 0.0, features.size)  # no −0


def spec_of(code: int, node: Prepared, learns: bool, changes: bool) -> Spec:
    """What the functions of a node are made for; sizes are literals where nothing `changes` them.

    What depends on the lanes and on what is noted is added to it.
    """
    few, trace = node.features.size <= FEW, node.trace if learns else NONE
    form = TABLE if isinstance(node.features, States) else SPARSE if changes or not few else DENSE
    visited = few and (form == DENSE or (form == TABLE and trace != NONE))
    size = (ALL if changes else node.features.size) if visited else 0
    return Spec(code, node.kind if learns else CONSTANT, learns, trace, size, form)


def per_state(field: str, given: Any, count: int | None) -> Array:
    """γ or λ of a learner: one number, or one for each state; empty: not given."""
    if given is None:
        return np.zeros(0)
    array = np.atleast_1d(np.asarray(given, dtype=np.float64))
    if array.size > 1 and array.size != count:
        what = "one number" if count is None else f"one number or {count} of them"
        raise InputError(field, f"{array.size} numbers", f"must be {what}")
    return array


def aligned_zeros(*shape: int) -> Array:
    """Zeros that are aligned to 64 bytes."""
    size = math.prod(shape)
    buffer = np.zeros(size + WIDTH)
    first = (-buffer.ctypes.data % 64) // 8
    return buffer[first : first + size].reshape(shape)


def end_row(rows: Rows) -> tuple[Any, Any, Any]:
    """Sparse rows with an empty one at the end: no features after the end of an episode."""
    return np.append(rows.indptr, rows.indptr[-1]), rows.indices, rows.values


def dense(features: Features, states: int) -> Array:
    """Features as a table with a row of 0 for the end of an episode."""
    rows, out = features.rows(), np.zeros((states + 1, features.size))
    out[np.repeat(np.arange(states), np.diff(rows.indptr)), rows.indices] = rows.values
    return out


def arrays_of(
    spec: Spec, features: Features, p: Array, q: Array, kappa: Array, states: int = 1
) -> Arrays:
    """The arrays of a node; `p`, `q` are [lane].

    `states`: how many have a step of their own noted. What is not needed is None: that compiles in
    half the time.
    """
    sizes = {
        "weight": features.size + 1, "lane": 1 if spec.common else p.size, "state": states,
        "stream": 1, "list": 2 * features.size + 1, "slot": DEFERRED + 1, "one": 1,
        "word": 1 + 64 * -(-p.size // 64),
    }  # fmt: skip
    found: dict[str, Any] = dict.fromkeys(Arrays._fields)
    for name, (axes, is_needed) in KEPT.items():
        if is_needed(spec):
            found[name] = aligned_zeros(*(sizes[axis] for axis in axes.split()))
    for name in ("rates", "scales", "coins"):
        if found[name] is not None:
            found[name][:] = 1.0
    if found["live"] is not None:
        found["live"] = no_traces(1, features.size)
    if spec.features == SPARSE:
        none = np.zeros(0, dtype=np.int64)
        blank = none, none, np.zeros(0)
        found["rows"] = blank if features.states is None else end_row(features.rows())
    elif spec.features == DENSE:
        found["phi"] = dense(features, features.states or 0)
    found |= {"p": aligned_zeros(p.size), "q": aligned_zeros(q.size), "kappa": kappa.copy()}
    found["p"][:], found["q"][:] = p, q
    return Arrays(**found)


def no_traces(streams: int, size: int) -> Integers:
    """Lists of weights with a trace that are empty."""
    found = np.full((streams, 2 * size + 1), -1, dtype=np.int64)
    found[:, -1] = 0
    return found


# ---------------------------------------------------------------------- a block in one argument


def _pointing_to(number: Any) -> Any:
    """A compiled function of an address: the pointer to numbers of a type."""
    kind = types.CPointer(number)

    @intrinsic
    def pointer(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(types.int64), codegen

    return pointer


_array_at = get_cfarray_intrinsic("C", None)
_POINTER = {"f": _pointing_to(types.float64), "i": _pointing_to(types.int64)}


def _flat(block: Any) -> list[Any]:
    """All arrays of nested tuples, in order."""
    if isinstance(block, tuple):
        return [array for each in block for array in _flat(each)]
    return [] if block is None else [block]


def words_of(block: tuple[Arrays, ...]) -> Any:
    """Addresses and shapes of the arrays of a block: one argument, where calls have to be quick.

    Without compilation it is the block itself.
    """
    arrays = _flat(block)
    words = [[x.ctypes.data, x.shape[0], x.shape[1] if x.ndim > 1 else 0] for x in arrays]
    return np.array(words, dtype=np.int64) if COMPILED else block


def read_block(specs: tuple[Spec, ...]) -> Any:
    """An inlined function that makes a block of :func:`words_of`."""
    if not COMPILED:
        return lambda block: block
    one, numbers = np.zeros(1), itertools.count()
    models = [tuple(arrays_of(spec, Vector(1), one, one, one)) for spec in specs]
    nodes = "".join(f"Arrays(*{_reading(model, numbers)}), " for model in models)
    names: dict[str, Any] = {"array": _array_at, "Arrays": Arrays, **_POINTER}
    exec(f"def make(words): return ({nodes})", names)
    return part(names["make"])


def _reading(kind: Any, numbers: Iterator[int]) -> str:
    """An expression of words: an array, None, or nested tuples of these, like `kind`."""
    if kind is None:
        return "None"
    if isinstance(kind, tuple):
        return f"({' '.join(f'{_reading(each, numbers)},' for each in kind)})"
    at = next(numbers)
    shape = ", ".join(f"words[{at}, {axis + 1}]" for axis in range(kind.ndim))
    return f"array({kind.dtype.kind}(words[{at}, 0]), ({shape},))"
