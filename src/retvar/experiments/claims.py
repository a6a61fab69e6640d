"""The claims of the paper's experiments; each function returns a :class:`Claim`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retvar.experiments.definitions import Claim, Data, Finding
from retvar.networks import NETWORKS

if TYPE_CHECKING:
    import xarray

__all__: list[str] = []  # used as claims.NAME

Array = NDArray[np.float64]
NAMES = {method: network.label for method, network in NETWORKS.items()}
COLUMNS = ("value", "second_moment", "vtd", "direct")


def only(data: Data) -> xarray.Dataset:
    """The dataset of an experiment with one simulation."""
    (found,) = data.values()
    return found


def _claim(
    name: str, check: Callable[[xarray.Dataset], Finding], methods: tuple[str, ...]
) -> Claim:
    return Claim(name, lambda data: check(only(data)), methods)


def _unit(data: xarray.Dataset) -> str:
    return "step" if "step" in data.sizes else "episode"


def _late(data: xarray.Dataset) -> xarray.Dataset:
    """The last quarter of a learning curve."""
    unit = _unit(data)
    return data.isel({unit: slice(3 * data.sizes[unit] // 4, None)})


def _spread(data: xarray.Dataset, learner: str) -> Array:
    """Standard deviation over runs of each state, averaged over the last quarter."""
    return np.asarray(_late(data).variance_std.sel(learner=learner).mean(_unit(data)))


# ---------------------------------------------------------------------- learning curves


def alike(within: float = 0.1) -> Claim:
    """VTD and direct have similar learning curves."""

    def check(data: xarray.Dataset) -> Finding:
        gap = abs(data.variance.sel(learner="vtd") - data.variance.sel(learner="direct"))
        share = float((gap / data.true_variance.sel(learner="direct").max()).max())
        return Finding(share <= within, f"largest difference of the means {share:.1%}")

    name = f"VTD and direct differ by at most {within:.0%} of the largest variance, at any time"
    return _claim(name, check, ("direct", "vtd"))


def close_to_truth(within: float = 0.1) -> Claim:
    """Both end near the true variance."""

    def check(data: xarray.Dataset) -> Finding:
        late = _late(data).sel(learner=["direct", "vtd"])
        gap = abs(late.variance.mean(_unit(data)) - late.true_variance)
        share = float((gap / late.true_variance.max()).max())
        return Finding(share <= within, f"largest deviation {share:.1%}")

    name = f"both end within {within:.0%} of the largest variance from the truth"
    return _claim(name, check, ("direct", "vtd"))


def falls_below(method: str, state: int, limit: float) -> Claim:
    """A method's mean goes below a limit at some time."""

    def check(data: xarray.Dataset) -> Finding:
        least = float(data.variance.sel(learner=method).isel(state=state).min())
        return Finding(least < limit, f"least mean {least:.2f}")

    name = f"{NAMES[method]} falls below {limit:g} in state {state}".replace("-", "−")
    return _claim(name, check, (method,))


def never_below(method: str, limit: float) -> Claim:
    """A method's mean never goes below a limit."""

    def check(data: xarray.Dataset) -> Finding:
        least = float(data.variance.sel(learner=method).min())
        return Finding(least >= limit, f"least mean {least:.3f}")

    return _claim(f"{NAMES[method]} is never below {limit:g}", check, (method,))


def _overshoot(data: xarray.Dataset, method: str) -> float:
    return float((data.variance / data.true_variance).sel(learner=method).max())


def overshoots(method: str) -> Claim:
    """A method's mean rises above the truth by a tenth or more."""

    def check(data: xarray.Dataset) -> Finding:
        peak = _overshoot(data, method)
        return Finding(peak > 1.1, f"up to {peak:.1f} times the truth")

    return _claim(f"{NAMES[method]} overshoots the truth by more than 10%", check, (method,))


def overshoots_more(more: str, less: str) -> Claim:
    """One method overshoots more than another."""

    def check(data: xarray.Dataset) -> Finding:
        a, b = _overshoot(data, more), _overshoot(data, less)
        return Finding(a > b, f"{a:.2f} against {b:.2f} times the truth")

    return _claim(f"{NAMES[more]} overshoots more than {NAMES[less]}", check, (more, less))


def more_spread(more: str, less: str, state: int, times: float) -> Claim:
    """One method's estimates vary more over runs than another's."""

    def check(data: xarray.Dataset) -> Finding:
        ratio = float(_spread(data, more)[state] / _spread(data, less)[state])
        return Finding(ratio >= times, f"{ratio:.2f} times")

    name = (
        f"std over runs of {NAMES[more]} in state {state} is at least {times:g} × {NAMES[less]}'s"
    )
    return _claim(name, check, (more, less))


def most_spread_in(method: str, state: int) -> Claim:
    """A method's estimates vary most in one state."""

    def check(data: xarray.Dataset) -> Finding:
        spread = _spread(data, method)
        return Finding(
            int(spread.argmax()) == state, "std " + ", ".join(f"{x:.3g}" for x in spread)
        )

    return _claim(f"{NAMES[method]} varies most in state {state}", check, (method,))


def spread_ratio_within(low: float, high: float) -> Claim:
    """VTD and direct vary about equally over runs."""

    def check(data: xarray.Dataset) -> Finding:
        ratio = _spread(data, "vtd") / _spread(data, "direct")
        text = f"{ratio.min():.2f} to {ratio.max():.2f}"
        return Finding(bool(low <= ratio.min() and ratio.max() <= high), text)

    name = f"std over runs of VTD is {low:g} to {high:g} times direct's in every state"
    return _claim(name, check, ("direct", "vtd"))


def steps_differ() -> Claim:
    """ADADELTA gives the second moment larger steps than the direct variance."""

    def check(data: xarray.Dataset) -> Finding:
        steps = _late(data).variance_step_size.mean(["episode", "state"])
        vtd, direct = float(steps.sel(learner="vtd")), float(steps.sel(learner="direct"))
        return Finding(vtd != direct, f"mean step {vtd:.2g} for VTD, {direct:.2g} for direct")

    return _claim("the two variance learners get step sizes of their own", check, ("direct", "vtd"))


# ---------------------------------------------------------------------- the ratio of step sizes


def errors_by_steps(data: xarray.Dataset, method: str) -> xarray.DataArray:
    """Squared error summed over states [alpha, alpha_bar]."""
    chosen = data.variance_window_mse.sum("state").isel(
        learner=np.char.startswith(data.learner.values.astype(str), method)
    )
    surface: xarray.DataArray = chosen.set_index(learner=["alpha", "alpha_bar"]).unstack("learner")
    return surface


def insensitive_to_alpha() -> Claim:
    """Direct is insensitive to the value's step size up to 0.01."""

    def check(data: xarray.Dataset) -> Finding:
        errors = errors_by_steps(data, "direct").sel(alpha=slice(0, 0.0101))
        ratio = float((errors.max("alpha") / errors.min("alpha")).max())
        return Finding(ratio < 2, f"largest to least error {ratio:.2f}")

    name = "for α ≤ 0.01 direct's error changes by less than a factor of 2, for every ᾱ"
    return _claim(name, check, ("direct",))


def rises_at_largest_alpha() -> Claim:
    """At α = 0.1 direct's error rises, by less than 10 times."""

    def check(data: xarray.Dataset) -> Finding:
        errors = errors_by_steps(data, "direct")
        rise = float((errors.sel(alpha=0.1) / errors.sel(alpha=0)).max())
        return Finding(1 < rise < 10, f"up to {rise:.1f} times")

    return _claim("at α = 0.1 direct's error rises, by less than 10 times", check, ("direct",))


def vtd_worse_but_on_the_diagonal() -> Claim:
    """VTD is worse except where the step sizes are equal."""

    def check(data: xarray.Dataset) -> Finding:
        ratio = errors_by_steps(data, "vtd") / errors_by_steps(data, "direct")
        off = [float(ratio.sel(alpha=a, alpha_bar=b)) for a in ratio.alpha.values
               for b in ratio.alpha_bar.values if not np.isclose(a, b)]  # fmt: skip
        on = [float(ratio.sel(alpha=b, alpha_bar=b)) for b in ratio.alpha_bar.values]
        text = f"VTD/direct off it {min(off):.2f} to {max(off):.0f}, "
        text += f"on it {min(on):.2f} to {max(on):.2f}"
        return Finding(min(off) > 0.99 and min(on) < 1.05 and max(on) < 1.5, text)

    name = "VTD's error is larger than direct's wherever α ≠ ᾱ, and about the same where α = ᾱ"
    return _claim(name, check, ("direct", "vtd"))


# ---------------------------------------------------------------------- errors of the value


def by_ratio(data: xarray.Dataset, values: xarray.DataArray, method: str) -> xarray.DataArray:
    """Learners of a method as [ratio, alpha_bar]."""
    labels = data.learner.values.astype(str)
    chosen = values.isel(learner=np.char.startswith(labels, method))
    ratio = [float(str(x).split("error=")[1].split(" ")[0]) for x in chosen.learner.values]
    return (
        chosen.assign_coords(ratio=("learner", ratio))
        .set_index(learner=["ratio", "alpha_bar"])
        .unstack("learner")
    )


def best_per_state(data: xarray.Dataset, method: str) -> xarray.Dataset:
    """Mean and std of the estimate [ratio, state] with the best step size for each."""
    mse = by_ratio(data, data.variance_window_mse, method)
    at = mse.argmin("alpha_bar")
    mean = by_ratio(data, data.variance_window, method).isel(alpha_bar=at)
    std = by_ratio(data, data.variance_std.mean("step"), method).isel(alpha_bar=at)
    step = mse.alpha_bar.isel(alpha_bar=at)
    return (
        mean.drop_vars("alpha_bar")
        .to_dataset(name="mean")
        .assign(std=std.drop_vars("alpha_bar"), step=(step.dims, step.values))
    )


def least_error(data: xarray.Dataset, method: str, against: str = "") -> tuple[Array, Array, Array]:
    """Ratios, least squared errors summed over states, and the step sizes of these."""
    mse = by_ratio(data, data["variance_window_mse" + against], method).sum("state")
    best = mse.argmin("alpha_bar")
    return (
        np.asarray(mse.ratio),
        np.asarray(mse.isel(alpha_bar=best)),
        np.asarray(mse.alpha_bar.isel(alpha_bar=best)),
    )


def error_biases_direct_up() -> Claim:
    """Direct's mean is above the truth in every state at the largest error."""

    def check(data: xarray.Dataset) -> Finding:
        mean = best_per_state(data, "direct")["mean"].isel(ratio=-1)
        bias = np.asarray(mean - data.true_variance.isel(learner=0))
        return Finding(bool((bias > 0).all()), "bias " + ", ".join(f"{x:+.2f}" for x in bias))

    return _claim("with the largest error direct is biased up in every state", check, ("direct",))


def error_spreads_vtd() -> Claim:
    """VTD's estimates are far more spread than direct's."""

    def check(data: xarray.Dataset) -> Finding:
        spread = [best_per_state(data, m)["std"].isel(ratio=-1) for m in ("vtd", "direct")]
        ratio = np.asarray(spread[0] / spread[1])
        text = "ratio of std " + ", ".join(f"{x:.1f}" for x in ratio)
        return Finding(float(np.median(ratio)) >= 1.5, text)

    name = "with the largest error VTD's std over runs is 1.5 × direct's or more in most states"
    return _claim(name, check, ("direct", "vtd"))


def error_drifts_vtd_down() -> Claim:
    """VTD is biased towards negative values."""

    def check(data: xarray.Dataset) -> Finding:
        found = best_per_state(data, "vtd").isel(ratio=-1)
        bias = np.asarray(found["mean"] - data.true_variance.isel(learner=0))
        below = int((found["mean"] - found["std"] < 0).sum())
        text = "bias " + ", ".join(f"{x:+.2f}" for x in bias) + f"; {below} bands reach below 0"
        return Finding(bool(bias.sum() < 0 and below >= 1), text)

    name = "with the largest error VTD is biased down over all states, its band below 0 in some"
    return _claim(name, check, ("vtd",))


def centred_wins_on_error() -> Claim:
    """The centred method's error does not grow with that of the value."""

    def check(data: xarray.Dataset) -> Finding:
        centred = least_error(data, "centred", "_frozen")[1]
        direct = least_error(data, "direct", "_frozen")[1]
        text = (
            "against the variance for the frozen value: "
            f"centred {centred[0]:.2g} → {centred[-1]:.2g}, "
            f"direct {direct[0]:.2g} → {direct[-1]:.2g}"
        )
        return Finding(bool(centred[-1] < 2 * centred[0] and centred[-1] < direct[-1] / 4), text)

    name = "centred's error does not grow with that of the value, and is the least by far"
    return _claim(name, check, ("direct", "centred"))


def direct_less_affected() -> Claim:
    """Direct's least error is below VTD's at every error of the value."""

    def check(data: xarray.Dataset) -> Finding:
        direct, vtd = least_error(data, "direct")[1], least_error(data, "vtd")[1]
        text = f"VTD/direct {', '.join(f'{x:.1f}' for x in vtd / direct)}"
        return Finding(bool((direct < vtd).all()), text)

    name = "direct's least error is below VTD's at every error of the value"
    return _claim(name, check, ("direct", "vtd"))


# ---------------------------------------------------------------------- random walk


def final_rmse(data: xarray.Dataset) -> dict[str, float]:
    """Final RMSE of each learner, mean over runs."""
    last = data.variance_rmse.isel(step=-1)
    return {str(label): float(last.sel(learner=label)) for label in data.learner.values}


def much_better_in_the_end() -> Claim:
    """Direct has a much smaller final error."""

    def check(data: xarray.Dataset) -> Finding:
        found = final_rmse(data)
        text = ", ".join(f"{NAMES[name]} {value:.1f}" for name, value in found.items())
        return Finding(2 * found["direct"] < found["vtd"], f"final RMSE: {text}")

    return _claim("direct's final RMSE is less than half of VTD's", check, ("direct", "vtd"))


def better_in_the_end_per_state() -> Claim:
    """Direct is nearer to the truth in most states."""

    def check(data: xarray.Dataset) -> Finding:
        last = data.isel(step=-1)
        gap = abs(last.variance - last.true_variance)
        share = float((gap.sel(learner="direct") < gap.sel(learner="vtd")).mean())
        return Finding(share > 0.5, f"in {share:.0%} of the states")

    name = "direct's mean estimate is nearer to the truth in most states"
    return _claim(name, check, ("direct", "vtd"))


def by_step(data: xarray.Dataset, method: str) -> tuple[Array, Array, Array, Array]:
    """ᾱ, final RMSE, its std over runs, and the number of diverged runs."""
    chosen = data.isel(
        step=-1, learner=np.char.startswith(data.learner.values.astype(str), method)
    ).sortby("alpha_bar")
    columns = ("alpha_bar", "variance_rmse", "variance_rmse_std", "diverged")
    return tuple(np.asarray(chosen[name]) for name in columns)  # type: ignore[return-value]


def less_sensitive() -> Claim:
    """Direct has a small error for more step sizes."""

    def check(data: xarray.Dataset) -> Finding:
        good, least = {}, {}
        for method in ("direct", "vtd"):
            _, rmse, _, diverged = by_step(data, method)
            usable = np.where(diverged > 0, np.inf, rmse)
            least[method] = float(usable.min())
            good[method] = usable
        limit = 2 * min(least.values())
        counts = {method: int((rmse <= limit).sum()) for method, rmse in good.items()}
        text = (
            f"RMSE at most {limit:.1f} for {counts['direct']} step sizes (direct) and "
            f"{counts['vtd']} (VTD); least {least['direct']:.1f} and {least['vtd']:.1f}"
        )
        return Finding(counts["direct"] > counts["vtd"], text)

    name = "direct comes within twice the least error for more step sizes than VTD"
    return _claim(name, check, ("direct", "vtd"))


# ---------------------------------------------------------------------- large returns


def error_by_return(data: Data, which: str, method: str) -> dict[float, float]:
    """Squared error summed over states against the mean reward."""
    return {
        float(name.rsplit("/", 1)[1]): float(found.variance_window_mse.sel(learner=method).sum())
        for name, found in data.items()
        if f"/{which}/" in name
    }


def vtd_error_grows_with_the_return() -> Claim:
    """VTD's error grows as the square of the return."""

    def check(data: Data) -> Finding:
        found = error_by_return(data, "frozen", "vtd")
        slope = math.log10(found[1e6] / found[1e3]) / 3
        text = f"{found[1e6]:.1g} at 10⁶; from 10³ to 10⁶ as c^{slope:.2f}"
        return Finding(abs(slope - 2) < 0.1, text)

    return Claim("with the value held fixed VTD's squared error grows as c²", check, ("vtd",))


def others_stay_flat() -> Claim:
    """Direct and centred are insensitive to the size of the return."""

    def check(data: Data) -> Finding:
        ratios = {}
        for method in ("direct", "centred"):
            found = list(error_by_return(data, "frozen", method).values())
            ratios[method] = max(found) / min(found)
        text = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
        return Finding(max(ratios.values()) < 1.1, f"largest to least error: {text}")

    name = "with the value held fixed direct's and centred's errors do not change with c"
    return Claim(name, check, ("direct", "centred"))


def alike_if_learned() -> Claim:
    """With equal step sizes and estimates that start at the truth, VTD and direct are similar."""

    def check(data: Data) -> Finding:
        found = {m: error_by_return(data, "learned", m) for m in ("direct", "vtd")}
        worst = max(
            max(found["vtd"][c] / found["direct"][c], found["direct"][c] / found["vtd"][c])
            for c in found["vtd"]
        )
        return Finding(worst < 1.5, f"ratio of errors up to {worst:.3f}, where c² rounds")

    return Claim("with α = ᾱ, started at the truth, VTD's error is within 1.5 × direct's", check)


# ---------------------------------------------------------------------- Table 1


def measured_row(data: xarray.Dataset) -> tuple[dict[str, float], dict[str, float]]:
    """Mean absolute changes and their standard errors, as in a row of Table 1."""
    root = math.sqrt(data.attrs["runs"])
    places: dict[str, tuple[str, str]] = {
        "value": ("value_change", "vtd"),
        "second_moment": ("second_moment_change", "vtd"),
        "vtd": ("variance_change", "vtd"),
        "direct": ("variance_change", "direct"),
    }
    row, stderr = {}, {}
    for column, (name, learner) in places.items():
        row[column] = float(data[name + "_total"].sel(learner=learner))
        spread = data[name + "_total_std"].sel(learner=learner)
        stderr[column] = float(spread) / root
    return row, stderr


def half_unit(printed: str) -> float:
    """Half a unit of the last digit of a printed figure.

    >>> half_unit("0.0110")
    5e-05
    """
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


def row_agrees(name: str, published: tuple[str, ...]) -> Claim:
    """A row of the table agrees within sampling error of 30 runs each and rounding."""

    def check(data: Data) -> Finding:
        row, stderr = measured_row(data[name])
        runs = data[name].attrs["runs"]
        worst, text = 0.0, ""
        for column, printed in zip(COLUMNS, published, strict=True):
            # the published number has the error of 30 runs, the measured one of `runs`
            error = math.sqrt(stderr[column] ** 2 * (1 + runs / 30))
            allowed = 4 * error + half_unit(printed)
            share = abs(row[column] - float(printed)) / allowed
            if share >= worst:
                worst = share
                text = f"{column.replace('_', ' ')} {row[column]:.6f}, printed {printed}"
        return Finding(worst <= 1, f"{worst:.2f} of what is allowed: {text}")

    about = "agrees within 4 standard errors of the difference and half a unit of the last digit"
    explained = (
        "ADADELTA's row is the one that nobody has matched yet; see “Reading the paper closely”."
        if name == "chain-adadelta"
        else ""
    )
    return Claim(f"{name} {about}", check, ("direct", "vtd"), explained)
