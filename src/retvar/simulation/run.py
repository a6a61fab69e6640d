"""simulate(): an MDP × learners × runs → a labelled dataset, with the truth beside it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.engine import lanes as engine_lanes
from retvar.engine import runner, streams
from retvar.engine.lanes import Recording
from retvar.engine.runner import Batch, Job
from retvar.errors import InputError
from retvar.exact import stationary_distribution
from retvar.exact.stationary import transitions
from retvar.features import Features, States, features_of
from retvar.format import listed
from retvar.learners import Learner
from retvar.mdp import END, MDP
from retvar.mdp.weighted_edges import check_mdp, lam_on_arrival
from retvar.progress import Display
from retvar.simulation.record import Record, record_of
from retvar.simulation.results import Folded, Results, labels_of, refuse_too_large
from retvar.simulation.truth import Truth
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["replay", "simulate"]

MOST = 10**15  # steps, episodes and runs: more than can be had


def simulate(
    mdp: MDP,
    learners: Learner | Sequence[Learner] | Mapping[str, Learner],
    *,
    steps: int | None = None,
    episodes: int | None = None,
    runs: int,
    seed: int,
    target: object = None,
    behaviour: object = None,
    record: Any = None,
    keep: str = "stats",
    threads: int | None = None,
    progress: bool | Callable[[float], None] = False,
    features: Any = None,
    value_features: Any = None,
    mean_features: Any = None,
    truth: bool = True,
    batch: int | None = None,
    first_run: int = 0,
) -> xarray.Dataset:
    """Run learners on an MDP, all on the same streams, and tell what they learned.

    Parameters
    ----------
    mdp
        The MDP that experience is drawn from.
    learners
        One learner, a list (see :func:`~retvar.grid`), or a mapping from labels to learners. γ and
        λ of a learner take the place of the MDP's, and its truth follows.
    steps, episodes
        How long a run is: give one of the two.
    runs, seed
        How many runs, and the seed. Run r is the same whatever the number of runs, threads and
        learners; :func:`~retvar.replay` gives its transitions.
    target, behaviour
        Policy asked about, and the one that acts; default: the MDP's first, and the target.
    record
        A number k (every k moments), a list of moments, ``"log"``, or :class:`~retvar.Record`,
        which has more to offer; default: 100 moments, evenly spaced.
    keep
        ``"stats"``: mean and standard deviation over runs, in memory that does not grow with
        them. ``"runs"``: every run, for quantiles and the like.
    threads
        How many to use; default: as many as the machine has. The bits do not depend on it.
    progress
        True for a bar, or a function that is told the share done.
    features, value_features, mean_features
        Linear features of the states, [state, feature], for all learners; default: a weight for
        each state. The value's default to the variance's, the mean's to the value's.
    truth
        False leaves out the exact answers, which may take long for very many states.
    batch
        How many runs a thread takes at a time.
    first_run
        Number of the first run: with 30, the runs are 30, 31, … of a longer simulation, bit by
        bit, so that one can be computed in parts.

    Returns
    -------
    xarray.Dataset
        ``value`` and ``variance`` (with ``_std`` over runs), ``mean`` for centred learners and
        ``second_moment`` for VTD, with coordinates ``learner``, ``step`` or ``episode``, ``state``
        and ``run``; ``true_value`` and ``true_variance``; ``diverged``, the runs that did; and
        whatever else `record` asks for. Averages are over the runs that have not diverged.

    Examples
    --------
    >>> import retvar as rv
    >>> mdp = rv.domains.complex_mdp()
    >>> learners = rv.grid(rv.Direct, rv.VTD, alpha=0.01, alpha_bar=[0.001, 0.01])
    >>> data = rv.simulate(mdp, learners, steps=20_000, runs=30, seed=0)
    >>> dict(data.sizes)
    {'learner': 4, 'step': 100, 'state': 5}
    >>> last = data.isel(step=-1).sel(learner="Direct alpha_bar=0.01")
    >>> bool(abs(last.variance - last.true_variance).max() < 0.2)
    True
    """
    check_mdp(mdp)
    named = _named(learners)
    total, by_step = _length(mdp, steps, episodes)
    runs = _count("runs", runs)
    first_run = _run_number("first_run", first_run)
    threads = runner.usable_threads() if threads is None else _count("threads", threads)
    if keep not in ("stats", "runs"):
        raise InputError("keep", repr(keep), "must be 'stats' or 'runs'")
    wanted = record_of(record)
    stream, used = streams.stream_of(mdp, target, behaviour, seed)
    kinds = _features(mdp, features, value_features, mean_features)
    laid = engine_lanes.lanes_of(mdp, list(named.values()), kinds, used, first_run + runs)
    moments = wanted.moments(total)
    acting = target if behaviour is None else behaviour
    if not by_step:
        _refuse_endless(mdp, acting, episodes)
    recording = Recording(
        points=np.union1d(moments, [total]).astype(np.int64),
        by_step=by_step,
        states=_states(mdp, wanted),
        window=_window(wanted, total),
        shares=stationary_distribution(mdp, acting) if wanted.rmse else np.zeros(0),
        change=wanted.change,
        steps=wanted.step_sizes,
    )
    answers = Truth(mdp, laid, int(seed), target, behaviour, truth)
    job = Job(
        laid,
        engine_lanes.plan(laid, stream, recording, parts=-(-threads // runs)),
        stream,
        int(seed),
        runs,
        recording,
        answers.lanes_of,
        answers.frozen_lanes,
        threads,
        None if batch is None else _count("batch", batch),
        first_run,
    )
    refuse_too_large(job, keep)
    for lane in laid:
        answers.of(lane.form)
    folded = [Folded(block, job, keep) for block in job.blocks]

    def fold(number: int, first: range, found: Batch) -> None:
        folded[number].take(first, found)

    with _report(progress, runs) as report:
        runner.run(job, fold, report)
    attributes = {
        "mdp": mdp.name or repr(mdp),
        "steps" if by_step else "episodes": total,
        "runs": runs,
        **({"first_run": first_run} if first_run else {}),
        "seed": str(int(seed)),
        "target": _policy_name(mdp, target),
        "behaviour": _policy_name(mdp, acting),
        "window": recording.window,
        "retvar": __version__,
    }
    return Results(mdp, named, job, folded, answers, moments, attributes).dataset()


def replay(
    mdp: MDP,
    *,
    run: int = 0,
    seed: int,
    steps: int | None = None,
    episodes: int | None = None,
    target: object = None,
    behaviour: object = None,
) -> dict[str, Any]:
    """The transitions of one run of a simulation, as columns that ``update_many`` takes.

    γ and λ are the MDP's; leave them out for a learner that has its own.

    >>> import retvar as rv
    >>> mdp = rv.domains.complex_mdp()
    >>> learner = rv.Direct(alpha=0.01)
    >>> alone = learner.online(states=5)
    >>> alone.update_many(rv.replay(mdp, run=0, seed=1, steps=1_000))
    >>> data = rv.simulate(mdp, learner, steps=1_000, runs=1, seed=1)
    >>> bool((data.variance[0, -1] == alone.variance()).all())
    True
    """
    check_mdp(mdp)
    total, by_step = _length(mdp, steps, episodes)
    run = _run_number("run", run)
    stream, used = streams.stream_of(mdp, target, behaviour, seed)
    parts: list[Any] = []
    state, t, left = 0, 0, total
    while left > 0:
        size = left if by_step else max(1_024, t)
        edges, states = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        rewards = np.empty(size)
        count, done, state = streams.walk(
            stream, run, left, int(by_step), stream.noisy, edges, states, rewards, state, t, size
        )
        parts.append((edges[:count], states[:count], rewards[:count]))
        t, left = t + count, left - done
    edge, states, rewards = (np.concatenate(column) for column in zip(*parts, strict=True))
    e = mdp.edges
    follows = e.next_state[used][edge]
    return {
        "state": states,
        "reward": rewards,
        "next_state": follows,
        "terminated": follows == END,
        "rho": stream.rho[edge],
        "gamma": e.gamma[used][edge],
        "lam": np.where(follows == END, 0.0, lam_on_arrival(mdp, None)[follows]),
    }


def _named(learners: Any) -> dict[str, Learner]:
    if isinstance(learners, Learner):
        learners = [learners]
    if isinstance(learners, Mapping):
        named = {str(label): learner for label, learner in learners.items()}
        if len(named) < len(learners):
            raise InputError("learners", list(learners), "labels must differ as text")
    elif isinstance(learners, Sequence) and all(isinstance(d, Learner) for d in learners):
        named = dict(zip(labels_of(list(learners)), learners, strict=True))
    else:
        named = {"": learners}
    for label, learner in named.items():
        if not isinstance(learner, Learner):
            found = f"{label}: {learner!r}" if label else repr(learner)
            raise InputError("learners", found, "must be learners: Direct, VTD, Centred or a grid")
    if not named:
        raise InputError("learners", "none", "give at least one: Direct, VTD, Centred or a grid")
    return named


def _length(mdp: MDP, steps: int | None, episodes: int | None) -> tuple[int, bool]:
    if (steps is None) == (episodes is None):
        given = "neither" if steps is None else "both"
        raise InputError("steps, episodes", given, "give one of the two")
    if steps is not None:
        return _count("steps", steps), True
    if not mdp.episodic:
        remedy = "this MDP has no edge that ends an episode; give steps"
        raise InputError("episodes", episodes, remedy)
    return _count("episodes", episodes), False


def _count(field: str, given: Any) -> int:
    if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 1:
        raise InputError(field, repr(given), "must be a whole number of at least 1")
    if given > MOST:
        raise InputError(field, f"{given:,}", f"must be at most {MOST:,}")
    return int(given)


def _run_number(field: str, given: Any) -> int:
    whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not whole or not 0 <= given < MOST:
        raise InputError(field, repr(given), f"must be a whole number from 0 to {MOST - 1:,}")
    return int(given)


def _refuse_endless(mdp: MDP, policy: object, episodes: Any) -> None:
    """Refuse to count episodes where a run may come to a state from which none ends."""
    from scipy.sparse.csgraph import breadth_first_order

    P = transitions(mdp, policy)  # the end is the last state, which leads to the starts
    n = mdp.n_states
    reached = breadth_first_order(P, n, return_predecessors=False)
    ending = breadth_first_order(P.T.tocsr(), n, return_predecessors=False)
    lost = np.setdiff1d(reached, ending)
    if lost.size:
        names = listed(mdp.state_name(int(s)) for s in lost)
        remedy = f"no episode ends from {names} under this policy; give steps"
        raise InputError("episodes", episodes, remedy)


def _features(mdp: MDP, features: Any, value: Any, mean: Any) -> list[Features]:
    if features is None:
        if value is not None or mean is not None:
            raise InputError("value_features", "alone", "give features too")
        table: Features = States(mdp.n_states)
        return [table, table, table]
    variance = features_of("features", features)
    value = variance if value is None else features_of("value_features", value)
    mean = value if mean is None else features_of("mean_features", mean)
    for field, kind in (("features", variance), ("value_features", value), ("mean_features", mean)):
        if kind.states != mdp.n_states:
            found = "no table" if kind.states is None else f"{kind.states} rows"
            raise InputError(field, found, f"must be a table with {mdp.n_states} rows, one a state")
    return [value, mean, variance]


def _states(mdp: MDP, record: Record) -> Any:
    if record.states is None:
        return np.arange(mdp.n_states, dtype=np.int64)
    listed_states = isinstance(record.states, Sequence | np.ndarray)
    if not listed_states or isinstance(record.states, str) or len(record.states) == 0:
        raise InputError("record.states", repr(record.states), "must be a list of states")
    return np.array([mdp.state_index(s) for s in record.states], dtype=np.int64)


def _window(record: Record, total: int) -> int:
    if record.window > total:
        raise InputError("record.window", record.window, f"must be at most the end, {total:,}")
    return int(record.window)


def _policy_name(mdp: MDP, policy: object) -> str:
    if policy is None:
        return next(iter(mdp.policies))
    return policy if isinstance(policy, str) else repr(policy)


@contextlib.contextmanager
def _report(
    progress: bool | Callable[[float], None], runs: int
) -> Iterator[Callable[[float], None] | None]:
    """Yield a function that takes the number of finished runs, or None without `progress`."""
    if progress is False or progress is None:
        yield None
    elif callable(progress):
        report: Callable[[float], None] = progress
        yield lambda done: report(min(1.0, done / runs))
        report(1.0)
    else:
        with Display(sys.stderr, unit="runs", announce=True) as display:
            display.start(runs)
            yield display.advance
