"""Claims can fail: each holds on the data of ``retvar reproduce``, and fails on wrong data.

Wrong data are made of those stored: VTD's estimates of the variance replaced by direct's, the two
swapped, all estimates scaled by 1.05, and centred's estimates replaced by direct's.
"""

from functools import cache

import pytest

from retvar.paper import all_experiments
from tests.stored_claims import SIMULATIONS, WRONG, stored, stored_simulation

CLAIMS = [(e, claim) for e in all_experiments() for claim in e.claims]
DISPROVED = {("chain-step-size-ratio", "for the smallest ᾱ"), ("table-1", "chain-adadelta agrees")}


@cache
def wrong_data(name, kind):
    """Wrong data of one simulation."""
    return WRONG[kind](stored_simulation(name))


def seen_by(experiment, claim):
    """The kinds of wrong data on which a claim fails."""
    names = [simulation.name for simulation in experiment.simulations]
    made = {kind: {n: wrong_data(n, kind) for n in names} for kind in WRONG}
    return {kind for kind, data in made.items() if not claim.check(data).holds}


@pytest.mark.parametrize("number", range(len(CLAIMS)))
def test_a_claim_holds_on_the_data_and_fails_on_wrong_data(number):
    experiment, claim = CLAIMS[number]
    if any(experiment.id == e and claim.name.startswith(text) for e, text in DISPROVED):
        assert not claim.check(stored(experiment)).holds
    else:
        assert claim.check(stored(experiment)).holds
        assert seen_by(experiment, claim)


@pytest.mark.parametrize("name", SIMULATIONS)
def test_each_kind_of_wrong_data_is_seen_by_a_claim_about_each_simulation(name):
    """Root mean squared errors are not made anew of scaled estimates."""
    about = [
        (experiment, claim)
        for experiment, claim in CLAIMS
        if experiment.id != "table-1" and name in [s.name for s in experiment.simulations]
        if claim.check(stored(experiment)).holds
    ]
    seen = set().union(*(seen_by(*each) for each in about))
    wanted = {"replaced", "swapped", "scaled"}
    assert wanted - ({"scaled"} if name == "random-walk/sensitivity" else set()) <= seen


def test_the_stored_data_are_of_the_simulations_declared_now():
    for experiment in all_experiments():
        for name, data in stored(experiment).items():
            declared = SIMULATIONS[name]
            assert set(data.learner.values) <= set(declared.learners)
            assert data.attrs == {"runs": declared.runs, "window": declared.record.window}
            unit = "step" if declared.steps is not None else "episode"
            moments = declared.record.moments(declared.length[f"{unit}s"])
            assert set(data[unit].values) <= set(moments)


def test_no_best_step_lies_at_an_end_of_the_grid():
    from retvar.paper.claims import least_error

    experiment = next(e for e in all_experiments() if e.id == "complex-value-error/best-step")
    (data,) = stored(experiment).values()
    for method in ("direct", "vtd", "centred"):
        steps = least_error(data, method).alpha_bar
        assert data.alpha_bar.min() < steps.min() <= steps.max() < data.alpha_bar.max()
