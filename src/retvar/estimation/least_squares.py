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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.stats import t as student

from retvar.errors import InputError
from retvar.estimation.inverse import Inverse
from retvar.estimation.ratio_check import RatioCheck, check_sums
from retvar.estimation.transition_sums import TransitionSums
from retvar.linear import expanding, reaching
from retvar.reading import free_memory

__all__ = ["BLOCK", "LeastSquares", "Solver", "least_squares", "require_room"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
BYTES = 350  # of the estimates of a state
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

    @property
    def std(self) -> Array:
        """Standard deviation of the return."""
        return np.sqrt(self.variance)

    def value_interval(self, level: float) -> tuple[Array, Array]:
        """Value ± t × standard error."""
        reach = _quantile(level, self.value_df) * self.value_error
        return self.value - reach, self.value + reach

    def std_interval(self, level: float) -> tuple[Array, Array]:
        """Std × exp(± t × relative standard error), which holds together with the variance's."""
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = self.variance_error / (2.0 * self.variance)
        reach = np.minimum(_quantile(level, self.variance_df) * relative, SHIFT_LIMIT)
        return self.std * np.exp(-reach), self.std * np.exp(reach)

    def __getitem__(self, states: NDArray[np.intp]) -> LeastSquares:
        columns: dict[str, Any] = {
            name: column[states] if isinstance(column, np.ndarray) else column
            for name, column in vars(self).items()
        }
        return LeastSquares(**columns)


def _quantile(level: float, df: Array) -> Array:
    found: Array = student.ppf(0.5 + level / 2, np.clip(df, 1.0, LARGEST_DF))
    return found


def least_squares(
    sums: TransitionSums, states: int, *, at: NDArray[np.intp] | None = None, seed: int = 0
) -> LeastSquares:
    """Solve for value and variance of all states, with standard errors.

    Parameters
    ----------
    sums
        The transitions, summed.
    states
        Number of states.
    at
        States whose standard errors are wanted; by default all, or the 512 most visited where there
        are more than 2,000.
    seed
        Of the random probes for more than 2,000 states.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> sums = TransitionSums()
    >>> zero = np.zeros(10_000, dtype=int)
    >>> sums.add(zero, zero, rng.normal(3.0, 2.0, zero.size), gamma=0.5, lam=1.0)
    >>> found = least_squares(sums, 1)
    >>> found.value.round(1), found.std.round(1)  # 3/(1 − 0.5), √(4/(1 − 0.25))
    (array([6.]), array([2.3]))
    """
    return Solver(sums, states, seed).solution(at)


class Solver:
    """The systems of a log, factorised once: standard errors of further states come cheaply.

    >>> sums, state = TransitionSums(), np.arange(2)
    >>> sums.add(state, state, np.array([1.0, 3.0]), gamma=0.5, lam=1.0)
    >>> Solver(sums, 2).solution().value
    array([2., 6.])
    """

    def __init__(self, sums: TransitionSums, states: int, seed: int = 0) -> None:
        if len(sums) == 0:
            raise InputError("experience", "no transition", "there is nothing to estimate from")
        self._present, self._states = np.union1d(sums.state, sums.next_state), states
        self._problem = _Problem(sums, self._present, seed)

    def solution(self, at: NDArray[np.intp] | None = None) -> LeastSquares:
        """Estimates of all states; `at` as in :func:`least_squares`."""
        if at is not None:
            at = np.searchsorted(self._present, np.intersect1d(at, self._present))
        return _expanded(self._problem.solution(at), self._present, self._states)


def require_room(states: int) -> None:
    """Refuse more states than there is memory for their estimates.

    >>> require_room(10**12)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: states = 1,000,000,000,000: do not fit in memory; use fewer
    """
    if states * BYTES > free_memory():
        raise InputError("states", f"{states:,}", "do not fit in memory; use fewer")


def _expanded(found: LeastSquares, present: NDArray[np.intp], states: int) -> LeastSquares:
    """The same for all states; those that do not occur were never visited."""
    if present.size == states:
        return found
    require_room(states)
    columns: dict[str, Any] = {}
    for name, column in vars(found).items():
        if isinstance(column, np.ndarray):
            missing = {"note": NOT_REACHED, "visits": 0, "effective_visits": 0.0}.get(name, np.nan)
            columns[name] = np.full(states, missing, dtype=column.dtype)
            columns[name][present] = column
        else:
            columns[name] = column
    return LeastSquares(**columns)


class _Problem:
    """The empirical MDP of a log, restricted to the states that it determines."""

    def __init__(self, sums: TransitionSums, present: NDArray[np.intp], seed: int) -> None:
        self.sums, self.states, self.seed = sums, present.size, seed
        self.s, self.s2 = (np.searchsorted(present, x) for x in (sums.state, sums.next_state))
        self.g, self.l = sums.discount, sums.trace_discount
        self.visits = self._by_state(sums.moment(0, 0)).astype(np.int64)
        self.W = self._by_state(sums.moment(1, 0))
        squares = self._by_state(sums.moment(2, 0))
        self.left = self.W > 0
        self.safe_W = np.where(self.left, self.W, 1.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            kish = np.where(squares > 0, self.W**2 / squares, 0.0)
        self.n = np.minimum(kish, self.W)

    # ------------------------------------------------------------------ sums by state

    def _by_state(self, x: Array) -> Array:
        return np.bincount(self.s, x, minlength=self.states).astype(np.float64, copy=False)

    def _matrix(self, x: Array) -> scipy.sparse.csr_array:
        """[s, s′]: the sum of x over the keys, divided by W(s)."""
        shape = (self.states, self.states)
        x = x / self.safe_W[self.s]
        M = scipy.sparse.coo_array((x, (self.s, self.s2)), shape=shape).tocsr()
        M.eliminate_zeros()
        return M

    # ------------------------------------------------------------------ which states are determined

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
    def ratios(self) -> RatioCheck | None:
        """Mean importance ratios of the states, and which are not 1; None on-policy."""
        return check_sums([self.sums], self.states, [self.s])

    # ------------------------------------------------------------------ the value

    @cached_property
    def inverse(self) -> Inverse:
        """(I − P)⁻¹ on the determined states; the others lead nowhere."""
        return Inverse(_rows_of(self.P, self.determined))

    @cached_property
    def J(self) -> Array:
        """The value; states never left take the visit-weighted mean of the others."""
        reward = self.sums.of_polynomial(1, [self.sums.centre, np.ones(len(self.sums))])
        mean = np.where(self.determined, self._by_state(reward) / self.safe_W, 0.0)
        J = self.inverse.solve(mean)
        holes = (self.reached & ~self.left).astype(np.float64)
        if holes.any():
            share = np.where(self.determined, self.visits, 0) / max(
                1, self.visits[self.determined].sum()
            )
            through = self.inverse.solve(holes)
            weight = float(share @ through)
            if weight < 0.99:
                J = J + float(share @ J) / (1.0 - weight) * through
        return J

    @cached_property
    def d0(self) -> Array:
        """δ = (r − c) + d0 in each key."""
        return self.sums.centre + self.g * self.J[self.s2] - self.J[self.s]

    @cached_property
    def alone(self) -> Mask:
        """States with fewer than two effective visits: their noise is that of the others."""
        return self.n < ALONE

    @cached_property
    def correction(self) -> Array:
        """n/(n − 1), 1 where a state is alone."""
        return np.where(self.alone, 1.0, self.n / np.maximum(self.n - 1.0, 1e-9))

    @cached_property
    def squared_errors(self) -> Array:
        """n/(n − 1) Σρδ²/W, the pool where a state is alone."""
        one, d0 = np.ones(len(self.sums)), self.d0
        squares = self._by_state(self.sums.of_polynomial(1, [d0 * d0, 2.0 * d0, one]))
        return np.where(self.determined, self.correction * squares / self.safe_W, 0.0)

    @cached_property
    def pool(self) -> float:
        """The visit-weighted mean of the squared errors of the states that are not alone."""
        weight = np.where(self.determined & ~self.alone, self.visits, 0)
        return float((weight * self.squared_errors).sum() / max(1, weight.sum()))

    @cached_property
    def xi2(self) -> Array:
        """Σξ² of each state, uncorrected."""
        one, d0 = np.ones(len(self.sums)), self.d0
        squares = self._by_state(self.sums.of_polynomial(2, [d0 * d0, 2.0 * d0, one]))
        return np.where(self.determined, squares / self.safe_W**2, 0.0)

    def _noise(self, power: int) -> Array:
        """(n/(n−1))ᵖΣξ², or the pool over the visits where a state is alone."""
        own = self.correction**power * self.xi2
        shared = self.pool / np.maximum(self.n, 0.5)
        return np.where(self.determined, np.where(self.alone, shared, own), 0.0)

    # ------------------------------------------------------------------ the variance

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
            signs = np.random.default_rng(self.seed).choice([-1.0, 1.0], (self.states, PROBES))
            X = self.inverse.solve(root[:, None] * signs) / math.sqrt(PROBES)
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

    # ------------------------------------------------------------------ influence

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
        D = [self.d0, np.ones(len(self.sums))]
        total = np.zeros(self.states)
        power = [np.ones(len(self.sums))]
        for _ in range(q):
            power = _product(power, D)
        for k in range(p + 1):
            by_state = self._by_state(self.sums.of_polynomial(k + q, power))
            total += math.comb(p, k) * (-mean) ** (p - k) * by_state / self.safe_W ** (k + q)
            power = _product(power, A)
        return np.where(self.finite, total, 0.0)

    @cached_property
    def C(self) -> scipy.sparse.csr_array:
        """Σ2ρδg/W: how u changes with the values that follow."""
        errors = self.sums.of_polynomial(1, [self.d0, np.ones(len(self.sums))])
        return _rows_of(self._matrix(2.0 * self.g * errors), self.finite)

    # ------------------------------------------------------------------ all together

    def solution(self, at: NDArray[np.intp] | None) -> LeastSquares:
        """Everything; standard errors for the states in `at`."""
        nan = np.full(self.states, np.nan)
        found = {
            "value": np.where(self.determined, self.J, np.nan),
            "variance": np.where(self.finite, self.V, np.nan),
            **{
                f"{what}_{part}": nan.copy()
                for what in ("value", "variance")
                for part in ("error", "df", "events")
            },
        }
        at = self._wanted() if at is None else at
        block = BLOCK if self.inverse.dense else LARGE_BLOCK
        for first in range(0, at.size, block):
            self._add_errors(found, at[first : first + block])
        note = self._withhold(found)
        return LeastSquares(
            **found, visits=self.visits, effective_visits=self.n, note=note,
            probes=not self.inverse.dense,
        )  # fmt: skip

    def _wanted(self) -> NDArray[np.intp]:
        """States whose standard errors are computed: all, or those most visited."""
        known = np.flatnonzero(self.determined)
        if self.inverse.dense:
            return known
        return known[np.argsort(-self.visits[known], kind="stable")[:BLOCK]]

    def _add_errors(self, found: dict[str, Array], at: NDArray[np.intp]) -> None:
        """Standard errors, degrees of freedom and events of some states."""
        M = self.inverse.rows(at)
        q, df = self._noise(2), np.where(self.alone, 1.0, np.maximum(self.n - 1.0, 1.0))
        M2 = M * M
        self._put(found, "value", at, M2 * q, df, (M2 * M2) @ self._fourth)
        S = self.variance_inverse.rows(at)
        K = self.inverse.times(np.asarray((self.C.T @ S.T).T))
        q2, cross, mixed = self._variance_noise
        terms = S * S * q2 + 2.0 * S * K * cross + K * K * q
        S2, K2 = S * S, K * K
        monomials = (S2 * S2, S2 * S * K, S2 * K2, S * K2 * K, K2 * K2)
        fourth = np.sum([math.comb(4, i) * (monomials[i] @ mixed[i]) for i in range(5)], axis=0)
        self._put(found, "variance", at, terms, df, fourth)

    @cached_property
    def _fourth(self) -> Array:
        """Σξ⁴ of each state."""
        d0, one = self.d0, np.ones(len(self.sums))
        power = [one]
        for _ in range(4):
            power = _product(power, [d0, one])
        total = self._by_state(self.sums.of_polynomial(4, power))
        return np.where(self.determined, total / self.safe_W**4, 0.0)

    @cached_property
    def _variance_noise(self) -> tuple[Array, Array, list[Array]]:
        """Σζ² and Σζξ, corrected, and Σζ⁴⁻ⁱξⁱ for i = 0 … 4."""
        correction = self.correction**2
        shared = 2.0 * self.pool**2 / np.maximum(self.n, 0.5)
        q2 = np.where(self.alone & self.finite, shared, correction * self._mixed(2, 0))
        cross = np.where(self.alone, 0.0, correction * self._mixed(1, 1))
        return q2, cross, [self._mixed(4 - i, i) for i in range(5)]

    @staticmethod
    def _put(
        found: dict[str, Array],
        what: str,
        at: NDArray[np.intp],
        terms: Array,
        df: Array,
        fourth: Array,
    ) -> None:
        total = np.maximum(terms.sum(axis=1), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            events = np.where(total > 0, total**2 / np.maximum(fourth, 1e-300), 0.0)
            spread = total**2 / np.maximum((terms * terms / df).sum(axis=1), 1e-300)
        found[f"{what}_error"][at] = np.sqrt(total)
        found[f"{what}_events"][at] = events
        found[f"{what}_df"][at] = np.minimum(spread, 2.0 * events)

    # ------------------------------------------------------------------ what is not answered

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
        ratios = self.ratios
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
