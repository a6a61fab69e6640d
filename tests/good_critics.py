"""Calls of deep critics that succeed, for `tests.fuzzing`; they need torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import retvar as rv
from tests.good_calls import Calls

SMALL = {"members": 2, "hidden": (4,), "sweeps": 1, "batches": 2, "batch_size": 16}
EXEMPT = {  # of tensors, as loops of training have them; data that others make; needs SB3
    *("spread_loss", "VarianceHead", "SpreadModule", "Calibration", "Critic", "SpreadCallback"),
}


class Critics(Calls):
    """Everything of `retvar.deep` that checks what it is given."""

    def __init__(self, folder: Path) -> None:
        import torch

        torch.set_num_threads(1)
        world = rv.domains.linear_gaussian([[0.8]], [[0.3]], [[1.0]], gamma=0.9)
        seen = rv.experience.from_linear_gaussian(world, streams=4, steps=400)
        critic = rv.deep.fit(seen, gamma=0.9, **SMALL)
        path, one, none = folder / "critic.safetensors", torch.ones(3), torch.zeros(3)
        critic.save(path)
        self.modules = {}
        self.functions = {
            "fit": fit,
            "estimate": estimate,
            "spread_targets": rv.deep.spread_targets,
        }
        self.makers = {"critic": lambda: critic, "calibration": lambda: critic.calibration(seen)}
        self.documented = {
            "critic": ("value", "variance", "std", "interval", "disagreement", "known", "predict",
                       "calibration", "compare", "repeat", "summary", "save", "load"),
            "calibration": ("within",),
        }  # fmt: skip
        self.by_name = {
            "experience": seen, "gamma": 0.9, "lam": 1.0, "method": "direct", "seed": 1,
            "fresh": seen, "obs": [0.5], "path": folder / "a.safetensors", "stds": 2.0,
            "what": "value", "level": 0.9, "kappa": 0.9, "device": "cpu", "learning_rate": 1e-3,
            "reward": one, "value": none, "next_value": none, "variance": none,
            "next_variance": none, "terminated": torch.tensor([0, 0, 1]), "truncated": none,
        }  # fmt: skip
        self.own = {
            "critic.load": {"path": lambda: path},
            "critic.interval": {"obs": lambda: [0.5]},
            "critic.repeat": {"env": lambda: world.environment(), "starts": lambda: 1},
            "critic.known": {"obs": lambda: np.array([[0.5]])},
        }


def fit(
    experience: Any, gamma: Any = 0.9, members: Any = 2, hidden: Any = (4,), sweeps: Any = 1,
    batches: Any = 2, batch_size: Any = 16, **settings: Any,
) -> Any:  # fmt: skip
    """:func:`retvar.deep.fit` of small networks."""
    return rv.deep.fit(
        experience, gamma=gamma, members=members, hidden=hidden, sweeps=sweeps, batches=batches,
        batch_size=batch_size, **settings,
    )  # fmt: skip


def estimate(experience: Any, gamma: Any = 0.9, **settings: Any) -> Any:
    """:func:`retvar.deep.estimate` of small networks."""
    return rv.deep.estimate(experience, gamma=gamma, **{**SMALL, **settings})
