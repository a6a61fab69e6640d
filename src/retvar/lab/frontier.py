"""The mean–variance frontier under a slider: what a calmer policy costs, and where it differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.domains import windy_cliff
from retvar.exact.sampling import sample_returns
from retvar.format import count, joined, listed, minus, plus_minus, short_number
from retvar.html import escaped
from retvar.lab.mdp_graph import MOST_DRAWN, graph_svg
from retvar.lab.svg import (
    BLUE,
    BOTTOM,
    GRID,
    HEIGHT,
    INK,
    LEFT,
    ORANGE,
    PAPER,
    RIGHT,
    SOFT,
    TOP,
    WIDTH,
    Level,
    Line,
    line_chart,
    svg,
)
from retvar.mdp import MDP, Policy
from retvar.plots.risk_frontier import action_ways, discounted_visits, grid_cells
from retvar.risk import Frontier, FrontierPoint, frontier
from retvar.risk.gradient import policy_gradient

Array = NDArray[np.float64]
__all__ = ["DOMAINS", "Choice", "Domain", "FrontierChoices", "penalties_of"]

SCALES = (0.0, 0.05, 0.12, 0.25, 0.5, 1.0, 2.0, 5.0, 12.0)  # penalties × std of the greedy return
SLIDER = 60  # positions of the slider above 0
SAMPLES, BINS = 10_000, 40
SEEN = 1e-4  # share of the steps; the policy of states visited less is not shown
HALO = f'paint-order="stroke" stroke="{PAPER}" stroke-width="4"'
SAME = 1e-6  # of probabilities that differ by less


class Domain(NamedTuple):
    """An MDP, and the Python that assigns it to ``mdp``.

    >>> DOMAINS["windy-cliff"].code
    'mdp = rv.domains.windy_cliff()'
    """

    make: Callable[[], MDP]
    code: str


def _gymnasium(env: str, gamma: float, **options: Any) -> Domain:
    more = "".join(f", {key}={value!r}" for key, value in options.items())
    code = f'mdp = rv.MDP.from_gymnasium("{env}", gamma={gamma!r}{more})'
    return Domain(lambda: MDP.from_gymnasium(env, gamma=gamma, **options), code)


BETS = [("table", "bet", "end", 0.5, 2.2), ("table", "bet", "end", 0.5, 0.0)]
BETS += [("table", "half", "end", 0.5, 1.5), ("table", "half", "end", 0.5, 0.6)]
BETS += [("table", "pass", "end", 1.0, 1.0)]
DOMAINS = {
    "windy-cliff": Domain(windy_cliff, "mdp = rv.domains.windy_cliff()"),
    "FrozenLake": _gymnasium("FrozenLake-v1", 0.95),
    "CliffWalking, slippery": _gymnasium("CliffWalking-v1", 0.95, is_slippery=True),
    "a bet": Domain(
        lambda: MDP.from_edges(BETS, gamma=1.0, name="a bet"),
        f"mdp = rv.MDP.from_edges({BETS}, gamma=1.0, name='a bet')".replace("'", '"'),
    ),
}


def penalties_of(mdp: MDP) -> list[float]:
    """Penalties at which the search looks: multiples of 1/std of the greedy policy's return.

    >>> penalties_of(windy_cliff())[:3]
    [0.0, 0.012, 0.029]
    """
    found = policy_gradient(mdp, Policy.greedy(mdp), lam=1.0)
    std = float(np.sqrt(max(found.return_variance, 0.0)))
    if std <= 1e-6 * max(abs(found.return_mean), 1.0):
        std = max(abs(found.return_mean), 1.0)
    return [float(f"{scale / std:.2g}") for scale in SCALES]


@dataclass(frozen=True)
class Choice:
    """The policy that is best for penalties from `low` to `high`, of those found."""

    low: float
    high: float
    point: FrontierPoint

    def span(self) -> str:
        """The penalties, in words.

        >>> Choice(0.0, 0.0496, None).span(), Choice(1.0, np.inf, None).span()
        ('0 to 0.05', 'from 1')
        """
        low = short_number(float(f"{self.low:.2g}"))
        if not np.isfinite(self.high):
            return f"from {low}"
        return f"{low} to {short_number(float(f'{self.high:.2g}'))}"


@dataclass(frozen=True, eq=False)
class FrontierChoices:
    """Policies found for some penalties, and which of them is best for any penalty.

    Attributes
    ----------
    found
        From :func:`retvar.frontier`.
    source
        Python that assigns the MDP to ``mdp``.

    Examples
    --------
    >>> view = FrontierChoices.search(*DOMAINS["a bet"])
    >>> [(choice.point.mean, round(choice.low, 3)) for choice in view.choices]
    [(1.1, 0.0), (1.05, 0.05), (1.0, 0.247)]
    >>> view.at(0.5).mean
    1.0
    """

    found: Frontier
    source: str

    @classmethod
    def search(
        cls,
        make: MDP | Callable[[], MDP],
        source: str,
        progress: Callable[[float], None] | None = None,
    ) -> FrontierChoices:
        """Search for the policies of an MDP."""
        mdp = make if isinstance(make, MDP) else make()
        return cls(frontier(mdp, penalties=penalties_of(mdp), progress=progress), source)

    @property
    def mdp(self) -> MDP:
        """The MDP."""
        return self.found.mdp

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The policies that are best somewhere, with the penalties at which the best one changes.

        Mean − c × variance is a line in c for each policy; these are the lines on top.
        """
        points = sorted(self.found, key=lambda p: (p.variance, -p.mean))
        best = max(points, key=lambda p: (p.mean, -p.variance))
        low = 0.0
        chosen: list[Choice] = []
        while True:
            calmer = [p for p in points if p.variance < best.variance * (1 - 1e-9)]
            switch = [(best.mean - p.mean) / (best.variance - p.variance) for p in calmer]
            if not calmer:
                return (*chosen, Choice(low, np.inf, best))
            first = int(np.argmin(switch))
            high = max(float(switch[first]), low)
            chosen.append(Choice(low, high, best))
            low, best = high, calmer[first]

    def choice(self, penalty: float) -> Choice:
        """The choice for a penalty."""
        c = arguments.number("penalty", penalty)
        if c < 0:
            arguments.unit_interval("penalty", c)
        return next(each for each in reversed(self.choices) if each.low <= c)

    def at(self, penalty: float) -> FrontierPoint:
        """The best policy found for a penalty."""
        return self.choice(penalty).point

    @cached_property
    def slider(self) -> list[float]:
        """Positions of the slider: 0, and penalties in equal ratios beyond all changes."""
        given = [p.penalty for p in self.found if p.penalty > 0]
        changes = [c.low for c in self.choices if c.low > 0]
        ends = min([*given, *changes]) / 2, max([*given, *changes])
        return [0.0, *dict.fromkeys(float(f"{c:.2g}") for c in np.geomspace(*ends, SLIDER))]

    @cached_property
    def neutral(self) -> FrontierPoint:
        """The policy with the largest mean."""
        return self.choices[0].point

    def changed(self, penalty: float) -> list[int]:
        """States, visited by either policy, in which the policy is not that for penalty 0."""
        one, other = self.neutral.policy, self.at(penalty).policy
        seen = self._visits(one) + self._visits(other) > SEEN
        differ = np.abs(one.probabilities - other.probabilities).max(axis=1) > SAME
        return [int(s) for s in np.flatnonzero(seen & differ)]

    def _visits(self, policy: Policy) -> Array:
        """Share of the discounted visits of each state."""
        visits = discounted_visits(self.mdp, policy, self.found.start)
        return np.asarray(visits / visits.sum())

    # ------------------------------------------------------------------ words

    def status(self, penalty: float) -> str:
        """What the chosen policy earns, what it costs, and where it differs, in sentences.

        >>> view = FrontierChoices.search(*DOMAINS["a bet"])
        >>> view.status(0)
        'The largest mean: 1.10 ± 1.10. It stays the best found up to a penalty of 0.05.'
        >>> view.status(0.5)[:69]
        'The return is 1.00 ± 0.00: 100% less spread for 0.1 less on average. '
        """
        choice, start = self.choice(penalty), self.neutral
        point = choice.point
        earns = minus(plus_minus(point.mean, point.std))
        until = ""
        if np.isfinite(choice.high):
            limit = short_number(float(f"{choice.high:.2g}"))
            until = f" It stays the best found up to a penalty of {limit}."
        if point is start:
            return f"The largest mean: {earns}.{until}"
        less = 1 - point.std / start.std
        cost = short_number(float(f"{start.mean - point.mean:.2g}"))
        names = [self.mdp.state_name(s) for s in self.changed(penalty)]
        where = f" It acts differently in {count(len(names), 'state')}: {listed(names)}."
        calm = f"{less:.0%} less spread for {cost} less on average."
        return f"The return is {earns}: {calm}{where}{until}"

    def note(self, penalty: float) -> str:
        """What to know about the search, and whether episodes end."""
        point = self.at(penalty)
        told = f"Best found, not proved best: {self.found.tried}."
        if point.ending is not None and point.ending < 1:
            told = f"Only {point.ending:.3g} of the episodes end with this policy. {told}"
        return told

    # ------------------------------------------------------------------ pictures

    def chart(self, penalty: float) -> str:
        """Mean against standard deviation: all policies found, and the chosen one, as SVG."""
        chosen = self.at(penalty)
        path = [choice.point for choice in self.choices]
        std, mean = (np.array([getattr(p, name) for p in path]) for name in ("std", "mean"))
        ranges = _widened(std), _widened(mean)
        chart = line_chart(
            "Mean against spread", [Line("", std, mean, SOFT, width=1.2)],
            x_label="standard deviation of the return", y_label="mean of the return",
            x_range=ranges[0], y_range=ranges[1],
            description=f"{len(path)} policies; chosen: {plus_minus(chosen.mean, chosen.std)}",
        )  # fmt: skip
        return chart.replace("</svg></svg>", f"</svg>{self._dots(chosen, ranges)}</svg>")

    def _dots(self, chosen: FrontierPoint, ranges: Any) -> str:
        """A dot for each policy that is best somewhere, the chosen one large, with its range."""
        left, top, right, bottom = LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM
        (x0, x1), (y0, y1) = ranges
        parts = []
        for choice in self.choices:
            p, own = choice.point, choice.point is chosen
            x = left + (p.std - x0) / (x1 - x0) * (right - left)
            y = bottom - (p.mean - y0) / (y1 - y0) * (bottom - top)
            ink, radius = (ORANGE, 8) if own else (BLUE, 4.5)
            told = f"penalty {choice.span()}: {plus_minus(p.mean, p.std)}"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{ink}" stroke="{PAPER}" '
                f'data-point="{"chosen" if own else "other"}">'
                f"<title>{escaped(told)}</title></circle>"
            )
            if own:
                late = x > (left + right) / 2  # then there is room above, to the left
                at = f'x="{x + 10 if late else x + 12:.1f}" y="{y - 13 if late else y + 16:.1f}"'
                parts.append(
                    f'<text {at} text-anchor="{"end" if late else "start"}" fill="{ORANGE}" '
                    f'font-weight="600" {HALO}>{escaped(minus(plus_minus(p.mean, p.std)))}</text>'
                )
        return "".join(parts)

    def histogram(self, penalty: float) -> str:
        """Sampled returns of the chosen policy, and those of the one with the largest mean."""
        samples = {name: self._returns(p) for name, p in self._compared(penalty).items()}
        every = np.concatenate(list(samples.values()))
        low, high = (float(np.quantile(every, q)) for q in (0.002, 0.998))
        pad = 0.04 * (high - low) or 0.5
        bins = np.linspace(low - pad, high + pad, BINS + 1)
        lines, looks = [], {"largest mean": (SOFT, "4 3", 1.4), "chosen": (ORANGE, "", 2.2)}
        for name, returns in samples.items():
            share = np.histogram(np.clip(returns, bins[0], bins[-1]), bins)[0] / returns.size
            x, y = np.repeat(bins, 2), np.concatenate([[0.0], np.repeat(share, 2), [0.0]])
            ink, dash, width = looks[name]
            band = (np.zeros_like(y), y) if name == "chosen" else (None, None)
            lines.append(Line(name, x, y, ink, dash, band[0], band[1], width))
        point = self.at(penalty)
        levels = [Level("its mean", point.mean, INK, vertical=True)]
        return line_chart(
            f"{SAMPLES:,} sampled returns", lines, levels, x_label="return", y_label="share",
            zero=True, description=f"mean {point.mean:.4g}, std {point.std:.4g}",
        )  # fmt: skip

    def _compared(self, penalty: float) -> dict[str, FrontierPoint]:
        chosen = self.at(penalty)
        both = {"largest mean": self.neutral, "chosen": chosen}
        return both if chosen is not self.neutral else {"chosen": chosen}

    def _returns(self, point: FrontierPoint) -> Array:
        """Sampled returns of a policy, once for each."""
        if id(point) not in self._sampled:
            self._sampled[id(point)] = sample_returns(
                self.mdp, point.policy, start=self.found.start, samples=SAMPLES, seed=0
            )
        return self._sampled[id(point)]

    @cached_property
    def _sampled(self) -> dict[int, Array]:
        return {}

    def picture(self, penalty: float) -> str:
        """The policy: arrows on a grid, or a graph; where it changes is marked."""
        ways, cells = action_ways(self.mdp), grid_cells(self.mdp)
        changed, policy = set(self.changed(penalty)), self.at(penalty).policy
        if ways is not None and cells is not None:
            return _grid_svg(self.mdp, policy, self._visits(policy), changed, (ways, cells))
        if self.mdp.n_states <= MOST_DRAWN:
            return graph_svg(self.mdp, policy, marked=changed)
        return f"<p>{self.mdp.n_states:,} states are too many to draw here.</p>"

    # ------------------------------------------------------------------ code

    def code(self, penalty: float) -> str:
        r"""Python that finds the policies and chooses one.

        >>> view = FrontierChoices.search(*DOMAINS["a bet"])
        >>> print(view.code(0.1))
        import retvar as rv
        <BLANKLINE>
        mdp = rv.MDP.from_edges([...], gamma=1.0, name="a bet")
        found = rv.frontier(mdp, penalties=[0.0, 0.045, 0.11, 0.23, 0.45, 0.91, 1.8, 4.5, 11.0])
        best = max(found, key=lambda point: point.mean - 0.1 * point.variance)
        print(found, best, sep="\n")
        rv.plots.save(found.plot(), "frontier.png")
        <BLANKLINE>
        """
        given = [p.penalty for p in self.found]
        return (
            f"import retvar as rv\n\n{self.source}\n"
            f"found = rv.frontier(mdp, penalties={given})\n"
            f"best = max(found, key=lambda point: point.mean - {penalty!r} * point.variance)\n"
            'print(found, best, sep="\\n")\n'
            'rv.plots.save(found.plot(), "frontier.png")\n'
        )


def _widened(values: Array) -> tuple[float, float]:
    """The range of some numbers, a little widened."""
    pad = 0.1 * (float(np.ptp(values)) or max(abs(float(values[0])), 1.0))
    return float(values.min()) - pad, float(values.max()) + pad


def _grid_svg(
    mdp: MDP,
    policy: Policy,
    visits: Array,
    changed: set[int],
    place: tuple[Array, NDArray[np.intp]],
    size: int = 44,
) -> str:
    """Arrows for the actions of the cells that are visited; changed cells have a border."""
    ways, cells = place
    across, down = (int(x) + 1 for x in cells.max(axis=0))
    strength = np.sqrt(visits / visits.max())
    parts = [
        f'<text x="4" y="18" fill="{INK}" font-weight="600">The policy</text>',
        f'<rect x="4" y="28" width="{across * size}" height="{down * size}" fill="{GRID}"/>',
    ]
    borders = []
    for s, (column, row) in enumerate(cells):
        x, y = 4 + column * size, 28 + (down - 1 - row) * size
        told = _policy_words(mdp, policy, s)
        square = f'x="{x + 1}" y="{y + 1}" width="{size - 2}" height="{size - 2}" rx="3"'
        parts.append(
            f'<g data-cell="{escaped(mdp.state_name(s))}"><title>{escaped(told)}</title>'
            f'<rect {square} fill="{PAPER}"/>'
            f'<rect {square} fill="{BLUE}" opacity="{0.45 * strength[s]:.3f}"/></g>'
        )
        if s in changed:
            borders.append(
                f'<rect {square} fill="none" stroke="{ORANGE}" stroke-width="3" data-changed=""/>'
            )
        if visits[s] > SEEN:
            middle = x + size / 2, y + size / 2
            parts += [
                _arrow(middle, ways[a] * np.sqrt(policy.probabilities[s, a]), size)
                for a in np.flatnonzero(policy.probabilities[s] > 0.01)
            ]
    legend = "blue: more visits; orange: other than for penalty 0"
    bottom = 28 + down * size + 18
    parts += [*borders, f'<text x="4" y="{bottom}" fill="{SOFT}" font-size="11.5">{legend}</text>']
    names = joined(mdp.state_name(s) for s in sorted(changed))
    told = f"arrows on a grid; changed: {names or 'none'}"
    return svg("The policy", told, max(across * size + 8, 330), bottom + 8, parts)


def _policy_words(mdp: MDP, policy: Policy, s: int) -> str:
    row = policy.probabilities[s]
    acts = ", ".join(f"{mdp.action_name(int(a))} {row[a]:.3g}" for a in np.flatnonzero(row > 0.005))
    return f"{mdp.state_name(s)}: {acts}"


def _arrow(middle: tuple[float, float], way: Array, size: int) -> str:
    """An arrow through the middle of a cell; the second number of `way` points upwards."""
    (x, y), (dx, dy) = middle, way * 0.32 * size * np.array([1.0, -1.0])
    length = max(float(np.hypot(dx, dy)), 1e-9)
    ux, uy = dx / length, dy / length
    head = min(8.0, length)
    tip = x + dx, y + dy
    back = tip[0] - head * ux, tip[1] - head * uy
    corners = [tip, (back[0] - 0.5 * head * uy, back[1] + 0.5 * head * ux)]
    corners.append((back[0] + 0.5 * head * uy, back[1] - 0.5 * head * ux))
    points = " ".join(f"{u:.1f},{v:.1f}" for u, v in corners)
    return (
        f'<path d="M{x - dx:.1f} {y - dy:.1f}L{back[0]:.1f} {back[1]:.1f}" stroke="{INK}" '
        f'stroke-width="1.7"/><polygon points="{points}" fill="{INK}"/>'
    )
