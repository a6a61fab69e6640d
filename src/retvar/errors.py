"""The exceptions that retvar raises."""

from __future__ import annotations

from retvar.format import visible

__all__ = [
    "ConvergenceError",
    "DivergenceError",
    "InfiniteVarianceError",
    "InputError",
    "RetvarError",
    "SourceError",
    "WriteError",
]


class RetvarError(Exception):
    """Base class of all exceptions that retvar raises.

    >>> issubclass(InputError, RetvarError)
    True
    """


class InputError(RetvarError, ValueError):
    """An argument or file is invalid; the message names the field, the value and the remedy.

    >>> error = InputError("gamma[2]", 1.2, "must lie in [0, 1]")
    >>> print(error)
    gamma[2] = 1.2: must lie in [0, 1]
    >>> error.field, error.value, error.remedy
    ('gamma[2]', 1.2, 'must lie in [0, 1]')
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(field, value, remedy)

    def __str__(self) -> str:
        value = " ".join(_text(self.value).split())  # one line; long arrays are shortened below
        if len(value) > 120:
            value = f"{value[:80]} … ({type(self.value).__name__})"
        return visible(f"{self.field} = {value}: {self.remedy}")


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # an integer of many digits, a list in itself, an object of any kind
        return f"of type {type(value).__name__}"


class WriteError(InputError):
    """A file could not be written: the disk is full or broken. What was there before stays.

    >>> print(WriteError("path", "a.nc", "cannot be written: No space left on device"))
    path = a.nc: cannot be written: No space left on device
    """


class InfiniteVarianceError(InputError):
    """The variance of the return (or a higher moment, see `order`) is infinite in every state.

    >>> print(InfiniteVarianceError(1.48))
    spectral_radius = 1.48: the variance is infinite in every state, since the radius of
    B = E[(ηγλ)²] is not below 1; lower γ or λ, or use a behaviour policy closer to the target
    >>> print(InfiniteVarianceError(1.2, order=4))
    spectral_radius = 1.2: the fourth moment is infinite in every state, since the radius of
    E[(ηγλ)⁴] is not below 1; lower γ or λ, use a behaviour policy closer to the target, or
    a lower order
    """

    def __init__(self, radius: float, at_least: bool = False, order: int = 2) -> None:
        self.radius, self.at_least, self.order = radius, at_least, order
        name = {2: "variance", 3: "third moment", 4: "fourth moment"}[order]
        matrix = {2: "B = E[(ηγλ)²]", 3: "E[(ηγλ)³]", 4: "E[(ηγλ)⁴]"}[order]
        remedy = "lower γ or λ, or use a behaviour policy closer to the target"
        if order > 2:
            remedy = "lower γ or λ, use a behaviour policy closer to the target, or a lower order"
        super().__init__(
            "spectral_radius",
            f"{'at least ' if at_least else ''}{radius:.6g}",
            f"the {name} is infinite in every state, since the radius of {matrix} is not below 1; "
            f"{remedy}",
        )

    def __reduce__(self) -> tuple[type[InfiniteVarianceError], tuple[float, bool, int]]:
        return type(self), (self.radius, self.at_least, self.order)


class ConvergenceError(RetvarError):
    """A computation did not reach the required accuracy; no result is returned.

    >>> print(ConvergenceError("BiCGSTAB stopped at a residual of 1e-3"))
    BiCGSTAB stopped at a residual of 1e-3
    """


class DivergenceError(RetvarError):
    """The weights of a learner diverged (beyond 1e150); it keeps the last finite ones.

    >>> print(DivergenceError("variance", step=12, state=3, step_size=2.0))
    the variance node diverged at step 12 in state 3 with step size 2; its last finite weights are
    kept: use a smaller step size, or a behaviour closer to the target
    """

    def __init__(self, node: str, step: int, state: object, step_size: float) -> None:
        self.node, self.step, self.state, self.step_size = node, step, state, step_size
        super().__init__(node, step, state, step_size)

    def __str__(self) -> str:
        return (
            f"the {self.node} node diverged at step {self.step} in state {self.state} with step "
            f"size {self.step_size:g}; its last finite weights are kept: use a smaller step size, "
            "or a behaviour closer to the target"
        )


class ThreadError(RetvarError):
    """An estimator was asked to learn while another thread was learning with it.

    >>> print(ThreadError())
    another thread is learning with this estimator; it is for one thread at a time: give each
    thread a clone(), or put a lock around update
    """

    def __str__(self) -> str:
        return (
            "another thread is learning with this estimator; it is for one thread at a time: give "
            "each thread a clone(), or put a lock around update"
        )


class DeviceError(RetvarError):
    """A GPU failed during a simulation; there are no results. The process can go on, on the CPU.

    >>> print(DeviceError("CUDA_ERROR_LAUNCH_FAILED"))
    the GPU failed: CUDA_ERROR_LAUNCH_FAILED; there are no results: use device='cpu', or try again
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return (
            f"the GPU failed: {self.reason}; there are no results: use device='cpu', or try again"
        )


class SourceError(RetvarError):
    """A source of experience failed: an environment raised, or a file is truncated.

    The transitions before the failure have been processed.

    >>> print(SourceError("gymnasium:Robot-v0", 1_234, "RuntimeError: motor 3 does not answer"))
    gymnasium:Robot-v0 failed after 1,234 transitions, which are kept: RuntimeError: motor 3 does
    not answer
    """

    def __init__(self, source: str, transitions: int, reason: str) -> None:
        self.source, self.transitions, self.reason = source, transitions, reason
        super().__init__(source, transitions, reason)

    def __str__(self) -> str:
        if not self.transitions:
            return f"{self.source} failed before its first transition: {self.reason}"
        count = f"{self.transitions:,} transitions"
        return f"{self.source} failed after {count}, which are kept: {self.reason}"
