"""Read saved estimators of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retvar import arguments, learners
from retvar.errors import InputError
from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.folder import estimator_file
from retvar.estimation.tabular import TabularEstimator
from retvar.online.checkpoint import read_tensors

__all__ = ["load"]


def load(path: str | Path) -> Any:
    """Read an estimator that its method ``save`` wrote: online, or by least squares.

    Also from a folder that ``Estimate.save`` or ``retvar estimate --out`` wrote.

    >>> import pathlib, tempfile, retvar as rv
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "risk.safetensors"
    >>> rv.Direct(alpha=0.1, gamma=0.9, lam=1.0).online(states=2).save(path)
    >>> rv.load(path).steps
    0
    """
    path = estimator_file(arguments.path("path", path))
    header, _ = read_tensors(path)
    if header.get("kind") == "deep_critic":
        raise InputError("file", path, "is a deep critic: read it with rv.deep.Critic.load")
    for kind in (TabularEstimator, FeatureEstimator):
        if header.get("kind") == kind.file_kind:
            return kind.load(path)
    return learners.load(path)
