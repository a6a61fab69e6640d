"""retvar: value and variance of returns in reinforcement learning.

>>> import retvar as rv
>>> truth = rv.solve(rv.domains.complex_mdp())
>>> truth.std.round(3)
array([0.376, 1.045, 0.722, 0.487, 0.176])
"""

import ast
import importlib
from pathlib import Path

from retvar.version import __version__ as __version__

# Names are loaded on first use, so that `retvar --help` is fast; the stub says where they are.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    each.name: f"{node.module}"
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for each in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'retvar' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    if name not in vars(home):  # it is a module there
        return importlib.import_module(f"{home.__name__}.{name}")
    globals()[name] = value = vars(home)[name]
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
