"""A Gymnasium grid world in which maps of value and spread fill in beside the exact ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import RetvarError
from retvar.estimation.tabular import TabularEstimator
from retvar.exact import Solution, solve
from retvar.experience import from_gymnasium
from retvar.format import count, short_number
from retvar.lab.svg import BLUE, ORANGE, Line, heat_map, line_chart
from retvar.learners import LEARNERS
from retvar.mdp import MDP, Policy
from retvar.plots.estimate_maps import CELL_TYPES

__all__ = ["METHODS", "POLICIES", "WORLDS", "GridSettings", "GridWorld", "World"]

Array = NDArray[np.float64]
LEAST_SQUARES = "least squares"
METHODS = (LEAST_SQUARES, *LEARNERS)
POLICIES = ("random", "greedy", "ε-greedy")
CHUNK = 256  # transitions drawn at a time
ENDLESS = 10**12  # steps of the stream, which ends with the page
MOST_STEPS = 1_000_000  # of one call
MOST_POINTS = 400  # of the error's history; then every other one is dropped
VALUE_ENDS, SPREAD_ENDS, VISIT_ENDS = (
    ("#f1f6fb", "#0b5394"), ("#fdf3ea", "#a33f00"), ("#f4f4f4", "#444444"),
)  # fmt: skip
NO_STATE = "HGC"  # holes, goal and cliff: no step is taken from there


class World(NamedTuple):
    """An environment and its options.

    >>> WORLDS["FrozenLake"].env
    'FrozenLake-v1'
    """

    env: str
    options: dict[str, Any]


WORLDS = {
    "FrozenLake": World("FrozenLake-v1", {}),
    "FrozenLake, not slippery": World("FrozenLake-v1", {"is_slippery": False}),
    "FrozenLake, 8 × 8": World("FrozenLake-v1", {"map_name": "8x8"}),
    "CliffWalking": World("CliffWalking-v1", {}),
    "CliffWalking, slippery": World("CliffWalking-v1", {"is_slippery": True}),
}


@dataclass(frozen=True)
class GridSettings:
    """What a :class:`GridWorld` is made of.

    Attributes
    ----------
    world
        A name in ``WORLDS``.
    policy, epsilon
        ``"random"``, ``"greedy"`` or ``"ε-greedy"``: a random action with probability `epsilon`.
    gamma
        The discount.
    method
        ``"least squares"``, or the name of a learner, with step size `alpha`.
    seed
        Of the environment and the actions.

    Examples
    --------
    >>> GridSettings(policy="cautious")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: policy = 'cautious': must be one of 'random', 'greedy', 'ε-greedy'
    """

    world: str = "FrozenLake"
    policy: str = "ε-greedy"
    epsilon: float = 0.2
    gamma: float = 0.95
    method: str = LEAST_SQUARES
    alpha: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        arguments.choice("world", self.world, WORLDS)
        arguments.choice("policy", self.policy, POLICIES)
        arguments.choice("method", self.method, METHODS)
        for name in ("epsilon", "gamma", "alpha"):
            found = arguments.unit_interval(name, getattr(self, name), 1)
            object.__setattr__(self, name, float(found[0]))
        object.__setattr__(self, "seed", arguments.integer("seed", self.seed, 0))


class GridWorld:
    """An estimate of a grid world that goes on by steps, beside the exact answer.

    Examples
    --------
    >>> lake = GridWorld(GridSettings())
    >>> lake.advance(500)
    >>> lake.steps, int(lake.visits.sum()), lake.grid
    (500, 500, (4, 4))
    """

    def __init__(self, settings: GridSettings) -> None:
        self.settings = settings
        env, options = WORLDS[settings.world]
        self.mdp = MDP.from_gymnasium(env, gamma=settings.gamma, **options)
        self.policy = _policy(self.mdp, settings)
        self.exact: Solution = solve(self.mdp, self.policy)
        experience = from_gymnasium(
            env, self.policy, steps=ENDLESS, seed=settings.seed, chunk=CHUNK, **options
        )
        rows, columns = experience.grid or (1, self.mdp.n_states)
        self.grid: tuple[int, int] = (int(rows), int(columns))
        self.cells = experience.cells or " " * self.mdp.n_states
        self.possible = np.array([letter not in NO_STATE for letter in self.cells])
        self.estimator = _estimator(settings, self.mdp.n_states)
        self.visits = np.zeros(self.mdp.n_states, dtype=np.int64)
        self.episodes = 0
        self.history: list[tuple[int, float, float]] = []  #: steps, error of value and of std
        self.failure = ""
        self._source: Iterator[Any] = iter(experience.chunks())
        self._rest: dict[str, Any] = {}

    @property
    def steps(self) -> int:
        """Transitions learned from."""
        return int(self.visits.sum())

    def advance(self, steps: int) -> None:
        """Learn from so many more transitions; an estimator that fails keeps what it has."""
        left = arguments.integer("steps", steps, 1, MOST_STEPS)
        while left and not self.failure:
            chunk = self._take(left)
            try:
                self.estimator.update_many(chunk)
            except RetvarError as error:
                self.failure = str(error)
                return
            self.visits += np.bincount(chunk["state"], minlength=self.visits.size)
            self.episodes += int(np.sum(chunk["terminated"] | chunk["truncated"]))
            left -= len(chunk["state"])
        self.history.append((self.steps, *self.errors))
        if len(self.history) > MOST_POINTS:
            self.history = self.history[::2]

    def _take(self, most: int) -> dict[str, Any]:
        """The next transitions, at most so many."""
        chunk = self._rest or next(self._source)
        self._rest = {}
        if len(chunk["state"]) > most:
            self._rest = {name: column[most:] for name, column in chunk.items()}
        return {name: column[:most] for name, column in chunk.items()}

    # ------------------------------------------------------------------ answers

    @property
    def value(self) -> Array:
        """The estimated value of each state; NaN where no step was taken."""
        return self._known("value")

    @property
    def std(self) -> Array:
        """The estimated std of each state; NaN where no step was taken or it is unknown."""
        return self._known("std")

    def _known(self, what: str) -> Array:
        if not self.steps:
            return np.full(self.visits.size, np.nan)
        every = np.arange(self.visits.size)
        return np.where(self.visits > 0, self.estimator.predict(every, what), np.nan)

    @property
    def errors(self) -> tuple[float, float]:
        """Root mean square errors of value and std over states, weighted by visits."""
        found = []
        for learned, exact in ((self.value, self.exact.value), (self.std, self.exact.std)):
            known = np.isfinite(learned)
            squares = (learned[known] - np.asarray(exact)[known]) ** 2
            weight = self.visits[known]
            found.append(float(np.sqrt(squares @ weight / weight.sum())) if known.any() else np.nan)
        return found[0], found[1]

    def status(self) -> str:
        """One sentence: how far it is, and how far off.

        >>> GridWorld(GridSettings()).status()
        'No step yet: press play.'
        """
        if self.failure:
            return f"Stopped: {self.failure}."
        if not self.steps:
            return "No step yet: press play."
        value, std = (short_number(float(f"{x:.2g}")) for x in self.errors)
        seen = int((self.visits > 0).sum())
        return (
            f"{count(self.steps, 'step')}, {count(self.episodes, 'episode')}, {seen} of "
            f"{int(self.possible.sum())} cells seen. Typical error: value {value}, std {std}."
        )

    # ------------------------------------------------------------------ maps

    def charts(self) -> list[str]:
        """Maps of value and spread, learned beside exact; those of visits, and errors; as SVG."""
        parts = []
        for name, learned, exact, ends in (
            ("Value", self.value, self.exact.value, VALUE_ENDS),
            ("Spread (std)", self.std, self.exact.std, SPREAD_ENDS),
        ):
            shown = np.where(self.possible, exact, np.nan)
            limits = float(np.nanmin(shown)), float(np.nanmax(shown))
            parts.append(self._map(f"{name}, learned", learned, limits, ends))
            parts.append(self._map(f"{name}, exact", shown, limits, ends))
        visits = np.where(self.visits > 0, self.visits, np.nan)
        most = max(float(self.visits.max()), 1.0)
        return [*parts, self._map("Visits", visits, (0.0, most), VISIT_ENDS), self.error_chart()]

    def page(self) -> str:
        """All charts as HTML: as many side by side as there is room for."""
        *maps, errors = self.charts()
        room = min(max(34 * self.grid[1], 150), 420)
        parts = [
            f'<div style="flex:1 1 {room}px;max-width:{1.7 * room:.0f}px">{m}</div>' for m in maps
        ]
        parts.append(f'<div style="flex:1 1 300px;max-width:440px">{errors}</div>')
        return f'<div class="rv-maps">{"".join(parts)}</div>'

    def letters(self) -> str:
        """What letters, question marks and empty cells of maps stand for."""
        used = [letter for letter in NO_STATE if letter in self.cells]
        told = [f"{letter}: {CELL_TYPES[letter]}" for letter in used]
        return ", ".join([*told, "?: too few steps for a std", "empty: not seen yet"])

    def _map(
        self, title: str, values: Any, limits: tuple[float, float], ends: tuple[str, str]
    ) -> str:
        """A map whose squares without a number have the letter of their cell."""
        letters = [letter if letter in NO_STATE else "" for letter in self.cells]
        unknown = (self.visits > 0) & np.isnan(values) & self.possible
        texts = [
            _brief(x) if np.isfinite(x) else "?" * bool(odd) or letter
            for x, odd, letter in zip(values, unknown, letters, strict=True)
        ]
        rows, columns = self.grid
        labels = [texts[k * columns : (k + 1) * columns] for k in range(rows)]
        told = f"{title} of {self.settings.world}: a number for each cell, row by row"
        table = np.asarray(values, dtype=float).reshape(self.grid)
        cell = min(max(300 // columns, 44), 72)
        return heat_map(
            title, table, limits=limits, labels=labels, ends=ends, description=told, cell=cell
        )

    def error_chart(self) -> str:
        """The errors of value and std over steps, as SVG."""
        history = self.history or [(0, np.nan, np.nan)]
        steps, value, std = (list(column) for column in zip(*history, strict=True))
        lines = [
            Line("value", steps, value, BLUE),
            Line("std", steps, std, ORANGE, "6 3"),
        ]
        title = "Error of the learned maps"
        return line_chart(title, lines, x_label="steps", zero=True)

    # ------------------------------------------------------------------ code

    def code(self) -> str:
        """Python that makes the numbers of the learned and of the exact maps.

        >>> lake = GridWorld(GridSettings())
        >>> lake.advance(1_000)
        >>> print(lake.code())
        import retvar as rv
        <BLANKLINE>
        mdp = rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.95)
        mixed = 0.8 * mdp.policy("greedy").probabilities + 0.2 * mdp.policy("uniform").probabilities
        policy = rv.Policy(mixed)
        exact = rv.solve(mdp, policy)
        steps = rv.experience.from_gymnasium("FrozenLake-v1", policy, steps=1000, seed=0)
        found = rv.estimate(steps, gamma=0.95)
        print(found.value().reshape(4, 4), found.std().reshape(4, 4))
        print(exact.value.reshape(4, 4), exact.std.reshape(4, 4))
        <BLANKLINE>
        """
        s, (env, options) = self.settings, WORLDS[self.settings.world]
        more = "".join(f", {key}={_quoted(value)}" for key, value in options.items())
        lines = [
            "import retvar as rv",
            "",
            f'mdp = rv.MDP.from_gymnasium("{env}", gamma={s.gamma!r}{more})',
            *_policy_code(s),
            "exact = rv.solve(mdp, policy)",
        ]
        shape = f"reshape({self.grid[0]}, {self.grid[1]})"
        last = f"print(exact.value.{shape}, exact.std.{shape})"
        if not self.steps:
            return "\n".join([*lines, last]) + "\n"
        lines += [
            f'steps = rv.experience.from_gymnasium("{env}", policy, steps={self.steps}, '
            f"seed={s.seed}{more})",
        ]
        if s.method == LEAST_SQUARES:
            lines.append(f"found = rv.estimate(steps, gamma={s.gamma!r})")
        else:
            learner = f"rv.{s.method}(alpha={s.alpha!r}, gamma={s.gamma!r}, lam=1.0)"
            lines += [
                f"found = {learner}.online(states=mdp.n_states)",
                "for chunk in steps.chunks():",
                "    found.update_many(chunk)",
            ]
        lines.append(f"print(found.value().{shape}, found.std().{shape})")
        return "\n".join([*lines, last]) + "\n"


def _policy(mdp: MDP, settings: GridSettings) -> Policy:
    if settings.policy == POLICIES[0]:
        return mdp.policy("uniform")
    greedy = mdp.policy("greedy")
    if settings.policy == POLICIES[1]:
        return greedy
    keep, epsilon = _shares(settings.epsilon)
    return Policy(keep * greedy.probabilities + epsilon * mdp.policy("uniform").probabilities)


def _policy_code(settings: GridSettings) -> list[str]:
    if settings.policy != POLICIES[2]:
        name = "uniform" if settings.policy == POLICIES[0] else settings.policy
        return [f'policy = mdp.policy("{name}")']
    keep, epsilon = _shares(settings.epsilon)
    both = f'{keep!r} * mdp.policy("greedy").probabilities + {epsilon!r} * '
    return [f'mixed = {both}mdp.policy("uniform").probabilities', "policy = rv.Policy(mixed)"]


def _shares(epsilon: float) -> tuple[float, float]:
    """Shares of the greedy and the random policy."""
    return round(1 - epsilon, 12), float(epsilon)


def _estimator(settings: GridSettings, states: int) -> Any:
    if settings.method == LEAST_SQUARES:
        some = next(iter(LEARNERS.values()))
        return TabularEstimator(some(alpha=0.0, gamma=settings.gamma, lam=1.0), states)
    kind = LEARNERS[settings.method]
    return kind(alpha=settings.alpha, gamma=settings.gamma, lam=1.0).online(states=states)


def _brief(x: float) -> str:
    """A number of few characters, with k for thousands.

    >>> _brief(0.1234), _brief(-12.34), _brief(12_345), _brief(2_500_000)
    ('0.12', '−12', '12k', '2.5M')
    """
    for limit, letter in ((1e6, "M"), (1e4, "k")):
        if abs(x) >= limit:
            size = 1e3 if letter == "k" else 1e6
            return f"{x / size:.2g}{letter}".replace("-", "−")
    return short_number(float(f"{x:.2g}")) if abs(x) < 100 else short_number(round(x))


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
