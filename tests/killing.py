"""Commands that write, in processes forked from one with everything imported, to be killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import retvar as rv

SMALL = str(Path(__file__).parent / "data" / "small.py")
SWEEP = """
runs = 8
steps = 3000
cell = { learners = 1, runs = 2 }
domains = [{ random = { states = 6, branching = 2 }, seeds = { first = 0, count = 4 } }]
learners = [{ method = ["direct", "vtd"], alpha = [0.05, 0.1] }]
"""
COMMANDS = ("sweep", "collect", "estimate", "rollouts", "reproduce", "checkpoint")
LAKE = ["gymnasium:FrozenLake-v1", "--gamma", "0.9"]
STEPS, CHUNK = 3_000, 50  # of the checkpoints


def words_of(command: str, folder: Path) -> list[list[str]]:
    """What to run; a later line needs the files of an earlier one."""
    out, spec = str(folder / "out"), folder / "sweep.toml"
    spec.write_text(SWEEP)
    sweep = ["sweep", "run", str(spec), "--out", out, "--threads", "1"]
    log = ["--log", str(folder / "log.parquet")]
    return {
        "sweep": [sweep],
        "collect": [["sweep", "collect", out, "--out", str(folder / name)]
                    for name in ("all.nc", "all.parquet")],
        "estimate": [["estimate", *LAKE, "--steps", "20000", *log, "--out", out]],
        "rollouts": [["rollouts", *LAKE, "--episodes", "400", "--json"]],
        "reproduce": [["reproduce", "own", "--file", SMALL, "--out", out, "--threads", "1"]],
        "checkpoint": [["checkpoint", str(folder / "a.safetensors")]],
    }[command]  # fmt: skip


def learn_with_checkpoints(path: str) -> None:
    """Learn a fixed stream, and save after each chunk; go on where the file says."""
    stream = np.random.default_rng(0)
    states, rewards = stream.integers(0, 20, STEPS + 1), stream.normal(size=STEPS)
    learner = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, kappa=0.5).online(states=20)
    if Path(path).exists():
        learner = rv.load(path)
    while learner.steps < STEPS:
        part = slice(learner.steps, learner.steps + CHUNK)
        after = slice(part.start + 1, part.stop + 1)
        columns = {"state": states[part], "reward": rewards[part], "next_state": states[after]}
        learner.update_many(columns)
        learner.save(path)


def run(words: list[list[str]], printed: str) -> None:
    """Run commands in this process, one after the other; what they print goes to a file."""
    from retvar.cli import main

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(printed, "w"))))
        stack.enter_context(contextlib.redirect_stderr(stack.enter_context(open(os.devnull, "w"))))
        for line in words:
            if line[0] == "checkpoint":
                learn_with_checkpoints(line[1])
            else:
                main(line, standalone_mode=False)


def started(words: list[list[str]], printed: Path) -> Any:
    """A process that runs commands."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.killwarm"])
    process = context.Process(target=run, args=(words, str(printed)))
    process.start()
    return process


def warm() -> None:
    """Import and compile everything once, before processes are forked."""
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            own = Path(folder) / ("sweep" if command == "collect" else command)
            own.mkdir(exist_ok=True)
            run(words_of(command, own), str(own / "printed"))
