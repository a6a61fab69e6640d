"""Run experiments, save their data, check their claims, draw their figures, write the report."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from filelock import FileLock, Timeout

from retvar import plots, web
from retvar.paper.declarations import COLUMNS, Claim, Experiment, Finding, Simulation, table_row
from retvar.paper.experiments import all_experiments
from retvar.paper.outcome import SOURCES, CheckedClaim, DrawnFigure, Outcome, Reproduction, Request
from retvar.paper.selection import load_experiments, restrict, select
from retvar.paper.sentences import CLOSELY
from retvar.paper.settings import describe_settings
from retvar.simulation.cuda_device import chosen_device
from retvar.simulation.runner import usable_threads
from retvar.support import arguments, cache
from retvar.support.cache import code_digest
from retvar.support.errors import InputError
from retvar.support.files import is_temporary, kind_of, unwritable, write_text
from retvar.support.format import duration, listed, minus, number
from retvar.support.progress import Progress
from retvar.td.networks import label_of

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

TITLE = "The variance of the return, reproduced"
ESTIMATES = {column: label_of(column).replace("_", " ") for column in COLUMNS}
FAR = 4.0  # standard errors; measurements farther from the published ones are marked
FORMATS = ("png", "svg", "pdf")
DRAWING = 2.0  # expected seconds of checks and a figure, to estimate the time left
STEP, LANE = 150e-9, 7e-9  # and of a step, and of a learner in it
MARKER = "retvar-reproduction.json"
LOCK = ".retvar-lock"  # held while a run uses the folder
MADE_BY = {"made_by": "retvar reproduce", "format": 1}


def reproduce(
    ids: Iterable[str] = (),
    out: str | Path = "reproduction",
    *,
    runs: int | None = None,
    seed: int = 0,
    methods: Sequence[str] | None = None,
    formats: Sequence[str] = ("png",),
    force: bool = False,
    file: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    device: str = "cpu",
) -> Reproduction:
    """Run the paper's experiments, or your own, and write a report.

    Parameters
    ----------
    ids
        Ids of experiments, or of groups such as ``chain-step-size``; default: all.
    out
        Folder for ``index.html``, ``figures/`` and ``data/``; created if missing. Simulations that
        are in it already are not computed again.
    runs, seed
        Number of runs (default: as declared), and the random seed.
    methods
        Some of ``direct``, ``vtd`` and ``centred``; claims about others are left out.
    formats
        File formats of figures: some of ``png``, ``svg`` and ``pdf``.
    force
        Compute all simulations again.
    file
        Python file with a list ``EXPERIMENTS``, to use instead of the paper's.
    threads
        Number of threads; default: all cores.
    progress
        Progress callback.
    device
        ``"cpu"``, ``"cuda"`` or ``"auto"``; see :func:`~retvar.simulate`.

    Returns
    -------
    Reproduction
        The outcome of each experiment; ``summary()`` is the text that the command prints and
        ``to_dict()`` what it prints with ``--json``.

    Examples
    --------
    >>> import tempfile, retvar.paper
    >>> out = Path(tempfile.mkdtemp()) / "chain"
    >>> found = retvar.paper.reproduce(["chain-mdp"], out)
    >>> sorted(path.name for path in out.iterdir() if path.name[0] != ".")
    ['data', 'figures', 'index.html', 'retvar-reproduction.json']
    >>> found.to_dict()
    {'experiments': {'chain-mdp': {'claims': []}}}
    """
    force = arguments.flag("force", force)
    chosen_device(device, 1)  # raises an error now if there is none
    began = time.monotonic()
    chosen = restrict(select(ids, load_experiments(file)), methods, runs)
    for experiment in chosen:
        _plot(experiment)  # raises an error now if it does not exist
    formats = arguments.texts("formats", formats)
    for name in formats or ["none"]:
        arguments.choice("formats", name, FORMATS)
    request = Request(
        arguments.integer("seed", seed, 0),
        runs,
        None if methods is None else tuple(methods),
        None if file is None else Path(file).name,
    )
    with OutputFolder(out).opened() as folder:
        options = {"threads": threads, "device": device}
        job = _Job(folder, request.seed, formats, options, progress or Progress())
        found = Reproduction(job.run(chosen, force), request, time.monotonic() - began)
        page = _templates().get_template("report.html").render(found=found, today=web.today())
        write_text(folder.path / "index.html", page.lstrip())
    return found


def _templates() -> jinja2.Environment:
    """The templates of the page; all values are escaped."""
    environment = web.environment("retvar.paper")
    environment.globals |= {
        "TITLE": TITLE, "ESTIMATES": ESTIMATES, "FAR": FAR, "SOURCES": SOURCES, "CLOSELY": CLOSELY,
        "describe_settings": describe_settings, "versions": web.versions,
    }  # fmt: skip
    environment.filters |= {
        "duration": duration, "finite": math.isfinite, "minus": minus, "number": number,
        "sentence_anchor": lambda key: web.anchor("sentence", key),
    }  # fmt: skip
    return environment


def precompile() -> None:
    """Compile what the paper's experiments need, in parallel processes."""
    every = {s.name: s.shortest() for e in all_experiments() for s in e.simulations}
    with multiprocessing.get_context("spawn").Pool(usable_threads()) as pool:
        pool.map(_compile, every.values(), chunksize=1)


def _compile(simulation: Simulation) -> None:
    simulation.run(0, threads=1)


@dataclass
class _Job:
    """Runs experiments one after the other; simulations that they share are computed once."""

    folder: OutputFolder
    seed: int
    formats: Sequence[str]
    options: dict[str, Any]  # of `simulate`
    progress: Progress
    missing: dict[Path, Simulation] = field(default_factory=dict)
    done: float = 0.0  # expected seconds of what is finished

    def run(self, experiments: Sequence[Experiment], force: bool) -> tuple[Outcome, ...]:
        self.progress.check()
        every = {self._path(s): s for e in experiments for s in e.simulations}
        for path, simulation in every.items():
            if force or not path.exists():
                self.missing[path] = simulation
            else:
                self.folder.store.read(simulation, self.seed)  # damaged files are found now
        for simulation in self.missing.values():  # else compiling is taken for a slow machine
            simulation.shortest().run(self.seed, **self.options)
            self.progress.check()
        work = sum(map(_expected, self.missing.values()))
        self.progress.start(work + DRAWING * len(experiments))
        outcomes = []
        for k, experiment in enumerate(experiments, 1):
            outcome, line = self._run_one(experiment)
            outcomes.append(outcome)
            self.done += DRAWING
            self.progress.advance(self.done)
            self.progress.note(f"[{k}/{len(experiments)}] {experiment.id}: {line}")
        return tuple(outcomes)

    def _path(self, simulation: Simulation) -> Path:
        return self.folder.store.path(simulation, self.seed)

    def _run_one(self, experiment: Experiment) -> tuple[Outcome, str]:
        """The outcome, and a line about it."""
        began = time.monotonic()
        new = any(self._path(simulation) in self.missing for simulation in experiment.simulations)
        data = {s.name: self._data(s) for s in experiment.simulations}
        seconds = duration(time.monotonic() - began)
        outcome = self._check_and_draw(experiment, data)
        parts = [f"simulated in {seconds}" if new else "simulated before"] if data else []
        parts.append("drawn" if outcome.drawn else outcome.problem or "nothing to draw")
        if outcome.checked:
            parts.append(f"{outcome.held} of {len(outcome.checked)} claims hold")
        return outcome, ", ".join(parts)

    def _data(self, simulation: Simulation) -> xarray.Dataset:
        """The data of a simulation, computed and saved if they are missing."""
        store, path = self.folder.store, self._path(simulation)
        if path not in self.missing:
            return store.read(simulation, self.seed)

        def report(share: float) -> None:
            self.progress.advance(self.done + share * _expected(simulation))

        found = simulation.run(self.seed, progress=report, **self.options)
        self.done += _expected(self.missing.pop(path))
        return store.write(simulation, self.seed, found)

    def _check_and_draw(self, experiment: Experiment, data: dict[str, xarray.Dataset]) -> Outcome:
        drawn, problem, plot, published = None, "", _plot(experiment), experiment.published
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the standard deviation of one run
            checked = tuple(CheckedClaim(claim, _check(claim, data)) for claim in experiment.claims)
            try:
                figure = plot(data, **experiment.options) if plot else None
            except Exception as error:  # a user's function must not stop the other experiments
                figure, problem = None, f"could not be drawn ({type(error).__name__}: {error})"
        if figure is not None:
            drawn = _write(figure, self.folder.path, experiment.id, self.formats)
        rows = {name: table_row(data[name], published[name]) for name in published if name in data}
        return Outcome(experiment, checked, drawn, rows, problem)


def _plot(experiment: Experiment) -> Callable[..., Figure] | None:
    """The function that draws an experiment."""
    plot: Any = experiment.plot
    if isinstance(plot, str):
        plot = getattr(plots, plot, None)
    if plot is None and experiment.plot is None:
        return None
    if not callable(plot):
        remedy = f"is not a function of retvar.plots (experiment {experiment.id})"
        raise InputError("plot", experiment.plot, remedy)
    return plot  # type: ignore[no-any-return]


def _write(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> DrawnFigure:
    """Write ``figures/NAME.FORMAT`` in each format and close the figure."""
    files = {kind: f"figures/{name}.{kind}" for kind in formats}
    for path in files.values():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        plots.save(figure, folder / path)
    embedded = web.embed(figure)
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close(figure)
    return DrawnFigure(files, *embedded)


def _expected(simulation: Simulation) -> float:
    """Roughly how many seconds a simulation takes."""
    steps = (simulation.steps or 4 * (simulation.episodes or 0)) * simulation.runs
    return steps * (STEP + LANE * len(simulation.learners))


def _check(claim: Claim, data: dict[str, xarray.Dataset]) -> Finding:
    try:
        return claim.check(data)
    except Exception as error:
        return Finding(False, f"could not be checked ({type(error).__name__}: {error})")


# ---------------------------------------------------------------------- the folder


class SimulationCache:
    """A folder with results of simulations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, simulation: Simulation, seed: int) -> Path:
        """The path of a simulation's result."""
        name = re.sub(r"[^\w.+-]+", "-", simulation.name).lstrip(".")[:80]
        return self.folder / f"{name}-{simulation.key(seed, code_digest())[:16]}.nc"

    def read(self, simulation: Simulation, seed: int) -> xarray.Dataset:
        """The result; an InputError if the file is damaged."""
        key = simulation.key(seed, code_digest())
        return cache.read(self.path(simulation, seed), key, "compute it again with --force")

    def write(self, simulation: Simulation, seed: int, data: xarray.Dataset) -> xarray.Dataset:
        """Save a result and return it; the file appears whole or not at all."""
        key = simulation.key(seed, code_digest())
        return cache.write(self.path(simulation, seed), data, key)


class OutputFolder:
    """A folder with ``data/``, ``figures/`` and the report."""

    def __init__(self, path: str | Path) -> None:
        self.path = arguments.path("out", path)
        self.store = SimulationCache(self.path / "data")

    @contextlib.contextmanager
    def opened(self) -> Iterator[OutputFolder]:
        """Create or check the folder, and lock it; a folder with other contents is refused."""
        try:
            self._refuse_other()
            for name in ("data", "figures"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            with FileLock(self.path / LOCK, timeout=0):
                write_text(self.path / MARKER, json.dumps(MADE_BY) + "\n")
                yield self
        except Timeout:
            raise InputError("out", self.path, "another run is using it; wait") from None
        except OSError as error:
            raise unwritable(self.path, error, "out") from None

    def _refuse_other(self) -> None:
        kind = kind_of("out", self.path)
        if kind not in ("folder", ""):
            raise InputError("out", self.path, f"is a {kind}; name a folder")
        files = sorted(self.path.iterdir()) if kind else []
        names = [each.name for each in files if each.name != LOCK and not is_temporary(each)]
        if names and MARKER not in names:
            remedy = f"holds other files ({listed(names, 3)}); name a new or empty folder"
            raise InputError("out", self.path, remedy)
