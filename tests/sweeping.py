"""A small sweep, and processes that run it, forked from one with everything imported."""

import multiprocessing
import os
import tempfile
from pathlib import Path

from retvar.cli import main
from retvar.sweep import CellSize, Domain, Learners, Local, Sweep, run
from retvar.sweep.plan import Plan


def small(count: int = 5, runs: int = 8, **changes) -> Sweep:
    """A sweep of `count` × 2 × `runs` / 2 small cells."""
    settings = {
        "name": "small",
        "seed": 3,
        "runs": runs,
        "steps": 40,
        "domains": [
            Domain(random={"states": 4, "branching": 2}, seeds={"first": 0, "count": count})
        ],
        "learners": [Learners(method="direct", alpha=[0.05, 0.4], lam=0.5)],
        "cell": CellSize(learners=1, runs=2),
    }
    return Sweep(**{**settings, **changes})


def run_logged(spec: dict, out: str, log: str) -> None:
    """Run a sweep in this process, and log each cell before it is computed."""
    compute = Plan.compute

    def logged(self, cell, *arguments, **options):
        handle = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(handle, f"{self.keys[cell.number]}\n".encode())
        os.close(handle)
        return compute(self, cell, *arguments, **options)

    Plan.compute = logged
    run(Sweep.from_dict(spec), out, Local(threads=1))


def process(sweep: Sweep, out: Path, log: Path):
    """Start a process that runs `sweep`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sweepwarm"])
    arguments = (sweep.to_dict(), str(out), str(log))
    started = context.Process(target=run_logged, args=arguments)
    started.start()
    return started


def run_command(words: list[str], folder: str) -> None:
    """Run a command line in this process."""
    os.chdir(folder)
    main(words, prog_name="retvar")


def command(words: list[str], folder: Path):
    """Start a process that runs a command line in a folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sweepwarm"])
    started = context.Process(target=run_command, args=(words, str(folder)))
    started.start()
    return started


def warm() -> None:
    """Import and compile everything once, before processes are forked."""
    with tempfile.TemporaryDirectory() as folder:
        run(small(count=1, runs=2), folder, Local(threads=1))
