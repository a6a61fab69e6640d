"""What claims read of the data of ``retvar reproduce``, stored, and wrong data made of it.

``python -m tests.stored_claims FOLDER`` stores the data in a folder of ``retvar reproduce`` anew.
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import xarray

from retvar.paper import Experiment, SimulationCache, all_experiments

FILE = Path(__file__).parent / "data" / "claims.npz"
SIMULATIONS = {s.name: s for e in all_experiments() for s in e.simulations}
SCALE = 1.05

Data = dict[str, xarray.Dataset]


def slim(name: str, data: xarray.Dataset) -> xarray.Dataset:
    """What claims read of a dataset: every second moment of a learning curve, little else."""
    read = {"variance", "variance_std", "variance_step_size", "variance_rmse", "variance_rmse_std"}
    read |= {"true_variance", "diverged", "variance_window", "variance_window_std"}
    read |= {"variance_window_mse", "variance_window_mse_frozen"}
    read |= {str(n) for n in data.data_vars if "_change_total" in str(n)}
    read -= {"mean_change_total", "mean_change_total_std"}
    found = data[sorted(read & set(data.data_vars))]
    time = "step" if "step" in data.sizes else "episode"
    if name == "complex-value-error":
        found = found.assign(variance_std=found.variance_std.mean(time)).drop_vars("variance")
        found["variance_std"] = found.variance_std.expand_dims({time: data[time][-1:]})
    elif name == "random-walk":
        found = found.isel({time: np.r_[0:40, -1]})
    elif data.sizes[time] > 1:
        found = found.isel({time: slice(1, None, 2)})
    if not name.startswith(("complex-value-error", "large-returns")):
        methods = [x for x in data.learner.values.tolist() if not x.startswith("centred")]
        found = found.sel(learner=methods)
    coords = {time, "learner", "state", "alpha", "alpha_bar"}
    return found.drop_vars([c for c in found.coords if c not in coords])


def store(folder: Path) -> None:
    """Store the data of a reproduction, most of it in single precision."""
    saved, arrays = SimulationCache(folder / "data"), {}
    for name, simulation in SIMULATIONS.items():
        data = saved.read(simulation, 0)
        found = slim(name, data)
        for variable, array in {**found.data_vars, **found.coords}.items():
            values = array.values
            precise = "mse" in str(variable) or variable in found.coords  # 1e-8 to 1e10
            if values.dtype == np.float64 and not precise:
                values = values.astype(np.float32)
            arrays[":".join([name, str(variable), *map(str, array.dims)])] = values
        arrays[f"{name}:attrs"] = np.array([data.attrs["runs"], data.attrs["window"]])
    np.savez_compressed(FILE, **arrays)


@cache
def _arrays() -> dict[str, np.ndarray]:
    with np.load(FILE) as found:
        return dict(found)


@cache
def stored_simulation(name: str) -> xarray.Dataset:
    """The stored data of a simulation, in double precision."""
    variables, attrs = {}, {}
    for key, values in _arrays().items():
        simulation, variable, *dims = key.split(":")
        if simulation == name and variable == "attrs":
            attrs = dict(zip(("runs", "window"), values.tolist(), strict=True))
        elif simulation == name:
            real = values.dtype == np.float32
            variables[variable] = (dims, values.astype(np.float64) if real else values)
    coords = {"learner", "step", "episode", "state", "alpha", "alpha_bar"} & set(variables)
    return xarray.Dataset(variables, attrs=attrs).set_coords(coords)


def stored(experiment: Experiment) -> Data:
    """The stored data of an experiment."""
    return {each.name: stored_simulation(each.name) for each in experiment.simulations}


# ---------------------------------------------------------------------- wrong data


def estimated(data: xarray.Dataset) -> list[str]:
    """Names of what was estimated of the variance."""
    return [str(name) for name in data.data_vars if str(name).startswith("variance")]


def relabelled(data: xarray.Dataset, source: Callable[[str], str]) -> xarray.Dataset:
    """The same with each learner's estimates of the variance taken from another learner."""
    labels = [source(str(label)) for label in data.learner.values]
    taken = data[estimated(data)].sel(learner=labels).assign_coords(learner=data.learner)
    other = [c for c in taken.coords if c not in taken.dims]
    return data.assign(taken.drop_vars(other).data_vars)


def replaced(data: xarray.Dataset) -> xarray.Dataset:
    """VTD's estimates replaced by direct's."""
    return relabelled(data, lambda label: label.replace("vtd", "direct"))


def swapped(data: xarray.Dataset) -> xarray.Dataset:
    """VTD's and direct's estimates swapped."""
    other = {"vtd": "direct", "direct": "vtd"}

    def source(label: str) -> str:
        method, *rest = label.split(" ")
        return " ".join([other.get(method, method), *rest])

    return relabelled(data, source)


def uncentred(data: xarray.Dataset) -> xarray.Dataset:
    """Centred's estimates replaced by direct's."""
    return relabelled(data, lambda label: label.replace("centred", "direct"))


def scaled(data: xarray.Dataset) -> xarray.Dataset:
    """All estimates of the variance times 1.05; root mean squared errors stay as they are."""
    c, v, found = SCALE, data.true_variance, {}
    for name in estimated(data):
        if "mse" not in name and "step_size" not in name:
            found[name] = c * data[name]
    if "variance_window_mse" in data:
        mean, mse = data.variance_window, data.variance_window_mse
        square = mse + 2 * v * mean - v**2
        found["variance_window_mse"] = c**2 * square - 2 * c * v * mean + v**2
    if "variance_window_mse_frozen" in data:  # as if there were no bias
        found["variance_window_mse_frozen"] = (
            c**2 * data.variance_window_mse_frozen + (c - 1) ** 2 * v**2
        )
    return data.assign(found)


WRONG: dict[str, Callable[[xarray.Dataset], xarray.Dataset]] = {
    "replaced": replaced,
    "swapped": swapped,
    "scaled": scaled,
    "uncentred": uncentred,
}

if __name__ == "__main__":
    store(Path(sys.argv[1]))
