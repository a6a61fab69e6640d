"""How the three methods are related, and the study that compares them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "which_method.py"
OFF = {"target": "target", "behaviour": "behaviour"}


def world(seed, loops, **settings):
    """A random MDP of four states; without `loops` no step stays in its state."""
    while True:
        mdp = rv.domains.random_mdp(4, 2, 2, seed=seed, **settings)
        target = mdp.policy("target").probabilities  # importance ratios are at most 2
        mdp = mdp.replace(policies={"target": target, "behaviour": (target + 0.5) / 2})
        stays = bool(np.any(mdp.edges[0] == mdp.edges[2]))
        if stays == loops:
            return mdp
        seed += 1_000


def exact(mdp, learners, **how):
    """Mean and mean squared error of the variance after some steps, each learner in a row."""
    data = rv.expected_curve(mdp, learners, steps=60, record=20, **how)
    return np.stack([data.variance.values, data.variance_mse.values], axis=1)


def simulated(mdp, learners, **how):
    """The variance in three runs, each learner in a row."""
    options = {"steps": 60, "record": 20, "runs": 3, "seed": 1, "keep": "runs", "threads": 1}
    return rv.simulate(mdp, learners, **options, **how).variance.transpose("learner", ...).values


def starts(center, half):
    """Four starts of each value around a centre."""
    return rv.PerRun(center + half * np.random.default_rng(3).uniform(-1, 1, size=(4, 4)))


# ---------------------------------------------------------------------- centred and direct


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("found", "how"),
    [(exact, {}), (exact, OFF), (simulated, {})],
    ids=["expected", "expected for the target's return", "simulated"],
)
def test_centred_with_the_values_step_is_direct(seed, found, how):
    """For every λ, with loops and from any start that value and mean have in common."""
    steps = {"alpha": 0.3, "alpha_bar": 0.1, "value": starts(1.0, 0.8)}
    learners = [rv.Direct(**steps), rv.Centred(**steps, alpha_mean=0.3)]
    direct, centred = found(world(seed, loops=seed > 0), learners, **how)
    assert_allclose(centred, direct, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("found", [exact, simulated])
def test_centred_is_not_direct_for_the_off_policy_return(found):
    steps = {"alpha": 0.3, "alpha_bar": 0.1, "estimand": "off_policy_return"}
    learners = [rv.Direct(**steps), rv.Centred(**steps, alpha_mean=0.3)]
    mdp = world(2, loops=False, gamma=0.5, lam=0.5, reward_mean=2.0)
    direct, centred = found(mdp, learners, **OFF)
    assert np.abs(centred - direct).max() > 0.01 * np.abs(direct).max()


def test_at_lambda_one_centred_is_direct_with_the_step_of_its_mean_node():
    """α_mean is α by default: centred is direct. With α_mean = ᾱ it is direct with α = ᾱ."""
    steps = {"alpha": 0.5, "alpha_bar": 0.1}
    learners = [
        rv.Direct(**steps),
        rv.Centred(**steps),
        rv.Direct(alpha=0.1, alpha_bar=0.1),
        rv.Centred(**steps, alpha_mean=0.1),
    ]
    free, centred, tied, slow = exact(world(0, loops=False, lam=1.0), learners)
    assert_allclose(centred, free, rtol=1e-11, atol=1e-12)
    assert_allclose(slow, tied, rtol=1e-11, atol=1e-12)
    assert np.abs(slow - free).max() > 0.05 * np.abs(free).max()


# ---------------------------------------------------------------------- VTD and direct


@pytest.mark.parametrize("seed", range(3))
def test_vtd_with_equal_steps_is_direct_times_one_less_the_step(seed):
    """On every path, from a variance of 0, whatever γ, λ and the values are."""
    steps = {"alpha": 0.3, "value": starts(5.0, 1.5)}
    mdp = world(seed, loops=False, reward_mean=3.0)
    learners = [rv.Direct(**steps), rv.VTD(**steps)]
    direct, vtd = simulated(mdp, learners)
    assert_allclose(vtd, 0.7 * direct, rtol=1e-9, atol=1e-10)
    direct, vtd = exact(mdp, learners)[:, 0]
    assert_allclose(vtd, 0.7 * direct, rtol=1e-9, atol=1e-11)


def test_a_step_that_stays_in_its_state_breaks_that():
    """VTD reads the value of the next state after the update."""
    mdp = world(0, loops=True, reward_mean=3.0)
    direct, vtd = simulated(mdp, [rv.Direct(alpha=0.3), rv.VTD(alpha=0.3)])
    assert np.abs(vtd - 0.7 * direct).max() > 0.01 * np.abs(direct).max()


@pytest.mark.parametrize("estimand", ["target_return", "off_policy_return"])
def test_an_update_of_vtd_is_one_of_direct_and_two_more_terms(estimand):
    """2J(ᾱζ − αρδ) and −(αρδ)², with ζ the root of direct's reward; for the target ζ = ρδ."""
    rng = np.random.default_rng(5)
    for _ in range(10):
        J, V = rng.normal(size=2) * 3, rng.uniform(size=2)
        alpha, alpha_bar, gamma, lam = rng.uniform(size=4).tolist()
        rho, reward = rng.uniform(0, 2), rng.normal()
        steps = {"alpha": alpha, "alpha_bar": alpha_bar, "gamma": gamma, "lam": lam}
        after = {}
        for method in (rv.Direct, rv.VTD):
            description = method(**steps, value=J, initial_variance=V, estimand=estimand)
            learner = description.online(states=2)
            learner.update(0, reward, 1, rho=rho)
            after[method] = learner.variance(0)
        moved = rho * (reward + gamma * J[1] - J[0])
        zeta = moved + (rho - 1) * J[0] if estimand == "off_policy_return" else moved
        extra = 2 * J[0] * (alpha_bar * zeta - alpha * moved) - (alpha * moved) ** 2
        assert_allclose(after[rv.VTD], after[rv.Direct] + extra, rtol=1e-9, atol=1e-9)


def test_a_constant_in_all_rewards_changes_nothing_for_direct_and_centred_but_for_vtd():
    """With a constant γ the values move together; the start moves along."""
    found = []
    for shift in (0.0, 4.0):
        mdp = world(0, loops=False, gamma=0.8, lam=0.5, reward_mean=shift)
        start = {"value": starts(1.0 + shift / 0.2, 0.8)}
        steps = {"alpha": 0.3, "alpha_bar": 0.1, **start}
        learners = [rv.Direct(**steps), rv.Centred(**steps), rv.VTD(**steps)]
        found.append(exact(mdp, learners)[:, 1])
    assert_allclose(found[1][:2], found[0][:2], rtol=1e-7)
    assert np.all(found[1][2] > 5 * found[0][2])


# ---------------------------------------------------------------------- the study


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("which_method", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_tables_of_the_study_are_made_of_its_results(study, tmp_path, capsys):
    """In small: 2 MDPs of one exact family and of one at rest; lost results are made again."""
    small = ["--mdps", "2", "--workers", "1", "--only", "short,rest-0.9", "--store", str(tmp_path)]
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- table others -->\n<!-- end others -->\nand\n<!-- table rest --><!-- end rest -->"
    )
    study.main(*small, "--page", str(page))
    printed = capsys.readouterr().out
    files = sorted(tmp_path.glob("short-*.json"))
    found = [json.loads(file.read_text())["levels"]["5.0"] for file in files]
    ratios = [one["vtd"]["error"] / one["direct"]["error"] for one in found]
    assert len(files) == 2
    ratio = np.prod(ratios) ** (1 / 4)  # the geometric mean over MDPs, of roots
    (line,) = [line for line in page.read_text().splitlines() if line.startswith("| 100 steps")]
    assert line.split("|")[3].split()[0].strip("*") == f"{ratio:.2f}"
    assert all(line in printed for line in page.read_text().splitlines() if line.startswith("|"))
    kept = {file: file.read_bytes() for file in tmp_path.glob("*.json")}
    files[0].unlink()
    times = {file: file.stat().st_mtime_ns for file in kept if file != files[0]}
    study.main(*small)
    assert {file: file.stat().st_mtime_ns for file in times} == times
    again = json.loads(files[0].read_text())["levels"]
    assert again == json.loads(kept[files[0]])["levels"]
