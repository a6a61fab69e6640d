"""A fitted critic: value and spread of the return from any observation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xarray
from numpy.typing import NDArray
from scipy.stats import t as student

from retvar import arguments
from retvar.deep.modules import Ensemble, SpreadModule
from retvar.deep.value_error import ErrorShare
from retvar.errors import InputError
from retvar.estimation.monitor import Monitor, OwnDiscounts
from retvar.estimation.results import dataset
from retvar.experience.stream import Experience
from retvar.format import count, number
from retvar.learners import Learner
from retvar.learners import from_dict as learner_from_dict
from retvar.online.checkpoint import MALFORMED, check_array, read_count, read_tensors, write_tensors

__all__ = ["Calibration", "Critic"]

Array = NDArray[np.float64]
Encoder = Callable[[torch.Tensor], torch.Tensor]
QUANTITIES = ("value", "variance", "std")
KIND, FORMAT = "deep_critic", 1  # of saved files
SLACK = 0.25  # of the range of each number of the observations seen, beyond which nothing is known
ARRAYS = ("low", "high", "samples")  # of what is known about a critic
SCALES = ("centre", "width", "shift", "scale")
DETERMINISTIC = 0.5  # share of the spread that is error of the value, from which it is no spread
NO_SPREAD = (
    "no spread is given: transitions from nearly the same observations hardly differ, and "
    "{:.0%} of what looks like spread is error of the value. A deterministic policy in a "
    "deterministic world has no spread; otherwise fit longer, or with larger networks"
)
NOTICEABLE = 0.2  # … from which there is a word
TOO_LARGE = (
    "{:.0%} of what the spread is made of is error of the value, so that it is too large: fit "
    "longer (sweeps), with larger networks (hidden), or to more data"
)
REPEATED = (
    "no spread is given: repeated roll-outs from the same states had the same return each time, so "
    "that there is none, or randomness is rare (try critic.repeat with more episodes); what the "
    "networks learned in its place is the error of the value"
)
IGNORANCE = "the spread is that of the return; how far the networks may be wrong is `interval`"


@dataclass(frozen=True)
class About:
    """What a critic was fitted to, and how."""

    source: str = ""
    policy: str = ""
    steps: int = 0  #: transitions
    episodes: int = 0
    blocks: int = 0  #: episodes, long ones in parts, that the bootstrap draws
    rejected: int = 0
    complete: bool = True  #: whether it was not interrupted
    sweeps: int = 0
    error_share: float = math.nan  #: share of the spread that is error of the value
    error_share_noise: float = 0.0  #: its standard error
    deterministic: bool | None = None  #: whether repeated roll-outs were equal; None: not tried
    low: Any = field(default=(), repr=False)  #: smallest number of observations, or of their codes
    high: Any = field(default=(), repr=False)  #: likewise the largest
    samples: Any = field(default=(), repr=False)  #: some observations


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fresh returns beside what a critic says of them.

    >>> print(Calibration(np.zeros(1_000), np.ones(1_000), np.linspace(-2, 2, 1_000)))
    1,000 returns: 50% within ±1 std (68% if normal), 100% within ±2 (95%); their deviations are
    1.16 times as large as the std says, and 0 std off on average
    """

    predicted: Array  #: value where each return began
    std: Array  #: likewise
    observed: Array  #: the returns

    @property
    def z(self) -> Array:
        """(return − value)/std."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((self.observed - self.predicted) / self.std)

    def within(self, stds: float = 2.0) -> float:
        """Share of the returns within so many std of the value."""
        known = np.isfinite(self.z)
        return float((np.abs(self.z[known]) <= stds).mean()) if known.any() else math.nan

    @property
    def ratio(self) -> float:
        """Root mean square of `z`; 1 if the std is right on the whole, more if it is too small."""
        known = self.z[np.isfinite(self.z)]
        return float(np.sqrt((known**2).mean())) if known.size else math.nan

    @property
    def offset(self) -> float:
        """Mean of `z`; 0 if the value is right on the whole."""
        known = self.z[np.isfinite(self.z)]
        return float(known.mean()) if known.size else math.nan

    def __str__(self) -> str:
        if not np.isfinite(self.z).any():
            return "no return to compare with"
        return (
            f"{count(self.observed.size, 'return')}: {self.within(1):.0%} within ±1 std (68% if "
            f"normal), {self.within(2):.0%} within ±2 (95%); their deviations are "
            f"{number(self.ratio)} times as large as the std says, and {number(self.offset)} std "
            "off on average"
        )


class Critic(OwnDiscounts):
    """Value and spread of the return from any observation; see :func:`retvar.deep.fit`.

    Observations are rows of an array, or one alone; answers are NumPy arrays, or a number. They
    are NaN where an observation lies far outside the data. The spread is that of the return, not
    ignorance of the networks: that is :meth:`interval`, from members of an ensemble which each saw
    a bootstrap sample of the episodes, and :meth:`disagreement` is how far these are apart.

    >>> import retvar as rv
    >>> cart = rv.experience.from_gymnasium("CartPole-v1", steps=4_000, seed=1)
    >>> critic = rv.deep.fit(cart, gamma=0.9, members=2, sweeps=6, batches=40, batch_size=256)
    >>> critic
    <deep critic: direct, 4,000 transitions>
    >>> critic.value([0.0, 0.0, 0.0, 0.0]) > critic.value([0.0, 0.0, 0.2, 1.0])
    True
    >>> critic.interval([[0.0, 0.0, 0.0, 0.0]], "std")[0].shape
    (1,)
    """

    by = "deep"
    bootstrap_samples = 0

    def __init__(
        self, module: SpreadModule, learner: Learner, about: About, encoder: Encoder | None = None
    ) -> None:
        self.module = module  #: observations to value and variance, an ordinary torch module
        self.description = learner
        self.about = about
        self.encoder = encoder
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files
        low, high = (np.asarray(end, dtype=np.float64) for end in (about.low, about.high))
        bounds = (low, high) if encoder is None and bool((high > low).all()) else None
        self.features = [SimpleNamespace(states=None, range=bounds)]

    # ------------------------------------------------------------------ answers

    def value(self, obs: Any) -> Any:
        """Expected return."""
        return self._ask(obs, "value")

    def variance(self, obs: Any) -> Any:
        """Variance of the return; NaN if the critic found no spread (see `warnings`)."""
        return self._ask(obs, "variance")

    def std(self, obs: Any) -> Any:
        """Standard deviation of the return; NaN if the critic found no spread."""
        return self._ask(obs, "std")

    def predict(self, obs: Any, what: str = "value") -> Array:
        """``"value"``, ``"variance"`` or ``"std"`` of rows of observations."""
        return np.asarray(self._members(self._rows(obs), what)[1])

    def interval(
        self, obs: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Lower and upper end of an interval for value, variance or std: mean ± t × disagreement.

        It says how far the networks may be wrong, given the data, not where returns will fall.
        """
        level = arguments.level("level", level)
        given = states if obs is None else obs
        members, found = self._members(self._rows(given), what)
        if len(members) < 2:
            raise InputError("members", len(members), "intervals need 2 members: fit(members=5)")
        reach = float(student.ppf((1 + level) / 2, len(members) - 1))
        half = reach * members.std(axis=0, ddof=1)
        low, high = found - half, found + half
        if what != "value":
            low = np.maximum(low, 0.0)
        one = np.ndim(given) == 1
        return (float(low[0]), float(high[0])) if one else (low, high)

    def disagreement(self, obs: Any, what: str = "value") -> Any:
        """Standard deviation over the members of the ensemble, ignorance rather than spread."""
        members, _ = self._members(self._rows(obs), what)
        found = (
            members.std(axis=0, ddof=1) if len(members) > 1 else np.full(members.shape[1], np.nan)
        )
        return float(found[0]) if np.ndim(obs) == 1 else found

    def known(self, obs: Any) -> NDArray[np.bool_]:
        """Whether observations lie within the range of the data, or near it."""
        x = self._encoded(self._rows(obs))
        low, high = np.asarray(self.about.low), np.asarray(self.about.high)
        slack = SLACK * (high - low) + 1e-6 * np.maximum(np.abs(low), np.abs(high))
        return np.asarray(((x >= low - slack) & (x <= high + slack)).all(axis=1))

    def _ask(self, obs: Any, what: str) -> Any:
        found = self.predict(obs, what)
        return float(found[0]) if np.ndim(obs) == 1 else found

    def _rows(self, obs: Any) -> Array:
        rows = arguments.floats("obs", obs, "observations: rows of numbers, or one observation")
        if rows.ndim == 1:
            rows = rows[None]
        width = len(self.about.low) if self.encoder is None else None
        if rows.ndim < 2 or (width is not None and rows.shape[1:] != (width,)):
            raise InputError("obs", f"shape {np.shape(obs)}", f"must be rows of {width} numbers")
        if not np.isfinite(rows).all():
            raise InputError("obs", "not finite", "must hold finite numbers")
        return rows

    def _encoded(self, rows: Array) -> Array:
        return rows if self.encoder is None else encode(self.encoder, rows).astype(np.float64)

    def _members(self, rows: Array, what: str) -> tuple[Array, Array]:
        """What each member says [member, row], and the answer, their mean."""
        arguments.choice("what", what, QUANTITIES)
        x = torch.from_numpy(self._encoded(rows)).to(self.module.centre.device)
        with torch.no_grad():
            parts = [self.module.members(part) for part in x.split(16_384)]
        value, variance = (
            torch.cat([part[k] for part in parts], dim=1).cpu().numpy() for k in (0, 1)
        )
        known = self.known(rows)
        if what == "value":
            return np.where(known, value, np.nan), np.where(known, value.mean(axis=0), np.nan)
        if self.has_no_spread:
            known = np.zeros_like(known)
        mean = variance.mean(axis=0)
        with np.errstate(invalid="ignore"):
            if what == "std":
                variance, mean = np.sqrt(variance), np.sqrt(mean)
        return np.where(known, variance, np.nan), np.where(known, mean, np.nan)

    # ------------------------------------------------------------------ how far to trust it

    @property
    def has_no_spread(self) -> bool:
        """Whether roll-outs repeat themselves, or the spread is mostly error of the value."""
        return bool(self.about.deterministic) or self._surely_error > DETERMINISTIC

    @property
    def _surely_error(self) -> float:
        return ErrorShare(self.about.error_share, self.about.error_share_noise).at_least

    @property
    def warnings(self) -> list[str]:
        """What a reader of the numbers should know."""
        found = []
        if self.about.deterministic:
            found.append(REPEATED)
        elif self.has_no_spread:
            found.append(NO_SPREAD.format(min(self.about.error_share, 1.0)))
        elif self._surely_error > NOTICEABLE:
            found.append(TOO_LARGE.format(self.about.error_share))
        if not self.about.complete:
            found.append(f"interrupted after {count(self.about.sweeps, 'sweep')}: fit longer")
        return found

    @property
    def remarks(self) -> list[str]:
        """What readers of intervals should know."""
        return ["values and spread by neural networks; intervals are those of an ensemble"]

    @property
    def has_intervals(self) -> bool:
        """Whether there are several members."""
        return len(self.module.nets["value"].weights[0]) > 1

    def calibration(self, fresh: Experience) -> Calibration:
        """Compare with returns of fresh experience of the same policy."""
        data = self.compare(fresh)
        if "observed" not in data:
            none = np.zeros(0)
            return Calibration(none, none, none)
        return Calibration(
            *(data[name].values for name in ("predicted", "predicted_std", "observed"))
        )

    def compare(self, fresh: Experience) -> xarray.Dataset:
        """Estimates in the most visited regions of fresh experience, beside its returns."""
        arguments.instance("fresh", fresh, Experience, "experience: rv.experience.from_…")
        monitor = Monitor()
        for chunk in fresh.chunks():
            monitor.update(self, chunk)
        return dataset(fresh, self, monitor)

    def repeat(
        self,
        env: Any,
        policy: Any = "random",
        *,
        starts: int = 8,
        episodes: int = 4,
        deterministic: bool | None = None,
        seed: int = 0,
        **options: Any,
    ) -> bool | None:
        """Roll out again and again from observations of the data: whether returns are the same.

        If they are, neither world nor policy is random, or hardly ever: from then on no spread is
        given, until a call finds a difference. None where the environment cannot be put into the
        state of an observation. The arguments are those of :func:`retvar.rollouts`.
        """
        from retvar.estimation.rollouts import observed, rollouts

        seed = arguments.integer("seed", seed, 0)
        same = []
        for k, x in enumerate(
            np.asarray(self.about.samples)[: arguments.integer("starts", starts, 1)]
        ):
            try:
                sample = rollouts(
                    env, policy, gamma=float(self.gammas[0]), start=observed(x), seed=seed + k,
                    episodes=arguments.integer("episodes", episodes, 2), truncated="as_end",
                    deterministic=deterministic, **options,
                )  # fmt: skip
            except InputError as error:
                if error.field != "start":
                    raise
                return None
            same.append(bool(np.ptp(sample.low) <= 1e-9 * np.abs(sample.low).max()))
        self.about = replace(self.about, deterministic=all(same) if same else None)
        return self.about.deterministic

    @property
    def steps(self) -> int:
        """Transitions that it was fitted to."""
        return self.about.steps

    @property
    def rejected(self) -> int:
        """Transitions that could not be used."""
        return self.about.rejected

    def __repr__(self) -> str:
        return f"<deep critic: {self.description.method}, {count(self.steps, 'transition')}>"

    def summary(self) -> str:
        """What it is, in a few lines."""
        about, d = self.about, self.description
        lines = [
            f"{about.source}, {about.policy or 'its policy'}: {count(about.steps, 'transition')}, "
            f"{count(about.episodes, 'episode')}",
            f"{d.method}, γ = {_shown(d.gamma)}, λ = {_shown(d.lam)}; {IGNORANCE}",
        ]
        if math.isfinite(about.error_share):
            share = max(about.error_share, 0.0)
            lines.append(f"error of the value: {share:.0%} of what the spread is made of")
        return "\n".join([*lines, *(f"WARNING: {each}" for each in self.warnings)])

    # ------------------------------------------------------------------ files

    def save(self, path: str | Path) -> None:
        """Write it to a safetensors file, which cannot run code; an encoder is not in it."""
        tensors = {
            name: tensor.detach().cpu().numpy() for name, tensor in self.module.state_dict().items()
        }
        nets = {name: net.positive for name, net in self.module.nets.items()}
        about = dict(vars(self.about))
        for name in ARRAYS:
            tensors[name] = np.asarray(about.pop(name), dtype=np.float64)
        if math.isnan(self.about.error_share):
            about["error_share"] = None
        header = {
            "format": FORMAT, "kind": KIND, "learner": self.description.to_dict(), "nets": nets,
            "less_square": self.module.less_square, "about": about, "notes": self.notes,
            "encoded": self.encoder is not None,
        }  # fmt: skip
        write_tensors(path, header, tensors)

    @classmethod
    def load(cls, path: str | Path, encoder: Encoder | None = None) -> Critic:
        """Read a critic that :meth:`save` wrote; it answers as the one that was saved."""
        header, tensors = read_tensors(arguments.path("path", path))
        try:
            if header["kind"] != KIND or header["format"] != FORMAT:
                raise ValueError(f"kind {header['kind']!r}, format {header['format']!r}")
            module = _module(header, tensors)
            about = _about(header["about"], tensors)
            learner = learner_from_dict(header["learner"])
            encoded, notes = bool(header["encoded"]), dict(header["notes"])
        except (RuntimeError, *MALFORMED) as error:
            raise InputError("file", path, f"is not a file of a deep critic: {error!r}") from None
        if encoded and encoder is None:
            raise InputError("encoder", None, "this critic was fitted with one; give it again")
        found = cls(module, learner, about, encoder)
        found.notes = notes
        return found


def _module(header: dict[str, Any], tensors: dict[str, Any]) -> SpreadModule:
    """The networks of a saved file; their shapes are those of its arrays."""
    if not {"value", "variance"} <= set(header["nets"]) <= {"value", "mean", "variance"}:
        raise ValueError(f"networks {list(header['nets'])}")
    nets, alike = {}, set()
    for name, positive in header["nets"].items():
        every = (f"nets.{name}.weights.{k}" for k in itertools.count())
        shapes = [tensors[each].shape for each in itertools.takewhile(tensors.__contains__, every)]
        if any(len(shape) != 3 or 0 in shape for shape in shapes):
            raise ValueError(f"networks of shapes {shapes}")  # an empty array may claim any size
        members, width = shapes[0][:2]
        hidden = tuple(int(shape[2]) for shape in shapes[:-1])
        sizes = (width, *hidden, 1)
        if shapes != [(members, *pair) for pair in itertools.pairwise(sizes)]:
            raise ValueError(f"networks of shapes {shapes}")  # before memory is allocated
        alike.add((members, width))
        net = Ensemble(members, width, hidden, torch.Generator(), bool(positive))
        nets[str(name)] = net.requires_grad_(False)
    module = SpreadModule(
        nets, {name: tensors[name] for name in SCALES}, bool(header["less_square"])
    )
    scales = [tensors[name].shape for name in SCALES]
    if len(alike) != 1 or scales != [(width,), (width,), (1,), (1,)]:
        raise ValueError(f"networks of {alike} members and inputs, scales of shapes {scales}")
    own = module.state_dict()
    for name, wanted in own.items():
        given = tensors[name]
        check_array(name, given, tuple(wanted.shape), wanted.numpy().dtype)
        if not np.isfinite(given).all():
            raise ValueError(f"{name} is not finite")
    if not ((tensors["width"] > 0).all() and tensors["scale"] > 0):
        raise ValueError("a scale that is not positive")
    module.load_state_dict({name: torch.from_numpy(np.array(tensors[name])) for name in own})
    return module


def _about(saved: dict[str, Any], tensors: dict[str, Any]) -> About:
    """What a saved file says about its critic, each with its type."""
    width = tensors["centre"].shape
    arrays = {name: tensors[name] for name in ARRAYS}
    if not (arrays["low"].shape == arrays["high"].shape == width) or arrays["samples"].ndim != 2:
        raise ValueError("bounds of another width")
    if not all(np.isfinite(each).all() for each in arrays.values()):
        raise ValueError("bounds that are not finite")
    kinds = {name: type(default) for name, default in vars(About()).items() if name not in ARRAYS}
    kinds |= {name: read_count for name, kind in kinds.items() if kind is int}  # type: ignore[misc]
    kinds["deterministic"] = lambda x: None if x is None else bool(x)  # type: ignore[assignment]
    kinds["error_share"] = lambda x: math.nan if x is None else float(x)  # type: ignore[assignment]
    return About(**{name: kind(saved[name]) for name, kind in kinds.items()}, **arrays)


def encode(encoder: Encoder, rows: Any) -> NDArray[np.float32]:
    """What an encoder makes of rows of observations, as rows of numbers."""
    with torch.no_grad():
        found = encoder(torch.from_numpy(np.asarray(rows, dtype=np.float32)))
    found = found.detach().cpu().numpy()
    if found.ndim != 2 or len(found) != len(rows) or not np.isfinite(found).all():
        shape = f"an array of shape {found.shape}"
        raise InputError("encoder", shape, "must give a row of finite numbers per observation")
    return np.asarray(found, dtype=np.float32)


def _shown(given: Any) -> str:
    return "in the data" if given is None else f"{given:g}"
