"""Value, mean and variance of the λ-return in closed form.

The notation (b, η, E[·], matrices Σ b x) is that of :mod:`retvar.mdp.weighted_edges`. H is the
value function that the λ-return bootstraps from: the true one, j, or any other.

    j = (I − PG)⁻¹ E[ηr]                                             PG  = Σ b ηγ′
    g = (I − PGL)⁻¹ E[η(r + γ′(1−λ′)H′)]                             PGL = Σ b ηγ′λ′
    v = (I − B)⁻¹ (E[(η(r + γ′((1−λ′)H′ + λ′g′)) − g)²] + E[η²w])     B   = Σ b (ηγ′λ′)²

w is the variance of the reward. Higher moments, and in which states a moment is finite, are in
:mod:`retvar.exact.moments`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InfiniteVarianceError, InputError
from retvar.exact.action_values import ActionMoments, StateMoments
from retvar.exact.moments import (
    NAMES,
    check_order,
    deviation,
    kurtosis,
    mean_of_return,
    moment_reward,
    moment_system,
    noisy_states,
    skewness,
)
from retvar.format import align, count, listed, number, plus_minus, visible
from retvar.html import MOST, Shown, page, table
from retvar.linear import Apply, LinearSolution, Radius, Resolvent, reaching
from retvar.mdp import MDP, WeightedEdges, state_values, weigh_edges
from retvar.mdp.weighted_edges import Estimand

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = ["Solution", "StateSolution", "solve"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
MAX_INVERTED = 200  # most states for which many right-hand sides are multiplied by the inverse
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
SHAPES = ("skewness", "kurtosis")
DIGITS = 6  # significant digits of the table of a solution
SMALLEST = 1e-140  # variances below, relative to the largest, have squares with too few digits


class StateSolution(NamedTuple):
    """Exact value, mean and variance of one state; higher moments are None if not asked for.

    >>> import retvar as rv
    >>> rv.solve(rv.domains.chain(lam=1))["s3"]
    StateSolution(value=1.0, mean=1.0, variance=1.0, std=1.0, second_moment=2.0)
    >>> rv.solve(rv.domains.chain(lam=1), order=4)["s3"].kurtosis
    0.0
    """

    value: float
    mean: float
    variance: float
    std: float
    second_moment: float
    third_moment: float | None = None
    fourth_moment: float | None = None
    skewness: float | None = None
    kurtosis: float | None = None

    def __repr__(self) -> str:
        known = (f"{field}={x!r}" for field, x in self._asdict().items() if x is not None)
        return f"{type(self).__name__}({', '.join(known)})"


FIELDS = {  # of a state, by the order that they need
    2: ("value", "mean", "variance", "std", "second_moment"),
    3: ("third_moment", "skewness"),
    4: ("fourth_moment", "kurtosis"),
}


@dataclass(frozen=True, eq=False)
class Solution(Shown):
    """Exact value and variance of every state of an MDP; index it by state for one of them.

    Attributes
    ----------
    value
        True value j of each state.
    mean
        Mean g of the λ-return; equal to `value` unless it bootstraps from another function.
    variance
        Variance v of the λ-return; NaN where it is infinite.
    order
        The highest moment asked for: 2, 3 or 4.
    finite_order
        The highest moment up to `order` that is finite, for each state.
    spectral_radius
        Spectral radius of B; if it is below 1, the variance is finite in every state.
    radius_kind
        Whether the spectral radius is ``exact``, a certified ``upper bound``, or a ``lower bound``
        of 1 or more.
    residual
        Largest backward error ‖b − Ax‖/(‖b‖ + ‖A‖‖x‖) of the linear systems solved.
    error
        Bound on the relative error of the solution, including rounding of the probabilities.
    solvers
        Solver of each linear system, in order: ``dense LU``, ``sparse LU`` or ``BiCGSTAB``.

    Examples
    --------
    >>> import retvar as rv
    >>> solution = rv.solve(rv.domains.chain(lam=1))
    >>> solution.std
    array([2.        , 1.73205081, 1.41421356, 1.        ])
    >>> solution["s1"].variance
    3.0
    >>> print(solution)
    state  value  variance      std  second moment
    s0         4         4        2             20
    s1         3         3  1.73205             12
    s2         2         2  1.41421              6
    s3         1         1        1              2
    """

    mdp: MDP
    value: Array
    mean: Array
    variance: Array
    spectral_radius: float
    radius_kind: str
    residual: float
    error: float
    solvers: tuple[str, ...]
    finite_order: NDArray[np.intp]
    order: int = 2
    _scaled: tuple[Array, ...] = ()  # moments of orders 2, 3, … of the return divided by 2ᵉ
    _exponent: int = 0  # e
    _certain: Mask | None = None  # states whose variance is 0 but for rounding
    _bootstrap: Array = field(default_factory=lambda: np.zeros(0))  # H
    _lam: Array = field(default_factory=lambda: np.zeros(0))  # on arrival in each state

    @property
    def std(self) -> Array:
        """Standard deviation of the λ-return."""
        return np.ldexp(np.sqrt(self._scaled[0]), self._exponent)

    @property
    def second_moment(self) -> Array:
        """Second moment of the λ-return, variance + mean²."""
        return self.variance + self.mean**2

    @property
    def third_moment(self) -> Array:
        """Third central moment of the λ-return; NaN where it is infinite (``order=3`` or 4)."""
        return np.ldexp(self._moment(3), 3 * self._exponent)

    @property
    def fourth_moment(self) -> Array:
        """Fourth central moment of the λ-return; NaN where it is infinite (``order=4``)."""
        return np.ldexp(self._moment(4), 4 * self._exponent)

    @property
    def skewness(self) -> Array:
        """Third moment / variance^1.5; NaN where the variance is 0 or the moment infinite."""
        return skewness(self._spread, self._moment(3))

    @property
    def kurtosis(self) -> Array:
        """Excess kurtosis, fourth moment / variance² − 3; NaN as for the skewness."""
        return kurtosis(self._spread, self._moment(4))

    @property
    def q(self) -> Array:
        """Value [state, action] of taking an action first and following the policy then.

        NaN where a state does not have an action. `q_mean`, `q_variance` and `q_std` are mean,
        variance and standard deviation of the λ-return of this first action: of its reward and,
        discounted, of the λ-return that `mean` and `variance` are of. Off-policy its own ratio
        plays no part, since the action is given.

        >>> import retvar as rv
        >>> rv.solve(rv.domains.complex_mdp()).q[1].round(3)
        array([-0.122, -0.891,  1.109,  1.051,  2.051])
        """
        return self._actions.value

    @property
    def q_mean(self) -> Array:
        """Mean of the λ-return of each action; `q` unless it bootstraps from another function."""
        return self._actions.mean

    @property
    def q_variance(self) -> Array:
        """Variance of the λ-return of each action; NaN as for `q`, and where it is infinite."""
        return self._actions.variance

    @property
    def q_std(self) -> Array:
        """Standard deviation of the λ-return of each action; NaN as for `q_variance`."""
        return self._actions.std

    @functools.cached_property
    def _actions(self) -> ActionMoments:
        """Moments of the return of each action, computed when they are asked for."""
        after = StateMoments(self.value, self.mean, self.std, self._bootstrap, self._lam)
        return ActionMoments(self.mdp, after)

    @property
    def action_data(self) -> xr.Dataset:
        """All numbers of all actions as an ``xarray.Dataset`` of [state, action].

        >>> import retvar as rv
        >>> data = rv.solve(rv.domains.complex_mdp()).action_data
        >>> round(float(data.q_std.sel(state="s1", action=3)), 6)
        0.243726
        """
        import xarray

        names = ("q", "q_mean", "q_variance", "q_std")
        columns = {name: (("state", "action"), getattr(self, name)) for name in names}
        states = list(self.mdp.state_names or range(self.mdp.n_states))
        actions = list(self.mdp.action_names or range(self.mdp.n_actions))
        return xarray.Dataset(columns, {"state": states, "action": actions})

    def _moment(self, order: int) -> Array:
        """A scaled moment, or an InputError if it was not asked for."""
        if order > self.order:
            raise InputError(
                "order", self.order, f"{FIELDS[order][0]} needs order={order}; solve with it"
            )
        return self._scaled[order - 2]

    @property
    def _spread(self) -> Array:
        """The scaled variance, 0 where it consists of rounding."""
        v = self._scaled[0]
        return v if self._certain is None else np.where(self._certain, 0, v)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all that is known about a state.

        >>> import retvar as rv
        >>> rv.solve(rv.domains.chain(), order=3).fields[4:]
        ('second_moment', 'third_moment', 'skewness')
        """
        known = {name for k in range(2, self.order + 1) for name in FIELDS[k]}
        return tuple(field for field in StateSolution._fields if field in known)

    @property
    def note(self) -> NDArray[np.str_]:
        """Why a number is missing, for each state; empty where none is."""
        texts = ["", *(f"the {NAMES[k]} is infinite" for k in range(2, self.order + 1))]
        lowest = np.where(self.finite_order < self.order, self.finite_order, 0)
        return np.array(texts)[lowest]

    @property
    def notes(self) -> list[str]:
        """One sentence for each moment that is infinite in some states.

        >>> import retvar as rv
        >>> rv.solve(rv.domains.chain()).notes
        []
        """
        found = []
        for k in range(2, self.order + 1):
            states = np.flatnonzero(self.finite_order < k)
            if states.size:
                names = listed(self.mdp.state_name(int(s)) for s in states)
                found.append(f"the {NAMES[k]} is infinite in {names}")
        return found

    @property
    def data(self) -> xr.Dataset:
        """All numbers and notes of all states as an ``xarray.Dataset``.

        >>> import retvar as rv
        >>> data = rv.solve(rv.domains.chain(), order=4).data
        >>> float(data.kurtosis.sel(state="s3"))
        0.0
        """
        import xarray

        columns = {field: ("state", getattr(self, field)) for field in (*self.fields, "note")}
        names = self.mdp.state_names or range(self.mdp.n_states)
        return xarray.Dataset(columns, {"state": list(names)}, {"order": self.order})

    def __len__(self) -> int:
        return self.mdp.n_states

    def __iter__(self) -> Iterator[StateSolution]:
        return (self[s] for s in range(len(self)))

    def __getitem__(self, state: int | str) -> StateSolution:
        s = self.mdp.state_index(state)
        return StateSolution(**{field: float(getattr(self, field)[s]) for field in self.fields})

    def table(self, most: int | None = None) -> list[list[str]]:
        """Rows of text: a heading, then the first `most` states (default: all).

        Of the higher moments it has the skewness and the excess kurtosis.
        """
        same_mean = self.mean is self.value
        left_out = {"third_moment", "fourth_moment", *(["mean"] if same_mean else [])}
        fields = [field for field in self.fields if field not in left_out]
        count = self.mdp.n_states
        shown = count if most is None else min(arguments.integer("most", most, 0), count)
        columns = [getattr(self, f)[:shown] for f in fields]
        heading = ["state", *(f.replace("_", " ") for f in fields)]
        body = [
            [self.mdp.state_name(s), *(f"{column[s]:.{DIGITS}g}" for column in columns)]
            for s in range(shown)
        ]
        return [heading, *body]

    def __str__(self) -> str:
        return self.summary()

    def summary(self, most: int = 100) -> str:
        """A readable table of the first `most` states."""
        rows = [[visible(cell) for cell in row] for row in self.table(most)]
        width = max(len(row[0]) for row in rows)
        lines = align([[row[0].ljust(width), *row[1:]] for row in rows])
        rest = self.mdp.n_states + 1 - len(rows)
        more = [f"… and {rest:,} more states"] if rest else []
        return "\n".join([*lines, *more, *self.notes])

    def __repr__(self) -> str:
        return (
            f"Solution({count(self.mdp.n_states, 'state')}, "
            f"spectral radius {format_radius(self.spectral_radius)} "
            f"({self.radius_kind}), residual {self.residual:.1e}, "
            f"by {' and '.join(dict.fromkeys(self.solvers))})"
        )

    def _html(self) -> str:
        same, shapes = self.mean is self.value, [f for f in SHAPES if f in self.fields]
        heading = ["state", *([] if same else ["value"]), f"{'value' if same else 'mean'} ± std"]
        heading += ["variance", *shapes]
        columns = [getattr(self, f)[:MOST] for f in ("value", "mean", "std", "variance", *shapes)]
        rows = []
        for s, (value, mean, std, variance, *rest) in enumerate(zip(*columns, strict=True)):
            row = [self.mdp.state_name(s), *([] if same else [number(value)])]
            row += [plus_minus(mean, std, "∞"), "∞" if np.isnan(variance) else number(variance)]
            rows.append([*row, *map(number, rest)])
        name = f"{self.mdp.name}: " if self.mdp.name else ""
        found = table(heading, rows, self.mdp.n_states)
        return page(f"{name}{self!r}", found, notes=self.notes)

    def plot(self, states: Iterable[int | str] | None = None) -> Figure:
        """Draw it, all states or some, by :func:`retvar.plots.solution`.

        >>> import retvar as rv
        >>> rv.solve(rv.domains.chain()).plot(["s1", "s2"]).axes[0].get_ylabel()
        'return'
        """
        figure: Figure = importlib.import_module(PLOTS).solution(self, states)
        return figure


def solve(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    value: ArrayLike | None = None,
    lam: ArrayLike | None = None,
    *,
    order: int = 2,
) -> Solution:
    """Compute the exact value and variance, or more moments, of the λ-return of every state.

    Parameters
    ----------
    mdp
        The MDP.
    target
        Target policy: a name, :class:`~retvar.Policy`, array or callable; default: the MDP's
        first.
    behaviour
        Behaviour policy, which generates the experience; default: the target.
    estimand
        ``"target_return"``: the return under the target policy. ``"off_policy_return"``: the
        return weighted by importance ratios under the behaviour policy.
    value
        Value function that the λ-return bootstraps from; default: the true one.
    lam
        λ that replaces the MDP's: a number, or one per state.
    order
        The highest central moment: 2, or 3 and 4 for skewness and kurtosis. In states in which a
        moment is infinite it is NaN; `Solution.notes` names them.

    Raises
    ------
    InfiniteVarianceError
        If a moment asked for is infinite in every state.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.solve(rv.domains.complex_mdp()).variance.round(6)
    array([0.141518, 1.091959, 0.521739, 0.23761 , 0.031015])
    >>> rv.solve(rv.domains.complex_mdp(), "pi", "mu", "off_policy_return").variance.round(3)
    array([0.159, 1.224, 0.924, 2.524, 0.106])
    >>> rv.solve(rv.domains.complex_mdp(), order=4).kurtosis.round(6)
    array([-1.19691 , -1.19691 ,  2.815726, -1.701393,  0.054544])
    """
    order = check_order(order)
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    if value is not None:
        value = arguments.numbers("value", value, mdp.n_states, mdp.state_name)
    return solve_weighted(mdp, edges, value, order)


def format_radius(radius: float) -> str:
    """A spectral radius with few digits; one below 1 is not rounded to 1.

    >>> format_radius(0.75), format_radius(1 - 1e-9)
    ('0.75', '1 − 1e-09')
    """
    return f"1 − {1 - radius:.1g}" if 1 - 1e-6 < radius < 1 else f"{radius:.6g}"


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError later
def solve_weighted(mdp: MDP, edges: WeightedEdges, H: Array | None, order: int = 2) -> Solution:
    """Solve for weighted edges; H = None stands for the true value function."""
    solved = [state_values(edges)]
    j = solved[0].x
    if H is None:
        H = g = j
    else:
        solved.append(mean_of_return(edges, H))
        g = solved[-1].x
    moments = _central_moments(edges, H, g, order)
    solved += moments.solved
    v = np.ldexp(moments.scaled[0], 2 * moments.exponent)
    for array in (j, g, v, *moments.scaled, moments.finite_order):
        array.flags.writeable = False
    return Solution(
        mdp=mdp,
        value=j,
        mean=g,
        variance=v,
        spectral_radius=moments.radius.value,
        radius_kind=moments.radius.kind,
        residual=max(each.residual for each in solved),
        error=max(each.error for each in solved),
        solvers=tuple(each.solver for each in solved),
        finite_order=moments.finite_order,
        order=order,
        _scaled=tuple(moments.scaled),
        _exponent=moments.exponent,
        _certain=moments.certain,
        _bootstrap=H,
        _lam=edges.arriving,
    )


class _Moments(NamedTuple):
    """Central moments of orders 2, 3, … of all states, of the return divided by 2ᵉ."""

    scaled: list[Array]
    exponent: int
    solved: list[LinearSolution]
    finite_order: NDArray[np.intp]
    radius: Radius  # of B
    certain: Mask | None


def _central_moments(edges: WeightedEdges, H: Array, g: Array, order: int) -> _Moments:
    """Solve for the moments about g, one order after the other.

    Deviations are divided by a power of 2, which changes no digit, so that their squares do not
    underflow.
    """
    deviations = deviation(edges, H, g)
    noisy = functools.partial(noisy_states, edges, deviations, g)
    exponent = _exponent(deviations, edges.eta * edges.reward_std)
    epsilon = np.ldexp(deviations, -exponent)
    scaled = replace(edges, reward_std=np.ldexp(edges.reward_std, -exponent))
    values: list[Array] = []
    systems, solved = [], []
    finite_order = np.ones(edges.n, dtype=np.intp)
    for k in range(2, order + 1):
        system = moment_system(edges, k, noisy)
        found = system.solve(moment_reward(scaled, epsilon, values))
        x = found.x if k == 3 else np.maximum(found.x, 0.0)  # rounding
        if not np.isfinite((np.ldexp(x, k * exponent) + g * g)[~system.infinite]).all():
            raise InputError(
                "reward or value", "too large", "a power of it overflows; scale them down"
            )
        values.append(x)
        systems.append(system)
        solved.append(found)
        finite_order[~system.infinite] = k
    certain = None
    if order > 2:
        ways = edges.matrix((edges.decay > 0).astype(np.float64))
        certain = ~reaching(ways, noisy())
        _check_size(values[0][~certain])
    return _Moments(values, exponent, solved, finite_order, systems[0].radius, certain)


def _exponent(*sizes: Array) -> int:
    """The exponent of 2 that belongs to the largest number."""
    largest = max(float(np.max(np.abs(x), initial=0.0)) for x in sizes)
    return int(np.frexp(largest)[1]) if 0 < largest < np.inf else 0


def _check_size(variance: Array) -> None:
    """Raise an InputError if the square of a scaled variance underflows."""
    if np.any((variance > 0) & (variance < SMALLEST)):
        raise InputError(
            "reward or value",
            "too small",
            "beside the largest one its fourth power underflows; solve these states apart",
        )


def variance_function(edges: WeightedEdges) -> Apply:
    """Return a function from values H [case, state] to variances of the λ-returns [case, state].

    They are NaN where they are infinite.

    >>> import retvar as rv
    >>> from retvar.mdp import weigh_edges
    >>> mdp, H = rv.domains.complex_mdp(), [1.0, 2.0, 3.0, 4.0, 5.0]
    >>> gap = variance_function(weigh_edges(mdp))(np.array([H])) - rv.solve(mdp, value=H).variance
    >>> bool(abs(gap).max() < 1e-12)
    True
    """
    system = moment_system(edges, 2, None)
    if system.grows.any():  # which states are infinite depends on H
        return lambda values: np.stack([_variance(edges, H) for H in values])
    mean = _column_solver(Resolvent(edges.matrix(edges.decay)))
    variance = _column_solver(system.resolvent)
    expect = scipy.sparse.csr_array(
        (edges.b, (edges.state, np.arange(edges.b.size))), shape=(edges.n, edges.b.size)
    )
    reward, gamma, lam, eta = (
        x[:, None] for x in (edges.reward, edges.gamma, edges.lam, edges.eta)
    )
    noise = (edges.eta * edges.reward_std)[:, None]

    def variances(values: Array) -> Array:
        H = values.T[edges.next_state]  # [edge, case]
        bootstrapped = eta * (reward + gamma * (1 - lam) * H)
        g = mean(expect @ bootstrapped)
        inside = bootstrapped + eta * gamma * lam * g[edges.next_state]
        source = expect @ ((inside - g[edges.state]) ** 2 + noise**2)
        return np.maximum(variance(source), 0.0).T

    return variances


def _variance(edges: WeightedEdges, H: Array) -> Array:
    """Variances for one H; NaN where they are infinite."""
    try:
        found = _central_moments(edges, H, mean_of_return(edges, H).x, 2)
        return np.ldexp(found.scaled[0], 2 * found.exponent)
    except InfiniteVarianceError:
        return np.full(edges.n, np.nan)


def _column_solver(resolvent: Resolvent) -> Apply:
    """A function that solves for each column; its bits do not depend on the number of columns."""
    if resolvent.n > MAX_INVERTED:
        return lambda columns: resolvent.solve(columns).x
    inverse = resolvent.solve(np.eye(resolvent.n)).x
    return lambda columns: np.stack([inverse @ column for column in columns.T], axis=1)
