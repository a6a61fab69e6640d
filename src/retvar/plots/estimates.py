"""All figures that make sense for what was estimated from experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from retvar.plots import estimated as e
from retvar.plots.calibrated import calibration
from retvar.plots.heat import estimate_heat_maps
from retvar.plots.maps import estimate_maps
from retvar.plots.observed import NEEDED, observed_returns
from retvar.plots.rollouts import check
from retvar.plots.states import estimate_states

if TYPE_CHECKING:
    import xarray

__all__ = ["estimate_figures"]


def estimate_figures(data: xarray.Dataset) -> dict[str, Figure]:
    """Draw all that makes sense of what was estimated from experience.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`.

    Returns
    -------
    dict
        First one of ``"map"`` (a grid world), ``"heat_map"`` (observations of two numbers) and
        ``"states"``; then, where the dataset has what they need, ``"observed"``,
        ``"calibration"`` and ``"check"``.

    Raises
    ------
    InputError
        Where the dataset has no estimates.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> columns = {name: ("state", np.array([2.0, 3.0])) for name in ("value", "std", "visits")}
    >>> list(rv.plots.estimate_figures(xarray.Dataset(columns)))
    ['states']
    """
    e.need(data, "value", "std", why="must have the value and the std of each state or region")
    if "grid_rows" in data.attrs and "grid_columns" in data.attrs:
        figures = {"map": estimate_maps(data)}
    elif "value_map" in data and "std_map" in data:
        figures = {"heat_map": estimate_heat_maps(data)}
    else:
        figures = {"states": estimate_states(data)}
    if all(name in data for name in NEEDED):
        figures |= {"observed": observed_returns(data), "calibration": calibration(data)}
    if "check_mean" in data:
        figures["check"] = check(data)
    return figures
