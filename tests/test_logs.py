"""Logs: a messy log gives the transitions of a clean one, and says what it left out and why."""

import datetime
import gc
import math
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.experience import from_table
from retvar.experience.logs import refuse_split
from retvar.support.errors import InputError

LABELS = ("home", "ward", "icu")
COLUMNS = ("patient", "t", "state", "action", "reward", "terminated", "truncated", "mu", "pi")


def walks(seed=0, patients=5, steps=12, next_state=False):
    """A clean log as rows: each patient's rows in the order of time, episode after episode."""
    random, rows = np.random.default_rng(seed), []
    for patient in range(patients):
        state, episode = int(random.integers(3)), 0
        for t in range(steps):
            after, ends = int(random.integers(3)), bool(random.random() < 0.2)
            row = {
                "patient": f"p{patient}", "t": t, "state": LABELS[state],
                "action": int(random.integers(2)), "reward": round(float(random.normal()), 3),
                "terminated": ends, "truncated": False, "mu": 0.5,
                "pi": float(random.integers(0, 3)) / 2, "episode": f"{patient}-{episode}",
            }  # fmt: skip
            rows.append(row | ({"next_state": LABELS[after]} if next_state else {}))
            episode += ends
            state = int(random.integers(3)) if ends else after
    return rows


def columns(rows):
    return {name: [row.get(name) for row in rows] for name in rows[0]}


def as_csv(rows, path, sep=",", **options):
    lines = [rows[0], *(["" if x is None else str(x) for x in row.values()] for row in rows)]
    path.write_text("".join(sep.join(line) + "\n" for line in lines), **options)
    return path


def table(experience):
    """All transitions, with labels, as one table."""
    found = next(experience.moves().chunks())
    if experience.labels is not None:
        names = np.array(experience.labels, dtype=object)
        found |= {name: names[found[name]] for name in ("state", "next_state")}
    return found


def assert_same(one, other):
    assert set(one) == set(other)
    for name in one:
        assert_array_equal(one[name], other[name], err_msg=name)


def by_loop(rows):
    """Transitions of clean rows, linked by a plain loop: (state, reward, next state, ended)."""
    found = []
    for row, after in zip(rows, [*rows[1:], {"patient": None}], strict=True):
        if row["terminated"]:
            found.append((row["state"], row["reward"], row["state"], True))
        elif after["patient"] == row["patient"]:
            found.append((row["state"], row["reward"], after["state"], False))
    return found


# ------------------------------------------------------------------ messy = clean


def read(rows, form, folder, **named):
    if form == "polars":
        pytest.importorskip("pyarrow")
    make = {
        "columns": columns,
        "arrays": lambda rows: {name: np.array(x) for name, x in columns(rows).items()},
        "csv": lambda rows: as_csv(rows, folder / "log.csv"),
        "semicolons": lambda rows: as_csv(rows, folder / "log.csv", sep=";"),
        "pandas": lambda rows: pytest.importorskip("pandas").DataFrame(columns(rows)),
        "polars": lambda rows: pytest.importorskip("polars").DataFrame(columns(rows)),
        "parquet": lambda rows: as_parquet(rows, folder / "log.parquet"),
        "arrow": lambda rows: pytest.importorskip("pyarrow").table(columns(rows)),
    }
    return from_table(make[form](rows), **named)


def as_parquet(rows, path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns(rows)), path)
    return path


FORMS = ("columns", "arrays", "csv", "semicolons", "pandas", "polars", "parquet", "arrow")


@pytest.mark.parametrize("form", FORMS)
def test_a_log_in_any_form_is_linked_as_by_a_loop(form, tmp_path):
    rows = walks()
    found = table(read(rows, form, tmp_path, entity="patient"))
    names = ("state", "reward", "next_state", "terminated")
    assert list(zip(*(found[name].tolist() for name in names), strict=True)) == by_loop(rows)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_messy_log_gives_the_transitions_of_the_clean_one(data, tmp_path_factory):
    """Shuffled, sent twice, with bad rows and lines: the rest is linked as if these never were.

    A row before a bad one keeps its next state where that can be read, and is cut off there.
    """
    rows = walks(data.draw(st.integers(0, 99)), next_state=data.draw(st.booleans()))
    clean = table(from_table(columns(rows), entity="patient", time="t"))
    messy = [dict(row) for row in rows]
    reasons = {}
    bad = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=5))
    for k in bad:
        column, value, reason = data.draw(st.sampled_from([
            ("reward", None, "reward is missing or not finite"),
            ("reward", "inf", "reward is missing or not finite"),
            ("reward", 1e25, "reward is not within [-1e+24, 1e+24]"),
            ("terminated", "perhaps", "terminated is neither true nor false"),
        ]))  # fmt: skip
        messy[k][column] = value
        reasons[reason] = reasons.get(reason, 0) + 1
    twice = data.draw(st.sets(st.integers(0, len(rows) - 1).filter(lambda k: k not in bad)))
    messy += [dict(messy[k]) for k in twice]
    order = data.draw(st.permutations(range(len(messy))))
    path = as_csv([messy[k] for k in order], tmp_path_factory.mktemp("log") / "log.csv")
    with path.open("a") as file:
        lines = data.draw(st.integers(0, 2))
        file.write("1,2\n" * lines)
    log = from_table(path, entity="patient", time="t", force=True)
    found = table(log)
    counted = dict(log.counts.rejected)
    assert counted.pop("wrong number of fields", 0) == lines
    assert counted.pop("duplicate row", 0) == log.counts.duplicates == len(twice)
    assert {why: counted.get(why, 0) for why in reasons} == reasons
    assert log.counts.rows == len(messy) + lines
    wanted = {(s, r) for s, r in zip(clean["state"], clean["reward"], strict=True)}
    assert {(s, r) for s, r in zip(found["state"], found["reward"], strict=True)} <= wanted
    if not bad:  # entities come in the order of their first rows
        names = ("state", "reward", "next_state", "terminated", "truncated")
        one, other = (
            sorted(zip(*(x[name] for name in names), strict=True)) for x in (found, clean)
        )
        assert one == other


def test_less_memory_gives_the_same_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    random = np.random.default_rng(1)
    n = 300_000
    log = {"state": random.integers(0, 9, n), "reward": random.normal(size=n), "t": np.arange(n),
           "id": random.integers(0, 999, n), "terminated": random.random(n) < 0.1}  # fmt: skip
    small = from_table(log, entity="id", time="t", memory="60MB")
    large = from_table(log, entity="id", time="t")
    for one, other in zip(small.moves().chunks(), large.moves().chunks(), strict=True):
        assert_same(one, other)
    del small, large
    gc.collect()
    assert not list(tmp_path.glob("retvar-*"))


def test_rows_of_one_file_do_not_follow_those_of_another_unless_an_entity_says_so(tmp_path):
    rows = walks(patients=2)
    for row in rows:
        row["terminated"] = False
    for k, part in enumerate((rows[:9], rows[9:])):
        as_csv([{n: row[n] for n in COLUMNS} for row in part], tmp_path / f"{k}.csv")
    apart = from_table(str(tmp_path / "*.csv"), entity=False)
    assert len(apart.moves()) == len(rows) - 2
    assert len(from_table(tmp_path, entity="patient").moves()) == len(rows) - 2
    whole = from_table([tmp_path / "0.csv", tmp_path / "1.csv"], entity="patient", time="t")
    given_columns = {name: columns(rows)[name] for name in COLUMNS}
    assert_same(table(whole), table(from_table(given_columns, entity="patient", time="t")))


def test_a_next_state_that_is_not_the_next_rows_cuts_the_episode():
    log = from_table({"state": [0, 1, 2], "next_state": [1, 5, 0], "reward": [1.0, 2.0, 3.0],
                      "terminated": [False] * 3})  # fmt: skip
    assert table(log)["truncated"].tolist() == [False, True, True]
    assert log.counts.unmarked_ends.total() == 1


def test_actions_are_numbered_in_order_of_appearance_and_pairs_follow():
    rows = walks(patients=2)
    log = from_table(columns(rows), entity="patient")
    actions = np.concatenate([chunk["action"] for chunk in log.with_actions(log.counts)])
    assert [log.actions[a] for a in actions] == [row["action"] for row in rows]
    found = rv.estimate(from_table(columns(rows), entity="patient"), gamma=0.5, actions=True)
    assert set(found.experience.labels) <= {(s, a) for s in LABELS for a in (0, 1)}


# ------------------------------------------------------------------ columns and kinds


@pytest.mark.parametrize(
    ("states", "width", "labels"),
    [
        (["0", "1", "0"], None, None),
        (["0.5", "1.5", "0.25"], 1, None),
        (["a", "b", "a"], None, ["a", "b"]),
        (["007", "010", "007"], None, ["007", "010"]),
        (["007", "010", "gone"], None, ["007", "010", "gone"]),
        (["-1", "2", "-1"], None, ["-1", "2"]),
        (["2026-01-31", "2026-02-01", "2026-01-31"], None, ["2026-01-31", "2026-02-01"]),
        (["true", "false", "true"], None, None),
    ],
)
def test_what_states_are_is_seen_in_the_first_rows(states, width, labels, tmp_path):
    """Codes with leading zeros beside a word used to be observations of one number."""
    rows = [{"state": s, "reward": 1.0, "terminated": k == 2} for k, s in enumerate(states)]
    log = from_table(as_csv(rows, tmp_path / "log.csv"))
    list(log.chunks())
    assert (log.width, log.labels) == (width, labels)


def test_labels_of_several_columns_are_tuples():
    log = from_table({"ward": ["a", "a"], "bed": [1.0, 2.0], "reward": [1, 2],
                      "terminated": [False, True]}, state=["ward", "bed"])  # fmt: skip
    list(log.chunks())
    assert log.labels == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("unit", ["days", "nanoseconds", "numbers", "text", "day_first"])
def test_times_of_every_kind_order_the_rows(unit, tmp_path):
    start = datetime.datetime(2026, 1, 28, 12)
    steps = [start + datetime.timedelta(days=k) for k in range(6)]
    times = {
        "days": steps,
        "nanoseconds": [1_767_225_600_123_456_780 + k for k in range(6)],
        "numbers": [k / 10 for k in range(6)],
        "text": [f"{each:%Y-%m-%dT%H:%M:%S}+02:00" for each in steps],
        "day_first": [f"{each:%d.%m.%Y %H:%M}" for each in steps],
    }[unit]
    order = [3, 0, 5, 1, 4, 2]
    log = {"t": [times[k] for k in order], "state": order, "reward": [float(k) for k in order],
           "terminated": [k == 5 for k in order]}  # fmt: skip
    found = from_table(log, time="t", day_first=unit == "day_first")
    assert [t.state for t in found] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("words", ["yes no", "Y N", "t F", "TRUE false", "1 0"])
def test_words_for_true_and_false(words):
    yes, no = words.split()
    log = from_table({"state": [0, 1], "reward": [1.0, 1.0], "terminated": [no, yes]})
    assert table(log)["terminated"].tolist() == [False, True]


def test_costs_stay_costs_and_discounts_are_columns():
    log = from_table({"state": [0, 1], "cost": [3.0, 0.0], "g": [0.5, 0.9], "l": [1.0, 0.5],
                      "terminated": [False, True]}, cost="cost", gamma="g", lam="l")  # fmt: skip
    found = table(log)
    assert found["reward"].tolist() == [3.0, 0.0]
    assert (found["gamma"].tolist(), found["lam"].tolist()) == ([0.5, 0.9], [1.0, 0.5])


POLICY = {"home": {0: 0.9, 1: 0.1}, "ward": {0: 0.2, 1: 0.8}, "icu": {0: 1.0, 1: 0.0}}


@pytest.mark.parametrize("form", ["mapping", "pair", "csv", "array"])
def test_a_target_policy_in_any_form_gives_the_same_ratios(form, tmp_path):
    rows = [row | {"pi": POLICY[row["state"]][row["action"]]} for row in walks()]
    pairs = [{"state": s, "action": a, "probability": p} for s, own in POLICY.items()
             for a, p in own.items()]  # fmt: skip
    if form == "array":
        for row in rows:
            row["state"] = LABELS.index(row["state"])
    policy = {
        "mapping": POLICY, "csv": as_csv(pairs, tmp_path / "policy.csv"),
        "pair": lambda state, action: POLICY[state][action],
        "array": np.array([list(POLICY[s].values()) for s in LABELS]),
    }[form]  # fmt: skip
    how = {"entity": "patient", "behaviour": "mu"}
    log = from_table(columns(rows), **how, target_policy=policy)
    ratio = table(from_table(columns(rows), **how, target="pi"))["rho"]
    assert_array_equal(table(log)["rho"], ratio)
    size = ratio.sum() ** 2 / np.square(ratio).sum()
    assert log.counts.effective_sample_size == pytest.approx(size)


def test_an_action_that_the_log_never_takes_is_named():
    rows = [dict(row, action="run") for row in walks(patients=40)]
    policy = {s: {"Run": 0.5, "rest": 0.5} for s in LABELS}
    log = from_table(columns(rows), entity="patient", behaviour="mu", target_policy=policy)
    list(log.chunks())
    assert any("'Run'" in each for each in log.warnings)


# ------------------------------------------------------------------ faults that are named


@pytest.mark.parametrize("text", ["1,199.49", "12 EUR", "3,5"])
def test_text_that_is_no_number_is_refused_unless_it_may_be_skipped(text, tmp_path):
    """It used to be counted as missing, so that answers were wrong without a word."""
    rows = [{"state": k % 2, "reward": f'"{text}"' if k == 7 else k, "terminated": k % 5 == 4}
            for k in range(20)]  # fmt: skip
    path = as_csv(rows, tmp_path / "log.csv")
    with pytest.raises(InputError) as error:
        from_table(path).moves()
    assert error.value.field.endswith("row 8: reward")
    assert error.value.value == text
    log = from_table(path, on_error="skip")
    log.moves()
    assert any(text in why for why in log.counts.rejected)


def test_a_word_in_a_column_of_an_observation_names_the_column_and_its_row(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("x,y,reward,terminated\n.5,.1,1,0\n.2,n/a?,1,0\n.3,.4,1,0\n.6,.4,1,1\n")
    named = {"state": ["x", "y"]}
    with pytest.raises(InputError, match="row 2: y"):
        list(from_table(path, **named))
    log = from_table(path, **named, on_error="skip")
    assert log.width == 2
    assert len(list(log)) == 2
    with pytest.raises(InputError, match="row 2: y"):
        list(from_table(path, **named, on_error="raise"))


def test_decimal_commas_and_thousands_can_be_asked_for(tmp_path):
    rows = [{"state": k % 2, "reward": "1.199,5", "terminated": k % 5 == 4} for k in range(20)]
    path = as_csv(rows, tmp_path / "log.csv", sep=";")
    found = from_table(path, decimal=",", thousands=".")
    assert {t.reward for t in found} == {1199.5}


@pytest.mark.parametrize(
    ("cells", "how", "remedy"),
    [
        (("1.234,50", "34,50"), {}, "decimal=',' and thousands='.'"),
        (("1.234,50", "34,50"), {"thousands": ","}, "decimal=',' and thousands='.'"),
        (("1,234.50", "34.50"), {"decimal": ","}, "decimal='.' and thousands=','"),
        (("34,50",), {"thousands": ","}, "decimal=',' and thousands=''"),
        (("1.234",), {"decimal": ","}, "thousands='.'"),
        (("1,234,567",), {}, "thousands=','"),
    ],
)
def test_a_number_written_in_another_way_is_refused_and_the_remedy_reads_it(cells, how, remedy):
    """Never read as a hundred times, or a thousandth, of what it is."""
    log = {"state": ["a"] * len(cells), "reward": list(cells), "terminated": [True] * len(cells)}
    with pytest.raises(InputError) as refused:
        list(from_table(log, **how))
    assert remedy in str(refused.value)
    said = dict(re.findall(r"(decimal|thousands)='(.?)'", remedy))
    largest = max(t.reward for t in from_table(log, **{**how, **said}))
    assert largest in (1234.5, 34.5, 1234.0, 1234567.0)


@pytest.mark.parametrize(
    "cells",
    [["8,268", "2.516"], ["1,25", "2.5"], *([x, "1"] for x in ("5 EUR", "(5)", "5-", "n?"))],
)
@pytest.mark.parametrize("how", [{}, {"decimal": ","}])
def test_an_option_that_does_not_read_all_numbers_is_not_named(cells, how):
    """A column that is written in two ways is to be corrected."""
    log = {"state": ["a"] * 2, "reward": cells, "terminated": [True] * 2}
    with pytest.raises(InputError) as refused:
        from_table(log, **how).moves()
    assert not re.search("decimal|thousands", refused.value.remedy)


def test_the_separators_differ():
    with pytest.raises(InputError) as refused:
        from_table({"state": [0], "reward": ["1"], "terminated": [1]}, decimal=",", thousands=",")
    assert refused.value.field == "thousands"


def test_missing_rewards_are_counted_by_state_and_warned_of():
    """They are rarely missing at random; only their number used to be known."""
    rewards = [math.nan if k % 40 == 1 else 1.0 for k in range(400)]
    log = from_table({"state": ["a", "b"] * 200, "terminated": [False, True] * 200,
                      "reward": rewards})  # fmt: skip
    log.moves()
    assert log.counts.missing_rewards == {"b": 10}
    assert any("10 in 'b'" in each for each in log.warnings)
    few = from_table({"state": [0] * 400, "terminated": [True] * 400,
                      "reward": [math.nan, *[1.0] * 399]})  # fmt: skip
    few.moves()
    assert few.warnings == []


def test_other_encodings_can_be_named_and_are_not_guessed(tmp_path):
    rows = [{"state": "Zürich", "reward": 1.0, "terminated": True}] * 3
    path = as_csv(rows, tmp_path / "log.csv", encoding="latin-1")
    with pytest.raises(InputError) as error:
        from_table(path).moves()
    assert error.value.field == "encoding"
    assert len(from_table(path, encoding="latin-1").moves()) == 3
    wide = as_csv(rows, tmp_path / "wide.csv", encoding="utf-16")
    assert len(from_table(wide).moves()) == 3


SIGNS = {
    "alternates": ({"patient": ["a", "b"] * 20, "state": [0] * 40}, "entity='patient'"),
    "alternates, too": ({"BikeNo": ["a", "b"] * 20, "state": [0] * 40}, "entity='BikeNo'"),
    "goes back": ({"step": [3, 1, 2, 0] * 10, "state": list(range(40))}, "time='step'"),
    "newest": (
        {"of": [f"{k % 9 + 1}.5.2025" for k in range(40, 0, -1)], "state": [0] * 40},
        "'of'",
    ),
}


@pytest.mark.parametrize("name", SIGNS)
def test_first_rows_that_are_mixed_or_out_of_order_are_warned_of(name):
    given_columns, remedy = SIGNS[name]
    log = from_table(
        {**given_columns, "reward": [1.0] * 40, "terminated": [False] * 40}, states=100
    )
    assert any(remedy in each for each in log.warnings)
    log.moves()
    assert "not used: " in log.understood


def test_what_was_understood_is_one_line_and_nothing_is_doubted_before_it_is_read():
    log = from_table(columns(walks()), entity="patient", time="t")
    assert log.warnings == []
    log.moves()
    assert log.understood.startswith("5 patients, 60 rows, ")


# ------------------------------------------------------------------ refusals

OKAY = {"state": [0, 1, 0], "reward": [1.0, 2.0, 3.0], "terminated": [False, True, False],
        "b": [0.5, 0.5, 0.5], "p": [0.5, 1.0, 0.0]}  # fmt: skip
TWO = {"state": [0, 1], "action": ["a", "a"]}
REFUSALS = [
    ({}, {"state": "place"}, "state"),
    ({}, {"reward": "gain"}, "reward"),
    ({}, {"terminated": "state_"}, "terminated"),
    ({}, {"time": "when"}, "time"),
    ({}, {"time": "time"}, "time"),
    ({}, {"entity": "entity"}, "entity"),
    ({}, {"state": ["state", "state"]}, "state"),
    ({}, {"next_state": "state"}, "next_state"),
    ({}, {"behaviour": "b"}, "target"),
    ({}, {"target": "p"}, "behaviour"),
    ({}, {"behaviour": "b", "target": "p", "rho": "p"}, "rho"),
    ({}, {"on_error": "ignore"}, "on_error"),
    ({}, {"duplicates": "all"}, "duplicates"),
    ({}, {"states": 0}, "states"),
    ({}, {"decimal": ",,"}, "decimal"),
    ({}, {"memory": "much"}, "memory"),
    ({}, {"target_policy": {0: {0: 0.5, 1: 0.2}}, "behaviour": "b"}, "action"),
    ({"b": [0.5, 1.5, 0.5]}, {"behaviour": "b", "target": "p"}, "the table, row 2: b"),
    ({"b": [0.5, 0.0, 0.5]}, {"behaviour": "b", "target": "p"}, "the table, row 2: b"),
    ({"p": [0.5, 1.0, -0.1]}, {"behaviour": "b", "target": "p"}, "the table, row 3: p"),
    ({"reward": [1.0, math.nan, 1.0]}, {"on_error": "raise"}, "the table, row 2: reward"),
    ({"reward": ["a", "b", "c"]}, {}, "the table, row 1: reward"),
    ({"t": ["x", "y", "z"]}, {"time": "t"}, "the table, row 1: t"),
    ({"terminated": [None, None, None]}, {}, "column 'terminated' of the table"),
    ({"reward": [math.nan, math.nan, 1.0], "terminated": [True] * 3}, {}, "rows"),
    ({"t": ["26.01.25"] * 3}, {"time": "t", "day_first": True}, "the table, row 1: t"),
    (
        {"p": ["0,5"] * 3},
        {"behaviour": "b", "action": "p", "target_policy": {**TWO, "probability": ["1", "x"]}},
        "target_policy, row 2: probability",
    ),
    ({"state": [], "reward": [], "terminated": [], "b": [], "p": []}, {}, "source"),
    ({"state": [0, 1]}, {}, "columns"),
]


EVERYDAY = {
    "index": ",state,reward,terminated\n0,a,1,0\n1,b,2,1\n",
    "sep=": "sep=;\nstate;reward;terminated\na;1;0\nb;2;1\n",
    "last sign": "state;reward;terminated;\na;1;0;\nb;2;1;\n",
    "frame": pd.DataFrame({"state": ["b", "a"], "reward": [2.0, 1.0], "terminated": [1, 0]})[::-1],
}


@pytest.mark.parametrize("form", EVERYDAY)
def test_what_spreadsheets_and_pandas_write_is_read(form, tmp_path):
    source = EVERYDAY[form]
    if isinstance(source, str):
        source = tmp_path / "log.csv"
        source.write_text(EVERYDAY[form])
    log = from_table(source)
    assert [(log.labels[t.state], t.reward) for t in log] == [("a", 1.0), ("b", 2.0)]
    assert not log.counts.rejected


def test_a_file_that_lacks_a_column_of_the_first_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("state,reward,terminated\na,1,1\n")
    (tmp_path / "b.csv").write_text("state,terminated\na,1\n")
    with pytest.raises(InputError, match=r"b\.csv.*'reward'"):
        from_table(tmp_path)


def test_ends_marked_by_blanks_are_to_be_filled_in():
    log = {"state": ["a"] * 9, "reward": [1.0] * 9, "terminated": ["1", *[""] * 8]}
    with pytest.raises(InputError, match="write 0"):
        from_table(log).moves()


@pytest.mark.parametrize(
    ("how", "others"), [({"day_first": True}, "2026-01-31"), ({}, "31.01.2026")]
)
@pytest.mark.parametrize("on_error", [None, "skip"])
def test_the_remedy_for_dates_is_not_what_was_given(how, others, on_error):
    days = [others] * 3 + ["2026-01-30", "30.01.2026"]
    log = {"state": ["a"] * 5, "reward": [1.0] * 5, "terminated": [1] * 5, "t": days}
    with pytest.raises(InputError) as refused:
        from_table(log, time="t", on_error=on_error, **how).moves()
    assert ("day_first" in refused.value.remedy) == (not how)


@pytest.mark.parametrize(("changed", "named", "field"), REFUSALS)
def test_a_log_that_cannot_be_read_is_refused_by_field(changed, named, field):
    with pytest.raises(InputError) as error:
        from_table({**OKAY, **changed}, **named).moves()
    assert error.value.field == field


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "log.parquet"
    as_parquet(walks(), path)
    raw = bytearray(path.read_bytes())
    raw[200:260] = bytes(60)
    path.write_bytes(raw)
    with pytest.raises(InputError) as error:
        from_table(path, entity="patient").moves()
    assert error.value.field == "source"
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(InputError):
        from_table(path)


# ------------------------------------------------------------------ own files, growth, pieces


def test_pieces_of_a_log_are_its_files_and_an_entity_in_two_of_them_is_noticed(tmp_path):
    rows = walks(patients=4)
    for k in range(2):
        as_csv(rows[24 * k : 24 * k + 24], tmp_path / f"{k}.csv")
    log = from_table(str(tmp_path / "*.csv"), entity="patient")
    pieces, parts = log.pieces(), []
    seen = {}
    for piece in pieces:
        part, ids = piece.open()
        refuse_split(seen, piece.file, ids)
        parts.append(table(part))
    whole = table(log)
    for name in whole:
        assert_array_equal(np.concatenate([part[name] for part in parts]), whole[name])
    with pytest.raises(InputError):
        refuse_split(seen, "again", pieces[0].open()[1])


def test_codes_that_come_late_are_no_numbers_unless_the_number_of_states_is_given(tmp_path):
    """010 is not the state 10: it is left out and counted."""
    path = tmp_path / "log.csv"
    path.write_text("state,reward,terminated\n" + "1,1,1\n" * 70_000 + "010,1,1\n" * 3)
    log = from_table(path)
    assert (len(log.moves()), log.counts.rejected.total()) == (70_000, 3)
    assert len(from_table(path, states=20).moves()) == 70_003
