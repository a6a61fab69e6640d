"""Estimates on a cluster: the same answer for every split and every number of workers."""

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import retvar as rv
from retvar.cluster import local_cluster
from retvar.errors import InputError, SourceError
from retvar.estimation.distributed import add_piece, sum_piece
from retvar.estimation.estimate import prepare
from retvar.estimation.returns import Returns
from retvar.estimation.tabular import TabularEstimator
from retvar.experience import from_table, pieces

QUANTITIES = ("value", "variance", "value_error", "variance_error", "value_events")


def walk(rows, seed=0, ends=0.05, labels=False):
    """A random walk over 12 states that ends now and then, with noisy rewards far from 0."""
    rng = np.random.default_rng(seed)
    steps, over = rng.integers(-1, 2, rows), rng.random(rows) < ends
    state, episode = np.zeros(rows + 1, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    follows = np.zeros(rows, dtype=np.int64)
    for t in range(rows):
        follows[t] = (state[t] + steps[t]) % 12
        state[t + 1] = 3 if over[t] else follows[t]
        episode[t] = episode[t - 1] + over[t - 1] if t else 0
    columns = {
        "state": state[:-1], "next_state": follows, "terminated": over, "episode": episode,
        "reward": 50.0 + rng.normal(size=rows) + state[:-1],
    }  # fmt: skip
    if labels:
        names = np.array([f"room {k}" for k in rng.permutation(12)])
        columns |= {"state": names[state[:-1]], "next_state": names[follows]}
    return columns


def write(path, columns, first=0, last=None, group=None):
    part = {name: column[first:last] for name, column in columns.items()}
    pq.write_table(pa.table(part), path, row_group_size=group or 10**6)
    return path


def in_pieces(log, **settings):
    """Estimate piece by piece, as workers do, without workers."""
    found, plan = prepare(log, by="least_squares", **settings), log.pieces()
    check = pieces.SplitCheck(plan.roles)
    for number in range(len(plan.plan)):
        task = pickle.loads(pickle.dumps((plan, number, log.states, settings)))
        part = pickle.loads(pickle.dumps(sum_piece(*task)))
        check.add(str(plan.plan[number][0]), part.ids)
        add_piece(found, part)
    return found


def assert_same(found, whole, places=1e-12):
    one, other = found.estimator.solution, whole.estimator.solution
    for name in QUANTITIES:
        a, b = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(a, b, rtol=places, atol=0, err_msg=name)
    assert one.note.tolist() == other.note.tolist()
    np.testing.assert_array_equal(found.monitor.visits.counts, whole.monitor.visits.counts)
    assert found.estimator.steps == whole.estimator.steps
    assert found.experience.counts.transitions == whole.experience.counts.transitions
    assert found.experience.labels == whole.experience.labels


# ---------------------------------------------------------------------- any split


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("rows", [1, 700, 10**6])
def test_with_next_states_any_split_into_row_groups_gives_the_same_answer(
    tmp_path, monkeypatch, rows, labels
):
    monkeypatch.setattr(pieces, "ROWS", rows)
    path = write(tmp_path / "log.parquet", walk(6_000, labels=labels), group=500)
    whole = rv.estimate(from_table(path), gamma=0.9, by="least_squares")
    found = in_pieces(from_table(path), gamma=0.9)
    assert len(from_table(path).pieces().plan) == {1: 12, 700: 6, 10**6: 1}[rows]
    assert_same(found, whole)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_without_next_states_files_of_whole_episodes_give_the_same_answer(
    tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(pieces, "ROWS", 1)
    monkeypatch.setattr(pieces, "BYTES", 1)
    columns = walk(4_000, labels=True)
    del columns["next_state"]
    cuts = [0, *(np.flatnonzero(np.diff(columns["episode"]))[[40, 41, 90]] + 1), None]
    paths = []
    for k, (first, last) in enumerate(itertools.pairwise(cuts)):
        paths.append(tmp_path / f"{k}.{kind}")
        part = {name: column[first:last] for name, column in columns.items()}
        if kind == "csv":
            pa.csv.write_csv(pa.table(part), paths[-1])
        else:
            write(paths[-1], part)
    whole = rv.estimate(from_table(paths), gamma=0.9, by="least_squares")
    assert_same(in_pieces(from_table(paths), gamma=0.9), whole)


def test_off_policy_sums_with_discounts_in_the_data_can_be_added(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "ROWS", 1)
    rng, columns = np.random.default_rng(1), walk(6_000)
    columns["rho"] = rng.choice([0.5, 1.5], 6_000)
    columns["g"] = rng.choice([0.8, 0.9], 6_000)
    path = write(tmp_path / "log.parquet", columns, group=900)

    def log():
        return from_table(path, rho="rho", gamma="g")

    whole = rv.estimate(log(), lam=0.9, by="least_squares")
    found = in_pieces(log(), lam=0.9)
    assert found.estimator.off_policy
    assert found.experience.counts.effective_sample_size == pytest.approx(
        whole.experience.counts.effective_sample_size, rel=1e-12
    )
    assert_same(found, whole)


def test_an_episode_in_two_files_is_refused_where_next_states_are_those_of_next_rows(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(pieces, "ROWS", 1)
    columns = walk(1_000)
    cut = int(np.flatnonzero(np.diff(columns["episode"]) == 0)[300])
    paths = [
        write(tmp_path / "a.parquet", columns, 0, cut + 1),
        write(tmp_path / "b.parquet", columns, cut + 1),
    ]
    with pytest.raises(InputError, match=r"an episode: in .*a.parquet and in .*b.parquet"):
        in_pieces(from_table(paths, next_state=None), gamma=0.9)
    in_pieces(from_table(paths), gamma=0.9)  # with next states nothing is lost


@pytest.mark.parametrize("text", [False, True])
def test_an_entity_in_two_files_is_refused_wherever_it_is(tmp_path, monkeypatch, text):
    monkeypatch.setattr(pieces, "ROWS", 1)
    paths = []
    for k, ids in enumerate(([0, 1, 2], [5, 3, 4], [8, 1, 7])):
        columns = walk(300, seed=k)
        stream = np.repeat(ids, 100)
        columns["stream"] = np.array([f"patient {i}" for i in stream]) if text else stream
        del columns["episode"]
        paths.append(write(tmp_path / f"{k}.parquet", columns))
    with pytest.raises(InputError, match=r"1 entity: in .*0.parquet and in .*2.parquet"):
        in_pieces(from_table(paths, next_state=None, entity="stream"), gamma=0.9)
    in_pieces(from_table(paths[:2], next_state=None, entity="stream"), gamma=0.9)


def test_words_of_ids_do_not_depend_on_the_process():
    program = (
        "import pyarrow as pa; from retvar.experience.pieces import id_words; "
        "print(id_words(pa.array(['a', 'b', None])).tolist())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True
    )
    assert json.loads(there.stdout) == pieces.id_words(pa.array(["a", "b", None])).tolist()


# ---------------------------------------------------------------------- returns


def test_returns_of_pieces_calibrate_intervals_and_check_the_answer(tmp_path, monkeypatch):
    """One episode in three, of every piece, calibrates: pieces are split in different ways."""
    monkeypatch.setattr(pieces, "ROWS", 1)
    path = write(tmp_path / "log.parquet", walk(60_000, labels=True), group=5_000)
    whole = rv.estimate(from_table(path), gamma=0.9, by="least_squares")
    found = in_pieces(from_table(path), gamma=0.9)
    assert "agree" in str(found.self_check)
    returns = found.estimator.returns
    assert abs(returns.count / whole.estimator.returns.count - 1) < 0.25
    rows = [sums.rows for sums in found.estimator.sums]
    assert 0.25 < rows[1] / sum(rows) < 0.42
    start = returns.start[:, 0].astype(int)
    low, high = found.return_interval(start)
    total = returns.completed(lambda rows: found.value()[rows[:, 0].astype(int)])
    inside = np.mean((total >= low) & (total <= high))
    assert 0.85 < inside < 0.95


def test_pieces_of_one_episode_each_are_not_all_given_to_one_part(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "ROWS", 1)
    path = write(tmp_path / "log.parquet", walk(600, ends=0.0), group=10)
    found = in_pieces(from_table(path), gamma=0.5)
    rows = [sums.rows for sums in found.estimator.sums]
    assert sum(rows) == 600
    assert min(rows) > 100


def returns_from(start, n, most=50, plenty=128, **columns):
    """Returns of a piece, each cut off after one step from state `start` to state 1."""
    zero, one = np.zeros(n, dtype=np.int64), np.ones(n)
    columns = {"state": np.full((n, 1), start), "next_state": one[:, None], "reward": one,
               "gamma": one / 2, "lam": one, "eta": None, "flags": zero + 2} | columns  # fmt: skip
    found = Returns(keys=1, width=1, most=most, plenty=plenty)
    found.add(key=zero, stream=zero, **columns)
    return found


def test_states_of_a_piece_keep_their_identity_at_both_ends_of_its_returns():
    """States 0 and 1 of the second piece are 2 and 3 of the whole."""
    found = returns_from(0.0, 3)
    found.merge(returns_from(0.0, 3), np.array([2, 3]))
    assert found.start[:, 0].tolist() == [0, 0, 0, 2, 2, 2]
    assert found.end[:, 0].tolist() == [1, 1, 1, 3, 3, 3]


def test_values_within_the_returns_of_a_piece_are_those_of_its_states():
    """R + γ(1 − λ)v(1) + γλR with γ = λ = ½: state 1 of the second piece is 3, worth ten times."""
    made = [
        returns_from(0.0, 2, state=np.array([[0.0], [1.0]]), next_state=np.array([[1.0], [0.0]]),
                     lam=np.full(2, 0.5), flags=np.array([0, 1]))
        for _ in range(2)
    ]  # fmt: skip
    made[0].merge(made[1], np.array([2, 3]))
    worth = np.array([0.0, 8.0, 0.0, 80.0])
    found = made[0].completed(lambda rows: worth[rows[:, 0].astype(int)])
    assert found.tolist() == [1 + 2 + 0.25, 1 + 20 + 0.25]


def test_returns_of_two_pieces_are_kept_in_proportion_to_how_many_each_had():
    """100 and 900, of which 400 are kept: 90% of the second piece, within 5 standard deviations."""
    found = returns_from(0.0, 100, most=400)
    found.merge(returns_from(1.0, 900, most=400))
    assert len(found.start) == 400
    assert abs(found.start.mean() - 0.9) < 5 * (0.1 * 0.9 / 400) ** 0.5


def test_beside_a_piece_that_keeps_every_other_return_a_random_half_of_another_stays():
    """200 numbered returns, of which 100 stay: their mean is 99.5 within 5 standard deviations."""
    found = returns_from(0.0, 200, most=400, state=np.arange(200.0)[:, None])
    found.merge(returns_from(-1.0, 500, most=400, plenty=1))
    kept = found.start[found.start >= 0]
    assert kept.size == np.unique(kept).size == 100
    assert abs(kept.mean() - 99.5) < 5 * (200**2 / 12 / 100 / 2) ** 0.5


def test_possible_returns_are_those_of_the_rewards_of_all_pieces():
    """Rewards of 1 and of 3 for ever, with γ = ½: from 1, where it ends at once, to 6."""
    made = []
    for reward in (1.0, 3.0):
        made.append(TabularEstimator(rv.Direct(alpha=0.0, gamma=0.5, lam=1.0), 1))
        zero = np.zeros(9, dtype=int)
        made[-1].update_many({"state": zero, "next_state": zero, "reward": np.full(9, reward)})
    made[0].merge(made[1])
    np.testing.assert_allclose(made[0].possible_returns, (1.0, 6.0))


# ---------------------------------------------------------------------- on workers


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("distributed")
    with local_cluster(2, private=False) as found:
        yield found


def test_workers_give_the_same_answer_and_a_killed_one_costs_its_piece(
    tmp_path, monkeypatch, cluster
):
    monkeypatch.setattr(pieces, "ROWS", 1)
    path = write(tmp_path / "log.parquet", walk(30_000, labels=True), group=1_500)
    whole = rv.estimate(from_table(path), gamma=0.9, by="least_squares")
    victim = next(iter(cluster.workers.values())).pid
    killed = []

    def kill(done):
        if done > 5_000 and not killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(done)

    found = rv.estimate(
        from_table(path), gamma=0.9, cluster=cluster.scheduler_address, progress=kill
    )
    assert killed
    assert_same(found, whole)
    again = rv.estimate(from_table(path), gamma=0.9, cluster=cluster.scheduler_address)
    assert_same(again, found, places=0)
    np.testing.assert_array_equal(again.estimator.returns.start, found.estimator.returns.start)


def test_a_damaged_piece_is_an_error_that_keeps_the_pieces_before(tmp_path, monkeypatch, cluster):
    monkeypatch.setattr(pieces, "ROWS", 1)
    columns = walk(3_000)
    paths = [write(tmp_path / f"{k}.parquet", columns, 1_000 * k, 1_000 * k + 1_000)
             for k in range(3)]  # fmt: skip
    log = from_table(paths)
    paths[1].write_bytes(paths[1].read_bytes()[:-2_000])
    with pytest.raises((InputError, SourceError), match=r"1\.parquet") as caught:
        rv.estimate(log, gamma=0.9, cluster=cluster.scheduler_address)
    assert caught.value.estimate.estimator.steps == 1_000


def test_what_a_cluster_cannot_do_is_refused(tmp_path):
    path = write(tmp_path / "log.parquet", walk(100))
    with pytest.raises(InputError, match="by = 'td'"):
        rv.estimate(from_table(path), gamma=0.9, by="td", cluster="local")
    with pytest.raises(InputError, match="reads files; the table is none"):
        rv.estimate(from_table(walk(100)), gamma=0.9, cluster="local")
    with pytest.raises(InputError, match="must be local, or a scheduler's address"):
        rv.estimate(from_table(path), gamma=0.9, cluster="nowhere")
    with pytest.raises(InputError, match="workers = 2: is for a local cluster"):
        rv.estimate(from_table(path), gamma=0.9, workers=2)
    frame = {"state": np.random.default_rng(0).normal(size=50), "reward": np.ones(50),
             "terminated": np.zeros(50, dtype=bool)}  # fmt: skip
    seen = write(tmp_path / "seen.parquet", frame)
    with pytest.raises(InputError, match="has observations"):
        rv.estimate(from_table(seen), gamma=0.9, cluster="local")
    log = from_table(write(tmp_path / "names.parquet", walk(100, labels=True)))
    with pytest.raises(InputError, match="gamma = one per state"):
        rv.estimate(log, gamma=np.full(12, 0.9), cluster="local")
