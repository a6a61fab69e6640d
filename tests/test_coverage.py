"""How far estimates are from the truth, and how often their intervals contain it.

On every world of `tests/worlds.py`: logs with fresh seeds, least squares, and the closed form. The
table in the docs is printed by ``python -m benchmarks.coverage``.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import retvar as rv
from retvar.estimation.least_squares import Solver
from retvar.estimation.sums import Sums
from retvar.experience import Experience
from tests.oracle import SOAK, fresh_seed
from tests.worlds import OTHERS, PAGE, _returns

WHAT = ("value", "std")
OFTEN = 30  # visits of the states whose errors are compared


def solved(log, states):
    sums = Sums()
    sums.add(**{name: column for name, column in log.items() if name != "truncated"})
    return Solver(sums, states).solution()


def measured(case, logs, rng, width=1.0):
    """Shares of 90% intervals (their width changed by a factor) that hold, and errors.

    States of one log are not independent, so each repetition counts as one number. Errors are those
    of least squares and of the plain mean of observed returns.
    """
    world = case.make()
    truth = world.truth
    found = {name: [] for name in (*WHAT, "errors", "mean errors", "std errors")}
    for _ in range(logs):
        log = world.log(rng, case.rows)
        answer = solved(log, world.mdp.n_states)
        enough = (answer.effective_visits >= 10) & (answer.variance_events >= 25)
        for what in WHAT:
            exact, middle = getattr(truth, what), getattr(answer, what)
            ends = getattr(answer, f"{what}_interval")(0.9)
            low, high = (middle + width * (x - middle) for x in ends)
            if enough.any():
                found[what].append(np.mean((low <= exact) & (exact <= high), where=enough))
        often = answer.effective_visits >= OFTEN
        found["std errors"].append((answer.std / truth.std - 1)[often & (truth.std > 0)])
        if world.on_policy:
            plain = world.mean_returns(log)
            both = often & np.isfinite(plain)
            found["errors"].append((answer.value - truth.value)[both])
            found["mean errors"].append((plain - truth.value)[both])
        else:
            found["errors"].append((answer.value - truth.value)[often])
    return found


def repetitions(case):
    """How many logs: nightly so many that the standard error of coverage is below 0.7%."""
    if not SOAK:
        return 120
    return 4_000 if case.quick else 1_000


@cache
def page(name):
    """Measured on a world of the page, once."""
    case = PAGE[name]
    return measured(case, repetitions(case), np.random.default_rng(fresh_seed()))


def rms(errors):
    whole = np.concatenate(errors)
    return float(np.sqrt(np.nanmean(whole**2)))


def interval(shares, z):
    """Mean of the shares, and its ends at so many standard errors."""
    mean, error = np.mean(shares), np.std(shares, ddof=1) / np.sqrt(len(shares))
    return mean, mean - z * error, mean + z * error


def chosen(cases):
    return [name for name, case in cases.items() if SOAK or case.quick]


FEW_SIZES = ("FrozenLake-v1", "gambler's ruin")  # of returns: most are 0


def returns_inside(case, logs, rng):
    """Of each log, the share of fresh returns inside the 90% return intervals, by visits."""
    world, endless = case.make(), case.make()
    endless.limit, n = 0, world.mdp.n_states
    shares = []
    for _ in range(logs):
        log = world.log(rng, case.rows)
        columns = {name: x for name, x in log.items() if name != "lam"}
        found = rv.estimate(Experience("log", lambda counts, own=columns: iter([own]), states=n))
        low, high = found.return_interval(np.arange(n))
        fresh = endless.log(rng, max(case.rows, 20_000))
        cut = np.arange(len(fresh["state"])) == len(fresh["state"]) - 1
        G, missing = _returns(fresh["reward"], fresh["gamma"], fresh["terminated"], cut)
        known = (missing < 1e-3) & np.isfinite(low[fresh["state"]])
        s, G = fresh["state"][known], G[known]
        visits, there = (np.bincount(x, minlength=n) for x in (log["state"], s))
        slack = 1e-9 * (1 + np.abs(G))
        inside = (low[s] - slack <= G) & (high[s] + slack >= G)
        shares.append(np.average(inside, weights=visits[s] / there[s]))
    return shares


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", [n for n in (chosen(PAGE | OTHERS)) if (PAGE | OTHERS)[n].make().on_policy]
)
def test_nine_in_ten_fresh_returns_fall_inside_their_intervals(name):
    """The mean over 100 logs lies in [87%, 93%]; where returns have few sizes, above 87%.

    `make test` has 12 logs: shares of a log had a standard deviation of at most 3.8%, so that six
    standard errors are 6.6%.
    """
    case = (PAGE | OTHERS)[name]
    mean = np.mean(returns_inside(case, 100 if SOAK else 12, np.random.default_rng(fresh_seed())))
    slack = 0.0 if SOAK else 0.066
    assert mean >= 0.87 - slack
    assert mean <= 0.93 + slack or name in FEW_SIZES


@pytest.mark.soak
@pytest.mark.parametrize("name", chosen(PAGE))
def test_nine_in_ten_intervals_hold(name):
    """Mean coverage with its 99% interval in [85%, 95%] from 1,000 logs or more, in `make nightly`.

    `make test` repeats 120 times: the mean may not be 4.9 standard errors (false alarms below 1e-6)
    away from [85%, 95%]. For a world with one state that is a limit of 69%.
    """
    found = page(name)
    for what in WHAT:
        mean, low, high = interval(found[what], 2.576)
        n = len(found[what])
        slack = 0.0 if SOAK else 4.9 * np.sqrt(0.85 * 0.15 / n)
        if not SOAK:
            low = high = mean
        assert low >= 0.85 - slack, (what, mean, low)
        assert high <= 0.95 + slack, (what, mean, high)


@pytest.mark.soak
@pytest.mark.parametrize("name", [n for n in chosen(PAGE) if PAGE[n].make().on_policy])
def test_values_are_as_good_as_the_mean_of_observed_returns(name):
    """RMSE at most 1.05 of that of the plain mean, over the same logs."""
    found = page(name)
    assert rms(found["errors"]) <= 1.05 * rms(found["mean errors"])


def test_intervals_of_half_the_width_are_noticed():
    """The test above can fail: half as wide, the intervals hold in about 59% (limit 70%)."""
    found = measured(PAGE["chain"], 120, np.random.default_rng(fresh_seed()), width=0.5)
    for what in WHAT:
        assert np.mean(found[what]) < 0.85 - 4.9 * np.sqrt(0.85 * 0.15 / 120)
