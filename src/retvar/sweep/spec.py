"""What a sweep is: domains × learners × runs, as frozen objects or in TOML."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from retvar.domains import random_mdp
from retvar.errors import InputError
from retvar.mdp.toml import read_bytes, told
from retvar.simulation import Record
from retvar.step_sizes import Adadelta, AlphaBound, Averaged, Constant, Decay, StepSize

__all__ = ["Cut", "Domain", "Learners", "Points", "Range", "Sweep"]

MOST_VALUES = 100_000  # that one setting may span
RULES: dict[str, type[StepSize]] = {
    kind.__name__.lower(): kind for kind in (Constant, Decay, Averaged, Adadelta, AlphaBound)
}
RANDOM = tuple(name for name in inspect.signature(random_mdp).parameters if name != "seed")


class _Plain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, compared by value, and refused where a name is unknown."""


class Range(_Plain, frozen=True):
    """Values from one end to the other, evenly spaced or growing by equal factors.

    >>> Range(log=(0.001, 1.0), count=4).values("alpha")
    [0.001, 0.01, 0.1, 1.0]
    >>> Range(linear=(0.0, 1.0), count=5).values("lam")
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    count: int
    linear: tuple[float, float] | None = None
    log: tuple[float, float] | None = None

    def values(self, field: str) -> list[float]:
        """All of them; `field` is what an error names."""
        if (self.linear is None) == (self.log is None):
            given = "neither" if self.linear is None else "both"
            raise InputError(field, given, "give one of linear and log")
        ends = self.linear or self.log
        assert ends is not None
        low, high = ends
        if not 1 <= self.count <= MOST_VALUES:
            remedy = f"the range is empty or too long; must lie in [1, {MOST_VALUES:,}]"
            raise InputError(f"{field}.count", self.count, remedy)
        if not (math.isfinite(low) and math.isfinite(high)) or low > high:
            raise InputError(field, list(ends), "must go from a number up to a greater one")
        if self.log is not None and low <= 0:
            raise InputError(f"{field}.log", list(ends), "must lie above 0")
        if self.log is None:
            return [float(x) for x in np.linspace(low, high, self.count)]
        grown = np.geomspace(low, high, self.count)
        return [float(f"{x:.12g}") for x in grown]  # 0.01 rather than 0.010000000000000002


Number = float | str | list[float] | Range  # a string names another setting
Step = Any  # the same, or a rule, or a list of numbers and rules
Choice = str | list[str]


def steps_of(field: str, given: Any) -> list[float | StepSize]:
    """All step sizes that are meant: numbers, and rules with every combination of theirs.

    >>> steps_of("alpha", [0.1, {"rule": "decay", "power": [0.6, 0.8]}])
    [0.1, Decay(alpha=1.0, power=0.6), Decay(alpha=1.0, power=0.8)]
    """
    if isinstance(given, list):
        parts = [_step(f"{field}[{i}]", x, listed=True) for i, x in enumerate(given)]
        return [x for part in parts for x in part]
    return _step(field, given)


def _step(field: str, given: Any, *, listed: bool = False) -> list[float | StepSize]:
    if isinstance(given, Mapping) and "rule" in given:
        return _rules(field, given)
    if isinstance(given, Mapping) and not listed:
        return list(_converted(field, given, Range).values(field))
    if isinstance(given, bool) or not isinstance(given, int | float):
        remedy = "must be a number, a list, a range, a rule or the name of another setting"
        raise InputError(field, _short(given), remedy)
    return [float(given)]


def _rules(field: str, given: Mapping[str, Any]) -> list[float | StepSize]:
    """The rules of a table such as ``{ rule = "decay", power = [0.6, 0.8] }``."""
    kind = RULES.get(str(given["rule"]).lower())
    if kind is None:
        raise InputError(f"{field}.rule", _short(given["rule"]), nearest(str(given["rule"]), RULES))
    known = [setting.name for setting in dataclasses.fields(kind)]
    spans: dict[str, list[float]] = {}
    for name, x in given.items():
        where = f"{field}.{name}"
        if name == "rule":
            continue
        if name not in known:
            raise InputError(where, _short(x), nearest(str(name), known))
        numbers = _converted(where, x, float | list[float] | Range)
        numbers = numbers.values(where) if isinstance(numbers, Range) else numbers
        spans[name] = numbers if isinstance(numbers, list) else [numbers]
        if not spans[name]:
            raise InputError(where, "[]", "is empty; must hold at least one value")
    try:
        found = [
            kind(**dict(zip(spans, values, strict=True)))
            for values in itertools.product(*spans.values())
        ]
    except (InputError, TypeError) as error:
        if not isinstance(error, InputError):
            raise InputError(field, _short(given), f"must have {', '.join(known)}") from None
        raise InputError(f"{field}.{error.field}", error.value, error.remedy) from None
    return [rule.alpha if isinstance(rule, Constant) else rule for rule in found]


def _converted(field: str, given: Any, kind: Any) -> Any:
    """Plain data as something else; errors name the path of the field."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        below, problem = told(error)
        where = f"{field}{'.' * (below[:1] not in ('', '['))}{below}"
        raise InputError(where, _at(given, below) if below else _short(given),
                         _decapitalised(problem)) from None  # fmt: skip


def _plain_step(given: Any) -> Any:
    """A step size as plain data: rules are tables."""
    if isinstance(given, list | tuple):
        return [_plain_step(x) for x in given]
    if isinstance(given, StepSize):
        return {"rule": type(given).__name__.lower(), **dataclasses.asdict(given)}
    return given


class Learners(_Plain, frozen=True):
    """Learners of some methods with every combination of their settings.

    A list or a :class:`Range` spans a setting; the name of another setting makes it equal to that.
    Step sizes may be rules (:class:`~retvar.step_sizes.Decay`, …; in TOML
    ``{ rule = "decay", power = [0.6, 0.8] }``).

    >>> some = Learners(method=["direct", "vtd"], alpha=[0.01, 0.1], alpha_bar="alpha")
    >>> len(Sweep(runs=1, steps=1, domains=[Domain(id="chain")], learners=[some]).plan().learners)
    4
    """

    method: Choice
    alpha: Step
    alpha_bar: Step = None
    gamma: Number | None = None
    lam: Number | None = None
    kappa: Number | None = None
    kappa_bar: Number | None = None
    value: Number | None = None
    initial_variance: Number | None = None
    alpha_mean: Step = None
    kappa_mean: Number | None = None
    initial_mean: Number | None = None
    estimand: Choice | None = None
    learn_value: bool | list[bool] | None = None

    def __post_init__(self) -> None:
        for name in STEPS:
            msgspec.structs.force_setattr(self, name, _plain_step(getattr(self, name)))


STEPS = ("alpha", "alpha_bar", "alpha_mean")


class Seeds(_Plain, frozen=True):
    """Seeds of random MDPs, one after the other."""

    count: int
    first: int = 0


class Domain(_Plain, frozen=True):
    """A built-in domain or Gymnasium table (`id`), an MDP in a file, or random MDPs by seed.

    >>> Domain(random={"states": 20, "actions": 3, "branching": 4}, seeds=[1, 2, 3]).kind
    'random'
    """

    id: str | None = None
    file: str | None = None
    random: dict[str, Any] | None = None
    seeds: Seeds | list[int] | None = None
    gamma: float | None = None
    options: dict[str, Any] | None = None
    target: str | None = None
    behaviour: str | None = None
    name: str | None = None
    text: str | None = None  #: what the file holds, so that workers need not find it

    @property
    def kind(self) -> str:
        """Which of the sorts it is."""
        if self.id is not None:
            return "gymnasium" if self.id.startswith("gymnasium:") else "built-in"
        return "random" if self.random is not None else "file"


class Points(_Plain, frozen=True):
    """When errors are recorded: ``"log"``, every so many moments, or a list of moments.

    >>> Points(at="log", points=4).record().moments(1_000)
    array([   1,   10,  100, 1000])
    """

    at: str | int | list[int] = "log"
    points: int | None = None

    def record(self) -> Record:
        """What ``simulate`` is asked for."""
        if self.points is not None and self.at not in ("log", "linear"):
            raise InputError("record.points", self.points, 'goes with at = "log" or "linear"')
        if isinstance(self.at, str):
            if self.at not in ("log", "linear"):
                raise InputError(
                    "record.at", self.at, 'must be "log", "linear", a number or a list'
                )
            count = POINTS if self.points is None else self.points
            return Record(points=count, log=self.at == "log", states=[0], rmse=True)
        if isinstance(self.at, int):
            return Record(every=self.at, states=[0], rmse=True)
        return Record(at=self.at, states=[0], rmse=True)


POINTS = 20


class Cut(_Plain, frozen=True):
    """The most learners and runs that one cell has; the same on every machine.

    >>> Cut().learners
    128
    """

    learners: int = 128
    runs: int = 30


class Sweep(_Plain, frozen=True):
    """Learners on domains, so many runs of each: everything that the results depend on.

    Parameters
    ----------
    domains, learners
        What is crossed with what: :class:`Domain` and :class:`Learners`.
    runs, seed
        Runs of each learner on each domain, and the seed; all learners see the same streams.
    steps, episodes
        How long a run is: give one of the two.
    record
        When errors are recorded: :class:`Points`; default: 20 moments, growing by equal factors.
    cell
        How the work is cut: :class:`Cut`. It changes no number.

    Examples
    --------
    >>> sweep = Sweep(
    ...     name="small", runs=40, steps=1_000,
    ...     domains=[Domain(id="chain"), Domain(random={"states": 5}, seeds=[1, 2])],
    ...     learners=[Learners(method=["direct", "vtd"], alpha=Range(log=(0.01, 1), count=3))],
    ... )
    >>> sweep.plan()
    <Sweep small: 3 domains × 6 learners × 40 runs of 1,000 steps, 6 cells>
    """

    runs: int
    domains: list[Domain]
    learners: list[Learners]
    name: str = "sweep"
    seed: int = 0
    steps: int | None = None
    episodes: int | None = None
    record: Points = Points()
    cell: Cut = Cut()

    @classmethod
    def from_toml(cls, path: str | Path) -> Sweep:
        """Read a specification; files that it names are looked for beside it.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "my.toml"
        >>> _ = path.write_text('''
        ... runs = 3
        ... steps = 100
        ... domains = [{ id = "complex-mdp" }]
        ... learners = [{ method = "direct", alpha = { log = [0.1, 1], count = 2 } }]
        ... ''')
        >>> Sweep.from_toml(path).name
        'my'
        """
        path = Path(path)
        raw = read_bytes(path)
        try:
            plain = msgspec.toml.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(path.name, "not TOML", str(error)) from None
        return cls.from_dict({"name": path.stem, **plain}, path.parent)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], folder: Path | None = None) -> Sweep:
        """The same from plain data; errors name the path of the field."""
        _refuse_unknown(plain)
        try:
            found = msgspec.convert(dict(plain), cls)
        except msgspec.ValidationError as error:
            field, problem = told(error)
            raise InputError(field or "sweep", _at(plain, field), _decapitalised(problem)) from None
        _check(found)
        texts = [_with_text(i, d, folder or Path()) for i, d in enumerate(found.domains)]
        return msgspec.structs.replace(found, domains=texts)

    def plain(self) -> dict[str, Any]:
        """Plain data from which an equal sweep can be made; settings left out are left out."""
        raw = msgspec.to_builtins(self, enc_hook=_builtin)
        return {name: _without_none(given) for name, given in raw.items() if given is not None}

    def plan(self) -> Any:
        """Everything spelled out, checked, and cut into cells (:class:`Plan`)."""
        from retvar.sweep.cells import Plan

        return Plan.of(Sweep.from_dict(self.plain()))


def _builtin(given: Any) -> Any:
    if isinstance(given, np.generic | np.ndarray):
        return given.tolist()
    raise InputError("sweep", repr(given), "must be plain data: numbers, words and lists of them")


def _without_none(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _without_none(x) for name, x in given.items() if x is not None}
    return [_without_none(x) for x in given] if isinstance(given, list) else given


def _with_text(number: int, domain: Domain, folder: Path) -> Domain:
    """Read the file of a domain once and for all."""
    if domain.file is None or domain.text is not None:
        return domain
    try:
        text = read_bytes(folder / domain.file).decode("utf-8")
    except InputError as error:
        raise InputError(f"domains[{number}].file", error.value, error.remedy) from None
    except UnicodeDecodeError as error:
        raise InputError(f"domains[{number}].file", domain.file, f"is not text: {error}") from None
    return msgspec.structs.replace(domain, file=Path(domain.file).name, text=text)


# ---------------------------------------------------------------------- what is wrong, and where


def nearest(name: str, known: Iterable[str]) -> str:
    """What is said of an unknown name.

    >>> nearest("alfa", ["alpha", "lam"])
    'unknown; did you mean alpha? There are alpha, lam'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown; {hint}There are {', '.join(names)}"


def _refuse_unknown(plain: Any, field: str = "", kind: Any = None) -> None:
    """Refuse a name that a table does not have, with the one that was probably meant."""
    kind = Sweep if kind is None else kind
    if not isinstance(plain, Mapping):
        return
    known = [name for name in kind.__struct_fields__ if name != "text" or "text" in plain]
    inner = {"domains": Domain, "learners": Learners, "record": Points, "cell": Cut}
    for name, given in plain.items():
        where = f"{field}.{name}" if field else str(name)
        if name not in known:
            raise InputError(where, _short(given), nearest(str(name), known))
        if kind is Sweep and name in inner:
            tables = given if isinstance(given, list) else [given]
            for i, table in enumerate(tables):
                below = f"{where}[{i}]" if isinstance(given, list) else where
                _refuse_unknown(table, below, inner[name])
        elif isinstance(given, Mapping) and kind is Learners and "rule" not in given:
            _refuse_unknown(given, where, Range)
        elif isinstance(given, Mapping) and name == "random":
            for option in given:
                if option not in RANDOM:
                    raise InputError(
                        f"{where}.{option}", _short(given[option]), nearest(str(option), RANDOM)
                    )


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _at(plain: Any, field: str) -> str:
    """What stands at a path such as ``learners[1].alpha``."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        try:
            plain = plain[name] if name else plain[int(number)]
        except (KeyError, IndexError, TypeError):
            return "malformed"
    return _short(plain) if field else "malformed"


def _decapitalised(problem: str) -> str:
    return problem[:1].lower() + problem[1:].replace("`", "")


def _check(sweep: Sweep) -> None:
    """Whatever can be told without making a domain or a learner."""
    if not sweep.name.strip():
        raise InputError("name", repr(sweep.name), "must not be empty")
    _whole("runs", sweep.runs, 1)
    if not 0 <= sweep.seed < 2**64:
        raise InputError("seed", sweep.seed, "must be a whole number from 0 to 2⁶⁴ − 1")
    if (sweep.steps is None) == (sweep.episodes is None):
        given = "neither" if sweep.steps is None else "both"
        raise InputError("steps, episodes", given, "give one of the two")
    length = ("steps", sweep.steps) if sweep.steps is not None else ("episodes", sweep.episodes)
    _whole(length[0], length[1] or 0, 1)
    _whole("cell.learners", sweep.cell.learners, 1)
    _whole("cell.runs", sweep.cell.runs, 1)
    sweep.record.record().moments(length[1] or 0)
    for field in ("domains", "learners"):
        if not getattr(sweep, field):
            raise InputError(field, "[]", "must hold at least one")
    for i, domain in enumerate(sweep.domains):
        _check_domain(f"domains[{i}]", domain)


def _check_domain(field: str, domain: Domain) -> None:
    kinds = [name for name in ("id", "file", "random") if getattr(domain, name) is not None]
    if len(kinds) != 1:
        raise InputError(field, " and ".join(kinds) or "none", "give one of id, file and random")
    if domain.seeds is not None and domain.random is None:
        raise InputError(f"{field}.seeds", "given", "goes with random")
    if domain.options is not None and domain.id is None:
        raise InputError(f"{field}.options", "given", "goes with id")
    if isinstance(domain.seeds, Seeds):
        _whole(f"{field}.seeds.count", domain.seeds.count, 1)
        _whole(f"{field}.seeds.first", domain.seeds.first, 0)
    elif domain.seeds is not None:
        if not domain.seeds:
            raise InputError(f"{field}.seeds", "[]", "must hold at least one")
        for i, seed in enumerate(domain.seeds):
            _whole(f"{field}.seeds[{i}]", seed, 0)
    if domain.random is not None and "states" not in domain.random:
        raise InputError(f"{field}.random.states", "nothing", "give how many states there are")


def _whole(field: str, given: int, least: int) -> None:
    if not least <= given <= 10**15:
        raise InputError(field, given, f"must be a whole number from {least} to 10¹⁵")
