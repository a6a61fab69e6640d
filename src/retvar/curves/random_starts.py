"""Initial weights as points with weights that have the right moments up to degree 5.

Initial values that differ from run to run are functions of independent uniform and normal numbers.
Of these D numbers, scaled to variance 1, the moments up to degree 5 are met by the points 0, ±eᵢ,
±2eᵢ and ±eᵢ ± eⱼ with weights that may be negative; tables with a row for each run are points as
they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.learner_setup import Template
from retvar.errors import InputError
from retvar.initial_values import PerRun

__all__ = ["start_points"]

Array = NDArray[np.float64]
KURTOSIS = {"uniform": 9 / 5, "normal": 3.0}  # fourth moment of the number with variance 1
MOST_NUMBERS = 200  # random numbers that initial values depend on


def start_points(template: Template) -> tuple[list[Array], Array]:
    """Initial weights [point, weight] of the three nodes, and the weight of each point."""
    wanted: dict[tuple[int, str], int] = {}
    tables = {name: x for name, x in template.initial.items() if isinstance(x, PerRun)}

    def ask(key: tuple[int, str], size: int, count: int) -> Array:
        wanted[key] = size
        return np.zeros((count, size))

    draws: Any = _Draws(ask)
    template.weights(range(1), draws)
    numbers, weights = _cubature(
        np.concatenate([np.full(size, KURTOSIS[what]) for (_, what), size in wanted.items()])
        if wanted
        else np.zeros(0)
    )
    rows = _rows(tables)
    columns = dict(zip(wanted, np.split(numbers, np.cumsum([*wanted.values()])[:-1], 1)))  # noqa: B905

    def answer(key: tuple[int, str], size: int, count: int) -> Array:
        found = np.tile(columns[key], (rows, 1))
        return (found / np.sqrt(3) + 1) / 2 if key[1] == "uniform" else found

    repeated: dict[str, Any] = {
        name: PerRun(np.repeat(np.asarray(x.values), weights.size, axis=0))
        for name, x in tables.items()
    }
    points = dataclasses.replace(template, initial={**template.initial, **repeated})
    count, draws = rows * weights.size, _Draws(answer)
    return points.weights(range(count), draws), np.tile(weights, rows) / rows


class _Draws:
    """Stands in for the random numbers of :class:`retvar.engine.learner_setup.InitialDraws`."""

    def __init__(self, numbers: Callable[[tuple[int, str], int, int], Array]) -> None:
        self.numbers = numbers

    def of(self, number: int) -> Any:
        """Return the drawing function of setting `number`."""
        return lambda what, runs, size: self.numbers((number, what), size, len(runs))


def _rows(tables: dict[str, PerRun]) -> int:
    sizes = {name: np.shape(x.values)[0] for name, x in tables.items()}
    if len(set(sizes.values())) > 1:
        raise InputError("value", f"{sizes} runs", "tables of initial values need equal lengths")
    return next(iter(sizes.values()), 1)


def _cubature(kurtosis: Array) -> tuple[Array, Array]:
    """Points [point, number] and weights for independent symmetric numbers of variance 1."""
    D = kurtosis.size
    if D > MOST_NUMBERS:
        remedy = f"must depend on at most {MOST_NUMBERS} random numbers; use simulate"
        raise InputError("value", f"{D} random numbers", remedy)
    far = (kurtosis - 1) / 24
    near = (2 - D - 8 * far) / 2
    unit = np.eye(D)
    pairs = [
        a * unit[i] + b * unit[j]
        for i, j in combinations(range(D), 2)
        for a, b in product((1, -1), repeat=2)
    ]
    axes = [scale * unit for scale in (1, -1, 2, -2)]
    points = np.concatenate([np.zeros((1, D)), *axes, np.array(pairs).reshape(len(pairs), D)])
    weights = np.concatenate([near, near, far, far, np.full(len(pairs), 0.25)])
    return points, np.concatenate([[1 - weights.sum()], weights])
