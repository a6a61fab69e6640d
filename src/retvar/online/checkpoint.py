"""Checkpoints: safetensors with a JSON header. They hold numbers only, and cannot run code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from retvar.errors import InputError
from retvar.features import Active, Features, States, Table, Vector
from retvar.files import write_with
from retvar.online import kernel
from retvar.online.estimator import Online

__all__ = ["restore", "save"]

FORMAT = 1
KINDS = {"states": States, "vector": Vector, "active": Active}
NODES = ("value", "mean", "variance")


def save(estimator: Online, path: Any) -> None:
    """Write the whole state of an estimator."""
    m = estimator._memory
    tensors = {"cells": m.cells, "traces": m.traces, "report": m.report}
    features: dict[str, Any] = {}
    for name, kind in zip(NODES, estimator.features, strict=True):
        features[name] = _describe(kind, name, estimator.features, tensors)
    header = {
        "format": FORMAT,
        "learner": estimator.description.to_dict(),
        "features": features,
        "steps": estimator.steps,
        "rejected": estimator.rejected,
    }
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    metadata = {"retvar": json.dumps(header)}
    write_with(Path(path), lambda temporary: save_file(tensors, temporary, metadata))


def restore(path: Any, learner_of: Any) -> Online:
    """Read an estimator back; `learner_of` makes a description from its part of the header."""
    header, tensors = _read(Path(path))
    try:
        if header["format"] != FORMAT:
            raise InputError("format", header["format"], f"this version reads up to {FORMAT}")
        features = _features(header["features"], tensors)
        estimator = Online(learner_of(header["learner"]), features)
        _adopt(estimator, tensors)
        estimator.steps = _count(header["steps"])
        estimator.rejected = _count(header["rejected"])
    except InputError as error:
        raise InputError(f"{path}: {error.field}", error.value, error.remedy) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError("file", path, f"is not a checkpoint of retvar: {error!r}") from None
    return estimator


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata["retvar"])
    except FileNotFoundError:
        raise InputError("file", path, "does not exist") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError("file", path, f"is not a checkpoint of retvar: {error}") from None
    if not isinstance(header, dict):
        raise InputError("file", path, "is not a checkpoint of retvar: its header is no table")
    return header, tensors


def _describe(
    kind: Features, name: str, all_kinds: list[Features], tensors: dict[str, Any]
) -> dict[str, Any]:
    for other, earlier in zip(NODES, all_kinds, strict=True):
        if earlier is kind and other != name and other < name:
            return {"same": other}
        if other == name:
            break
    if isinstance(kind, Table):
        rows = kind.rows()
        tensors[f"{name}.indptr"], tensors[f"{name}.indices"] = rows.indptr, rows.indices
        tensors[f"{name}.values"] = rows.values
        return {"kind": "table", "states": kind.states, "size": kind.size}
    label = next(label for label, kind_class in KINDS.items() if isinstance(kind, kind_class))
    return {"kind": label, "size": kind.size}


def _features(described: dict[str, Any], tensors: dict[str, Any]) -> list[Features]:
    import scipy.sparse

    found: dict[str, Features] = {}
    for name in NODES:
        what = described[name]
        if "same" in what:
            found[name] = found[what["same"]]
        elif what["kind"] == "table":
            parts = (tensors[f"{name}.{part}"] for part in ("values", "indices", "indptr"))
            shape = (_count(what["states"]), _count(what["size"]))
            table = scipy.sparse.csr_array(tuple(parts), shape=shape)
            table.check_format(full_check=True)
            found[name] = Table(table)
        else:
            found[name] = KINDS[what["kind"]](_count(what["size"]))
    return list(found.values())


def _adopt(estimator: Online, tensors: dict[str, Any]) -> None:
    m = estimator._memory
    cells, traces, report = tensors["cells"], tensors["traces"], tensors["report"]
    for name, array, shape in (
        ("cells", cells, m.cells.shape),
        ("traces", traces, (traces.shape[0], m.traces.shape[1])),
        ("report", report, m.report.shape),
    ):
        if array.dtype != np.float64:
            raise InputError(name, array.dtype, "must be float64: float32 loses the squared errors")
        if array.shape != shape or array.shape[0] == 0:
            raise InputError(name, f"an array of shape {array.shape}", f"must have shape {shape}")
        if not np.isfinite(array).all():
            raise InputError(name, "not finite", "must hold finite numbers only")
    if np.abs(cells[:, kernel.WEIGHT]).max() > kernel.LIMIT:
        raise InputError("cells", "too large", f"weights must stay below {kernel.LIMIT:g}")
    m.cells[:] = cells
    m.report[:] = report
    m.adopt(traces)
    estimator._attach()


def _count(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise InputError("header", given, "must be a whole number of at least 0")
    return given
