"""Logs as they are: mixed, out of order, with gaps and duplicates; or a word why not."""

import datetime
import json

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.cli import main
from retvar.errors import InputError
from retvar.experience import arrangement, from_table
from retvar.experience.episodes import concatenate
from retvar.experience.stream import Counts
from tests import oracle

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.csv")
pytest.importorskip("pyarrow.parquet")

NAN = float("nan")
LABELS = np.array(["ill", "worse", "better", "well"])
EPOCH = datetime.datetime(2026, 1, 1)


@pytest.fixture
def rng():
    seed = oracle.fresh_seed()
    print(f"RETVAR_SEED={seed}")  # noqa: T201
    return np.random.default_rng(seed)


def patients(rng, n=60, rows=12):
    """A clean log: one patient after the other, some dead, some lost; several stays each."""
    columns = {
        name: []
        for name in (
            "patient_id", "stay", "hour", "state", "action", "reward", "next_state", "terminated",
            "p", "q",
        )
    }  # fmt: skip
    for patient in range(n):
        hour, stay, state = 0, 0, int(rng.integers(4))
        for _ in range(int(rng.integers(2, rows))):
            hour += int(rng.integers(1, 5))
            action, follows = int(rng.integers(2)), int(rng.integers(4))
            over = bool(rng.random() < 0.2)
            row = (
                f"p{patient:03}", stay, hour, LABELS[state], action, float(rng.normal()),
                LABELS[follows], over, 0.5, 0.9 if action else 0.1,
            )  # fmt: skip
            for column, cell in zip(columns.values(), row, strict=True):
                column.append(cell)
            state, stay = (int(rng.integers(4)), stay + 1) if over else (follows, stay)
    return {name: np.array(column) for name, column in columns.items()}


def taken(log, order):
    return {name: column[order] for name, column in log.items()}


def without(log, *names):
    return {name: column for name, column in log.items() if name not in names}


def mixed(log, rng):
    """Rows of different patients mixed; those of each in their order."""
    ids = log["patient_id"]
    at = rng.random(ids.size)
    for each in np.unique(ids):
        at[ids == each] = np.sort(at[ids == each])
    return taken(log, np.argsort(at))


def answer(log, **columns):
    found = rv.estimate(from_table(log, **columns), gamma=0.9, by="least_squares")
    labels = found.experience.labels
    return {label: (found.value(k), found.std(k)) for k, label in enumerate(labels)}, found


def assert_same_answers(first, second):
    assert first.keys() == second.keys()
    for label, expected in first.items():
        assert_allclose(second[label], expected, rtol=1e-9, err_msg=label)


def write(log, path):
    table = pa.table(log)
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=50)
    else:
        pa.csv.write_csv(table, path)
    return path


def whole(stream):
    chunks = list(stream.chunks())
    return {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}


# ---------------------------------------------------------------------- order


@pytest.mark.parametrize("kind", ["log.csv", "log.parquet", "memory"])
@pytest.mark.parametrize("chained", [True, False])
def test_mixed_patients_give_the_answer_of_the_clean_log(kind, chained, rng, tmp_path):
    """With and without a column of next states, ids as text."""
    log = patients(rng)
    log = log if chained else without(log, "next_state")
    clean, _ = answer(log, entity="patient_id")
    messy = mixed(log, rng)
    source = messy if kind == "memory" else write(messy, tmp_path / kind)
    found, estimate = answer(source, entity="patient_id")
    assert_same_answers(clean, found)
    counts = estimate.experience.counts
    assert counts.entities == np.unique(log["patient_id"]).size
    assert counts.ends == log["terminated"].sum()
    assert (
        not [w for w in counts.warnings if "alternates" in w or "out of order" in w] or not chained
    )


@pytest.mark.parametrize("kind", ["log.csv", "log.parquet"])
@pytest.mark.parametrize("clock", ["whole", "fraction", "text", "date", "nanoseconds"])
def test_rows_in_random_order_are_sorted_by_time(kind, clock, rng, tmp_path, monkeypatch):
    """Numbers, ISO text, dates; in memory and, in runs of 64 rows, outside."""
    log = patients(rng)
    hour = log["hour"]
    moments = [EPOCH + datetime.timedelta(hours=int(h)) for h in hour]
    log["hour"] = {
        "whole": hour,
        "fraction": hour / 7.0 - 3.0,
        "text": np.array([m.isoformat() for m in moments]),
        "date": np.array(moments, dtype="datetime64[us]"),
        "nanoseconds": 1_767_225_600_000_000_000 + hour,
    }[clock]
    clean, _ = answer(log, entity="patient_id")
    path = write(taken(log, rng.permutation(hour.size)), tmp_path / kind)
    for rows in (10**6, 64):
        monkeypatch.setattr(arrangement, "RUN_ROWS", rows)
        found, estimate = answer(path, entity="patient_id", time="hour", episode="stay")
        assert_same_answers(clean, found)
        assert not estimate.experience.warnings
        assert not estimate.experience.counts.rejected


def test_sorting_outside_memory_gives_the_same_rows_in_the_same_order(rng, monkeypatch):
    """Also with ties, which keep their order, and more rows of one time than a buffer holds."""
    n = 5_000
    log = {
        "who": rng.integers(5, size=n), "when": rng.integers(3, size=n),
        "state": rng.integers(3, size=n), "reward": np.arange(n) * 1.0,
        "terminated": np.zeros(n, dtype=bool),
    }  # fmt: skip
    found = []
    for rows in (10**6, 100):
        monkeypatch.setattr(arrangement, "RUN_ROWS", rows)
        stream = from_table(log, entity="who", time="when", chunk=77)
        found.append(whole(stream)["reward"])
        assert stream.counts.ties == n - np.unique(log["who"] * 3 + log["when"]).size
    assert_array_equal(*found)
    first = {who: k for k, who in reversed(list(enumerate(log["who"])))}
    rank = np.array([first[who] for who in log["who"]])
    order = np.lexsort([np.arange(n), log["when"], rank])
    last = np.append(np.diff(rank[order]) != 0, True)  # has no next state
    assert_array_equal(found[0], log["reward"][order][~last])


def test_duplicates_and_ties_are_those_of_the_definition_also_outside_memory(rng, monkeypatch):
    """Blocks end between two times of an entity: about 20 rows have each of 600 keys."""
    n = 12_000
    log = {
        "who": rng.integers(50, size=n), "when": rng.integers(12, size=n),
        "state": rng.integers(3, size=n), "reward": rng.integers(4, size=n) * 1.0,
        "terminated": np.zeros(n, dtype=bool),
    }  # fmt: skip
    rows = np.column_stack([log[name] for name in ("who", "when", "state", "reward")])
    distinct, keys = (len(np.unique(rows[:, :k], axis=0)) for k in (4, 2))
    for most in (10**6, 3_000):
        monkeypatch.setattr(arrangement, "RUN_ROWS", most)
        stream = from_table(log, entity="who", time="when", chunk=500, force=True)
        whole(stream)
        assert stream.counts.duplicates == n - distinct
        assert stream.counts.ties == distinct - keys


def test_an_episode_id_tells_episodes_of_an_entity_apart():
    """Without a mark at its end, the row before another stay is cut off."""
    log = {
        "who": list("abababab"), "stay": [1, 1, 1, 1, 2, 1, 2, 1], "state": [0] * 8,
        "next_state": [0] * 8, "reward": range(8), "terminated": [False] * 8,
    }  # fmt: skip
    found = whole(from_table(log, entity="who", episode="stay"))
    assert_array_equal(found["reward"], [0, 2, 4, 6, 1, 3, 5, 7])
    assert_array_equal(np.flatnonzero(found["truncated"]), [1, 3, 7])


def test_a_row_of_unknown_entity_or_time_is_left_out():
    """Rows on either side of it are linked unless it lay directly between them."""
    log = {
        "who": ["a", None, "a", "b", None, "a", "b"], "state": [0] * 7, "next_state": [0] * 7,
        "reward": range(7), "terminated": [False] * 7,
    }  # fmt: skip
    stream = from_table(log, entity="who")
    found = whole(stream)
    assert_array_equal(found["reward"], [0, 2, 5, 3, 6])
    assert_array_equal(found["truncated"], [True, False, True, False, True])
    assert stream.counts.rejected == {"who is missing": 2}
    timed = from_table({**log, "t": [3, 2, None, 1, 0, 1, 0]}, entity="who", time="t")
    assert_array_equal(whole(timed)["reward"], [5, 0, 6, 3])
    assert timed.counts.rejected == {"who is missing": 2, "t is missing or no time": 1}


def links(entity, lost, cuts=()):
    """Rows that follow one another, of a log that comes in parts."""
    rows = {"entity": entity, "lost": lost, "reward": np.arange(entity.size)}
    parts = [dict(zip(rows, part, strict=True)) for part in
             zip(*(np.split(column, cuts) for column in rows.values()), strict=True)]  # fmt: skip
    found = concatenate(list(arrangement.arranged(iter(parts), Counts(), chunk=1_000)))
    row = np.column_stack([found["entity"], found["segment"], found["reward"]])
    linked = (row[1:, :2] == row[:-1, :2]).all(axis=1)
    return np.column_stack([row[:-1, 2], row[1:, 2]])[linked]


def test_a_lost_row_lies_between_two_others_wherever_the_log_is_cut(rng):
    entity, lost = rng.integers(2, size=60), rng.random(60) < 0.3
    alike = links(entity, lost)
    for cut in range(1, 60):
        assert_array_equal(links(entity, lost, [cut]), alike)


def test_lost_rows_cut_the_rows_of_an_entity_also_where_they_are_sorted_outside_memory(
    rng, monkeypatch
):
    """One entity, in files of 2,000 rows, merged in blocks of 1,024; a row in a hundred is lost."""
    n = 6_000
    entity, lost = np.zeros(n, dtype=np.int64), rng.random(n) < 0.01
    alike = links(entity, lost)
    monkeypatch.setattr(arrangement, "RUN_ROWS", 2_000)
    assert_array_equal(links(entity, lost, range(500, n, 500)), alike)


def test_a_source_that_fails_gives_what_was_read_before_in_order(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "who,state,reward,terminated\n" + "a,0,1,1\nb,0,2,1\n" * 900_000 + "x" * 9_000_000
    )
    stream = from_table(path, entity="who")
    with pytest.raises(InputError, match="a row of more than 4 MB"):
        list(stream.chunks())
    assert stream.counts.transitions > 10**6


# ---------------------------------------------------------------------- what was understood


def test_one_line_says_what_was_understood(rng):
    log = patients(rng)
    _, found = answer(mixed(log, rng), entity="patient_id")
    n, ends = log["reward"].size, int(log["terminated"].sum())
    cut = found.experience.counts.episodes - ends
    line = f"60 patients, {n} rows, {ends} ends, {cut} cut off"
    assert found.experience.understood == line
    assert line in found.summary()
    assert found.data.attrs["understood"] == line


@pytest.mark.parametrize("chained", [True, False])
def test_ids_that_alternate_without_being_named_are_warned_of(chained, rng):
    """Under --episode they would cut everything apart."""
    log = mixed(patients(rng), rng)
    log = log if chained else without(log, "next_state")
    for given in ({}, {"episode": "patient_id"}):
        stream = from_table(log, **given, force=True)
        assert any("'patient_id' alternates" in w and "entity=" in w for w in stream.warnings)
        list(stream.chunks())
        assert any("does not go on" in w for w in stream.warnings) == (chained and not given)
    assert not from_table(log, entity="patient_id").warnings


def test_rows_that_do_not_chain_are_warned_of(rng):
    log = patients(rng)
    order = rng.permutation(log["reward"].size)
    stream = from_table(taken(without(log, "patient_id", "hour"), order))
    list(stream.chunks())
    assert [w for w in stream.warnings if "does not go on" in w and "entity= or time=" in w]


def test_times_that_go_back_are_warned_of(rng):
    """Numbers called time, and dates called so; not durations, nor counters that start anew."""
    log = without(patients(rng), "next_state")
    hour = log.pop("hour")
    moments = np.datetime64("2026-01-01") + (3_600 * hour).astype("timedelta64[s]")
    for name, clock in (("time", hour), ("charttime", moments), ("charttime", moments.astype(str))):
        clean = {**log, name: clock, "waiting_time": rng.random(hour.size)}
        shuffled = taken(clean, rng.permutation(hour.size))
        stream = from_table(shuffled, entity="patient_id")
        assert [f"name time='{name}'" in w for w in stream.warnings] == [True]
        assert not from_table(clean, entity="patient_id").warnings
    steps = {"step": [0, 1, 2] * 20, "state": [0] * 60, "reward": [0.0] * 60}
    assert not from_table({**steps, "terminated": [False] * 60}).warnings


def test_ids_of_finished_episodes_may_come_again():
    """Episode numbers that start anew in each file are no sign of mixed rows."""
    log = {"episode": [1, 1, 2, 2] * 20, "state": [0] * 80, "reward": [0.0] * 80}
    assert not from_table({**log, "terminated": [False, True] * 40}).warnings
    assert from_table({**log, "terminated": [False] * 80}).warnings
    log["episode"] = [1, 1, 2, 2, 3, 3, 4, 4] * 10
    assert from_table({**log, "terminated": [False] * 80, "episode": list("abcd") * 20}).warnings


def test_a_counter_that_starts_anew_is_no_sign_of_mixed_rows(rng):
    """Stays are numbered from 0 for each patient; the last one of some has no marked end."""
    log = without(patients(rng), "patient_id", "hour")
    assert not from_table(log).warnings


def test_losing_more_than_half_of_the_rows_is_an_error_unless_forced(rng):
    log = without(mixed(patients(rng), rng), "next_state")
    stream = from_table(log, episode="patient_id")
    with pytest.raises(
        InputError, match=r"rows = .* left out: .* no next state; column 'patient_id' alt"
    ):
        rv.estimate(stream, gamma=0.9)
    forced = from_table(log, episode="patient_id", force=True)
    rv.estimate(forced, gamma=0.9, by="least_squares")
    assert any("are left out" in w for w in forced.warnings)


def test_a_few_lost_rows_are_no_reason_to_warn(rng):
    log = patients(rng)
    log["reward"][:5] = NAN
    stream = from_table(log, entity="patient_id")
    list(stream.chunks())
    assert stream.counts.rejected.total() == 5
    assert not stream.warnings


def test_duplicates_of_one_time_are_left_out_and_counted(rng):
    """Equal in every column of the log; rows that differ in one are ties."""
    log = patients(rng)
    clean, _ = answer(log, entity="patient_id", time="hour")
    n = log["reward"].size
    doubled = taken(log, rng.permutation(np.concatenate([np.arange(n), np.arange(40)])))
    found, estimate = answer(doubled, entity="patient_id", time="hour")
    assert_same_answers(clean, found)
    counts = estimate.experience.counts
    assert (counts.duplicates, counts.ties, counts.rejected["duplicate row"]) == (40, 0, 40)
    assert "40 duplicate rows, left out" in estimate.summary()
    kept = from_table(doubled, entity="patient_id", time="hour", duplicates="keep")
    list(kept.chunks())
    assert (kept.counts.duplicates, kept.counts.ties, kept.counts.transitions) == (40, 40, n + 40)
    doubled["note"] = np.arange(n + 40)
    apart = from_table(doubled, entity="patient_id", time="hour")
    list(apart.chunks())
    assert (apart.counts.duplicates, apart.counts.ties) == (0, 40)


def test_a_row_without_a_reward_is_no_duplicate_though_it_comes_twice():
    log = {"who": ["a"] * 5, "when": [1, 1, 2, 2, 3], "state": [0] * 5, "next_state": [0] * 5,
           "reward": [1.0, 1.0, NAN, NAN, 2.0], "terminated": [False] * 5}  # fmt: skip
    stream = from_table(log, entity="who", time="when")
    assert_array_equal(whole(stream)["reward"], [1.0, 2.0])
    assert stream.counts.duplicates == 1
    assert stream.counts.rejected["duplicate row"] == 1
    assert sum(stream.counts.rejected.values()) == 3


def test_without_time_rows_that_repeat_the_one_before_are_reported_and_kept():
    """Only where they cannot follow it; a state that goes on to itself may repeat."""
    log = {"state": [0, 0, 1, 1], "next_state": [1, 1, 1, 1], "reward": [1.0] * 4}
    stream = from_table({**log, "terminated": [False] * 4})
    assert whole(stream)["reward"].size == 4
    assert stream.counts.duplicates == 1
    assert any("1 duplicate row, kept" in w for w in stream.warnings)


# ---------------------------------------------------------------------- costs and ratios


def test_costs_are_negated(rng):
    log = patients(rng)
    log["cost"] = -log["reward"]
    expected, _ = answer(log)
    found, estimate = answer(without(log, "reward"), cost="cost")
    assert_same_answers(expected, found)
    assert "costs are negated" in estimate.summary()
    assert estimate.data.attrs["reward"] == "negated cost"
    with pytest.raises(InputError, match="cost = cost: reward is given, too"):
        from_table(log, cost="cost", reward="p")


PAIRS = [(s, a, q) for s in LABELS for a, q in ((0, 0.1), (1, 0.9))]


def policy_of(form, folder):
    """The target policy 0.1, 0.9 in every state, in each form that is taken."""
    table = {
        "state": [str(s) for s, _, _ in PAIRS], "action": [a for _, a, _ in PAIRS],
        "probability": [q for _, _, q in PAIRS],
    }  # fmt: skip
    if form == "records":
        (folder / "q.json").write_text(
            json.dumps(
                [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
            )
        )
        return folder / "q.json"
    if form == "nested":
        (folder / "q.json").write_text(json.dumps({str(s): {"0": 0.1, "1": 0.9} for s in LABELS}))
        return folder / "q.json"
    if form in ("q.csv", "q.parquet"):
        return write(table, folder / form)
    return {
        "mapping": table,
        "scalar": lambda state, action: 0.9 if action else 0.1,
        "states": lambda states: np.tile([0.1, 0.9], (len(states), 1)),
        "array": np.tile([0.1, 0.9], (4, 1)),
    }[form]


@pytest.mark.parametrize(
    "form",
    ["records", "nested", "q.csv", "q.parquet", "mapping", "scalar", "states", "array"],
)
@pytest.mark.parametrize("kind", ["memory", "log.csv"])
def test_a_target_policy_gives_the_ratios_of_its_column(form, kind, rng, tmp_path):
    log = patients(rng)
    if form == "array":
        numbers = {label: k for k, label in enumerate(LABELS)}
        for name in ("state", "next_state"):
            log[name] = np.array([numbers[x] for x in log[name]])
    expected = whole(from_table(log, behaviour="p", target="q"))["rho"]
    source = without(log, "q")
    source = source if kind == "memory" else write(source, tmp_path / kind)
    policy = policy_of(form, tmp_path)
    found = whole(from_table(source, behaviour="p", target_policy=policy))["rho"]
    assert_array_equal(found, expected)


def test_a_deterministic_target_policy_is_an_array_of_actions():
    log = {"state": [0, 1, 2], "action": [1, 1, 0], "reward": [0.0] * 3, "terminated": [1] * 3}
    stream = from_table({**log, "p": [0.5] * 3}, behaviour="p", target_policy=np.array([1, 0]))
    assert_array_equal(whole(stream)["rho"], [2, 0])
    assert stream.counts.rejected == {"the target policy has no probability": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_policy": np.array([[0.5, 0.4]])}, r"target_policy\[0\] = .* sum to 1"),
        ({"target_policy": {"ill": {0: 0.5}}}, r"target_policy\['ill'\] = 0: 0.5: .*sum to 1"),
        ({"target_policy": 3}, "target_policy = int: must be an array"),
        ({"target_policy": "none.csv"}, "target_policy = none.csv: there is no such file"),
        ({"target_policy": {0: {0: 1.0}}, "target": "q"}, "target = q: target_policy is given"),
        ({"target_policy": {0: {0: 1.0}}, "behaviour": None}, "behaviour = missing"),
        ({"target_policy": {0: {0: 1.0}}, "action": "act"}, "action = act"),
        ({"target_policy": {"state": [0], "probability": [1.0]}}, "no column action"),
    ],
)  # fmt: skip
def test_target_policies_that_cannot_be_used_are_refused(given, message, rng):
    with pytest.raises(InputError, match=message):
        from_table(patients(rng, 3), **{"behaviour": "p", **given})


def test_a_function_that_returns_no_probabilities_is_refused(rng):
    for function, message in (
        (lambda state, action: 1.5, "between 0 and 1"),
        (lambda states: [[0.5, 0.4]] * len(states), "sum to 1"),
        (lambda states: [1.0], r"of shape \(1,\)"),
        (lambda state, action: 1 / 0, "fails: ZeroDivisionError"),
    ):
        stream = from_table(patients(rng, 3), behaviour="p", target_policy=function)
        with pytest.raises(InputError, match=message):
            list(stream.chunks())


# ---------------------------------------------------------------------- CSV and Parquet alike


def tables(rng, n=40):
    """Columns of every kind for the state, with gaps."""
    days = [datetime.date(2026, 1, int(d)) for d in rng.integers(1, 4, n)]
    whole = rng.integers(5, size=n)
    return {
        "text": [str(LABELS[k % 4]) for k in whole],
        "whole": whole.tolist(),
        "negative": (whole - 2).tolist(),
        "float": (whole * 1.0).tolist(),
        "negative float": (whole - 2.0).tolist(),
        "fraction": (whole / 3 + 0.1).tolist(),
        "large": (whole + 10**12).tolist(),
        "bool": (whole > 2).tolist(),
        "date": days,
        "moment": [EPOCH + datetime.timedelta(hours=int(k)) for k in whole],
        "gaps in text": [None if k == 0 else "abcde"[k] for k in whole],
        "gaps in numbers": [None if k == 0 else int(k) for k in whole],
    }


@pytest.mark.parametrize("gaps", [False, True])
def test_the_same_rows_as_csv_and_parquet_give_the_same_chunks(gaps, rng, tmp_path):
    """Every kind of state, alone and in pairs, with entities and times of every kind."""
    kinds = tables(rng)
    n = 40
    others = {
        "reward": rng.normal(size=n).tolist(), "terminated": (rng.random(n) < 0.2).tolist(),
        "p": [0.5] * n, "q": [0.25] * n,
    }  # fmt: skip
    for name, each in (("reward", 13), ("terminated", 17), ("p", 11)) if gaps else ():
        others[name][3::each] = [None] * len(others[name][3::each])
    named = {"behaviour": "p", "target": "q", "force": True}
    compared = 0
    pairs = [[a] for a in kinds] + [
        [a, b] for a in kinds for b in ("text", "whole", "bool") if a != b
    ]
    for names in pairs:
        who, when = (
            rng.choice(["text", "whole", "bool", "date"]),
            rng.choice(["fraction", "moment", "date"]),
        )
        for given in ({}, {"entity": "who"}, {"entity": "who", "time": "when"}):
            log = {f"s {name}": kinds[name] for name in names} | others
            log |= {"who": kinds[who], "when": kinds[when]}
            state = [f"s {name}" for name in names]
            found = []
            for kind in ("log.csv", "log.parquet"):
                path = write(log, tmp_path / kind)
                try:
                    stream = from_table(
                        path, state=state if names[1:] else state[0], **named, **given
                    )
                    found.append((whole(stream), stream))
                except InputError as error:
                    found.append((str(error.field).split(" of ")[0], error.remedy))
            (first, one), (second, two) = found
            if isinstance(first, str):
                assert found[0] == found[1], (names, given)
                assert "fractions beside" in one
                continue
            assert first.keys() == second.keys()
            for name in first:
                assert_array_equal(first[name], second[name], err_msg=f"{names} {given} {name}")
            assert one.counts == two.counts
            assert [str(x) for x in one.labels or []] == [str(x) for x in two.labels or []], names
            compared += 1
    assert compared > 60


def test_combinations_of_columns_are_labels(tmp_path):
    log = {
        "ward": ["a", "b", "a", "b"], "bed": [1, 2, 1, 1], "reward": [0.0] * 4,
        "terminated": [1] * 4,
    }  # fmt: skip
    for source in (log, write(log, tmp_path / "log.csv"), write(log, tmp_path / "log.parquet")):
        stream = from_table(source, state=["ward", "bed"])
        assert_array_equal(whole(stream)["state"], [0, 1, 0, 2])
        assert stream.labels == [("a", 1), ("b", 2), ("b", 1)]
        labels = from_table(source, state=["bed"], states="labels")
        assert_array_equal(whole(labels)["state"], [0, 1, 0, 0])


def test_fractions_beside_text_and_moments_as_states_are_refused(rng):
    n = 40
    log = {"reward": np.zeros(n), "terminated": np.ones(n, dtype=bool), "ward": ["a"] * n}
    with pytest.raises(InputError, match=r"state = x: has fractions beside columns of text; bin"):
        from_table({**log, "x": rng.normal(size=n)}, state=["ward", "x"])
    moments = [EPOCH + datetime.timedelta(minutes=k) for k in range(n)]
    for column in (moments, [m.isoformat() for m in moments]):
        with pytest.raises(InputError, match=r"nearly every row has its own.*name it time="):
            from_table({**log, "at": column}, state="at")


# ---------------------------------------------------------------------- what is refused


def test_stream_is_called_entity(rng):
    with pytest.raises(InputError, match="stream = patient_id: is called entity"):
        from_table(patients(rng), stream="patient_id")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,state,reward,state\n1,2,3,4\n", "columns = state: occur in .* more than once; rename"),
        (",".join(f"c{k}" for k in range(20_000)) + "\n1\n", "columns = 20,000 of .*: more than"),
        ("x" * 1_000_001 + ",state\n1,2\n", "header of .* = more than 1,000,000 characters"),
        ("state,reward\n" + "x" * 20_000_000 + ",1\n", "a row of more than 4 MB: is too long"),
        ("state,reward,when,terminated\n" + "1,2,31/01/2026,0\n" * 9, "'31/01/2026': must hold"),
    ],
)  # fmt: skip
def test_files_that_are_no_logs_are_refused_at_once(text, message, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        from_table(path, time="when")


def test_a_table_of_a_hundred_thousand_columns_is_refused():
    names = [f"c{k}" for k in range(10**5)]
    with pytest.raises(InputError, match="columns = 100,000 of the table"):
        from_table(pa.table([pa.array([1])] * 10**5, names=names))


# ---------------------------------------------------------------------- missing rewards


def test_missing_rewards_do_not_hide_the_observed_returns(rng):
    """Episodes of 30 rows, one reward in fifty missing: those are left out, with a word."""
    n = 6_000
    log = {
        "state": np.arange(n) % 30, "reward": rng.normal(size=n),
        "terminated": np.arange(n) % 30 == 29,
    }  # fmt: skip
    clean = rv.estimate(from_table(log), gamma=0.99, by="least_squares").data
    log["reward"][rng.random(n) < 0.02] = NAN
    found = rv.estimate(from_table(log), gamma=0.99, by="least_squares").data
    assert "observed_note" not in clean.attrs
    assert found.sizes["sample"] > 0.4 * clean.sizes["sample"]
    assert "missing rewards" in found.attrs["observed_note"]
    assert "calibration" in rv.plots.estimate_figures(found)


# ---------------------------------------------------------------------- on the command line


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, ["estimate", *map(str, arguments)])


def test_the_command_says_what_it_understood_and_warns(folder, rng):
    log = patients(rng)
    write(mixed(log, rng), folder / "log.csv")
    settings = ("--gamma", 0.9, "--by", "least_squares", "--formats", "none")
    clean = run("log.csv", *settings, "--entity", "patient_id", "--time", "hour", "--json")
    assert clean.exit_code == 0, clean.output
    assert clean.stderr == ""
    found = json.loads(clean.stdout)
    assert found["understood"].startswith("60 patients, ")
    assert found["warnings"] == []
    wrong = run("log.csv", *settings, "--episode", "patient_id")
    assert wrong.exit_code == 0
    assert "WARNING: column 'patient_id' alternates" in wrong.stderr
    assert "name --entity patient_id" in wrong.stderr
    write(without(mixed(log, rng), "next_state"), folder / "log.csv")
    lost = run("log.csv", *settings, "--episode", "patient_id", "--out", "lost")
    assert lost.exit_code == 2
    assert "--force uses the rest" in lost.stderr
    assert lost.stdout == ""
    assert not (folder / "lost").exists()
    assert run("log.csv", *settings, "--episode", "patient_id", "--force").exit_code == 0
    assert "--stream = x: is called --entity" in run("log.csv", *settings, "--stream", "x").stderr


def test_the_command_takes_costs_and_target_policies(folder, rng):
    log = patients(rng)
    log["cost"] = -log.pop("reward")
    write(log, folder / "log.parquet")
    write({"state": [str(s) for s, _, _ in PAIRS], "action": [a for _, a, _ in PAIRS],
           "probability": [q for _, _, q in PAIRS]}, folder / "q.csv")  # fmt: skip
    (folder / "messy_policy.py").write_text(
        "def q(state, action):\n    return 0.9 if action else 0.1\n"
    )
    settings = ("--gamma", 0.9, "--by", "least_squares", "--cost", "cost", "--behaviour", "p")
    found = [
        json.loads(run("log.parquet", *settings, *given, "--formats", "none", "--json").stdout)
        for given in (
            ("--target", "q"), ("--target-policy", "q.csv"),
            ("--target-policy", "messy_policy:q"),
        )
    ]  # fmt: skip
    assert found[0] == found[1] == found[2]
    assert found[0]["reward"] == "negated cost"
    drawn = run("log.parquet", *settings, "--target", "q")
    assert "observed, calibration: not drawn, since returns of the target policy" in drawn.stdout
    for given in ("q.txt", "none.json", "nowhere:q"):
        refused = run("log.parquet", *settings, "--target-policy", given)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert "--target-policy = " in refused.stderr


@pytest.mark.parametrize(("time", "more"), [("when", ""), (None, " and time='when'")])
def test_entities_are_noticed_by_their_times(time, more):
    """Two robots in the order of time: rows of one time differ in the column that names them."""
    rng = np.random.default_rng(0)
    start = datetime.datetime(2026, 1, 1)
    when = [(start + datetime.timedelta(hours=int(k) // 2)).isoformat() for k in range(800)]
    log = {
        "robot": np.tile(["red", "blue"], 400), "when": np.array(when),
        "state": rng.integers(0, 3, 800), "reward": rng.normal(size=800),
        "temperature": rng.normal(size=800), "terminated": rng.random(800) < 0.1,
    }  # fmt: skip
    found = from_table(log, next_state=None, time=time)
    assert any(f"name entity='robot'{more}" in warning for warning in found.warnings)
    alone = {name: column[::2] for name, column in log.items()}
    assert not from_table(alone, next_state=None, time=time).warnings


def test_a_target_policy_in_a_file_is_named_by_its_file(tmp_path):
    path = tmp_path / "policy.npy"
    np.save(path, np.array([0.5, 1.0]))
    log = {"state": ["a", "b"], "action": [0, 1], "reward": [1.0, 2.0], "terminated": [True, True],
           "p": [0.5, 0.5]}  # fmt: skip
    with pytest.raises(rv.InputError, match=r"policy\.npy: has one dimension"):
        from_table(log, behaviour="p", target_policy=path)
    np.save(path, np.array([[0.5, 0.5], [0.5, 0.5]]))
    with pytest.raises(rv.InputError, match=r"policy\.npy: an array needs states"):
        list(from_table(log, behaviour="p", target_policy=path))
