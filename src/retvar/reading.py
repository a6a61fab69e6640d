"""Read what others wrote: files, JSON, TOML and arrays, with limits and typed errors.

Only regular files are read: a device may have no end, and a pipe may have no writer. Text that is
nested too deeply, or has too long a number, is refused before it is parsed, since parsers recurse
and take a time that is quadratic in the length of a dotted key.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retvar.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "free_memory",
    "json_or_text",
    "load_array",
    "parse_json",
    "parse_toml",
    "read_bytes",
    "read_json",
    "require_file",
]

MOST = 1 << 28  # bytes of a text
SMALL = 1 << 20  # bytes of a text that only retvar writes, such as a lease
DEPTH = 100  # levels of brackets, and of the names in a dotted key
DIGITS = 300  # of a number; longer ones are beyond what a float can hold
JSON_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
TOML_STRINGS = re.compile(
    rb'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""(?:"{0,2})|'
    rb"'''[^']*(?:'(?!'')[^']*)*'''(?:'{0,2})|"
    rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'
    rb"'[^'\n]*'|#[^\n]*",
    re.DOTALL,
)
LONG_NUMBER = re.compile(rb"(?<![0-9A-Za-z_])[0-9][0-9A-Fa-fxo_]{%d}" % DIGITS)
LONG_KEY = re.compile(rb"\.{%d}" % DEPTH)  # dots: one less than names
IN_KEYS = bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123)) + b"_- \t"
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
STEPS = dict.fromkeys(b"[{", 1) | dict.fromkeys(b"]}", -1)


def require_file(path: Path, field: str = "file") -> int:
    """The size of a regular file in bytes; an InputError for anything else.

    >>> require_file(Path("/dev/null"))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: file = /dev/null: is a device or a pipe; name a file
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unreadable(field, path, error) from None
    return _regular(found, field, path)


def read_bytes(path: Path, field: str = "file", most: int = MOST) -> bytes:
    """The contents of a regular file of at most `most` bytes.

    >>> read_bytes(Path("missing.toml"))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: file = missing.toml: does not exist; check the path
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with open(handle, "rb") as file:
            size = _regular(os.fstat(handle), field, path)
            text = file.read(size) if size <= most else b""
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(field, path, error) from None
    if size > most:
        raise InputError(field, path, f"is too large: more than {most:,} bytes")
    return text


def read_json(path: Path, field: str = "file", most: int = MOST) -> Any:
    """The JSON in a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.json"
    >>> _ = path.write_text("[1, 2]")
    >>> read_json(path)
    [1, 2]
    """
    return parse_json(read_bytes(path, field, most), field, path)


def parse_json(text: str | bytes, field: str, given: object = None) -> Any:
    """The data in a JSON text; errors show `given`, by default the text.

    >>> parse_json('{"a": [1, 2]}', "option")
    {'a': [1, 2]}
    >>> parse_json("[" * 200_000, "option", "x")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: option = x: is nested deeper than 100 levels
    """
    given = text if given is None else given
    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8-sig")
        _refuse(decoded, JSON_STRINGS, field, given)
        return json.loads(decoded)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(field, given, f"is not JSON: {error}") from None


def json_or_text(text: str, field: str, given: object) -> Any:
    """The data in a JSON text; a text that is no JSON is returned as it is.

    >>> json_or_text("[1, 2]", "option", "x=[1, 2]"), json_or_text("8x8", "option", "x=8x8")
    ([1, 2], '8x8')
    """
    _refuse(text, JSON_STRINGS, field, given)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_toml(text: str | bytes, name: str, kind: Any = dict[str, Any]) -> Any:
    """The data in a TOML text, as an object of `kind`; errors begin with `name`, the file's name.

    A wrong type raises a :class:`msgspec.ValidationError`.

    >>> parse_toml("a.b = 1", "my.toml")
    {'a': {'b': 1}}
    >>> parse_toml(".".join("a" * 200_000) + " = 1", "my.toml")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: my.toml = not TOML: is nested deeper than 100 levels
    """
    import msgspec

    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8")
        _refuse(decoded, TOML_STRINGS, name, "not TOML")
        return msgspec.toml.decode(decoded, type=kind)
    except (msgspec.ValidationError, InputError):
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(name, "not TOML", str(error)) from None


def load_array(path: Path, field: str = "file") -> NDArray[Any]:
    """The array in a ``.npy`` file that is as large as its header says; no pickled objects.

    >>> load_array(Path("missing.npy"), "policy")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: policy = missing.npy: does not exist; check the path
    """
    import numpy as np

    require_file(path, field)
    try:
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # mapped: checks the size
    except Exception as error:  # a damaged header may raise anything
        raise InputError(field, path, f"cannot be read: {error}") from None


def free_memory() -> float:
    """The free memory in bytes, as far as it is known.

    >>> free_memory() > 0
    True
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = {line.split(":")[0]: line.split()[1] for line in lines}
        return 1024.0 * float(found["MemAvailable"])
    except (OSError, KeyError, IndexError, ValueError):
        return 8e9


def _refuse(text: str, strings: re.Pattern[bytes], field: str, given: object) -> None:
    """Refuse text that is too long, nested too deeply, or has a number of too many digits."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > MOST:
        raise InputError(field, given, f"is too large: more than {MOST:,} bytes")
    bare = strings.sub(b"_", raw)
    depth = max(accumulate(map(STEPS.__getitem__, bare.translate(None, NOT_BRACKETS))), default=0)
    if depth > DEPTH or LONG_KEY.search(bare.translate(None, IN_KEYS)):
        raise InputError(field, given, f"is nested deeper than {DEPTH} levels")
    if LONG_NUMBER.search(bare):
        raise InputError(field, given, f"has a number of more than {DIGITS} digits")


def _regular(found: os.stat_result, field: str, path: object) -> int:
    if stat.S_ISDIR(found.st_mode):
        raise InputError(field, path, f"cannot be read: {os.strerror(errno.EISDIR)}")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(field, path, "is a device or a pipe; name a file")
    return found.st_size


def _unreadable(field: str, path: object, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(field, path, "does not exist; check the path")
    return InputError(field, path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
