"""Checkpoints of online estimators: safetensors files with a JSON header, which cannot run code.

Since format 2 a file has a digest of its contents, so that damage is detected. Format 1 has none
and is still read; every number is checked. Format 3 adds bootstrap replicates and notes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from retvar import arguments
from retvar.errors import InputError
from retvar.features import Features, Table, from_dict
from retvar.files import write_with
from retvar.online import lazy_traces, memory_layout
from retvar.online.bootstrap import BootstrapSamples
from retvar.online.estimator import OnlineEstimator
from retvar.step_sizes import AVERAGED

__all__ = ["read_tensors", "restore", "save", "write_tensors"]

FORMAT = 3
NODES = ("value", "mean", "variance")
PARTS = ("indptr", "indices", "values")
MALFORMED = (
    AttributeError, LookupError, MemoryError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip  # exceptions that a malformed file may cause
MOST = 2**63  # limit of the counters


def save(estimator: OnlineEstimator, path: Any) -> None:
    """Write the complete state of an estimator."""
    m = estimator._memory
    tensors = {"cells": m.cells.copy(), "traces": m.traces, "report": m.report}
    tensors["cells"][:, memory_layout.NEW] = 0.0  # follows from the rest
    if m.scales is not None:
        tensors["scales"] = m.scales
    features: dict[str, Any] = {}
    for name, kind in zip(NODES, estimator.features, strict=True):
        features[name] = _describe(kind, name, estimator.features, tensors)
    if estimator._bootstrap is not None:
        tensors |= estimator._bootstrap.tensors()
    header = {
        "format": FORMAT,
        "learner": estimator.description.to_dict(),
        "features": features,
        "steps": estimator.steps,
        "rejected": estimator.rejected,
        "notes": estimator.notes,
    }
    write_tensors(path, header, tensors)


def write_tensors(path: Any, header: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Write a safetensors file with a JSON header and a digest of both."""
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    try:
        header = {**header, "digest": _digest(header, tensors)}
        metadata = {"retvar": json.dumps(header)}  # one entry, because their order is not preserved
        write_with(Path(path), lambda temporary: save_file(tensors, temporary, metadata))
    except (SafetensorError, TypeError) as error:
        raise InputError("path", path, f"cannot be written: {error}") from None


def restore(path: Any, make_learner: Any) -> OnlineEstimator:
    """Read an estimator; `make_learner` makes the description from its part of the header."""
    header, tensors = read_tensors(Path(path))
    try:
        if header["format"] not in range(1, FORMAT + 1):
            raise InputError("format", header["format"], f"this version reads up to {FORMAT}")
        features = _features(header["features"], tensors)
        _check_sizes(features, tensors["cells"])
        estimator = OnlineEstimator(make_learner(header["learner"]), features)
        _restore_arrays(estimator, tensors)
        estimator.steps = _count(header["steps"])
        estimator.rejected = _count(header["rejected"])
        estimator.notes = dict(header.get("notes", {}))
    except InputError as error:
        raise InputError(f"{path}: {error.field}", error.value, error.remedy) from None
    except MALFORMED as error:
        raise InputError("file", path, f"is not a checkpoint of retvar: {error!r}") from None
    return estimator


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; a damaged file raises an InputError."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(metadata["retvar"])
        first = isinstance(header, dict) and header.get("format") == 1 and "kind" not in header
        if not first and header.pop("digest") != _digest(header, tensors):
            raise ValueError("it is damaged, its digest does not match")
    except FileNotFoundError:
        raise InputError("file", path, "does not exist") from None
    except (SafetensorError, OSError, *MALFORMED) as error:
        raise InputError("file", path, f"is not a checkpoint of retvar: {error}") from None
    if not isinstance(header, dict):
        raise InputError("file", path, "is not a checkpoint of retvar: its header is no mapping")
    return header, tensors


def _digest(header: dict[str, Any], tensors: dict[str, Any]) -> str:
    """SHA-256 of the header and of every tensor with its name, type and shape."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # no copy
    return digest.hexdigest()


def _describe(
    kind: Features, name: str, all_kinds: list[Features], tensors: dict[str, Any]
) -> dict[str, Any]:
    for other, earlier in zip(NODES, all_kinds, strict=True):
        if other == name:
            break
        if earlier is kind:
            return {"same": other}
    if isinstance(kind, Table):
        rows = kind.rows()
        tensors[f"{name}.indptr"], tensors[f"{name}.indices"] = rows.indptr, rows.indices
        tensors[f"{name}.values"] = rows.values
        return {"kind": "table", "states": kind.states, "size": kind.size}
    return kind.to_dict()


def _features(described: dict[str, Any], tensors: dict[str, Any]) -> list[Features]:
    found: dict[str, Features] = {}
    for name in NODES:
        what = described[name]
        if "same" in what:
            found[name] = found[what["same"]]
        elif what["kind"] == "table":
            found[name] = _table(name, _count(what["states"]), _count(what["size"]), tensors)
        else:
            found[name] = from_dict(what)
    return list(found.values())


def _table(name: str, states: int, size: int, tensors: dict[str, Any]) -> Table:
    """Return a table; its parts are validated, because compiled code does not check them."""
    indptr, indices, values = (tensors[f"{name}.{part}"] for part in PARTS)
    for array, dtype in ((indptr, np.int64), (indices, np.int64), (values, np.float64)):
        if array.dtype != dtype or array.ndim != 1:
            kind = f"{array.ndim} dimensions of {array.dtype}"
            raise InputError(f"{name} features", kind, f"must have one of {np.dtype(dtype)}")
    sound = (
        indptr.size == states + 1
        and indices.size == values.size
        and indptr[0] == 0
        and indptr[-1] == indices.size
        and bool((indptr[1:] >= indptr[:-1]).all())
        and indices.min(initial=0) >= 0
        and indices.max(initial=0) < size
    )
    if not sound:
        raise InputError(f"{name} features", "damaged", "must be rows of a sparse table")
    return Table(scipy.sparse.csr_array((values, indices, indptr), shape=(states, size), copy=True))


def _check_sizes(features: list[Features], cells: Any) -> None:
    """Refuse features of inconsistent sizes before memory is allocated."""
    states = {kind.states for kind in features}
    if len(states) > 1:
        raise InputError("features", states, "value, mean and variance need the same states")
    size = sum(kind.size for kind in features)
    if cells.shape != (size, 4):
        shape = f"an array of shape {cells.shape}"
        raise InputError("cells", shape, f"must have shape {(size, 4)}")


def _restore_arrays(estimator: OnlineEstimator, tensors: dict[str, Any]) -> None:
    m = estimator._memory
    if m.floats.dtype != np.float64:
        raise InputError("learner", m.floats.dtype, "its settings must be numbers")
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
        if (
            array is not report and not np.isfinite(array).all()
        ):  # errors may be infinite after divergence
            raise InputError(name, "not finite", "must hold finite numbers only")
    if np.abs(cells[:, memory_layout.WEIGHT]).max() > memory_layout.LIMIT:
        raise InputError("cells", "too large", f"weights must stay below {memory_layout.LIMIT:g}")
    of_steps = cells[:, memory_layout.FIRST : memory_layout.SECOND + 1].copy()
    for node in range(3):
        if m.plan[node, memory_layout.KIND] == AVERAGED:  # the second number is a weight
            own = m.part(node)
            if np.abs(of_steps[own, 1]).max() > memory_layout.LIMIT:
                raise InputError(
                    "cells", "too large", f"weights must stay below {memory_layout.LIMIT:g}"
                )
            of_steps[own, 1] = 0.0
    if of_steps.min() < 0:
        raise InputError("cells", "negative", "the state of a step size must be at least 0")
    if cells[:, memory_layout.NEW].any():  # the update uses it as scratch
        raise InputError("cells", "not zero", "the last column must be 0")
    total = m.cells.shape[0]
    if traces[:, total:].min() < 0:
        raise InputError("traces", "negative", "discounts must be at least 0")
    m.cells[:] = cells
    m.report[:] = report
    m.adopt(traces)
    if m.scales is not None:
        lazy_traces.fill_steps(m.plan, m.settings, m.cells)
        if "scales" in tensors:  # missing in files without lazy traces
            m.scales[:] = _checked_scales(tensors["scales"], m.scales.shape)
    if "copies" in tensors:
        estimator._bootstrap = BootstrapSamples.restored(m, tensors)
    estimator._attach()


def _checked_scales(given: Any, shape: tuple[int, ...]) -> Any:
    """Validate the scales and sums of lazy traces."""
    if given.dtype != np.float64 or given.shape != shape:
        found = f"{given.dtype} of shape {given.shape}"
        raise InputError("scales", found, f"must be float64 of shape {shape}")
    scale, total = given[..., memory_layout.SCALE], given[..., memory_layout.SUM]
    if not ((scale >= memory_layout.SMALL) & (scale <= memory_layout.LARGE)).all():
        limits = f"{memory_layout.SMALL:g} to {memory_layout.LARGE:g}"
        raise InputError("scales", "out of range", f"must lie between {limits}")
    if not (np.abs(total) <= memory_layout.LIMIT).all():
        raise InputError("scales", "too large", f"sums must stay below {memory_layout.LIMIT:g}")
    return given


def _count(given: Any) -> int:
    return arguments.integer("header", given, 0, MOST - 1)
