"""Linear systems (I − M)x = b with M ≥ 0, the spectral radius of M, and searches in its graph.

Every closed form in retvar is such a system, with M a matrix of discounted transition
probabilities. Small systems are factorised and large ones solved iteratively. Every solution states
its solver and the residual reached.
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

from retvar.support.errors import ConvergenceError, InputError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Sparse: TypeAlias = scipy.sparse.csr_array
Apply = Callable[[Array], Array]

MAX_DENSE = 150  # most states for which LAPACK is faster than sparse factors
MAX_DIRECT = 1_000  # most states for which sparse factors are always computed
MAX_ENVELOPE = 20  # average envelope per row for which the natural order has almost no fill
MAX_FILL = 100_000_000  # most entries of the factors of a large system
TARGET_RESIDUAL = 1e-14  # backward error at which refinement stops
MAX_RESIDUAL = 1e-11  # a larger backward error raises a ConvergenceError
MAX_ERROR = 1e-2  # a larger bound on the forward error raises a ConvergenceError
EPSILON = float(np.finfo(np.float64).eps)
MARGIN = 1e-13  # a bound this far below 1 is below 1 in exact arithmetic too
MAX_POWER = 12  # highest power of M whose norm is computed
MAX_REFINED = 1_000  # steps that refine the eigenvector of a small matrix
MAX_SPECTRUM = 64  # most states for which the radius is computed from all eigenvalues


class LinearSolution(NamedTuple):
    """A solution x of a linear system, its accuracy and its solver."""

    x: Array
    residual: float  #: backward error ‖b − Ax‖/(‖b‖ + ‖A‖‖x‖)
    error: float  #: bound on ‖x − exact‖/‖x‖, including rounding of the input
    solver: str


class Radius(NamedTuple):
    """A spectral radius that is exact or a certified bound, according to ``kind``."""

    value: float
    kind: Literal["exact", "upper bound", "lower bound"]

    @property
    def below_one(self) -> bool:
        """Whether the radius is certified to be below 1."""
        return self.value < 1 and self.kind != "lower bound"


class Resolvent:
    """(I − M)⁻¹ for a nonnegative sparse M, applied to right-hand sides by :meth:`solve`.

    >>> M = scipy.sparse.csr_array([[0.0, 0.5], [0.0, 0.5]])
    >>> Resolvent(M).solve(np.ones(2)).x
    array([2., 2.])
    """

    def __init__(self, M: Sparse) -> None:
        self.M = M
        self.n = M.shape[0]
        self._norm = 1 + float(np.max(_row_sums(M), initial=0.0))

    def solve(self, b: Array, *, transpose: bool = False, by_state: bool = False) -> LinearSolution:
        """Solve (I − M)x = b, or (I − M)ᵀx = b, for one or several columns b.

        If the bound on the error is too large, `by_state` tries one for badly scaled systems.
        """
        if b.ndim == 2:
            columns = [self.solve(column, transpose=transpose) for column in b.T]
            worst = max(columns, key=lambda column: column.residual)
            return worst._replace(x=np.stack([column.x for column in columns], axis=1))
        if not np.isfinite(b).all():
            remedy = "a power of it overflows; scale rewards and values down"
            raise InputError("reward or value", "too large", remedy)
        if self.n == 0:
            return LinearSolution(b, 0.0, 0.0, "nothing to solve")
        M = self._transposed if transpose else self.M
        tried = []
        for name, solver in self._solvers(transpose):
            x, residual = self._refine(M, b, solver)
            if residual <= MAX_RESIDUAL:
                error = self._error(b, x, residual, transpose, by_state)
                return LinearSolution(x, residual, error, name)
            tried.append(f"{name} reached {residual:.1e}")
        raise ConvergenceError(
            f"a linear system of {self.n} states was not solved to a relative residual of "
            f"{MAX_RESIDUAL:g}: {'; '.join(tried) or 'no factors'}. It is singular or nearly so: "
            "some states take too long to reach γ < 1"
        )

    def _error(self, b: Array, x: Array, residual: float, transpose: bool, by_state: bool) -> float:
        """Bound on the forward error: ‖A⁻¹‖ times the residual or rounding, whichever is larger."""
        size = float(np.max(np.abs(x)))
        if size == 0:
            return 0.0
        remaining = max(residual, EPSILON) * (float(np.max(np.abs(b))) + self._norm * size)
        if transpose:  # inverse_norm is a row norm; distributions are normalised later
            return residual
        error = self.inverse_norm * remaining / size
        if error > MAX_ERROR and by_state:
            error = min(error, self._error_by_state(b, x) / size)
        if error > MAX_ERROR:
            raise ConvergenceError(
                f"the solution would have an error of {error:.0%} or more: rounding of the "
                f"probabilities is amplified {self.inverse_norm:.1e} times, because some states "
                "take that many steps to reach γ < 1"
            )
        return error

    def _error_by_state(self, b: Array, x: Array) -> float:
        """A bound on ‖x − exact‖ that large entries of M, where x is small, do not spoil.

        A⁻¹ ≥ 0 times what remains of each equation: its residual, and the rounding of its terms.
        """
        after = self.M @ np.abs(x)
        left = np.abs(b - (x - self.M @ x)) + EPSILON * (np.abs(b) + np.abs(x) + after)
        for _, solver in self._solvers(False):
            y, residual = self._refine(self.M, left, solver)
            if residual <= MAX_RESIDUAL and np.all(y >= 0):
                return float(np.max(y))
        return np.inf

    @cached_property
    def inverse_norm(self) -> float:
        """A bound on the largest row sum of |(I − M)⁻¹|; ∞ if there is none."""
        bounds = _bound_by_powers(self.M)
        if bounds is not None:
            return bounds[1]
        x = self.applied_to_ones
        return np.inf if x is None else float(np.max(np.abs(x)))

    @cached_property
    def applied_to_ones(self) -> Array | None:
        """(I − M)⁻¹1, whose largest entry is the row norm if M's radius is below 1."""
        for _, solver in self._solvers(False):
            x, residual = self._refine(self.M, np.ones(self.n), solver)
            if residual <= MAX_RESIDUAL:
                return x
        return None

    def _refine(self, M: Sparse, b: Array, solver: Apply) -> tuple[Array, float]:
        """Solve by iterative refinement, while the residual decreases."""
        x = np.zeros_like(b)
        scale = float(np.max(np.abs(b), initial=0.0))
        if scale == 0:
            return x, 0.0
        best = np.inf
        with np.errstate(all="ignore"):
            for _ in range(6):
                error = b - (x - M @ x)
                largest = float(np.max(np.abs(error)))
                residual = largest / (scale + self._norm * float(np.max(np.abs(x))))
                if not residual < best:  # also for NaN
                    break
                best, best_x = residual, x
                if residual <= TARGET_RESIDUAL:
                    break
                x = x + solver(error)
        return (best_x, best) if np.isfinite(best) else (x, np.inf)

    def _solvers(self, transpose: bool) -> Iterator[tuple[str, Apply]]:
        """Solvers with their names, cheapest first; the next one is used if a solver fails."""
        trans = "T" if transpose else "N"
        if self.n <= MAX_DENSE:
            if self._dense is not None:
                lu = self._dense
                yield "dense LU", lambda b: scipy.linalg.lapack.dgetrs(*lu, b, trans=transpose)[0]
            return
        direct = self.n <= MAX_DIRECT or _envelope(self.M) <= MAX_ENVELOPE * self.n
        if direct and self._factors is not None:
            factors = self._factors
            yield "sparse LU", lambda b: factors.solve(b, trans=trans)
        if self.n <= MAX_DIRECT:
            return
        M = self._transposed if transpose else self.M
        operator = scipy.sparse.linalg.LinearOperator(M.shape, matvec=lambda x: x - M @ x)
        limits = {"rtol": 1e-12, "atol": 0.0, "maxiter": 1_500}
        yield "BiCGSTAB", lambda b: scipy.sparse.linalg.bicgstab(operator, b, **limits)[0]
        if not direct and self._banded is not None:
            order, banded = self._banded
            back = np.argsort(order)
            yield "sparse LU", lambda b: banded.solve(b[order], trans=trans)[back]

    @cached_property
    def _transposed(self) -> Sparse:
        return self.M.T.tocsr()

    @cached_property
    def _dense(self) -> tuple[Array, Array] | None:
        lu, pivots, singular = scipy.linalg.lapack.dgetrf(np.eye(self.n) - self.M.toarray())
        return None if singular else (lu, pivots)

    @cached_property
    def _factors(self) -> scipy.sparse.linalg.SuperLU | None:
        order = "MMD_AT_PLUS_A" if self.n <= MAX_DIRECT else "NATURAL"
        return _superlu(_minus_from_identity(self.M), order)

    @cached_property
    def _banded(self) -> tuple[NDArray[np.intp], scipy.sparse.linalg.SuperLU] | None:
        """Factors in reverse Cuthill–McKee order, unless they have too many entries."""
        order = scipy.sparse.csgraph.reverse_cuthill_mckee(_without_duplicates(self.M))
        A = _minus_from_identity(self.M)[order][:, order]
        if _envelope(A.tocsr()) > MAX_FILL:
            return None
        lu = _superlu(A.tocsc(), "NATURAL")
        return None if lu is None else (order, lu)


def spectral_radius(M: Sparse, resolvent: Resolvent | None = None) -> Radius:
    """Spectral radius of M ≥ 0: exact for small M, otherwise a certified bound below or above 1.

    Row sums below 1, of M or of one of its first powers, certify cheaply that it is below 1.
    Otherwise x = (I − M)⁻¹1 decides: the radius is below 1 if and only if x exists and x ≥ 1, and
    it is at most max (Mx)ᵢ/xᵢ (Collatz–Wielandt). A ConvergenceError is raised if rounding prevents
    the decision.

    >>> spectral_radius(scipy.sparse.csr_array([[0.0, 4.0], [0.5, 0.0]]))
    Radius(value=1.4142135623730951, kind='exact')
    """
    exact = _radius_by_components(M) if M.shape[0] <= MAX_SPECTRUM else None
    if exact is not None:
        return Radius(exact if abs(exact - 1) > MARGIN else 1.0, "exact")
    bounds = _bound_by_powers(M)
    bound = bounds[0] if bounds is not None else _certified_bound(M, resolvent or Resolvent(M))
    if bound is None:  # long paths between parts, as in a chain, hide it by rounding
        within = _inside_parts(M)[0].tocsr()  # has the same radius
        bound = _certified_bound(within, Resolvent(within))
    if bound is not None:
        return Radius(bound, "upper bound")
    lower = _lower_bound(M)
    if lower >= 1:
        return Radius(lower, "lower bound")
    raise ConvergenceError(
        f"the spectral radius is at least {lower:.9f}, and rounding prevents a decision whether it "
        "is below 1"
    )


def reaching(M: Sparse, goal: Mask) -> Mask:
    """States from which a goal can be reached along the nonzero entries of M, goals included.

    >>> chain = scipy.sparse.csr_array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    >>> reaching(chain, np.array([False, True, False]))
    array([ True,  True, False])
    """
    if not goal.any() or goal.all():
        return goal.copy()
    n = M.shape[0]
    edges, goals = M.tocoo(), np.flatnonzero(goal)
    used = edges.data != 0
    # search backwards from an extra state n that every goal leads to
    rows = np.concatenate([edges.col[used], np.full(goals.size, n)])
    columns = np.concatenate([edges.row[used], goals])
    back = scipy.sparse.coo_array((np.ones(rows.size), (rows, columns)), shape=(n + 1, n + 1))
    found = np.zeros(n + 1, dtype=bool)
    order = scipy.sparse.csgraph.breadth_first_order(back.tocsr(), n, return_predecessors=False)
    found[order] = True
    return found[:n]


def expanding(M: Sparse) -> Mask:
    """States in a strongly connected part whose block of M ≥ 0 has a radius of 1 or more.

    >>> expanding(scipy.sparse.csr_array([[0.5, 3.0], [0.0, 2.0]]))
    array([False,  True])
    """
    edges, part = _inside_parts(M)
    inside, alone = edges.tocsr(), np.bincount(part)[part] == 1
    large = _row_sums(inside) >= 1 - MARGIN
    found: Mask = alone & large  # whose only edge inside is a loop
    for k in np.unique(part[large & ~alone]):
        members = np.flatnonzero(part == k)
        found[members] = not spectral_radius(inside[members][:, members].tocsr()).below_one
    return found


def _bound_by_powers(M: Sparse) -> tuple[float, float] | None:
    """Bounds ‖Mᵏ‖^(1/k) of the radius and ‖ΣMⁱ‖/(1 − ‖Mᵏ‖) of ‖(I − M)⁻¹‖, for the first k < 12."""
    x = np.ones(M.shape[0])
    total = np.zeros(M.shape[0])
    for k in range(1, MAX_POWER + 1):
        total += x
        x = M @ x
        largest = float(np.max(x, initial=0.0))
        if largest < 1 - MARGIN * k:
            return largest ** (1 / k), float(np.max(total, initial=0.0)) / (1 - largest)
    return None


def _certified_bound(M: Sparse, resolvent: Resolvent) -> float | None:
    """An upper bound below 1 for the radius of M, or None."""
    x = resolvent.applied_to_ones
    bounds = [1.0]
    for _ in range(3 if resolvent.n <= MAX_DIRECT else 1):  # each solve improves the bound
        if x is None or not np.all(x > 0):
            break
        x = x / np.max(x)
        bounds.append(float(np.max((M @ x) / x)))
        try:
            x = resolvent.solve(x).x if resolvent.n <= MAX_DIRECT else None
        except ConvergenceError:
            break
    best = min(bounds)
    return best if best < 1 - MARGIN else None


def _inside_parts(M: Sparse) -> tuple[scipy.sparse.coo_array, NDArray[np.int32]]:
    """The entries of M inside its strongly connected parts, and the part of each state."""
    edges = _without_duplicates(M)
    _, part = scipy.sparse.csgraph.connected_components(edges, connection="strong")
    edges = edges.tocoo()
    inside = part[edges.row] == part[edges.col]
    entries = edges.data[inside], (edges.row[inside], edges.col[inside])
    return scipy.sparse.coo_array(entries, shape=M.shape), part


def _radius_by_components(M: Sparse) -> float | None:
    """The radius of a small M: the largest Perron root of its strongly connected components.

    Each root is checked by Collatz–Wielandt bounds from both sides; None if they disagree.
    """
    edges, component = _inside_parts(M)
    dense = edges.toarray()
    roots = [0.0]
    for label in range(component.max(initial=-1) + 1):
        members = np.flatnonzero(component == label)
        block = dense[np.ix_(members, members)]
        root = float(block[0, 0]) if members.size == 1 else _perron_root(block)
        if root is None:
            return None
        roots.append(root)
    return max(roots)


def _perron_root(block: Array) -> float | None:
    """The radius of an irreducible matrix, between min (Mx)ᵢ/xᵢ and max (Mx)ᵢ/xᵢ.

    Tiny entries of the eigenvector x have few digits; powers of M ≥ 0, which cancel nothing, give
    them all. None if the bounds do not meet.
    """
    values, vectors = np.linalg.eig(block)
    x = np.abs(vectors[:, np.argmax(values.real)])
    for _ in range(MAX_REFINED):
        if x.min() > 0:
            ratios = (block @ x) / x
            if ratios.max() - ratios.min() <= 1e-9 * ratios.max():
                return float(ratios.max())
        x = block @ x + values.real.max() * x  # averaged, so that periodic chains converge too
        x /= x.max()
    return None


def _lower_bound(M: Sparse, steps: int = 500) -> float:
    """A lower bound for the radius: min (Mx)ᵢ/xᵢ over the support of any x ≥ 0."""
    x = np.ones(M.shape[0])
    best = 0.0
    for _ in range(steps):
        y = M @ x
        support = x > 1e-9 * x.max()
        z = np.where(support, x, 0.0)
        best = max(best, float(np.min((M @ z)[support] / z[support])))
        x = (y + x) / 2  # averaged, so that periodic chains converge too
        x /= x.max()
    return best


def _row_sums(M: Sparse) -> Array:
    return np.asarray(M @ np.ones(M.shape[1]))


def _without_duplicates(M: Sparse) -> Sparse:
    """Sum parallel edges; scipy's graph routines do not terminate on duplicate entries."""
    M = M.copy()
    M.sum_duplicates()
    return M


def _minus_from_identity(M: Sparse) -> scipy.sparse.csc_array:
    return (scipy.sparse.eye_array(M.shape[0], format="csr") - M).tocsc()


def _envelope(M: Sparse) -> int:
    """Bound on the entries of the factors in this order: profiles of rows (L) and columns (U)."""
    index = np.arange(M.shape[0])
    row_of = np.repeat(index, np.diff(M.indptr))
    left, top = index.copy(), index.copy()
    np.minimum.at(left, row_of, M.indices)
    np.minimum.at(top, M.indices, row_of)
    return int(np.sum(index - left) + np.sum(index - top))


def _superlu(A: scipy.sparse.csc_array, order: str) -> scipy.sparse.linalg.SuperLU | None:
    """Factors without pivoting, which an M-matrix does not need; None if A is singular."""
    try:
        return scipy.sparse.linalg.splu(
            A, permc_spec=order, diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
    except RuntimeError:
        return None
