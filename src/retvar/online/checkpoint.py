"""Checkpoints of online estimators: safetensors files with a JSON header, which cannot run code.

A file has named arrays for each node of the network (``value.weights``), whatever the layout in
memory, and a digest of its contents, so that damage is detected:

    NODE.weights    [weight]             what predictions are made of
    NODE.learning   [weight]             with Averaged what learns; the weights are its mean
    NODE.steps      [weight, 2]          the state of the step-size rule
    NODE.traces     [stream, weight]
    NODE.discounts  [stream]             of the last transition
    NODE.report     [2]                  TD error and step size of the last transition
    NODE.scales     [stream]             with a lazy trace: s …
    NODE.sums       [stream]             … and A, of the streams whose updates are deferred
    NODE.NAME                            what else a node keeps, by its name in ``KEPT``

With bootstrap replicates ``weights``, ``learning`` and ``sums`` have a last axis of lanes, the
estimator first, and ``draws`` holds the key and the number of their random multipliers.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from retvar.online.estimator import OnlineEstimator
from retvar.online.memory import Memory
from retvar.support.errors import InputError
from retvar.support.files import require_file, write_with
from retvar.td.features import Features, Table
from retvar.td.features import from_dict as from_description
from retvar.td.learners import from_dict
from retvar.td.networks import PLACES, network_of
from retvar.td.nodes import KEPT
from retvar.td.step_sizes import averages

FORMAT = 4
NAMED = {  # of ``KEPT``: what is saved under another name, and what need not be saved
    "w", "held", "first", "second", "taken", "used", "E", "live", "visits", "rates", "fresh",
    "sums", "scales", "now", "after", "own", "error", "last", "lost", "coins",
}  # fmt: skip
PARTS = ("indptr", "indices", "values")
MALFORMED = (
    AttributeError, LookupError, MemoryError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip  # exceptions that a malformed file may cause


def save(estimator: OnlineEstimator, path: Any) -> None:
    """Write the complete state of an estimator."""
    m = estimator._memory
    tensors: dict[str, Any] = {"draws": m.draws} if m.lanes > 1 else {}
    for k, node in enumerate(m.network.nodes):
        tensors |= {f"{node.name}.{part}": array for part, array in _node_arrays(m, k).items()}
    header = {
        "format": FORMAT,
        "learner": estimator.description.to_dict(),
        "features": _described(estimator.features, tensors),
        "steps": estimator.steps,
        "rejected": estimator.rejected,
        "notes": estimator.notes,
    }
    write_tensors(path, header, tensors)


def _node_arrays(m: Memory, k: int) -> dict[str, Any]:
    """The arrays of a node, by their names in the file; views, but for steps and report."""
    b, size = m.block[k], m.nodes[k].initial.size
    lanes: Any = slice(m.lanes) if m.lanes > 1 else 0
    traced = b.E is not None
    found: dict[str, Any] = {
        "weights": b.w[:size, lanes],
        "steps": m.rule_state(k),
        "traces": b.E[:, :size] if traced else np.zeros((m.streams, size)),
        "discounts": b.last if traced else np.zeros(m.streams),
        "report": np.array([b.error[0], b.used[0, 0]]),
    }
    if averages(m.nodes[k].kind):
        found["learning"] = (b.w if b.held is None else b.held)[:size, lanes]
    if b.sums is not None:
        found |= {"scales": b.scales, "sums": b.sums[:, lanes]}
    rest = {name: getattr(b, name) for name in KEPT if name not in NAMED}
    return found | {name: array for name, array in rest.items() if array is not None}


def write_tensors(path: Any, header: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Write a safetensors file with a JSON header and a digest of both."""
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    try:
        header = {**header, "digest": _digest(header, tensors)}
        metadata = {"retvar": json.dumps(header)}  # one entry, because their order is not preserved
        contents = to_bytes(tensors, metadata)  # save_file would leave temporary files of its own
        write_with(Path(path), lambda temporary: temporary.write_bytes(contents))
    except (SafetensorError, TypeError) as error:
        raise InputError("path", path, f"cannot be written: {error}") from None


def restore(path: Any) -> OnlineEstimator:
    """Read an estimator that ``save`` wrote; it continues exactly where it was."""
    header, tensors = read_tensors(Path(path))
    try:
        if header["format"] != FORMAT:
            raise InputError("format", header["format"], f"this version reads {FORMAT}")
        learner = from_dict(header["learner"])
        network = network_of(learner)
        features = _features(header["features"], tensors, network.place_count)
        lanes = tensors[f"{network.nodes[0].name}.weights"].shape[-1]
        replicates = lanes - 1 if "draws" in tensors else 0
        estimator = OnlineEstimator(learner, features, replicates)
        _restore_arrays(estimator, tensors)
        estimator._memory.counts[:] = header["steps"], header["rejected"]
        estimator.notes = dict(header.get("notes", {}))
    except InputError as error:
        raise InputError(f"{path}: {error.field}", error.value, error.remedy) from None
    except MALFORMED as error:
        raise InputError("file", path, f"is not a checkpoint of retvar: {error!r}") from None
    return estimator


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; a damaged file raises an InputError."""
    require_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header: dict[str, Any] = json.loads(metadata["retvar"])
        if header.pop("digest") != _digest(header, tensors):
            raise ValueError("it is damaged, its digest does not match")
    except (SafetensorError, OSError, *MALFORMED) as error:
        raise InputError("file", path, f"is not a checkpoint of retvar: {error}") from None
    return header, tensors


def _digest(header: dict[str, Any], tensors: dict[str, Any]) -> str:
    """SHA-256 of the header and of every tensor with its name, type and shape."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # no copy
    return digest.hexdigest()


def _described(kinds: list[Features], tensors: dict[str, Any]) -> dict[str, Any]:
    """Features by place as JSON data; the rows of tables become tensors."""
    found: dict[str, Any] = {}
    for k, (name, kind) in enumerate(zip(PLACES, kinds, strict=False)):
        first = next(i for i, other in enumerate(kinds) if other is kind)
        if first < k:
            found[name] = {"same": PLACES[first]}
        elif isinstance(kind, Table):
            rows = zip(PARTS, kind.rows(), strict=True)
            tensors |= {f"features.{name}.{part}": array for part, array in rows}
            found[name] = {"kind": "table", "states": kind.states, "size": kind.size}
        else:
            found[name] = kind.to_dict()
    return found


def _features(described: Any, tensors: dict[str, Any], places: int) -> list[Features]:
    found: dict[str, Features] = {}
    for name in PLACES[:places]:
        what = described[name]
        if "same" in what:
            found[name] = found[what["same"]]
        elif what["kind"] == "table":
            indptr, indices, values = (tensors[f"features.{name}.{part}"] for part in PARTS)
            shape = what["states"], what["size"]
            found[name] = Table(scipy.sparse.csr_array((values, indices, indptr), shape=shape))
        else:
            found[name] = from_description(what)
    return list(found.values())


def _restore_arrays(estimator: OnlineEstimator, tensors: dict[str, Any]) -> None:
    m = estimator._memory
    if m.lanes > 1:
        m.draws[:] = tensors["draws"]
    m.grow(tensors[f"{m.network.nodes[0].name}.traces"].shape[0])
    for k, node in enumerate(m.network.nodes):
        for part, array in _node_arrays(m, k).items():
            array[...] = tensors[f"{node.name}.{part}"]
        m.set_rule_state(k, tensors[f"{node.name}.steps"])
        m.block[k].error[0], m.block[k].used[0, 0] = tensors[f"{node.name}.report"]
    m.list_traces()
    estimator._attach()
