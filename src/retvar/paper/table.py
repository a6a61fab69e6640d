"""Table 1: the mean absolute change of each estimate beside the published one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import xarray

COLUMNS = ("value", "second_moment", "vtd", "direct")
PUBLISHED_RUNS = 30


class Cell(NamedTuple):
    """A number of Table 1 beside the published one; NaN if its method was left out."""

    measured: float
    stderr: float
    printed: str
    runs: int

    @property
    def error(self) -> float:
        """Standard error of the difference; the published number is of 30 runs."""
        return self.stderr * math.sqrt(1 + self.runs / PUBLISHED_RUNS)

    @property
    def z(self) -> float:
        """Measured minus published in standard errors of the difference."""
        gap = self.measured - float(self.printed)
        return 0.0 if gap == 0 else gap / self.error if self.error else math.nan

    @property
    def half_unit(self) -> float:
        """Half a unit of the last printed digit."""
        return 0.5 * 10.0 ** -len(self.printed.partition(".")[2])

    @property
    def share(self) -> float:
        """The difference as a share of what is allowed: 4 standard errors, and the rounding."""
        allowed = 4 * self.error + self.half_unit
        return abs(self.measured - float(self.printed)) / allowed


def table_row(data: xarray.Dataset | None, published: tuple[str, ...]) -> dict[str, Cell]:
    """A row of Table 1 by column: mean absolute changes, with published ones as printed."""
    labels = [] if data is None else data.learner.values.tolist()
    runs = 1 if data is None else int(data.attrs["runs"])
    places = {
        "value": ("value_change", "vtd" if "vtd" in labels else [*labels, ""][0]),  # all learn it
        "second_moment": ("second_moment_change", "vtd"),
        "vtd": ("variance_change", "vtd"),
        "direct": ("variance_change", "direct"),
    }

    def number(name: str, learner: str) -> float:
        if data is None or name not in data or learner not in labels:
            return math.nan
        return float(data[name].sel(learner=learner))

    row = {}
    for (column, (name, learner)), printed in zip(places.items(), published, strict=True):
        stderr = number(f"{name}_total_std", learner) / math.sqrt(runs)
        row[column] = Cell(number(f"{name}_total", learner), stderr, printed, runs)
    return row
