"""What is refused at the door: a call, and the field that its `InputError` names."""

import numpy as np
import pytest

import retvar as rv
from retvar.sweep import bootstrap_interval, compare
from tests.test_statistics import swept

CHAIN, COMPLEX = rv.domains.chain(), rv.domains.complex_mdp()
CLIFF = rv.domains.windy_cliff(gamma=1.0)
LOOP = rv.MDP.from_edges([(0, 0, 0)], gamma=1.0)  # never ends
HUGE = rv.domains.chain(reward=1e200, reward_std=1e200)
FIXED = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9)

# ------------------------------------------------------------------------ MDPs

EDGES = [(0, 0, 0)]
MDPS = [  # field, edges, settings (γ = 0.5 unless they have it)
    ("edges", [], {}),
    ("sum of probability[0, 0]", [(0, 0, 0, 0.5)], {}),
    ("probability[0, 0 → 0]", [(0, 0, 0, 1.5), (0, 0, 0, -0.5)], {}),
    ("reward[a, x → a]", [("a", "x", "a", 1, np.inf)], {}),
    ("reward_std[0, 0 → 0]", [(0, 0, 0, 1, 0, -1)], {}),
    ("states", [(0, 0, 1)], {}),
    ("gamma", EDGES, {"gamma": None}),
    ("gamma", [(0, 0, 0, 1, 0, 0, 0.5)], {}),
    ("gamma", EDGES, {"gamma": 1.2}),
    ("gamma[0, 0 → end]", [(0, 0, "end", 1, 0, 0, 0.5)], {"gamma": None}),
    ("edges[1].gamma", [(0, 0, 0, 0.5, 0, 0, 0.5), (0, 0, 0, 0.5)], {"gamma": None}),
    ("lam", EDGES, {"lam": -0.1}),
    ("start", [("a", 0, "a")], {"start": "b"}),
    ("sum of start", EDGES, {"start": {0: 0.4}}),
    ("start[0]", EDGES, {"start": [-1.0]}),
    ("states", EDGES, {"states": ["a", "a"]}),
    ("states", EDGES, {"states": 0}),
    ("edges[0].state", [("end", 0, "a")], {}),
    ("edges[0].next_state", [("a", 0, "b")], {"states": ["a"]}),
    ("edges[0].next_state", [(0, 0, 0.5)], {}),
    ("positions", EDGES, {"positions": [1.0]}),
    ("sum of policies.p[0]", EDGES, {"policies": {"p": [[0.5]]}}),
    ("policies.p", EDGES, {"policies": {"p": [[1, 0]]}}),
]
WORLDS = [
    *((f, lambda e=e, s=s: rv.MDP.from_edges(e, **{"gamma": 0.5, **s})) for f, e, s in MDPS),
    ("sum of policy[0]", lambda: rv.Policy([[0.5, 0.6]])),
    ("epsilon", lambda: rv.Policy.epsilon_greedy(CHAIN, 1.5)),
    ("reward_mean", lambda: rv.domains.random_mdp(20, reward_mean=np.nan)),
    ("wind", lambda: rv.domains.windy_cliff(wind=2)),
    ("height", lambda: rv.domains.windy_cliff(height=1)),
    ("height × width", lambda: rv.domains.windy_cliff(width=10**6)),
    ("domain", lambda: rv.domains.find("nowhere")),
    ("F", lambda: rv.domains.linear_gaussian("x", 1.0, 1.0, 0.9)),
]  # fmt: skip

# ------------------------------------------------------------------------ exact answers


def curve(steps=2, **settings):
    return rv.expected_curve(CHAIN, rv.Direct(**{"alpha": 0.1, **settings}), steps=steps)


EXACT = [
    ("mdp", lambda: rv.solve("chain")),
    ("target", lambda: rv.solve(COMPLEX, "nobody")),
    ("target[s0, 1]", lambda: rv.solve(COMPLEX, np.eye(5)[[1, 0, 0, 0, 0]])),
    ("target[0]", lambda: rv.solve(CHAIN, [2, 0, 0, 0])),
    ("estimand", lambda: rv.solve(COMPLEX, estimand="return")),
    ("order", lambda: rv.solve(CHAIN, order=5)),
    ("order", lambda: rv.solve(CHAIN).kurtosis),
    ("value", lambda: rv.solve(CHAIN, value=[1.0])),
    ("lam", lambda: rv.solve(CHAIN, lam=1.5)),
    ("state", lambda: rv.solve(CHAIN)["s9"]),
    ("states", lambda: rv.solve(LOOP)),
    ("reward or value", lambda: rv.solve(HUGE)),
    ("method", lambda: rv.fixed_point("fifth", CHAIN)),
    ("features", lambda: rv.fixed_point("direct", CHAIN, features=np.eye(3))),
    ("features", lambda: rv.fixed_point("vtd", CHAIN, features=np.zeros((4, 1)))),
    ("kappa_bar", lambda: rv.fixed_point("direct", CHAIN, kappa_bar=2.0)),
    ("order", lambda: rv.fixed_point("vtd", CHAIN, order=3)),
    ("order", lambda: rv.fixed_point("vtd", CHAIN).skewness),
    ("order", lambda: rv.expected_updates("vtd", CHAIN, order=3)),
    ("sweeps", lambda: rv.expected_updates("direct", CHAIN, sweeps=-1)),
    ("alpha[0]", lambda: rv.expected_updates("direct", CHAIN, alpha=-1.0)),
    ("estimates", lambda: rv.expected_updates("direct", CHAIN, [1.0])),
    ("samples", lambda: rv.monte_carlo(CHAIN, samples=1)),
    ("start", lambda: rv.policy_gradient(CHAIN, start="s9")),
    ("penalties", lambda: rv.frontier(CHAIN, penalties=[])),
    ("penalties", lambda: rv.frontier(CLIFF, penalties=-1)),
    ("restarts", lambda: rv.frontier(CHAIN, restarts=-1)),
    ("progress", lambda: rv.frontier(CHAIN, progress=3)),
    ("steps", lambda: curve(steps=10**8)),
    ("learners[0].kappa", lambda: curve(kappa=0.5)),
    ("learners[0].alpha", lambda: curve(alpha=rv.Decay(0.1, 0.5))),
    ("learners[0].order", lambda: curve(order=3)),
    ("between", lambda: rv.best_steps(CHAIN, "vtd", steps=2, between=(1, 0.1))),
    ("minimise", lambda: rv.best_steps(CHAIN, "vtd", steps=2, minimise="mean")),
]

# ------------------------------------------------------------------------ learners


def online(settings, **place):
    return rv.Direct(**{"alpha": 0.1, **settings}).online(**(place or {"states": 4}))


KNOWN = {"gamma": 0.9, "lam": 0.9}
SETTINGS = {
    "alpha": (-0.1, np.nan, "big"), "alpha_bar": (np.inf,), "gamma": (1.2, "0.5", rv.Noisy(0.5)),
    "kappa": (2, None, []), "kappa_bar": (np.nan,), "estimand": ("return",), "learn_value": (1,),
    "value": (np.nan, np.zeros(3, dtype=np.float32), None, 1e160, [0.1] * 3, rv.Noisy(1.0)),
    "initial_variance": ("x", rv.Noisy(1.0)), "order": (1, 5, 2.0, "4"),
}  # fmt: skip
PLACES = [  # field, settings, arguments of online
    ("states, features", {}, {"states": None}),
    ("states, features", {}, {"states": 2, "features": 3}),
    ("states", {}, {"states": 0}),
    ("value_features", {}, {"states": 2, "value_features": 3}),
    ("gamma", {"gamma": [0.1, 0.2, 0.3]}, {"states": 2}),
    ("kappa", {"kappa": [0.1, 0.2], "kappa_bar": [0.1] * 3}, {"states": 2}),
    ("value", {"value": 1.0}, {"features": 3}),
    ("features", {}, {"features": np.ones((2, 2)), "value_features": np.ones((3, 2))}),
    ("features", {}, {"features": [[np.nan]]}),
    ("features", {}, {"features": "tiles"}),
    *(("bootstrap_samples", {}, {"states": 2, "bootstrap_samples": n})
      for n in (-1, 1, 1.5, True, "100", 20_000)),
    ("bootstrap_samples", {"alpha": rv.Adadelta()}, {"states": 2, "bootstrap_samples": 9}),
]  # fmt: skip
ROW = {"state": [0], "reward": [1.0], "next_state": [1]}
COLUMNS = {  # field: what is changed in ROW
    "next_state": {"next_state": None}, "state": {"state": [0, 1]}, "reward": {"reward": ["a"]},
    "columns": {"done": [0]}, "terminated": {"terminated": [2]}, "truncated": {"truncated": ["x"]},
    "rho": {"rho": [1.0, 1.0]}, "gamma": {"gamma": [[0.5]]}, "lam": {"lam": ["b"]},
    "stream": {"stream": [0.5]},
}  # fmt: skip


def answer(order=2, bootstrap_samples=9):
    return FIXED.replace(order=order).online(2, bootstrap_samples=bootstrap_samples)


LEARNERS = [
    *((name, lambda n=name, x=x: online({n: x})) for name, xs in SETTINGS.items() for x in xs),
    *((field, lambda s=s, p=p: online(s, **p)) for field, s, p in PLACES),
    *((field, lambda c=c: online(KNOWN).update_many({**ROW, **c})) for field, c in COLUMNS.items()),
    ("arrays", lambda: online(KNOWN).update_many([ROW])),
    ("gamma", lambda: online({}).update(0, 1.0, 1)),
    ("lam", lambda: online({}).update(0, 1.0, 1, gamma=0.9)),
    ("transition", lambda: online(KNOWN).update(rv.Transition(0, 1.0, 1), rho=0.0)),
    ("transition", lambda: online(KNOWN).update({"state": 0, "reward": 1.0, "done": True})),
    ("stream", lambda: online(KNOWN, states=200).update(0, 1.0, 1, stream=999_999)),
    *(("state", lambda x=x: online(KNOWN, features=3).update(x, 1.0, [0.0, 0.0, 1.0]))
      for x in ([1.0, 2.0], [1.0, np.nan, 0.0], ["a", "b", "c"], 1.0)),
    ("state", lambda: online(KNOWN, features=rv.features.Active(5)).update([1, 5], 1.0, [0])),
    ("bootstrap_samples", lambda: answer(bootstrap_samples=0).interval(what="value")),
    ("level", lambda: answer().interval(what="value", level=90)),
    ("what", lambda: answer().interval(what="quantile")),
    ("order", lambda: answer().interval(0, "skewness")),
    ("order", lambda: answer(3).predict([0], "kurtosis")),
    *(("order", getattr(answer(), what)) for what in ("third_moment", "skewness", "kurtosis")),
    ("order", lambda: rv.VTD(alpha=0.1, order=3)),
    ("order", lambda: rv.grid(rv.Direct, rv.VTD, alpha=0.1, order=4)),
    ("power", lambda: rv.Averaged(power=0.5)),
    ("states", lambda: FIXED.online(3).grow(2)),
    ("states", lambda: FIXED.online(features=3).grow(4)),
    ("gamma", lambda: FIXED.replace(gamma=[0.9] * 3).online(3).grow(5)),
    ("path", lambda: FIXED.online(2).save("/nowhere/at-all/risk.safetensors")),
    ("path", lambda: FIXED.online(2).save("/")),
    ("critic", lambda: rv.ActorCritic(rv.VTD(alpha=0.1), 2, states=2)),
    ("tiles", lambda: rv.features.TileCoding([0.0], [1.0], tiles=0)),
    ("high[0]", lambda: rv.features.Fourier([1.0], [0.0], order=2)),
    ("features", lambda: rv.features.from_dict({"kind": "unknown"})),
]  # fmt: skip

# ------------------------------------------------------------------------ simulations

TWO = rv.grid(rv.Direct, alpha=[0.1, 0.2])
TABLES = np.ones((5, 2))
ENDLESS = rv.MDP.from_edges(
    [rv.Edge(0, 0, 0, 1.0, 1.0), rv.Edge(0, 1, rv.END, 1.0, 0.0)],
    gamma=0.9, policies={"stay": [[1.0, 0.0]]},
)  # fmt: skip


def simulate(learners=TWO, mdp=COMPLEX, **changes):
    length = {} if "steps" in changes or "episodes" in changes else {"steps": 50}
    return rv.simulate(mdp, learners, **{"runs": 2, "seed": 1, **length, **changes})


def second(**settings):
    """The second of two learners has other settings."""
    return {"learners": [TWO[0], rv.Direct(**{"alpha": 0.1, **settings})]}


RUNS = [  # field, arguments
    ("learners", {"learners": []}),
    ("learners", {"learners": {1: TWO[0], "1": TWO[1]}}),
    ("mdp", {"mdp": "complex"}),
    ("steps, episodes", {"steps": 5, "episodes": 5}),
    ("steps, episodes", {"steps": None}),
    ("episodes", {"episodes": 5}),
    ("episodes", {"mdp": ENDLESS, "episodes": 5}),
    ("runs", {"runs": 0}),
    ("threads", {"threads": 1.5}),
    ("keep", {"keep": "nothing"}),
    ("device", {"device": "gpu"}),
    ("seed", {"seed": 2**64}),
    ("behaviour", {"behaviour": "nu"}),
    ("behaviour[s1, 2]", {"target": "mu", "behaviour": "pi"}),
    ("record.at", {"record": [51]}),
    ("record.window", {"record": rv.Record(window=51)}),
    ("state", {"record": rv.Record(states=["s9"])}),
    ("record.states", {"record": rv.Record(states="s1")}),
    ("record", {"steps": 10**12, "record": 1}),
    ("keep", {"runs": 10**7, "keep": "runs", "steps": 10**6, "record": rv.Record(points=10**4)}),
    ("features", {"features": 2}),
    ("mean_features", {"features": TABLES, "mean_features": np.ones((6, 2))}),
    ("value_features", {"value_features": TABLES}),
    ("learners[1].value", {"features": TABLES, **second(value=1.0)}),
    ("learners[1].value", second(value=rv.PerRun(np.ones((1, 5))))),
    ("learners[1].value", second(value=rv.Noisy([1.0] * 3, uniform=1.0))),
    ("learners[1].kappa", second(kappa=[0.5, 0.5])),
    ("learners[1].gamma", second(gamma=[0.5] * 4)),
    ("states", second(gamma=1.0)),
]
SIMULATIONS = [
    *((field, lambda given=given: simulate(**given)) for field, given in RUNS),
    ("record.every", lambda: rv.Record(every=2.0)),
    ("record", lambda: rv.Record(every=2, points=2)),
    ("record.log", lambda: rv.Record(every=2, log=True)),
    ("settings", lambda: rv.grid(rv.Direct, alpha=0.1, alpha_baz=0.2)),
    ("center[1]", lambda: rv.Noisy([1.0, np.nan])),
    ("uniform", lambda: rv.Noisy(0.0, uniform=-1.0)),
    ("values", lambda: rv.PerRun([1.0, 2.0])),
    ("run", lambda: rv.replay(COMPLEX, seed=0, steps=5, run=-1)),
    ("episodes", lambda: rv.replay(COMPLEX, seed=0, episodes=3)),
]

# ------------------------------------------------------------------------ comparisons

SWEPT = swept(np.random.default_rng(0).lognormal(size=(2, 4, 8)), ["Direct"] * 2 + ["VTD"] * 2,
              [0.0, 1.0] * 2)  # fmt: skip
COMPARISONS = [
    ("data", lambda: bootstrap_interval([1.0, np.nan])),
    ("data", lambda: bootstrap_interval([1.0])),
    ("level", lambda: bootstrap_interval([1.0, 2.0], np.mean, 95)),
    ("resamples", lambda: bootstrap_interval([1.0, 2.0], np.mean, 0.9, 10)),
    ("seed", lambda: bootstrap_interval([1.0, 2.0], np.mean, 0.9, 100, -1)),
    ("data, runs", lambda: compare(SWEPT.isel(run=slice(3)))),
    ("data.variance_rmse", lambda: compare(SWEPT.mean("run"))),
    ("data.variance_rmse",
     lambda: compare(SWEPT.assign(variance_rmse=SWEPT.variance_rmse.where(SWEPT.alpha > 0)))),
    ("by", lambda: compare(SWEPT.isel(learner=[0, 1]))),
    ("setting", lambda: compare(SWEPT, by="kappa")),
    ("what", lambda: compare(SWEPT, what="rmse")),
    ("at", lambda: compare(SWEPT, at=7)),
    ("over", lambda: compare(SWEPT, over="seeds")),
    ("over", lambda: compare(SWEPT.isel(domain=[0]), over="domains")),
    ("options", lambda: compare(SWEPT, most=2)),
    ("where['alpha']", lambda: compare(SWEPT, where={"alpha": 9})),
    ("where['alpha']", lambda: compare(SWEPT, where={"alpha": []})),
]  # fmt: skip

# ------------------------------------------------------------------------ the test

TABLE = [*WORLDS, *EXACT, *LEARNERS, *SIMULATIONS, *COMPARISONS]


@pytest.mark.parametrize(("field", "call"), TABLE)
def test_what_makes_no_sense_is_refused_by_the_name_of_the_field(field, call):
    with pytest.raises(rv.InputError) as caught:
        call()
    assert caught.value.field == field
