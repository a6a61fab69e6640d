"""A page on a running estimate: progress, table, map and curves, then check and report."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.estimation.folder import PAGE
from retvar.estimation.format import table_rows
from retvar.estimation.results import brief_dataset
from retvar.files import kind_of
from retvar.format import duration
from retvar.web.live_server import LiveServer, Served
from retvar.web.rendering import environment, policy_of

if TYPE_CHECKING:
    import xarray

    from retvar.estimation.checks import Check
    from retvar.estimation.estimate import Estimate

__all__ = ["LivePage"]

STATE, REPORT = "state.json", "report.html"
LEAST = 0.3  # seconds between two looks at the estimates
SHARE = 0.05  # of the time may go into looking at them
ROWS = 60  # of the table
CURVES = 6  # states
POINTS = 300  # of a curve
MOST_CELLS = 2_500  # of a map
MOST_STATES = 5_000  # more are in the report, but not followed


class LivePage:
    """The page of an estimate while it learns; the caller tells what happens.

    Parameters
    ----------
    found
        The estimate, from its first transition on or before.
    port
        Where to listen on 127.0.0.1; 0: any free port.

    Examples
    --------
    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=9_000)
    >>> found = rv.estimation.estimate.prepare(lake, gamma=0.9)
    >>> with LivePage(found) as page:
    ...     found.learn(page.advance)
    ...     page.state["transitions"]
    9000
    """

    def __init__(self, found: Estimate, port: int = 0) -> None:
        self._found = found
        self._history: list[tuple[int, dict[int, tuple[float, float]]]] = []
        self._began = time.monotonic()
        self._looked, self._cost = -math.inf, 0.0
        self.state: dict[str, Any] = {
            "phase": "starting", "transitions": 0, "total": found.experience.length,
            "unit": "transitions",
        }  # fmt: skip
        template = environment().get_template("live.html")
        env = template.environment
        style, script = (str(env.globals[name]) for name in ("style", "script"))
        live, _, _ = env.loader.get_source(env, "live.js")  # type: ignore[union-attr]
        security = policy_of(style, script, live, connect="'self'")
        self.server = LiveServer(port, security=security)
        name = found.experience.name.removeprefix("gymnasium:").removeprefix("minari:")
        page = template.render(name=name, security=security, live=live).lstrip()
        self.server.files[""] = Served("text/html; charset=utf-8", page.encode())
        self._publish()

    @property
    def url(self) -> str:
        """The address of the page."""
        return self.server.url

    def __enter__(self) -> LivePage:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    def advance(self, done: float) -> None:
        """Tell that so many transitions are done; look at the estimates now and then."""
        self.state |= {"phase": "learning", "transitions": int(done)}
        now = time.monotonic()
        last = self.state["total"] is not None and done >= self.state["total"]
        if last or now - self._looked >= max(LEAST, self._cost / SHARE):
            self._look()
        self._publish()

    def say(self, phase: str) -> None:
        """Tell what is done next, such as checking."""
        self.state["phase"] = phase
        self._publish()

    def sweeps(self, done: float, total: int) -> None:
        """Tell that a deep critic has been fitted so long."""
        self.state |= {"phase": f"fitting networks: {done:,.0f} of {total:,} sweeps"}
        self._publish()

    def finish(
        self, out: Path, checked: Check | None = None, failure: BaseException | None = None
    ) -> None:
        """Show the last estimates, the check, and the report in the folder `out`."""
        self._look()
        self.state["phase"] = "done" if failure is None else "ended early"
        self.state["warnings"] = [*self._found.warnings] if self._found.estimator.steps else []
        checks = [("The data's own returns", self._found.self_check)]
        checks += [("Fresh returns", checked.verdicts)] if checked is not None else []
        self.state["checks"] = [
            {"title": title, "kind": str(each.kind), "lines": each.summary().splitlines()}
            for title, each in checks
        ]
        path = out / PAGE
        if failure is None and kind_of("--out", path) == "file":
            self.server.files[REPORT] = Served("text/html; charset=utf-8", path.read_bytes())
            self.state["report"] = REPORT
        self._publish()
        self.server.farewell(REPORT if "report" in self.state else STATE)

    def _look(self) -> None:
        """Read the estimates; what cannot be read yet, or takes long, is left out."""
        began = time.monotonic()
        if len(getattr(self._found.monitor.visits, "counts", ())) > MOST_STATES:
            return
        try:
            data = brief_dataset(self._found.experience, self._found.estimator, self._found.monitor)
            self.state["table"] = _table(data)
            self.state["map"] = _map(data)
            self._remember(data)
            self.state["curves"] = self._curves(data)
        except Exception:  # a deep critic before it is fitted, a system that is not solvable yet
            self.state.pop("table", None)
        first, self._looked = math.isinf(self._looked), time.monotonic()
        self._cost = 0.0 if first else self._looked - began  # the first compiles

    def _remember(self, data: xarray.Dataset) -> None:
        visits = data["visits"].values
        chosen = [int(k) for k in np.argsort(-visits, kind="stable")[:100] if visits[k] > 0]
        if "state" not in data.dims:
            chosen = []
        value, std = data["value"].values, data["std"].values
        point = {k: (float(value[k]), float(std[k])) for k in chosen}
        if not self._history or self._history[-1][0] != self.state["transitions"]:
            self._history.append((self.state["transitions"], point))
        if len(self._history) > POINTS:
            del self._history[1:-1:2]

    def _curves(self, data: xarray.Dataset) -> dict[str, Any]:
        """Value and std of the most visited states, over the transitions so far."""
        if "state" not in data.dims:
            return {}
        visits, labels = data["visits"].values, data["label"].values
        chosen = [int(k) for k in np.argsort(-visits, kind="stable")[:CURVES] if visits[k] > 0]
        return {
            "at": [at for at, _ in self._history],
            "states": [
                {
                    "label": str(labels[k])[:40],
                    "value": [_plain(point.get(k, (math.nan,))[0]) for _, point in self._history],
                    "std": [_plain(point.get(k, (math.nan,))[-1]) for _, point in self._history],
                }
                for k in chosen
            ],
        }

    def _publish(self) -> None:
        seconds = time.monotonic() - self._began
        done, total = self.state["transitions"], self.state["total"]
        left = (total - done) * seconds / done if total and 0 < done < total else 0.0
        told = {**self.state, "seconds": duration(seconds), "left": duration(left) if left else ""}
        body = json.dumps(told, allow_nan=False).encode()
        self.server.files[STATE] = Served("application/json", body)


def _table(data: xarray.Dataset) -> dict[str, Any]:
    found = table_rows(data, ROWS)
    heading, *rows = found.lines
    if not heading[-1] and not any(row[-1] for row in rows):
        heading, rows = heading[:-1], [row[:-1] for row in rows]
    return {"heading": heading, "rows": rows, "hidden": found.hidden, "unit": found.unit}


def _map(data: xarray.Dataset) -> dict[str, Any] | None:
    """Value and std of each cell, where states lie on a map."""
    rows, columns = (int(data.attrs.get(f"grid_{name}", 0)) for name in ("rows", "columns"))
    if not 0 < rows * columns <= min(MOST_CELLS, data.sizes.get("state", 0)):
        return None
    cells = {name: data[name].values[: rows * columns].tolist() for name in ("value", "std")}
    letters = str(data.attrs.get("cells", ""))
    return {"rows": rows, "columns": columns, "letters": letters,
            **{name: [_plain(x) for x in column] for name, column in cells.items()}}  # fmt: skip


def _plain(x: float) -> float | None:
    """A number for JSON, to six digits; None for NaN and infinity."""
    return float(f"{x:.6g}") if math.isfinite(x) else None
