"""Value and variance of the return by least squares, from the transition sums of a finite world.

The value node's least-squares solution LSTD(0) in a table is the value function of the empirical
MDP; that of the direct method's variance node is the variance of the return there. Neither has a
step size, a trace or a start. Standard errors come from influence functions: what each transition
adds to an estimate. Per transition, with ρ the importance ratio, g = γ′ and l = γ′λ′:

    W = Σρ          P = Σρg/W         M = (I − P)⁻¹        J = M Σρr/W
    δ = r + gJ′ − J                   u = n/(n−1) Σρδ²/W − bias
    B = Σρl²/W                        S = (I − B)⁻¹        V = S u
    ξ = ρδ/W        ζ = ρ(n/(n−1) δ² + l²V′ − V)/W, centred in each state
    C = Σ2ρδg/W     K = S C M
    Var J = M² Σξ²                    Var V = Σ (Sζ + Kξ)²

`bias` is the part of δ² that is due to the error of J itself. n is the effective number of visits.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray
from scipy.special import stdtrit

from retvar.estimation.sums import Sums, check_sums
from retvar.mdp.linear import Resolvent, expanding, reaching
from retvar.support.errors import InputError

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
Mask = NDArray[np.bool_]
DENSE = 2_000  # states up to which matrices are dense and every state gets an interval
BANDWIDTH = 1_000  # mean width of the band up to which sparse factors are computed
TOLERANCE = 1e-5  # of blocks of vectors
ITERATIONS = 500
BLOCK = 512  # rows of M that are formed at once; above DENSE, states that get intervals
LARGE_BLOCK = 32  # rows of M that are formed at once above DENSE
PROBES = 200  # random vectors that stand for the covariance of the values above DENSE
ALONE = 1.9  # effective visits below which the noise of a state is taken from the others
FEW = 10  # visits below which there is no std
EVENTS = 25  # independent events below which an estimate is marked
RELIABLE = 5  # effective visits that off-policy answers need in every state they rest on
LARGEST_DF = 1e6
SHIFT_LIMIT = 50.0  # largest exponent of an interval of the std

NEVER_LEFT = "never left"
NOT_REACHED = "never visited"
NO_END = "no end was seen from here"
INFINITE = "the variance is infinite"
UNRELIABLE = "rests on states with too few effective visits"
ONE_VISIT = "one visit"
FEW_VISITS = "few visits"
NOTHING_VARIED = "nothing varied"
FEW_EVENTS = "rests on few events"
WRONG_RATIOS = "the mean importance ratio is not 1"
TOWARDS_WRONG_RATIOS = "leads to states whose mean importance ratio is not 1"


@dataclass(frozen=True)
class LeastSquares:
    """Estimates of every state; NaN where the log does not determine them, and `note` says why.

    Standard errors are NaN for states whose intervals were not computed.
    """

    value: Array
    variance: Array
    value_error: Array  #: standard error of the value
    variance_error: Array  #: standard error of the variance
    value_df: Array  #: degrees of freedom of the value's interval
    variance_df: Array
    value_events: Array  #: effective number of events that the value rests on
    variance_events: Array
    visits: NDArray[np.int64]
    effective_visits: Array
    note: NDArray[np.str_]  #: empty, or why an estimate is missing or weak
    probes: bool  #: whether random probes stand for the covariance of the values
    assumed: float  #: how much of the values, in the mean over visits, is that of states never left

    @property
    def std(self) -> Array:
        """Standard deviation of the return."""
        return np.sqrt(self.variance)

    def value_interval(self, level: float) -> tuple[Array, Array]:
        """Value ± t × standard error."""
        reach = _quantile(level, self.value_df) * self.value_error
        return self.value - reach, self.value + reach

    def std_interval(self, level: float) -> tuple[Array, Array]:
        """Interval of the std, which holds together with the variance's."""
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = self.variance_error / (2.0 * self.variance)
        return around_std(self.std, relative, self.variance_df, level)


def _quantile(level: float, df: Array) -> Array:
    found: Array = stdtrit(np.clip(df, 1.0, LARGEST_DF), 0.5 + level / 2)
    return found


def around_std(std: Array, log_error: Array, df: Array, level: float) -> tuple[Array, Array]:
    """Std × exp(± t × standard error of log std)."""
    reach = np.minimum(_quantile(level, df) * log_error, SHIFT_LIMIT)
    return std * np.exp(-reach), std * np.exp(reach)


class Solver:
    """The empirical MDP of a log; its systems are factorised once, whatever is asked of it.

    All but `solution` is numbered by the states that occur, restricted to those determined.

    >>> rng, sums, zero = np.random.default_rng(0), Sums(), np.zeros(10_000, dtype=int)
    >>> sums.add(zero, zero, rng.normal(3.0, 2.0, zero.size), gamma=0.5, lam=1.0)
    >>> found = Solver(sums, 1).solution()
    >>> found.value.round(1), found.std.round(1)  # 3/(1 − 0.5), √(4/(1 − 0.25))
    (array([6.]), array([2.3]))
    """

    def __init__(self, sums: Sums, states: int) -> None:
        if len(sums) == 0:
            raise InputError("experience", "no transition", "there is nothing to estimate from")
        self.sums, self._all = sums, states
        self._present = np.union1d(sums.state, sums.next_state)
        self.states = self._present.size
        self.s, self.s2 = (np.searchsorted(self._present, x) for x in (sums.state, sums.next_state))
        self.g, self.l = sums.discount, sums.trace_discount
        self.visits = self._by_state(sums.moment(0, 0)).astype(np.int64)
        self.W = self._by_state(sums.moment(1, 0))
        squares = self._by_state(sums.moment(2, 0))
        self.left = self.W > 0
        self.safe_W = np.where(self.left, self.W, 1.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            kish = np.where(squares > 0, self.W**2 / squares, 0.0)
        self.n = np.minimum(kish, self.W)
        self.alone = self.n < ALONE  # fewer than two effective visits: noise is that of the others
        self.correction = np.where(self.alone, 1.0, self.n / np.maximum(self.n - 1.0, 1e-9))

    def solution(self, at: Integers | None = None) -> LeastSquares:
        """Value and variance of all states, with standard errors of the states `at`.

        These are by default all, or the 512 most visited where there are more than 2,000.
        """
        if at is not None:
            at = np.searchsorted(self._present, np.intersect1d(at, self._present))
        found = self._solved(at)
        if self.states < self._all:
            for name, column in found.items():
                missing = {"note": NOT_REACHED, "visits": 0, "effective_visits": 0.0}
                found[name] = np.full(self._all, missing.get(name, np.nan), dtype=column.dtype)
                found[name][self._present] = column
        return LeastSquares(**found, probes=not self.inverse.dense, assumed=self.assumed)

    def _by_state(self, x: Array) -> Array:
        return np.asarray(np.bincount(self.s, x, minlength=self.states), dtype=np.float64)

    def _matrix(self, x: Array) -> scipy.sparse.csr_array:
        """[s, s′]: the sum of x over the keys, divided by W(s)."""
        shape = (self.states, self.states)
        x = x / self.safe_W[self.s]
        M = scipy.sparse.coo_array((x, (self.s, self.s2)), shape=shape).tocsr()
        M.eliminate_zeros()
        return M

    @cached_property
    def P(self) -> scipy.sparse.csr_array:
        """Σρg/W."""
        return self._matrix(self.sums.moment(1, 0) * self.g)

    @cached_property
    def reached(self) -> Mask:
        """States that were left or arrived in."""
        found = self.left.copy()
        found[self.s2[self.g > 0]] = True
        return found

    @cached_property
    def determined(self) -> Mask:
        """States whose value the log determines: every way from them leads on to an end."""
        rows = np.asarray(self.P.sum(axis=1)).ravel()
        ends = self.left & (rows < 1.0 - 1e-12)
        can_end = reaching(self.P, ends)
        hopeless = self.left & ~can_end
        return self.left & ~reaching(self.P, hopeless)

    @cached_property
    def finite(self) -> Mask:
        """Determined states from which no part of B with a radius of 1 or more is reached."""
        rows = np.asarray(self.B.sum(axis=1)).ravel()
        if (rows < 1.0).all():
            return self.determined
        return self.determined & ~reaching(self.B, expanding(self.B) & self.determined)

    @cached_property
    def reliable(self) -> Mask:
        """States whose answer rests on enough effective visits everywhere; on-policy all."""
        if not self.sums.weighted:
            return self.determined
        weak = self.determined & (self.n < RELIABLE)
        return self.determined & ~reaching(self.P, weak)

    @cached_property
    def inverse(self) -> Inverse:
        """(I − P)⁻¹ on the determined states; the others lead nowhere."""
        return Inverse(_rows_of(self.P, self.determined))

    @cached_property
    def _share(self) -> Array:
        """Share of the visits in each determined state."""
        visits = np.where(self.determined, self.visits, 0)
        return np.asarray(visits / max(1, visits.sum()))

    @cached_property
    def through(self) -> Array:
        """How much of each value is that of states that were reached and never left."""
        holes = (self.reached & ~self.left).astype(np.float64)
        return np.asarray(self.inverse.solve(holes)) if holes.any() else holes

    @property
    def assumed(self) -> float:
        """How much of the values, in the mean over visits, is that of states never left."""
        return float(self._share @ self.through)

    @cached_property
    def J(self) -> Array:
        """The value; states never left take the visit-weighted mean of the others."""
        reward = self.sums.of_polynomial(1, [self.sums.centre, np.ones(len(self.sums))])
        mean = np.where(self.determined, self._by_state(reward) / self.safe_W, 0.0)
        J = self.inverse.solve(mean)
        if 0.0 < self.assumed < 0.99:
            J = J + float(self._share @ J) / (1.0 - self.assumed) * self.through
        return J

    @cached_property
    def d0(self) -> Array:
        """δ = (r − c) + d0 in each key."""
        return np.asarray(self.sums.centre + self.g * self.J[self.s2] - self.J[self.s])

    def _error_power(self, power: int) -> list[Array]:
        """Coefficients of δᵖ in r − c, by key."""
        found = [np.ones(len(self.sums))]
        for _ in range(power):
            found = _product(found, [self.d0, np.ones(len(self.sums))])
        return found

    def _errors(self, a: int, power: int) -> Array:
        """Σρᵃδᵖ/Wᵃ of each state that is determined."""
        total = self._by_state(self.sums.of_polynomial(a, self._error_power(power)))
        return np.where(self.determined, total / self.safe_W**a, 0.0)

    @cached_property
    def squared_errors(self) -> Array:
        """n/(n − 1) Σρδ²/W."""
        return self.correction * self._errors(1, 2)

    @cached_property
    def pool(self) -> float:
        """The visit-weighted mean of the squared errors of the states that are not alone."""
        weight = np.where(self.determined & ~self.alone, self.visits, 0)
        return float((weight * self.squared_errors).sum() / max(1, weight.sum()))

    def _noise(self, power: int) -> Array:
        """(n/(n−1))ᵖΣξ², or the pool over the visits where a state is alone."""
        own = self.correction**power * self._errors(2, 2)
        shared = self.pool / np.maximum(self.n, 0.5)
        return np.where(self.determined, np.where(self.alone, shared, own), 0.0)

    @cached_property
    def B(self) -> scipy.sparse.csr_array:
        """Σρl²/W."""
        return self._matrix(self.sums.moment(1, 0) * self.l * self.l)

    @cached_property
    def value_bias(self) -> Array:
        """What the noise of the values adds to u: Σ P⁽²⁾Σ_J(s′,s′) − (PΣ_JPᵀ)(s,s)."""
        P = _rows_of(self.P, self.determined)
        P2 = _rows_of(self._matrix(self.sums.moment(1, 0) * self.g * self.g), self.determined)
        root = np.sqrt(self._noise(1))
        if self.inverse.dense:
            X = self.inverse.matrix * root
        else:
            signs = np.random.default_rng(0).choice([-1.0, 1.0], (self.states, PROBES))
            X = self.inverse.block(root[:, None] * signs) / math.sqrt(PROBES)
        return np.asarray(P2 @ (X * X).sum(axis=1) - ((P @ X) ** 2).sum(axis=1))

    @cached_property
    def variance_inverse(self) -> Inverse:
        """(I − B)⁻¹ on the states with a finite variance."""
        return Inverse(_rows_of(self.B, self.finite))

    @cached_property
    def V(self) -> Array:
        """The variance of the return."""
        raw = np.where(self.alone, self.pool, self.squared_errors)
        u = np.maximum(raw - self.value_bias, 0.5 * raw)
        return self.variance_inverse.solve(np.where(self.finite, u, 0.0))

    @cached_property
    def _zeta(self) -> tuple[list[Array], Array]:
        """ρA(r − c)/W − mean: the coefficients of A by key, and the mean by state."""
        f, d0 = self.correction[self.s], self.d0
        level = self.l**2 * self.V[self.s2] - self.V[self.s]
        A = [f * d0 * d0 + level, 2.0 * f * d0, f]
        total = self._by_state(self.sums.of_polynomial(1, A)) / self.safe_W
        mean = total / np.maximum(self.visits, 1)
        return A, np.where(self.alone | ~self.finite, 0.0, mean)

    def _mixed(self, p: int, q: int) -> Array:
        """Σ ζᵖξ^q of each state, by the binomial expansion of ζ = ρA/W − mean."""
        A, mean = self._zeta
        total, power = np.zeros(self.states), self._error_power(q)
        for k in range(p + 1):
            by_state = self._by_state(self.sums.of_polynomial(k + q, power))
            total += math.comb(p, k) * (-mean) ** (p - k) * by_state / self.safe_W ** (k + q)
            power = _product(power, A)
        return np.where(self.finite, total, 0.0)

    @cached_property
    def C(self) -> scipy.sparse.csr_array:
        """Σ2ρδg/W: how u changes with the values that follow."""
        errors = self.sums.of_polynomial(1, self._error_power(1))
        return _rows_of(self._matrix(2.0 * self.g * errors), self.finite)

    def _solved(self, at: Integers | None) -> dict[str, Any]:
        """Columns of :class:`LeastSquares`; standard errors for the states in `at`."""
        parts = [f"{what}_{x}" for what in ("value", "variance") for x in ("error", "df", "events")]
        found = {
            "value": np.where(self.determined, self.J, np.nan),
            "variance": np.where(self.finite, self.V, np.nan),
            **{name: np.full(self.states, np.nan) for name in parts},
        }
        block = BLOCK if self.inverse.dense else LARGE_BLOCK
        if at is None:
            at = np.flatnonzero(self.determined)
            if not self.inverse.dense:  # the most visited
                at = at[np.argsort(-self.visits[at], kind="stable")[:BLOCK]]
        for first in range(0, at.size, block):
            self._add_errors(found, at[first : first + block])
        note = self._withhold(found)
        return found | {"visits": self.visits, "effective_visits": self.n, "note": note}

    def _add_errors(self, found: dict[str, Array], at: Integers) -> None:
        """Standard errors, degrees of freedom and events of some states."""
        M, fourth = self.inverse.rows(at), self._errors(4, 4)
        q, q2, cross, mixed = self._all_noise
        self._put(found, "value", at, M * M * q, (M * M) ** 2 @ fourth)
        S = self.variance_inverse.rows(at)
        K = self.inverse.times(np.asarray((self.C.T @ S.T).T))
        terms = S * S * q2 + 2.0 * S * K * cross + K * K * q
        S2, K2 = S * S, K * K
        monomials = (S2 * S2, S2 * S * K, S2 * K2, S * K2 * K, K2 * K2)
        fourth = np.sum([math.comb(4, i) * (monomials[i] @ mixed[i]) for i in range(5)], axis=0)
        self._put(found, "variance", at, terms, fourth)

    @cached_property
    def _all_noise(self) -> tuple[Array, Array, Array, list[Array]]:
        """Σξ², Σζ² and Σζξ, corrected, and Σζ⁴⁻ⁱξⁱ for i = 0 … 4."""
        correction = self.correction**2
        shared = 2.0 * self.pool**2 / np.maximum(self.n, 0.5)
        q2 = np.where(self.alone & self.finite, shared, correction * self._mixed(2, 0))
        cross = np.where(self.alone, 0.0, correction * self._mixed(1, 1))
        return self._noise(2), q2, cross, [self._mixed(4 - i, i) for i in range(5)]

    def _put(
        self, found: dict[str, Array], what: str, at: Integers, terms: Array, fourth: Array
    ) -> None:
        total = np.maximum(terms.sum(axis=1), 0.0)
        df = np.where(self.alone, 1.0, np.maximum(self.n - 1.0, 1.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            events = np.where(total > 0, total**2 / np.maximum(fourth, 1e-300), 0.0)
            spread = total**2 / np.maximum((terms * terms / df).sum(axis=1), 1e-300)
        found[f"{what}_error"][at] = np.sqrt(total)
        found[f"{what}_events"][at] = events
        found[f"{what}_df"][at] = np.minimum(spread, 2.0 * events)

    def _withhold(self, found: dict[str, Array]) -> NDArray[np.str_]:
        """Set to NaN what the log cannot answer, and say why."""
        visits = self.n if self.sums.weighted else self.visits
        note = np.full(self.states, "", dtype="<U64")
        with np.errstate(invalid="ignore"):
            few_events = found["value_events"] < EVENTS
            few_events |= found["variance_events"] < EVENTS
            still = found["value_events"] == 0
        note[few_events] = FEW_EVENTS
        note[still & (visits >= 2)] = NOTHING_VARIED
        note[self.left & (visits < FEW)] = FEW_VISITS
        note[self.left & (visits < 2)] = ONE_VISIT
        note[self.determined & ~self.finite] = INFINITE
        note[self.determined & ~self.reliable] = UNRELIABLE
        self._doubt_ratios(found, note)
        note[self.left & ~self.determined] = NO_END
        note[self.reached & ~self.left] = NEVER_LEFT
        note[~self.reached] = NOT_REACHED
        _blank(found, ~self.reliable, "value", "variance")
        _blank(found, ~self.finite | (visits < FEW), "variance")
        _blank(found, (visits < 2) | still, "value_error")
        varied = found["variance_events"] > 0
        _blank(found, ~varied, "variance_error")
        return note

    def _doubt_ratios(self, found: dict[str, Array], note: NDArray[np.str_]) -> None:
        """Say where ratios are wrong and what leads there; no answer where actions are missing."""
        ratios = check_sums(self.sums, self.states, self.s)
        if ratios is None or not ratios.wrong.any():
            return
        wrong, uncovered = (reaching(self.P, x) for x in (ratios.wrong, ratios.uncovered))
        note[self.determined & wrong] = TOWARDS_WRONG_RATIOS
        note[self.determined & ratios.wrong] = WRONG_RATIOS
        _blank(found, uncovered, "value", "variance")


def _blank(found: dict[str, Array], where: Mask, *names: str) -> None:
    """Set estimates to NaN, with everything that belongs to them."""
    for name in names:
        for column in found:
            if column == name or column.startswith(f"{name}_"):
                found[column][where] = np.nan


def _rows_of(M: scipy.sparse.csr_array, keep: Mask) -> scipy.sparse.csr_array:
    """The matrix with all other rows set to 0."""
    kept = (scipy.sparse.diags_array(keep.astype(np.float64)) @ M).tocsr()
    kept.eliminate_zeros()
    return kept


def _product(a: list[Array], b: list[Array]) -> list[Array]:
    """Coefficients of the product of two polynomials."""
    out = [np.zeros_like(a[0]) for _ in range(len(a) + len(b) - 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] = out[i + j] + x * y
    return out


class Inverse:
    """(I − M)⁻¹ of a sparse matrix, for few and for many states.

    Up to 2,000 states it is a dense matrix. For more, vectors are solved for to rounding. Blocks of
    vectors serve standard errors: they come from sparse factors where these are small, as on maps
    and chains, and otherwise from BiCGSTAB, to five digits, on two threads.
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
        return np.ascontiguousarray(self.solve(np.eye(self.states)))

    def solve(self, b: Array) -> Array:
        """(I − M)⁻¹b for a vector, or columns where it is dense; not finite where b overflowed."""
        if self.dense:
            return np.asarray(scipy.linalg.lu_solve(self._lu, b, check_finite=False))
        return Resolvent(self._M).solve(b).x

    def rows(self, at: NDArray[np.intp]) -> Array:
        """Some rows of the inverse."""
        if self.dense:
            return self.matrix[at]
        units = np.zeros((self.states, at.size))
        units[at, np.arange(at.size)] = 1.0
        return self.block(units, transpose=True).T

    def times(self, rows: Array) -> Array:
        """Row vectors times the inverse."""
        return rows @ self.matrix if self.dense else self.block(rows.T, transpose=True).T

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

    def block(self, b: Array, *, transpose: bool = False) -> Array:
        """(I − M)⁻¹ or its transpose times many columns, where it is not dense."""
        if self._factors is not None:
            return np.asarray(self._factors.solve(b, trans="T" if transpose else "N"))
        matrix = scipy.sparse.eye_array(self.states, format="csr") - self._M
        A = matrix.T.tocsr() if transpose else matrix

        def solved(column: Array) -> Array:
            x, failed = scipy.sparse.linalg.bicgstab(A, column, rtol=TOLERANCE, maxiter=ITERATIONS)
            return np.full_like(x, np.nan) if failed else np.asarray(x)

        with ThreadPoolExecutor(2, "retvar-solve") as threads:  # SciPy's products release the GIL
            return np.stack(list(threads.map(solved, b.T)), axis=1)
