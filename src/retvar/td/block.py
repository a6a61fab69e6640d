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
from retvar.td.features import Features, Rows, States
from retvar.td.jit import part
from retvar.td.lazy import DEFERRED
from retvar.td.nodes import DENSE, EAGER, LAZY, LIMIT, NONE, SPARSE, TABLE, Block, Spec
from retvar.td.step_sizes import averages, counts_visits, depends_on_errors, is_bounded

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
        if traced and count is None and not depends_on_errors(node.step.kind):
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


def block_of(
    specs: tuple[Spec, ...],
    features: Sequence[Features],
    p: Array,
    q: Array,
    kappa: Array,
    states: int = 1,
    whole: bool = True,
) -> Block:
    """Arrays of a block; `p`, `q` are [node, lane], `kappa` [node, state or one].

    `states`: how many have a step of their own noted. What no node needs is small where the block
    is to be `whole`, and otherwise None: compiling takes half as long.
    """
    width, count = p.shape[1], len(specs)
    none = np.zeros(0, dtype=np.int64)
    traced = [spec.trace != NONE and spec.learns for spec in specs]
    counts = [spec.learns and counts_visits(spec.kind) for spec in specs]
    errors = [spec.learns and depends_on_errors(spec.kind) for spec in specs]
    sparse = [spec.features == SPARSE for spec in specs]
    lazy = [spec.trace == LAZY for spec in specs]

    def each(needed: Any, make: Any, blank: Any) -> tuple[Any, ...]:
        """An array for each node; `make` takes its number of weights, and of lanes."""
        found = []
        for spec, f, on in zip(specs, features, needed, strict=True):
            if on:
                found.append(make(f.size + 1, 1 if spec.common else width))
            else:
                found.append(blank.copy() if whole else None)
        return tuple(found)

    def lanes(needed: bool) -> Any:
        return aligned_zeros(count, width) if whole or needed else None

    def live(rows: int, _: int) -> Any:
        found = np.full((1, 2 * rows - 1), -1, dtype=np.int64)
        found[:, -1] = 0
        return found

    cell = np.zeros((1, 1))
    rows = [
        end_row(f.rows()) if on and f.states is not None else (none, none, np.zeros(0))
        for on, f in zip(sparse, features, strict=True)
    ]
    return Block(
        w=each([True] * count, aligned_zeros, cell),
        held=each([s.learns and averages(s.kind) for s in specs], aligned_zeros, cell),
        first=each(errors, aligned_zeros, cell),
        second=each(errors, aligned_zeros, cell),
        taken=each([s.steps and on for s, on in zip(specs, errors, strict=True)],
                   aligned_zeros, cell),
        used=each([s.steps for s in specs],
                  lambda _, k: np.zeros((states, 1 if specs[0].coins else k)), cell),
        E=each(traced, lambda n, _: aligned_zeros(1, n), cell),
        live=each([on and (whole or s.size == 0) for s, on in zip(specs, traced, strict=True)],
                  live, np.zeros((1, 1), dtype=np.int64)),
        visits=each([whole or on for on in counts], lambda n, _: np.zeros(n), cell),
        rates=each([whole or on for on in counts], lambda n, _: np.ones(n), cell),
        fresh=each(sparse, lambda n, _: np.zeros(n), np.zeros(1)),
        phi=tuple(dense(f, f.states or 0) if s.features == DENSE else cell.copy() if whole else None
                  for s, f in zip(specs, features, strict=True)),
        rows=tuple(x if whole or on else None for x, on in zip(rows, sparse, strict=True)),
        sums=each(lazy, lambda _, k: np.zeros((DEFERRED + 1, k)), np.zeros((DEFERRED + 1, 1))),
        scales=np.ones((DEFERRED + 1, count)) if whole else None,
        p=_aligned(p), q=_aligned(q),
        own=lanes(not all(s.local for s in specs)), errors=lanes(False),
        now=lanes(False), after=lanes(False),
        coins=np.ones(1 + 64 * -(-width // 64)) if whole else None,
        kappa=np.ascontiguousarray(kappa), last=np.zeros((1, count)),
        lost=np.zeros(1) if whole else None, powers=each([False] * count, None, np.zeros(1)),
    )  # fmt: skip


def _aligned(numbers: Array) -> Array:
    out = aligned_zeros(*numbers.shape)
    out[:] = numbers
    return out


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
    if isinstance(block, np.ndarray):
        return [block]
    return [array for each in block for array in _flat(each)]


def words_of(block: Block) -> Any:
    """Addresses and shapes of the arrays of a block: one argument, where calls have to be quick.

    Without compilation it is the block itself.
    """
    arrays = _flat(block)
    words = [[x.ctypes.data, x.shape[0], x.shape[1] if x.ndim > 1 else 0] for x in arrays]
    return np.array(words, dtype=np.int64) if COMPILED else block


def read_block(nodes: int) -> Any:
    """An inlined function that makes a block of :func:`words_of`."""
    if not COMPILED:
        return lambda block: block
    spec = Spec(0, 0, True, NONE, 0, TABLE, True)
    zeros = np.zeros((nodes, 1))
    model = block_of((spec,) * nodes, [States(1)] * nodes, zeros, zeros, zeros)
    names: dict[str, Any] = {"array": _array_at, "Block": Block, **_POINTER}
    exec(f"def make(words): return Block(*{_reading(tuple(model), itertools.count())})", names)
    return part(names["make"])


def _reading(kind: Any, numbers: Iterator[int]) -> str:
    """An expression of words: an array, or nested tuples of arrays, like `kind`."""
    if not isinstance(kind, np.ndarray):
        return f"({' '.join(f'{_reading(each, numbers)},' for each in kind)})"
    at = next(numbers)
    shape = ", ".join(f"words[{at}, {axis + 1}]" for axis in range(kind.ndim))
    return f"array({kind.dtype.kind}(words[{at}, 0]), ({shape},))"
