"""Layout of the arrays of an online estimator: indices, constants and error codes.

Features are rows of a sparse table (`indptr`, `indices`, `values`). A state is a row; a vector that
comes with a transition gets rows of its own. Each stream has its own trace, with a list of the
weights where it is not 0. EAGER traces are updated in :mod:`retvar.online.kernel`, LAZY ones in
:mod:`retvar.online.lazy_traces`. The arrays:

    plan      [node]    first weight, step-size kind, first row of its features, kind of trace;
                        then [3]: method, off-policy return, learn the value, number of rows
    settings  [node]    two parameters of the step-size rule; then κ, one or one per row
    cells     [weight]  weight, two numbers of its step size, scratch for its new weight. Averaged
                        predicts from the mean (the weight) and learns in the second number. With a
                        lazy trace the last is α, or 1 where α is common to all weights
    traces    [stream]  one per weight; then the discounts of the last transition, one per node
    live      [stream]  weights where the trace is not 0; their positions in that list; their
                        number in each node
    scales    [stream]  s and A of each node with a lazy trace, for the first DEFERRED_STREAMS
                        streams; None if no trace is lazy
    report              TD errors of the nodes, then the step sizes they used last

Bootstrap replicates are learners that differ from this one in one respect: each weighs every
transition by a random multiplier, 0 or 2. Features, traces and step sizes are shared. Their own
arrays (None without replicates):

    replicates  [weight, replicate]        weights; with Averaged the means
    learning    [weight, replicate]        with Averaged the weights that learn
    sums        [stream, node, replicate]  A of lazy traces, for the first DEFERRED_STREAMS streams
    scratch     [row, replicate]           numbers of one transition
    draws                                  key of the multipliers (two words), then the number of
                                           the transition
"""

from __future__ import annotations

VALUE, MEAN, SECONDARY = range(3)
DIRECT, VTD, CENTRED = range(3)
OFFSET, KIND, ROWS, TRACED = range(4)  # of plan[node]
METHOD, OFF_POLICY, LEARN_VALUE, COUNT = range(4)  # of plan[3]
NONE, EAGER, LAZY = range(3)  # TRACED
WEIGHT, FIRST, SECOND, NEW = range(4)  # of cells
STEP = NEW  # of cells of nodes with lazy traces
SCALE, SUM = range(2)  # of scales
TERMINATED, TRUNCATED = 1, 2  # flags of a transition; both: 3
LIMIT = 1e150  # larger weights have diverged
FAINT = 1e-100  # smaller traces are set to 0
SMALL, LARGE = 1e-3, 1e3  # limits of the scale of a lazy trace
DEFERRED_STREAMS = 8  # streams whose lazy updates are deferred

OK, STATE, NEXT_STATE, NO_NEXT, REWARD, RHO, GAMMA, LAM = range(8)
DIVERGED = 100  # plus the node
STOP, SKIP, TRUST = range(3)  # what to do at an invalid row; TRUST: rows are already checked
MULTIPLIER, FED, NOW, AFTER, DELTA, NEXT_VALUE, NOW_OWN, AFTER_OWN, OWN = range(9)  # of scratch
SCRATCH_ROWS = 9
WORD_BITS = 64
