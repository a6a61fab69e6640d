"""Run experiments, keep their data, check their claims, draw their figures, write the report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retvar.errors import InputError
from retvar.experiments import Claim, Experiment, Finding, Simulation
from retvar.files import write_text
from retvar.format import duration
from retvar.report import figures, html, markdown
from retvar.report.outcome import Asked, Checked, Outcome, Reproduction
from retvar.report.output_folder import Folder
from retvar.report.selection import declared, restrict, select
from retvar.report.table1 import is_table, rows
from retvar.report.watch import Watch

if TYPE_CHECKING:
    import xarray

__all__ = ["reproduce"]

DRAWING, STARTING, UPDATE = 1.0, 0.3, 8e-9  # seconds expected, for telling the time left


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
    watch: Watch | None = None,
) -> Reproduction:
    """Rerun the paper's experiments, or your own, and write a report.

    Parameters
    ----------
    ids
        Which experiments; ``chain-step-size`` stands for all below it. Default: all.
    out
        A folder for ``index.html``, ``report.md``, ``figures/`` and ``data/``, made if it is not
        there. Simulations that are in it are not computed again.
    runs, seed
        How many runs in place of those declared, and the seed.
    methods
        Some of ``direct``, ``vtd`` and ``centred``; claims about others are left out.
    formats
        Of the figures: some of ``png``, ``svg`` and ``pdf``.
    force
        Compute everything again, whatever is there.
    file
        A Python file that declares ``EXPERIMENTS``, in place of the paper's.
    threads
        How many to use; default: as many as the machine has.
    watch
        Told how far it has come.

    Returns
    -------
    Reproduction
        The outcome of each experiment; ``plain()`` gives what ``--json`` prints.

    Examples
    --------
    >>> import tempfile, retvar.report
    >>> out = Path(tempfile.mkdtemp()) / "chain"
    >>> found = retvar.report.reproduce(["chain-mdp"], out)
    >>> sorted(path.name for path in out.iterdir())
    ['data', 'figures', 'index.html', 'report.md', 'retvar-reproduction.json', 'times.json']
    >>> found.plain()
    {'experiments': {'chain-mdp': {'claims': []}}}
    """
    began = time.monotonic()
    chosen = restrict(select(ids, declared(file)), methods, runs)
    kinds = figures.formats_of(formats)
    for experiment in chosen:
        figures.plot_of(experiment)
    asked = Asked(
        _seed(seed),
        runs,
        None if methods is None else tuple(methods),
        None if file is None else Path(file).name,
    )
    with Folder(out).opened() as folder:
        job = _Job(folder, asked, kinds, force, threads, watch or Watch())
        outcomes = job.run(chosen)
        found = Reproduction(
            outcomes, asked, time.monotonic() - began, job.simulations, len(job.computed)
        )
        write_text(folder.path / "index.html", html.page(found))
        write_text(folder.path / "report.md", markdown.page(found))
    return found


def _seed(given: int) -> int:
    if given < 0:
        raise InputError("seed", given, "must be a whole number of at least 0")
    return int(given)


class _Job:
    """Experiments one after the other; a simulation that several share is computed once."""

    def __init__(
        self,
        folder: Folder,
        asked: Asked,
        formats: tuple[str, ...],
        force: bool,
        threads: int | None,
        watch: Watch,
    ) -> None:
        self.folder, self.asked, self.formats = folder, asked, formats
        self.force, self.threads, self.watch = force, threads, watch
        self.simulations: dict[str, Simulation] = {}  # by the name of the data file
        self.computed: set[str] = set()

    def run(self, experiments: Sequence[Experiment]) -> tuple[Outcome, ...]:
        self.watch.check()
        work = self._plan(experiments)
        self.watch.begin([e.id for e in experiments], sum(work.values()))
        return tuple(self._one(e, work[e.id]) for e in experiments)

    def _plan(self, experiments: Sequence[Experiment]) -> dict[str, float]:
        """What each has to do; a damaged file is found now and not after an hour."""
        work: dict[str, float] = {}
        for experiment in experiments:
            work[experiment.id] = DRAWING
            for simulation in experiment.simulations:
                name = self._name(simulation)
                if name in self.simulations:
                    continue
                self.simulations[name] = simulation
                if self._missing(simulation):
                    work[experiment.id] += _expected(simulation)
                else:
                    self.folder.store.read(simulation, self.asked.seed)
                self.watch.check()
        return work

    def _name(self, simulation: Simulation) -> str:
        return self.folder.store.path(simulation, self.asked.seed).name

    def _missing(self, simulation: Simulation) -> bool:
        if self.force and self._name(simulation) not in self.computed:
            return True
        return not self.folder.store.has(simulation, self.asked.seed)

    def _one(self, experiment: Experiment, work: float) -> Outcome:
        self.watch.start(experiment.id, work)
        began, before = time.monotonic(), len(self.computed)
        data = self._data(experiment)
        simulated = time.monotonic() - began
        outcome = self._outcome(experiment, data)
        self.folder.time("drawing " + experiment.id, outcome.drawing)
        done = ["drawn" if outcome.drawn else outcome.problem or "nothing to draw"]
        if experiment.simulations:
            new = len(self.computed) > before
            done.insert(0, f"simulated in {duration(simulated)}" if new else "simulated before")
        if outcome.checked:
            done.append(f"{outcome.held} of {len(outcome.checked)} claims hold")
        self.watch.finish(f"{experiment.id}: {', '.join(done)}")
        return outcome

    def _data(self, experiment: Experiment) -> dict[str, xarray.Dataset]:
        """The data of all its simulations, computed where they are missing."""
        found, done = {}, 0.0
        for simulation in experiment.simulations:
            store, seed = self.folder.store, self.asked.seed
            if self._missing(simulation):
                began = time.monotonic()
                base, expected = done, _expected(simulation)

                def tell(share: float, base: float = base, work: float = expected) -> None:
                    self.watch.advance(base + share * work)

                data = simulation.run(seed, progress=tell, threads=self.threads)
                found[simulation.name] = store.write(simulation, seed, data)
                self.folder.time(self._name(simulation), time.monotonic() - began)
                self.computed.add(self._name(simulation))
                done += expected
            else:
                found[simulation.name] = store.read(simulation, seed)
            self.watch.advance(done)
        return found

    def _outcome(self, experiment: Experiment, data: dict[str, xarray.Dataset]) -> Outcome:
        """Check and draw."""
        began = time.monotonic()
        checked = tuple(Checked(claim, _check(claim, data)) for claim in experiment.claims)
        drawn, problem = None, ""
        try:
            figure = figures.draw(experiment, data)
        except Exception as error:  # people's own drawing must not lose what others found
            problem = f"could not be drawn ({type(error).__name__}: {error})"
        else:
            self.watch.check()
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
        warnings.simplefilter("ignore", RuntimeWarning)  # one run has no standard deviation
        try:
            return claim.check(data)
        except Exception as error:
            told = f"could not be checked ({type(error).__name__}: {error})"
            return Finding(False, told)
