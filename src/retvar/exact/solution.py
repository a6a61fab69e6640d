"""Value, mean and variance of the λ-return in closed form.

With b, η, E[·] and the matrices Σ b x of :mod:`retvar.mdp.weighted_edges`, and H the value
function that the λ-return bootstraps from (the true one, j, or any other):

    j = (I − PG)⁻¹ E[ηr]                                             PG  = Σ b ηγ′
    g = (I − PGL)⁻¹ E[η(r + γ′(1−λ′)H′)]                             PGL = Σ b ηγ′λ′
    v = (I − B)⁻¹ (E[(η(r + γ′((1−λ′)H′ + λ′g′)) − g)²] + E[η²w])     B   = Σ b (ηγ′λ′)²

where w is the variance of the reward. The variance is finite if and only if the spectral radius of
B is below 1.
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
from retvar.linear import Apply, Radius, Resolvent, spectral_radius
from retvar.mdp import MDP, WeightedEdges, ask, state_values
from retvar.mdp.weighted_edges import Estimand

__all__ = ["Solution", "StateSolution", "solve"]

Array = NDArray[np.float64]
MOST_INVERTED = 200  # states up to which many right-hand sides are solved by the inverse


class StateSolution(NamedTuple):
    """The answers for one state.

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
    """Exact answers for every state of an MDP; index it by state for those of one.

    Attributes
    ----------
    value
        True value j of each state.
    mean
        Mean g of the λ-return; it is `value` unless the λ-return bootstraps from another function.
    variance
        Its variance v.
    spectral_radius
        Of B: the variance is finite below 1. `radius_kind` says whether it is exact or a certified
        upper bound.
    residual
        Largest backward error ‖b − Ax‖/(‖b‖ + ‖A‖‖x‖) of the linear systems solved.
    error
        Bound on the relative error of the answers that follows from it, the rounding of the
        probabilities themselves included.
    means
        How they were solved: ``dense LU``, ``sparse LU`` or ``BiCGSTAB``, in the order of solution.

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
    means: tuple[str, ...]

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
        """Rows of text, a heading first: the states (`most` of them at most) and their answers."""
        plain = self.mean is self.value
        fields = [f for f in StateSolution._fields if not (plain and f == "mean")]
        count = self.mdp.n_states if most is None else min(most, self.mdp.n_states)
        columns = [getattr(self, f)[:count] for f in fields]
        heading = ["state", *(f.replace("_", " ") for f in fields)]
        body = [
            [self.mdp.state_name(s), *(f"{column[s]:.6g}" for column in columns)]
            for s in range(count)
        ]
        return [heading, *body]

    def __str__(self) -> str:
        return self.summary()

    def summary(self, most: int = 100) -> str:
        """A table of the first `most` states that a person can read."""
        rows = self.table(most)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [
                    row[0].ljust(widths[0]),
                    *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
                ]
            )
            for row in rows
        ]
        rest = self.mdp.n_states + 1 - len(rows)
        return "\n".join([*lines, *([f"… and {rest:,} more states"] if rest else [])])

    def __repr__(self) -> str:
        return (
            f"Solution({self.mdp.n_states:,} state{'s' * (self.mdp.n_states != 1)}, "
            f"spectral radius {radius_text(self.spectral_radius)} "
            f"({self.radius_kind}), residual {self.residual:.1e}, "
            f"by {' and '.join(dict.fromkeys(self.means))})"
        )


def solve(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    value: ArrayLike | None = None,
    lam: ArrayLike | None = None,
) -> Solution:
    """Value and variance of the λ-return from every state, exactly.

    Parameters
    ----------
    mdp
        The MDP.
    target
        Policy asked about: a name, :class:`~retvar.Policy`, array or callable; default: the MDP's
        first.
    behaviour
        Policy that experience comes from; default: the target.
    estimand
        ``"target_return"``: the return seen when following the target. ``"off_policy_return"``:
        the return weighted by importance ratios, seen when following the behaviour.
    value
        Value function that the λ-return bootstraps from; default: the true one.
    lam
        λ in place of the MDP's: a number, or one per state.

    Raises
    ------
    InfiniteVarianceError
        Where the spectral radius of B is 1 or more.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.solve(rv.domains.complex_mdp()).variance.round(6)
    array([0.141518, 1.091959, 0.521739, 0.23761 , 0.031015])
    >>> rv.solve(rv.domains.complex_mdp(), "pi", "mu", "off_policy_return").variance.round(3)
    array([0.159, 1.224, 0.924, 2.524, 0.106])
    """
    flow = ask(mdp, target, behaviour, estimand, lam)
    if value is not None:
        value = arguments.numbers("value", value, mdp.n_states, mdp.state_name)
    return solution_of(mdp, flow, value)


def radius_text(radius: float) -> str:
    """A radius in few digits that does not round to 1.

    >>> radius_text(0.75), radius_text(1 - 1e-9)
    ('0.75', '1 − 1e-09')
    """
    return f"1 − {1 - radius:.1g}" if 1 - 1e-6 < radius < 1 else f"{radius:.6g}"


@np.errstate(over="ignore", invalid="ignore")  # told as an error where it happens
def solution_of(mdp: MDP, flow: WeightedEdges, H: Array | None) -> Solution:
    """Solve a question already asked; H = None stands for the true value function."""
    solved = [state_values(flow)]
    j = solved[0].x
    if H is None:
        H = g = j
    else:
        discounted = Resolvent(flow.matrix(flow.eta * flow.gamma * flow.lam))
        solved.append(discounted.solve(flow.expect(mean_reward(flow, H))))
        g = solved[-1].x
    resolvent, radius = variance_resolvent(flow)
    solved.append(resolvent.solve(spread(flow, H, g)))
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
        means=tuple(each.means for each in solved),
    )


def variances_for(flow: WeightedEdges) -> Apply:
    """A function from values [case, state] to the variances of λ-returns that bootstrap from them.

    >>> import retvar as rv
    >>> from retvar.mdp import ask
    >>> mdp, H = rv.domains.complex_mdp(), [1.0, 2.0, 3.0, 4.0, 5.0]
    >>> gap = variances_for(ask(mdp))(np.array([H])) - rv.solve(mdp, value=H).variance
    >>> bool(abs(gap).max() < 1e-12)
    True
    """
    mean = _applied(Resolvent(flow.matrix(flow.eta * flow.gamma * flow.lam)))
    variance = _applied(variance_resolvent(flow)[0])
    expect = scipy.sparse.csr_array(
        (flow.b, (flow.state, np.arange(flow.b.size))), shape=(flow.n, flow.b.size)
    )
    reward, gamma, lam, eta = (x[:, None] for x in (flow.reward, flow.gamma, flow.lam, flow.eta))
    noise = (flow.eta * flow.reward_std)[:, None]

    def variances(values: Array) -> Array:
        H = values.T[flow.next_state]  # [edge, case]
        bootstrapped = eta * (reward + gamma * (1 - lam) * H)
        g = mean(expect @ bootstrapped)
        inside = bootstrapped + eta * gamma * lam * g[flow.next_state]
        source = expect @ ((inside - g[flow.state]) ** 2 + noise**2)
        return np.maximum(variance(source), 0.0).T

    return variances


def _applied(resolvent: Resolvent) -> Apply:
    """The resolvent times each column: the bits of one do not depend on how many there are."""
    if resolvent.n > MOST_INVERTED:
        return lambda columns: resolvent.solve(columns).x
    inverse = resolvent.solve(np.eye(resolvent.n)).x
    return lambda columns: np.stack([inverse @ column for column in columns.T], axis=1)


def variance_resolvent(flow: WeightedEdges) -> tuple[Resolvent, Radius]:
    """(I − B)⁻¹ and the radius of B, certified to be below 1.

    Where no ηγ′λ′ exceeds 1, B is nowhere above PG, whose radius is below 1 for every question that
    :func:`~retvar.mdp.ask` lets pass: rounding may hide that, but not change it.
    """
    root = flow.eta * flow.gamma * flow.lam
    resolvent = Resolvent(flow.matrix(root**2))
    known = bool(np.all(root <= 1))
    try:
        radius = spectral_radius(resolvent.M, resolvent)
    except ConvergenceError:
        if not known:
            raise
        radius = Radius(1.0, "lower bound")
    if known and not radius.below_one:
        radius = Radius(float(np.nextafter(1.0, 0.0)), "upper bound")
    if not radius.below_one:
        raise InfiniteVarianceError(radius.value, at_least=radius.kind != "exact")
    return resolvent, radius


def mean_reward(flow: WeightedEdges, H: Array) -> Array:
    """η(r + γ′(1−λ′)H′) of each edge: what the mean of the λ-return is made of."""
    return flow.eta * (flow.reward + flow.gamma * (1 - flow.lam) * H[flow.next_state])


def spread(flow: WeightedEdges, H: Array, G: Array) -> Array:
    """E[(η(r + γ′((1−λ′)H′ + λ′G′)) − G)²] + E[η²w]: one step's spread around G.

    With G = g this is the source of the variance; with G = H, the direct method's E[R̄].
    """
    inside = mean_reward(flow, H) + flow.eta * flow.gamma * flow.lam * G[flow.next_state]
    noise = flow.eta * flow.reward_std
    return flow.expect((inside - G[flow.state]) ** 2 + noise**2)
