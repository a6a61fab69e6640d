"""Estimate value and spread of returns from experience, by least squares or by TD learning."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.cluster import refuse_address
from retvar.estimation import files, results, settings
from retvar.estimation.answers import Answer, answer_at, find_states
from retvar.estimation.check import Check, self_check
from retvar.estimation.cluster import learn_on_cluster
from retvar.estimation.episodes import refuse_discounts
from retvar.estimation.return_intervals import ReturnIntervals
from retvar.estimation.returns import Monitor
from retvar.estimation.states import LeastSquaresEstimator, StateEstimator
from retvar.experience.moves import CHUNK, Moves
from retvar.experience.stream import Chunk, Experience
from retvar.online import OnlineEstimator
from retvar.support import arguments
from retvar.support.errors import InputError, RetvarError
from retvar.support.files import kind_of
from retvar.support.format import count, reasons, visible
from retvar.support.html import Shown
from retvar.td.learners import Learner

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from retvar.estimation.empirical import Empirical, LawEstimate
    from retvar.exact.attribution import Attribution

log = logging.getLogger("retvar.estimate")
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
FIRST = {True: 65_536, False: 4_096}  # rows that bounds of observations are taken from, of logs
MANY_STATES, GAP = 1_000_000, 10  # more states than these, and than so many for each transition
GAPS = "are many more than there are transitions; use numbers with gaps as labels (states='labels')"
Progress = Callable[[int], None]  # called with the number of transitions done


class Estimate(Shown):
    """The result of :func:`estimate`: the estimator, its visits, returns and intervals.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> found.estimator.steps, found.data["value"].dims
    (5000, ('state',))
    """

    def __init__(
        self, experience: Experience, estimator: Any, monitor: Monitor, create: Any = None,
        moves: Moves | None = None,
    ) -> None:  # fmt: skip
        self.experience = experience
        self._estimator = estimator
        self._create = create  # makes the estimator from the first rows
        self._monitor, self._unmonitored = monitor, Moves() if moves is None else moves

    @property
    def monitor(self) -> Monitor:
        """Visits, and observed returns with the values that were found: a second reading."""
        moves, self._unmonitored = self._unmonitored, Moves()
        for chunk in moves.chunks():
            self._monitor.add(self.estimator, chunk)
        return self._monitor

    @property
    def estimator(self) -> Any:
        """The :class:`OnlineEstimator` or the least-squares estimator."""
        if self._estimator is None:
            why = reasons(self.experience.counts.rejected)
            remedy = f"has no usable transition{why and ': '}{why}"
            raise InputError("experience", self.experience.name, remedy)
        return self._estimator

    @cached_property
    def data(self) -> xarray.Dataset:
        """Value, variance and std with intervals, of each state or of the most visited regions."""
        return results.dataset(self)

    # ------------------------------------------------------------------ questions

    def value(self, state: Any = None) -> Any:
        """Value of a state; of all states where none is named. NaN where nothing is known.

        Here and below a state is named by its label where states have labels, otherwise by its
        number. A list or an array of states, or [k, number] of observations, gives an array.

        >>> import retvar as rv
        >>> log = {"state": ["rain", "sun"], "reward": [2.0, 1.0], "terminated": [False, True]}
        >>> rv.estimate(rv.experience.from_table(log), gamma=1.0).value(["sun", "rain"])
        array([1., 3.])
        """
        return self._ask(state, "value")[0]

    def std(self, state: Any = None) -> Any:
        """Standard deviation of the return from a state; of all states where none is named."""
        return self._ask(state, "std")[0]

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: Any = None
    ) -> tuple[Any, Any]:
        """Lower and upper end for one `state`, a column of `states`, or all."""
        low, high = self._ask(states if state is None else state, what, self._level(level))
        return low, high

    def _ask(self, state: Any, what: str, level: Any = None) -> list[Any]:
        """An estimate, or with a level its interval, for one state, several, or all.

        NaN in places that TD learning never visited.
        """
        column, one = self._column(state)
        if not len(column):
            return [np.zeros(0), np.zeros(0)]
        online = isinstance(self.estimator, OnlineEstimator)
        known = self.monitor.visits.known(column) if online else True
        if level is None:
            answers: Any = [self.estimator.predict(column, what)]
        else:
            answers = self.estimator.interval(what=what, states=column, level=level)
        found = [np.where(known, each, np.nan) for each in answers]
        return [float(each[0]) for each in found] if one else found

    def _column(self, state: Any) -> tuple[Any, bool]:
        """Numbers of states, or observations as rows; and whether it is one that was named."""
        states = self.estimator.features[0].states
        if state is not None:
            return find_states(self.experience, state, states)
        if states is None:
            raise InputError("state", None, "must be given: there is no list of observations")
        return np.arange(states), False

    def at(self, state: Any, *, level: float | None = None) -> Answer:
        """Value, std and where the return will fall, for one state or observation; see `note`.

        An observation is a sequence of numbers.
        """
        return answer_at(self, state, level)

    def law(self, state: Any = None, *, level: float | None = None) -> LawEstimate:
        """The law of the return: probabilities, quantiles and CVaR, with intervals.

        From one state, or from all as arrays where none is named. It is that of the empirical MDP,
        whose states are taken to be Markov. Needs states, and ``by="least_squares"``.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=50_000, seed=1)
        >>> print(rv.estimate(lake, gamma=0.9).law(14).probability_below(0.5))
        0.623 [0.5..., 0.6...]
        """
        found = self._empirical.law(self._level(level))
        return found if state is None else found[state]

    def attribution(self, state: Any, *, level: float | None = None) -> Attribution:
        """Where the variance from a state arises: shares of states and of steps, with intervals.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=50_000, seed=1)
        >>> found = rv.estimate(lake, gamma=0.9).attribution(14)
        >>> [(x.state, x.next_state, round(x.share, 2)) for x in found.top(2)]
        [('14', 'end', 0.68), ('14', '13', 0.13)]
        """
        return self._empirical.attribution(self._empirical.number(state), self._level(level))

    @cached_property
    def _empirical(self) -> Empirical:
        from retvar.estimation.empirical import Empirical

        if not isinstance(self.estimator, StateEstimator):
            remedy = 'needs states and by="least_squares"; for observations see retvar.rollouts'
            raise InputError("experience", self.experience.name, remedy)
        return Empirical(self)

    def _level(self, level: float | None) -> float:
        return self._monitor.level if level is None else arguments.level("level", level)

    def return_interval(self, states: Any = None, level: float = 0.9) -> tuple[Any, Any]:
        """Where the return from each of `states` (default: all) will fall with this probability.

        In a state with enough returns it ends at their quantiles; elsewhere it holds on average
        over visited states. Needs ``by="least_squares"`` and on-policy data.
        """
        if not isinstance(self.estimator, LeastSquaresEstimator):
            raise InputError("by", "'td'", 'return intervals need by="least_squares"')
        low, high = self.return_intervals.interval(self._column(states)[0], level)
        return low, high

    @cached_property
    def return_intervals(self) -> ReturnIntervals:
        """What :meth:`return_interval` rests on."""
        return ReturnIntervals(self.estimator, self.monitor)

    @cached_property
    def self_check(self) -> Check:
        """Whether value and std agree with the data's own returns; not off-policy.

        They disagree where states are not Markov, or where the estimates have not converged.
        """
        return self_check(self)

    @property
    def warnings(self) -> list[str]:
        """Signs that a log was misread, that ratios are wrong, or that returns contradict this.

        Each names the probable remedy.
        """
        return list(filter(None, [*results.warnings(self), self.self_check.warning]))

    def action_values(self) -> xarray.Dataset:
        """Estimates of each action as arrays [state, action]; NaN where it was never taken.

        Needs ``estimate(…, actions=True)``. The variables are those of `data`.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
        >>> found = rv.estimate(lake, gamma=0.9, actions=True).action_values()
        >>> found["std"].sel(state=14).round(2).values
        array([0.33, 0.47, 0.46, 0.48])
        """
        return results.to_action_values(self.experience, self.data)

    # ------------------------------------------------------------------ texts, figures, files

    def summary(self, rows: int = 20) -> str:
        """Text: a description of the data and a table of the most visited states or regions."""
        rows, counts = arguments.integer("rows", rows, 0), self.experience.counts
        told = results.describe_data(self.data, counts)
        return f"{told}\n\n{results.table_rows(self.data, rows)}"

    def __repr__(self) -> str:
        done = count(self.estimator.steps, "transition")
        return f"Estimate({visible(self.experience.name)}: {done}; {self.estimator!r})"

    def _html(self) -> str:
        return results.to_html(self.data, self.experience.counts)

    def plot(self) -> Figure:
        """Draw what to expect and how far it may stray, by :func:`retvar.plots.estimate`.

        >>> import retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
        >>> [ax.get_title("left") for ax in rv.estimate(lake, gamma=0.9).plot().axes[:2]]
        ['expected return', 'spread (standard deviation)']
        """
        figure: Figure = importlib.import_module(PLOTS).estimate(self.data)
        return figure

    def save(self, path: str | Path) -> None:
        """Write to a folder what ``retvar estimate --out`` writes, or the estimator to a file.

        A path without a suffix is a folder, for the estimator, the estimates as netCDF and the
        figures. ``estimate(…, resume=path)`` continues with other data, from either.

        >>> import pathlib, tempfile, retvar as rv
        >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=500)
        >>> folder = pathlib.Path(tempfile.mkdtemp()) / "lake"
        >>> rv.estimate(lake, gamma=0.9).save(folder)
        >>> rv.estimate(lake, resume=folder).estimator.steps
        1000
        """
        path = arguments.path("path", path)
        kind = kind_of("path", path)
        if kind == "folder" or not (path.suffix or kind):
            files.open_folder("path", path)
            self.save(path / files.ESTIMATOR)  # first, since estimates may fail
            files.write_data(self.data, path / files.ESTIMATOR)
            files.write_report(self, path, files.FORMATS[:1], self.data)
            return
        self.estimator.notes = {"estimate": files.to_notes(self)}
        self.estimator.save(path)

    # ------------------------------------------------------------------ learning

    def learn(
        self, progress: Progress | None = None, cluster: Any = None, workers: Any = None,
        silent: bool = False,
    ) -> None:  # fmt: skip
        """Learn from the experience.

        An error that ends an environment early has this estimate as its attribute, with all that
        was learned before.
        """
        if cluster is not None:
            learn_on_cluster(self, cluster, workers, progress)
        else:
            self._learn(progress)
        try:
            for each in () if silent else self.warnings:  # which need the fit
                log.warning("%s: %s", self.experience.name, each)
        except KeyboardInterrupt as error:
            error.estimate = self  # type: ignore[attr-defined]
            raise

    def _learn(self, progress: Progress | None) -> None:
        e = self.experience
        try:
            if e.endless and self._by == settings.TD:  # only its last rows are kept
                with contextlib.closing(e.chunks()) as stream:
                    for chunk in stream:
                        self.update(chunk)
                        if progress is not None:
                            progress(e.counts.transitions)
            else:
                self._read(self._gathered(progress))
            _ = self.estimator  # or an error: there was no transition
        except BaseException as error:
            known = self._estimator is not None and self._estimator.steps > 0
            error.estimate = self if known else None  # type: ignore[attr-defined]
            raise

    def _gathered(self, progress: Progress | None) -> Moves:
        """All transitions; where an environment fails, what it gave before is learned from."""
        try:
            return self.experience.moves(progress)
        except BaseException:
            if not self.experience.is_log:
                with contextlib.suppress(RetvarError):
                    self._read(self.experience.moves())
            raise

    @property
    def _by(self) -> str:
        return str((self._create if self._estimator is None else self._estimator).by)

    def _read(self, moves: Moves) -> None:
        """Estimate from a table; λ-returns below λ = 1 are looked at when values are known."""
        estimator, whole = self._estimator, False
        for chunk in moves.chunks():
            estimator = self._learned(estimator, chunk)
            whole = np.array_equal(estimator.description.lam, 1.0)
            if whole:
                self._monitor.add(estimator, chunk)
        self._estimator, self._unmonitored = estimator, Moves() if whole else moves
        if isinstance(estimator, StateEstimator):
            estimator.moves = moves  # for the law of the return
        elif len(moves) and self._by == settings.TD:
            _ = self.monitor

    def update(self, chunk: Chunk) -> None:
        """Learn from a chunk of a stream, with ``by="td"``; its returns are looked at later."""
        if not isinstance(chunk, Mapping) or "reward" not in chunk:
            raise InputError("chunk", type(chunk).__name__, "must be columns with a reward")
        if self._by != settings.TD:
            remedy = 'reads a log as a whole; by="td" learns on, or estimate again'
            raise InputError("by", self._by, remedy)
        if not len(chunk["reward"]):
            return
        self._estimator = self._learned(self._estimator, chunk)
        self._unmonitored.append(chunk)
        for name in ("data", "self_check"):
            self.__dict__.pop(name, None)
        if self.experience.endless and len(self._unmonitored) >= CHUNK:
            _ = self.monitor

    def _learned(self, estimator: Any, chunk: Chunk) -> Any:
        """The estimator with what a chunk says; it is made, or gets more states, where needed."""
        e, states = self.experience, None
        if e.width is None:
            states = self._states(chunk, 0 if estimator is None else estimator.steps)
        if estimator is None:
            first = {name: column[: FIRST[e.is_log]] for name, column in chunk.items()}
            estimator = self._create(first, states)
        elif states is not None and states > estimator.features[0].states:
            estimator.grow(states)
        if isinstance(estimator, LeastSquaresEstimator):
            estimator.add(chunk)
        else:
            refuse_discounts(estimator.description, chunk)
            estimator.update_many(chunk, on_error="skip")
        return estimator

    def _states(self, chunk: Chunk, before: int) -> int:
        """How many states there are after a chunk, which must be no more than that allows."""
        e, largest = self.experience, max(int(np.max(chunk[x])) for x in ("state", "next_state"))
        states = e.states or largest + 1
        if largest >= states:
            raise InputError("state", largest, f"unknown; states are 0 to {states - 1}")
        seen = max(e.counts.transitions, before + len(chunk["reward"]))
        if states > max(MANY_STATES, GAP * seen) and not e.fixed_states:
            raise InputError("state", f"numbers up to {states - 1:,}", GAPS)
        return states


def estimate(
    experience: Experience,
    learner: Learner | None = None,
    *,
    by: str | None = None,
    gamma: Any = None,
    lam: Any = None,
    estimand: Any = "target_return",
    features: Any = None,
    bootstrap_samples: int | None = None,
    level: float = 0.9,
    seed: int = 0,
    resume: str | Path | None = None,
    progress: Progress | None = None,
    cluster: str | None = None,
    workers: int | None = None,
    actions: bool = False,
) -> Estimate:
    """Estimate expected return, variance and standard deviation of each state, with intervals.

    If an environment fails or the estimator diverges, the error has an attribute ``estimate`` with
    everything learned before.

    Parameters
    ----------
    experience
        From :mod:`retvar.experience`.
    learner
        A learner of your own for TD learning, in place of gamma, lam and estimand. Without one it
        is the direct method with averaged steps, whose traces reach a fifth of the horizon.
    by
        ``"least_squares"``, the default for data that ends: the solution that the direct method
        would reach if it could replay the data for ever; for observations, a mixture of several
        families of values and the spread from neighbours in other episodes. It answers NaN with a
        note where the data does not determine an answer. ``"td"``: an online estimator, for
        streams without an end and worlds that change; `learner` and `bootstrap_samples` imply it.
    gamma, lam
        Discount; there is no default. None where the data has one per transition. λ of the return
        whose variance is estimated; by default that of the data, otherwise 1, the return itself.
    estimand
        Off-policy: ``"target_return"`` or ``"off_policy_return"``.
    features
        For observations, one family in place of a mixture: ``"tiles"``, ``"fourier"``,
        ``"polynomial"``, or :mod:`retvar.td.features`; or a list of ``"tiles"``, ``"waves"``,
        ``"neighbours"``, ``"deep"``, features, and objects with ``fit`` and ``predict``, to be
        mixed. ``"deep"`` alone adds networks (:class:`retvar.deep.Networks`) to the mixture.
    bootstrap_samples, level, seed
        Of the intervals: number of bootstrap samples (``by="td"``; default 100), confidence level,
        seed.
    resume
        A file or folder that :meth:`Estimate.save` wrote, to continue from; no other setting is
        given then.
    progress
        Called with the number of transitions done.
    cluster, workers
        Sum the files of a log of states on dask workers: ``"local"`` processes, as many as
        `workers` says, or the address of a scheduler whose workers see the same files. The answer
        is the same for any number of workers.
    actions
        Estimate the return of each action of each state: of taking it and then doing as the policy
        does. A state is then a pair (state, action); :meth:`Estimate.action_values` has arrays.

    Examples
    --------
    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=20_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.9)
    >>> low, high = found.interval(0)
    >>> truth = rv.solve(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9)).value[0]
    >>> bool(low < truth < high)
    True
    """
    arguments.instance("experience", experience, Experience, "experience: rv.experience.from_…")
    given = {name: x for name, x in locals().items() if name != "experience"}
    if experience.rewards:
        from retvar.estimation.several import SeveralEstimate

        settings.refuse("is for one reward; leave it out", {"resume": resume, "cluster": cluster})
        return SeveralEstimate(experience, given)  # type: ignore[return-value]
    if cluster is not None or workers is not None:
        refuse_address(cluster, workers)
    return fitted(experience, **given)


def fitted(
    experience: Experience, *, resume: Any, progress: Any, cluster: Any, workers: Any,
    silent: bool = False, **own: Any,
) -> Estimate:  # fmt: skip
    """The estimate of one reward, with the arguments of :func:`estimate`."""
    if resume is None:
        create = settings.Settings(experience, **own)
        found = Estimate(create.experience, None, Monitor(create.level, create.remarks), create)
    else:
        del own["seed"]
        settings.refuse("comes from the saved estimator; leave it out", own)
        found = Estimate(*files.resumed(arguments.path("resume", resume), experience))
    found.learn(progress, cluster, workers, silent)
    return found


def follow(experience: Experience, learner: Any = None, **settings: Any) -> Iterator[Estimate]:
    r"""Estimate from a log that grows: yield an estimate of all of it whenever it has grown.

    Leave the loop to stop. The log is ``from_table(Growing("log.csv"), …)``, see
    :class:`retvar.experience.Growing`; the other arguments are those of :func:`retvar.estimate`.

    >>> import pathlib, tempfile, retvar as rv
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("state,reward,next_state,terminated\n0,1,0,1\n")
    >>> log = rv.experience.from_table(rv.experience.Growing(path, every=0.01))
    >>> for found in rv.follow(log, gamma=0.9, by="least_squares"):
    ...     print(found.estimator.steps, found.value(0))
    ...     if found.estimator.steps == 2:
    ...         break
    ...     with path.open("a") as file:
    ...         _ = file.write("0,3,0,1\n")
    1 1.0
    2 2.0
    """
    following: Experience | None = experience
    while following is not None:
        yield estimate(following, learner, **settings)
        following = None if following.grown is None else following.grown()
