"""Logs from which the answer would be wrong: each gets a word, and right ones get none."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from retvar.errors import InputError
from retvar.estimation.ratio_check import check_ratios
from retvar.estimation.results import warnings
from retvar.experience import from_table
from retvar.experience.action_coverage import ActionCoverage
from retvar.experience.stream import Counts

STATES, ACTIONS = ("fresh", "worn"), ("run", "service")
BEHAVIOUR = np.array([[0.9, 0.1], [0.7, 0.3]])
TARGET = np.array([[0.8, 0.2], [0.4, 0.6]])
POLICY = {s: dict(zip(ACTIONS, TARGET[k].tolist(), strict=True)) for k, s in enumerate(STATES)}
ROLES = {"behaviour": "p", "target_policy": POLICY}


def machines(rows: int = 6_000, behaviour: np.ndarray = BEHAVIOUR, seed: int = 0) -> dict:
    """A machine that wears unless it is serviced, and is scrapped from time to time."""
    rng = np.random.default_rng(seed)
    log: dict[str, list] = {name: [] for name in ("state", "action", "reward", "terminated", "p")}
    state = 0
    for _ in range(rows):
        action = int(rng.random() < behaviour[state, 1])
        end = rng.random() < (0.05 if action == 0 and state else 0.01)
        reward = rng.normal([-1.0, -5.0][action])
        for name, entry in zip(
            log, (STATES[state], ACTIONS[action], reward, end, behaviour[state, action]),
            strict=True,
        ):  # fmt: skip
            log[name].append(entry)
        state = 0 if end or action else int(state or rng.random() < 0.3)
    return log


def warned(log: dict, **roles: object) -> tuple[rv.Estimate, str]:
    found = rv.estimate(from_table(log, **roles), gamma=0.9)
    return found, "\n".join(found.warnings)


# ------------------------------------------------------------------ importance ratios


def test_a_right_off_policy_log_is_answered_without_a_warning():
    found, text = warned(machines(), **ROLES)
    assert text == ""
    assert set(found.data["note"].values) == {""}
    assert_allclose(found.data["mean_ratio"], 1.0, atol=0.05)


def test_an_action_of_the_target_that_the_log_never_takes_in_a_state_has_no_answer():
    found, text = warned(machines(behaviour=np.array([[0.9, 0.1], [1.0, 0.0]])), **ROLES)
    assert "never takes these actions of the target policy: 'service' in state 'worn'" in text
    assert "is 0.40 in state 'worn'" in text
    assert np.isnan([found.value("worn"), found.value("fresh"), found.std("worn")]).all()
    assert found.at("worn").note.startswith("the mean importance ratio is not 1")
    assert found.at("fresh").note.startswith("leads to states whose mean importance ratio is not 1")
    assert "WARNING: the mean importance ratio must be 1" in found.summary()


def test_the_same_is_seen_where_ratios_are_a_column():
    log = machines(behaviour=np.array([[0.9, 0.1], [1.0, 0.0]]))
    log["q"] = [POLICY[s][a] for s, a in zip(log["state"], log["action"], strict=True)]
    found, text = warned(log, behaviour="p", target="q")
    assert "is 0.40 in state 'worn'" in text
    assert np.isnan(found.value("worn"))


def test_actions_that_are_spelt_differently_are_named_with_both_spellings():
    policy = {s: {"run": row["run"], "Service": row["service"]} for s, row in POLICY.items()}
    log = machines(300)
    times = Counter(log["action"])["service"]
    _, text = warned(log, behaviour="p", target_policy=policy)
    assert f"action 'Service' of the target policy, which does not list 'service' ({times}" in text


def test_an_action_that_only_the_log_has_is_no_reason_to_warn():
    log = machines()
    policy = {s: {"run": 1.0} for s in STATES}
    assert warned(log, behaviour="p", target_policy=policy)[1] == ""


def test_propensities_of_another_action_are_seen():
    log = machines()
    log["p"] = [BEHAVIOUR[STATES.index(s), 0] for s in log["state"]]
    found, text = warned(log, **ROLES)
    assert "the mean importance ratio must be 1" in text
    assert "'worn'" in text
    assert all(found.data["note"].values)


def test_too_small_propensities_are_said_at_the_states_which_keep_their_numbers():
    log = machines()
    log["p"] = [p * 0.6 for p in log["p"]]
    found, text = warned(log, **ROLES)
    assert "propensities are wrong" in text
    assert "never taken" not in text
    assert np.isfinite(found.value("worn"))
    assert set(found.data["note"].values) == {"the mean importance ratio is not 1"}


def test_td_and_observations_are_warned_of_the_log_as_a_whole():
    log = {"state": [0.5] * 4_000, "reward": [1.0] * 4_000, "terminated": [True] * 4_000}
    stream = from_table(log | {"ratio": [0.4] * 4_000}, rho="ratio")
    list(stream.chunks())
    (text,) = warnings(stream, estimator=None)
    assert "the mean importance ratio must be 1, and is 0.40 (4,000 rows)" in text


def test_sums_of_pieces_give_the_warning_of_the_whole(tmp_path):
    log = machines(behaviour=np.array([[0.9, 0.1], [1.0, 0.0]]))
    whole = rv.estimate(from_table(log, **ROLES), gamma=0.9)
    whole.save(tmp_path / "half.safetensors")
    again = rv.estimate(from_table(log, **ROLES), resume=tmp_path / "half.safetensors")
    assert "is 0.40 in state 'worn'" in again.warnings[-1]
    assert again.estimator.ratios.rows.sum() == 2 * whole.estimator.ratios.rows.sum()


@pytest.mark.parametrize("largest", [2.0, 10.0, 19.0])
def test_right_ratios_are_almost_never_called_wrong(largest):
    """Ville's inequality promises 1e-5 a log.

    Unseen ratios up to 10 are allowed for, and more where larger ones were seen. Seeded.
    """
    rng = np.random.default_rng(0)
    rows, logs = 10.0 ** rng.uniform(0, 4, (4, 2_000)), 2_000
    rows = np.floor(rows)
    taken = rng.binomial(rows.astype(int), 0.9 / largest)  # the action with the largest ratio
    small = 0.1 / (1.0 - 0.9 / largest)
    total = taken * largest + (rows - taken) * small
    squares = taken * largest**2 + (rows - taken) * small**2
    for k in range(logs):
        seen = largest if taken[:, k].any() else small
        assert not check_ratios(rows[:, k], total[:, k], squares[:, k], seen).wrong.any()


def test_a_rare_action_that_lowers_ratios_is_no_reason_to_warn():
    """A behaviour that is the target but for one action in a hundred: ρ = 1/0.99, or rarely 0."""
    rows = np.array([100.0, 250.0])
    assert not check_ratios(rows, rows / 0.99, rows / 0.99**2, 1 / 0.99).wrong.any()


def test_few_rows_and_huge_ratios_are_no_evidence():
    assert not check_ratios(np.array([3.0]), np.array([0.3]), np.array([0.03]), 0.1).wrong.any()
    with np.errstate(all="raise"):
        huge = check_ratios(np.array([3.0]), np.array([1e200]), np.array([np.inf]), 1e200)
    assert not huge.uncovered.any()


def test_where_a_ratio_of_1000_was_seen_its_absence_from_1000_rows_of_a_state_is_no_evidence():
    """The action with this ratio has probability 0.0009 in both states; it came in the larger."""
    rows, taken = np.array([1_000.0, 10_000.0]), np.array([0.0, 9.0])
    small = 0.1 / (1.0 - 0.0009)
    total = taken * 1_000.0 + (rows - taken) * small
    squares = taken * 1_000.0**2 + (rows - taken) * small**2
    assert not check_ratios(rows, total, squares, 1_000.0).wrong.any()
    assert check_ratios(rows, total, squares, 2.0).wrong[0]


def test_an_action_is_missing_only_if_a_tenth_as_often_would_have_been_seen():
    policy = {"s": {"a": 0.5, "b": 0.5}}
    for rows, known in ((100, 0), (1_000, 1)):
        log = ActionCoverage(policy.get, Counter({("s", "a"): rows, ("t", "b"): 1}))
        assert len(log.warnings()) == known
    assert not log.warnings(largest_ratio=30.0)


# ------------------------------------------------------------------ ends left out


def test_ends_without_a_reward_are_a_reason_to_warn_however_few_they_are():
    log = machines()
    ends = [k for k, end in enumerate(log["terminated"]) if end]
    for k in ends[::2]:
        log["reward"][k] = np.nan
    _, text = warned(log)
    lost = len(ends[::2])
    assert f"{lost} of {len(ends)} ends are among the {lost + 1} rows left out" in text


def test_rewards_that_are_missing_anywhere_are_not():
    for seed in range(20):
        log = machines(2_000, seed=seed)
        gone = np.random.default_rng(seed).random(2_000) < 0.04
        log["reward"] = np.where(gone, np.nan, log["reward"])
        assert "ends" not in warned(log)[1]


def test_the_counts_of_pieces_add_up():
    whole = Counts(transitions=100, ends=10)
    whole.merge(Counts(transitions=100, ends=0, ends_left_out=9, rejected=Counter({"gone": 9})))
    assert whole.warnings[-1].startswith("9 of 19 ends are among the 9 rows left out")


# ------------------------------------------------------------------ labels


def csv(tmp_path, text: str):
    path = tmp_path / "log.csv"
    path.write_text(text)
    return path


def test_codes_with_leading_zeros_are_labels(tmp_path):
    log = from_table(csv(tmp_path, "state,reward,terminated\n010,1,0\n10,2,1\n"))
    assert [t.reward for t in log] == [1.0, 2.0]
    assert log.labels == ["010", "10"]


def test_codes_with_leading_zeros_that_come_late_are_named(tmp_path):
    rows = ["10,1,1\n"] * 70_000 + ["010,1,1\n"] * 2
    log = from_table(csv(tmp_path, "state,reward,terminated\n" + "".join(rows)))
    list(log.chunks())
    assert "2 states with leading zeros, such as '010', are read as numbers" in log.warnings[0]
    assert "states='labels'" in log.warnings[0]


def test_labels_that_differ_in_case_or_blanks_only_are_named():
    log = {
        "state": ["ill", "Ill ", "well", "a", "A"],
        "reward": [1.0] * 5,
        "terminated": [True] * 5,
    }
    stream = from_table(log)
    list(stream)
    assert "case or blanks only: 'ill' and 'Ill '; write them alike" in stream.warnings[0]
    assert "'a'" not in stream.warnings[0]


def test_labels_name_states_wherever_a_state_is_asked_for():
    found = rv.estimate(from_table(machines()), gamma=0.9)
    worn = found.experience.labels.index("worn")
    assert found.value("worn") == found.value(worn)
    assert found.std("worn") == found.std(worn)
    assert found.interval("worn") == found.interval(worn)
    for asked in ("worn", ["worn"], np.array(["worn"]), worn):
        assert found.return_interval(asked) == found.return_interval([worn])
    with pytest.raises(InputError, match="they are fresh, worn"):
        found.value("wron")


# ------------------------------------------------------------------ files


@pytest.mark.parametrize(("sign", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_columns_that_are_not_separated_by_commas_are_refused_by_name(sign, word, tmp_path):
    path = csv(tmp_path, sign.join(["state", "reward", "terminated"]) + f"\n1{sign}0,5{sign}0\n")
    with pytest.raises(InputError, match=f"has {word} between columns; write it with commas"):
        from_table(path)


def test_marks_and_blanks_are_refused_as_flags_with_the_remedy(tmp_path):
    path = csv(tmp_path, "state,reward,terminated\n1,2,x\n1,2,\n")
    with pytest.raises(InputError, match=r"'x': every row must hold true .* 0 in place of blanks"):
        from_table(path)


def test_rows_that_were_sent_twice_under_another_id_are_named():
    log = machines(1_000)
    log["t"] = list(range(1_000))
    twice = {name: column + column[::4] for name, column in log.items()}
    twice["log_id"] = list(range(1_250))
    stream = from_table(twice, time="t")
    list(stream)
    assert len(stream.warnings) == 1
    assert (
        "250 of the first 1,250 rows equal another in all columns but 'log_id'"
        in stream.warnings[0]
    )
    again = from_table({n: c for n, c in twice.items() if n != "log_id"}, time="t")
    assert [t.reward for t in again] == [t.reward for t in from_table(log, time="t")]


def test_rows_of_one_time_that_differ_are_not_taken_for_sent_twice():
    log = machines(1_000) | {"t": [k // 2 for k in range(1_000)], "log_id": list(range(1_000))}
    stream = from_table(log, time="t")
    assert stream.counts.resent == ""
