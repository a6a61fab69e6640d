"""Random streams of experience and random learners, for tests that compare ways of learning."""

from __future__ import annotations

import numpy as np

import retvar as rv

METHODS = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}


def stream(rng: np.random.Generator, steps: int, states: int = 4, streams: int = 1) -> dict:
    """Columns of a stream with everything: ends, cuts, ratios, γ and λ of each transition."""
    terminated = rng.random(steps) < 0.15
    return {
        "state": rng.integers(states, size=steps),
        "reward": rng.normal(size=steps),
        "next_state": rng.integers(states, size=steps),
        "terminated": terminated,
        "truncated": rng.random(steps) < 0.1,
        "rho": np.where(rng.random(steps) < 0.2, 0.0, rng.uniform(0, 2, steps)),
        "gamma": np.where(rng.random(steps) < 0.2, 1.0, rng.random(steps)),
        "lam": np.where(rng.random(steps) < 0.2, 1.0, rng.random(steps)),
        "stream": rng.integers(streams, size=steps),
    }


def rows(columns: dict) -> list[dict]:
    """One mapping per transition."""
    return [
        dict(zip(columns, values, strict=True))
        for values in zip(*(c.tolist() for c in columns.values()), strict=True)
    ]


def feed(learner, columns: dict) -> None:
    """Update one by one."""
    for row in rows(columns):
        learner.update(row.pop("state"), row.pop("reward"), row.pop("next_state"), **row)


STEPS = [
    lambda rng: float(rng.uniform(0, 0.3)),
    lambda rng: rv.Constant(0.1),
    lambda rng: rv.Decay(),
    lambda rng: rv.Decay(alpha=0.7, power=0.6),
    lambda rng: rv.Averaged(),
    lambda rng: rv.Averaged(alpha=0.5, power=0.75),
    lambda rng: rv.Adadelta(),
    lambda rng: rv.AlphaBound(0.5),
]


def learner(rng: np.random.Generator, method: str | None = None, states: int = 4) -> rv.Learner:
    """Any learner: method, question, step sizes, traces, initial values."""
    method = method or str(rng.choice(list(METHODS)))
    pick = lambda: STEPS[rng.integers(len(STEPS))](rng)  # noqa: E731
    trace = lambda: rng.choice([0.0, 1.0, rng.random()])  # noqa: E731
    settings = {
        "alpha": pick(),
        "alpha_bar": pick(),
        "kappa": float(trace()) if rng.random() < 0.7 else rng.random(states),
        "kappa_bar": float(trace()) if rng.random() < 0.7 else rng.random(states),
        "estimand": str(rng.choice(["target_return", "off_policy_return"])),
        "value": rng.normal(size=states),
        "initial_variance": rng.random(states),
        "learn_value": bool(rng.random() < 0.8),
    }
    if method == "centred":
        settings |= {"alpha_mean": pick(), "kappa_mean": float(trace())}
    if method != "vtd":
        settings["order"] = int(rng.choice([2, 2, 2, 3, 4]))
    return METHODS[method](**settings)


def same(a, b) -> bool:
    """Whether two estimators hold the same bits."""
    lanes = min(a._memory.lanes, b._memory.lanes)  # without replicates: of the estimators alone
    return stored(a, lanes) == stored(b, lanes) and (a.steps, a.rejected) == (b.steps, b.rejected)


def stored(estimator, lanes: int | None = None) -> list[bytes]:
    """The bits of everything that learning changes, in some lanes or in all."""
    m = estimator._memory
    wide = ("w", "held", "first", "second", "sums")
    found = [] if lanes == 1 else [m.draws]
    for node in m.block:
        by_lane = [x if x is None else x[..., :lanes] for x in map(node._asdict().get, wide)]
        own = node.used[:, :1], node.p[:1], node.error[:1]
        rest = *own, node.E, node.visits, node.scales, node.last
        found += [*by_lane, *rest]
    return [b"" if x is None else np.ascontiguousarray(x).tobytes() for x in found]


def traces(estimator, node: int | None = None) -> np.ndarray:
    """Traces [stream, weight] of a node by its number, or of all nodes side by side."""
    E = [each.E for each in estimator._memory.block]
    return np.hstack([x[:, :-1] for x in E if x is not None]) if node is None else E[node][:, :-1]


def finite(estimator, limit: float = 1e150) -> bool:
    """Whether weights and traces of an estimator are below the limit."""
    b = estimator._memory.block
    known = (*(m.w[:, 0] for m in b), *(m.E for m in b if m.E is not None))
    return all((np.abs(x) <= limit).all() for x in known)
