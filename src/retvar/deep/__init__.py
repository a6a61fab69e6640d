"""Deep critics: value and spread of the return for any observation, by neural networks.

Needs torch: ``pip install "retvar[deep]"``; :class:`SpreadCallback` needs Stable-Baselines3 as
well: ``pip install "retvar[sb3]"``. Nothing else in retvar imports them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from retvar.support.errors import InputError

if TYPE_CHECKING:
    from retvar.deep.callback import SpreadCallback as SpreadCallback
    from retvar.deep.critic import Calibration as Calibration
    from retvar.deep.critic import Critic as Critic
    from retvar.deep.fit_critic import Networks as Networks
    from retvar.deep.fit_critic import estimate as estimate
    from retvar.deep.fit_critic import fit as fit
    from retvar.deep.modules import SpreadModule as SpreadModule
    from retvar.deep.modules import VarianceHead as VarianceHead
    from retvar.deep.modules import spread_loss as spread_loss
    from retvar.deep.targets import spread_targets as spread_targets

_HOMES = {
    "Calibration": "critic", "Critic": "critic", "Networks": "fit_critic",
    "SpreadCallback": "callback", "SpreadModule": "modules", "VarianceHead": "modules",
    "estimate": "fit_critic", "fit": "fit_critic", "spread_loss": "modules",
    "spread_targets": "targets",
}  # fmt: skip
_EXTRAS = {"torch": "deep", "stable_baselines3": "sb3"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"retvar.deep.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        remedy = f'is not installed: pip install "retvar[{extra}]"'
        raise InputError(str(error.name), "missing", f"{remedy}; rv.deep.{name} needs it") from None


def __dir__() -> list[str]:
    return [*globals(), *__all__]
