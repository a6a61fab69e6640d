"""How an experience or an estimate was made, as Python and as a command line."""

from __future__ import annotations

import functools
import inspect
import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

if TYPE_CHECKING:
    from retvar.experience.stream import Experience

__all__ = ["Call", "Text", "as_text", "recorded_call", "same", "to_command", "to_python"]

P = ParamSpec("P")
SOURCES = {"from_gymnasium": "gymnasium:", "from_minari": "minari:", "from_table": ""}
COLUMNS = {"gamma": "gamma_column", "lam": "lam_column"}  # of a log: options with other names
OPTIONS = (  # settings of an estimate that the command has, too
    "gamma", "lam", "by", "method", "order", "kappa", "estimand", "features", "bootstrap_samples",
    "level", "seed", "actions", "resume", "members", "sweeps", "hidden",
)  # fmt: skip
SILENT = ("chunk",)  # arguments that change no number
LONGEST = 88  # characters of a line
FOLDER = re.compile(r"(^|:)(?:/|~|[A-Za-z]:\\)[^:]*[/\\]")  # before the name of a file, absolute


class Text(NamedTuple):
    """An argument as it stands in Python, and as an option; None where it cannot be written."""

    python: str | None
    option: str | None
    needs: str = ""  #: an import


class Call(NamedTuple):
    """A call of a function: its name, its first argument, and those that are not defaults.

    >>> call = Call.of("from_gymnasium", "Taxi-v3", {"steps": 200_000, "seed": 1})
    >>> call.python
    'rv.experience.from_gymnasium("Taxi-v3", steps=200_000, seed=1)'
    >>> call.words
    ['gymnasium:Taxi-v3', '--steps', '200000', '--seed', '1']
    """

    function: str
    source: Text
    given: dict[str, Text]
    options: dict[str, Text]  #: of an environment

    @classmethod
    def of(
        cls,
        function: str,
        source: Any,
        given: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
    ) -> Call:
        """A call with these arguments, those that are None or without effect left out."""
        known = {k: as_text(k, x) for k, x in given.items() if x is not None and k not in SILENT}
        more = {k: as_text(k, x) for k, x in (options or {}).items()}
        return cls(function, as_text("source", source), known, more)

    @property
    def python(self) -> str:
        """The call in Python; what cannot be written is named and left to the reader."""
        named = {**self.given, **self.options}
        own = [f"{name}={text.python or name}" for name, text in named.items()]
        name = "log" if self.function == "from_table" else "env"
        return f"rv.experience.{self.function}({', '.join([self.source.python or name, *own])})"

    @property
    def unknown(self) -> list[str]:
        """Names of what cannot be written in Python."""
        named = {"log" if self.function == "from_table" else "env": self.source}
        named |= {**self.given, **self.options}
        return [name for name, text in named.items() if text.python is None]

    @property
    def words(self) -> list[str] | None:
        """Source and options of ``retvar estimate``; None where they cannot be written."""
        if self.source.option is None:
            return None
        found = [SOURCES[self.function] + self.source.option]
        for name, text in self.given.items():
            if self.function == "from_table":
                name = COLUMNS.get(name, name)
            if text.option is None:
                return None
            found += _option(name, text.option)
        for name, text in self.options.items():
            if text.option is None:
                return None
            found += ["--option", f"{name}={text.option}"]
        return found


def _option(name: str, value: str) -> list[str]:
    dashed = f"--{name.replace('_', '-')}"
    if name == "deterministic":
        return [dashed if value == "true" else "--stochastic"]
    if value in ("true", "false"):
        return [dashed, "none"] if value == "false" else [dashed]
    return [dashed, value]


def as_text(name: str, value: Any) -> Text:
    """An argument as text: numbers, names, lists of them; files without absolute folders.

    >>> as_text("steps", 200_000)[:2], as_text("source", "/data/log.csv")[:2]
    (('200_000', '200000'), ('"log.csv"', 'log.csv'))
    """
    if isinstance(value, Text):
        return value
    if isinstance(value, bool):
        return Text(str(value), str(value).lower())
    if isinstance(value, int | float):
        return Text(f"{value:_}" if isinstance(value, int) else repr(value), f"{value!r}")
    if isinstance(value, str | Path):
        plain = FOLDER.sub(r"\1", str(value))
        return Text(_quoted(plain), plain)
    if isinstance(value, list | tuple) and value:
        parts = [as_text(name, each) for each in value]
        if all(part.python is not None for part in parts):
            python = f"[{', '.join(str(part.python) for part in parts)}]"
            names = [str(part.option) for part in parts]
            single = name != "source" and not any("," in each for each in names)
            return Text(python, ",".join(names) if single else None)
    return Text(None, None)


def same(value: Any, default: Any) -> bool:
    """Whether an argument is its default; arrays never are.

    >>> same("skip", "skip"), same(1, 2)
    (True, False)
    """
    return value is default or (isinstance(value, str | int | float) and value == default)


def _quoted(text: str) -> str:
    """A string in Python, in double quotes where that is all."""
    shown = repr(text)
    return json.dumps(text) if shown[1:-1] == text and '"' not in text else shown


def recorded_call(function: Callable[P, Experience]) -> Callable[P, Experience]:
    """Let the experience that a function returns know how it was made."""
    signature = inspect.signature(function)
    defaults = {name: each.default for name, each in signature.parameters.items()}

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Experience:
        made = function(*args, **kwargs)
        given = dict(signature.bind(*args, **kwargs).arguments)
        options = given.pop("options", {})
        source = given.pop(next(iter(signature.parameters)))
        own = {name: x for name, x in given.items() if not same(x, defaults[name])}
        made.recipe = Call.of(function.__name__, source, own, options)
        return made

    return called


def to_python(
    recipe: Call | None, settings: Mapping[str, Any], *, function: str, checked: bool = False
) -> str:
    """The program that makes an estimate again.

    >>> call = Call.of("from_gymnasium", "Taxi-v3", {"steps": 1_000})
    >>> print(to_python(call, {"gamma": 0.9}, function="rv.estimate"))
    import retvar as rv
    <BLANKLINE>
    experience = rv.experience.from_gymnasium("Taxi-v3", steps=1_000)
    found = rv.estimate(experience, gamma=0.9)
    found.save("estimate")
    """
    texts = {name: as_text(name, x) for name, x in settings.items()}
    unknown = [*(recipe.unknown if recipe else ["experience"])]
    unknown += [name for name, text in texts.items() if text.python is None]
    needed = {text.needs for text in (recipe.given if recipe else {}).values() if text.needs}
    lines = [*sorted(needed), "import retvar as rv", ""]
    lines += [f"# {name}: an object of your own program" for name in unknown]
    if recipe is not None:
        lines.append(_wrapped("experience = ", recipe.python))
    own = [f"{name}={text.python or name}" for name, text in texts.items()]
    lines.append(_wrapped("found = ", f"{function}({', '.join(['experience', *own])})"))
    if checked and recipe is not None:
        seed = int(recipe.given["seed"].option or 0) if "seed" in recipe.given else 0
        fresh = recipe._replace(given=recipe.given | {"seed": as_text("seed", seed + 1)})
        lines += [_wrapped("fresh = ", fresh.python), "print(rv.check(found, fresh))"]
    return "\n".join([*lines, 'found.save("estimate")'])


def _wrapped(name: str, call: str) -> str:
    """A call in one line, or with its arguments in one of their own."""
    if len(name) + len(call) <= LONGEST:
        return name + call
    head, _, rest = call.partition("(")
    return f"{name}{head}(\n    {rest[:-1]},\n)"


def to_command(
    recipe: Call | None, settings: Mapping[str, Any], *, checked: bool = False
) -> str | None:
    """The command that makes an estimate again; None where an object of a program is needed.

    >>> call = Call.of("from_gymnasium", "Taxi-v3", {"steps": 1_000})
    >>> to_command(call, {"gamma": 0.9, "estimand": "off_policy_return"})
    'retvar estimate gymnasium:Taxi-v3 --steps 1000 --gamma 0.9 --estimand off-policy-return'
    """
    words = None if recipe is None else recipe.words
    texts = {name: as_text(name, x) for name, x in settings.items()}
    said = all(name in OPTIONS and text.option is not None for name, text in texts.items())
    if words is None or recipe is None or not said:
        return None
    if recipe.function == "from_gymnasium" and "resume" not in texts:
        seeds = [str(x["seed"].option) if "seed" in x else "0" for x in (recipe.given, texts)]
        if seeds[0] != seeds[1]:  # the command has one for both
            return None
        texts.pop("seed", None)
        if not {"steps", "episodes"} & set(recipe.given):
            return None
    for name, text in texts.items():
        value = str(text.option)
        words += _option(name, value.replace("_", "-") if name == "estimand" else value)
    words += ["--check"] if checked else []
    return " ".join(["retvar estimate", *map(shlex.quote, words)])
