"""The specification of a sweep: domains × learners × runs, as frozen objects or in TOML."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from retvar import arguments
from retvar.arguments import integer
from retvar.domains import random_mdp
from retvar.errors import InputError
from retvar.format import literal
from retvar.reading import parse_toml, read_bytes
from retvar.simulation import Record
from retvar.sweep.convert import Table, abbreviate, convert, suggest
from retvar.sweep.grids import Choice, Number, Range, Step, to_toml

if TYPE_CHECKING:
    from retvar.sweep.plan import Plan

__all__ = ["CellSize", "Domain", "Learners", "Points", "Sweep"]

MAX_DOMAINS = 1_000_000  # of one table
MAX_INTEGER = 10**15
RANDOM = tuple(name for name in inspect.signature(random_mdp).parameters if name != "seed")


class Learners(Table, frozen=True):
    """Learners of some methods with every combination of their settings.

    A setting is a number, a list, a :class:`Range`, or the name of another setting it equals.
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
    order: int | list[int] | None = None

    def __post_init__(self) -> None:
        for name in STEPS:
            msgspec.structs.force_setattr(self, name, to_toml(getattr(self, name)))


STEPS = ("alpha", "alpha_bar", "alpha_mean")


class Seeds(Table, frozen=True):
    """Consecutive seeds of random MDPs."""

    count: int
    first: int = 0


class Domain(Table, frozen=True):
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
    text: str | None = None  #: contents of the file, so that workers need not read it

    @property
    def kind(self) -> str:
        """``built-in``, ``gymnasium``, ``random`` or ``file``."""
        if self.id is not None:
            return "gymnasium" if self.id.startswith("gymnasium:") else "built-in"
        return "random" if self.random is not None else "file"


class Points(Table, frozen=True):
    """When errors are recorded: ``"log"`` or ``"linear"`` spacing, an interval, or a list.

    >>> Points(at="log", points=4).record().moments(1_000)
    array([   1,   10,  100, 1000])
    """

    at: str | int | list[int] = "log"
    points: int | None = None

    def record(self) -> Record:
        """The ``record`` argument of ``simulate``."""
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
            every = integer("record.at", self.at, 1, MAX_INTEGER)
            return Record(every=every, states=[0], rmse=True)
        return Record(at=self.at, states=[0], rmse=True)

    def moments(self, total: int) -> Any:
        """The steps or episodes at which a run of length `total` is recorded."""
        if isinstance(self.at, int) and self.at > total:
            raise InputError("record.at", self.at, f"is beyond the end; must be at most {total:,}")
        return self.record().moments(total)


POINTS = 20
NUMBERS_AND_TEXTS = "must be numbers, texts and lists of them"


class CellSize(Table, frozen=True):
    """The largest number of learners and runs of a cell.

    >>> CellSize().learners
    128
    """

    learners: int = 128
    runs: int = 30


class Sweep(Table, frozen=True):
    """All learners on all domains, with several runs of each.

    Parameters
    ----------
    domains, learners
        Lists of :class:`Domain` and :class:`Learners`; every learner runs on every domain.
    runs, seed
        Runs of each learner on each domain, and the seed. On a domain all learners see the same
        streams; each domain has its own.
    steps, episodes
        Length of a run: give one of the two.
    record
        When errors are recorded: :class:`Points`; default: 20 moments with logarithmic spacing.
    cell
        Size of the cells: :class:`CellSize`. It changes no number.

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
    cell: CellSize = CellSize()

    @classmethod
    def from_toml(cls, path: str | Path) -> Sweep:
        """Read a specification; paths in it are relative to its folder.

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
        path = arguments.path("path", path)
        data = parse_toml(read_bytes(path), path.name)
        name = path.stem.encode(errors="backslashreplace").decode()
        return cls.from_dict({"name": name, **data}, path.parent)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], folder: Path | None = None) -> Sweep:
        """A sweep from the tables of a specification; errors name the path of the field."""
        arguments.instance("data", data, Mapping, "a mapping, as the tables of a specification")
        folder = Path() if folder is None else arguments.path("folder", folder)
        _refuse_unknown(data)
        found: Sweep = convert(dict(data), cls)
        _check(found)
        texts = [_with_text(i, d, folder) for i, d in enumerate(found.domains)]
        return msgspec.structs.replace(found, domains=texts)

    def to_dict(self) -> dict[str, Any]:
        """Data for :meth:`from_dict`; settings that are None are left out."""
        try:
            found: dict[str, Any] = _without_none(msgspec.to_builtins(self, enc_hook=_builtin))
        except RecursionError:
            raise InputError("sweep", "nested too deeply", NUMBERS_AND_TEXTS) from None
        return found

    def plan(self) -> Plan:
        """Expand and check the sweep, and divide it into cells."""
        from retvar.sweep.plan import Plan

        return Plan.from_sweep(Sweep.from_dict(self.to_dict()))


def _builtin(given: Any) -> Any:
    if arguments.is_integer(given):
        return int(given)
    if arguments.is_real(given):
        return arguments.number("sweep", given)
    if isinstance(given, np.generic | np.ndarray):
        found = given.tolist()
        if not isinstance(found, np.generic):  # longer than Python's types
            return found
    raise InputError("sweep", literal(given), NUMBERS_AND_TEXTS)


def _without_none(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _without_none(x) for name, x in given.items() if x is not None}
    return [_without_none(x) for x in given] if isinstance(given, list) else given


def _with_text(number: int, domain: Domain, folder: Path) -> Domain:
    """The domain with the text of its file."""
    if domain.file is None or domain.text is not None:
        return domain
    try:
        text = read_bytes(folder / domain.file).decode("utf-8")
    except InputError as error:
        raise InputError(f"domains[{number}].file", error.value, error.remedy) from None
    except UnicodeDecodeError as error:
        raise InputError(f"domains[{number}].file", domain.file, f"is not text: {error}") from None
    return msgspec.structs.replace(domain, file=Path(domain.file).name, text=text)


# ---------------------------------------------------------------------- checks


def _refuse_unknown(data: Any, field: str = "", kind: Any = None) -> None:
    """Raise if a table has an unknown name, and suggest a similar one."""
    kind = Sweep if kind is None else kind
    if not isinstance(data, Mapping):
        return
    known = [name for name in kind.__struct_fields__ if name != "text" or "file" in data]
    inner = {"domains": Domain, "learners": Learners, "record": Points, "cell": CellSize}
    for name, given in data.items():
        where = f"{field}.{name}" if field else str(name)
        if name not in known:
            raise InputError(where, abbreviate(given), suggest(str(name), known))
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
                        f"{where}.{option}", abbreviate(given[option]), suggest(str(option), RANDOM)
                    )


def _check_texts(field: str, given: Any) -> None:
    """Raise if a text in data of any depth cannot be written."""
    if isinstance(given, str):
        arguments.text(field, given)
    elif isinstance(given, Mapping):
        for name, each in given.items():
            _check_texts(arguments.text(field, name), each)
    elif isinstance(given, list | tuple):
        for each in given:
            _check_texts(field, each)


def _check(sweep: Sweep) -> None:
    """Check what can be checked without building domains and learners."""
    _check_texts("sweep", sweep.to_dict())
    if not sweep.name.strip():
        raise InputError("name", literal(sweep.name), "must not be empty")
    integer("runs", sweep.runs, 1, MAX_INTEGER)
    integer("seed", sweep.seed, 0, 2**64 - 1)
    if (sweep.steps is None) == (sweep.episodes is None):
        given = "neither" if sweep.steps is None else "both"
        raise InputError("steps, episodes", given, "give one of the two")
    length = ("steps", sweep.steps) if sweep.steps is not None else ("episodes", sweep.episodes)
    integer(*length, 1, MAX_INTEGER)
    integer("cell.learners", sweep.cell.learners, 1, MAX_INTEGER)
    integer("cell.runs", sweep.cell.runs, 1, MAX_INTEGER)
    sweep.record.moments(length[1] or 0)
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
    if domain.name is not None and not domain.name.strip():
        raise InputError(f"{field}.name", literal(domain.name), "must not be empty; leave it out")
    if domain.options is not None and domain.id is None:
        raise InputError(f"{field}.options", "given", "goes with id")
    if isinstance(domain.seeds, Seeds):
        integer(f"{field}.seeds.count", domain.seeds.count, 1, MAX_DOMAINS)
        integer(f"{field}.seeds.first", domain.seeds.first, 0, MAX_INTEGER)
    elif domain.seeds is not None:
        if not domain.seeds:
            raise InputError(f"{field}.seeds", "[]", "must hold at least one")
        for i, seed in enumerate(domain.seeds):
            integer(f"{field}.seeds[{i}]", seed, 0, MAX_INTEGER)
    if domain.random is not None and "states" not in domain.random:
        raise InputError(f"{field}.random.states", "nothing", "give how many states there are")
