"""Sources of every kind against numbers on record.

`python -m tests.test_recorded` writes the record anew, with the retvar that PYTHONPATH names.
Return intervals are left out: they may change where returns tie.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retvar as rv
from retvar.experience import from_gymnasium, from_linear_gaussian, from_table

RECORD = Path(__file__).parent / "data" / "recorded.json"
TOLERANCE = 1e-12  # of the largest number of a column
NEARLY_DEPENDENT = {"mountain_car": 1e-5}  # features, so that last digits depend on the BLAS
ESTIMATES = tuple(f"{name}{end}" for name in ("value", "std") for end in ("", "_low", "_high"))
STATES = np.array(["home", "ward", "icu", "rehab", "hospice"])
ACTIONS = np.array(["wait", "treat"])
MOVES = np.array(
    [
        [[0.7, 0.2, 0.0, 0.1, 0.0], [0.2, 0.3, 0.3, 0.1, 0.1], [0.0, 0.3, 0.5, 0.0, 0.2],
         [0.5, 0.1, 0.0, 0.4, 0.0], [0.0, 0.1, 0.1, 0.0, 0.8]],
        [[0.8, 0.1, 0.0, 0.1, 0.0], [0.4, 0.2, 0.1, 0.3, 0.0], [0.1, 0.5, 0.3, 0.1, 0.0],
         [0.8, 0.0, 0.0, 0.2, 0.0], [0.0, 0.3, 0.1, 0.0, 0.6]],
    ]
)  # fmt: skip
BEHAVIOUR = np.array([[0.8, 0.2], [0.5, 0.5], [0.4, 0.6], [0.7, 0.3], [0.6, 0.4]])
TARGET = np.array([[0.7, 0.3], [0.4, 0.6], [0.6, 0.4], [0.8, 0.2], [0.5, 0.5]])
REWARD = np.array([1.0, -1.0, -4.0, 0.5, -2.0])
END = np.array([0.05, 0.02, 0.05, 0.03, 0.2])
Case = Callable[[Path], Any]  # experience, from a folder for its files


def clinic(patients: int = 60, visits: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """A log of patients: rows of a patient in the order of its days, visit after visit."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    for patient in range(patients):
        day = int(rng.integers(100))
        for visit in range(1 + int(rng.integers(visits))):
            state = int(rng.integers(len(STATES)))
            for age in range(20):
                act = int(rng.random() < BEHAVIOUR[state, 1])
                follows = int(rng.choice(len(STATES), p=MOVES[act, state]))
                end, cut = bool(rng.random() < END[state]), age == 19
                reward = round(float(REWARD[state] - 0.5 * act + rng.normal()), 3)
                rows.append(
                    (patient, visit, day, state, act, reward, follows, end, cut and not end)
                )
                day, state = day + 1 + int(rng.integers(2)), follows
                if end:
                    break
    names = ("patient_id", "visit", "day", "state", "action", "reward", "next_state")
    columns = zip(*rows, strict=True)
    log = {
        name: np.array(column)
        for name, column in zip((*names, "terminated", "truncated"), columns, strict=True)
    }
    chosen = log["state"], log["action"]
    return log | {"p": BEHAVIOUR[chosen], "q": TARGET[chosen]}


def only(log: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: log[name] for name in names}


def plain(seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers of states, without patients: rows in the order of the log."""
    return only(clinic(seed=seed), "state", "reward", "terminated", "truncated")


def named(log: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with labels for states and actions."""
    found = log | {"state": STATES[log["state"]]}
    for name, words in (("next_state", STATES), ("action", ACTIONS)):
        if name in log:
            found[name] = words[log[name]]
    return found


def taken(log: dict[str, np.ndarray], rows: Any) -> dict[str, np.ndarray]:
    return {name: column[rows] for name, column in log.items()}


def shuffled(log: dict[str, np.ndarray], seed: int = 9) -> dict[str, np.ndarray]:
    return taken(log, np.random.default_rng(seed).permutation(len(log["reward"])))


def csv(log: dict[str, Any], folder: Path, name: str = "log.csv") -> Path:
    path = folder / name
    rows = zip(*(_texts(column) for column in log.values()), strict=True)
    text = "\n".join([",".join(log), *(",".join(row) for row in rows)]) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def _texts(column: Any) -> list[str]:
    return ["" if x is None or x != x else str(x) for x in np.asarray(column).tolist()]


def holes(log: dict[str, np.ndarray], **every: int) -> dict[str, np.ndarray]:
    """The log with some entries of columns missing: every so many."""
    found = dict(log)
    for name, steps in every.items():
        found[name] = log[name].astype(object)
        found[name][::steps] = None
    return found


PLAIN = ("state", "reward", "terminated", "truncated")
SCHEDULE = ("patient_id", "day", *PLAIN)
PATIENTS = {"entity": "patient_id", "time": "day"}
OFF_POLICY = ("state", "action", "reward", "terminated", "truncated", "p")
NESTED = {
    s: dict(zip(ACTIONS.tolist(), row.tolist(), strict=True))
    for s, row in zip(STATES.tolist(), TARGET, strict=True)
}


def days(first: str, step: np.timedelta64, log: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A shuffled schedule, with dates in place of numbers of days."""
    log = shuffled(only(log, *SCHEDULE))
    return log | {"day": np.datetime64(first) + log["day"] * step}


def twice() -> dict[str, np.ndarray]:
    """A schedule in which every fiftieth row is there twice."""
    log = only(clinic(), *SCHEDULE)
    rows = np.arange(len(log["day"]))
    return shuffled(taken(log, np.sort(np.append(rows, rows[::50]))))


def several_files(folder: Path) -> str:
    for seed in range(3):
        csv(named(plain(seed)), folder, f"log_{seed}.csv")
    return str(folder / "log_*.csv")


def parquet(folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(plain()), folder / "a.parquet")
    return folder / "a.parquet"


def own_recording(folder: Path) -> Path:
    pytest.importorskip("pyarrow")
    lake = from_gymnasium("FrozenLake-v1", steps=2_000, seed=5)
    lake.save(folder / "lake.parquet")
    return folder / "lake.parquet"


def in_turn() -> dict[str, np.ndarray]:
    log = only(clinic(), *SCHEDULE)
    log = taken(log, np.argsort(log["day"], kind="stable"))
    return only(log, "patient_id", *PLAIN)


def dropped_next() -> dict[str, np.ndarray]:
    log = only(clinic(), "state", "reward", "next_state", "terminated", "truncated")
    log["next_state"][::37] = 0
    return named(log)


def relabelled(labels: Any) -> dict[str, np.ndarray]:
    log = plain()
    return log | {"state": np.asarray(labels)[log["state"]]}


def moods() -> dict[str, np.ndarray]:
    log = only(clinic(), *PLAIN, "action")
    return log | {"mood": np.array(["up", "down"])[log["action"]]}


def discounts() -> dict[str, np.ndarray]:
    log = plain()
    own = {"g": np.where(log["state"] == 1, 0.95, 0.8), "l": np.where(log["state"] == 2, 0.5, 1.0)}
    return log | own


def ratios() -> dict[str, np.ndarray]:
    log = only(clinic(), *OFF_POLICY, "q")
    log["w"] = log.pop("q") / log.pop("p")
    return log


def policy_file(folder: Path) -> Path:
    pairs = [(s, a, q) for s, row in NESTED.items() for a, q in row.items()]
    names = ("state", "action", "probability")
    return csv(dict(zip(names, zip(*pairs, strict=True), strict=True)), folder, "policy.csv")


def vector_environment() -> Any:
    gymnasium = pytest.importorskip("gymnasium")
    return gymnasium.make_vec("FrozenLake-v1", num_envs=3, vectorization_mode="sync")


def _pumping(observation: Any) -> int:
    """Push where the car goes, mostly."""
    odd = int(1e6 * abs(float(observation[0]))) % 10 == 0
    return 1 if odd else 2 if observation[1] >= 0 else 0


def drift() -> dict[str, np.ndarray]:
    rng, rows = np.random.default_rng(4), 2_000
    x, noise = np.zeros((rows + 1, 2)), rng.normal(size=(rows, 2))
    for k in range(rows):
        x[k + 1] = np.zeros(2) if k % 20 == 19 else 0.8 * x[k] + 0.3 * noise[k]
    log = {"state_0": x[:-1, 0], "state_1": x[:-1, 1], "reward": x[:-1].sum(axis=1)}
    return log | {"terminated": np.arange(rows) % 20 == 19}


def linear_gaussian() -> Any:
    world = rv.domains.linear_gaussian(F=[[0.8, 0.3], [-0.3, 0.8]], S=0.3, Q=1.0, gamma=0.95)
    return from_linear_gaussian(world, streams=8, steps=4_000, seed=2)


def of(make: Callable[[Path], Any], **roles: Any) -> Case:
    """A table that is made in a folder."""
    return lambda folder: from_table(make(folder), **roles)


def env(name: Any, *policy: Any, **options: Any) -> Case:
    return lambda folder: from_gymnasium(name, *policy, **options)


CALLED = {"state": "where", "reward": "points", "terminated": "done"}
DAY, MINUTE = np.timedelta64(1, "D"), np.timedelta64(1, "m")
MISSING = {"reward": 41, "state": 53, "patient_id": 67, "day": 71}
GAMMAS = np.array([0.9, 0.8, 0.95, 0.9, 0.7])
TRACED = rv.Direct(alpha=rv.Averaged(), gamma=0.9, lam=0.8, kappa=0.5, kappa_bar=0.5, order=4)
CASES: dict[str, tuple[dict[str, Any], Case]] = {
    # forms of tables
    "columns": ({}, of(lambda f: plain())),
    "csv_of_numbers": ({}, of(lambda f: csv(plain(), f))),
    "csv_of_labels": ({"level": 0.8}, of(lambda f: csv(named(plain()), f))),
    "csv_compressed": ({}, of(lambda f: csv(named(plain(1)), f, "log.csv.gz"))),
    "parquet": ({"gamma": 0.95}, of(parquet)),
    "arrow": ({}, of(lambda f: pytest.importorskip("pyarrow").table(named(plain())))),
    "pandas": ({}, of(lambda f: pytest.importorskip("pandas").DataFrame(named(plain())))),
    "several_files": ({}, of(several_files)),
    "own_recording": ({}, of(own_recording)),
    # order, entities, ends
    "shuffled_with_times": (
        {}, of(lambda f: csv(shuffled(only(named(clinic()), *SCHEDULE)), f), **PATIENTS)
    ),
    "shuffled_with_dates": (
        {},
        of(lambda f: csv(days("2024-02-25", DAY, named(clinic())), f), **PATIENTS),
    ),
    "shuffled_frame_with_timestamps": (
        {},
        of(lambda f: pytest.importorskip("pandas").DataFrame(
            days("2024-02-25T08:00:00.000000", 31 * MINUTE, clinic())), **PATIENTS),
    ),
    "entities_in_turn": ({}, of(lambda f: in_turn(), entity="patient_id")),
    "episodes_of_entities": (
        {},
        of(lambda f: shuffled(only(clinic(), "patient_id", "visit", "day", *PLAIN[:3])),
           episode="visit", **PATIENTS),
    ),
    "episodes_alone": (
        {},
        of(lambda f: only(clinic() | {"visit": clinic()["visit"] + 10 * clinic()["patient_id"]},
                          "visit", "state", "reward"), episode="visit", terminated=False),
    ),
    "never_terminates": ({}, of(lambda f: only(clinic(), "state", "reward"), terminated=False)),
    "own_names": (
        {}, of(lambda f: {CALLED[n]: x for n, x in only(clinic(), *CALLED).items()}, **CALLED)
    ),
    "duplicates_dropped": ({}, of(lambda f: twice(), **PATIENTS)),
    "duplicates_kept": ({}, of(lambda f: twice(), duplicates="keep", **PATIENTS)),
    "ties_in_time": (
        {}, of(lambda f: only(clinic(), *SCHEDULE) | {"day": clinic()["day"] // 3}, **PATIENTS)
    ),
    # rows left out
    "missing_rewards": ({}, of(lambda f: csv(holes(named(plain()), reward=40), f))),
    "missing_everything": (
        {},
        of(lambda f: csv(holes(shuffled(only(named(clinic()), *SCHEDULE)), **MISSING), f),
           **PATIENTS),
    ),
    "most_rows_missing": (
        {"gamma": 0.8},
        of(lambda f: plain() | {"reward": np.where(np.arange(len(plain()["reward"])) % 5 < 3,
                                                   np.nan, plain()["reward"])}, force=True),
    ),
    "next_states": ({}, of(lambda f: csv(dropped_next(), f))),
    # states
    "dates_as_labels": (
        {},
        of(lambda f: csv(relabelled([f"2024-{d}" for d in
                                     ("01-29", "02-05", "02-12", "02-19", "02-26")]), f)),
    ),
    "numbers_as_labels": ({}, of(lambda f: relabelled([-3, 10**9, 7, 0, 12]), states="labels")),
    "several_columns_as_labels": ({}, of(lambda f: moods(), state=["state", "mood"])),
    "number_of_states_given": ({}, of(lambda f: plain(), states=9)),
    # settings
    "costs": (
        {},
        of(lambda f: {n: x for n, x in (plain() | {"euros": -10.0 * plain()["reward"]}).items()
                      if n != "reward"}, cost="euros"),
    ),
    "gamma_and_lambda_columns": ({"gamma": None}, of(lambda f: discounts(), gamma="g", lam="l")),
    "gamma_of_states": ({"gamma": GAMMAS}, of(lambda f: plain(), states=5)),
    "lambda_below_one": ({"lam": 0.7}, of(lambda f: named(plain()))),
    "undiscounted": ({"gamma": 1.0}, of(lambda f: named(plain()))),
    "td": ({"by": "td", "seed": 3}, of(lambda f: plain())),
    "td_with_traces_to_order_four": (
        {"gamma": None, "learner": TRACED, "bootstrap_samples": 20}, of(lambda f: plain())
    ),
    "action_values": (
        {"actions": True},
        of(lambda f: csv(only(named(clinic()), "state", "action", *PLAIN[1:]), f)),
    ),
    # off-policy
    "probabilities_as_columns": (
        {"gamma": 0.8}, of(lambda f: only(clinic(), *OFF_POLICY, "q"), behaviour="p", target="q")
    ),
    "ratios_as_a_column": (
        {"gamma": 0.8, "estimand": "off_policy_return"}, of(lambda f: ratios(), rho="w")
    ),
    "target_policy_of_labels": (
        {"gamma": 0.8},
        of(lambda f: csv(holes(only(named(clinic()), *OFF_POLICY), p=61), f), behaviour="p",
           target_policy=NESTED),
    ),
    "target_policy_as_an_array": (
        {"gamma": 0.8, "lam": 0.6},
        of(lambda f: shuffled(only(clinic(), *OFF_POLICY, "patient_id", "day")), behaviour="p",
           target_policy=TARGET, **PATIENTS),
    ),
    "target_policy_as_a_function": (
        {"gamma": 0.8, "actions": True},
        of(lambda f: only(clinic(), *OFF_POLICY), behaviour="p",
           target_policy=lambda s, a: float(TARGET[s, a])),
    ),
    "target_policy_as_a_file": (
        {"gamma": 0.8},
        lambda f: from_table(csv(only(named(clinic()), *OFF_POLICY), f), behaviour="p",
                             target_policy=policy_file(f)),
    ),
    "td_off_policy": (
        {"gamma": 0.8, "by": "td"},
        of(lambda f: only(clinic(), *OFF_POLICY, "q"), behaviour="p", target="q"),
    ),
    # environments
    "frozen_lake": ({}, env("FrozenLake-v1", steps=3_000, seed=1)),
    "frozen_lake_with_a_policy": (
        {"gamma": 0.95},
        env("FrozenLake8x8-v1", np.arange(64) % 4, episodes=100, seed=2, map_name="8x8"),
    ),
    "cliff_walking_by_action": ({"actions": True}, env("CliffWalking-v1", steps=4_000, seed=3)),
    "taxi": ({}, env("Taxi-v4", steps=4_000, seed=4)),
    "blackjack": ({"gamma": 1.0}, env("Blackjack-v1", episodes=1_000, seed=5)),
    "copies_side_by_side": ({}, env("FrozenLake-v1", steps=2_000, envs=4, seed=6)),
    "vector_environment": (
        {}, lambda f: from_gymnasium(vector_environment(), steps=1_500, seed=7)
    ),
    "cart_pole": ({}, env("CartPole-v1", steps=3_000, seed=8)),
    "cart_pole_by_td": (
        {"by": "td", "features": "tiles", "bootstrap_samples": 20},
        env("CartPole-v1", steps=2_000, seed=8),
    ),
    "mountain_car": (
        {"gamma": 0.99, "features": "fourier"}, env("MountainCar-v0", _pumping, episodes=20, seed=9)
    ),
    "observations_of_a_log": ({"features": "polynomial"}, of(lambda f: csv(drift(), f))),
    "linear_gaussian": ({"gamma": 0.95}, lambda f: linear_gaussian()),
}  # fmt: skip

# ------------------------------------------------------------------ what is compared


def facts(settings: dict[str, Any], make: Case) -> dict[str, Any]:
    """What a case gives: numbers by label or at points, counts, and the line of understanding."""
    with tempfile.TemporaryDirectory() as folder:
        found = rv.estimate(make(Path(folder)), **({"gamma": 0.9} | settings))
        data, seen = found.data, found.experience
    told = {
        "transitions": int(data.attrs["transitions"]),
        "rejected": {reason: int(n) for reason, n in sorted((+seen.counts.rejected).items())},
        "understood": seen.understood,
        "visits": np.asarray(data["visits"]).tolist(),
    }
    if seen.width is not None:
        return told | {"at": _at_points(found, np.asarray(data["centre"]))}
    visited = np.flatnonzero(np.asarray(data["visits"]))
    label = np.asarray(data["label"])[visited]
    order = visited[np.argsort(label, kind="stable")]
    names = (
        "visits",
        *ESTIMATES,
        *(n for n in ("skewness", "kurtosis", "mean_ratio") if n in data),
    )
    columns = {name: np.asarray(data[name])[order].tolist() for name in names}
    return told | {"label": sorted(label.tolist()), **columns}


def _at_points(found: Any, centres: np.ndarray) -> dict[str, Any]:
    """Estimates in the middle of a source's most visited regions, moved a little."""
    points = np.round(centres[:8], 2) + 0.001
    columns: dict[str, Any] = {"points": points.tolist()}
    for what in ("value", "std"):
        columns[what] = getattr(found, what)(points).tolist()
        ends = found.interval(states=points, what=what)
        columns[f"{what}_low"], columns[f"{what}_high"] = (end.tolist() for end in ends)
    return columns


def differences(
    found: Any, recorded: Any, where: str = "", tolerance: float = TOLERANCE
) -> list[str]:
    """Where two records differ, numbers by more than the tolerance of their column."""
    if isinstance(recorded, dict):
        if list(found) != list(recorded):
            return [f"{where}: {list(found)} instead of {list(recorded)}"]
        parts = (
            differences(found[key], recorded[key], f"{where} {key}", tolerance) for key in recorded
        )
        return [line for part in parts for line in part]
    if not (isinstance(recorded, list) and recorded and isinstance(recorded[0], float | list)):
        return [] if found == recorded else [f"{where}: {found} instead of {recorded}"]
    one, other = np.asarray(found), np.asarray(recorded)
    if one.shape != other.shape:
        return [f"{where}: shape {one.shape} instead of {other.shape}"]
    near = np.abs(one - other) <= tolerance * np.nanmax(np.abs(other), initial=1e-300)
    wrong = ~(near | (np.isnan(one) & np.isnan(other)))
    pairs = [f"{a!r} instead of {b!r}" for a, b in zip(one[wrong], other[wrong], strict=True)]
    return [f"{where}: {len(pairs)} of {one.size}, {pairs[0]}"] if pairs else []


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return dict(json.loads(RECORD.read_text()))


@pytest.mark.parametrize("name", CASES)
def test_a_source_gives_the_numbers_on_record(name, record):
    tolerance = NEARLY_DEPENDENT.get(name, TOLERANCE)
    assert differences(facts(*CASES[name]), record[name], tolerance=tolerance) == []


def main(names: list[str]) -> None:
    """Record all cases, or those named, beside the others on record."""
    known = dict(json.loads(RECORD.read_text())) if names else {}
    known |= {name: facts(*CASES[name]) for name in names or CASES}
    lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in CASES)
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
