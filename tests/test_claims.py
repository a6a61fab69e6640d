"""Claims can fail: each fails on every kind of wrong data that concerns it.

The data are those of ``retvar reproduce``, stored. Wrong data are made of them: VTD's estimates of
the variance replaced by direct's, the two swapped, all estimates scaled by 1.05, and, for claims
about centred, centred's estimates replaced by direct's.
"""

import re
from pathlib import Path

import pytest

from retvar.experiments import all_experiments
from tests.stored_claims import SIMULATIONS, WRONG, stored

CLAIMS = [(e, claim) for e in all_experiments() for claim in e.claims]
REASONS = {
    "noise": "the difference is smaller than the sampling error; other claims see it",
    "other": "the claim is not about the method whose data are wrong, or not about the difference",
    "common": "the claim is about a ratio, an order or a sign, which a common factor leaves",
    "rmse": "root mean squared errors are not made anew of scaled estimates",
    "printed": "the printed numbers of VTD and direct are equal",
    "holds not": "the claim does not hold on the right data",
    "": "not about centred",
}
# experiment | beginning of the claim | VTD replaced | swapped | scaled | centred replaced
TABLE = """
chain-step-size/equal | the means of both | noise | noise | fails |
chain-step-size/equal | VTD and direct differ | fails | fails | common |
chain-step-size/equal | both rest within | other | other | fails |
chain-step-size/smaller | the means of both | fails | fails | fails |
chain-step-size/smaller | VTD falls below | fails | fails | noise |
chain-step-size/smaller | direct stays between | other | fails | fails |
chain-step-size/smaller | std over runs of VTD | fails | fails | common |
chain-step-size/larger | the means of both | fails | fails | fails |
chain-step-size/larger | direct overshoots | other | fails | fails |
chain-step-size/larger | VTD overshoots | fails | fails | noise |
chain-step-size/larger | VTD's overshoot | fails | fails | common |
chain-step-size/larger | std over runs of VTD | fails | fails | common |
chain-frozen-value | the means of both | fails | fails | fails |
chain-frozen-value | std over runs of VTD | fails | fails | common |
chain-frozen-value | VTD's std over runs exceeds | fails | fails | common |
chain-step-size-ratio | with α = 0 and with | fails | fails | fails |
chain-step-size-ratio | for α ≤ 0.01 direct's | other | fails | common |
chain-step-size-ratio | at α = 0.1 direct's | other | fails | fails |
chain-step-size-ratio | VTD's error is more | fails | fails | fails |
chain-step-size-ratio | for the smallest ᾱ | holds not | holds not | holds not |
chain-adadelta | std over runs of VTD | fails | fails | common |
chain-adadelta | direct rests at | other | fails | fails |
chain-adadelta/step-sizes | the steps of VTD's | fails | fails | common |
complex-on-policy | the means of both | noise | noise | fails |
complex-on-policy | VTD and direct differ | fails | fails | common |
complex-on-policy | both rest within | other | other | fails |
complex-traces/variance | VTD and direct differ | fails | fails | common |
complex-traces/variance | std over runs of VTD | other | fails | common |
complex-traces/variance | both rest within | other | other | fails |
complex-traces/value | std over runs of VTD in state 0 | fails | fails | common |
complex-traces/value | std over runs of VTD in state 3 | fails | fails | common |
complex-traces/value | the ratio of VTD's std | fails | fails | common |
complex-traces/value | both rest within | other | other | fails |
complex-off-policy/target | the means of both | noise | noise | fails |
complex-off-policy/target | VTD and direct differ | fails | fails | common |
complex-off-policy/target | std over runs of VTD | fails | fails | common |
complex-off-policy/target | both rest within | other | other | fails |
complex-off-policy/return | the means of both | noise | noise | fails |
complex-off-policy/return | both rest within | other | other | fails |
complex-off-policy/return | std over runs of VTD | fails | fails | common |
complex-off-policy/return | VTD's std over runs exceeds | fails | fails | common |
complex-value-error/spread | with ᾱ = 0.005 the biases | fails | fails | fails |
complex-value-error/spread | with the largest error direct is | other | fails | common |
complex-value-error/spread | with the largest error VTD's mean | fails | fails | common |
complex-value-error/spread | with the largest error and ᾱ | fails | fails | common |
complex-value-error/spread | with the largest error VTD is | fails | fails | common |
complex-value-error/spread | with ᾱ = 0.001 centred's | other | other | fails | fails
complex-value-error/best-step | VTD's least error | fails | fails | fails |
table-1 | chain-step-size/equal agrees | printed | printed | fails |
table-1 | chain-step-size/smaller agrees | fails | fails | fails |
table-1 | chain-step-size/larger agrees | fails | fails | fails |
table-1 | chain-frozen-value agrees | fails | fails | fails |
table-1 | chain-adadelta agrees | holds not | holds not | holds not |
table-1 | complex-on-policy agrees | fails | fails | fails |
table-1 | complex-off-policy/target agrees | fails | fails | fails |
table-1 | complex-off-policy/return agrees | fails | fails | fails |
large-returns | with the value held fixed VTD's | fails | fails | fails |
large-returns | with the value held fixed direct's | other | fails | fails | noise
large-returns | with α = ᾱ, started | fails | fails | fails |
random-walk/learning | both errors peak | fails | fails | rmse |
random-walk/learning | direct's final RMSE | fails | fails | rmse |
random-walk/final | direct's mean estimate is nearer | fails | fails | common |
random-walk/final | direct's mean estimate ends | other | fails | fails |
random-walk/sensitivity | direct is within twice | fails | fails | rmse |
random-walk/sensitivity | direct's least RMSE | fails | fails | rmse |
"""
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]


def test_the_table_lists_every_claim_and_gives_a_reason_for_each_kind_that_does_not_concern_it():
    assert len(ROWS) == len(CLAIMS)
    for (experiment, claim), (name, beginning, *kinds) in zip(CLAIMS, ROWS, strict=True):
        assert name == experiment.id
        assert claim.name.startswith(beginning)
        assert len(kinds) == len(WRONG)
        assert set(kinds) <= {"fails", *REASONS}
        assert "fails" in kinds or set(kinds) == {"holds not", ""}


def test_each_kind_of_wrong_data_is_seen_by_a_claim_about_each_simulation():
    seen = {name: set() for name in SIMULATIONS}
    for (experiment, _), (_, _, *kinds) in zip(CLAIMS, ROWS, strict=True):
        for simulation in experiment.simulations:
            if experiment.id != "table-1":
                caught = {kind for kind, cell in zip(WRONG, kinds, strict=True) if cell == "fails"}
                seen[simulation.name] |= caught
    for name, kinds in seen.items():
        wanted = {"replaced", "swapped", "scaled"}
        wanted -= {"scaled"} if name == "random-walk/sensitivity" else set()
        assert wanted <= kinds, name


@pytest.mark.parametrize("number", range(len(CLAIMS)))
def test_a_claim_holds_on_the_data_and_fails_on_wrong_data_that_concern_it(number):
    (experiment, claim), (_, _, *kinds) = CLAIMS[number], ROWS[number]
    data = stored(experiment)
    assert claim.check(data).holds == ("holds not" not in kinds)
    for (kind, make), cell in zip(WRONG.items(), kinds, strict=True):
        if cell == "fails":
            found = claim.check({name: make(each) for name, each in data.items()})
            assert not found.holds, (kind, found.measured)


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
    from retvar.experiments.claims import least_error

    experiment = next(e for e in all_experiments() if e.id == "complex-value-error/best-step")
    (data,) = stored(experiment).values()
    for method in ("direct", "vtd", "centred"):
        steps = least_error(data, method)[2]
        assert data.alpha_bar.min() < steps.min() <= steps.max() < data.alpha_bar.max()


def test_the_readme_counts_the_claims_that_hold():
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    held, total = re.search(r"(\d+) of (\d+) claims hold", text).groups()
    assert int(total) == len(CLAIMS)
    assert int(held) == sum("holds not" not in row for row in ROWS)
