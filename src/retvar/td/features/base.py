"""Basic kinds of features: states, tables, vectors and sets of indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import literal
from retvar.td.jit import compiled

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
NOTHING = np.zeros(0)


class Rows(NamedTuple):
    """Sparse rows: the entries of row r are ``indices[indptr[r]:indptr[r + 1]]`` with `values`.

    >>> States(2).rows().values
    array([1., 1.])
    """

    indptr: Integers
    indices: Integers
    values: Array


class Features:
    """Base of all kinds of features."""

    size: int  #: number of weights of a node with these features
    states: int | None  #: number of states; None if features come with each transition
    kind: ClassVar[str]  #: name in files, for kinds that can be saved

    def rows(self, given: Any = None) -> Rows:
        """All rows of a table, or the rows of `given` features."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary from which :func:`from_dict` makes equal features."""
        if "kind" not in vars(type(self)):  # a subclass may have other settings
            name = type(self).__name__
            raise InputError("features", name, "cannot be saved; take one of retvar.features")
        return {"kind": self.kind, **self._settings()}

    def _settings(self) -> dict[str, Any]:
        return {"size": self.size}


@dataclass(frozen=True)
class States(Features):
    """One weight for each state.

    >>> States(3).rows().indices
    array([0, 1, 2])
    """

    count: int
    kind = "states"

    def __post_init__(self) -> None:
        count = arguments.integer("states", self.count, 1)
        for name in ("count", "size", "states"):
            object.__setattr__(self, name, count)

    def rows(self, given: Any = None) -> Rows:
        """The identity."""
        index = np.arange(self.size, dtype=np.int64)
        return Rows(np.arange(self.size + 1, dtype=np.int64), index, np.ones(self.size))


@dataclass(frozen=True, eq=False)
class Table(Features):
    """A row of features for each state: an array [state, feature], dense or sparse.

    >>> Table([[1.0, 0.0], [1.0, 0.5]]).rows().indptr
    array([0, 1, 3])
    """

    table: Any

    def __post_init__(self) -> None:
        given = self.table
        if not scipy.sparse.issparse(given):
            given = arguments.floats("features", given, "an array [state, feature]")
        if given.ndim != 2 or 0 in given.shape:
            found = f"an array of shape {given.shape}"
            raise InputError("features", found, "must be an array [state, feature]")
        sparse = scipy.sparse.csr_array(given, dtype=float, copy=True)
        if not np.isfinite(sparse.data).all():
            raise InputError("features", "not finite", "must hold finite numbers only")
        sparse.sum_duplicates()
        sparse.eliminate_zeros()
        states, size = sparse.shape
        for name, x in (("_sparse", sparse), ("states", int(states)), ("size", int(size))):
            object.__setattr__(self, name, x)

    def rows(self, given: Any = None) -> Rows:
        """The table itself."""
        s: Any = self._sparse  # type: ignore[attr-defined]
        return Rows(s.indptr.astype(np.int64), s.indices.astype(np.int64), s.data)


class TransitionFeatures(Features):
    """Features that come with each transition instead of a state index."""

    states = None

    @property
    def entries(self) -> int | None:
        """Number of entries of a row; None if rows differ."""
        return None

    @property
    def blank(self) -> Any:
        """Placeholder where there is no state."""
        return []

    def write(self, state: Any, next_state: Any, rows: Rows | None) -> tuple[Rows, bool]:
        """Two rows, of a state and the next (None: blank), written into `rows` if that is possible.

        Also returns whether all are finite.
        """
        found = self.rows([state, self.blank if next_state is None else next_state])
        n = found.values.size
        if rows is None or rows.values.size < n:
            rows = Rows(
                np.zeros(3, dtype=np.int64), np.zeros(2 * n, dtype=np.int64), np.zeros(2 * n)
            )
        rows.indptr[:], rows.indices[:n], rows.values[:n] = found
        return rows, bool(np.isfinite(found.values).all())


@dataclass(frozen=True)
class _Counted(TransitionFeatures):
    """Base of :class:`Vector` and :class:`Active`, which have `count` features."""

    count: int

    def __post_init__(self) -> None:
        count = arguments.integer("features", self.count, 1)
        for name in ("count", "size"):
            object.__setattr__(self, name, count)


@dataclass(frozen=True)
class Vector(_Counted):
    """A vector of numbers that comes with each transition instead of a state index.

    >>> Vector(2).rows([[0.5, 2.0]]).values
    array([0.5, 2. ])
    """

    kind = "vector"

    @property
    def blank(self) -> Array:
        """Zeros."""
        return np.zeros(self.size)

    def write(self, state: Any, next_state: Any, rows: Rows | None) -> tuple[Rows, bool]:
        """Write the entries that are not 0."""
        if rows is None:
            index = np.zeros(2 * self.size, dtype=np.int64)
            rows = Rows(np.zeros(3, dtype=np.int64), index, np.zeros(index.size))
        x_next = NOTHING if next_state is None else self._read(next_state)
        return rows, bool(write_rows(self._read(state), x_next, *rows))

    def _read(self, given: Any) -> Array:
        """Return one vector."""
        what = f"{self.size} numbers"
        vector = arguments.array("state", given, what)
        if vector.dtype != np.float64:  # which is by far the most frequent
            vector = arguments.floats("state", given, what)
        if vector.shape != (self.size,):
            found = f"features of shape {vector.shape}"
            raise InputError("state", found, f"must be {self.size} numbers")
        return vector

    def rows(self, given: Any = None) -> Rows:
        """The nonzero entries of every vector."""
        several: bool = np.iterable(given)
        if not several:
            raise InputError("states", literal(given), f"must be rows of {self.size} numbers")
        numeric = isinstance(given, np.ndarray) and given.dtype.kind in "biuf"
        if numeric and given.shape[1:] == (self.size,):
            dense = given.astype(np.float64)
        else:
            dense = np.array([self._read(vector) for vector in given]).reshape(-1, self.size)
        row, index = np.nonzero(dense)
        indptr = np.searchsorted(row, np.arange(dense.shape[0] + 1))
        return Rows(indptr.astype(np.int64), index.astype(np.int64), dense[row, index])


@dataclass(frozen=True)
class Active(_Counted):
    """Indices of active binary features that come with each transition, as in tile coding.

    An index that occurs twice counts twice.

    >>> Active(8).rows([[1, 5], [2]])
    Rows(indptr=array([0, 2, 3]), indices=array([1, 5, 2]), values=array([1., 1., 1.]))
    """

    kind = "active"

    def rows(self, given: Any = None) -> Rows:
        """The indices, each with value 1."""
        try:
            parts = [np.atleast_1d(np.asarray(part)) for part in given]
            if any(part.dtype == bool or part.ndim > 1 for part in parts):
                raise TypeError
            lengths = [part.size for part in parts]
            index = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
            whole = index.astype(np.int64)
        except (TypeError, ValueError, OverflowError):
            raise InputError("state", given, "must be sets of indices") from None
        if index.size and (np.any(whole != index) or whole.min() < 0 or whole.max() >= self.size):
            bad = index[(whole != index) | (whole < 0) | (whole >= self.size)][0]
            raise InputError("state", bad, f"must be indices from 0 to {self.size - 1}")
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rising = np.diff(whole) > 0
        rising[indptr[1:-1][(indptr[1:-1] > 0) & (indptr[1:-1] < whole.size)] - 1] = True
        if rising.all():  # each set is sorted without repeats
            return Rows(indptr, whole, np.ones(index.size))
        sparse = scipy.sparse.csr_array(
            (np.ones(index.size), whole, indptr), shape=(len(parts), self.size)
        )
        sparse.sum_duplicates()
        return Rows(sparse.indptr.astype(np.int64), sparse.indices.astype(np.int64), sparse.data)


def features_of(field: str, given: Any) -> Features:
    """Return features: an integer is the length of vectors, an array is a table.

    >>> features_of("features", 4)
    Vector(count=4)
    """
    if isinstance(given, Features):
        return given
    if arguments.is_integer(given):
        return Vector(int(given))
    if scipy.sparse.issparse(given) or isinstance(given, np.ndarray | Sequence):
        return Table(given)
    raise InputError(field, given, "must be a table [state, feature], a length, or Features")


def features_of_nodes(features: Any, value: Any, mean: Any) -> list[Features]:
    """Features of the value, mean and variance node; None: those of the variance, or the value."""
    variance = features_of("features", features)
    value = variance if value is None else features_of("value_features", value)
    return [value, value if mean is None else features_of("mean_features", mean), variance]


@partial(compiled, _nrt=False)
def write_rows(x: Any, x_next: Any, indptr: Any, indices: Any, values: Any) -> Any:
    """Write two vectors as sparse rows without zeros; return whether all entries are finite."""
    k, finite = 0, True
    for vector, row in ((x, 0), (x_next, 1)):
        for i in range(vector.size):
            if vector[i] != 0.0:
                indices[k] = i
                values[k] = vector[i]
                finite = finite and math.isfinite(vector[i])
                k += 1
        indptr[row + 1] = k
    return finite
