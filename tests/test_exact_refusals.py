"""What is refused at the door of the exact rooms: call → type and field of the error."""

import numpy as np
import pytest

import retvar as rv

CLIFF = rv.domains.windy_cliff(gamma=1.0)
CHAIN, COMPLEX = rv.domains.chain(), rv.domains.complex_mdp()
LOOP = rv.MDP.from_edges([(0, 0, 0)], gamma=1.0)  # never ends
HUGE = rv.domains.chain(reward=1e200, reward_std=1e200)

REFUSED = {
    "solve mdp": ("mdp", lambda: rv.solve("chain")),
    "solve target": ("target", lambda: rv.solve(COMPLEX, "nobody")),
    "solve estimand": ("estimand", lambda: rv.solve(COMPLEX, estimand="return")),
    "solve order": ("order", lambda: rv.solve(CHAIN, order=5)),
    "solve value": ("value", lambda: rv.solve(CHAIN, value=[1.0])),
    "solve lam": ("lam", lambda: rv.solve(CHAIN, lam=1.5)),
    "solve endless": ("states", lambda: rv.solve(LOOP)),
    "solve huge": ("reward or value", lambda: rv.solve(HUGE)),
    "order not asked for": ("order", lambda: rv.solve(CHAIN).kurtosis),
    "features shape": ("features", lambda: rv.fixed_point("direct", CHAIN, features=np.eye(3))),
    "features zero": ("features", lambda: rv.fixed_point("vtd", CHAIN, features=np.zeros((4, 1)))),
    "kappa": ("kappa_bar", lambda: rv.fixed_point("direct", CHAIN, kappa_bar=2.0)),
    "sweeps": ("sweeps", lambda: rv.expected_updates("direct", CHAIN, sweeps=-1)),
    "alpha": ("alpha[0]", lambda: rv.expected_updates("direct", CHAIN, alpha=-1.0)),
    "estimates": ("estimates", lambda: rv.expected_updates("direct", CHAIN, [1.0])),
    "samples": ("samples", lambda: rv.monte_carlo(CHAIN, samples=1)),
    "gradient start": ("start", lambda: rv.policy_gradient(CHAIN, start="s9")),
    "penalties": ("penalties", lambda: rv.frontier(CHAIN, penalties=[])),
    "restarts": ("restarts", lambda: rv.frontier(CHAIN, restarts=-1)),
    "progress": ("progress", lambda: rv.frontier(CHAIN, progress=3)),
    "unbounded risk": ("penalties", lambda: rv.frontier(CLIFF, penalties=-1)),
    "curve steps": ("steps", lambda: rv.expected_curve(CHAIN, rv.Direct(alpha=0.1), steps=10**8)),
    "curve traces": (
        "learners[0].kappa",
        lambda: rv.expected_curve(CHAIN, rv.Direct(alpha=0.1, kappa=0.5), steps=2),
    ),
    "curve rule": (
        "learners[0].alpha",
        lambda: rv.expected_curve(CHAIN, rv.Direct(alpha=rv.Decay(0.1, 0.5)), steps=2),
    ),
    "curve order": (
        "learners[0].order",
        lambda: rv.expected_curve(CHAIN, rv.Direct(alpha=0.1, order=3), steps=2),
    ),
    "best between": ("between", lambda: rv.best_steps(CHAIN, "vtd", steps=2, between=(1, 0.1))),
    "best minimise": ("minimise", lambda: rv.best_steps(CHAIN, "vtd", steps=2, minimise="mean")),
    "policy": ("sum of policy[0]", lambda: rv.Policy([[0.5, 0.6]])),
    "epsilon": ("epsilon", lambda: rv.Policy.epsilon_greedy(CHAIN, 1.5)),
    "unavailable": ("target[s0, 1]", lambda: rv.solve(COMPLEX, np.eye(5)[[1, 0, 0, 0, 0]])),
    "no such action": ("target[0]", lambda: rv.solve(CHAIN, [2, 0, 0, 0])),
    "no such state": ("state", lambda: rv.solve(CHAIN)["s9"]),
    "method": ("method", lambda: rv.fixed_point("fifth", CHAIN)),
    "vtd order": ("order", lambda: rv.fixed_point("vtd", CHAIN, order=3)),
    "vtd skewness": ("order", lambda: rv.fixed_point("vtd", CHAIN).skewness),
    "vtd updates": ("order", lambda: rv.expected_updates("vtd", CHAIN, order=3)),
    "reward mean": ("reward_mean", lambda: rv.domains.random_mdp(20, reward_mean=np.nan)),
    "wind": ("wind", lambda: rv.domains.windy_cliff(wind=2)),
    "height": ("height", lambda: rv.domains.windy_cliff(height=1)),
    "width": ("height × width", lambda: rv.domains.windy_cliff(width=10**6)),
    "domain": ("domain", lambda: rv.domains.find("nowhere")),
    "critic": ("critic", lambda: rv.ActorCritic(rv.VTD(alpha=0.1), 2, states=2)),
    "world": ("F", lambda: rv.domains.linear_gaussian("x", 1.0, 1.0, 0.9)),
    "tiles": ("tiles", lambda: rv.features.TileCoding([0.0], [1.0], tiles=0)),
    "bounds": ("high[0]", lambda: rv.features.Fourier([1.0], [0.0], order=2)),
    "kind": ("features", lambda: rv.features.from_dict({"kind": "unknown"})),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(name):
    field, call = REFUSED[name]
    with pytest.raises(rv.InputError) as caught:
        call()
    assert caught.value.field == field
