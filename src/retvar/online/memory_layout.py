"""What the arrays of a live estimator hold, and the numbers by which code speaks of it.

Features come as rows of a sparse table (`indptr`, `indices`, `values`): a state is a row; a vector
given with a transition makes rows of its own. A trace is kept per stream, with a list of the
weights that it reaches. EAGER traces are moved in :mod:`retvar.online.kernel`,
LAZY ones in :mod:`retvar.online.lazy_traces`. What the arrays hold:

    plan      [node]    first weight, step-size kind, first row of its features, its kind of
                        trace; then [3]: method, off-policy return, learn the value, rows
    settings  [node]    two numbers of its step-size rule; then κ, one or one per row
    cells     [weight]  weight, two numbers of its step size, room for its new weight; Averaged
                        predicts from the mean (the weight) and learns in the second number; with a
                        lazy trace the last is α, or 1 where α is common to all weights
    traces    [stream]  one per weight; then the discounts of the last transition, one per node
    live      [stream]  weights that the trace reaches; their places in that list; how many a node
    scales    [stream]  s and A of each node with a lazy trace, for the streams up to OPEN; None
                        where no trace is lazy
    report              TD errors of the nodes, then the steps they last used

BootstrapSamples may ride along: learners that differ from this one only in that each takes every
transition as often as a coin says, not at all or twice. Features, traces and steps are common to
all of them; what is their own (None where there are none):

    copies    [weight, replicate]  weights; with Averaged the means
    learning  [weight, replicate]  with Averaged the weights that learn
    sums      [stream, node, replicate]  A of lazy traces, for the streams up to OPEN
    room      [row, replicate]     for the numbers of one transition
    coins                          key of the coins (two words), then the number of the transition
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
TERMINATED, TRUNCATED = 1, 2
LIMIT = 1e150  # weights beyond this have diverged
FAINT = 1e-100  # traces below this are dropped
SMALL, LARGE = 1e-3, 1e3  # scales of a lazy trace
OPEN = 8  # streams whose lazy traces stay unfolded

OK, STATE, NEXT_STATE, NO_NEXT, REWARD, RHO, GAMMA, LAM = range(8)
DIVERGED = 100  # plus the node
STOP, SKIP, TRUST = range(3)  # at a bad row; TRUST: all rows have been checked
TOSSED, FED, NOW, AFTER, DELTA, FOLLOWS, NOW_OWN, AFTER_OWN, OWN = range(9)  # of room
ROOM = 9
COINS = 64  # in a word
