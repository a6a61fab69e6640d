"""Driver of an online estimator: columns of transitions are made into steps, which all lanes learn.

:func:`advance` reads rows and hands each to ``learn`` of :mod:`retvar.td.nodes`. Lane 0 is the
estimator; the lanes after it are bootstrap replicates.
"""

from __future__ import annotations

import functools
import math
import sys
from types import FunctionType
from typing import Any, NamedTuple

from numpy import uintp as u

from retvar.td.block import read_block
from retvar.td.jit import compiled, part, specialised, wide_noalias
from retvar.td.networks import Transition
from retvar.td.nodes import Spec, Step, learning
from retvar.td.random import U, word

TERMINATED, TRUNCATED = 1, 2  # flags of a transition; both: 3
OK, STATE, NEXT_STATE, NO_NEXT, REWARD, RHO, GAMMA, LAM, STREAM = range(9)
DIVERGED = 100  # plus the number of the node
STOP, SKIP, TRUST = range(3)  # what to do at an invalid row; TRUST: rows are already checked
WORD_BITS = 64
LARGEST = sys.float_info.max


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


class Kernel(NamedTuple):
    """Compiled functions of an estimator."""

    advance: Any
    advance_one: Any
    clear: Any


@part
def inspect(x, t, states, any_gamma, any_lam):
    """Return OK or the error code of row t; γ and λ below 0 mean "not given"."""
    s, s2 = x.state[u(t)], x.next_state[u(t)]
    ended = (x.flags[u(t if x.flags.size > 1 else 0)] & TERMINATED) != 0
    if s < 0 or s >= states:
        return STATE
    if s2 >= states or s2 < -1:
        return NEXT_STATE
    if s2 < 0 and not ended:
        return NO_NEXT
    if not math.isfinite(x.reward[u(t)]):
        return REWARD
    rho = x.rho[u(t if x.rho.size > 1 else 0)]
    if not (math.isfinite(rho) and rho >= 0.0):
        return RHO
    gamma = x.gamma[u(t if x.gamma.size > 1 else 0)]
    if not (gamma <= 1.0) or (gamma < 0.0 and not (any_gamma or ended)):
        return GAMMA
    lam = x.lam[u(t if x.lam.size > 1 else 0)]
    if not (lam <= 1.0) or (lam < 0.0 and not (any_lam or ended)):
        return LAM
    return OK


@part
def beyond(column, low, high):
    """How many numbers of a column are not from `low` to `high`; without a branch for each."""
    found = 0
    for t in range(column.size):
        found += 0 if low <= column[u(t)] <= high else 1
    return found


@functools.partial(compiled, _nrt=False)
def check(columns, states, any_gamma, any_lam):
    """Return the first invalid row of a chunk and its error code; (−1, OK) if all are valid."""
    x = columns
    doubtful = beyond(x.state, 0, states - 1) + beyond(x.next_state, 0, states - 1)
    doubtful += beyond(x.reward, -LARGEST, LARGEST) + beyond(x.rho, 0.0, LARGEST)
    doubtful += beyond(x.gamma, -1.0 if any_gamma else 0.0, 1.0)
    doubtful += beyond(x.lam, -1.0 if any_lam else 0.0, 1.0)
    for t in range(columns.state.size if doubtful > 0 else 0):
        code = inspect(columns, t, states, any_gamma, any_lam)
        if code != OK:
            return t, code
    return -1, OK


@part
def toss(coins, draws):
    """Draw the bootstrap multiplier of each replicate for this transition: 0 or 2.

    Mean and variance are 1, as a multiplier bootstrap requires. The draws of a replicate do not
    depend on how many replicates there are. Lane 0 is the estimator; its multiplier stays 1.
    """
    for first in range(1, coins.size, WORD_BITS):
        bits = word(draws[0], draws[1], (draws[2] << U(8)) + U(first // WORD_BITS))
        for k in range(WORD_BITS):
            coins[u(first + k)] = 2.0 if (bits >> U(k)) & U(1) != U(0) else 0.0
    draws[2] += U(1)


_LATER: Any = None  # of a kernel
learn_step = clear_traces = read_words = run_rows = lost = OFF_POLICY = COINS = _LATER


def run(columns, mode, m, draws, gammas, lams, states, counts):
    """Learn from the rows of a chunk; return the row at which it stopped, and OK or a code.

    It counts the rows learned from and skipped. An invalid row changes nothing, but with SKIP it
    clears the traces of its stream.
    """
    by_ratio, by_gamma = 1 if columns.rho.size > 1 else 0, 1 if columns.gamma.size > 1 else 0
    by_lam, by_stream = 1 if columns.lam.size > 1 else 0, 1 if columns.stream.size > 1 else 0
    by_flag = 1 if columns.flags.size > 1 else 0
    t, learned, code = 0, 0, OK
    while t < columns.state.size:
        stream, flag = u(columns.stream[u(t * by_stream)]), columns.flags[u(t * by_flag)]
        if mode != TRUST:
            code = inspect(columns, t, states, gammas.size > 0, lams.size > 0)
        if code != OK:
            if mode == STOP:
                break
            clear_traces(m, stream)
            counts[1] += 1
        else:
            # Only a terminated transition has no next state and γ′ = 0; truncated ones bootstrap.
            s, s2, rho = columns.state[u(t)], columns.next_state[u(t)], columns.rho[u(t * by_ratio)]
            g, lm = columns.gamma[u(t * by_gamma)], columns.lam[u(t * by_lam)]
            if (flag & TERMINATED) != 0:
                s2, g, lm = states, 0.0, 0.0
            else:
                g = gammas[u(s2 if gammas.size > 1 else 0)] if g < 0.0 else g
                lm = lams[u(s2 if lams.size > 1 else 0)] if lm < 0.0 else lm
            if COINS:
                toss(m[0].coins, draws)
            eta, rho_bar = (rho, 1.0) if OFF_POLICY else (1.0, rho)
            x = Transition(columns.reward[u(t)], g, lm, eta)
            learn_step(m, Step(s, s2, x, rho, rho_bar, stream, s == s2, m[0].coins))
            if flag != 0:  # both kinds of end clear the traces
                clear_traces(m, stream)
            learned += 1
        code = lost(m)
        if code != OK:
            learned -= 1
            break
        t += 1
    counts[0] += learned
    return t, code


def advance(columns, mode, m, draws, gammas, lams, states, counts):
    """Learn from the rows of a chunk; see :func:`run`."""
    wide_noalias()
    return run_rows(columns, mode, m, draws, gammas, lams, states, counts)


def advance_one(ints, floats, words, draws, gammas, lams, streams):
    """Learn from the one transition in `ints` and `floats`; the block is given by its address.

    The cost of a call from Python grows with the number of arrays.
    """
    m = read_words(words)
    if not 0 <= ints[3] < streams:
        return STREAM
    columns = Transitions(
        ints[0:1], ints[1:2], ints[2:3], floats[4:5], floats[5:6], floats[6:7], floats[7:8],
        ints[3:4],
    )  # fmt: skip
    return run_rows(columns, STOP, m, draws, gammas, lams, ints[8], ints[9:11])[1]


def clear_stream(m, stream):
    """Clear the traces of a stream; return OK or a code."""
    clear_traces(m, u(stream))
    return lost(m)


@functools.cache
def kernel_of(specs: tuple[Spec, ...], off_policy: bool) -> Kernel:
    """Return the functions of an estimator; each is compiled at its first call."""
    learn, clear = learning(specs)
    codes = (f"{DIVERGED + k} if m[{k}].lost[0] != 0.0 else" for k in range(len(specs)))
    made = {
        "learn_step": learn, "clear_traces": clear, "OFF_POLICY": off_policy,
        "COINS": specs[0].coins, "read_words": read_block(specs),
        "lost": part(eval(f"lambda m: {' '.join(codes)} {OK}")),
    }  # fmt: skip
    made["run_rows"] = part(FunctionType(run.__code__, globals() | made, "run"))
    key = repr((specs, off_policy))
    return Kernel(*(specialised(f, made, key=key) for f in (advance, advance_one, clear_stream)))
