"""Layout of the arrays of an online estimator: indices, constants and error codes.

Features are rows of a sparse table (`indptr`, `indices`, `values`). A state is a row; a vector that
comes with a transition gets rows of its own. Each stream has its own trace, with a list of the
weights where it is not 0. EAGER traces are updated in :mod:`retvar.online.nodes`, LAZY ones in
:mod:`retvar.online.lazy_traces`.

Lane 0 is the estimator. Lanes from 1 on are bootstrap replicates, which differ from it in one
respect: each weighs every transition by a random multiplier, 0 or 2. Features, traces and step
sizes are shared. The nodes of the network (:mod:`retvar.networks`) are at the places 0 value,
1 mean, 2 variance, 3 third and 4 fourth moment; arrays end with the last place that has a node, but
for `plan` and `report`, which are small. The arrays, :class:`Arrays`:

    plan      [place]          first weight, step-size kind, first row of its features, kind of
                               trace, code of the node (−1: none), whether a later node reads its
                               updated prediction, whether its weight is ρ; then [LEARNER]:
                               off-policy return, learn the value, number of rows, number of places
    settings  [place]          two parameters of the step-size rule; then κ, one or one per row
    weights   [weight, lane]   what predictions are made of
    held      [weight, lane]   with Averaged what learns, and `weights` its mean; empty without
    steps     [weight]         two numbers of the step-size rule; then α, or 1 where it is common to
                               all weights; then φ, where features are rows, and 0 between updates
    traces    [stream]         one per weight; then the discounts of the last transition, by place
    live      [stream]         weights where the trace is not 0; their positions in that list; their
                               number at each place
    scales    [stream, place]  s of lazy traces, of the first DEFERRED_STREAMS streams and one more;
                               None if no trace is lazy
    sums      [stream, place, lane]  A of these traces
    report                     TD errors of the nodes, then the step sizes they used last, by place
    coins     [lane]           multipliers of this transition, 1 for lane 0; None: one lane
    draws                      key of the multipliers (two words), then the number of the transition
    said                       what the nodes say in the replicates; None: one lane
    counts                     transitions learned from, and invalid ones skipped
    moments                    None: no node for the third moment; True otherwise
"""

from __future__ import annotations

from typing import Any, NamedTuple

from retvar import networks

OFFSET, KIND, ROWS, TRACED, CODE, AGAIN, BY_RHO = range(7)  # of plan[place]
LEARNER = len(networks.PLACES)  # of plan, the last; also where the step sizes of report begin
OFF_POLICY, LEARN_VALUE, COUNT, PLACE_COUNT = range(4)  # of plan[LEARNER]
PLAN = (LEARNER + 1, 7)  # shape of plan
NONE, EAGER, LAZY = range(3)  # TRACED
FIRST, SECOND, STEP, PHI = range(4)  # of steps
COLUMNS = 4
TERMINATED, TRUNCATED = 1, 2  # flags of a transition; both: 3
LIMIT = 1e150  # larger weights have diverged
FAINT = 1e-100  # smaller traces are set to 0
SMALL, LARGE = 1e-3, 1e3  # limits of the scale of a lazy trace
DEFERRED_STREAMS = 8  # streams whose lazy updates are deferred

OK, STATE, NEXT_STATE, NO_NEXT, REWARD, RHO, GAMMA, LAM, STREAM = range(9)
DIVERGED = 100  # plus the place of the node
STOP, SKIP, TRUST = range(3)  # what to do at an invalid row; TRUST: rows are already checked
WORD_BITS = 64


class Arrays(NamedTuple):
    """The arrays of an estimator, as compiled functions take them."""

    plan: Any
    settings: Any
    weights: Any
    held: Any
    steps: Any
    traces: Any
    live: Any
    scales: Any
    sums: Any
    report: Any
    coins: Any
    draws: Any
    said: Any
    counts: Any
    moments: Any


class FeatureRows(NamedTuple):
    """Features as sparse rows; all None: each state has a weight of its own."""

    indptr: Any
    indices: Any
    values: Any


class Transitions(NamedTuple):
    """A chunk of transitions; all but state, next state and reward may have one entry for all."""

    state: Any
    next_state: Any
    flags: Any
    reward: Any
    rho: Any
    gamma: Any
    lam: Any
    stream: Any
