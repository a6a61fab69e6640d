"""Linear systems (I − M)x = b with M ≥ 0, and the spectral radius of M.

Everything retvar knows in closed form is such a system: M is a matrix of discounted transition
probabilities. Small systems are factorised, large ones iterated; which it was, and the residual
that was reached, is part of every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg.lapack
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from retvar.errors import ConvergenceError, InputError

__all__ = ["Radius", "Resolvent", "Solved", "spectral_radius"]

Array = NDArray[np.float64]
Sparse: TypeAlias = scipy.sparse.csr_array
Apply = Callable[[Array], Array]

DENSE = 150  # states up to which LAPACK is quicker than sparse factors
DIRECT = 1_000  # states up to which factors are always affordable
THIN = 20  # average envelope of a row up to which natural order has next to no fill
FILL = 100_000_000  # entries of the factors that are affordable for a large system
TARGET = 1e-14  # backward error to aim at
ACCEPTABLE = 1e-11  # backward error beyond which there is no answer
ROUNDING = 1e-13  # what a bound must stay below 1 by, to be one in exact arithmetic too
POWERS = 12  # of M whose norms are tried
SPECTRUM = 64  # states up to which the radius is read off the whole spectrum


class Solved(NamedTuple):
    """A solution x, the backward error ‖b − Ax‖/(‖b‖ + ‖A‖‖x‖) reached, and the means used."""

    x: Array
    residual: float
    means: str


class Radius(NamedTuple):
    """A spectral radius; ``kind`` says whether it is exact or a certified bound."""

    value: float
    kind: Literal["exact", "upper bound", "lower bound"]

    @property
    def below_one(self) -> bool:
        """Whether the radius is shown to be below 1."""
        return self.value < 1 and self.kind != "lower bound"


class Resolvent:
    """(I − M)⁻¹ for a nonnegative sparse M, ready to be applied to right-hand sides.

    >>> M = scipy.sparse.csr_array([[0.0, 0.5], [0.0, 0.5]])
    >>> Resolvent(M).solve(np.ones(2))
    Solved(x=array([2., 2.]), residual=0.0, means='dense LU')
    """

    def __init__(self, M: Sparse) -> None:
        self.M = M
        self.n = M.shape[0]
        self._norm = 1 + float(np.max(_row_sums(M), initial=0.0))

    def solve(self, b: Array, *, transpose: bool = False) -> Solved:
        """Solve (I − M)x = b, or (I − M)ᵀx = b, for one or several columns b."""
        if b.ndim == 2:
            columns = [self.solve(column, transpose=transpose) for column in b.T]
            worst = max(columns, key=lambda column: column.residual)
            return worst._replace(x=np.stack([column.x for column in columns], axis=1))
        if not np.isfinite(b).all():
            raise InputError("reward", "too large", "its square overflows; scale the rewards down")
        if self.n == 0:
            return Solved(b, 0.0, "nothing to solve")
        M = self._transposed if transpose else self.M
        tried = []
        for means, solver in self._solvers(transpose):
            x, residual = self._refine(M, b, solver)
            if residual <= ACCEPTABLE:
                return Solved(x, residual, means)
            tried.append(f"{means} reached {residual:.1e}")
        raise ConvergenceError(
            f"a linear system of {self.n} states was not solved to a relative residual of "
            f"{ACCEPTABLE:g}: {'; '.join(tried) or 'no factors'}. It is singular or close to it: "
            "some states take too long to reach γ < 1"
        )

    def _refine(self, M: Sparse, b: Array, solver: Apply) -> tuple[Array, float]:
        """Solve, then solve again for what is left, while that helps."""
        x = np.zeros_like(b)
        scale = float(np.max(np.abs(b), initial=0.0))
        if scale == 0:
            return x, 0.0
        best = np.inf
        with np.errstate(all="ignore"):
            for _ in range(6):
                rest = b - (x - M @ x)
                largest = float(np.max(np.abs(rest)))
                residual = largest / (scale + self._norm * float(np.max(np.abs(x))))
                if not residual < best:  # also where it is NaN
                    break
                best, found = residual, x
                if residual <= TARGET:
                    break
                x = x + solver(rest)
        return (found, best) if np.isfinite(best) else (x, np.inf)

    def _solvers(self, transpose: bool) -> Iterator[tuple[str, Apply]]:
        """Cheapest first; each is asked for only where the ones before it did not do."""
        trans = "T" if transpose else "N"
        if self.n <= DENSE:
            if self._dense is not None:
                lu = self._dense
                yield "dense LU", lambda b: scipy.linalg.lapack.dgetrs(*lu, b, trans=transpose)[0]
            return
        direct = self.n <= DIRECT or _envelope(self.M) <= THIN * self.n
        if direct and self._factors is not None:
            factors = self._factors
            yield "sparse LU", lambda b: factors.solve(b, trans=trans)
        if self.n <= DIRECT:
            return
        yield "BiCGSTAB", self._krylov(transpose, None)
        if not direct and self._banded is not None:
            order, banded = self._banded
            yield "sparse LU", lambda b: _permuted(banded, order, b, trans)
        if self._incomplete is not None:
            incomplete = self._incomplete
            yield (
                "BiCGSTAB with incomplete LU",
                self._krylov(transpose, lambda b: incomplete.solve(b, trans=trans)),
            )

    def _krylov(self, transpose: bool, preconditioner: Apply | None) -> Apply:
        M = self._transposed if transpose else self.M
        shape = (self.n, self.n)
        operator = scipy.sparse.linalg.LinearOperator(shape, matvec=lambda x: x - M @ x)
        inner = (
            None
            if preconditioner is None
            else scipy.sparse.linalg.LinearOperator(shape, matvec=preconditioner)
        )

        def solver(b: Array) -> Array:
            x, _ = scipy.sparse.linalg.bicgstab(
                operator, b, rtol=1e-12, atol=0.0, maxiter=1_500, M=inner
            )
            return np.asarray(x)

        return solver

    @cached_property
    def _transposed(self) -> Sparse:
        return self.M.T.tocsr()

    @cached_property
    def _dense(self) -> tuple[Array, Array] | None:
        lu, pivots, singular = scipy.linalg.lapack.dgetrf(np.eye(self.n) - self.M.toarray())
        return None if singular else (lu, pivots)

    @cached_property
    def _factors(self) -> scipy.sparse.linalg.SuperLU | None:
        order = "MMD_AT_PLUS_A" if self.n <= DIRECT else "NATURAL"
        return _superlu(_minus_from_identity(self.M), order)

    @cached_property
    def _banded(self) -> tuple[NDArray[np.intp], scipy.sparse.linalg.SuperLU] | None:
        """Factors in reverse Cuthill–McKee order, if their fill is affordable."""
        order = scipy.sparse.csgraph.reverse_cuthill_mckee(_without_duplicates(self.M))
        A = _minus_from_identity(self.M)[order][:, order]
        if _envelope(A.tocsr()) > FILL:
            return None
        lu = _superlu(A.tocsc(), "NATURAL")
        return None if lu is None else (order, lu)

    @cached_property
    def _incomplete(self) -> scipy.sparse.linalg.SuperLU | None:
        try:
            return scipy.sparse.linalg.spilu(
                _minus_from_identity(self.M), drop_tol=1e-4, fill_factor=10
            )
        except RuntimeError:  # exactly singular
            return None


def spectral_radius(M: Sparse, resolvent: Resolvent | None = None) -> Radius:
    """Spectral radius of M ≥ 0: exact for a small M, otherwise a certified bound on the side of 1.

    A row-sum bound below 1 costs nothing, those of a few powers little. Otherwise x = (I − M)⁻¹1
    decides: the radius is below 1 if and only if x exists and x ≥ 1, and Collatz–Wielandt bounds
    it by max (Mx)ᵢ/xᵢ.

    >>> spectral_radius(scipy.sparse.csr_array([[0.0, 4.0], [0.25, 0.0]]))
    Radius(value=1.0, kind='lower bound')
    """
    bound = float(np.max(_row_sums(M), initial=0.0))
    exact = _spectrum(M)
    if bound >= 1:
        certified, failure = _certified(M, resolvent)
        if certified is None:
            estimate = _growth(M) if exact is None else exact
            if failure is not None and estimate < 1 - 1e-6:
                raise failure  # not a matter of the radius
            return Radius(max(1.0, estimate), "lower bound")
        bound = certified
    return Radius(bound, "upper bound") if exact is None else Radius(min(exact, bound), "exact")


def _certified(
    M: Sparse, resolvent: Resolvent | None
) -> tuple[float | None, ConvergenceError | None]:
    """An upper bound below 1, from the cheapest certificate; and what went wrong on the way."""
    attempts: tuple[Callable[[], float | None], ...] = (
        lambda: _certificate_by_powers(M),
        lambda: _certificate(M, resolvent or Resolvent(M)),
        lambda: _certificate_by_parts(M),
    )
    failure = None
    for attempt in attempts:
        try:
            bound = attempt()
        except ConvergenceError as error:
            failure = error
        else:
            if bound is not None:
                return bound, None
    return None, failure


def _certificate_by_powers(M: Sparse) -> float | None:
    """‖Mᵏ‖^(1/k) for the first k of a few at which it is below 1: a solve costs much more."""
    x = np.ones(M.shape[0])
    for k in range(1, POWERS + 1):
        x = M @ x
        largest = float(np.max(x, initial=0.0))
        if largest < 1 - ROUNDING * k:
            return float(largest ** (1 / k))
    return None


def _certificate(M: Sparse, resolvent: Resolvent) -> float | None:
    """An upper bound below 1 for the radius of M, or None where there is none to be had."""
    x = np.ones(M.shape[0])
    bounds: list[float] = []
    for _ in range(3 if resolvent.n <= DIRECT else 1):  # each round sharpens it, for one solve
        x = resolvent.solve(x).x
        x = x / np.max(np.abs(x))
        if not np.all(x > 0):
            break
        bounds.append(float(np.max((M @ x) / x)))
    best = min(bounds, default=1.0)
    return best if best < 1 - ROUNDING else None


def _certificate_by_parts(M: Sparse) -> float | None:
    """The same from the strongly connected parts alone: what leads on does not matter.

    Long ways with large weights hide the radius of the whole behind rounding, as in a chain.
    """
    M = _without_duplicates(M)
    count, part = scipy.sparse.csgraph.connected_components(M, connection="strong")
    if count == 1:
        return None
    coo = M.tocoo()
    inside = part[coo.row] == part[coo.col]
    parts = scipy.sparse.csr_array(
        (coo.data[inside], (coo.row[inside], coo.col[inside])), shape=M.shape
    )
    bound = float(np.max(_row_sums(parts), initial=0.0))
    return bound if bound < 1 else _certificate(parts, Resolvent(parts))


def _spectrum(M: Sparse) -> float | None:
    n = M.shape[0]
    if n > SPECTRUM:
        return None
    return float(np.max(np.abs(np.linalg.eigvals(M.toarray())), initial=0.0))


def _growth(M: Sparse, steps: int = 500) -> float:
    """A lower bound for the radius: min (Mx)ᵢ/xᵢ over the support of any x ≥ 0."""
    x = np.ones(M.shape[0])
    best = 0.0
    for _ in range(steps):
        y = M @ x
        support = x > 1e-9 * x.max()
        z = np.where(support, x, 0.0)
        best = max(best, float(np.min((M @ z)[support] / z[support])))
        x = (y + x) / 2  # lazy: periodic chains converge too
        x /= x.max()
    return best


def _row_sums(M: Sparse) -> Array:
    return np.asarray(M @ np.ones(M.shape[1]))


def _without_duplicates(M: Sparse) -> Sparse:
    """Parallel edges summed: scipy's graph routines do not end on duplicate entries."""
    M = M.copy()
    M.sum_duplicates()
    return M


def _minus_from_identity(M: Sparse) -> scipy.sparse.csc_array:
    return (scipy.sparse.eye_array(M.shape[0], format="csr") - M).tocsc()


def _envelope(M: Sparse) -> int:
    """Bound the fill of factors in this order: the profiles of rows (for L) and columns (for U)."""
    index = np.arange(M.shape[0])
    row_of = np.repeat(index, np.diff(M.indptr))
    left, top = index.copy(), index.copy()
    np.minimum.at(left, row_of, M.indices)
    np.minimum.at(top, M.indices, row_of)
    return int(np.sum(index - left) + np.sum(index - top))


def _superlu(A: scipy.sparse.csc_array, order: str) -> scipy.sparse.linalg.SuperLU | None:
    """Factors without pivoting, which an M-matrix does not need; None where A is singular."""
    try:
        return scipy.sparse.linalg.splu(
            A, permc_spec=order, diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
    except RuntimeError:
        return None


def _permuted(
    lu: scipy.sparse.linalg.SuperLU, order: NDArray[np.intp], b: Array, trans: str
) -> Array:
    x = np.empty_like(b)
    x[order] = lu.solve(b[order], trans=trans)
    return x
