"""Whether there is a GPU to compute on, and kernels without contraction.

A GPU fuses a·b + c into one rounding unless told not to, and then its bits are not the CPU's.
Versions of numba-cuda in ``VERSIONS`` are known to keep contraction off; others are refused.
With NUMBA_ENABLE_CUDASIM=1 and NUMBA_DISABLE_JIT=1, numba's simulator runs the same kernels.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from retvar.support.errors import InputError
from retvar.support.format import literal
from retvar.td.nodes import FEW

DEVICES = ("cpu", "cuda", "auto")
VERSIONS = ((0, 30), (0, 31))  # numba-cuda from the first on, before the second
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
ALIGNED = 256  # bytes at which an array on the GPU begins
BREAK_EVEN = 5_000  # learners × runs from which "auto" takes a GPU
INSTALL = "pip install 'retvar[cuda12]' or 'retvar[cuda13]'"
_lock = threading.RLock()


@functools.cache
def missing() -> str | None:
    """What is missing for computing on a GPU; None: nothing.

    >>> missing() is None or isinstance(missing(), str)
    True
    """
    if SIMULATED:
        return None
    try:
        found = importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        return f"numba-cuda is not installed; {INSTALL}"
    low, high = (".".join(map(str, version)) for version in VERSIONS)
    if not VERSIONS[0] <= tuple(map(int, re.findall(r"\d+", found)[:2])) < VERSIONS[1]:
        return f"numba-cuda is {found}; must be at least {low} and below {high}; {INSTALL}"
    try:
        if not load().is_available():
            return "no NVIDIA GPU or driver was found; use device='cpu'"
    except Exception as error:  # a driver may fail in any way
        return f"the NVIDIA driver does not answer ({type(error).__name__}); use device='cpu'"
    return None


def load() -> Any:
    """Import numba.cuda; it looks for a name that NumPy 2.5 no longer has."""
    if not hasattr(np, "row_stack"):
        vars(np)["row_stack"] = np.vstack
    from numba import config, cuda

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small simulations have small grids, which users know
    return cuda


def chosen_device(device: object, work: int, weights: int = 0) -> str:
    """The device of a simulation: "cpu" or "cuda"; `work` is learners × runs.

    `weights`: the most of a node, in simulations with features or traces.

    >>> chosen_device("cpu", 10**6)
    'cpu'
    """
    if not isinstance(device, str) or device not in DEVICES:
        raise InputError("device", literal(device), "must be 'cpu', 'cuda' or 'auto'")
    if device == "auto":
        able = work > BREAK_EVEN and weights <= FEW and missing() is None
        return "cuda" if able else "cpu"
    if device == "cuda" and (trouble := missing()) is not None:
        raise InputError("device", "'cuda'", trouble)
    if device == "cuda" and weights > FEW:
        found = f"'cuda' with {weights} weights of a node"
        remedy = f"with features or traces at most {FEW}; use device='cpu' or 'auto'"
        raise InputError("device", found, remedy)
    return device


def kernel(function: Any, registers: int | None = None) -> Any:
    """A kernel, compiled at its first launch, which must be within `without_contraction`.

    `registers`: of a thread, at most.
    """
    # As an argument of a decorator `lto` is ignored; link-time optimisation would contract.
    options = {} if SIMULATED else {"lto": False, "max_registers": registers}
    return load().jit(function, **options)


@contextlib.contextmanager
def without_contraction() -> Iterator[None]:
    """Compile kernels so that each product is rounded before it is added to.

    Also compute addresses from pointers rather than integers: then the compiler sees which arrays
    are in shared memory.
    """
    if SIMULATED:
        yield
        return
    load()
    from numba.cuda import cgutils
    from numba.cuda.cudadrv import nvvm

    with _lock:
        compile_ir, pointer_add = nvvm.compile_ir, cgutils.pointer_add

        def uncontracted(ir: Any, **options: Any) -> Any:
            return compile_ir(ir, **{**options, "fma": False})

        nvvm.compile_ir, cgutils.pointer_add = uncontracted, _pointer_add
        try:
            yield
        finally:
            nvvm.compile_ir, cgutils.pointer_add = compile_ir, pointer_add


def _pointer_add(builder: Any, ptr: Any, offset: Any, return_type: Any = None) -> Any:
    """An address some bytes after a pointer."""
    from llvmlite import ir

    if isinstance(offset, int):
        offset = ir.IntType(64)(offset)
    found = builder.gep(builder.bitcast(ptr, ir.IntType(8).as_pointer()), [offset])
    return builder.bitcast(found, return_type or ptr.type)


def _visit(tree: Any, visit: Any) -> Any:
    """A copy of a tree of tuples and lists in which `visit` replaces NumPy's arrays."""
    if isinstance(tree, np.ndarray):
        return visit(tree)
    if not isinstance(tree, (tuple, list)):
        return tree
    found = [_visit(each, visit) for each in tree]
    return type(tree)(*found) if hasattr(tree, "_fields") else type(tree)(found)


def failures() -> tuple[type[Exception], ...]:
    """Exceptions of a driver or compiler that fails."""
    load()
    from numba.cuda.cudadrv import error

    names = ("CudaDriverError", "NvvmError", "NvrtcError")
    return tuple(getattr(error, name) for name in names if hasattr(error, name))


class Device:
    """Arrays on the GPU; in the simulator they are NumPy's."""

    def __init__(self) -> None:
        self.cuda = load()

    def put(self, x: Any) -> Any:
        """Copy an array to the GPU."""
        x = np.ascontiguousarray(x)
        return x.copy() if SIMULATED else self.cuda.to_device(x)

    def put_all(self, tree: Any) -> Any:
        """Copy all arrays within tuples and lists to the GPU, in one transfer."""
        if SIMULATED:
            return _visit(tree, self.put)
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        arrays: list[Any] = []
        _visit(tree, lambda x: arrays.append(np.ascontiguousarray(x)))
        starts = np.cumsum([0, *(-(-x.nbytes // ALIGNED) * ALIGNED for x in arrays)]).tolist()
        buffer = np.empty(starts[-1], dtype=np.uint8)
        for x, first in zip(arrays, starts, strict=False):
            buffer[first : first + x.nbytes] = np.frombuffer(x, dtype=np.uint8)
        whole, found = self.put(buffer), []
        for x, first in zip(arrays, starts, strict=False):
            data = whole.gpu_data.view(first, first + x.nbytes)
            found.append(DeviceNDArray(x.shape, x.strides, x.dtype, gpu_data=data))
            found[-1].whole = whole  # it is freed with the last of its parts
        there = iter(found)
        return _visit(tree, lambda _: next(there))

    def empty(self, *shape: int, dtype: Any = np.float64) -> Any:
        """An array on the GPU, not initialised."""
        if SIMULATED:  # what is not written is noticed
            return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 77, dtype=dtype)
        return self.cuda.device_array(shape, dtype)

    def write(self, x: Any, given: Any) -> None:
        """Write to an array on the GPU that is in one piece."""
        if SIMULATED:
            x[:] = given
        else:
            x.copy_to_device(np.ascontiguousarray(given))

    def get(self, x: Any) -> Any:
        """Copy an array from the GPU."""
        return x if SIMULATED else x.copy_to_host()

    def free_bytes(self) -> int:
        """Free memory of the GPU."""
        if SIMULATED:
            return 1 << 30
        return int(self.cuda.current_context().get_memory_info()[0])

    def processors(self) -> int:
        """Number of multiprocessors."""
        return 1 if SIMULATED else int(self.cuda.get_current_device().MULTIPROCESSOR_COUNT)

    def wait(self) -> None:
        """Wait until all kernels are done; an interrupt is noticed meanwhile."""
        if SIMULATED:
            return
        done = self.cuda.event()
        done.record()
        pause = threading.Event()
        while not done.query():
            pause.wait(1e-4)
        self.cuda.synchronize()
