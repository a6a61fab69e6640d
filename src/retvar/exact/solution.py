"""Value, mean and variance of the λ-return in closed form.

The notation (b, η, E[·], matrices Σ b x) is that of :mod:`retvar.mdp.weighted_edges`. H is the
value function that the λ-return bootstraps from: the true one, j, or any other.

    j = (I − PG)⁻¹ E[ηr]                                             PG  = Σ b ηγ′
    g = (I − PGL)⁻¹ E[η(r + γ′(1−λ′)H′)]                             PGL = Σ b ηγ′λ′
    v = (I − B)⁻¹ (E[(η(r + γ′((1−λ′)H′ + λ′g′)) − g)²] + E[η²w])     B   = Σ b (ηγ′λ′)²

w is the variance of the reward. The variance is finite if and only if the spectral radius of B is
below 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import ConvergenceError, InfiniteVarianceError, InputError
from retvar.format import align, count
from retvar.linear import Apply, Radius, Resolvent, spectral_radius
from retvar.mdp import MDP, WeightedEdges, state_values, weigh_edges
from retvar.mdp.weighted_edges import Estimand

__all__ = ["Solution", "StateSolution", "solve"]

Array = NDArray[np.float64]
MAX_INVERTED = 200  # most states for which many right-hand sides are multiplied by the inverse
DIGITS = 6  # significant digits of the table of a solution


class StateSolution(NamedTuple):
    """Exact value, mean and variance of one state.

    >>> import retvar as rv
    >>> rv.solve(rv.domains.chain(lam=1))["s3"]
    StateSolution(value=1.0, mean=1.0, variance=1.0, std=1.0, second_moment=2.0)
    """

    value: float
    mean: float
    variance: float
    std: float
    second_moment: float


@dataclass(frozen=True, eq=False)
class Solution:
    """Exact value and variance of every state of an MDP; index it by state for one of them.

    Attributes
    ----------
    value
        True value j of each state.
    mean
        Mean g of the λ-return; equal to `value` unless it bootstraps from another function.
    variance
        Variance v of the λ-return.
    spectral_radius
        Spectral radius of B; the variance is finite if it is below 1.
    radius_kind
        Whether the spectral radius is ``exact`` or a certified ``upper bound``.
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

    @property
    def std(self) -> Array:
        """Standard deviation of the λ-return."""
        return np.sqrt(self.variance)

    @property
    def second_moment(self) -> Array:
        """Second moment of the λ-return, variance + mean²."""
        return self.variance + self.mean**2

    def __len__(self) -> int:
        return self.mdp.n_states

    def __iter__(self) -> Iterator[StateSolution]:
        return (self[s] for s in range(len(self)))

    def __getitem__(self, state: int | str) -> StateSolution:
        s = self.mdp.state_index(state)
        return StateSolution(*(float(getattr(self, f)[s]) for f in StateSolution._fields))

    def table(self, most: int | None = None) -> list[list[str]]:
        """Rows of text: a heading, then the first `most` states (default: all)."""
        same_mean = self.mean is self.value
        fields = [f for f in StateSolution._fields if not (same_mean and f == "mean")]
        shown = self.mdp.n_states if most is None else min(most, self.mdp.n_states)
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
        rows = self.table(most)
        width = max(len(row[0]) for row in rows)
        lines = align([[row[0].ljust(width), *row[1:]] for row in rows])
        rest = self.mdp.n_states + 1 - len(rows)
        return "\n".join([*lines, *([f"… and {rest:,} more states"] if rest else [])])

    def __repr__(self) -> str:
        return (
            f"Solution({count(self.mdp.n_states, 'state')}, "
            f"spectral radius {format_radius(self.spectral_radius)} "
            f"({self.radius_kind}), residual {self.residual:.1e}, "
            f"by {' and '.join(dict.fromkeys(self.solvers))})"
        )


def solve(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    value: ArrayLike | None = None,
    lam: ArrayLike | None = None,
) -> Solution:
    """Compute the exact value and variance of the λ-return of every state.

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

    Raises
    ------
    InfiniteVarianceError
        If the spectral radius of B is 1 or more.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.solve(rv.domains.complex_mdp()).variance.round(6)
    array([0.141518, 1.091959, 0.521739, 0.23761 , 0.031015])
    >>> rv.solve(rv.domains.complex_mdp(), "pi", "mu", "off_policy_return").variance.round(3)
    array([0.159, 1.224, 0.924, 2.524, 0.106])
    """
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    if value is not None:
        value = arguments.numbers("value", value, mdp.n_states, mdp.state_name)
    return solve_weighted(mdp, edges, value)


def format_radius(radius: float) -> str:
    """A spectral radius with few digits; one below 1 is not rounded to 1.

    >>> format_radius(0.75), format_radius(1 - 1e-9)
    ('0.75', '1 − 1e-09')
    """
    return f"1 − {1 - radius:.1g}" if 1 - 1e-6 < radius < 1 else f"{radius:.6g}"


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError later
def solve_weighted(mdp: MDP, edges: WeightedEdges, H: Array | None) -> Solution:
    """Solve for weighted edges; H = None stands for the true value function."""
    solved = [state_values(edges)]
    j = solved[0].x
    if H is None:
        H = g = j
    else:
        discounted = Resolvent(edges.matrix(edges.eta * edges.gamma * edges.lam))
        solved.append(discounted.solve(edges.expect(mean_reward(edges, H))))
        g = solved[-1].x
    resolvent, radius = variance_resolvent(edges)
    solved.append(resolvent.solve(squared_deviation(edges, H, g)))
    v = np.maximum(solved[-1].x, 0.0)  # rounding
    if not np.isfinite(v + g * g).all():
        raise InputError("reward or value", "too large", "its square overflows; scale them down")
    for array in (j, g, v):
        array.flags.writeable = False
    return Solution(
        mdp=mdp,
        value=j,
        mean=g,
        variance=v,
        spectral_radius=radius.value,
        radius_kind=radius.kind,
        residual=max(each.residual for each in solved),
        error=max(each.error for each in solved),
        solvers=tuple(each.solver for each in solved),
    )


def variance_function(edges: WeightedEdges) -> Apply:
    """Return a function from values H [case, state] to variances of the λ-returns [case, state].

    >>> import retvar as rv
    >>> from retvar.mdp import weigh_edges
    >>> mdp, H = rv.domains.complex_mdp(), [1.0, 2.0, 3.0, 4.0, 5.0]
    >>> gap = variance_function(weigh_edges(mdp))(np.array([H])) - rv.solve(mdp, value=H).variance
    >>> bool(abs(gap).max() < 1e-12)
    True
    """
    mean = _column_solver(Resolvent(edges.matrix(edges.eta * edges.gamma * edges.lam)))
    variance = _column_solver(variance_resolvent(edges)[0])
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


def _column_solver(resolvent: Resolvent) -> Apply:
    """A function that solves for each column; its bits do not depend on the number of columns."""
    if resolvent.n > MAX_INVERTED:
        return lambda columns: resolvent.solve(columns).x
    inverse = resolvent.solve(np.eye(resolvent.n)).x
    return lambda columns: np.stack([inverse @ column for column in columns.T], axis=1)


def variance_resolvent(edges: WeightedEdges) -> tuple[Resolvent, Radius]:
    """(I − B)⁻¹ and the spectral radius of B, certified to be below 1.

    If no ηγ′λ′ exceeds 1, then B ≤ PG, and :func:`~retvar.mdp.weigh_edges` has checked that the
    radius of PG is below 1. The radius is then reported as below 1 even if rounding hides it.
    """
    root = edges.eta * edges.gamma * edges.lam
    resolvent = Resolvent(edges.matrix(root**2))
    below_one = bool(np.all(root <= 1))
    try:
        radius = spectral_radius(resolvent.M, resolvent)
    except ConvergenceError:
        if not below_one:
            raise
        radius = Radius(1.0, "lower bound")
    if below_one and not radius.below_one:
        radius = Radius(float(np.nextafter(1.0, 0.0)), "upper bound")
    if not radius.below_one:
        raise InfiniteVarianceError(radius.value, at_least=radius.kind != "exact")
    return resolvent, radius


def mean_reward(edges: WeightedEdges, H: Array) -> Array:
    """Reward of the mean node, η(r + γ′(1−λ′)H′), of each edge."""
    return edges.eta * (edges.reward + edges.gamma * (1 - edges.lam) * H[edges.next_state])


def squared_deviation(edges: WeightedEdges, H: Array, G: Array) -> Array:
    """Mean squared deviation of one step from G: E[(η(r + γ′((1−λ′)H′ + λ′G′)) − G)²] + E[η²w].

    With G = g it is the reward of the variance; with G = H, the direct method's E[R̄].
    """
    inside = mean_reward(edges, H) + edges.eta * edges.gamma * edges.lam * G[edges.next_state]
    noise = edges.eta * edges.reward_std
    return edges.expect((inside - G[edges.state]) ** 2 + noise**2)
