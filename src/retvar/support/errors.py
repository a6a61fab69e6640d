"""The exceptions that retvar raises."""

from __future__ import annotations

from retvar.support.format import literal, visible


class RetvarError(Exception):
    """Base class of all exceptions that retvar raises."""


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
        value = " ".join(literal(self.value, str).split())  # long arrays are shortened below
        if len(value) > 120:
            value = f"{value[:80]} … ({type(self.value).__name__})"
        return visible(f"{self.field} = {value}: {self.remedy}")


class WriteError(InputError):
    """A file could not be written: the disk is full or broken. What was there before stays."""


class InfiniteVarianceError(InputError):
    """The variance of the return (or a higher moment, see `order`) is infinite in every state."""

    def __init__(self, radius: float, at_least: bool = False, order: int = 2) -> None:
        self.radius, self.at_least, self.order = radius, at_least, order
        name = {2: "variance", 3: "third moment", 4: "fourth moment"}[order]
        matrix = {2: "B = E[(ηγλ)²]", 3: "E[(ηγλ)³]", 4: "E[(ηγλ)⁴]"}[order]
        remedy = (
            f"the {name} is infinite in every state, since the radius of {matrix} is not below 1; "
            f"lower γ{', λ or the order' if order > 2 else ' or λ'}, or use a behaviour policy "
            "closer to the target"
        )
        value = f"{'at least ' if at_least else ''}{radius:.6g}"
        super().__init__("spectral_radius", value, remedy)

    def __reduce__(self) -> tuple[type[InfiniteVarianceError], tuple[float, bool, int]]:
        return type(self), (self.radius, self.at_least, self.order)


class ConvergenceError(RetvarError):
    """A computation did not reach the required accuracy; no result is returned."""


class DivergenceError(RetvarError):
    """The weights of a learner diverged (beyond 1e150); it keeps the last finite ones."""

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
    """An estimator was asked to learn while another thread was learning with it."""

    def __str__(self) -> str:
        return (
            "another thread is learning with this estimator; it is for one thread at a time: give "
            "each thread a clone(), or put a lock around update"
        )


class DeviceError(RetvarError):
    """A GPU failed during a simulation; there are no results. The process can go on, on the CPU."""

    def __str__(self) -> str:
        return f"the GPU failed: {self.args[0]}; there are no results: use device='cpu', or retry"


class SourceError(RetvarError):
    """A source of experience failed: an environment raised, or a file is truncated.

    The transitions before the failure have been processed.
    """

    def __init__(self, source: str, transitions: int, reason: str) -> None:
        self.source, self.transitions, self.reason = source, transitions, reason
        super().__init__(source, transitions, reason)

    def __str__(self) -> str:
        if not self.transitions:
            return f"{self.source} failed before its first transition: {self.reason}"
        count = f"{self.transitions:,} transitions"
        return f"{self.source} failed after {count}, which are kept: {self.reason}"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, as the command line receives them; `status` is the exit status."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


for _kind in list(globals().values()):  # tracebacks show the name that users catch
    if isinstance(_kind, type) and issubclass(_kind, RetvarError):
        _kind.__module__ = "retvar"
