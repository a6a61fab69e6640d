"""Monitor an estimator on its stream: visits of states or regions, and observed returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.bootstrap_terms import Predictor
from retvar.estimation.returns import Returns
from retvar.estimation.visits import Regions, Visits
from retvar.experience.stream import Chunk
from retvar.features import ObservationFeatures, PerAction
from retvar.online.bootstrap import half_width
from retvar.online.columns import read_streams
from retvar.online.memory_layout import TERMINATED, TRUNCATED

if TYPE_CHECKING:
    from retvar.estimation.provenance import Provenance
    from retvar.learners import Learner

__all__ = ["Discounts", "Monitor", "OwnDiscounts", "collect_returns", "row_predictor"]

Array = NDArray[np.float64]
KEYS = 64  # returns that may be open at once; a power of 2
SEQUENCE = 20_000, 2_000  # returns in sequence that are stored: of states, of observations
CLOSED = 0.05  # discount at which a return that is compared counts as over
PLENTY = 8  # times as many returns as are stored, from which on fewer begin


class OwnDiscounts:
    """The γ and λ of an estimator, as its description has them."""

    description: Learner

    @property
    def gammas(self) -> Array:
        """γ of each state, or of all; NaN where it is in the data."""
        return _numbers(self.description.gamma)

    @property
    def lams(self) -> Array:
        """λ of each state, or of all; NaN where it is in the data."""
        return _numbers(self.description.lam)


def _numbers(given: Any) -> Array:
    return np.atleast_1d(np.asarray(np.nan if given is None else given, dtype=np.float64))


@dataclass
class Discounts:
    """γ, λ and η of each transition of a chunk, which define its returns.

    `next_value` is the value of the next state, where it is final. `on_policy` is False where the
    returns of the target policy cannot be observed.
    """

    gamma: Array
    lam: Array
    eta: Array | None  #: None: 1
    next_value: Array | None
    on_policy: bool

    @classmethod
    def of(cls, estimator: Any, chunk: Chunk, final: bool = False) -> Discounts:
        """Those of the chunk, or else the estimator's; `final`: its values no longer change."""
        n, follows = len(chunk["reward"]), chunk["next_state"]
        gamma, lam = (
            np.asarray(chunk[name], dtype=np.float64)
            if name in chunk
            else np.broadcast_to(own[follows] if own.size > 1 else own, n)
            for name, own in (("gamma", estimator.gammas), ("lam", estimator.lams))
        )
        rho = np.asarray(chunk["rho"], dtype=np.float64) if "rho" in chunk else None
        weighted = estimator.description.estimand == "off_policy_return"
        next_value = None
        if final:
            bootstraps = np.any(lam < 1)
            next_value = estimator.predict(follows, "value") if bootstraps else np.zeros(n)
        on_policy = weighted or rho is None or bool((rho == 1).all())
        return cls(gamma, lam, rho if weighted else None, next_value, on_policy)


def row_predictor(estimator: Any, what: str) -> Predictor:
    """Return a function that predicts for rows of floats: states, or observations.

    NaN for a state that the estimator does not know.
    """
    states = estimator.features[0].states

    def predict(rows: Array) -> Array:
        if states is None:
            return np.asarray(estimator.predict(rows, what))
        column = rows[:, 0].astype(np.int64)
        known = column < states
        found = np.asarray(estimator.predict(np.where(known, column, 0), what))
        return found if known.all() else np.where(known, found, np.nan)

    return predict


def collect_returns(chunk: Chunk, discounts: Discounts, *collectors: tuple[Returns, Any]) -> None:
    """Add the transitions of a chunk to returns, each with the keys of the transitions."""
    n = len(chunk["reward"])
    state, next_state = (_rows_of(chunk[name], n) for name in ("state", "next_state"))
    flags = np.zeros(n, dtype=np.int64)
    for name, flag in (("terminated", TERMINATED), ("truncated", TRUNCATED)):
        if name in chunk:
            flags |= np.multiply(np.asarray(chunk[name], dtype=bool), flag, dtype=np.int64)
    stream = np.ascontiguousarray(np.broadcast_to(read_streams(chunk.get("stream"), n), n))
    reward = np.asarray(chunk["reward"], dtype=np.float64)
    gamma, lam = np.ascontiguousarray(discounts.gamma), np.ascontiguousarray(discounts.lam)
    for returns, keys in collectors:
        returns.add(
            np.asarray(keys, dtype=np.int64), state, next_state, reward, gamma, lam,
            discounts.eta, flags, stream, discounts.next_value,
        )  # fmt: skip


def _rows_of(column: NDArray[Any], n: int) -> NDArray[Any]:
    """States as rows of one whole number, observations as rows of numbers."""
    kind = np.int64 if column.ndim == 1 and column.dtype.kind in "iu" else np.float64
    return np.ascontiguousarray(column.reshape(n, -1), dtype=kind)


class Monitor:
    """Counts visits and collects observed returns while an estimator learns."""

    def __init__(self, level: float = 0.9) -> None:
        half_width(level)
        self.level = level
        self.visits: Visits | Regions | None = None
        self.returns: Returns | None = None
        self.sequence: Returns | None = None  # one after the other, wherever they begin
        self.remarks: list[str] = []  # what was decided for the caller
        self.off_policy = False  # returns of the target policy are not observed
        self.provenance: Provenance | None = None  # of the first experience, if it is another one

    def update(self, estimator: Any, chunk: Chunk) -> None:
        """Add a chunk."""
        state = chunk["state"]
        if self.visits is None:
            self.visits = _no_visits(estimator, state)
        if self.returns is None or self.sequence is None:
            width = 1 if state.ndim == 1 else state.shape[1]
            self.returns = _no_returns(width)
            self.sequence = _no_sequence(width, tabular=state.ndim == 1)
        self.visits.add(state)
        discounts = Discounts.of(estimator, chunk)
        self.off_policy |= not discounts.on_policy  # for good: ratios of 1 are no fair sample
        if not self.off_policy:
            keys = self.visits.cells(state) if isinstance(self.visits, Regions) else state
            one_key = np.zeros(len(keys), dtype=np.int64)
            placed = self.returns, keys & (KEYS - 1)
            collect_returns(chunk, discounts, placed, (self.sequence, one_key))

    def merge(self, other: Monitor, number: NDArray[np.int64] | None = None) -> None:
        """Add what was counted elsewhere of states; state s there is ``number[s]`` here."""
        if isinstance(other.visits, Visits):
            self.visits = self.visits or Visits()
            assert isinstance(self.visits, Visits)
            self.visits.merge(other.visits, number)
        if other.returns is not None:
            self.returns = self.returns or _no_returns(1)
            self.returns.merge(other.returns, number)
        if other.sequence is not None:
            self.sequence = self.sequence or _no_sequence(1, tabular=True)
            self.sequence.merge(other.sequence, number)
        self.off_policy |= other.off_policy


def _no_returns(width: int) -> Returns:
    return Returns(KEYS, width, plenty=PLENTY)


def _no_sequence(width: int, tabular: bool) -> Returns:
    return Returns(1, width, SEQUENCE[0 if tabular else 1], negligible=CLOSED, plenty=PLENTY)


def _no_visits(estimator: Any, state: Any) -> Visits | Regions:
    """Empty visit counts for the estimator's states or observations."""
    features = estimator.features[0]
    if features.states is not None:
        return Visits()
    if isinstance(features, ObservationFeatures):
        actions = features.actions if isinstance(features, PerAction) else 0
        return Regions(np.array(features.low), np.array(features.high), actions)
    low, high = getattr(features, "range", None) or (state.min(axis=0), state.max(axis=0))
    return Regions(low, np.where(high > low, high, low + 1.0))
