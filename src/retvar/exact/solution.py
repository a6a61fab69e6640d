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
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.attribution import Attribution, attribution
from retvar.exact.moments import (
    NAMES,
    HigherMoments,
    central_moments,
    check_order,
    deviation,
    mean_of_return,
    mean_reward,
    moment_reward,
    moment_system,
    noisy_states,
)
from retvar.exact.several import Noise, Rewards, SeveralReturns, solve_several
from retvar.mdp import MDP, WeightedEdges, state_values, weigh_edges
from retvar.mdp.linear import Apply, Resolvent, reaching
from retvar.mdp.weighted_edges import Estimand, sum_by_action
from retvar.support import arguments
from retvar.support.errors import InfiniteVarianceError, InputError
from retvar.support.format import align, count, listed, number, plus_minus, visible
from retvar.support.html import MOST, Shown, page, table

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from retvar.exact.law import Law

__all__ = ["Solution", "StateSolution", "solve"]

Array = NDArray[np.float64]
MAX_INVERTED = 200  # most states for which many right-hand sides are multiplied by the inverse
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
ORDERS = {"third_moment": 3, "skewness": 3, "fourth_moment": 4, "kurtosis": 4}  # of fields
DIGITS = 6  # significant digits of the table of a solution


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


@dataclass(frozen=True, eq=False)
class Solution(HigherMoments, Shown):
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
    order: int
    _moments: tuple[Array, ...]  # of orders 2, 3, …
    _bootstrap: Array  # H
    _edges: WeightedEdges

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
        return self._actions["q"]

    @property
    def q_mean(self) -> Array:
        """Mean of the λ-return of each action; `q` unless it bootstraps from another function."""
        return self._actions["q_mean"]

    @property
    def q_variance(self) -> Array:
        """Variance of the λ-return of each action; NaN as for `q`, and where it is infinite."""
        return self._actions["q_variance"]

    @property
    def q_std(self) -> Array:
        """Standard deviation of the λ-return of each action; NaN as for `q_variance`."""
        return self._actions["q_std"]

    @functools.cached_property
    def _actions(self) -> dict[str, Array]:
        """Value, mean, variance and spread [state, action], computed when they are asked for.

        With C = γ′λ′, over the reward and the next state that follow s and a:

            q = E[R + (γ′−C)H′ + Cg′]        Var = E[(R + (γ′−C)H′ + Cg′ − q)²] + E[C²v′]
        """
        mdp, H = self.mdp, self._bootstrap
        e, after = mdp.edges, mdp.edges.next_state  # γ is 0 where an episode ends

        def expect(x: Array) -> Array:
            return np.where(mdp.available, sum_by_action(mdp, e.probability * x), np.nan)

        c = e.gamma * self._edges.arriving[after]
        inside = e.reward + (e.gamma - c) * H[after] + c * self.mean[after]
        q_mean = q = expect(inside)
        epsilon = inside - q_mean[e.state, e.action]
        rest = np.where((c > 0) & (e.probability > 0), c**2 * self.variance[after], 0.0)
        if self.mean is not self.value:
            q = expect(e.reward + e.gamma * self.value[after])
        V = expect(epsilon**2 + e.reward_std**2 + rest)
        return {"q": q, "q_mean": q_mean, "q_variance": V, "q_std": np.sqrt(V)}

    def _moment(self, order: int) -> Array:
        """A moment, or an InputError if it was not asked for."""
        if order > self.order:
            remedy = f"the {NAMES[order]} needs order={order}; solve with it"
            raise InputError("order", self.order, remedy)
        return self._moments[order - 2]

    @functools.cached_property
    def _spread(self) -> Array:
        """The variance, 0 where it consists of rounding."""
        f = self._edges
        noisy = noisy_states(f, deviation(f, self._bootstrap, self.mean), self.mean)
        ways = f.matrix((f.decay > 0).astype(np.float64))
        return np.where(reaching(ways, noisy), self.variance, 0)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all that is known about a state.

        >>> import retvar as rv
        >>> rv.solve(rv.domains.chain(), order=3).fields[4:]
        ('second_moment', 'third_moment', 'skewness')
        """
        return tuple(f for f in StateSolution._fields if ORDERS.get(f, 2) <= self.order)

    @property
    def note(self) -> NDArray[np.str_]:
        """Why a number is missing, for each state; empty where none is."""
        texts = ["", *(f"the {NAMES[k]} is infinite" for k in range(2, self.order + 1))]
        lowest = np.where(self.finite_order < self.order, self.finite_order, 0)
        return np.array(texts)[lowest]

    @property
    def notes(self) -> list[str]:
        """One sentence for each moment that is infinite in some states."""
        infinite = {k: np.flatnonzero(self.finite_order < k) for k in range(2, self.order + 1)}
        return [
            f"the {NAMES[k]} is infinite in {listed(map(self.mdp.state_name, states.tolist()))}"
            for k, states in infinite.items()
            if states.size
        ]

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
        return xarray.Dataset(columns, {"state": self.mdp.state_labels}, {"order": self.order})

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
        left_out = ["third_moment", "fourth_moment", *(["mean"] if self.mean is self.value else [])]
        fields = [field for field in self.fields if field not in left_out]
        rows = [["state", *(f.replace("_", " ") for f in fields)]]
        columns = zip(*(getattr(self, f)[:most].tolist() for f in fields), strict=True)
        for s, numbers in enumerate(columns):
            rows.append([self.mdp.state_name(s), *(f"{x:.{DIGITS}g}" for x in numbers)])
        return rows

    def summary(self, most: int = 100) -> str:
        """A readable table of the first `most` states."""
        rows = [[visible(cell) for cell in row] for row in self.table(most)]
        width = max(len(row[0]) for row in rows)
        lines = align([[row[0].ljust(width), *row[1:]] for row in rows])
        rest = self.mdp.n_states + 1 - len(rows)
        return "\n".join([*lines, *[f"… and {rest:,} more states"] * (rest > 0), *self.notes])

    __str__ = summary

    def __repr__(self) -> str:
        return (
            f"Solution({count(self.mdp.n_states, 'state')}, "
            f"spectral radius {format_radius(self.spectral_radius)} "
            f"({self.radius_kind}), residual {self.residual:.1e}, "
            f"by {' and '.join(dict.fromkeys(self.solvers))})"
        )

    def _html(self) -> str:
        same = self.mean is self.value
        shapes = [f for f in ("skewness", "kurtosis") if f in self.fields]
        heading = ["state", *(["value ± std"] if same else ["value", "mean ± std"]), "variance"]
        columns = [getattr(self, f)[:MOST] for f in ("value", "mean", "std", "variance", *shapes)]
        rows = []
        for s, (value, mean, std, variance, *rest) in enumerate(zip(*columns, strict=True)):
            row = [self.mdp.state_name(s), *([] if same else [number(value)])]
            row += [plus_minus(mean, std, "∞"), "∞" if np.isnan(variance) else number(variance)]
            rows.append([*row, *map(number, rest)])
        name = f"{self.mdp.name}: " if self.mdp.name else ""
        return page(
            f"{name}{self!r}", table([*heading, *shapes], rows, self.mdp.n_states), notes=self.notes
        )

    def attribution(self, state: int | str) -> Attribution:
        """Where the variance from a state arises: shares of edges, actions and states.

        One adjoint solution of the system of the variance. The share of a state is Var(Σ D_t ε_t)
        over the visits of it, divided by the variance: D_t is the product of ηγ′λ′ before step t,
        and ε_t the deviation that the step adds.

        >>> import retvar as rv
        >>> print(rv.solve(rv.domains.chain(lam=1)).attribution("s2"))
        variance of the return from s2: 2
        state  action  next state  share  of it reward noise
        s2     go      s3          50.0%  50.0%
        s3     go      end         50.0%  50.0%
        """
        return attribution(self, state)

    def law(self, tolerance: float = 1e-3) -> Law:
        """The law of the return in every state, as a bracket: see :func:`retvar.law`.

        >>> import retvar as rv
        >>> print(rv.solve(rv.domains.chain(lam=1)).law()["s3"].probability_below(0))
        [0.157..., 0.160...]
        """
        from retvar.exact.law import law_of

        return law_of(self, tolerance)

    def plot(self, states: Iterable[int | str] | None = None) -> Figure:
        """Draw it, all states or some, by :func:`retvar.plots.solution`.

        >>> import retvar as rv
        >>> rv.solve(rv.domains.chain()).plot(["s1", "s2"]).axes[0].get_ylabel()
        'return'
        """
        figure: Figure = importlib.import_module(PLOTS).solution(self, states)
        return figure


@overload
def solve(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    value: ArrayLike | None = None,
    lam: ArrayLike | None = None,
    *,
    order: int = 2,
) -> Solution: ...


@overload
def solve(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    *,
    lam: ArrayLike | None = None,
    rewards: Rewards,
    noise: Noise | None = None,
) -> SeveralReturns: ...


def solve(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    value: ArrayLike | None = None,
    lam: ArrayLike | None = None,
    *,
    order: int = 2,
    rewards: Rewards | None = None,
    noise: Noise | None = None,
) -> Solution | SeveralReturns:
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
    rewards
        Several rewards by name, instead of the MDP's: each one number, one an edge (an array in
        the order of ``mdp.edges``), or R[s], R[s, a] or R[s, a, s′]. The answer has covariances,
        too; see :class:`SeveralReturns`.
    noise
        Of these rewards: by name its standard deviation, by a pair of names its correlation, in
        the same forms; default: none.

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
    if rewards is not None:
        if order != 2 or value is not None:
            field = "order" if order != 2 else "value"
            raise InputError(field, "given", "goes with one reward; leave it out, or rewards")
        return solve_several(mdp, edges, rewards, noise or {})
    if noise is not None:
        raise InputError("noise", "given", "goes with rewards")
    return solve_weighted(mdp, edges, None if value is None else checked_value(mdp, value), order)


def checked_value(mdp: MDP, value: ArrayLike) -> Array:
    """A value function that is given: one finite number for each state."""
    return arguments.numbers("value", value, mdp.n_states, mdp.state_name)


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
    systems, moments = zip(*central_moments(edges, H, g, order), strict=True)
    solved += moments
    finite_order = np.asarray(1 + np.sum([~system.infinite for system in systems], axis=0))
    values = tuple(each.x for each in moments)
    for array in (j, g, *values, finite_order):
        array.flags.writeable = False
    return Solution(
        mdp=mdp,
        value=j,
        mean=g,
        variance=values[0],
        spectral_radius=systems[0].radius.value,
        radius_kind=systems[0].radius.kind,
        residual=max(each.residual for each in solved),
        error=max(each.error for each in solved),
        solvers=tuple(each.solver for each in solved),
        finite_order=finite_order,
        order=order,
        _moments=values,
        _bootstrap=H,
        _edges=edges,
    )


def variance_function(edges: WeightedEdges) -> Apply:
    """Return a function from values H [case, state] to variances of the λ-returns [case, state].

    They are NaN where they are infinite.
    """
    system = moment_system(edges, 2, None)
    if system.grows.any():  # which states are infinite depends on H
        return lambda values: np.stack([_variance(edges, H) for H in values])
    mean = _applied(Resolvent(edges.matrix(edges.decay)))
    variance = _applied(system.resolvent)

    def variances(values: Array) -> Array:
        g = np.stack([mean(edges.expect(x)) for x in mean_reward(edges, values)])
        found = [variance(moment_reward(edges, x, [])) for x in deviation(edges, values, g)]
        return np.maximum(found, 0.0)

    return variances


def _variance(edges: WeightedEdges, H: Array) -> Array:
    """Variances for one H; NaN where they are infinite."""
    try:
        return central_moments(edges, H, mean_of_return(edges, H).x, 2)[0][1].x
    except InfiniteVarianceError:
        return np.full(edges.n, np.nan)


def _applied(resolvent: Resolvent) -> Apply:
    """A function that applies a resolvent to many right-hand sides, one after the other."""
    if resolvent.n > MAX_INVERTED:
        return lambda b: resolvent.solve(b).x
    inverse = resolvent.solve(np.eye(resolvent.n)).x
    return lambda b: np.asarray(inverse @ b)
