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
from retvar.td.nodes import DENSE, EAGER, LAZY, LIMIT, NONE, SPARSE, Block, Spec
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
) -> Block:
    """Arrays of a block; `p`, `q` are [node, lane], `kappa` [node, state or one].

    `states`: how many have a step of their own noted. What no node needs is None: that compiles in
    half the time.
    """
    width, count, first = p.shape[1], len(specs), specs[0]
    none = np.zeros(0, dtype=np.int64)
    lazy = any(spec.trace == LAZY for spec in specs)

    def each(needs: Any, make: Any) -> tuple[Any, ...]:
        """An array for each node that needs it, made of its number of weights and of lanes."""
        given = zip(specs, features, strict=True)
        sizes = ((s, f.size + 1, 1 if s.common else width) for s, f in given)
        return tuple(make(n, k) if needs(s) else None for s, n, k in sizes)

    def lanes(needed: bool) -> Any:
        return aligned_zeros(count, width) if needed else None

    def live(rows: int, _: int) -> Any:
        found = np.full((1, 2 * rows - 1), -1, dtype=np.int64)
        found[:, -1] = 0
        return found

    def adapts(s: Spec) -> bool:
        return s.learns and depends_on_errors(s.kind)

    def counts(s: Spec) -> bool:
        return s.learns and counts_visits(s.kind)

    def is_traced(s: Spec) -> bool:
        return s.trace != NONE and s.learns

    rows = [
        None if s.features != SPARSE
        else (none, none, np.zeros(0)) if f.states is None else end_row(f.rows())
        for s, f in zip(specs, features, strict=True)
    ]  # fmt: skip
    tables = [
        dense(f, f.states or 0) if s.features == DENSE else None
        for s, f in zip(specs, features, strict=True)
    ]
    return Block(
        w=each(lambda s: True, aligned_zeros),
        held=each(lambda s: s.learns and averages(s.kind), aligned_zeros),
        first=each(adapts, aligned_zeros),
        second=each(adapts, aligned_zeros),
        taken=each(lambda s: s.steps and adapts(s), aligned_zeros),
        used=each(lambda s: s.steps, lambda _, k: np.zeros((states, 1 if first.coins else k))),
        E=each(is_traced, lambda n, _: aligned_zeros(1, n)),
        live=each(lambda s: s.size == 0 and is_traced(s), live),
        visits=each(counts, lambda n, _: np.zeros(n)),
        rates=each(counts, lambda n, _: np.ones(n)),
        fresh=each(lambda s: s.features == SPARSE, lambda n, _: np.zeros(n)),
        phi=tuple(tables), rows=tuple(rows),
        sums=each(lambda s: s.trace == LAZY, lambda _, k: np.zeros((DEFERRED + 1, k))),
        scales=np.ones((DEFERRED + 1, count)) if lazy else None,
        p=_aligned(p), q=_aligned(q),
        own=lanes(not all(s.local for s in specs)), errors=lanes(first.checked),
        now=lanes(lazy), after=lanes(lazy),
        coins=np.ones(1 + 64 * -(-width // 64)) if first.coins else None,
        kappa=np.ascontiguousarray(kappa), last=np.zeros((1, count)),
        lost=np.zeros(1) if first.checked else None, powers=each(lambda s: False, None),
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
    if isinstance(block, tuple):
        return [array for each in block for array in _flat(each)]
    return [] if block is None else [block]


def words_of(block: Block) -> Any:
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
    zeros = np.zeros((len(specs), 1))
    model = block_of(specs, [Vector(1)] * len(specs), zeros, zeros, zeros)
    names: dict[str, Any] = {"array": _array_at, "Block": Block, **_POINTER}
    exec(f"def make(words): return Block(*{_reading(tuple(model), itertools.count())})", names)
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
