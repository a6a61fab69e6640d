"""simulate(): run learners on an MDP and return a labelled dataset with the exact solution."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar import arguments
from retvar.engine import runner, streams
from retvar.engine.blocks import Recording, plan_blocks
from retvar.engine.cuda_device import check_precision, chosen_device
from retvar.engine.learner_setup import prepare_learners
from retvar.engine.runner import Batch, Simulation
from retvar.errors import InputError
from retvar.exact import stationary_distribution
from retvar.exact.stationary import transitions
from retvar.features import Features, States, features_of
from retvar.format import listed, literal
from retvar.learners import Learner
from retvar.mdp import END, MDP
from retvar.mdp.weighted_edges import check_mdp, lam_on_arrival
from retvar.progress import Display
from retvar.simulation.record import Record, record_of
from retvar.simulation.results import (
    Accumulator,
    Results,
    labels_of,
    refuse_too_large,
)
from retvar.simulation.truth import Truth
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["replay", "simulate"]

REPLAYED = 1 << 20  # transitions that replay makes in one call
MOST = 10**15  # steps, episodes and runs


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
    device: str = "cpu",
    dtype: str = "float64",
) -> xarray.Dataset:
    """Run learners on an MDP, all on the same streams, and return their estimates.

    Parameters
    ----------
    mdp
        The MDP that experience is drawn from.
    learners
        One learner, a list (see :func:`~retvar.grid`), or a mapping from labels to learners. γ and
        λ of a learner replace the MDP's, also in the exact solution.
    steps, episodes
        Length of a run: give one of the two.
    runs, seed
        Number of runs, and the seed. Run r does not depend on the number of runs, threads and
        learners; :func:`~retvar.replay` returns its transitions.
    target, behaviour
        Policy to evaluate, and policy that acts; default: the MDP's first, and the target.
    record
        A number k (every k moments), a list of moments, ``"log"``, or :class:`~retvar.Record`,
        which has more options; default: 100 moments, evenly spaced.
    keep
        ``"stats"``: mean and standard deviation over runs; memory does not grow with the runs.
        ``"runs"``: every run, for quantiles and the like.
    threads
        Number of threads; default: all CPUs. Results do not depend on it.
    progress
        True for a progress bar, or a function that receives the fraction done.
    features, value_features, mean_features
        Linear features of the states, [state, feature], for all learners; default: one weight
        per state. The value's default to the variance's, the mean's to the value's.
    truth
        False omits the exact solution, which may take long for very many states.
    batch
        Number of runs that a thread computes at a time.
    first_run
        Number of the first run: with 30, the runs are runs 30, 31, … of a longer simulation to the
        bit, so that it can be computed in parts.
    device
        ``"cpu"``; ``"cuda"``, an NVIDIA GPU (needs an extra, see :doc:`gpu`); or ``"auto"``: a GPU
        if there is one and there is enough to do. Results do not depend on it.
    dtype
        ``"float32"``: single precision, on a GPU alone: faster, less exact (see :doc:`gpu`).

    Returns
    -------
    xarray.Dataset
        ``value`` and ``variance`` (with ``_std`` over runs), ``mean`` for centred learners and
        ``second_moment`` for VTD, ``third_moment`` and ``fourth_moment`` for learners of a higher
        order, ``skewness`` and ``kurtosis`` made of these (of their averages), with coordinates
        ``learner``, ``step`` or ``episode``, ``state`` and ``run``; ``true_value``,
        ``true_variance`` and so on; ``diverged``, the number of diverged runs; and what `record`
        adds. Averages are over the runs that have not diverged.

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
    labelled = labelled_learners(learners)
    total, by_step = length_of(mdp, steps, episodes)
    runs = arguments.integer("runs", runs, 1, MOST)
    first_run = arguments.integer("first_run", first_run, 0, MOST - 1)
    threads = (
        runner.usable_threads()
        if threads is None
        else arguments.integer("threads", threads, 1, MOST)
    )
    arguments.choice("keep", keep, ("stats", "runs"))
    recorded = record_of(record)
    stream, used = streams.stream_of(mdp, target, behaviour, seed)
    node_features = features_of_nodes(mdp, features, value_features, mean_features)
    setups = prepare_learners(mdp, list(labelled.values()), node_features, used, first_run + runs)
    moments = recorded.moments(total)
    actor = target if behaviour is None else behaviour
    if not by_step:
        refuse_endless(mdp, actor, episodes)
    recording = Recording(
        points=np.union1d(moments, [total]).astype(np.int64),
        by_step=by_step,
        states=recorded_states(mdp, recorded),
        window=_window(recorded, total),
        shares=stationary_distribution(mdp, actor) if recorded.rmse else np.zeros(0),
        change=recorded.change,
        steps=recorded.step_sizes,
    )
    exact = Truth(mdp, setups, int(seed), target, behaviour, truth)
    device = chosen_device(device, len(labelled) * runs)
    check_precision(dtype, device)
    parts = -(-threads // runs) if device == "cpu" else 1
    blocks = plan_blocks(setups, stream, recording, parts)
    if device == "cuda":
        from retvar.engine import cuda_runner

        number = np.dtype(dtype).itemsize
        blocks = cuda_runner.device_blocks(blocks, stream, recording.window > 0, number)
    simulation = Simulation(
        setups,
        blocks,
        stream,
        int(seed),
        runs,
        recording,
        exact.of_lanes,
        exact.frozen_of_lanes,
        threads,
        None if batch is None else arguments.integer("batch", batch, 1, MOST),
        first_run,
    )
    refuse_too_large(simulation, keep)
    for template in dict.fromkeys(setup.template for setup in setups):
        exact.of(template)
    accumulators = [Accumulator(block, simulation, keep) for block in simulation.blocks]

    def accumulate(number: int, some: range, results: Batch) -> None:
        accumulators[number].add(some, results)

    attributes = {
        "mdp": mdp.name or repr(mdp),
        "steps" if by_step else "episodes": total,
        "runs": runs,
        **({"first_run": first_run} if first_run else {}),
        "seed": str(int(seed)),
        "target": policy_name(mdp, target),
        "behaviour": policy_name(mdp, actor),
        "window": recording.window,
        "device": device,
        **({"dtype": dtype} if dtype != "float64" else {}),
        "retvar": __version__,
    }
    results = Results(mdp, labelled, simulation, accumulators, exact, moments, attributes)
    with _report(progress, runs) as report:
        if device == "cuda":
            cuda_runner.run(simulation, accumulators, report, results.prepare)
        else:
            runner.run(simulation, accumulate, report)
    return results.dataset()


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
    """Return the transitions of one run of a simulation as columns for ``update_many``.

    γ and λ are the MDP's; drop these columns for a learner that has its own.

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
    total, by_step = length_of(mdp, steps, episodes)
    run = arguments.integer("run", run, 0, MOST - 1)
    stream, used = streams.stream_of(mdp, target, behaviour, seed)
    follows, gamma = mdp.edges.next_state[used], mdp.edges.gamma[used]
    lam = np.where(follows == END, 0.0, lam_on_arrival(mdp, None)[follows])
    pieces: list[dict[str, Any]] = []
    state, t, left = 0, 0, total
    while left > 0:  # in pieces, so that Ctrl-C is noticed
        size = min(left, REPLAYED) if by_step else min(max(1_024, t), REPLAYED)
        path = streams.Path(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size))
        count, done, state = streams.walk(
            stream, run, left, int(by_step), stream.noisy, state, t, path
        )
        edge = path.edge[:count]
        pieces.append(
            {
                "state": path.state[:count],
                "reward": path.reward[:count],
                "next_state": follows[edge],
                "terminated": follows[edge] == END,
                "rho": stream.rho[edge],
                "gamma": gamma[edge],
                "lam": lam[edge],
            }
        )
        t, left = t + count, left - done
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def labelled_learners(learners: Any) -> dict[str, Learner]:
    """Learners by label; raise an InputError if they are none."""
    if isinstance(learners, Learner):
        learners = [learners]
    if isinstance(learners, Mapping):
        labelled = {arguments.text("learners", label): each for label, each in learners.items()}
        if len(labelled) < len(learners):
            raise InputError("learners", list(learners), "labels must differ as text")
    elif isinstance(learners, Sequence) and all(isinstance(d, Learner) for d in learners):
        labelled = dict(zip(labels_of(list(learners)), learners, strict=True))
    else:
        labelled = {"": learners}
    for label, learner in labelled.items():
        if not isinstance(learner, Learner):
            found = f"{label}: {literal(learner)}" if label else literal(learner)
            raise InputError("learners", found, "must be learners: Direct, VTD, Centred or a grid")
    if not labelled:
        raise InputError("learners", "none", "give at least one: Direct, VTD, Centred or a grid")
    return labelled


def length_of(mdp: MDP, steps: int | None, episodes: int | None) -> tuple[int, bool]:
    """Number of moments, and whether they are steps."""
    if (steps is None) == (episodes is None):
        given = "neither" if steps is None else "both"
        raise InputError("steps, episodes", given, "give one of the two")
    if steps is not None:
        return arguments.integer("steps", steps, 1, MOST), True
    if not mdp.episodic:
        remedy = "this MDP has no edge that ends an episode; give steps"
        raise InputError("episodes", episodes, remedy)
    return arguments.integer("episodes", episodes, 1, MOST), False


def refuse_endless(mdp: MDP, policy: object, episodes: Any) -> None:
    """Raise an InputError if a run may reach a state from which no episode ends."""
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


def features_of_nodes(mdp: MDP, features: Any, value: Any, mean: Any) -> list[Features]:
    """Features of the value, mean and variance node."""
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
            raise InputError(field, found, f"must be a table of {mdp.n_states} rows, one per state")
    return [value, mean, variance]


def recorded_states(mdp: MDP, record: Record) -> Any:
    """Indices of the states to record."""
    if record.states is None:
        return np.arange(mdp.n_states, dtype=np.int64)
    listed_states = isinstance(record.states, Sequence | np.ndarray)
    if not listed_states or isinstance(record.states, str) or len(record.states) == 0:
        raise InputError("record.states", literal(record.states), "must be a list of states")
    return np.array([mdp.state_index(s) for s in record.states], dtype=np.int64)


def _window(record: Record, total: int) -> int:
    if record.window > total:
        raise InputError("record.window", record.window, f"must be at most the end, {total:,}")
    return int(record.window)


def policy_name(mdp: MDP, policy: object) -> str:
    """Name of a policy, as an attribute of results."""
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
