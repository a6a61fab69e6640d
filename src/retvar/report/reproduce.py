"""Run experiments, save their data, check their claims, draw their figures, write the report."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retvar import arguments
from retvar.engine.cuda_device import chosen_device
from retvar.experiments import Claim, Experiment, Finding, Simulation
from retvar.files import write_text
from retvar.format import duration
from retvar.progress import Progress
from retvar.report import figures, pages
from retvar.report.ahead import Ahead, Report
from retvar.report.outcome import CheckedClaim, Outcome, Reproduction, Request
from retvar.report.output_folder import OutputFolder
from retvar.report.selection import load_experiments, restrict, select
from retvar.report.table1 import is_table, rows

if TYPE_CHECKING:
    import xarray

__all__ = ["reproduce"]

# expected seconds, to estimate the time left: of a figure, of starting a simulation, of an update
DRAWING, STARTING, UPDATE = 1.0, 0.3, 8e-9


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
        Folder for ``index.html``, ``report.md``, ``figures/`` and ``data/``; created if missing.
        Simulations that are in it already are not computed again.
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
    >>> import tempfile, retvar.report
    >>> out = Path(tempfile.mkdtemp()) / "chain"
    >>> found = retvar.report.reproduce(["chain-mdp"], out)
    >>> sorted(path.name for path in out.iterdir())
    ['data', 'figures', 'index.html', 'report.md', 'retvar-reproduction.json', 'times.json']
    >>> found.to_dict()
    {'experiments': {'chain-mdp': {'claims': []}}}
    """
    force = arguments.flag("force", force)
    if progress is not None:
        arguments.instance("progress", progress, Progress, "a Progress, or None")
    chosen_device(device, 1)  # raises an error now if there is none
    began = time.monotonic()
    chosen = restrict(select(ids, load_experiments(file)), methods, runs)
    formats = figures.validate_formats(formats)
    for experiment in chosen:
        figures.plot_function(experiment)  # raises an error now if it does not exist
    request = Request(
        arguments.integer("seed", seed, 0),
        runs,
        None if methods is None else tuple(methods),
        None if file is None else Path(file).name,
    )
    with OutputFolder(out).opened() as folder:
        options = {"threads": threads, "device": device}
        job = _Job(folder, request, formats, force, options, progress or Progress())
        outcomes = job.run(chosen)
        found = Reproduction(
            outcomes, request, time.monotonic() - began, job.simulations, len(job.computed)
        )
        write_text(folder.path / "index.html", pages.html_page(found))
        write_text(folder.path / "report.md", pages.markdown_page(found))
    return found


class _Job:
    """Runs experiments; shared simulations are computed once, and later ones while it draws."""

    def __init__(
        self,
        folder: OutputFolder,
        request: Request,
        formats: tuple[str, ...],
        force: bool,
        options: dict[str, Any],
        progress: Progress,
    ) -> None:
        self.folder, self.store, self.seed = folder, folder.store, request.seed
        self.formats, self.force, self.options = formats, force, options
        self.progress = progress
        self.simulations: dict[str, Simulation] = {}  # by the name of the data file
        self.uses: Counter[str] = Counter()  # experiments that still need each of them
        self.computed: set[str] = set()
        self.ahead = Ahead(self._compute, self._save)

    def run(self, experiments: Sequence[Experiment]) -> tuple[Outcome, ...]:
        self.progress.check()
        outcomes: list[Outcome] = []
        done = 0.0
        with warnings.catch_warnings(), self.ahead:  # threads share the filters of warnings
            work = self._plan(experiments)
            self.progress.start(sum(work.values()))
            for number, experiment in enumerate(experiments, 1):
                expected = work[experiment.id]
                self.progress.start_part(experiment.id, expected)
                outcome, line = self._run_one(experiment, done)
                outcomes.append(outcome)
                done += expected
                self.progress.advance(done)
                self.progress.finish_part(f"[{number}/{len(experiments)}] {experiment.id}: {line}")
                self.ahead.save_finished()
        return tuple(outcomes)

    def _plan(self, experiments: Sequence[Experiment]) -> dict[str, float]:
        """Expected seconds of each experiment; saved data are read now, to find damaged files."""
        work: dict[str, float] = {}
        missing: list[str] = []
        for experiment in experiments:
            work[experiment.id] = DRAWING
            for simulation in experiment.simulations:
                name = self._name(simulation)
                self.uses[name] += 1
                if name in self.simulations:
                    continue
                self.simulations[name] = simulation
                if self.force or not self.store.has(simulation, self.seed):
                    work[experiment.id] += _expected(simulation)
                    missing.append(name)
                else:
                    self.store.read(simulation, self.seed)
                self.progress.check()
        for name in missing:
            self.ahead.submit(name, self.simulations[name])
        return work

    def _name(self, simulation: Simulation) -> str:
        return self.store.path(simulation, self.seed).name

    def _compute(self, simulation: Simulation, report: Report) -> xarray.Dataset:
        return simulation.run(self.seed, progress=report, **self.options)

    def _save(self, simulation: Simulation, data: xarray.Dataset, seconds: float) -> xarray.Dataset:
        began = time.monotonic()
        saved = self.store.write(simulation, self.seed, data)
        self.folder.record_time(self._name(simulation), seconds + time.monotonic() - began)
        return saved

    def _run_one(self, experiment: Experiment, done: float) -> tuple[Outcome, str]:
        """The outcome, and a line about it; `done` is the expected time of what came before."""
        before = self.computed.copy()
        data = self._simulate(experiment, done)
        outcome = self._check_and_draw(experiment, data)
        self.folder.record_time("drawing " + experiment.id, outcome.drawing)
        parts = ["drawn" if outcome.drawn else outcome.problem or "nothing to draw"]
        if experiment.simulations:
            new = self.computed - before
            seconds = sum(self.folder.times[name] for name in new)
            parts.insert(0, f"simulated in {duration(seconds)}" if new else "simulated before")
        if outcome.checked:
            parts.append(f"{outcome.held} of {len(outcome.checked)} claims hold")
        return outcome, ", ".join(parts)

    def _simulate(self, experiment: Experiment, done: float) -> dict[str, xarray.Dataset]:
        """The data of all simulations; waits for those that are being computed."""
        found = {}
        for simulation in experiment.simulations:
            name, data = self._name(simulation), None
            self.uses[name] -= 1
            if name in self.ahead:
                expected = 0.0 if name in self.computed else _expected(simulation)

                def report(share: float, base: float = done, expected: float = expected) -> None:
                    self.progress.advance(base + share * expected)

                data = self.ahead.result(name, report, last=not self.uses[name])
                self.computed.add(name)
                done += expected
            found[simulation.name] = data if data is not None else self._read(simulation)
            self.progress.advance(done)
        return found

    def _read(self, simulation: Simulation) -> xarray.Dataset:
        return self.store.read(simulation, self.seed)

    def _check_and_draw(self, experiment: Experiment, data: dict[str, xarray.Dataset]) -> Outcome:
        began = time.monotonic()
        checked = tuple(CheckedClaim(claim, _check(claim, data)) for claim in experiment.claims)
        drawn, problem = None, ""
        try:
            figure = figures.draw(experiment, data)
        except Exception as error:  # a user's function must not stop the other experiments
            problem = f"could not be drawn ({type(error).__name__}: {error})"
        else:
            self.progress.check()
            if figure is not None:
                drawn = figures.write(figure, self.folder.path, experiment.id, self.formats)
        times = self.folder.times
        return Outcome(
            experiment,
            checked,
            drawn,
            rows(experiment, data) if is_table(experiment) else (),
            {n: times.get(n, 0.0) for n in map(self._name, experiment.simulations)},
            time.monotonic() - began,
            problem,
        )


def _expected(simulation: Simulation) -> float:
    return STARTING + UPDATE * simulation.updates


def _check(claim: Claim, data: dict[str, xarray.Dataset]) -> Finding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the standard deviation of one run
        try:
            return claim.check(data)
        except Exception as error:
            return Finding(False, f"could not be checked ({type(error).__name__}: {error})")
