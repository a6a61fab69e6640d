"""(I − M)⁻¹ of the matrix of a log's transitions, for few and for many states.

Up to 2,000 states it is a dense matrix. For more, vectors are solved for to rounding. Blocks of
vectors serve standard errors: they come from sparse factors where these are small, as on maps and
chains, and otherwise from BiCGSTAB, to five digits, on two threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from retvar.linear import Resolvent

__all__ = ["Inverse"]

Array = NDArray[np.float64]
DENSE = 2_000  # states up to which matrices are dense and every state gets an interval
BANDWIDTH = 1_000  # mean width of the band up to which sparse factors are computed
COLUMNS = 8  # that are solved for at once
TOLERANCE = 1e-5  # of blocks of vectors
ITERATIONS = 500


class Inverse:
    """(I − M)⁻¹ of a sparse matrix.

    >>> inverse = Inverse(scipy.sparse.csr_array([[0.0, 0.5], [0.0, 0.5]]))
    >>> inverse.solve(np.ones(2)), inverse.rows(np.array([0]))
    (array([2., 2.]), array([[1., 1.]]))
    """

    def __init__(self, M: scipy.sparse.csr_array) -> None:
        self._M, self.states = M, M.shape[0]
        self.dense = self.states <= DENSE

    @cached_property
    def _lu(self) -> tuple[Array, NDArray[np.int32]]:
        factors: tuple[Array, NDArray[np.int32]] = scipy.linalg.lu_factor(
            np.eye(self.states) - self._M.toarray(), check_finite=False
        )
        return factors

    @cached_property
    def matrix(self) -> Array:
        """The inverse itself, where it is dense."""
        (getri,) = scipy.linalg.get_lapack_funcs(("getri",), (self._lu[0],))
        found, info = getri(*self._lu)
        if info:
            raise scipy.linalg.LinAlgError("I − M is singular")
        return np.ascontiguousarray(found)

    def solve(self, b: Array) -> Array:
        """(I − M)⁻¹b for a vector or the columns of a block."""
        if b.size == 0:
            return b
        if self.dense:
            found: Array = self._lu_solve(b) if b.ndim == 1 else self.matrix @ b
            return found
        return self._resolvent.solve(b).x if b.ndim == 1 else self._block(b, transpose=False)

    def _lu_solve(self, b: Array) -> Array:
        """NaN or infinite where sums in b overflow."""
        found: Array = scipy.linalg.lu_solve(self._lu, b, check_finite=False)
        return found

    def rows(self, at: NDArray[np.intp]) -> Array:
        """Some rows of the inverse."""
        if self.dense:
            return self.matrix[at]
        units = np.zeros((self.states, at.size))
        units[at, np.arange(at.size)] = 1.0
        return self._block(units, transpose=True).T

    def times(self, rows: Array) -> Array:
        """Row vectors times the inverse."""
        return rows @ self.matrix if self.dense else self._block(rows.T, transpose=True).T

    # ------------------------------------------------------------------ many states

    @cached_property
    def _resolvent(self) -> Resolvent:
        return Resolvent(self._M)

    @cached_property
    def _transposed(self) -> scipy.sparse.csr_array:
        return self._M.T.tocsr()

    @cached_property
    def _factors(self) -> scipy.sparse.linalg.SuperLU | None:
        """Sparse factors, unless they would be large."""
        pattern = self._M.copy()
        pattern.sum_duplicates()
        order = scipy.sparse.csgraph.reverse_cuthill_mckee(pattern)
        place = np.empty(self.states, dtype=np.int64)
        place[order] = np.arange(self.states)
        coo = pattern.tocoo()
        reach = np.abs(place[coo.coords[0]] - place[coo.coords[1]])
        width = np.zeros(self.states, dtype=np.int64)
        np.maximum.at(width, coo.coords[0], reach)
        if width.mean() > BANDWIDTH:
            return None
        identity = scipy.sparse.eye_array(self.states, format="csc")
        return scipy.sparse.linalg.splu((identity - self._M).tocsc())

    def _block(self, b: Array, *, transpose: bool) -> Array:
        if self._factors is not None:
            return np.asarray(self._factors.solve(b, trans="T" if transpose else "N"))
        M = self._transposed if transpose else self._M
        parts = [
            np.ascontiguousarray(b[:, first : first + COLUMNS])
            for first in range(0, b.shape[1], COLUMNS)
        ]
        with ThreadPoolExecutor(2, "retvar-solve") as threads:  # SciPy's products release the GIL
            found = list(threads.map(lambda part: bicgstab(lambda x: x - M @ x, part), parts))
        return np.concatenate(found, axis=1)


def bicgstab(apply: Callable[[Array], Array], b: Array) -> Array:
    """Solve for all columns of b at once; NaN in those that do not converge.

    >>> bicgstab(lambda x: x / 2, np.array([[1.0, 2.0]]))
    array([[2., 4.]])
    """
    x, r = np.zeros_like(b), b.copy()
    shadow, goal = r.copy(), TOLERANCE * np.sqrt((b * b).sum(axis=0))
    rho = np.ones(b.shape[1])
    alpha, omega = rho.copy(), rho.copy()
    v, p = np.zeros_like(b), np.zeros_like(b)
    for _ in range(ITERATIONS):
        going = np.sqrt((r * r).sum(axis=0)) > goal
        if not going.any():
            break
        before, rho = rho, (shadow * r).sum(axis=0)
        beta = _ratio(rho, before) * _ratio(alpha, omega)
        p = r + beta * (p - omega * v)
        v = apply(p)
        alpha = np.where(going, _ratio(rho, (shadow * v).sum(axis=0)), 0.0)
        s = r - alpha * v
        t = apply(s)
        omega = np.where(going, _ratio((t * s).sum(axis=0), (t * t).sum(axis=0)), 0.0)
        x += alpha * p + omega * s
        r = s - omega * t
    missed = np.sqrt((r * r).sum(axis=0)) > goal
    x[:, missed] = np.nan
    return x


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
