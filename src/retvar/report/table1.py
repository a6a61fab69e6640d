"""Table 1: measured and published numbers, with standard errors and z."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from retvar.experiments.claims import COLUMNS, measured_row

if TYPE_CHECKING:
    import xarray

    from retvar.experiments import Experiment

__all__ = ["COLUMNS", "Cell", "Row", "is_table", "rows"]

PUBLISHED_RUNS = 30


class Cell(NamedTuple):
    """One number of the table; NaN if its method was left out."""

    measured: float
    stderr: float
    printed: str
    runs: int

    @property
    def z(self) -> float:
        """Measured minus published in standard errors; published numbers are of 30 runs.

        >>> Cell(1.2, 0.1, "1.0", 30).z.__round__(6)
        1.414214
        >>> Cell(0.0, 0.0, "0.0", 30).z
        0.0
        """
        gap = self.measured - float(self.printed)
        error = self.stderr * math.sqrt(1 + self.runs / PUBLISHED_RUNS)
        return 0.0 if gap == 0 else gap / error if error else math.nan


class Row(NamedTuple):
    """The numbers of one experiment, by column."""

    experiment: str
    cells: dict[str, Cell]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as printed by ``--json``; None for numbers that were not measured."""
        return {
            "experiment": self.experiment,
            **{column: finite(cell.measured) for column, cell in self.cells.items()},
            "stderr": {column: finite(cell.stderr) for column, cell in self.cells.items()},
            "published": {column: float(cell.printed) for column, cell in self.cells.items()},
        }


def is_table(experiment: Experiment) -> bool:
    """Whether an experiment is a table of published numbers."""
    return experiment.plot == "table_1"


def rows(experiment: Experiment, data: Mapping[str, xarray.Dataset]) -> tuple[Row, ...]:
    """The rows of the table."""
    published: Mapping[str, tuple[str, ...]] = experiment.options["published"]
    return tuple(_row(name, published[name], data[name]) for name in published if name in data)


def _row(name: str, published: tuple[str, ...], data: xarray.Dataset) -> Row:
    row, stderr = _measure(data)
    runs = int(data.attrs["runs"])
    return Row(
        name,
        {
            column: Cell(row[column], stderr[column], printed, runs)
            for column, printed in zip(COLUMNS, published, strict=True)
        },
    )


def _measure(data: xarray.Dataset) -> tuple[dict[str, float], dict[str, float]]:
    """A row and its standard errors; NaN for methods left out, except for the shared value."""
    labels = [str(label) for label in data.learner.values]
    for name in ("second_moment_change_total", "second_moment_change_total_std"):
        if name not in data:
            data = data.assign({name: data["value_change_total"] * math.nan})
    needed = [name for name in data.data_vars if str(name).endswith(("_total", "_total_std"))]
    data = data[needed]
    row, stderr = measured_row(data.reindex(learner=["vtd", "direct"]))
    if "vtd" not in labels:
        other = data.isel(learner=[0, 0]).assign_coords(learner=["vtd", "direct"])
        found = measured_row(other)
        row["value"], stderr["value"] = found[0]["value"], found[1]["value"]
    return row, stderr


def finite(number: float) -> float | None:
    """The number, or None instead of NaN and infinity, which JSON cannot express.

    >>> finite(1.5), finite(math.nan)
    (1.5, None)
    """
    return float(number) if math.isfinite(number) else None
