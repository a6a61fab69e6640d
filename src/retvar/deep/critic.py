"""A fitted critic: value and spread of the return from any observation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student

from retvar.deep.modules import ROWS, Ensemble, SpreadModule
from retvar.estimation.check import check
from retvar.estimation.rollouts import Observed, rollouts
from retvar.experience.stream import Chunk, Experience
from retvar.online.checkpoint import MALFORMED, read_tensors, write_tensors
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, number
from retvar.td.learners import Learner
from retvar.td.learners import from_dict as learner_from_dict

Array = NDArray[np.float64]
Encoder = Callable[[torch.Tensor], torch.Tensor]
KIND, FORMAT = "deep_critic", 1  # of saved files
SLACK = 0.25  # of the range of each number of the observations seen, beyond which nothing is known
ARRAYS = ("low", "high", "samples")  # of what is known about a critic
SCALES = ("centre", "width", "shift", "scale")
DETERMINISTIC = 0.5  # share of the spread that is error of the value, from which it is no spread
NOTICEABLE = 0.2  # … from which there is a word
NO_SPREAD = (
    "no spread is given: {:.0%} of what looks like it is error of the value, which transitions "
    "from nearly the same observations share: fit longer, or with larger networks; where neither "
    "policy nor world is random there is none"
)
TOO_LARGE = (
    "{:.0%} of the variance is error of the value: fit longer, larger networks, or to more data"
)
REPEATED = (
    "no spread is given: repeated roll-outs from the same states had the same return each time, so "
    "that there is none, or randomness is rare (try critic.repeat with more episodes)"
)


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
    held_out: int = 0  #: returns that it had not seen, with which it was compared
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

    def _mean(self, of: Callable[[Array], Any]) -> float:
        known = self.z[np.isfinite(self.z)]
        return float(np.mean(of(known))) if known.size else math.nan

    def within(self, stds: float = 2.0) -> float:
        """Share of the returns within so many std of the value."""
        return self._mean(lambda z: np.abs(z) <= stds)

    @property
    def ratio(self) -> float:
        """Root mean square of `z`; 1 if the std is right on the whole, more if it is too small."""
        return math.sqrt(self._mean(np.square))

    @property
    def offset(self) -> float:
        """Mean of `z`; 0 if the value is right on the whole."""
        return self._mean(np.asarray)

    def __str__(self) -> str:
        if math.isnan(self.offset):
            return "no return to compare with"
        return (
            f"{count(self.observed.size, 'return')}: {self.within(1):.0%} within ±1 std (68% if "
            f"normal), {self.within(2):.0%} within ±2 (95%); their deviations are "
            f"{number(self.ratio)} times as large as the std says, and {number(self.offset)} std "
            "off on average"
        )


class Critic:
    """Value and spread of the return from any observation; see :func:`retvar.deep.fit`.

    Observations are rows of an array, or one alone; answers are NumPy arrays, or a number. They
    are NaN where an observation lies far outside the data. The spread is that of the return, not
    ignorance of the networks: that is :meth:`interval`, from members of an ensemble which each saw
    a bootstrap sample of the episodes.

    >>> import retvar as rv
    >>> cart = rv.experience.from_gymnasium("CartPole-v1", steps=4_000, seed=1)
    >>> critic = rv.deep.fit(cart, gamma=0.9, members=2, sweeps=6, batches=40, batch_size=256)
    >>> critic
    <deep critic: direct, 4,000 transitions, uncalibrated>
    >>> critic.value([0.0, 0.0, 0.0, 0.0]) > critic.value([0.0, 0.0, 0.2, 1.0])
    True
    >>> critic.interval([[0.0, 0.0, 0.0, 0.0]], "std")[0].shape
    (1,)
    """

    by = "deep"
    intervals = "disagreement of networks"  #: what they are, as no held-out return calibrates them
    bootstrap_samples = 0

    def __init__(
        self, module: SpreadModule, learner: Learner, about: About, encoder: Encoder | None = None
    ) -> None:
        self.module = module  #: observations to value and variance, an ordinary torch module
        self.description, self.about, self.encoder = learner, about, encoder
        self.notes: dict[str, Any] = {}  #: plain data of your own, kept in saved files
        self.steps, self.rejected = about.steps, about.rejected  #: transitions
        self.has_intervals = len(module.nets["value"].weights[0]) > 1  #: several members
        low, high = (np.asarray(end, dtype=np.float64) for end in (about.low, about.high))
        bounds = (low, high) if encoder is None and bool((high > low).all()) else None
        self.features = [SimpleNamespace(states=None, range=bounds)]

    def value(self, obs: Any) -> Any:
        """Expected return."""
        return _shaped(obs, self.predict(obs, "value"))

    def variance(self, obs: Any) -> Any:
        """Variance of the return; NaN if the critic found no spread (see `warnings`)."""
        return _shaped(obs, self.predict(obs, "variance"))

    def std(self, obs: Any) -> Any:
        """Standard deviation of the return; NaN if the critic found no spread."""
        return _shaped(obs, self.predict(obs, "std"))

    def predict(self, obs: Any, what: str = "value") -> Array:
        """``"value"``, ``"variance"`` or ``"std"`` of rows of observations."""
        return self._members(obs, what)[1]

    def interval(
        self, obs: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Disagreement of networks about value, variance or std: mean ± t × std of members.

        They may agree and be wrong: it is no confidence interval, and not where returns will fall.
        """
        level, obs = arguments.level("level", level), states if obs is None else obs
        members, found = self._members(obs, what)
        if len(members) < 2:
            raise InputError("members", len(members), "intervals need 2 members: fit(members=5)")
        half = student.ppf((1 + level) / 2, len(members) - 1) * members.std(axis=0, ddof=1)
        low = found - half if what == "value" else np.maximum(found - half, 0.0)
        return _shaped(obs, low), _shaped(obs, found + half)

    def _rows(self, obs: Any) -> Array:
        """Observations as rows, encoded where there is an encoder."""
        rows = arguments.floats("obs", obs, "observations: rows of numbers, or one observation")
        rows = rows[None] if rows.ndim == 1 else rows
        width = f"{len(self.about.low)} " if self.encoder is None else ""
        if rows.ndim < 2 or (width and rows.shape[1:] != np.shape(self.about.low)):
            raise InputError("obs", f"shape {np.shape(obs)}", f"must be rows of {width}numbers")
        if not np.isfinite(rows).all():
            raise InputError("obs", "not finite", "must hold finite numbers")
        return rows if self.encoder is None else encode(self.encoder, rows)

    def _members(self, obs: Any, what: str) -> tuple[Array, Array]:
        """What each member says [member, row], and the answer, their mean."""
        arguments.choice("what", what, ("value", "variance", "std"))
        rows = self._rows(obs)
        x = torch.from_numpy(rows).to(self.module.centre.device)
        with torch.no_grad():
            parts = [self.module.members(part)[what != "value"] for part in x.split(ROWS)]
        members = torch.cat(parts, dim=1).cpu().numpy()
        low, high = np.asarray(self.about.low), np.asarray(self.about.high)
        slack = SLACK * (high - low) + 1e-6 * np.maximum(np.abs(low), np.abs(high))
        known = ((rows >= low - slack) & (rows <= high + slack)).all(axis=1)
        known &= what == "value" or not self.has_no_spread
        members, mean = (np.where(known, each, np.nan) for each in (members, members.mean(axis=0)))
        with np.errstate(invalid="ignore"):
            return (np.sqrt(members), np.sqrt(mean)) if what == "std" else (members, mean)

    @property
    def has_no_spread(self) -> bool:
        """Whether roll-outs repeat themselves, or the spread is mostly error of the value."""
        return bool(self.about.deterministic) or self._surely_error > DETERMINISTIC

    @property
    def _surely_error(self) -> float:
        """The share that is error of the value, less two of its standard errors."""
        return self.about.error_share - 2 * self.about.error_share_noise

    @property
    def warnings(self) -> list[str]:
        """What a reader of the numbers should know."""
        about, share = self.about, self.about.error_share
        found = []
        if self.has_no_spread:
            found.append(REPEATED if about.deterministic else NO_SPREAD.format(min(share, 1.0)))
        elif self._surely_error > NOTICEABLE:
            found.append(TOO_LARGE.format(share))
        if not about.complete:
            found.append(f"interrupted after {count(about.sweeps, 'sweep')}: fit longer")
        return found

    def calibration(self, fresh: Experience) -> Calibration:
        """Compare with returns of fresh experience of the same policy, on-policy."""
        data, names = check(self, fresh).data, ("predicted", "predicted_std", "observed")
        found = Calibration(*(np.asarray(data.get(name, np.zeros(0))) for name in names))
        self.about = replace(self.about, held_out=found.observed.size)
        return found

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
        seed = arguments.integer("seed", seed, 0)
        episodes = arguments.integer("episodes", episodes, 2)
        tried = np.asarray(self.about.samples)[: arguments.integer("starts", starts, 1)]
        same, gamma = [], cast(float, self.description.gamma)
        for k, x in enumerate(tried):
            try:
                sample = rollouts(
                    env, policy, gamma=gamma, start=Observed(x), seed=seed + k,
                    episodes=episodes, truncated="as_end", deterministic=deterministic, **options,
                )  # fmt: skip
            except InputError as error:
                if error.field != "start":
                    raise
                return None
            same.append(bool(np.ptp(sample.returns) <= 1e-9 * np.abs(sample.returns).max()))
        self.about = replace(self.about, deterministic=all(same) if same else None)
        return self.about.deterministic

    def __repr__(self) -> str:
        label = "" if self.about.held_out else ", uncalibrated"
        return f"<deep critic: {self.description.method}, {count(self.steps, 'transition')}{label}>"

    def save(self, path: str | Path) -> None:
        """Write it to a safetensors file, which cannot run code; an encoder is not in it."""
        state, about = self.module.state_dict(), dict(vars(self.about))
        tensors = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
        tensors |= {name: np.asarray(about.pop(name), dtype=np.float64) for name in ARRAYS}
        about["error_share"] = None if math.isnan(self.about.error_share) else about["error_share"]
        header = {
            "format": FORMAT, "kind": KIND, "learner": self.description.to_dict(),
            "nets": {name: net.positive for name, net in self.module.nets.items()},
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
            about = header["about"] | {name: tensors[name] for name in ARRAYS}
            if about["error_share"] is None:
                about["error_share"] = math.nan
            learner = learner_from_dict(header["learner"])
            found = cls(_module(header, tensors), learner, About(**about), encoder)
            encoded, found.notes = bool(header["encoded"]), dict(header["notes"])
        except (RuntimeError, *MALFORMED) as error:
            raise InputError("file", path, f"is not a file of a deep critic: {error!r}") from None
        if encoded and encoder is None:
            raise InputError("encoder", None, "this critic was fitted with one; give it again")
        return found


def _module(header: dict[str, Any], tensors: dict[str, Any]) -> SpreadModule:
    """The networks of a saved file; their shapes are those of its arrays."""
    nets = {}
    for name, positive in header["nets"].items():
        every = (f"nets.{name}.weights.{k}" for k in itertools.count())
        shapes = [tensors[each].shape for each in itertools.takewhile(tensors.__contains__, every)]
        members, width = shapes[0][:2]
        hidden = tuple(int(shape[2]) for shape in shapes[:-1])
        net = Ensemble(members, width, hidden, torch.Generator(), bool(positive))
        nets[str(name)] = net.requires_grad_(False)
    scales = {name: tensors[name] for name in SCALES}
    module = SpreadModule(nets, scales, bool(header["less_square"]))
    own = {name: torch.from_numpy(np.array(tensors[name])) for name in module.state_dict()}
    module.load_state_dict(own)
    return module


def encode(encoder: Encoder, rows: Any) -> Array:
    """What an encoder makes of rows of observations, as rows of numbers."""
    with torch.no_grad():
        found = encoder(torch.from_numpy(np.asarray(rows, dtype=np.float32))).cpu().numpy()
    if found.ndim != 2 or len(found) != len(rows) or not np.isfinite(found).all():
        shape = f"an array of shape {found.shape}"
        raise InputError("encoder", shape, "must give a row of finite numbers per observation")
    return np.asarray(found, dtype=np.float64)


def encoded(encoder: Encoder | None, chunk: Chunk) -> Chunk:
    """Transitions with what an encoder, if there is one, makes of their observations."""
    if encoder is None:
        return chunk
    return chunk | {name: encode(encoder, chunk[name]) for name in ("state", "next_state")}


def _shaped(obs: Any, found: Array) -> Any:
    """The answers, or the one for a single observation."""
    return float(found[0]) if np.ndim(obs) == 1 else found
