"""Experience from tables: rows in, transitions out, nothing bad through."""

import gzip
import io
import math
import os

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.errors import DivergenceError, InputError, RetvarError, SourceError
from retvar.experience import episodes, from_gymnasium, from_table, readers, write_table
from tests import oracle

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.csv")
pytest.importorskip("pyarrow.parquet")

NAN = float("nan")


@pytest.fixture
def rng():
    seed = oracle.fresh_seed()
    print(f"RETVAR_SEED={seed}")  # noqa: T201
    return np.random.default_rng(seed)


def whole(stream):
    chunks = list(stream.chunks())
    assert all(len(chunk["reward"]) for chunk in chunks)
    if not chunks:
        return {}
    return {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}


def rows_of(stream):
    return [tuple(t) for t in stream]


def log(**changes):
    """Two episodes, the second cut off: 0 → 1 → end, 2 → 0 → 1."""
    columns = {
        "state": [0, 1, 2, 0],
        "reward": [1.0, 2.0, 3.0, 4.0],
        "next_state": [1, 0, 0, 1],
        "terminated": [False, True, False, False],
        "truncated": [False, False, False, True],
    }
    columns |= changes
    return {name: column for name, column in columns.items() if column is not None}


def own(columns):
    """The table as if retvar had written it."""
    return pa.table(columns).replace_schema_metadata({"retvar": '{"own": true}'})


def write(columns, path):
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=3)
    elif path.name.endswith(".gz"):
        memory = io.BytesIO()
        pa.csv.write_csv(table, memory)
        path.write_bytes(gzip.compress(memory.getvalue()))
    else:
        pa.csv.write_csv(table, path)
    return path


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    "kind", ["log.parquet", "log.csv", "log.csv.gz", "mapping", "table", "frame"]
)
def test_tables_in_files_and_in_memory_give_the_same_transitions(kind, tmp_path):
    """Parquet, CSV, mappings, Arrow tables, DataFrames."""
    if kind == "frame":
        source = pytest.importorskip("pandas").DataFrame(log())
    elif kind in ("mapping", "table"):
        source = log() if kind == "mapping" else pa.table(log())
    else:
        source = write(log(), tmp_path / kind)
    found = whole(from_table(source))
    assert_array_equal(found["state"], [0, 1, 2, 0])
    assert_array_equal(found["next_state"], [1, 1, 0, 1])
    assert_array_equal(found["reward"], [1, 2, 3, 4])
    assert_array_equal(found["terminated"], [False, True, False, False])
    assert_array_equal(found["truncated"], [False, False, False, True])
    assert found["state"].dtype == np.int64


def test_several_files_are_read_one_after_the_other(tmp_path):
    """As a list or a pattern; a file that goes on where the last one ended is not cut off."""
    for k in range(3):
        columns = {"state": [k], "reward": [float(k)], "next_state": [k + 1], "terminated": [False]}
        write(columns, tmp_path / f"part-{k}.parquet")
    paths = [tmp_path / f"part-{k}.parquet" for k in range(3)]
    for source in (paths, str(tmp_path / "part-*.parquet")):
        found = whole(from_table(source))
        assert_array_equal(found["reward"], [0, 1, 2])
        assert_array_equal(found["truncated"], [False, False, True])
    apart = from_table([paths[2], paths[0]], on_error="raise")
    assert_array_equal(whole(apart)["truncated"], [True, True])
    assert not apart.counts.unmarked_ends


def test_the_next_state_is_the_next_row_s_where_there_is_no_column():
    """The last row of an unfinished episode has none: it is left out, the one before truncated."""
    stream = from_table(log(next_state=None, truncated=None, episode=["a", "a", "b", "b"]))
    found = whole(stream)
    assert_array_equal(found["reward"], [1, 2, 3])
    assert_array_equal(found["next_state"], [1, 1, 0])
    assert_array_equal(found["truncated"], [False, False, True])
    assert stream.counts.rejected == {"no next state": 1}


def test_another_episode_truncates_the_one_before():
    """Without flags, by its id."""
    found = whole(from_table(log(terminated=[False] * 4, truncated=None, episode=[1, 1, 2, 2])))
    assert_array_equal(found["truncated"], [False, True, False, True])
    found = whole(
        from_table(log(terminated=[False] * 4, truncated=None, episode=[-1.0, -1, -2, -2]))
    )
    assert_array_equal(found["truncated"], [False, True, False, True])


def test_rows_whose_next_state_is_not_the_next_row_s_are_counted_and_truncated():
    """1 → 2 is followed by 3: something is missing between them."""
    columns = {
        "state": [0, 1, 3],
        "next_state": [1, 2, 4],
        "reward": [0.0] * 3,
        "terminated": [0] * 3,
    }
    stream = from_table(columns)
    assert_array_equal(whole(stream)["truncated"], [False, True, True])
    assert stream.counts.unmarked_ends == {"next state is not the state of the next row": 1}
    with pytest.raises(InputError, match="row 2: next_state = 2: the next row of the episode has"):
        list(from_table(columns, on_error="raise").chunks())


def test_labels_are_numbered_in_order_of_appearance():
    """Text, and whole numbers that cannot be indices; what follows an end is no state."""
    columns = {"state": ["b", "a", "b"], "next_state": ["a", "end", "c"], "reward": [0.0] * 3}
    stream = from_table({**columns, "terminated": [0, 1, 0]})
    found = whole(stream)
    assert stream.labels == ["b", "a", "c"]
    assert_array_equal(found["state"], [0, 1, 0])
    assert_array_equal(found["next_state"], [1, 1, 2])
    for odd in (-5, 10**12):
        stream = from_table(log(state=[odd, 1, 2, odd], next_state=[1, 0, odd, 1]))
        assert_array_equal(whole(stream)["state"], [0, 1, 2, 0])
        assert stream.labels == [odd, 1, 2]
    stream = from_table(log(), states="labels")
    whole(stream)
    assert stream.labels == [0, 1, 2]


def test_categories_are_labels():
    """Dictionary-encoded columns, as pandas writes them."""
    kind = pa.array(["x", "y", "x", "y"]).dictionary_encode()
    stream = from_table(pa.table(log(state=kind, next_state=None, truncated=None)))
    assert_array_equal(whole(stream)["state"], [0, 1, 0])
    assert stream.labels == ["x", "y"]


def test_several_columns_are_observations():
    """Named, or found as state_0, state_1, …; a fraction makes an observation of one number."""
    x = {"x": [0.5, 1.5], "v": [1, 2], "next_x": [1.5, 2.5], "next_v": [2, 3]}
    rest = {"reward": [0.0, 1.0], "terminated": [False, False]}
    stream = from_table({**x, **rest}, state=["x", "v"])
    found = whole(stream)
    assert_array_equal(found["state"], [[0.5, 1], [1.5, 2]])
    assert_array_equal(found["next_state"], [[1.5, 2], [2.5, 3]])
    assert (stream.width, stream.names) == (2, ["x", "v"])
    stream = from_table({"state": x["x"], "next_state": x["next_x"], **rest})
    assert whole(stream)["state"].shape == (2, 1)
    stream = from_table({"state": np.array([[1.0, 2], [3, 4]]), **rest})
    assert_array_equal(whole(stream)["next_state"], [[3, 4]])


def test_floats_that_are_whole_are_states():
    """As pandas makes of whole numbers with gaps."""
    stream = from_table(log(state=[0.0, 1.0, NAN, 0.0]))
    assert_array_equal(whole(stream)["state"], [0, 1, 0])
    assert stream.counts.rejected.total() == 1


def test_probabilities_give_ratios():
    """ρ = target / behaviour; effective sample size and largest ratio are counted."""
    columns = log(b=[0.5, 0.25, 1.0, 0.5], p=[0.25, 0.5, 0.0, 0.5])
    stream = from_table(columns, behaviour="b", target="p")
    assert_array_equal(whole(stream)["rho"], [0.5, 2, 0, 1])
    assert stream.counts.largest_ratio == 2
    assert stream.counts.effective_sample_size == 3.5**2 / (0.25 + 4 + 1)


@pytest.mark.parametrize(
    ("b", "p", "message"),
    [
        ([0.5, 0.0], [0.5, 0.5], "row 2: b = 0.0: the behaviour never does what the target would"),
        ([0.5, 0.0], [0.5, 0.0], "row 2: b = 0.0"),
        ([0.5, 1.5], [0.5, 0.5], "row 2: b = 1.5: must be a probability"),
        ([0.5, 0.5], [0.5, -0.1], "row 2: p = -0.1: must be a probability"),
        ([0.5, math.inf], [0.5, 0.5], "row 2: b = inf: must be a probability"),
        ([0.5, 5e-324], [0.5, 0.5], "row 2: b = 5e-324"),
    ],
)
def test_probabilities_that_are_wrong_are_refused_never_skipped(b, p, message):
    """With the row number, after what came before it."""
    columns = {"state": [0, 0], "next_state": [0, 0], "reward": [1.0, 2.0], "terminated": [0, 0]}
    stream = from_table({**columns, "b": b, "p": p}, behaviour="b", target="p", on_error="skip")
    with pytest.raises(InputError, match=message):
        list(stream.chunks())
    assert stream.counts.transitions == 1


@pytest.mark.parametrize("missing", [None, NAN])
def test_missing_probabilities_are_left_out_and_counted(missing):
    """Never taken as a ratio of 1."""
    columns = log(b=[0.5, missing, 0.5, 0.5], p=[0.5, 0.5, 0.25, missing])
    stream = from_table(columns, behaviour="b", target="p", force=True)
    assert_array_equal(whole(stream)["rho"], [1.0, 0.5])
    assert stream.counts.rejected == {"b is missing": 1, "p is missing": 1}


def test_gamma_lambda_and_rho_must_be_named_unless_retvar_wrote_the_file():
    """A column that happens to be called gamma is not used."""
    columns = log(gamma=[0.5] * 4, lam=[0.5, 0.5, 2.0, 0.5], rho=[1.0, 2.0, 3.0, -1.0])
    assert not {"gamma", "lam", "rho"} & set(whole(from_table(columns)))
    stream = from_table(columns, gamma="gamma", lam="lam", rho="rho")
    found = whole(stream)
    assert_array_equal(found["rho"], [1, 2])
    assert_array_equal(found["gamma"], [0.5, 0.5])
    assert stream.counts.rejected == {
        "lam is not within [0, 1]": 1,
        "rho is not within [0, 1e+12]": 1,
    }


def test_numbers_too_large_for_sums_of_powers_are_left_out_by_name_and_their_episode_is_cut():
    """Least squares sum eighth powers; a row that only they refuse would be lost silently."""
    rewards, ratios = [1.0, 1e25, -1e308, 1e24], [1.0, 1.0, 1.0, 1e13]
    columns = log(reward=rewards, rho=ratios)
    stream = from_table(columns, rho="rho", force=True)
    found = whole(stream)
    assert_array_equal(found["reward"], [1.0])
    assert stream.counts.rejected == {
        "reward is not within [-1e+24, 1e+24]": 2, "rho is not within [0, 1e+12]": 1
    }  # fmt: skip
    with pytest.raises(InputError, match=r"row 2: reward = 1e\+25: reward is not within"):
        whole(from_table(columns, rho="rho", on_error="raise"))
    tiny = log(b=[0.5, 1e-13, 1e-300, 0.5], p=[0.5, 0.5, 0.5, 0.5])
    stream = from_table(tiny, behaviour="b", target="p", force=True)
    assert_array_equal(whole(stream)["rho"], [1.0, 1.0])
    assert stream.counts.rejected == {"b is so small that the ratio is beyond 1e+12": 2}
    with pytest.raises(InputError, match="row 2: b = 1e-13: b is so small"):
        whole(from_table(tiny, behaviour="b", target="p", on_error="raise"))


# ---------------------------------------------------------------------- against a plain reading


def by_loop(rows, *, lookup):
    """Transitions from rows (stream, state, reward, next, ended, cut off, episode), read singly.

    NaN rewards and negative states make a row bad. Written as a loop over rows: for each, the next
    of its stream is looked for.
    """

    def bad(row):
        return math.isnan(row[2]) or row[1] < 0 or (not lookup and row[3] < 0 and not row[4])

    def after(t):
        return next((u for u in range(t + 1, len(rows)) if rows[u][0] == rows[t][0]), None)

    def joined(t):
        u = after(t)
        return u is not None and rows[u][6] == rows[t][6]

    def left_out(t):
        row = rows[t]
        if bad(row):
            return True
        if not lookup or row[4]:
            return False
        return row[5] or not joined(t) or rows[after(t)][1] < 0

    found = []
    for t, (stream, state, reward, following, terminated, truncated, _) in enumerate(rows):
        if left_out(t):
            continue
        if lookup and not terminated:
            following = rows[after(t)][1]
        cut = truncated
        if not (terminated or truncated):
            u = after(t)
            cut = not joined(t) or left_out(u) or following != rows[u][1]
        found.append((state, reward, state if terminated else following, terminated, cut, stream))
    return found


@pytest.mark.soak
@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("case", range(300 if oracle.SOAK else 30))
def test_rows_are_linked_truncated_and_left_out_as_by_a_loop(case, lookup, rng):
    """Random logs of mixed streams and episodes with bad rows; chunks of any size."""
    n, streams = int(rng.integers(1, 40)), int(rng.integers(1, 4))
    episode = np.cumsum(rng.random(n) < 0.1)
    rows, here = [], rng.integers(3, size=streams)
    for t in range(n):
        i = int(rng.integers(streams))
        follows = int(rng.integers(3)) if rng.random() < 0.9 else -1
        state = int(here[i]) if rng.random() < 0.9 else int(rng.integers(-1, 3))
        reward = NAN if rng.random() < 0.1 else float(t)
        flags = rng.random(2) < 0.15
        rows.append((i, state, reward, follows, bool(flags[0]), bool(flags[1]), int(episode[t])))
        here[i] = max(follows, 0)
    names = ("stream", "state", "reward", "next_state", "terminated", "truncated", "episode")
    columns = {name: [row[k] for row in rows] for k, name in enumerate(names)}
    if lookup:
        del columns["next_state"]
    expected = by_loop(rows, lookup=lookup)
    for chunk in (1, 2, 7, 100):
        stream = from_table(own(columns), states=3, chunk=chunk, force=True)
        found = [
            (t.state, t.reward, t.next_state, t.terminated, t.truncated, t.stream) for t in stream
        ]
        assert found == expected, chunk
        assert stream.counts.transitions + stream.counts.rejected.total() == n
        entities = from_table(columns, entity="stream", states=3, chunk=chunk, force=True)
        found = [(t.state, t.reward, t.next_state, t.terminated, t.truncated) for t in entities]
        order = list(dict.fromkeys(row[0] for row in rows))
        assert found == [row[:-1] for i in order for row in expected if row[-1] == i], chunk
        assert entities.counts.entities == len(order)


def test_a_stream_whose_next_row_is_too_far_is_truncated(monkeypatch):
    """Rows wait for the next of their stream a limited time, so that memory stays bounded."""
    monkeypatch.setattr(episodes, "HORIZON", 5)
    n = 30
    stream = [0, *[1] * (n - 2), 0]
    columns = {"state": [0] * n, "next_state": [0] * n, "reward": np.arange(n) * 1.0}
    found = []
    for chunk in (1, 4, 100):
        table = own({**columns, "terminated": [False] * n, "stream": stream})
        log = from_table(table, chunk=chunk)
        found.append(whole(log))
        assert log.counts.unmarked_ends.total() == 1
    for one in found:
        assert_array_equal(one["reward"], np.arange(n))
        assert_array_equal(np.flatnonzero(one["truncated"]), [0, n - 2, n - 1])


# ---------------------------------------------------------------------- bad rows


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("reward", None),
        ("reward", NAN),
        ("reward", math.inf),
        ("state", None),
        ("terminated", None),
    ],
)
def test_rows_with_gaps_are_left_out_and_counted_or_refused(kind, column, value, tmp_path):
    """Row 2 of each: the row before is truncated; the error names file and row."""
    columns = log(
        state=[0, 1, 2, 0], terminated=[False] * 4, truncated=None, next_state=[1, 2, 0, 1]
    )
    columns[column] = [columns[column][0], value, *columns[column][2:]]
    path = write(columns, tmp_path / f"log.{kind}")
    stream = from_table(path)
    found = whole(stream)
    assert_array_equal(found["reward"], [1, 3, 4])
    assert_array_equal(found["truncated"], [True, False, True])
    assert stream.counts.rejected.total() == 1
    strict = from_table(path, on_error="raise")
    with pytest.raises(InputError, match=f"log.{kind}, row 2: {column}"):
        list(strict.chunks())
    assert strict.counts.transitions == 1


def test_cells_of_csv_that_are_no_numbers_are_left_out(tmp_path):
    """And lines with too many or too few fields: rows across them are not linked."""
    path = tmp_path / "log.csv"
    lines = ["state,next_state,reward,terminated", "0,1,1.0,0", "1,2,x,false", "2,3,2.0,False"]
    lines += ["3,4,3.0,0", "4,5", "4,5,4.0,no", "5,6,5.0,0,9", "6,7,6.0,perhaps", "7,8,7.0,1", "8"]
    path.write_text("\n".join(lines))
    for chunk in (1, 2, 100):
        stream = from_table(path, chunk=chunk)
        found = whole(stream)
        assert_array_equal(found["state"], [0, 2, 3, 4, 7])
        assert_array_equal(found["truncated"], [True, False, True, True, False])
        assert stream.counts.rejected == {
            "reward is missing or not finite": 1, "wrong number of fields": 3,
            "terminated is neither true nor false": 1,
        }  # fmt: skip
    path.write_text("\n".join([*lines[:2], *lines[4:]]).replace("0,1,1.0", "2,3,1.0"))
    with pytest.raises(InputError, match="row 3"):
        list(from_table(path, on_error="raise").chunks())


def test_na_is_a_label_in_csv_and_an_empty_cell_is_missing(tmp_path):
    """What is empty, null or nan is missing; NA may be North America."""
    path = tmp_path / "log.csv"
    path.write_text("state,reward,terminated\nNA,1,1\n,2,1\nnan,3,1\nEU,NA,1\nEU,5,1\n")
    stream = from_table(path, force=True)
    assert_array_equal(whole(stream)["reward"], [1, 5])
    assert stream.labels == ["NA", "EU"]


def test_a_row_of_an_unknown_stream_truncates_all_streams():
    """It may have belonged to any."""
    columns = {"state": [0] * 5, "next_state": [0] * 5, "reward": [0.0, 1.0, 2.0, 3.0, 4.0]}
    stream = from_table(own({**columns, "terminated": [0] * 5, "stream": [0, 1, None, 0, 1]}))
    assert_array_equal(whole(stream)["truncated"], [True] * 4)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"terminated": None}, {}, "terminated=False where they never do"),
        ({"reward": None}, {}, "reward = reward: the table has no such column; it has state"),
        ({"state": None}, {}, "state = state: the table has no such column"),
        ({}, {"state": "position"}, "state = position"),
        ({}, {"episode": "trial"}, "episode = trial"),
        ({}, {"action": "move"}, "action = move"),
        ({}, {"behaviour": "reward"}, "target = missing"),
        ({}, {"target": "reward"}, "behaviour = missing"),
        ({}, {"on_error": "ignore"}, "on_error"),
        ({}, {"chunk": 0}, "chunk"),
        ({}, {"states": -1}, "states"),
        ({}, {"state": ["state", "reward"], "next_state": "next_state"}, "no such column|as many"),
        (
            {"reward": ["a", "b", "c", "d"]},
            {},
            "column 'reward' of the table = string: must hold num",
        ),
        ({"terminated": ["a"] * 4}, {}, "true and false"),
        ({"state": [[0], [1, 2], [2], [3]]}, {}, "one number or text|cannot be read"),
        ({"state": [{"x": 1}] * 4}, {}, "one number or text a row"),
        ({"state": ["a"] * 4}, {}, "must be of one kind"),
        ({"reward": [1.0, object(), 2.0, 3.0]}, {}, "cannot be read as a column"),
        ({"reward": [1.0]}, {}, "same length"),
    ],
)
def test_wrong_columns_are_refused_at_once(changes, arguments, message):
    """Which column, what was found, what is needed; before anything is read."""
    with pytest.raises(InputError, match=message):
        from_table(log(**changes), **arguments)


ROLES = {
    "state": [0, 1, 0, 1], "next_state": [1, 0, 1, 0], "reward": [0, 1, 1, 0],
    "terminated": [0, 0, 1, 1], "truncated": [0, 0, 0, 0], "entity": [0, 0, 1, 1],
    "time": [0, 1, 0, 1], "episode": [0, 0, 1, 1], "gamma": [1, 0, 1, 1], "lam": [1, 1, 1, 1],
    "behaviour": [1, 1, 1, 1], "target": [1, 0, 1, 1], "action": [0, 1, 0, 1],
}  # fmt: skip
NEEDS_ITS_OWN = [("state", "next_state"), ("terminated", "truncated")]


def rows_or_error(source, roles):
    try:
        return rows_of(from_table(source, **roles))
    except RetvarError as error:
        return type(error)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("role", ROLES)
def test_a_column_in_two_roles_is_as_good_as_a_copy_of_it(role, kind, tmp_path):
    roles = {name: name for name in ROLES}
    for other in ROLES:
        if other == role or {role, other} in map(set, NEEDS_ITS_OWN):
            continue
        path = tmp_path / f"{other}.{kind}"
        write({**ROLES, "copy": ROLES[other]}, path)
        twice, copied = ({**roles, role: column} for column in (other, "copy"))
        assert rows_or_error(path, twice) == rows_or_error(path, copied), other


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("pair", NEEDS_ITS_OWN)
def test_two_roles_that_need_a_column_each_do_not_share_one(pair, kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    write(ROLES, path)
    roles = {name: name for name in ROLES}
    for role, column in (pair, pair[::-1]):
        with pytest.raises(InputError, match=f"{pair[1]} = {column}: is the column of {pair[0]}"):
            from_table(path, **{**roles, role: column})


def test_observations_may_share_a_column_with_those_that_follow():
    """Such as a goal, which stays what it is."""
    at = {"x": [0.5, 1.5], "next_x": [1.5, 2.5], "goal": [3.0, 4.0]}
    table = {**at, "reward": [0.0, 1.0], "terminated": [0, 0]}
    found = whole(from_table(table, state=["x", "goal"], next_state=["next_x", "goal"]))
    assert_array_equal(found["state"], [[0.5, 3.0], [1.5, 4.0]])
    assert_array_equal(found["next_state"], [[1.5, 3.0], [2.5, 4.0]])
    for after in (["x", "goal"], ["next_x", "next_x"]):
        with pytest.raises(InputError, match="next_state"):
            from_table(table, state=["x", "goal"], next_state=after)


def test_episodes_may_never_terminate():
    """terminated=False."""
    found = whole(from_table(log(terminated=None, next_state=[1, 2, 0, 1]), terminated=False))
    assert not found["terminated"].any()


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.csv.gz"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff rubbish \xfe", b"state,reward\n", b"PAR1PAR1"])
def test_invalid_files_are_refused_by_name(name, content, tmp_path):
    """Empty, rubbish, a header alone."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        whole(from_table(tmp_path / name))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz"])
def test_the_name_of_a_file_need_not_be_utf_8(suffix, tmp_path):
    """Its folder's name neither; as a path and as a pattern."""
    path = write(log(), tmp_path / f"log{suffix}")
    folder = tmp_path / os.fsdecode(b"\xe9t\xe9")
    folder.mkdir()
    odd = path.rename(folder / os.fsdecode(b"bad\xff\xfe" + suffix.encode()))
    for given in (odd, str(odd), [odd], str(folder / f"*{suffix}")):
        assert_array_equal(whole(from_table(given))["reward"], whole(from_table(log()))["reward"])


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("order", ["-le", "-be", ""])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_csv_file_in_utf_16_is_to_be_saved_as_utf_8(encoding, order, end, suffix, tmp_path):
    """With a byte order mark, as spreadsheets write it, and without."""
    text = end.join(["state,reward,terminated", "0,1,0", "1,2,1", ""])
    path, raw = tmp_path / f"log{suffix}", text.encode(encoding + order)
    path.write_bytes(gzip.compress(raw) if suffix == ".csv.gz" else raw)
    why = "as in UTF-16" if order else "byte order mark of UTF-16"
    with pytest.raises(InputError, match=f"is not UTF-8: .*{why}.*; save it as UTF-8"):
        from_table(path)
    if suffix == ".csv":
        with pytest.raises(InputError, match="save it as UTF-8"):
            from_table(rv.experience.Growing(path, wait=lambda: False))


@pytest.mark.parametrize("rows", [0, 1_000_000, 3_000_000])
def test_a_csv_file_in_latin_1_is_to_be_saved_as_utf_8(rows, tmp_path):
    """Wherever the byte is: in the first block that is read, or in another one."""
    start, path = b"state,reward,terminated\n" + b"0,1,0\n" * rows, tmp_path / "log.csv"
    path.write_bytes(start + b"0,1,0\ncritica\xf1,2,1\n")
    with pytest.raises(RetvarError, match=r"0xf1.*; save the file as UTF-8"):
        whole(from_table(path))


def test_a_csv_file_in_utf_8_may_have_a_byte_order_mark(tmp_path):
    text = "state,reward,terminated\n0,1,0\n1,2,1\n"
    (tmp_path / "log.csv").write_text(text, encoding="utf-8-sig")
    assert_array_equal(whole(from_table(tmp_path / "log.csv"))["reward"], [1, 2])


def test_a_file_that_is_not_there_or_of_no_known_kind_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        from_table(tmp_path / "none.parquet")
    (tmp_path / "log.txt").write_text("state")
    with pytest.raises(InputError, match="must be a file"):
        from_table(tmp_path / "log.txt")
    with pytest.raises(InputError, match="must be a path"):
        from_table(3)


def test_rows_before_the_damage_of_a_file_are_read(tmp_path):
    """Bytes of the last row group overwritten: the others are read, then the error is raised."""
    n, path = 200_000, tmp_path / "log.parquet"
    columns = {"state": np.zeros(n, int), "reward": np.random.default_rng(0).normal(size=n)}
    stream = from_table(
        {**columns, "next_state": columns["state"], "terminated": np.zeros(n, bool)}
    )
    write_table(stream, path)
    meta = pa.parquet.read_metadata(path)
    chunk = meta.row_group(2).column(1)
    raw = bytearray(path.read_bytes())
    first = chunk.data_page_offset
    raw[first + 100 : first + 5_000] = bytes(4_900)
    path.write_bytes(raw)
    stream = from_table(path)
    with pytest.raises(SourceError, match=r"log.parquet failed after 131,072 transitions"):
        list(stream.chunks())
    assert stream.counts.transitions == 131_072


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(share, tmp_path):
    path = write(log(), tmp_path / "log.parquet")
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(InputError, match=r"log\.parquet"):
        from_table(path)


# ---------------------------------------------------------------------- there and back


def test_a_written_stream_is_read_back_to_the_bit(tmp_path, rng):
    """Every column, every bit, and what is known about the stream."""
    n, path = 1_000, tmp_path / "log.parquet"
    state = rng.integers(7, size=n)
    columns = {
        "state": state, "next_state": np.roll(state, -1), "reward": rng.normal(size=n) * 1e-300,
        "terminated": rng.random(n) < 0.1, "truncated": rng.random(n) < 0.1,
        "rho": rng.random(n), "gamma": rng.random(n), "lam": rng.random(n),
        "stream": rng.integers(3, size=n),
    }  # fmt: skip
    given = from_table(own(columns), gamma="gamma", lam="lam", rho="rho")
    first = whole(given)
    given.save(path)
    again = from_table(path, chunk=77)
    second = whole(again)
    assert first.keys() == second.keys()
    for name in first:
        assert_array_equal(first[name], second[name], err_msg=name)
    assert again.states == 7
    assert not again.counts.rejected
    assert not again.counts.unmarked_ends


def test_properties_of_a_stream_are_written_with_it(tmp_path):
    """Labels, bounds, policy."""
    path = tmp_path / "log.parquet"
    hand = from_gymnasium("Blackjack-v1", steps=50)
    hand.save(path)
    again = from_table(path)
    assert (again.labels, again.states, again.policy) == (hand.labels, 704, "random")
    pole = from_gymnasium("CartPole-v1", steps=50)
    pole.save(path)
    again = from_table(path)
    assert_array_equal(again.high, pole.high)
    assert again.width == 4
    named = from_table(log(state=["x", "y", "z", "x"], next_state=["y", "x", "x", "y"]))
    named.save(path)
    assert from_table(path).labels == ["x", "y", "z"]


def test_a_path_or_stream_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder does not exist"):
        write_table(from_table(log()), tmp_path / "no" / "log.parquet")
    with pytest.raises(InputError, match=r"\.parquet file"):
        write_table(from_table(log()), tmp_path / "log.csv")
    empty = from_table(log(reward=[NAN] * 4))
    with pytest.raises(InputError, match="no transitions"):
        write_table(empty, tmp_path / "log.parquet")
    assert not list(tmp_path.iterdir())


def test_without_pyarrow_the_remedy_is_named(monkeypatch):
    """It is an extra."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r'pip install "retvar\[data\]"'):
        readers.open_readers(log())


# ---------------------------------------------------------------------- rubbish


def rubbish(rng, like):
    """A cell that may be anything; more often than not, of the same kind as another."""
    cells = [
        None, NAN, math.inf, -math.inf, -1, 10**15, 2**63, -(2**63), 1.5, 1e308, 0, 1, 2, True,
        False, "", "a", "nan", "-inf", "1e999", "é\x00", "true", "0x10", " 1 ", "1_0", "١", "None",
    ]  # fmt: skip
    if rng.random() < 0.95:
        cells = [None, True, False] if isinstance(like, bool) else [None, NAN, math.inf, -1, 1.5, 2]
    return cells[int(rng.integers(len(cells)))]


def mangled(rng, n):
    """A log with a share of cells, columns or types spoiled, in random order."""
    columns = {
        "state": rng.integers(3, size=n).tolist(), "reward": rng.normal(size=n).tolist(),
        "next_state": rng.integers(3, size=n).tolist(),
        "terminated": (rng.random(n) < 0.2).tolist(), "truncated": (rng.random(n) < 0.2).tolist(),
    }  # fmt: skip
    extra = {
        "episode": np.cumsum(rng.random(n) < 0.2).tolist(),
        "stream": rng.integers(3, size=n).tolist(),
        "gamma": rng.random(n).tolist(), "lam": rng.random(n).tolist(),
        "rho": rng.random(n).tolist(), "b": rng.random(n).tolist(), "p": rng.random(n).tolist(),
    }  # fmt: skip
    columns |= {name: extra[name] for name in extra if rng.random() < 0.3}
    for name in list(columns):
        luck = rng.random()
        if luck < 0.03:
            del columns[name]
        elif luck < 0.08:
            columns[name] = [rubbish(rng, None) for _ in range(n)]
        elif luck < 0.15:
            one = rubbish(rng, columns[name][0])
            columns[name] = [one] * n
        elif luck < 0.5:
            for t in np.flatnonzero(rng.random(n) < 0.1):
                columns[name][t] = rubbish(rng, columns[name][t])
    order = rng.permutation(list(columns)).tolist()
    return {name: columns[name] for name in order}


def as_file(rng, columns, path):
    """Write what can be written: text as CSV, columns as Parquet where Arrow takes them."""
    if path.suffix == ".csv":
        lines = [",".join(columns)]
        lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        raw = "\n".join(lines).encode()
    else:
        table = {}
        for name, column in columns.items():
            try:
                table[name] = pa.array(column)
            except (pa.ArrowException, OverflowError):
                table[name] = pa.array([None if x is None else str(x) for x in column])
        memory = io.BytesIO()
        pa.parquet.write_table(pa.table(table), memory, row_group_size=int(rng.integers(1, 30)))
        raw = memory.getvalue()
    luck = rng.random()
    if luck < 0.1:
        raw = raw[: int(rng.integers(len(raw) + 1))]
    elif luck < 0.2 and path.suffix == ".csv":
        spoiled = bytearray(raw)
        for _ in range(int(rng.integers(1, 10))):
            spoiled[int(rng.integers(len(raw)))] = int(rng.integers(256))
        raw = bytes(spoiled)
    elif luck < 0.25:
        raw = rng.bytes(int(rng.integers(200)))
    path.write_bytes(raw)
    return path


def fed(source, rng, n, columns):
    """Feed an estimator; everything is finite and counted, or raises a RetvarError."""
    names = {
        name: name for name in ("gamma", "lam", "rho") if name in columns and rng.random() < 0.5
    }
    if "rho" not in names and {"b", "p"} <= set(columns):
        names |= {"behaviour": "b", "target": "p"}
    if "stream" in columns and rng.random() < 0.7:
        names |= {"entity": "stream"} | ({"time": "lam"} if "lam" in columns else {})
    names |= {"force": True} if rng.random() < 0.5 else {}
    on_error = ("skip", "raise")[int(rng.integers(2))]
    stream = None
    try:
        stream = from_table(source, on_error=on_error, chunk=int(rng.integers(1, 60)), **names)
        estimator = None
        for chunk in stream.chunks():
            for column in chunk.values():
                assert column.dtype.kind in "bi" or np.isfinite(column).all()
            assert chunk["state"].ndim > 1 or chunk["state"].min() >= 0
            assert chunk["next_state"].ndim > 1 or chunk["next_state"].min() >= 0
            estimator = estimator or estimator_of(chunk)
            if chunk["state"].ndim > 1 or max(chunk["state"].max(), chunk["next_state"].max()) < 50:
                estimator.update_many(chunk)  # with 'raise': any bad row would be an InputError
                assert all(np.isfinite(w).all() for w in estimator.weights.values())
        assert stream.counts.transitions + stream.counts.rejected.total() <= n
    except DivergenceError:  # observations of 1e308
        pass
    except RetvarError:
        if stream is not None and on_error == "skip" and "behaviour" not in names:
            assert stream.counts.transitions < n
        return False
    return True


def estimator_of(chunk):
    features = {"states": 50}
    if chunk["state"].ndim > 1:
        features = {"features": rv.features.Vector(chunk["state"].shape[1])}
    return rv.Direct(alpha=1e-3, gamma=0.9, lam=0.9).online(**features)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["memory", "log.csv", "log.parquet"])
def test_rubbish_ends_in_an_error_or_a_count(kind, rng, tmp_path):
    """Malformed rows and files: 150 of each kind, in the soak 35,000, with fresh seeds."""
    read = 0
    cases = 35_000 if oracle.SOAK else 150
    for _ in range(cases):
        n = int(rng.integers(1, 40))
        columns = mangled(rng, n)
        if not columns:
            continue
        source = columns if kind == "memory" else as_file(rng, columns, tmp_path / kind)
        read += fed(source, rng, n + 10, columns)
    assert read > cases // 10
