"""The mean–variance frontier: for each penalty, the best policy found."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.gradient import policy_gradient
from retvar.exact.search import MAX_TABLE, Candidate, DenseLandscape, Landscape, search
from retvar.mdp import MDP, Policy, weigh_edges
from retvar.mdp.linear import Resolvent, reaching
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import align, count, joined, listed, literal, number, plus_minus
from retvar.support.html import Shown, page, settings, table

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
MAX_PENALTIES = 1_000
RESTARTS = 5  # where they are cheap, or several summits likely
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
PURE = 1 - 1e-12  # an action this likely is taken always


@dataclass(frozen=True, eq=False)
class FrontierPoint(Shown):
    """The best policy found for one penalty.

    Attributes
    ----------
    penalty
        c in mean − c·variance; the policy is risk-seeking if it is negative.
    policy
        The policy. In states that it never gets to from the start it is the greedy one.
    mean, variance
        Of the return from the start.
    ending
        Probability that the episode ends at all; None if no episodes of the MDP do.
    deterministic
        Whether the policy takes a single action in every state that it gets to.

    Examples
    --------
    >>> import retvar as rv
    >>> point = rv.frontier(rv.domains.chain(), penalties=0.1)[0]
    >>> point.mean, point.std, point.ending, point.attitude
    (4.0, 2.0, 1.0, 'risk-averse')
    """

    penalty: float
    policy: Policy
    mean: float
    variance: float
    ending: float | None
    deterministic: bool

    @property
    def std(self) -> float:
        """Standard deviation of the return from the start."""
        return float(np.sqrt(self.variance))

    @property
    def objective(self) -> float:
        """Mean − penalty × variance."""
        return self.mean - self.penalty * self.variance

    @property
    def attitude(self) -> str:
        """``risk-averse``, ``risk-neutral`` or ``risk-seeking``, by the sign of the penalty."""
        return ("risk-seeking", "risk-neutral", "risk-averse")[int(np.sign(self.penalty)) + 1]

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain Python objects, for JSON."""
        names = ("penalty", "attitude", "mean", "std", "variance", "ending", "deterministic")
        found = {name: getattr(self, name) for name in names}
        return {**found, "policy": self.policy.probabilities.tolist()}

    def __repr__(self) -> str:
        kind = "deterministic" if self.deterministic else "stochastic"
        spread = plus_minus(self.mean, self.std)
        return f"FrontierPoint(penalty {self.penalty:g}: {spread}, {self.attitude}, {kind})"

    def _html(self) -> str:
        ends = None if self.ending is None else _percent(self.ending)
        shown = {
            "mean ± std": plus_minus(self.mean, self.std),
            "variance": number(self.variance),
            "mean − penalty × variance": number(self.objective),
            "episodes that end": ends,
            "policy": repr(self.policy),
        }
        return page(f"Penalty {self.penalty:g}, {self.attitude}", settings(shown))


@dataclass(frozen=True, eq=False)
class Frontier(Shown):
    """Policies that trade mean for variance, in the order of their penalties.

    They are the best that were found, and may not be the best that exist.

    Attributes
    ----------
    mdp, start
        The MDP and the start distribution.
    points
        A :class:`FrontierPoint` for each penalty.
    tried
        What the search tried, in words.
    evaluations
        Number of policies whose mean and variance were computed.

    Examples
    --------
    >>> import retvar as rv
    >>> found = rv.frontier(rv.domains.windy_cliff(), penalties=[0, 0.1])
    >>> print(found)
    penalty     mean    std  ends  policy
          0  -11.868  4.209     1  deterministic
        0.1  -12.614  2.570     1  deterministic
    best found, not proved best: ...
    >>> len(found), found[1].attitude
    (2, 'risk-averse')
    """

    mdp: MDP
    start: Array
    points: tuple[FrontierPoint, ...]
    tried: str
    evaluations: int

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[FrontierPoint]:
        return iter(self.points)

    def __getitem__(self, index: int) -> FrontierPoint:
        return self.points[index]

    @property
    def data(self) -> xr.Dataset:
        """The numbers of all points as an ``xarray.Dataset``.

        >>> import retvar as rv
        >>> data = rv.frontier(rv.domains.windy_cliff(), penalties=[0, 0.5]).data
        >>> data["std"].sel(penalty=0.5).item().__round__(3)
        2.3
        """
        import xarray

        columns: dict[str, Any] = {}
        for field in ("mean", "std", "variance", "ending", "deterministic"):
            numbers = [getattr(point, field) for point in self]
            columns[field] = ("penalty", [np.nan if x is None else x for x in numbers])
        policies = np.stack([point.policy.probabilities for point in self])
        columns["policy"] = (("penalty", "state", "action"), policies)
        coords = {
            "penalty": [point.penalty for point in self],
            "state": self.mdp.state_labels,
            "action": self.mdp.action_labels,
        }
        return xarray.Dataset(columns, coords, {"tried": self.tried})

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain Python objects, for JSON."""
        return {
            "state": self.mdp.state_labels,
            "action": self.mdp.action_labels,
            "start": self.start.tolist(),
            "points": [point.to_dict() for point in self],
            "tried": self.tried,
            "evaluations": self.evaluations,
        }

    def table(self) -> list[list[str]]:
        """Rows of text: a heading, then a row for each point."""
        largest = max(max(abs(point.mean), point.std) for point in self)
        digits = int(np.clip(4 - np.floor(np.log10(largest or 1.0)), 0, 12))
        digits = 3 if 1 <= largest < 1_000 else digits
        ends = any(point.ending is not None for point in self)
        rows = [["penalty", "mean", "std", *(["ends"] if ends else []), "policy"]]
        for point in self:
            kind = "deterministic" if point.deterministic else "stochastic"
            rows.append([
                f"{point.penalty:g}", f"{point.mean:.{digits}f}", f"{point.std:.{digits}f}",
                *([_percent(point.ending)] if ends else []),
                kind if point.penalty >= 0 else f"{kind}, risk-seeking",
            ])  # fmt: skip
        return rows

    def __str__(self) -> str:
        rows = self.table()
        lines = align([row[:-1] for row in rows])
        shown = [f"{line}  {row[-1]}" for line, row in zip(lines, rows, strict=True)]
        return "\n".join([*shown, *self.notes, f"best found, not proved best: {self.tried}"])

    @property
    def notes(self) -> list[str]:
        """A sentence about policies that do not end their episodes."""
        never = [p for p in self if p.ending is not None and p.ending < 1]
        if not never:
            return []
        shown = listed(f"{p.penalty:g} ({_percent(p.ending)})" for p in never)
        return [
            f"episodes may go on for ever at penalty {shown}: the share that ends is in brackets; "
            "with γ < 1 never ending can be calmer than ending"
        ]

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        return (
            f"Frontier({count(len(self), 'point')}, from {first.mean:.4g} ± {first.std:.4g} to "
            f"{last.mean:.4g} ± {last.std:.4g})"
        )

    def _html(self) -> str:
        (heading, *rows), last = self.table(), len(self.table()[0]) - 1
        found = table(heading, rows, unit="point", text=(last,))
        notes = [*self.notes, f"best found, not proved best: {self.tried}"]
        name = f"{self.mdp.name}: " if self.mdp.name else ""
        return page(f"{name}{self!r}", found, notes=notes)

    def plot(self, points: Sequence[int] | None = None) -> Figure:
        """Draw it, with some of its points in detail, by :func:`retvar.plots.frontier`.

        >>> import retvar as rv
        >>> found = rv.frontier(rv.domains.windy_cliff(), penalties=[0])
        >>> found.plot(points=[0]).axes[0].get_xlabel()
        'standard deviation of the return'
        """
        figure: Figure = importlib.import_module(PLOTS).frontier(self, points)
        return figure


def frontier(
    mdp: MDP,
    *,
    start: object = None,
    penalties: ArrayLike = (0.0, 0.03, 0.1, 0.5),
    restarts: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Frontier:
    """Search for policies with the largest mean − c·variance of the return, for each penalty c.

    The variance is that of the whole discounted return (λ = 1). From each of several policies, the
    search switches single states while that helps and polishes by L-BFGS on softmax parameters;
    every policy found counts for every penalty. No method that is fast finds the best policy for
    certain: the problem is NP-hard, and since the variance of a whole is not a sum of parts, the
    best choice in a state depends on how it was reached. So the result is the best found.

    Parameters
    ----------
    mdp
        The MDP.
    start
        Where episodes start: a state, a mapping from states to probabilities, or an array of
        them; default: the MDP's. The variance includes the spread between its states.
    penalties
        The penalties c. A negative one is risk-seeking. Points are in ascending order, one for each
        different penalty.
    restarts
        Number of random policies to start from, beside the greedy and the uniform policy and what
        was found for the neighbouring penalties. Default: 5 for an MDP of up to 150 states or with
        a negative penalty, otherwise 1.
    seed
        Of the random policies.
    progress
        Function that receives the share done, often; it may raise an error to stop.

    Raises
    ------
    InputError
        If γ = 1 and no policy ends the episode from some states.

    Examples
    --------
    >>> import retvar as rv
    >>> calm = rv.frontier(rv.domains.windy_cliff(), penalties=[0.5])[0]
    >>> print(f"{calm.mean:.3f} ± {calm.std:.3f}")
    -12.924 ± 2.300
    """
    if progress is not None and not callable(progress):
        raise InputError("progress", literal(progress), "must be a function of the share done")
    given = np.atleast_1d(arguments.floats("penalties", penalties, "a number or a list of numbers"))
    given = arguments.numbers("penalties", given)
    if not 0 < given.size <= MAX_PENALTIES:
        raise InputError("penalties", count(given.size, "number"), f"must be 1 to {MAX_PENALTIES}")
    if restarts is None:
        restarts = RESTARTS if mdp.n_states <= MAX_TABLE or given.min() < 0 else 1
    restarts = arguments.integer("restarts", restarts, 0, 1_000)
    rng = arguments.generator("seed", seed)
    weigh_edges(mdp, Policy.uniform(mdp))  # no policy ends more surely; names the states
    d = mdp.start_distribution(start)
    endless = _endless(mdp)
    if given.min() < 0 and endless.any():
        names = listed(mdp.state_name(int(s)) for s in np.flatnonzero(endless))
        remedy = (
            f"is risk-seeking, and with γ = 1 a policy may never end in {names}, so the variance "
            "has no largest value; lower γ there, or take penalties of at least 0"
        )
        raise InputError("penalties", f"{given.min():g}", remedy)
    greedy = Policy.greedy(mdp)
    chosen = np.unique(given).tolist()
    starts = [greedy.probabilities, Policy.uniform(mdp).probabilities]
    for _ in range(restarts):  # random in each state, with all available actions
        weight = np.where(mdp.available, rng.exponential(size=mdp.available.shape), 0.0)
        starts.append(weight / weight.sum(axis=1, keepdims=True))
    landscape = (DenseLandscape if mdp.n_states <= MAX_TABLE else Landscape)(mdp, d)
    found = _search_all(landscape, starts, chosen, progress)
    points = tuple(_point(mdp, d, greedy, c, _best(found, c)) for c in chosen)
    tried = _tried(landscape.evaluations, restarts, len(chosen))
    return Frontier(mdp, d, points, tried, landscape.evaluations)


def _endless(mdp: MDP) -> NDArray[np.bool_]:
    """States from which some policy never reaches a discount below 1."""
    e = mdp.edges
    possible = e.probability > 0
    inside = np.ones(mdp.n_states, dtype=bool)
    while True:
        leaves = possible & ((e.gamma < 1) | ~inside[e.next_state])
        action = mdp.available.copy()
        action[e.state[leaves], e.action[leaves]] = False
        still = inside & action.any(axis=1)
        if np.array_equal(still, inside):
            return inside
        inside = still


def _search_all(
    landscape: Landscape,
    starts: list[Array],
    penalties: list[float],
    progress: Callable[[float], None] | None,
) -> list[Candidate]:
    """Search from all starts, then from neighbours: up from the least penalty, and down again."""
    found: list[Candidate] = []
    total = len(penalties) * (len(starts) + 2) - 2
    done = 0

    def tick() -> None:
        if progress is not None:
            progress(done / total)

    def step(penalty: float, pi: Array) -> None:
        nonlocal done
        candidate = search(landscape, pi, penalty, tick)
        found.extend([candidate] if candidate is not None else [])
        done += 1
        tick()

    for c in penalties:
        for pi in starts:
            step(c, pi)
    for order in (penalties, penalties[::-1]):
        for near, c in itertools.pairwise(order):
            step(c, _best(found, near).pi)
    return found


def _best(found: list[Candidate], penalty: float) -> Candidate:
    return max(found, key=lambda each: each.objective(penalty))


def _point(mdp: MDP, d: Array, greedy: Policy, penalty: float, best: Candidate) -> FrontierPoint:
    pi = best.pi.copy()
    edges = weigh_edges(mdp, Policy(pi))
    visited = reaching(edges.matrix(np.ones(edges.b.size)).T.tocsr(), d > 0)
    pi[~visited] = greedy.probabilities[~visited]
    pure = pi.max(axis=1) >= PURE
    pi[pure] = np.eye(mdp.n_actions)[np.argmax(pi[pure], axis=1)]
    policy = Policy(pi)
    exact = policy_gradient(mdp, policy, lam=1.0, start=d)
    return FrontierPoint(
        penalty,
        policy,
        exact.return_mean,
        exact.return_variance,
        _probability_of_ending(mdp, policy, d) if mdp.episodic else None,
        bool(pure[visited].all()),
    )


def _probability_of_ending(mdp: MDP, policy: Policy, d: Array) -> float:
    """Probability that an episode from the start distribution ends at all."""
    edges = weigh_edges(mdp, policy)
    P, at_once = edges.matrix(np.ones(edges.b.size)), edges.expect(edges.ends.astype(np.float64))
    able = np.flatnonzero(reaching(P, at_once > 0))
    total = 0.0
    if able.size:
        inside = Resolvent(P[able][:, able].tocsr()).solve(at_once[able])
        total = float(d[able] @ np.clip(inside.x, 0.0, 1.0))
    return 1.0 if total > 1 - 1e-9 else total


def _tried(evaluations: int, restarts: int, penalties: int) -> str:
    """What the search tried, in words."""
    names = ["the greedy policy", "the uniform one"]
    names += [count(restarts, "random one")] if restarts else []
    names += ["the best for neighbouring penalties"] if penalties > 1 else []
    switched = "single-state switches and L-BFGS"
    return f"{switched} from {joined(names)}; {evaluations:,} policies evaluated"


def _percent(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.4g}"
