"""(I − M)⁻¹ of the matrix of a log's transitions, for few and for many states.

Up to 2,000 states it is a dense matrix. For more, vectors are solved for to rounding. Blocks of
vectors serve standard errors: they come from sparse factors where these are small, as on maps and
chains, and otherwise from BiCGSTAB, to five digits, on two threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from retvar.mdp.linear import Resolvent

Array = NDArray[np.float64]
DENSE = 2_000  # states up to which matrices are dense and every state gets an interval
BANDWIDTH = 1_000  # mean width of the band up to which sparse factors are computed
TOLERANCE = 1e-5  # of blocks of vectors
ITERATIONS = 500


class Inverse:
    """(I − M)⁻¹ of a sparse matrix."""

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
        return np.ascontiguousarray(getri(*self._lu)[0])

    def solve(self, b: Array) -> Array:
        """(I − M)⁻¹b for a vector or the columns of a block; not finite where b overflowed."""
        if b.ndim > 1:
            return self.matrix @ b if self.dense else self._block(b, transpose=False)
        if self.dense:
            return np.asarray(scipy.linalg.lu_solve(self._lu, b, check_finite=False))
        return Resolvent(self._M).solve(b).x

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

    @cached_property
    def _factors(self) -> scipy.sparse.linalg.SuperLU | None:
        """Sparse factors, unless they would be large."""
        pattern = self._M.copy()
        pattern.sum_duplicates()
        place = np.argsort(scipy.sparse.csgraph.reverse_cuthill_mckee(pattern))
        row, column = pattern.tocoo().coords
        width = np.zeros(self.states, dtype=np.int64)
        np.maximum.at(width, row, np.abs(place[row] - place[column]))
        if width.mean() > BANDWIDTH:
            return None
        identity = scipy.sparse.eye_array(self.states, format="csc")
        return scipy.sparse.linalg.splu((identity - self._M).tocsc())

    def _block(self, b: Array, *, transpose: bool) -> Array:
        if self._factors is not None:
            return np.asarray(self._factors.solve(b, trans="T" if transpose else "N"))
        matrix = scipy.sparse.eye_array(self.states, format="csr") - self._M
        A = matrix.T.tocsr() if transpose else matrix

        def solved(column: Array) -> Array:
            x, failed = scipy.sparse.linalg.bicgstab(A, column, rtol=TOLERANCE, maxiter=ITERATIONS)
            return np.full_like(x, np.nan) if failed else np.asarray(x)

        with ThreadPoolExecutor(2, "retvar-solve") as threads:  # SciPy's products release the GIL
            return np.stack(list(threads.map(solved, b.T)), axis=1)
