"""simulate(): run learners on an MDP and return a labelled dataset with the exact solution."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.exact.stationary import stationary_distribution
from retvar.mdp import END, MDP
from retvar.mdp.weighted_edges import lam_on_arrival
from retvar.simulation import runner, streams
from retvar.simulation.blocks import Recording, most_weights, plan_blocks
from retvar.simulation.cuda_device import chosen_device
from retvar.simulation.question import MOST, Question, length_of
from retvar.simulation.record import record_of
from retvar.simulation.results import Results, refuse_too_large
from retvar.simulation.runner import Simulation
from retvar.support import arguments
from retvar.support.progress import Display
from retvar.td.learners import Learner

if TYPE_CHECKING:
    import xarray

REPLAYED = 1 << 20  # transitions that replay makes in one call


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
        ``"cpu"``; ``"cuda"``, an NVIDIA GPU (needs an extra, see :doc:`simulate`); or ``"auto"``: a
        GPU if there is one and there is enough to do. Results do not depend on it.

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
    >>> last = data.isel(step=-1).sel(learner="direct alpha_bar=0.01")
    >>> bool(abs(last.variance - last.true_variance).max() < 0.2)
    True
    """
    total, by_step = length_of(mdp, steps, episodes)
    runs = arguments.integer("runs", runs, 1, MOST)
    first_run = arguments.integer("first_run", first_run, 0, MOST - 1)
    threads = runner.usable_threads() if threads is None else threads
    threads = arguments.integer("threads", threads, 1, MOST)
    arguments.choice("keep", keep, ("stats", "runs"))
    recorded = record_of(record)
    policies, tables = (target, behaviour), (features, value_features, mean_features)
    question = Question(mdp, learners, policies, tables, truth, seed, first_run + runs)
    moments = recorded.moments(total)
    if not by_step:
        question.refuse_endless(episodes)
    recording = Recording(
        points=np.union1d(moments, [total]).astype(np.int64),
        by_step=by_step,
        states=question.recorded_states(recorded),
        window=recorded.window,
        shares=stationary_distribution(mdp, question.actor) if recorded.rmse else np.zeros(0),
        change=recorded.change,
        steps=recorded.step_sizes,
    )
    parts = -(-threads // runs) if device == "cpu" else 1
    blocks = plan_blocks(question.setups, question.stream, recording, parts)
    weights = most_weights(blocks, question.setups)
    device = chosen_device(device, len(question.learners) * runs, weights)
    if device == "cuda":
        from retvar.simulation import cuda_runner

        blocks = [cuda_runner.laid_out(question, recording, block)[0] for block in blocks]
    batch = None if batch is None else arguments.integer("batch", batch, 1, MOST)
    simulation = Simulation(question, blocks, recording, runs, first_run, threads, batch)
    refuse_too_large(simulation, keep)
    for template in dict.fromkeys(question.templates):
        question.truth(template)
    attributes = {
        "steps" if by_step else "episodes": total,
        "runs": runs,
        **({"first_run": first_run} if first_run else {}),
        "seed": str(question.seed),
        "window": recording.window,
        "device": device,
    }
    results = Results(simulation, keep, moments, attributes)
    with _report(progress, runs) as report:
        if device == "cuda":
            cuda_runner.run(simulation, results.accumulators, report, results.prepare)
        else:
            runner.run(simulation, results.accumulators, report)
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


@contextlib.contextmanager
def _report(
    progress: bool | Callable[[float], None], runs: int
) -> Iterator[Callable[[float], None] | None]:
    """Yield a function that takes the number of finished runs, or None without `progress`."""
    if callable(progress):
        yield lambda done: progress(min(1.0, done / runs))
        progress(1.0)
    elif progress:
        with Display(sys.stderr, unit="runs", announce=True) as display:
            display.start(runs)
            yield display.advance
    else:
        yield None
