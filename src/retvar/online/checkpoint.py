"""Checkpoints of online estimators: safetensors files with a JSON header, which cannot run code.

A file has named arrays for each node of the network (``value.weights``), whatever the layout in
memory, and a digest of its contents, so that damage is detected. Every number is checked:

    NODE.weights    [weight]             what predictions are made of
    NODE.learning   [weight]             with Averaged what learns; the weights are its mean
    NODE.steps      [weight, 2]          the state of the step-size rule
    NODE.traces     [stream, weight]
    NODE.discounts  [stream]             of the last transition
    NODE.report     [2]                  TD error and step size of the last transition
    NODE.scales     [stream]             with a lazy trace: s …
    NODE.sums       [stream]             … and A, of the streams whose updates are deferred

With bootstrap replicates ``weights``, ``learning`` and ``sums`` have a last axis of lanes, the
estimator first, and ``draws`` holds the key and the number of their random multipliers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from retvar import arguments
from retvar.errors import InputError
from retvar.features import Features, Table, from_dict
from retvar.files import write_with
from retvar.networks import PLACES, Node, network_of
from retvar.online import lazy_traces, memory_layout
from retvar.online.bootstrap import add_bootstrap_samples
from retvar.online.estimator import OnlineEstimator
from retvar.online.memory import Memory
from retvar.reading import parse_json, require_file

__all__ = [
    "MALFORMED", "check_array", "read_count", "read_tensors", "refusing", "restore", "save",
    "write_tensors",
]  # fmt: skip

FORMAT = 4
PARTS = ("indptr", "indices", "values")
MALFORMED = (
    AttributeError, LookupError, MemoryError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip  # exceptions that a malformed file may cause
MOST = 2**63  # limit of the counters


def save(estimator: OnlineEstimator, path: Any) -> None:
    """Write the complete state of an estimator."""
    m = estimator._memory
    tensors: dict[str, Any] = {} if m.draws is None else {"draws": m.draws}
    for node in network_of(estimator.description).nodes:
        tensors |= {f"{node.name}.{part}": array for part, array in _node_arrays(m, node).items()}
    features: dict[str, Any] = {}
    for name, kind in zip(PLACES, estimator.features, strict=False):
        features[name] = _describe(kind, name, estimator.features, tensors)
    header = {
        "format": FORMAT,
        "learner": estimator.description.to_dict(),
        "features": features,
        "steps": estimator.steps,
        "rejected": estimator.rejected,
        "notes": estimator.notes,
    }
    write_tensors(path, header, tensors)


def _node_arrays(m: Memory, node: Node) -> dict[str, Any]:
    """The arrays of a node, by their names in the file; views, where they may be."""
    own, place, slots = m.part(node.place), node.place, memory_layout.DEFERRED_STREAMS + 1
    lanes: Any = slice(None) if m.coins is not None else 0
    found: dict[str, Any] = {
        "weights": m.w[own, lanes],
        "steps": m.steps[own, : memory_layout.STEP],
        "traces": m.traces[:, own],
        "discounts": m.traces[:, m.steps.shape[0] + place],
        "report": m.report[place :: memory_layout.LEARNER],
    }
    if m.averages(place):
        found["learning"] = m.held[own, lanes]
    if m.scales is not None and m.sums is not None and m.is_lazy(place):
        found |= {"scales": m.scales[:slots, place], "sums": m.sums[:slots, place, lanes]}
    return found


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


def restore(path: Any, make_learner: Any) -> OnlineEstimator:
    """Read an estimator; `make_learner` makes the description from its part of the header."""
    header, tensors = read_tensors(Path(path))
    with refusing(path, "a checkpoint of retvar"):
        if header["format"] != FORMAT:
            raise InputError("format", header["format"], f"this version reads {FORMAT}")
        learner = make_learner(header["learner"])
        network = network_of(learner)
        features = _features(header["features"], tensors, network.place_count)
        for node in network.nodes:  # before memory is allocated
            _check_size(features, node, tensors[f"{node.name}.weights"])
        estimator = OnlineEstimator(learner, features)
        _restore_arrays(estimator, tensors)
        estimator.steps = read_count(header["steps"])
        estimator.rejected = read_count(header["rejected"])
        estimator.notes = dict(header.get("notes", {}))
    return estimator


@contextmanager
def refusing(path: Any, what: str) -> Iterator[None]:
    """Where the contents of a file make no sense, raise an InputError that names the file.

    >>> with refusing("a.safetensors", "a checkpoint"):
    ...     {}["steps"]
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: file = a.safetensors: is not a checkpoint: KeyError('steps')
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error.field}", error.value, error.remedy) from None
    except MALFORMED as error:
        raise InputError("file", path, f"is not {what}: {error!r}") from None


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; a damaged file raises an InputError."""
    require_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = parse_json(metadata["retvar"], "header", "damaged")
        if header.pop("digest") != _digest(header, tensors):
            raise ValueError("it is damaged, its digest does not match")
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
    for other, earlier in zip(PLACES, all_kinds, strict=False):
        if other == name:
            break
        if earlier is kind:
            return {"same": other}
    if isinstance(kind, Table):
        rows = kind.rows()
        for part, array in zip(PARTS, rows, strict=True):
            tensors[f"features.{name}.{part}"] = array
        return {"kind": "table", "states": kind.states, "size": kind.size}
    return kind.to_dict()


def _features(described: Any, tensors: dict[str, Any], places: int) -> list[Features]:
    found: dict[str, Features] = {}
    for name in PLACES[:places]:
        what = described[name]
        if "same" in what:
            found[name] = found[what["same"]]
        elif what["kind"] == "table":
            found[name] = _table(
                name, read_count(what["states"]), read_count(what["size"]), tensors
            )
        else:
            found[name] = from_dict(what)
    return list(found.values())


def _table(name: str, states: int, size: int, tensors: dict[str, Any]) -> Table:
    """Return a table; its parts are validated, because compiled code does not check them."""
    indptr, indices, values = (tensors[f"features.{name}.{part}"] for part in PARTS)
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


def _check_size(features: list[Features], node: Node, weights: Any) -> None:
    """Refuse features of inconsistent sizes before memory is allocated."""
    states = {kind.states for kind in features}
    if len(states) > 1:
        raise InputError("features", states, "value, mean and variance need the same states")
    size = features[node.place].size
    if weights.ndim not in (1, 2) or weights.shape[0] != size:
        shape = f"an array of shape {weights.shape}"
        raise InputError(f"{node.name}.weights", shape, f"must have {size} rows")


def _restore_arrays(estimator: OnlineEstimator, tensors: dict[str, Any]) -> None:
    m, nodes = estimator._memory, network_of(estimator.description).nodes
    if m.floats.dtype != np.float64:
        raise InputError("learner", m.floats.dtype, "its settings must be numbers")
    if "draws" in tensors:
        add_bootstrap_samples(m, tensors[f"{nodes[0].name}.weights"].shape[-1] - 1)
        check_array("draws", tensors["draws"], m.draws.shape, m.draws.dtype)  # type: ignore[union-attr]
        m.draws[:] = tensors["draws"]  # type: ignore[index]
    streams = tensors[f"{nodes[0].name}.traces"].shape[0]
    if streams == 0:
        raise InputError("traces", "no streams", "must have at least one")
    m.grow(streams)
    for node in nodes:
        for part, array in _node_arrays(m, node).items():
            name = f"{node.name}.{part}"
            check_array(name, tensors[name], array.shape, array.dtype)
            _check_numbers(name, part, tensors[name])
            array[...] = tensors[name]
    m.adopt(m.traces.copy())
    lazy_traces.fill_steps(m.plan, m.settings, m.steps)
    estimator._attach()


def check_array(name: str, given: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Refuse an array of another type or shape; compiled code does not check.

    >>> check_array("part", np.zeros(2), (3,), np.float64)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: part = an array of shape (2,): must have shape (3,)
    """
    if given.dtype != dtype:
        why = f"must be {np.dtype(dtype)}"
        why += ": float32 loses the squared errors" if dtype == np.float64 else ""
        raise InputError(name, given.dtype, why)
    if given.shape != shape:
        raise InputError(name, f"an array of shape {given.shape}", f"must have shape {shape}")


def _check_numbers(name: str, part: str, given: Any) -> None:
    """Refuse numbers that learning cannot lead to; those of replicates may have diverged."""
    if part == "report":  # errors may be infinite after divergence
        return
    own = given[..., 0] if part in ("weights", "learning", "sums") and given.ndim == 2 else given
    if not np.isfinite(own).all():
        raise InputError(name, "not finite", "must hold finite numbers only")
    if part in ("weights", "learning", "sums") and np.abs(own).max() > memory_layout.LIMIT:
        raise InputError(name, "too large", f"must stay below {memory_layout.LIMIT:g}")
    if part in ("steps", "discounts") and own.min() < 0:
        raise InputError(name, "negative", "must be at least 0")
    if part == "scales" and not (
        memory_layout.SMALL <= own.min() <= own.max() <= memory_layout.LARGE
    ):
        limits = f"{memory_layout.SMALL:g} to {memory_layout.LARGE:g}"
        raise InputError(name, "out of range", f"must lie between {limits}")


def read_count(given: Any) -> int:
    """A number of a header that counts something.

    >>> read_count(3)
    3
    """
    return arguments.integer("header", given, 0, MOST - 1)
