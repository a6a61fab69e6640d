"""Heat maps: estimates of grid worlds and observations, solutions, contours, a matrix.

Each figure makes a :class:`HeatMap` first; :func:`draw_map` draws all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize, PowerNorm
from matplotlib.ticker import MaxNLocator

from retvar.mdp import END, MDP
from retvar.plots import estimates as e
from retvar.plots import panels, style
from retvar.plots.comparison import LONG_NAMES
from retvar.plots.estimates import TITLES, column, visited
from retvar.plots.style import INK, Array, Figure, Flags, Indices, shown
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, short_number

if TYPE_CHECKING:
    from retvar.exact.solution import Solution
    from retvar.simulation.step_search import BestSteps

COLOUR_MAPS: dict[str, Any] = {  # even in grey: a high value is bright, a large spread is dark
    "value": colormaps["viridis"],
    "std": ListedColormap(colormaps["magma_r"](np.linspace(0.02, 0.82, 256)), "spread"),
}
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # of red, green and blue light
HATCH: Any = {"cmap": ListedColormap(["#f8f8f8"]), "edgecolor": "#bdbdbd", "hatch": "////"}
STAR: Any = {"marker": "*", "ms": 11, "mfc": "white", "mec": INK, "mew": 0.9, "ls": "none"}
NUMBER_SIZE, BELOW_SIZE, MIN_SIZE = 8.5, 6.6, 4.6  # points; smaller numbers are omitted
MAX_PLAIN = 1e5  # larger numbers are written with powers of ten
MIN_BAR = 0.6  # inches: height of a colour bar
OBSERVATION_MAP = 3.2, 2.8  # inches
MAX_GROUPS = 250  # rows of a matrix
FAR = 100.0  # times the least error; larger ones have the last colour
CELL_TYPES = {"S": "start", "F": "frozen", "H": "hole", "C": "cliff", "G": "goal"}
NO_STEP = "hatched: no step was taken from here (never reached, or the end of an episode)"
NOT_VISITED = "hatched: never visited"


class HeatMap(NamedTuple):
    """A table of numbers as colours."""

    table: Array  #: [row, column]; NaN has no colour
    colours: Any  #: a colour map
    norm: Any = None  #: of the colours; default: from the least to the largest number
    edges: Any = None  #: of the cells, x and y; default: whole numbers
    hatched: Any = False  #: cells without data
    texts: Sequence[str] = ()  #: in the cells, row by row
    below: Sequence[str] = ()  #: smaller, below these
    corner: str = ""  #: a letter for each cell, faint in its corner
    down: bool = False  #: whether the first row is the uppermost
    names: Sequence[str] = ()  #: of the axes, x and y; default: without axes


def draw_map(ax: Axes, one: HeatMap, cell: float = 0.0, **look: Any) -> Any:
    """Draw a heat map, with its texts if they are readable in cells of so many inches."""
    edges = one.edges or [np.arange(n + 1) - 0.5 for n in one.table.shape[::-1]]
    norm = one.norm or Normalize(*panels.value_range(one.table))
    table = np.ma.masked_invalid(one.table)
    mesh = ax.pcolormesh(*edges, table, cmap=one.colours, norm=norm, zorder=1, **look)
    ax.set(xlim=edges[0][[0, -1]], ylim=edges[1][[-1, 0] if one.down else [0, -1]])
    if np.any(one.hatched):
        blank = np.ma.masked_where(~one.hatched, np.zeros(one.table.shape))
        ax.pcolor(*edges, blank, gid="hatched", lw=0, **HATCH)
    if one.texts:
        shades = np.asarray(mesh.cmap(mesh.norm(one.table.ravel())), dtype=float)[:, :3]
        shades[np.isnan(one.table.ravel())] = 1.0
        _write_cells(ax, one, shades**2.2 @ LUMINANCE > 0.25, cell)
    return mesh


def _fit(texts: Sequence[str], size: float, cell: float) -> float:
    """The font size, at most `size`, at which all texts fit into cells of so many inches."""
    widest = max((style.text_size(text, size)[0] for text in texts), default=0.0)
    return min(size, 0.24 * 72 * cell, size * 0.86 * cell / widest if widest else size)


def _write_cells(ax: Axes, one: HeatMap, light: Flags, cell: float) -> None:
    """Write what is readable in cells of so many inches, in black where these are light."""
    size, small = _fit(one.texts, NUMBER_SIZE, cell), _fit(one.below, BELOW_SIZE, 0.9 * cell)
    both, letter = small >= MIN_SIZE and any(one.below), min(6.5, 0.2 * 72 * cell)
    lift, up = size * 0.55 / (72 * cell) if both else 0.0, -1 if one.down else 1
    middle: Any = {"ha": "center", "va": "center", "gid": "number"}
    parts = [(one.texts, 0.0, up * (lift - 0.03), size, middle)]
    if both:
        parts += [(one.below, 0.0, -up * (1.5 * lift + 0.03), small, middle | {"gid": "interval"})]
    if one.corner and letter >= MIN_SIZE:
        faint = {"ha": "left", "va": "top", "alpha": 0.6, "gid": "letter"}
        parts += [(one.corner, -0.45, -0.45, letter, faint)]
    for texts, x, y, points, look in parts if size >= MIN_SIZE else ():
        for k, text in enumerate(texts):
            row, place = divmod(k, one.table.shape[1])
            own = look | {"gid": "unknown"} if text == "?" else look
            colour = "black" if light[k] else "white"
            ax.text(place + x, row + y, text, fontsize=points, color=colour, **own)


def number_texts(values: Array, *more: Array) -> list[list[str]]:
    """Texts of arrays of numbers, with decimals that give the largest value three digits.

    A number that would read as zero has one digit, a long one is a power of ten, NaN has no text.

    >>> number_texts(np.array([-1.5, 0.0, np.nan]), np.array([0.00042, 123456.7, 1.0]))
    [['−1.50', '0.00', ''], ['0.0004', '1.2e5', '1.00']]
    """
    size = panels.largest_magnitude(np.where(np.isfinite(values), values, np.nan))
    decimals = int(np.clip(2 - np.floor(np.log10(size)), 0, 5)) if size else 0

    def text(value: float) -> str:
        rounded = round(value, decimals)
        if np.isnan(value):
            return ""
        if rounded == 0 and value != 0:
            return short_number(float(f"{value:.1g}"))
        if abs(rounded) >= MAX_PLAIN:  # an interval may be far wider than the values
            return f"{value:.1e}".replace("e+0", "e").replace("e+", "e").replace("-", "−")
        return f"{rounded + 0.0:.{decimals}f}".replace("-", "−")

    return [[text(value) for value in each.tolist()] for each in (values, *more)]


def add_bar(ax: Axes, mesh: Any, width: float, height: float) -> None:
    """Draw a colour bar right of a map of this size in inches, higher than a very low map."""
    tall = max(1.0, MIN_BAR / height)
    place = 1 + 0.08 / width, (1 - tall) / 2, 0.13 / width, tall
    bar = ax.figure.colorbar(mesh, cax=ax.inset_axes(place))
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=int(np.clip(height * tall / 0.25, 2, 6)))


@style.styled
def draw_maps(maps: Mapping[str, HeatMap], title: str) -> Figure:
    """Draw maps of one shape by their titles, with colour bars.

    Those with axes have one size; others are grids, whose cells are square, and stacked if wide.
    """
    first = next(iter(maps.values()))
    rows, columns = first.table.shape
    (wide, high), stacked, cell = OBSERVATION_MAP, False, 0.0
    look: Any = {"rasterized": True}
    if not first.names:
        stacked = columns >= 2 * rows
        cell = float(np.clip(8.4 / columns if stacked else 4.1 / max(rows, columns), 0.05, 0.85))
        look = {"edgecolors": "white", "lw": min(1.0, 2.5 * cell)}
        wide, high = cell * columns, cell * rows
    across = 1 if stacked else min(len(maps), 2)
    down, room = -(-len(maps) // across), 0.35 * bool(first.names)  # for ticks
    width, height = max(wide + 0.85, 2.7) + room, max(high, MIN_BAR) + 0.4 + room
    figure = style.new_figure(max(across * width + 0.2, 5.2), down * height + 0.75, title)
    for k, (name, one) in enumerate(maps.items()):
        ax = figure.add_subplot(down, across, k + 1, anchor="W", title=name)
        add_bar(ax, draw_map(ax, one, cell, **look), wide, high)
        if one.names:
            ax.locator_params(nbins=6)
            ax.set(xlabel=shown(one.names[0]), ylabel=shown(one.names[1]))
        else:
            ax.set_aspect("equal")
            ax.set_axis_off()
    return figure


def grid_shape(data: xarray.Dataset) -> tuple[int, int] | None:
    """Rows and columns of a grid world; None where the states are none."""
    if "grid_rows" not in data.attrs or "grid_columns" not in data.attrs:
        return None
    shape, states = (int(data.attrs["grid_rows"]), int(data.attrs["grid_columns"])), data["state"]
    if states.size != shape[0] * shape[1]:
        raise InputError("grid", f"{states.size:,} states", "must be as many as its cells")
    return shape


def estimate_maps(data: xarray.Dataset) -> Figure:
    """Draw the estimates of a grid world: a map of the value and one of the std.

    Each cell shows its estimate and, below it, half the width of its interval, if they fit. Cells
    from which no step was taken are hatched. `data` is from :func:`retvar.estimate`.
    """
    remedy = "must be that of a grid world, with its value and std; see estimate_states for others"
    e.require_columns(data, *TITLES, "grid_rows", "grid_columns", remedy=remedy)
    known = visited(data)
    title = e.figure_title(data, "what return to expect from each cell, and how far it may stray")
    figure = draw_maps(dict(state_map(data, name) for name in TITLES), title)
    written, notes = {str(text.get_gid()) for ax in figure.axes for text in ax.texts}, []
    if "interval" in written:
        notes.append(f"±: half the width of the {e.interval_name(data)}")
    letters = sorted(set(str(data.attrs.get("cells", ""))) - {" "}, key="SFHCG".find)
    if "letter" in written and set(letters) <= set(CELL_TYPES):
        notes.append(", ".join(f"{letter} {CELL_TYPES[letter]}" for letter in letters))
    if "unknown" in written:
        notes.append(f"?: {e.why_unknown(data, known & np.isnan(column(data, 'std')))}")
    style.add_note(figure, [*notes, NO_STEP * (not known.all())])
    return figure


def state_map(data: xarray.Dataset, name: str) -> tuple[str, HeatMap]:
    """The title and the map of the value or std, with the half-widths of intervals."""
    known, shape = visited(data), grid_shape(data)
    values = np.where(known, column(data, name), np.nan)
    factor, suffix = panels.common_factor(values)
    values = values / factor
    halves = (column(data, f"{name}_high") - column(data, f"{name}_low")) / (2 * factor)
    texts, below = number_texts(values, np.where(np.isnan(values), np.nan, halves))
    return e.in_costs(data, TITLES[name]) + suffix, HeatMap(
        values.reshape(shape),
        COLOUR_MAPS[name],
        hatched=~known.reshape(shape),
        texts=[text or "?" * own for text, own in zip(texts, known.tolist(), strict=True)],
        below=[f"±{half}" * bool(half) for half in below],
        corner=str(data.attrs.get("cells", "")),
        down=True,
    )


def estimate_heat_maps(data: xarray.Dataset) -> Figure:
    """Draw the estimates for two-dimensional observations as two heat maps.

    Parts that were never visited are hatched. `data` is from :func:`retvar.estimate`.
    """
    remedy = "must be that of observations of two numbers; see estimate_figures for others"
    e.require_columns(data, "value_map", "std_map", "visited_map", "x", "y", remedy=remedy)
    title = e.figure_title(data, "what return to expect, and how far it may stray")
    ordered = data[["value_map", "std_map", "visited_map"]].sortby(["y", "x"]).transpose("y", "x")
    edges = [_cell_edges(column(ordered, axis)) for axis in "xy"]
    axes = [str(data.attrs.get(f"{axis}_name", axis)) for axis in "xy"]
    blank, white, maps = ~(column(ordered, "visited_map") > 0), False, {}
    for name, what in TITLES.items():
        table = np.where(blank, np.nan, column(ordered, f"{name}_map"))
        factor, suffix = panels.common_factor(table)
        look = COLOUR_MAPS[name]
        title_of = e.in_costs(data, what) + suffix
        maps[title_of] = HeatMap(table / factor, look, None, edges, blank, names=axes)
        white = white or bool((np.isnan(table) & ~blank).any())
    why = "too little data nearby" if "note" in data else e.NEGATIVE_VARIANCE
    figure = draw_maps(maps, title)
    style.add_note(figure, [NOT_VISITED * bool(blank.any()), f"white: {why}" * white])
    return figure


def _cell_edges(centres: Array) -> Array:
    """Edges of cells around ascending centres."""
    if centres.size == 1:
        return np.array(panels.value_range(centres))
    middles = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - middles[0], *middles, 2 * centres[-1] - middles[-1]])


def grid_cells(positions: Array | None, most: float = np.inf) -> Indices | None:
    """Column and row (from below) of each state, None if positions are no cells, or too many."""
    if positions is None or not np.array_equal(positions, np.round(positions)):
        return None
    cells = (positions - positions.min(axis=0)).astype(np.intp)
    alone = len(np.unique(cells, axis=0)) == len(cells)
    return cells if alone and cells.max() < most else None


def draw_solution_maps(solution: Solution, grid: Indices, shape: Mapping[str, Array]) -> Figure:
    """Draw maps of value, standard deviation and shape, with their numbers."""
    known, maps = {"value": solution.value, "standard deviation": solution.std}, {}
    for (title, values), colours in zip(known.items(), COLOUR_MAPS.values(), strict=True):
        texts = [text or "∞" for text in number_texts(values[grid].ravel())[0]]
        maps[title] = HeatMap(values[grid], colours, texts=texts)
    for title, values in shape.items():
        most = panels.largest_magnitude(values) or 1.0
        texts = [text or "–" for text in number_texts(values[grid].ravel())[0]]
        maps[title] = HeatMap(values[grid], "coolwarm", Normalize(-most, most), texts=texts)
    return draw_maps(maps, shown(solution.mdp.name))


def moves_of(mdp: MDP, policy: object = None) -> tuple[Array, Array]:
    """Probabilities of moving between states, and of ending, in groups of as many as are needed."""
    each = -(-mdp.n_states // MAX_GROUPS)
    groups, edges = -(-mdp.n_states // each), mdp.edges
    taken = mdp.policy(policy).probabilities[edges.state, edges.action] * edges.probability
    table = np.zeros((groups, groups + 1))
    after = np.where(edges.next_state == END, groups, edges.next_state // each)
    np.add.at(table, (edges.state // each, after), taken)
    table /= np.bincount(np.arange(mdp.n_states) // each)[:, None]
    return table[:, :-1], table[:, -1]


@style.styled
def draw_matrix(mdp: MDP, policy: object) -> Figure:
    """Draw the probability of going from each state to each other, and of ending."""
    if policy is None and len(mdp.policies) > 1:
        policy = next(iter(mdp.policies))
    cells, ends = (np.where(x > 0, x, np.nan) for x in moves_of(mdp, policy))
    n, each, norm = mdp.n_states, -(-mdp.n_states // MAX_GROUPS), PowerNorm(0.5, 0, 1)
    note = f"{n:,} states, so a matrix: where each leads"
    note += f" under {shown(policy)}" if isinstance(policy, str) else ""
    note += f"; a cell stands for {count(each, 'state')}" if each > 1 else ""
    figure = Figure(figsize=(6.9, 5.6), layout="constrained")
    ax = figure.add_subplot(xlabel="next state", ylabel="state", aspect="equal")
    ax.set_title(style.wrap_text(note, 8.0, 6.0), fontsize=8.0, gid="note")
    mesh = draw_map(ax, HeatMap(cells, "Blues", norm, down=True), rasterized=True)
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10], integer=True).tick_values(0, n - 1)
    marked = [int(s) for s in ticks if s < n]
    names = [shown(mdp.state_name(s), style.LONGEST_TICK) for s in marked]
    for axis in (ax.xaxis, ax.yaxis):
        panels.fixed_ticks(axis, [(s + 0.5) / each - 0.5 for s in marked], names)
    ax.spines[:].set_visible(True)
    if np.isfinite(ends).any():
        edge = ax.inset_axes((1.02, 0.0, 0.035, 1.0), xticks=[], yticks=[])
        draw_map(edge, HeatMap(ends[:, None], "Blues", norm, down=True), rasterized=True)
        edge.set_title("end", fontsize=8.0, loc="center")
        edge.spines[:].set_visible(True)
    bar = figure.colorbar(mesh, ax=ax, fraction=0.05, pad=0.08, label="probability")
    bar.outline.set_visible(False)
    return figure


@style.styled
def step_contours(best: BestSteps | Mapping[str, BestSteps]) -> Figure:
    """Draw the exact error over α and ᾱ, a panel for each method, all on one scale.

    A star marks the best steps. With a third step (α_mean) each point has its best value of it.

    `best` is from :func:`retvar.best_steps`, or a mapping from names to several.
    """
    from retvar.simulation.step_search import BestSteps

    several: Any = best if isinstance(best, Mapping) and best else {"": best}
    tables, names = [], ("alpha_bar", "alpha")
    for name, one in several.items():
        field = f"best[{name!r}]" if name else "best"
        arguments.instance(field, one, BestSteps, "a result of retvar.best_steps")
        if not set(names) <= set(one.errors.dims):
            remedy = "the error must depend on both alpha and alpha_bar; plot best.errors yourself"
            raise InputError("best", f"errors over {', '.join(map(str, one.errors.dims))}", remedy)
        tables.append(one.errors.min(set(one.errors.dims) - set(names)).transpose(*names))
    known = np.concatenate([table.values.ravel() for table in tables])
    known = known[np.isfinite(known) & (known > 0)]
    low = float(known.min(initial=np.inf)) if known.size else 1.0
    high = float(np.clip(known.max(initial=low), 1.01 * low, FAR * low))
    norm, levels = LogNorm(low, high), np.geomspace(low, high, 13)
    figure = Figure(figsize=(1.3 + 2.9 * len(tables), 3.5), layout="constrained")
    axes = figure.subplots(1, len(tables), squeeze=False, sharex=True, sharey=True)[0]
    box = {"facecolor": INK, "alpha": 0.6, "lw": 0, "pad": 2}
    look: Any = {"va": "top", "fontsize": 8, "color": "white", "bbox": box}
    for ax, (name, one), errors in zip(axes, several.items(), tables, strict=True):
        x, y = errors.alpha.values, errors.alpha_bar.values
        drawn = np.clip(np.where(np.isfinite(errors), errors, np.inf), *levels[[0, -1]])
        title = style.learner_name(name or one.learner.network.method)
        ax.set(xscale="log", yscale="log", title=title, xlabel=LONG_NAMES["alpha"])
        ax.contourf(x, y, drawn, levels=levels, norm=norm, cmap="viridis_r")
        ax.contour(x, y, drawn, levels=levels, colors=INK, linewidths=0.4)
        ax.plot(one.steps["alpha"], one.steps["alpha_bar"], gid="best", **STAR)
        ax.text(0.03, 0.97, f"error {short_number(one.error)}", transform=ax.transAxes, **look)
        for axis, values in ((ax.xaxis, x), (ax.yaxis, y)):
            panels.fixed_ticks(axis, panels.log_ticks(values[0], values[-1], 6))
    axes[0].set_ylabel(LONG_NAMES["alpha_bar"])
    label, ticks = "mean squared error, summed over states", panels.log_ticks(low, high)
    mesh: Any = ScalarMappable(norm, "viridis_r")
    bar = figure.colorbar(mesh, ax=list(axes), pad=0.02, fraction=0.05, aspect=22, label=label)
    panels.fixed_ticks(bar.ax.yaxis, ticks)
    bar.outline.set_visible(False)
    return figure
