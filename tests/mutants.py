"""Classic bugs of TD code, inserted one at a time, each with the test that must then fail.

    python tests/mutants.py              all of them, as a table
    python tests/mutants.py NAME …       these
    python tests/mutants.py --list       names of all bugs

Every bug is an exact replacement of text in a scratch copy of the package. The exit status is 1 if
a bug survives, if its test fails without it, or if the text that it replaces no longer exists. The
copies run as plain Python, which learns the same bits as compiled code (there is a test for that);
``--compiled`` compiles each copy, and takes several minutes. ``--markdown`` prints the table of
docs/bugs.md.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "bugs.md"
PACKAGE = Path("src") / "retvar"


@dataclass(frozen=True)
class Mutant:
    name: str
    bug: str
    effect: str  # what it does to the numbers
    file: str  # below src/retvar
    old: str
    new: str
    test: str  # below tests/; must fail


KERNEL, NODES, LAZY = "online/kernel.py", "online/nodes.py", "online/lazy_traces.py"
RULES, NETWORKS, STEPS = "rules.py", "networks.py", "td/steps.py"
ESTIMATOR, LEARNERS = "online/estimator.py", "learners.py"
MOMENTS, LANES, RECORDER = "exact/moments.py", "engine/lane_nodes.py", "engine/recorder.py"
SIMULATED = "test_engine.py::test_rare_cases_are_as_the_online_learner_has_them"
REFERENCE = "test_online.py::test_learners_equal_the_reference"
ENDS = "test_online.py::test_terminated_does_not_bootstrap_and_truncated_does"
TWO_STEPS = "test_online.py::test_gamma_in_the_trace_is_that_of_the_state_being_left"
PREVIOUS_RATIO = "test_online.py::test_gamma_bar_in_the_trace_carries_the_previous_ratio"
WHOLE_TRACE = "test_online.py::test_target_return_weighs_the_whole_trace_by_the_current_ratio"
PATHS = "test_curves.py::test_curves_are_the_averages_over_all_paths"
EPISODES = "test_online.py::test_nothing_crosses_the_end_of_an_episode"
LEARNED_MOMENTS = "test_learned_moments.py::test_moments_learned_one_by_one_equal_the_reference"
SETUP, RETURNS, VALUES = (
    "engine/learner_setup.py", "estimation/returns.py", "estimation/feature_values.py",
)  # fmt: skip
SQUARES, SAMPLE, LEASES = (
    "estimation/least_squares.py", "estimation/return_sample.py", "sweep/leases.py",
)  # fmt: skip
ONLINE = "test_engine.py::test_a_compiled_run_is_the_online_learner_fed_the_replayed_stream"
OWN = "test_simulate.py::test_gamma_and_lambda_of_a_learner_are_as_those_of_the_mdp"
GPU_MOMENTS = "test_gpu.py::test_statistics_on_a_gpu_are_those_of_the_runs"
GPU_FAMILIES = "test_gpu.py::test_every_family_of_cases_on_a_gpu_has_the_bits_of_the_cpu"
OBSERVED = (
    "test_estimate.py::test_returns_are_those_of_their_definition_wherever_chunks_are_cut[0-False]"
)
RIDGE = (
    "test_feature_values.py::"
    "test_regression_is_ridge_with_scaled_features_and_a_free_intercept[True]"
)
ROWS = "test_least_squares.py::test_sums_give_what_the_rows_give"
LIMITS = "test_least_squares.py::test_intervals_are_those_of_student_and_of_the_delta_method"
ALL_PATHS = "test_solve.py::test_mean_and_variance_equal_those_of_all_paths_enumerated"
CHECK_STD = "test_checks.py::test_the_std_of_a_place_is_that_of_its_returns_and_of_what_they_lack"
TABULAR, VERDICTS, AGREEMENT = (
    "estimation/tabular.py", "estimation/verdicts.py", "estimation/agreement.py",
)  # fmt: skip
FILES, PROCESSES, SIGNALS, READING = "files.py", "processes.py", "signals.py", "reading.py"
ARRANGEMENT = "experience/arrangement.py"
STARTS = "test_curves.py::test_values_may_be_fixed_and_starts_may_be_random"
NORMAL = "test_statistics.py::test_intervals_of_a_normal_bootstrap_are_those_of_student"

MUTANTS = [
    Mutant(
        "interval-biased-variance",
        "bootstrap intervals keep the biased variance of the sample",
        "intervals over few runs are too short: by 11% for five runs",
        "sweep/statistics.py",
        "    return float(ndtr(math.sqrt(runs / (runs - 1)) * t))",
        "    return float(ndtr(t))",
        NORMAL,
    ),
    Mutant(
        "interval-degrees-of-freedom",
        "bootstrap intervals count one degree of freedom too many",
        "intervals over few runs are too short",
        "sweep/statistics.py",
        "    t = stdtrit(strata * (runs - 1), tail / 2)",
        "    t = stdtrit(strata * runs, tail / 2)",
        NORMAL,
    ),
    Mutant(
        "boot-strata-df",
        "bootstrap intervals over several domains lose one degree of freedom for all their means",
        "intervals over few runs are too short: each domain has a mean of its own",
        "sweep/statistics.py",
        "    t = stdtrit(strata * (runs - 1), tail / 2)",
        "    t = stdtrit(strata * runs - 1, tail / 2)",
        NORMAL,
    ),
    Mutant(
        "contenders-one-half",
        "settings are judged by the runs that selected them, too",
        "the best setting is missing among the contenders more often than stated",
        "sweep/effects.py",
        "selecting, judging = errors[..., ::2], errors[..., 1::2]",
        "selecting, judging = errors[..., ::2], errors",
        "test_statistics.py::"
        "test_the_best_setting_is_a_contender_as_often_as_stated[runs-shape0]",
    ),
    Mutant(
        "contenders-used-runs",
        "over domains, runs that selected settings before judge them, too",
        "the setting that was lucky in these runs seems best",
        "sweep/effects.py",
        "        runs = errors[..., 1::2] if split else errors\n",
        "        runs = errors\n",
        "test_statistics.py::"
        "test_runs_that_selected_settings_before_decide_nothing_over_domains",
    ),
    Mutant(
        "frontier-unvisited-states",
        "in states that a risk-averse policy never gets to, the search's own start is left",
        "the policy is not greedy there, as it is said to be",
        "risk/frontiers.py",
        "    pi[~visited] = greedy.probabilities[~visited]\n",
        "",
        "test_frontier.py::test_where_a_policy_never_gets_it_is_the_greedy_one",
    ),
    Mutant(
        "frontier-endless-at-once",
        "a state counts as endless unless a discount below 1 comes with its next step",
        "risk-seeking penalties are refused where every policy ends",
        "risk/frontiers.py",
        "((e.gamma < 1) | ~inside[e.next_state])",
        "(e.gamma < 1)",
        "test_frontier.py::test_risk_may_be_sought_exactly_where_every_policy_ends",
    ),
    Mutant(
        "frontier-rare-actions",
        "actions that hardly matter stay in mixtures",
        "policies are mixed in states where one action is as good",
        "risk/search.py",
        "        mixture = _without_rare_actions(landscape, mixture, penalty)\n",
        "",
        "test_frontier.py::test_a_mixture_has_no_rare_action_without_which_nothing_is_lost",
    ),
    Mutant(
        "interval-beyond-returns",
        "intervals of returns reach beyond the largest and smallest return seen",
        "the upper end is 7 where no return exceeds 6",
        "estimation/return_intervals.py",
        "        return np.clip(found, self.low, self.high)\n",
        "        return found\n",
        "test_return_sample.py::test_intervals_end_where_many_returns_ended",
    ),
    Mutant(
        "cut-off-without-score",
        "returns without a score count among those cut off",
        "intervals are called doubtful that are not",
        "estimation/return_intervals.py",
        "float(cut[known].mean())",
        "float(cut.mean())",
        "test_return_sample.py::test_only_returns_with_a_score_count_as_cut_off",
    ),
    Mutant(
        "sort-splits-ties",
        "a log sorted outside memory is cut among rows of one entity and time",
        "duplicates on both sides of a cut are used twice",
        ARRANGEMENT,
        "        low, high = low + int(first), low + int(last)\n    return low\n",
        "        low, high = low + int(first), low + int(last)\n    return high\n",
        "test_logs.py::test_duplicates_and_ties_are_those_of_the_definition_also_outside_memory",
    ),
    Mutant(
        "squares-huge-rewards",
        "least squares takes every finite reward",
        "powers of large rewards overflow: answers are NaN",
        TABULAR,
        "good &= known and proper and abs(reward[t]) <= LARGEST_REWARD",
        "good &= known and proper and np.isfinite(reward[t])",
        "test_least_squares.py::test_rewards_whose_powers_would_overflow_are_refused",
    ),
    Mutant(
        "constant-of-rewards",
        "the share of a constant in its own λ-returns is computed with the rewards",
        "answers depend on the unit of rewards",
        VALUES,
        "lambda_returns(zeros, *ends, ones,",
        "lambda_returns(rewards, *ends, ones,",
        "test_least_squares.py::test_rewards_in_other_units_give_the_answers_in_these_units",
    ),
    Mutant(
        "finished-keeps-less",
        "of an unfinished sweep the smaller of two complete parts is kept",
        "comparisons rest on fewer results than there are",
        "sweep/run_errors.py",
        "    if left[0] >= left[1]:\n",
        "    if left[0] <= left[1]:\n",
        "test_sweep.py::test_of_an_unfinished_sweep_as_many_results_as_possible_are_kept",
    ),
    Mutant(
        "simulated-trace-late",
        "in simulations with few weights the trace decays by this transition's discount",
        "κ takes the discount of the state arrived in: where γ or ρ varies the trace is wrong",
        LANES,
        "        decay = node.last[lane] * node.kappa[",
        "        decay = discount * node.kappa[",
        SIMULATED,
    ),
    Mutant(
        "simulated-feature-after",
        "in simulations with few weights the trace takes the features of the next state",
        "the wrong state gets the credit for each transition",
        LANES,
        "E = trace(decay, node.trace[k], feature(node.table, here.s, i), weigh(here))",
        "E = trace(decay, node.trace[k], feature(node.table, here.s2, i), weigh(here))",
        SIMULATED,
    ),
    Mutant(
        "simulated-window-once",
        "a state that is left is added to the window once, not for all moments since then",
        "averages over a window lean towards states that are visited often",
        RECORDER,
        "            times = clock - scratch.counted[s]\n            scratch",
        "            times = 1\n            scratch",
        SIMULATED,
    ),
    Mutant(
        "truncation-as-termination",
        "truncation treated as termination",
        "the state where time ran out counts as worth 0: returns look shorter than they are",
        KERNEL,
        "        ended = (flag & TERMINATED) != 0\n",
        "        ended = flag != 0\n",
        ENDS,
    ),
    Mutant(
        "terminated-bootstraps",
        "a terminated transition still bootstraps",
        "γ′J(s′) of the given state is added to the last reward of every episode",
        KERNEL,
        "        if ended:\n            row_next, g",
        "        if ended and row_next < 0:\n            row_next, g",
        ENDS,
    ),
    Mutant(
        "done-late",
        "`done` read one step late",
        "the end of an episode bootstraps from the next one, whose first step does not bootstrap",
        ESTIMATOR,
        '            try:\n                _pack(',
        '            late = getattr(self, "_late", (False, False))\n'
        '            self._late = (terminated, truncated)\n'
        '            terminated, truncated = late\n'
        '            try:\n'
        '                _pack(',
        ENDS,
    ),
    Mutant(
        "trace-not-reset",
        "trace not reset at the end of an episode",
        "after a cut, errors of the new episode move the states of the old one",
        KERNEL,
        '        if flag != 0:  # both',
        '        if False:  # both',
        EPISODES + "[terminated]",
    ),
    Mutant(
        "trace-kept-by-truncation",
        "trace reset where an episode terminates, not where it is cut",
        "as above, for truncated episodes only: a time limit leaks into the next episode",
        KERNEL,
        '        if flag != 0:  # both',
        '        if ended:  # both',
        EPISODES + "[truncated]",
    ),
    Mutant(
        "previous-discount-kept",
        "previous γ and γ̄ not reset at the end of an episode",
        "none while the trace is cleared too; a reset that relies on γ = 0 lets the old trace in",
        LAZY,
        '        m.traces[u(stream), u(total + place)] = 0.0\n',
        '',
        EPISODES + "[truncated]",
    ),
    Mutant(
        "new-gamma-in-trace",
        "γ of the wrong state in the trace: the new one instead of the previous",
        "traces decay by γ(s′); the same where γ is one number, wrong where it differs by state",
        KERNEL,
        'decay = m.traces[u(stream), u(total + place)] *',
        'decay = discount *',
        TWO_STEPS,
    ),
    Mutant(
        "kappa-of-arrival",
        "κ of the state arrived in instead of the one left",
        "invisible with one κ; with one per state the traces mix returns of another length",
        KERNEL,
        'kappa = 2 + (row if m.settings.shape[1] > 3 else 0)',
        'kappa = 2 + (max(row_next, 0) if m.settings.shape[1] > 3 else 0)',
        TWO_STEPS,
    ),
    Mutant(
        "gamma-of-departure",
        "discounting with γ(s) instead of γ(s′)",
        "a soft end (γ = 0 on arrival) is applied one step late",
        KERNEL,
        "g = gammas[row_next if gammas.size > 1 else 0]",
        "g = gammas[row if gammas.size > 1 else 0]",
        TWO_STEPS,
    ),
    Mutant(
        "ratio-twice",
        "importance ratio applied twice, in the trace and in the step",
        "transitions weigh ρ² instead of ρ; what is learned is the return of no policy",
        NODES,
        'move_lanes(m.coins, m.said, learning, at, step_of(m, h, at, step), own, E)',
        'move_lanes(m.coins, m.said, learning, at, step_of(m, h, at, step), own, E * h.weight)',
        REFERENCE + "[direct-target_return]",
    ),
    Mutant(
        "averaged-feeds-itself",
        "the variance node fed with errors of the weights that learn, not of their means",
        "steps of n^−0.6 keep δ noisy: its square is too large, and so is the variance",
        NODES,
        '    return Reading(now, after, error, updated), finite',
        '    return Reading(now, after, own, updated), finite',
        "test_bootstrap.py::test_estimator_and_replicates_equal_the_reference",
    ),
    Mutant(
        "multipliers-shared",
        "all replicates have the same multiplier",
        "they do not differ, and every interval is a point",
        KERNEL,
        "(bits >> U(k)) & U(1)",
        "(bits >> U(0)) & U(1)",
        "test_bootstrap.py::test_estimator_and_replicates_equal_the_reference",
    ),
    Mutant(
        "lazy-forgets-base",
        "a feature is added to a lazy trace without correcting the weight",
        "each visit adds the deferred updates once more",
        LAZY,
        '        base = moved(base, -step, A, e)\n',
        '        base = moved(base, 0.0, A, e)\n',
        "test_lazy_traces.py::test_estimator_and_replicates_equal_the_reference",
    ),
    Mutant(
        "ratio-missing",
        "importance ratio not applied at all",
        "the behaviour's return is learned instead of the target's",
        RULES,
        "    return weight * (decay * E + phi)\n",
        "    return decay * E + phi\n",
        WHOLE_TRACE,
    ),
    Mutant(
        "ratio-on-features-only",
        "ratio applied to φ, not to the old trace",
        "ρ = 0 does not cut the trace; later errors reach actions that the target never takes",
        RULES,
        "    return weight * (decay * E + phi)\n",
        "    return decay * E + weight * phi\n",
        WHOLE_TRACE,
    ),
    Mutant(
        "ratio-of-zero-kept",
        "a ratio of 0 skips the trace instead of clearing it",
        "the trace of before survives a transition that the target never makes",
        NODES,
        'return trace(decay, E, phi(rows.indices, m, h, i), h.weight)',
        'return trace(decay, E, phi(rows.indices, m, h, i), h.weight if h.weight > 0.0 else 1.0)',
        "test_online.py::test_a_ratio_of_zero_clears_the_trace",
    ),
    Mutant(
        "replacing-traces",
        "replacing instead of accumulating traces",
        "a state visited twice learns less from what follows",
        RULES,
        "    return weight * (decay * E + phi)\n",
        "    return weight * phi if phi != 0 else weight * (decay * E)\n",
        REFERENCE + "[direct-target_return]",
    ),
    Mutant(
        "streams-share-traces",
        "traces shared between streams",
        "errors of one environment move the states that another has just left",
        KERNEL,
        'stream, flag = columns.stream[u(t * by_stream)], columns.flags[u(t * by_flag)]',
        'stream, flag = 0, columns.flags[u(t * by_flag)]',
        "test_online.py::test_interleaved_streams_share_weights_and_keep_their_own_traces",
    ),
    Mutant(
        "gamma-bar-not-squared",
        "γ̄ without the square",
        "later steps weigh γλ instead of (γλ)²: at 0.9 a steady variance is 1.9 times too large",
        RULES,
        "    return discount * discount\n",
        "    return discount\n",
        TWO_STEPS,
    ),
    Mutant(
        "gamma-bar-without-lambda",
        "λ missing from γ̄",
        "the variance of the return for λ = 1 instead of the given λ",
        NETWORKS,
        '    return rules.variance_discount(rules.mean_discount(x.gamma, x.lam, x.eta))',
        '    return rules.variance_discount(rules.mean_discount(x.gamma, 1.0, x.eta))',
        TWO_STEPS,
    ),
    Mutant(
        "gamma-bar-without-eta",
        "η missing from γ̄",
        "the ratios of later steps do not enter the spread of the off-policy return",
        NETWORKS,
        '    return rules.variance_discount(rules.mean_discount(x.gamma, x.lam, x.eta))',
        '    return rules.variance_discount(rules.mean_discount(x.gamma, x.lam, 1.0))',
        PREVIOUS_RATIO,
    ),
    Mutant(
        "current-eta-in-trace",
        "γ̄ in the trace with the current η instead of the previous one",
        "each transition's ratio weighs the wrong past; invisible without traces or on-policy",
        KERNEL,
        '    m.traces[u(stream), u(total + place)] = discount\n    learns',
        '    if place == VARIANCE:\n'
        '        decay *= x.eta * x.eta\n'
        '    m.traces[u(stream), u(total + place)] = (\n'
        '        (x.gamma * x.lam) ** 2 if place == VARIANCE else discount\n'
        '    )\n'
        '    learns',
        PREVIOUS_RATIO,
    ),
    Mutant(
        "error-after-update",
        "the variance node reads the value's error after the value's update",
        "without traces δ has shrunk to (1−α)δ: the variance is (1−α)² of what it should be",
        NODES,
        '    return Reading(now, after, error, updated), finite',
        '    if rows.indices is None and h.end_next > h.begin_next:\n'
        '        now = m.weights[h.offset + h.begin, 0]\n'
        '        after = m.weights[h.offset + h.begin_next, 0]\n'
        '        error = td_error(fed, h.discount, after, now)\n'
        '    return Reading(now, after, error, updated), finite',
        "test_rules.py::test_a_vtd_update_is_the_direct_one_less_the_squared_move",
    ),
    Mutant(
        "vtd-value-before-update",
        "VTD reads J(s′) before the value's update",
        "off by the move of J(s′), which traces and self-loops cause; invisible without them",
        NETWORKS,
        'x.lam, read.value.updated, x.eta)',
        'x.lam, read.value.after, x.eta)',
        REFERENCE + "[vtd-target_return]",
    ),
    Mutant(
        "direct-reward-on-policy",
        "direct reward ηδ without (η−1)J(s)",
        "right on-policy; the off-policy return misses the spread that the ratio gives to J(s)",
        RULES,
        "    root = eta * delta + (eta - 1) * J\n",
        "    root = eta * delta\n",
        "test_rules.py::test_the_centred_reward_at_the_value_is_the_direct_one",
    ),
    Mutant(
        "mean-discount-without-lambda",
        "λ missing from the discount of the centred mean node",
        "bootstrapped twice, by (1−λ′)J and by all of the mean: deviations from a wrong mean",
        NETWORKS,
        '    """ηγ′λ′."""\n    return rules.mean_discount(x.gamma, x.lam, x.eta)',
        '    """ηγ′λ′."""\n    return rules.mean_discount(x.gamma, 1.0, x.eta)',
        REFERENCE + "[centred-target_return]",
    ),
    Mutant(
        "negative-clipped",
        "a negative VTD variance clipped to 0",
        "estimates no longer average out: biased upwards, and a lagging second moment is hidden",
        ESTIMATOR,
        '        return found - J * J',
        '        return np.maximum(found - J * J, 0)',
        "test_online.py::test_a_negative_vtd_variance_is_not_clipped_and_has_no_std",
    ),
    Mutant(
        "second-moment-from-variance",
        "VTD's second moment started at V instead of V + J²",
        "with an initial value J the variance starts at V − J²",
        LEARNERS,
        '(self.initial_variance, dtype=float) + np.asarray(self.value, float) ** 2',
        '(self.initial_variance, dtype=float)',
        REFERENCE + "[vtd-target_return]",
    ),
    Mutant(
        "frozen-value-moves",
        "a fixed value is still learned",
        "experiments with a given value function measure another one",
        KERNEL,
        '    learns = place != VALUE or m.plan[LEARNER, LEARN_VALUE] != 0\n',
        '    learns = True\n',
        REFERENCE,
    ),
    Mutant(
        "decay-counts-together",
        "1/n steps with one n for all states",
        "rare states get the tiny steps of frequent ones, and stay near where they began",
        NODES,
        "m.steps[at, FIRST] += counted(h.kind, h.weight)",
        "m.steps[:, FIRST] += counted(h.kind, h.weight)",
        "test_online.py::test_decaying_steps_give_the_mean_of_the_targets",
    ),
    Mutant(
        "adadelta-order",
        "ADADELTA's step taken before the error is accumulated",
        "the first step is √ε/√ε = 1: the first target is copied whole",
        STEPS,
        '    errors = running_mean_square(decay, errors, error)\n'
        '    step = adadelta_step(epsilon, errors, updates)\n',
        '    step = adadelta_step(epsilon, errors, updates)\n'
        '    errors = running_mean_square(decay, errors, error)\n',
        "test_online.py::test_adadelta_follows_its_equations",
    ),
    Mutant(
        "bound-with-value-discount",
        "AlphaBound of the variance node with the value node's discount",
        "γ′ > γ̄′, so that the bound is too weak: the variance node can overshoot",
        NODES,
        'found += h.discount * entry(rows.values, k)',
        'found += m.traces[u(h.stream), m.traces.shape[1] - 3] * entry(rows.values, k)',
        "test_online.py::test_each_node_bounds_its_step_by_its_own_discount",
    ),
    Mutant(
        "rejected-counted",
        "a step counted for rejected input",
        "step counts, and what is derived from them, drift from what was learned",
        ESTIMATOR,
        "            self.rejected += 1\n            raise self._input_error(code, state",
        "            self.rejected += 1\n            self.steps += 1\n"
        "            raise self._input_error(code, state",
        "test_online.py::test_bad_transitions_are_refused_counted_and_leave_no_trace",
    ),
    Mutant(
        "skipped-row-leaves-trace",
        "a bad row skipped without cutting the trace",
        "the steps before and after a gap are credited to each other",
        KERNEL,
        '            code = end_episode(stream, m)\n'
        '            if code != OK:\n'
        '                return t, code\n'
        '            m.counts[1] += 1\n',
        '            m.counts[1] += 1\n',
        "test_online.py::test_a_bad_chunk_is_refused_whole_or_its_bad_rows_skipped",
    ),
    Mutant(
        "centred-by-the-value",
        "the centred variance node reads the value's error instead of the mean's",
        "deviations from J instead of the mean of the λ-return: biased wherever J is wrong",
        NETWORKS,
        "    return read.mean.error * read.mean.error\n",
        "    return read.value.error * read.value.error\n",
        REFERENCE + "[centred-target_return]",
    ),
    Mutant(
        "interrupted-rows-not-counted",
        "rows learned before Ctrl-C are not counted",
        "a saved estimator says that it has seen less than it has; resumed, it learns rows twice",
        KERNEL,
        "        m.counts[0] += 1\n",
        "        m.counts[0] += t == columns.state.size - 1\n",
        "test_online.py::test_a_chunk_gives_the_bits_of_one_by_one_updates_however_it_is_cut",
    ),
    Mutant(
        "third-moment-of-one-step",
        "the third moment's reward without what the variance to come adds",
        "ε³ alone: skewness that arises because a good step leads to a risky state is missed",
        RULES,
        "epsilon * (epsilon * epsilon + 3 * discount * discount * V_next)",
        "epsilon * epsilon * epsilon",
        "test_moments.py::test_the_rewards_in_rules_are_binomials",
    ),
    Mutant(
        "fourth-moment-without-third",
        "the fourth moment's reward without the third moment to come",
        "the kurtosis is off wherever steps and the skewness that follows go together",
        RULES,
        " + 4 * c2 * discount * epsilon * M3_next",
        "",
        "test_moments.py::test_the_rewards_in_rules_are_binomials",
    ),
    Mutant(
        "third-moment-coefficient",
        "2c²εV(s′) instead of 3c²εV(s′) in the third moment's reward",
        "learned skewness is too small where good steps lead to risky states",
        RULES,
        "epsilon * (epsilon * epsilon + 3 * discount * discount * V_next)",
        "epsilon * (epsilon * epsilon + 2 * discount * discount * V_next)",
        LEARNED_MOMENTS + "[direct-target_return]",
    ),
    Mutant(
        "fourth-moment-coefficient",
        "4c²ε²V(s′) instead of 6c²ε²V(s′) in the fourth moment's reward",
        "learned kurtosis is too small, often below what the skewness allows",
        RULES,
        "(squared + 6 * c2 * V_next)",
        "(squared + 4 * c2 * V_next)",
        LEARNED_MOMENTS + "[centred-target_return]",
    ),
    Mutant(
        "third-moment-discount",
        "the third moment discounted by c² instead of c³",
        "skewness far ahead counts for too much",
        NETWORKS,
        "    return rules.third_moment_discount(rules.mean_discount(x.gamma, x.lam, x.eta))\n",
        "    return rules.variance_discount(rules.mean_discount(x.gamma, x.lam, x.eta))\n",
        LEARNED_MOMENTS + "[direct-target_return]",
    ),
    Mutant(
        "fourth-moment-discount",
        "the fourth moment discounted by c³ instead of c⁴",
        "tails far ahead count for too much",
        RULES,
        "    return squared * squared\n",
        "    return squared * discount\n",
        LEARNED_MOMENTS + "[centred-off_policy_return]",
    ),
    Mutant(
        "moments-read-the-updated-variance",
        "the variance of the next state read after its update by the nodes of higher moments",
        "the moments are biased where a state follows itself, by more the larger the step",
        KERNEL,
        "    before = Readings(value, mean, variance, nothing)\n",
        "    at = span(rows.indptr, m.plan[VARIANCE, ROWS], row_next)\n"
        "    V = nodes.predict(m.weights, rows, m.plan[VARIANCE, OFFSET], *at)\n"
        "    before = Readings(value, mean, variance._replace(after=V), nothing)\n",
        LEARNED_MOMENTS + "[direct-target_return]",
    ),
    Mutant(
        "fourth-moment-of-the-state-left",
        "the third moment of the present state instead of the next in the fourth's reward",
        "kurtosis mixes up the skewness before and after a step",
        NETWORKS,
        "    error, c = read.mean.error, rules.mean_discount(x.gamma, x.lam, x.eta)\n"
        "    return rules.fourth_moment_reward(error, c, read.variance.after, "
        "read.third_moment.after)\n",
        "    error, c = read.mean.error, rules.mean_discount(x.gamma, x.lam, x.eta)\n"
        "    return rules.fourth_moment_reward(error, c, read.variance.after, "
        "read.third_moment.now)\n",
        LEARNED_MOMENTS + "[centred-target_return]",
    ),
    Mutant(
        "deviation-without-ratio",
        "ε = ηδ without (η−1)J(s) in the moments of the ρ-weighted return",
        "off-policy skewness and kurtosis depend on a constant added to the value",
        RULES,
        "    return eta * delta + (eta - 1) * J\n",
        "    return eta * delta\n",
        LEARNED_MOMENTS + "[direct-off_policy_return]",
    ),
    Mutant(
        "noise-without-kurtosis",
        "σ⁴ instead of 3σ⁴ for normal rewards",
        "normal returns get a negative excess kurtosis",
        MOMENTS,
        "+ 3 * noise**4",
        "+ noise**4",
        "test_moments.py::test_a_normal_return_has_neither_skewness_nor_excess_kurtosis",
    ),
    Mutant(
        "closed-form-without-cross-term",
        "the closed form of the fourth moment without 4c³εM₃′",
        "the exact kurtosis is wrong, and learners that are right look biased",
        MOMENTS,
        " + 4 * c**3 * e * M3[0]",
        "",
        "test_moments.py::test_moments_equal_those_of_all_paths_enumerated",
    ),
    Mutant(
        "gradient-without-starts",
        "the gradient of the variance without the spread between starts",
        "policies for several starts are improved in a wrong direction",
        "risk/gradient.py",
        "into + 2 * d * (j - d @ j)",
        "into",
        "test_policy_gradient.py::test_the_variance_of_a_start_distribution_includes_the_spread"
        "_between_its_states",
    ),
    Mutant(
        "gradient-lam-departure",
        "λ of the state left instead of the one arrived in, in the gradient of the variance",
        "invisible with one λ; with one per state the direction is wrong",
        "risk/gradient.py",
        "c2 = (e.gamma * lam[e.next_state]) ** 2",
        "c2 = (e.gamma * lam[e.state]) ** 2",
        "test_policy_gradient.py::"
        "test_derivatives_along_the_simplex_agree_with_complex_steps",
    ),
    Mutant(
        "gradient-blocked-elsewhere",
        "an action that makes the variance infinite counts also where no episode comes",
        "derivatives are infinite in states that do not matter",
        "risk/gradient.py",
        "by_action.blocked & movable & reached[:, None]",
        "by_action.blocked & movable",
        "test_policy_gradient.py::"
        "test_an_action_where_no_episode_comes_has_a_derivative_of_zero",
    ),
    Mutant(
        "off-policy-gradient-as-on-policy",
        "the weights of an off-policy return taken for constants",
        "the gradient of the off-policy variance is wrong",
        "risk/gradient.py",
        "own = 2 * ((eta * x - j[e.state]) * x + eta * rest)",
        "own = eta * gain**2 + eta * rest",
        "test_policy_gradient.py::test_derivatives_along_the_simplex_agree_with_complex_steps",
    ),
    Mutant(
        "infinite-without-noise",
        "a radius of 1 or more taken for an infinite moment, noise or not",
        "states whose return is certain lose their variance of 0",
        MOMENTS,
        "infinite = reaching(M, grows & loud)",
        "infinite = reaching(M, grows)",
        "test_moments.py::test_without_noise_the_variance_is_zero_whatever_the_radius",
    ),
    Mutant(
        "noise-is-any-rounding",
        "rounding errors of a return that is certain taken for noise",
        "a variance of 0 is reported as infinite",
        MOMENTS,
        "noisy = (np.abs(epsilon) > ROUNDING * scale)",
        "noisy = (np.abs(epsilon) > 0)",
        "test_moments.py::"
        "test_rewards_that_make_up_for_every_ratio_leave_no_noise_but_rounding",
    ),
    Mutant(
        "q-rest-of-never-taken",
        "edges of probability 0 count where an action value looks for infinite variances",
        "actions are said to have an infinite variance for what never happens",
        "exact/action_values.py",
        "(c > 0) & (e.probability > 0)",
        "c > 0",
        "test_action_values.py::test_an_edge_that_is_never_taken_adds_no_infinite_variance",
    ),
    Mutant(
        "sampling-stderr",
        "the standard error of a sampled variance from E[x⁴] instead of E[x⁴] − V²",
        "it is too large: by 22% for normal returns",
        "exact/sampling.py",
        '"variance_stderr": np.sqrt(np.maximum(m4 - V**2, 0.0) / n)',
        '"variance_stderr": np.sqrt(np.maximum(m4, 0.0) / n)',
        "test_sampling.py::test_standard_errors_are_calibrated",
    ),
    Mutant(
        "one-radius-for-all-orders",
        "the radius of E[c²] decides about every moment",
        "infinite kurtosis is reported as a finite, often negative, number",
        MOMENTS,
        "radius = _radius(resolvent, order, contracts=bool(np.all(c <= 1)))",
        "radius = _radius(Resolvent(edges.matrix(c**2)), order, contracts=bool(np.all(c <= 1)))",
        "test_moments.py::test_the_error_names_the_moment_and_the_remedy",
    ),
    Mutant(
        "curve-noise",
        "the fourth moment of a normal reward taken as 1 in exact curves",
        "errors of the variance are too small where rewards are noisy; means are right",
        "curves/polynomials.py",
        "[1.0, 0.0, 1.0, 0.0, 3.0,",
        "[1.0, 0.0, 1.0, 0.0, 1.0,",
        PATHS,
    ),
    Mutant(
        "curve-self-loop",
        "exact curves of VTD read J(s′) before its update where s′ = s",
        "VTD's second moment is wrong in states with self-loops",
        "curves/recursion.py",
        "                if edge.next_state < self.states:\n",
        "                if False:\n",
        PATHS,
    ),
    Mutant(
        "curve-parallel-edges",
        "of parallel edges only the last counts in exact curves",
        "probability is lost between two states that several edges join",
        "curves/recursion.py",
        "total[part] + found if part in total else found",
        "found",
        PATHS,
    ),
    Mutant(
        "curve-restart",
        "in exact curves every episode after the first starts in the first state",
        "wrong after the first end where starts are random",
        "curves/recursion.py",
        "csr_array(self.start[:, None])",
        "csr_array(np.eye(self.states)[:, :1])",
        PATHS,
    ),
    Mutant(
        "simulated-window-early",
        "a window begins one moment too early in simulations with traces or features",
        "one moment too many is summed: averages are too large by 1/W of it",
        RECORDER,
        "        if clock > wanted.since and (last or not IS_LOCAL):",
        "        if clock >= wanted.since and (last or not IS_LOCAL):",
        SIMULATED,
    ),
    Mutant(
        "engine-frozen-window",
        "a fixed value is added at every moment of a window, and at its end for all of them",
        "averages of fixed values over a window are nearly twice too large",
        RECORDER,
        "times = clock - wanted.since if last else 0",
        "times = clock - wanted.since if last else 1",
        "test_engine.py::"
        "test_a_window_is_the_average_over_its_last_moments[frozen_features]",
    ),
    Mutant(
        "simulated-change-late",
        "changes of a simulation are looked at before the step is learned",
        "each change counts a step late, and the last one never",
        "engine/kernel.py",
        "                learn(nodes, here, discounts, value_discounts, share, lanes)\n"
        "                change(nodes, share, wanted, scratch, batch, r, s)\n",
        "                change(nodes, share, wanted, scratch, batch, r, s)\n"
        "                learn(nodes, here, discounts, value_discounts, share, lanes)\n",
        "test_engine.py::test_a_change_is_the_mean_absolute_difference_from_moment_to_moment[frozen]",
    ),
    Mutant(
        "simulated-divergence-forgotten",
        "a weight that was too large counts only while it is",
        "runs that diverged and came back are averaged with the others",
        RECORDER,
        "            bad = not (peak[at] <= LIMIT)\n",
        "            bad = False\n",
        "test_engine.py::test_a_weight_that_was_too_large_for_one_step_has_diverged",
    ),
    Mutant(
        "simulated-own-lambda",
        "λ of a learner is ignored in simulations, that of the MDP is used",
        "the learner estimates the variance of another λ-return",
        SETUP,
        "np.broadcast_to(memory.lams if memory.lams.size else mdp.lam, mdp.n_states)[follows]",
        "np.broadcast_to(mdp.lam, mdp.n_states)[follows]",
        OWN,
    ),
    Mutant(
        "simulated-own-gamma",
        "γ of a learner is read at the state being left in simulations",
        "a soft end is applied one step late; invisible where γ is one number",
        SETUP,
        "np.broadcast_to(memory.gammas, mdp.n_states)[follows]",
        "np.broadcast_to(memory.gammas, mdp.n_states)[mdp.edges.state[used]]",
        OWN,
    ),
    Mutant(
        "simulated-starts-repeat",
        "all episodes of a simulated run start in the state that its first one started in",
        "states are visited as from one start; runs differ more than they should",
        "engine/kernel.py",
        "                    s = start(a, b, U(4) * U(t) + U(3), stream)\n",
        "                    s = start(a, b, START, stream)\n",
        ONLINE + "[averaged_traces]",
    ),
    Mutant(
        "simulated-averages-move",
        "the mean of a weight moves where the importance ratio is 0",
        "the average counts transitions that the target never makes",
        LANES,
        "            node.w[k] = new if weight != 0.0 else mean\n",
        "            node.w[k] = new\n",
        ONLINE + "[averaged]",
    ),
    Mutant(
        "simulated-reward-word",
        "the noise of a reward is drawn with the random number of the edge",
        "rewards go together with the transitions taken: variances and covariances are wrong",
        "engine/streams.py",
        "    x, y = word(a, b, U(4) * U(t) + U(1)), word(a, b, U(4) * U(t) + U(2))\n",
        "    x, y = word(a, b, U(4) * U(t)), word(a, b, U(4) * U(t) + U(2))\n",
        "test_streams.py::test_a_replayed_run_is_drawn_from_its_words",
    ),
    Mutant(
        "simulated-alias",
        "an alias table takes from a large entry what the small one has, not what it lacks",
        "edges are taken with wrong probabilities where a state has three or more",
        "engine/streams.py",
        "            share[j] -= 1.0 - share[i]\n",
        "            share[j] -= share[i]\n",
        "test_streams.py::test_alias_tables_have_the_probabilities_of_the_edges",
    ),
    Mutant(
        "runs-squared-gap",
        "the squared gap to the old mean is added in Welford's recursion",
        "the spread over runs is too large, most of all with few runs",
        "engine/runner.py",
        "                squares[i] += gap * (x - mean[i])\n",
        "                squares[i] += gap * gap\n",
        "test_engine.py::test_statistics_are_those_of_the_runs[frozen]",
    ),
    Mutant(
        "gpu-squared-gap",
        "the same on a GPU",
        "spreads over runs depend on the device",
        "engine/cuda_fold.py",
        "                    q += gap * (x[k] - m)\n",
        "                    q += gap * gap\n",
        GPU_MOMENTS,
    ),
    Mutant(
        "gpu-last-runs",
        "on a GPU the runs beyond a multiple of eight are left out of a batch's statistics",
        "means rest on fewer runs than the dataset says",
        "engine/cuda_fold.py",
        "        for first in range(0, runs, AHEAD):\n",
        "        for first in range(0, runs - AHEAD + 1, AHEAD):\n",
        GPU_MOMENTS,
    ),
    Mutant(
        "gpu-trace-of-another-lane",
        "threads of a GPU read the trace decay of the first thread",
        "learners with other traces learn as the first one does",
        "engine/cuda_views.py",
        "            kappa = settings(given.kappa[0], at)[0]\n",
        "            kappa = given.kappa[0][0, :, 0]\n",
        GPU_FAMILIES,
    ),
    Mutant(
        "gpu-step-of-another-lane",
        "threads of a GPU read the step sizes of the first thread",
        "learners with other steps learn as the first one does",
        "engine/cuda_views.py",
        "part(_of_all_lanes if plan.shape.shared and number == 0 else _of_lanes)",
        "part(_of_all_lanes)",
        GPU_FAMILIES,
    ),
    Mutant(
        "returns-not-completed",
        "a return that truncation cut off is taken as it is",
        "observed returns are too small by what follows the cut",
        RETURNS,
        "        found = self._rows()[:, REWARDS] + self._at_the_end(value, 1)\n",
        "        found = self._rows()[:, REWARDS].copy()\n",
        OBSERVED,
    ),
    Mutant(
        "returns-across-cuts",
        "a return goes on after truncation, with rewards of the next episode",
        "returns mix two episodes",
        RETURNS,
        "            if not over and not cut:\n",
        "            if not over:\n",
        OBSERVED,
    ),
    Mutant(
        "returns-missing-variance",
        "what a cut return lacks of the variance is discounted once, not twice",
        "the spread of completed returns is too large",
        RETURNS,
        "        return self._at_the_end(variance, 2)\n",
        "        return self._at_the_end(variance, 1)\n",
        OBSERVED,
    ),
    Mutant(
        "returns-without-eta",
        "observed returns are not weighted by ratios",
        "off-policy predictions are compared with returns of the behaviour",
        RETURNS,
        "        weight = eta[t] if eta.size else 1.0\n",
        "        weight = 1.0\n",
        OBSERVED,
    ),
    Mutant(
        "returns-late-lambda",
        "λ below 1 that comes while a return is open starts its bootstrap terms at 1",
        "values of later states count too much in the first returns",
        RETURNS,
        "            self._open[:, :, FIRST_DISCOUNT] = self._open[:, :, DISCOUNT]\n",
        "",
        OBSERVED,
    ),
    Mutant(
        "returns-favour-the-last",
        "a new return always replaces a stored one",
        "the sample is that of the end of the stream, not of all of it",
        RETURNS,
        "mix(U(n)) % U(n + 1)",
        "mix(U(n)) % U(stored.shape[0])",
        "test_estimate.py::"
        "test_where_there_are_more_returns_those_stored_are_a_uniform_sample[3-100]",
    ),
    Mutant(
        "returns-age-over-ends",
        "the age of an episode goes on over an end while no return is open",
        "returns seem to begin late, and are left out where truncation cuts",
        RETURNS,
        "            age[at] = 0.0 if ended or cut else age[at] + 1.0\n            continue\n",
        "            age[at] = 0.0 if cut else age[at] + 1.0\n            continue\n",
        "test_estimate.py::"
        "test_the_age_of_an_episode_counts_from_its_beginning_though_no_return_began_before",
    ),
    Mutant(
        "early-after",
        "returns count as early up to the age of the last that lack much",
        "returns that truncation cut off are shown as if they were whole",
        RETURNS,
        "np.quantile(rows[much, START_AGE], IGNORED_SHARE))",
        "np.quantile(rows[much, START_AGE], 1.0 - IGNORED_SHARE))",
        "test_estimate.py::"
        "test_returns_are_early_if_they_began_before_almost_all_that_lack_much",
    ),
    Mutant(
        "merge-favours-own",
        "of two pieces of a log all returns of the first are kept",
        "intervals are calibrated on the piece that was read first",
        RETURNS,
        "own = int(rng.hypergeometric(seen[0], seen[1], most)) if sum(seen) else 0",
        "own = min(len(self._rows()), most)",
        "test_distributed.py::"
        "test_returns_of_two_pieces_are_kept_in_proportion_to_how_many_each_had",
    ),
    Mutant(
        "thin-keeps-all",
        "where half of the returns must go, the first half stays",
        "intervals are calibrated on the beginnings of pieces",
        RETURNS,
        "            if seen < stored:\n",
        "            if seen < stored // 2:\n",
        "test_distributed.py::"
        "test_beside_a_piece_that_keeps_every_other_return_a_random_half_of_another_stays",
    ),
    Mutant(
        "merge-ends-not-renumbered",
        "states at the ends of a piece's returns keep the numbers that they have in the piece",
        "returns that were cut off are completed with values of other states",
        RETURNS,
        "            rows[:, LEAD + 1 :] = number[rows[:, LEAD + 1 :].astype(np.int64)]",
        "            rows[:, LEAD + 1] = number[rows[:, LEAD + 1].astype(np.int64)]",
        "test_distributed.py::"
        "test_states_of_a_piece_keep_their_identity_at_both_ends_of_its_returns",
    ),
    Mutant(
        "merge-terms-not-renumbered",
        "states within a piece's λ-returns keep the numbers that they have in the piece",
        "λ-returns contain values of other states",
        "estimation/bootstrap_terms.py",
        "                    rows = number[rows.astype(np.int64)].astype(np.float64)\n",
        "                    pass\n",
        "test_distributed.py::"
        "test_values_within_the_returns_of_a_piece_are_those_of_its_states",
    ),
    Mutant(
        "merge-forgets-rewards",
        "bounds on returns from the rewards of the first piece alone",
        "return intervals are clipped at returns that later pieces exceed",
        TABULAR,
        "        self._see(other.rewards)\n",
        "",
        "test_distributed.py::"
        "test_possible_returns_are_those_of_the_rewards_of_all_pieces",
    ),
    Mutant(
        "rest-without-value",
        "the rest of a closed return is added to its value instead of replacing it",
        "what is left of each return counts twice: intervals lie too far from 0",
        TABULAR,
        "[np.where(known, place, -1)] - _lookup(value)(returns.end)",
        "[np.where(known, place, -1)]",
        "test_tabular.py::test_what_is_left_of_a_return_counts_once",
    ),
    Mutant(
        "features-cut-as-end",
        "with features, the end of a truncated episode is worth 0",
        "values before a time limit are too small",
        VALUES,
        "            following = reward[t] + discount[t] * end_value[end]\n",
        "            following = reward[t]\n",
        "test_feature_values.py::test_returns_are_completed_where_they_were_cut",
    ),
    Mutant(
        "features-tail-once",
        "with features, what a cut return lacks of the variance is discounted once",
        "spreads before a time limit are too large",
        VALUES,
        "        tail *= discount[t] * discount[t]\n",
        "        tail *= discount[t]\n",
        "test_feature_values.py::test_tails_are_discounted_twice_and_end_with_the_episode",
    ),
    Mutant(
        "features-trace-swapped",
        "κ and 1 − κ exchanged in the λ-returns of LSTD",
        "a long trace is short: other fixed points wherever features do not separate states",
        VALUES,
        "            mixed = (1.0 - kappa) * value_after + kappa * following\n",
        "            mixed = kappa * value_after + (1.0 - kappa) * following\n",
        "test_feature_values.py::test_a_table_without_ridge_gives_the_fixed_point_of_lstd[0.97]",
    ),
    Mutant(
        "ridge-unscaled",
        "the ridge is not scaled with the features",
        "weights shrink more the smaller the features are: values depend on units",
        VALUES,
        "        n, penalty = len(self), ridge * self.largest_square\n",
        "        n, penalty = len(self), ridge\n",
        RIDGE,
    ),
    Mutant(
        "ridge-on-the-intercept",
        "the ridge penalises the intercept too",
        "values shrink towards 0 instead of their mean",
        VALUES,
        "            return np.append(top, _dot(self.sums, v[:-1]) + n * v[-1])\n",
        "            return np.append(top, _dot(self.sums, v[:-1]) + (n + penalty) * v[-1])\n",
        RIDGE,
    ),
    Mutant(
        "design-last-block",
        "the largest row of features is that of the last block of rows",
        "the ridge is as strong as the last rows are large: values depend on their order",
        VALUES,
        "max(self.largest_square, float(norms.max(initial=0.0)))",
        "float(norms.max(initial=0.0))",
        "test_feature_values.py::test_the_largest_row_counts_wherever_it_is",
    ),
    Mutant(
        "sums-trace-unweighted",
        "for the off-policy return γ′λ′ is not multiplied by ρ in the sums",
        "the value is right, the variance misses the spread of later ratios",
        "estimation/transition_sums.py",
        "r, g, trace, ratio = ratio * r, ratio * g, ratio * trace, None",
        "r, g, trace, ratio = ratio * r, ratio * g, trace, None",
        "test_least_squares.py::"
        "test_off_policy_return_is_that_of_weighted_rewards_and_discounts",
    ),
    Mutant(
        "sums-part-unweighted",
        "transitions without ratios are added as on-policy to sums that have ratios",
        "powers of rewards are taken for powers of ratios: all estimates are wrong",
        "estimation/transition_sums.py",
        "        rho = np.ones(state.size) if self._weighted else None\n",
        "        rho = None\n",
        "test_least_squares.py::"
        "test_transitions_without_ratios_may_come_after_some_with_ratios",
    ),
    Mutant(
        "squares-without-lambda",
        "λ missing from the variance's matrix in least squares",
        "the variance of the return for λ = 1 instead of the given λ",
        SQUARES,
        "        return self._matrix(self.sums.moment(1, 0) * self.l * self.l)\n",
        "        return self._matrix(self.sums.moment(1, 0) * self.g * self.g)\n",
        ROWS + "[on-policy]",
    ),
    Mutant(
        "squares-ratio-once",
        "errors of the value weigh ρ instead of ρ² in its standard error",
        "off-policy intervals are too short where ratios vary",
        SQUARES,
        "        one, d0 = np.ones(len(self.sums)), self.d0\n"
        "        squares = self._by_state(self.sums.of_polynomial(2, [d0 * d0, 2.0 * d0, one]))\n",
        "        one, d0 = np.ones(len(self.sums)), self.d0\n"
        "        squares = self._by_state(self.sums.of_polynomial(1, [d0 * d0, 2.0 * d0, one]))\n",
        ROWS + "[off-policy]",
    ),
    Mutant(
        "squares-value-bias",
        "the error of the value itself stays in the squared errors that feed the variance",
        "variances are too large where visits are few",
        SQUARES,
        "        u = np.maximum(raw - self.value_bias, 0.5 * raw)\n",
        "        u = raw\n",
        ROWS + "[on-policy]",
    ),
    Mutant(
        "squares-bias-unbounded",
        "the correction of the squared errors may take all of them",
        "variances of 0 where visits are few",
        SQUARES,
        "        u = np.maximum(raw - self.value_bias, 0.5 * raw)\n",
        "        u = np.maximum(raw - self.value_bias, 0.0)\n",
        "test_least_squares.py::test_the_correction_takes_half_of_the_squared_errors_at_most",
    ),
    Mutant(
        "squares-one-sided",
        "the quantile of one side for an interval with two",
        "90% intervals hold in 80% of cases",
        SQUARES,
        "student.ppf(0.5 + level / 2, np.clip(df, 1.0, LARGEST_DF))",
        "student.ppf(level, np.clip(df, 1.0, LARGEST_DF))",
        LIMITS,
    ),
    Mutant(
        "squares-std-as-variance",
        "the interval of the std as wide as that of the variance",
        "twice too wide on a logarithmic scale",
        SQUARES,
        "            relative = self.variance_error / (2.0 * self.variance)\n",
        "            relative = self.variance_error / self.variance\n",
        LIMITS,
    ),
    Mutant(
        "squares-df",
        "one degree of freedom too many in the interval of a value",
        "intervals of rarely visited states are too short",
        SQUARES,
        "np.where(self.alone, 1.0, np.maximum(self.n - 1.0, 1.0))",
        "np.where(self.alone, 1.0, np.maximum(self.n, 1.0))",
        "test_least_squares.py::"
        "test_a_mean_of_returns_of_one_size_has_a_degree_of_freedom_less_than_returns",
    ),
    Mutant(
        "squares-df-events",
        "degrees of freedom from visits alone, not from events",
        "intervals that rest on a few rare events are too short",
        SQUARES,
        'found[f"{what}_df"][at] = np.minimum(spread, 2.0 * events)',
        'found[f"{what}_df"][at] = spread',
        "test_least_squares.py::test_one_event_among_many_returns_has_two_degrees_of_freedom",
    ),
    Mutant(
        "squares-kish-only",
        "effective visits without regard to the sum of the ratios",
        "where the target hardly ever goes, equal small ratios count as full visits",
        SQUARES,
        "        self.n = np.minimum(kish, self.W)\n",
        "        self.n = kish\n",
        "test_least_squares.py::test_off_policy_answers_need_support_everywhere",
    ),
    Mutant(
        "squares-alone-noise",
        "the squared error of a normal varies by σ⁴ instead of 2σ⁴, in states visited once",
        "intervals of the std are too short where single visits matter",
        SQUARES,
        "        shared = 2.0 * self.pool**2 / np.maximum(self.n, 0.5)\n",
        "        shared = self.pool**2 / np.maximum(self.n, 0.5)\n",
        "test_least_squares.py::test_a_state_visited_once_takes_its_noise_from_the_others",
    ),
    Mutant(
        "squares-holes-zero",
        "states that were never left are worth 0",
        "values before them are too small, as with truncation taken for an end",
        SQUARES,
        "            if weight < 0.99:\n",
        "            if weight < 0.0:\n",
        "test_least_squares.py::test_a_state_that_was_never_left_is_worth_as_much_as_the_others",
    ),
    Mutant(
        "ratio-bound-fixed",
        "the test of mean ratios does not allow for ratios as large as were seen elsewhere",
        "right logs with rare actions are said to have wrong ratios, and get no answer",
        "estimation/ratio_check.py",
        "    while bound < 2.0 * largest and bound < 1e300:\n",
        "    while False:\n",
        "test_doubtful_logs.py::"
        "test_where_a_ratio_of_1000_was_seen_its_absence_from_1000_rows_of_a_state_is_no_evidence",
    ),
    Mutant(
        "verdict-one-sided",
        "the limit of one side for differences on both sides",
        "right estimates are said to disagree twice as often as stated",
        VERDICTS,
        "1.0 - ERROR_RATE / (2.0 * max(1, tests))",
        "1.0 - ERROR_RATE / max(1, tests)",
        "test_checks.py::"
        "test_a_right_value_disagrees_in_a_hundredth_of_cases_on_both_sides_together",
    ),
    Mutant(
        "verdict-one-test-per-place",
        "value and std of a place counted as one test",
        "right estimates of many places disagree twice as often as stated",
        AGREEMENT,
        "    tests = 2 * len(enough)\n",
        "    tests = len(enough)\n",
        "test_checks.py::test_value_and_std_of_a_place_are_two_tests",
    ),
    Mutant(
        "verdict-lacking-error",
        "the error of an estimate that completes returns counted at one end of them",
        "uncertain estimates are said to disagree where returns are cut off",
        AGREEMENT,
        "value_error * (1.0 + lacking)",
        "value_error",
        "test_checks.py::test_the_error_of_a_value_counts_at_both_ends_of_a_return",
    ),
    Mutant(
        "check-std-biased",
        "the std of fresh returns with the biased variance of the sample",
        "right estimates look too large where returns are few",
        "estimation/checks.py",
        "scored.error[own].var(ddof=1) + scored.missing[own].mean()",
        "scored.error[own].var() + scored.missing[own].mean()",
        CHECK_STD,
    ),
    Mutant(
        "check-std-without-missing",
        "the std of fresh returns without what truncation cut off",
        "right estimates look too large where returns are cut off",
        "estimation/checks.py",
        "scored.error[own].var(ddof=1) + scored.missing[own].mean()",
        "scored.error[own].var(ddof=1)",
        CHECK_STD,
    ),
    Mutant(
        "solve-without-noise",
        "noise of rewards left out of the exact variance",
        "the variance misses what the rewards add by themselves",
        MOMENTS,
        "        return edges.expect(e**2 + noise**2)\n",
        "        return edges.expect(e**2)\n",
        "test_solve.py::test_variance_of_the_chain_matches_its_closed_form",
    ),
    Mutant(
        "solve-noise-unweighted",
        "noise of rewards not multiplied by η in the exact variance for a given value",
        "off-policy, learners with a fixed value are compared with a wrong truth",
        "exact/solution.py",
        "    noise = (edges.eta * edges.reward_std)[:, None]\n",
        "    noise = edges.reward_std[:, None]\n",
        "test_solve.py::test_variances_of_many_values_are_those_of_each",
    ),
    Mutant(
        "solve-lambda-swapped",
        "λ and 1 − λ exchanged in the exact mean of the λ-return",
        "wrong wherever the return bootstraps from another function than the true value",
        MOMENTS,
        "(edges.reward + edges.gamma * (1 - edges.lam) * H[edges.next_state])",
        "(edges.reward + edges.gamma * edges.lam * H[edges.next_state])",
        ALL_PATHS,
    ),
    Mutant(
        "solve-other-question",
        "η and ρ̄ exchanged: the return of the target for the weighted one and vice versa",
        "the exact variance answers the other question; the same on-policy",
        "mdp/weighted_edges.py",
        "        eta=ones if sampled_from_target else rho,\n"
        "        rho_bar=rho if sampled_from_target else ones,\n",
        "        eta=rho if sampled_from_target else ones,\n"
        "        rho_bar=ones if sampled_from_target else rho,\n",
        "test_solve.py::test_target_return_does_not_depend_on_the_behaviour",
    ),
    Mutant(
        "solve-ratio-forgotten",
        "whether the variance is finite decided by γ alone, without the ratios",
        "an infinite off-policy variance is reported as a finite number",
        MOMENTS,
        "contracts=bool(np.all(c <= 1)))\n",
        "contracts=bool(np.all(edges.gamma <= 1)))\n",
        "test_solve.py::test_infinite_variance_is_an_error_that_names_the_radius",
    ),
    Mutant(
        "lease-never-expires",
        "the age of a lease compared the wrong way round",
        "cells that are being computed are computed again, those left behind never",
        LEASES,
        "        return abs(age) <= stale  #",
        "        return abs(age) > stale  #",
        "test_sweep.py::test_a_lease_is_void_at_once_if_its_process_ran_on_this_machine_and_has_ended",
    ),
    Mutant(
        "lease-of-another",
        "a worker releases its lease without asking whether it is still its own",
        "a third worker computes a cell that the second is computing",
        LEASES,
        "            if read_bytes(self.path, \"lease\", SMALL) == self.text:\n",
        "            if read_bytes(self.path, \"lease\", SMALL):\n",
        "test_sweep.py::test_a_lease_that_was_taken_over_is_not_released_by_its_first_owner",
    ),
    Mutant(
        "lease-taken-twice",
        "a stale lease removed without a second look",
        "two workers that find it at once both take it over",
        LEASES,
        "        if is_held(aside, stale, while_alive=while_alive):  #",
        "        if False:  #",
        "test_sweep.py::test_of_two_workers_that_find_a_stale_lease_at_once_one_takes_it_over",
    ),
    Mutant(
        "lease-of-another-machine",
        "process numbers of other machines looked up on this one",
        "leases of living workers elsewhere are void at once",
        LEASES,
        '    if owner.get("machine") != machine() or',
        '    if not owner.get("machine") or',
        "test_sweep.py::test_a_lease_is_void_at_once_if_its_process_ran_on_this_machine_and_has_ended",
    ),
    Mutant(
        "lease-put-back-over",
        "a lease that was moved aside replaces the one that a third worker has made since",
        "two workers compute the same cell",
        LEASES,
        "            put_first(aside, path)\n",
        "            os.replace(aside, path)\n",
        "test_sweep.py::test_a_lease_that_is_put_back_does_not_replace_that_of_a_third_worker",
    ),
    Mutant(
        "lease-kept-on-error",
        "a lease is released only where its work succeeds",
        "cells that failed wait until their lease is stale",
        LEASES,
        "        finally:\n            done.set()\n            self.release()\n",
        "        finally:\n            done.set()\n        self.release()\n",
        "test_sweep.py::test_a_lease_is_released_however_its_block_ends",
    ),
    Mutant(
        "lease-empty-on-full-disk",
        "a lease that could not be written stays as an empty file",
        "nobody computes the cell until the lease is stale",
        LEASES,
        "        path.unlink(missing_ok=True)\n        raise\n",
        "        raise\n",
        "test_sweep.py::test_a_lease_that_cannot_be_written_leaves_no_file",
    ),
    Mutant(
        "sync-error-swallowed",
        "an error at the sync of a file is ignored",
        "a file that never reached the disk counts as written",
        FILES,
        "        _sync(temporary, os.O_RDWR)\n",
        "        with contextlib.suppress(OSError):\n            _sync(temporary, os.O_RDWR)\n",
        "test_files.py::test_a_file_that_does_not_reach_the_disk_is_not_written",
    ),
    Mutant(
        "temporary-future",
        "temporary files of other machines that are dated into the future never count as old",
        "what a killed writer with a wrong clock left behind stays for ever",
        FILES,
        "min(abs(now - each.lstat().st_mtime)",
        "min(now - each.lstat().st_mtime",
        "test_durability.py::"
        "test_temporaries_of_another_container_with_the_same_name_are_not_taken_for_dead",
    ),
    Mutant(
        "temporary-of-another-user",
        "a process that may not be signalled counts as dead",
        "files that another user is writing are removed under way",
        PROCESSES,
        "        pass\n    state",
        "        return False\n    state",
        "test_files.py::test_the_temporary_file_of_another_user_is_spared",
    ),
    Mutant(
        "folder-last-entry-only",
        "of several new folders only the innermost is made durable",
        "after a power cut the folders around it, and so the results, may be gone",
        FILES,
        "    for each in missing:\n",
        "    for each in missing[:1]:\n",
        "test_files.py::test_every_new_folder_is_synced_into_the_one_above",
    ),
    Mutant(
        "signal-save-kept",
        "what was to be saved within a block is still saved after it",
        "a signal later on writes old results over new ones",
        SIGNALS,
        "            self.save, self.kept = before\n",
        "",
        "test_signals.py::"
        "test_after_a_graceful_block_what_was_to_be_saved_before_it_is_saved_again",
    ),
    Mutant(
        "signal-after-exit",
        "the thread that listens for signals ends a program that no longer handles them",
        "a program that goes on after an interrupt is killed",
        SIGNALS,
        "            if self._left:\n                return\n",
        "",
        "test_signals.py::test_a_program_that_has_left_the_block_is_not_ended_by_its_signal",
    ),
    Mutant(
        "toml-key-depth",
        "a dotted key may have one name more than is allowed",
        "keys are nested deeper than stated",
        READING,
        '% DEPTH)  # dots',
        '% (DEPTH + 1))  # dots',
        "test_hostile_text.py::test_a_dotted_key_has_at_most_a_hundred_names",
    ),
    Mutant(
        "number-digits",
        "numbers with fewer digits than stated are refused",
        "numbers that a float can hold cannot be given",
        READING,
        '[0-9][0-9A-Fa-fxo_]{%d}" % DIGITS',
        '[0-9][0-9A-Fa-fxo_]{%d}" % (DIGITS - 10)',
        "test_hostile_text.py::test_a_number_has_at_most_three_hundred_digits",
    ),
    Mutant(
        "gap-between-chunks",
        "a lost row at the end of a chunk is forgotten",
        "the rows on either side of it are linked",
        ARRANGEMENT,
        "        since[0] |= gap\n",
        "        pass\n",
        "test_logs.py::test_a_lost_row_lies_between_two_others_wherever_the_log_is_cut",
    ),
    Mutant(
        "segment-restarts",
        "numbers of segments begin anew in each block of a sorted log",
        "rows on either side of a lost row get the same number, and are linked",
        ARRANGEMENT,
        '            self._segment = int(rows["segment"][-1])\n',
        "",
        "test_logs.py::"
        "test_lost_rows_cut_the_rows_of_an_entity_also_where_they_are_sorted_outside_memory",
    ),
    Mutant(
        "bad-duplicates",
        "rows that are left out for another reason count as duplicates, too",
        "missing rewards are taken for rows that were sent twice",
        ARRANGEMENT,
        '        found &= ~rows["bad"]\n',
        "        pass\n",
        "test_logs.py::test_a_row_without_a_reward_is_no_duplicate_though_it_comes_twice",
    ),
    Mutant(
        "curve-start-kurtosis",
        "uniform initial values with the fourth moment of normal ones in exact curves",
        "errors of VTD's variance are too large after a random start",
        "curves/random_starts.py",
        'KURTOSIS = {"uniform": 9 / 5, "normal": 3.0}',
        'KURTOSIS = {"uniform": 3.0, "normal": 3.0}',
        STARTS,
    ),
    Mutant(
        "curve-start-covariance",
        "covariances of initial values dropped",
        "starts of neighbouring states vary by themselves; spreads and errors are off",
        "initial_values.py",
        '        object.__setattr__(self, "_root", vectors * np.sqrt(np.maximum(values, 0.0)))\n',
        '        object.__setattr__(self, "_root", np.diag(np.sqrt(np.diag(given))))\n',
        STARTS,
    ),
    Mutant(
        "curve-eta",
        "ρ in the place of η in exact curves",
        "what the target's return learns is weighted twice; right on-policy",
        "curves/recursion.py",
        "Transition(noise, edge.gamma, edge.lam, edge.eta)",
        "Transition(noise, edge.gamma, edge.lam, edge.rho)",
        PATHS,
    ),
    Mutant(
        "curve-vtd-covariance",
        "in exact curves VTD's second moment is not taken together with the value",
        "the spread of its variance misses their covariance",
        "curves/expected_curves.py",
        "            self.rows[name] = recursion.rows(off), recursion.rows([p * p for p in off])\n",
        "            parts = [[type(p).of([k], [c]) for k, c in zip(p.keys, p.coefficients)]\n"
        "                     for p in off]\n"
        "            squares = [sum((q * q for q in part), 0.0 * p)\n"
        "                       for p, part in zip(off, parts)]\n"
        "            self.rows[name] = recursion.rows(off), recursion.rows(squares)\n",
        PATHS,
    ),
    Mutant(
        "curve-late-episode",
        "exact curves by episode are one episode behind",
        "errors at the beginning are those of an episode earlier",
        "curves/expected_curves.py",
        "    for gap in np.diff(moments, prepend=0).tolist():\n",
        "    for gap in np.diff(moments, prepend=min(1, moments[-1])).clip(0).tolist():\n",
        "test_curves.py::test_episodes_of_the_chain_are_four_steps",
    ),
    Mutant(
        "period-not-gcd",
        "the period of a chain is that of its longest cycle",
        "averages at rest are said to be over more steps than they need",
        "curves/resting.py",
        "period = int(np.gcd(period, abs(level[s] + 1 - level[after])))",
        "period = max(period, abs(level[s] + 1 - level[after]))",
        "test_curves.py::test_the_period_is_the_greatest_common_divisor_of_all_cycles",
    ),
    Mutant(
        "best-edge-low",
        "best steps at the lower end of the range are not named",
        "a smaller step would be better, and no word says so",
        "curves/step_search.py",
        "x < EDGE * axis[0] or x * EDGE > axis[-1]",
        "x * EDGE > axis[-1]",
        "test_curves.py::test_best_steps_at_either_end_of_the_range_are_named",
    ),
    Mutant(
        "best-minima-corner",
        "of several minima of a grid the highest one is refined",
        "best steps are those of another valley",
        "curves/step_search.py",
        "return [tuple(int(i) for i in index) for index in found[:3]]",
        "return [tuple(int(i) for i in index) for index in found[-1:]]",
        "test_curves.py::test_the_least_of_several_minima_is_found",
    ),
    Mutant(
        "return-interval-rank",
        "return intervals without the n + 1 of conformal prediction",
        "they hold less than their level with few returns",
        "estimation/return_intervals.py",
        "    return np.floor((n + 1) * (1.0 - level) + 1e-9).astype(np.int64)\n",
        "    return np.ceil(n * (1.0 - level) - 1e-9).astype(np.int64) + 1\n",
        "test_return_sample.py::"
        "test_intervals_hold_every_new_return_that_the_rule_does_not_leave_out",
    ),
    Mutant(
        "interval-left-out-rounding",
        "the number of returns that an interval leaves out is rounded down from 0.999…",
        "a 90% interval from 9 returns leaves out none where it may leave out one",
        "estimation/return_intervals.py",
        "np.floor((n + 1) * (1.0 - level) + 1e-9)",
        "np.floor((n + 1) * (1.0 - level))",
        "test_return_sample.py::"
        "test_intervals_hold_every_new_return_that_the_rule_does_not_leave_out",
    ),
    Mutant(
        "sample-normal-quantile",
        "one degree of freedom too many in the interval of a mean of returns",
        "intervals of few returns are too short: by half with two",
        SAMPLE,
        "        z = float(student.ppf(1.0 - self._tail(), self.size - 1))\n\n        def of",
        "        z = float(student.ppf(1.0 - self._tail(), self.size))\n\n        def of",
        "test_return_sample.py::test_the_mean_of_two_returns_has_the_interval_of_cauchy",
    ),
    Mutant(
        "sample-share-too-short",
        "the lower end of a probability with the quantile of the upper end's law",
        "the interval begins too high: it holds less than its level",
        SAMPLE,
        "            low = float(beta.ppf(tail, k, n - k + 1)) if k else 0.0\n",
        "            low = float(beta.ppf(tail, k + 1, n - k + 1)) if k else 0.0\n",
        "test_return_sample.py::test_ends_of_a_probability_leave_out_its_tails",
    ),
    Mutant(
        "sample-quantile-rank",
        "the interval of a quantile begins one return too late",
        "it holds less than its level",
        SAMPLE,
        "float(ordered[lows[-1]])",
        "float(ordered[lows[-1] + 1])",
        "test_return_sample.py::test_ends_of_a_quantile_leave_out_its_tails",
    ),
    Mutant(
        "sample-std-biased",
        "the std of sampled returns with the biased variance",
        "it is too small with few returns: by 11% with five",
        SAMPLE,
        "(math.sqrt(float((v * v).sum()) / (n - 1)) for v in (y, half))",
        "(math.sqrt(float((v * v).sum()) / n) for v in (y, half))",
        "test_return_sample.py::test_the_std_of_few_returns_is_unbiased_in_its_square",
    ),
    Mutant(
        "sample-bootstrap-tail",
        "the tail of two sides halved once more for bootstrap intervals",
        "90% intervals of the mean of the worst share are those of 95%",
        SAMPLE,
        "[self._tail(), 1.0 - self._tail()]",
        "[self._tail() / 2, 1.0 - self._tail() / 2]",
        "test_return_sample.py::test_the_mean_of_the_worst_share_has_the_tails_of_its_level",
    ),
    Mutant(
        "lease-of-a-reused-number",
        "a process is known by its number alone",
        "a folder stays in use as long as any process has the number of the one that died",
        PROCESSES,
        ' and (not since or found in (since, ""))',
        "",
        "test_durability.py::"
        "test_the_lease_of_a_process_whose_number_another_one_has_now_is_void",
    ),
    Mutant(
        "lease-of-a-stopped-run",
        "a run that was stopped for a minute is taken for dead",
        "two reproductions write to one folder where there are no file locks",
        LEASES,
        "    if alive is None or (alive and not while_alive):\n",
        "    if alive is None or alive:\n",
        "test_durability.py::"
        "test_a_reproduction_that_was_stopped_for_a_while_keeps_its_folder[-2]",
    ),
    Mutant(
        "lease-of-a-listed-process",
        "a killed process counts as alive until its parent has asked for its status",
        "in a container whose first process does not ask, a folder stays in use for ever",
        PROCESSES,
        "return state not in ENDED and ",
        "return ",
        "test_durability.py::test_a_killed_process_that_is_still_listed_holds_nothing",
    ),
    Mutant(
        "lease-left-by-a-signal",
        "a program that a signal ends leaves its leases behind",
        "other machines wait for a minute before they take its cells over",
        LEASES,
        "    current().leaving.append(lease.release)",
        "    _ = current()",
        "test_signals.py::test_a_program_that_is_ended_releases_its_leases",
    ),
    Mutant(
        "temporary-folder-by-its-own-date",
        "the age of another machine's temporary folder is that of the folder itself",
        "folders in which a process of another machine writes are removed",
        FILES,
        "for each in (path, *inside))",
        "for each in (path,))",
        "test_durability.py::"
        "test_a_folder_of_another_machine_lives_as_long_as_something_in_it_is_touched",
    ),
    Mutant(
        "temporary-by-the-wrong-clock",
        "the age of temporary files is measured by the clock of this machine",
        "files that a living process of another machine writes are removed if a clock is wrong",
        FILES,
        "        return probe.stat().st_mtime\n",
        '        return __import__("time").time()\n',
        "test_durability.py::"
        "test_the_age_of_a_temporary_is_measured_by_the_clock_that_dates_files",
    ),
    Mutant(
        "output-not-waited-for",
        "output that a stream does not take at once is dropped",
        "a result that is piped to a slow program is cut, and the status is 0",
        "__main__.py",
        "                    select.select([], [self], [])\n",
        "                    break\n",
        "test_standard_streams.py::"
        "test_a_stream_that_does_not_wait_for_its_reader_gets_everything[unbuffered]",
    ),
    Mutant(
        "last-words-for-ever",
        "the last words of a program wait for their reader",
        "a command whose messages nobody reads does not end at a signal",
        SIGNALS,
        "                _within(LEAVING, lambda: self._tell(self.kept()))\n",
        "                self._tell(self.kept())\n",
        "test_signals.py::test_a_program_that_does_not_stop_is_ended[last words are not read]",
    ),
    Mutant(
        "ended-without-cleaning",
        "a program that stops by itself after a signal does not clean up",
        "temporary folders remain",
        SIGNALS,
        "            _within(LEAVING, self._leave)\n            for stream",
        "            for stream",
        "test_signals.py::test_a_program_that_does_not_stop_is_ended[stops by itself]",
    ),
    Mutant(
        "signals-while-python-ends",
        "handlers are taken away by Python while it ends",
        "a finished command dies of a signal, and its caller takes it for a failure",
        "__main__.py",
        "    atexit.register(_finish, stop)  # first, so that it is called last\n",
        "",
        "test_signals.py::test_a_signal_after_all_is_done_changes_nothing[15]",
    ),
    Mutant(
        "scheduler-in-a-shared-folder",
        "only the workers of a local cluster get the private folder",
        "another user of the machine can have your files emptied",
        "cluster.py",
        "{**SETTINGS, setting: str(folder)}",
        "SETTINGS",
        "test_sweep_clusters.py::"
        "test_a_local_cluster_touches_no_folder_that_others_can_write",
    ),
    Mutant(
        "temporaries-of-killed-workers",
        "a sweep that is interrupted does not clean up",
        "what killed workers had begun to write stays among the cells",
        "sweep/operations.py",
        "    finally:\n        store.clean_up()",
        "    except ZeroDivisionError:\n        store.clean_up()",
        "test_sweep_clusters.py::"
        "test_what_killed_workers_have_begun_is_removed_when_a_run_ends",
    ),
    Mutant(
        "reward-of-any-size",
        "logs give rewards whose powers overflow to the estimator, which drops them",
        "rows are lost without a word, and the check against observed returns is wrong",
        "experience/decoder.py",
        "part.floats(r.reward, -LARGEST_REWARD, LARGEST_REWARD)",
        "part.floats(r.reward, -np.inf, np.inf)",
        "test_tables.py::"
        "test_numbers_too_large_for_sums_of_powers_are_left_out_by_name_and_their_episode_is_cut",
    ),
    Mutant(
        "actor-without-past",
        "an actor for mean − c·variance that forgets what the episode has brought so far",
        "it takes the variance for the sum of what each step adds",
        RULES,
        "(1 - 2 * penalty * ahead) * delta",
        "delta",
        "test_actor_critic.py::test_the_expected_direction_is_the_exact_gradient",
    ),
    Mutant(
        "actor-typical-biased",
        "the running mean of squared directions, which begins at 0, taken as it is",
        "the first steps of the actor are many times too long",
        "risk/actor_critic.py",
        "typical = np.sqrt(square / (1 - MEMORY**self.episodes))",
        "typical = np.sqrt(square)",
        "test_actor_critic.py::test_the_first_step_has_the_length_of_alpha",
    ),
    Mutant(
        "deep-targets-cross-episodes",
        "targets of networks reach on into the next episode",
        "errors of one episode move the values of the one before",
        "deep/targets.py",
        "weight * discount * kappa * step.going",
        "weight * discount * kappa",
        "test_deep.py::test_targets_are_what_a_trace_would_have_moved_predictions_by",
    ),
    Mutant(
        "deep-next-row-after-a-cut",
        "after a cut the next row is taken for what follows",
        "values are bootstrapped from the first observation of another episode",
        "deep/transition_columns.py",
        "        follows[cut] = n + np.arange(int(cut.sum()))\n",
        "        follows[cut] = np.minimum(np.flatnonzero(cut) + 1, n - 1)\n",
        "test_deep.py::test_interleaved_streams_are_brought_into_their_own_order",
    ),
    Mutant(
        "deep-truncation-as-end",
        "truncation treated as an end, for networks",
        "values look as if the world ended where the data does",
        "deep/transition_columns.py",
        '"gamma": np.where(ended, 0.0, gamma),',
        '"gamma": np.where(ended | _flag(chunk, "truncated", n), 0.0, gamma),',
        "test_deep.py::test_truncation_is_not_an_end",
    ),
    Mutant(
        "deep-shift-without-discount",
        "rewards are shifted by the mean return as if episodes went on for ever",
        "values before an end are off by γ times the mean return",
        "deep/fitting.py",
        "columns.reward + (gamma - 1) * scales.shift",
        "columns.reward + (gamma.max() - 1) * scales.shift",
        "test_deep.py::test_episodes_that_end_at_random",
    ),
    Mutant(
        "deep-neighbour-in-the-same-episode",
        "the error of the value is looked for among neighbours of the same episode",
        "noise that successive steps share is taken for error, and the spread is denied",
        "deep/value_error.py",
        "elsewhere = np.abs(block[near] - block[asked][:, None]) > 1",
        "elsewhere = near != asked[:, None]",
        "test_deep.py::test_the_share_of_error_is_that_of_what_neighbours_share",
    ),
    Mutant(
        "deep-large-variances-only",
        "errors of the variance count in absolute size",
        "where the policy is calm, the spread is a third too small or too large",
        "deep/fitting.py",
        "weight = weight * relative_weight(found)",
        "pass",
        "test_deep.py::test_a_small_spread_is_learned_beside_a_large_one",
    ),
    Mutant(
        "deep-ratio-in-the-wrong-place",
        "both questions of off-policy data answered as if they were one",
        "the spread of the weighted return is that of the target's",
        "deep/fitting.py",
        "eta, rho_bar = (rho, one) if own.off_policy_return else (one, rho)",
        "eta, rho_bar = (one, rho)",
        "test_deep.py::test_both_off_policy_questions[off_policy_return]",
    ),
]  # fmt: skip


def stale() -> list[str]:
    """Mutants whose text is not found exactly once any more.

    >>> stale()
    []
    """
    texts = {m.file: (ROOT / PACKAGE / m.file).read_text(encoding="utf-8") for m in MUTANTS}
    return [m.name for m in MUTANTS if texts[m.file].count(m.old) != 1]


def row(mutant: Mutant) -> str:
    return f"| {mutant.bug} | {mutant.effect} | `{mutant.test.split('::')[1]}` |"


def undocumented() -> list[str]:
    """Mutants whose row is not in docs/bugs.md as it should be, and their number if it is not.

    An sdist has no docs.

    >>> undocumented()
    []
    """
    if not PAGE.exists():
        return []
    page = PAGE.read_text(encoding="utf-8").splitlines()
    number = f"Here are {len(MUTANTS)} bugs"
    missing = [] if any(number in line for line in page) else [number]
    return [m.name for m in MUTANTS if row(m) not in page] + missing


def scratch(folder: Path) -> None:
    """A copy of what the tests need."""
    skip = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", folder)


def failures(folder: Path, tests: list[str], compiled: bool) -> tuple[int, str]:
    """Exit status and output of pytest in a scratch copy."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": tempfile.mkdtemp(dir=folder),
        "NUMBA_DISABLE_JIT": "0" if compiled else "1",
        "COLUMNS": "500",  # do not shorten reasons
    }
    words = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider"]
    words += ["-W", "ignore:overflow encountered:RuntimeWarning"]  # of random numbers, not compiled
    words += [f"tests/{test}" for test in tests]
    if sys.platform == "linux":
        return forked(folder, words, environment)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def forked(folder: Path, words: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run pytest in a fork of this process, which has imported what does not change."""
    os.environ["NUMBA_DISABLE_JIT"] = environment["NUMBA_DISABLE_JIT"]
    for name in ("numba", "pytest", "scipy.sparse.linalg", "scipy.stats", "xarray"):
        importlib.import_module(name)
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 3
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
                sys.dont_write_bytecode = True
                for name in [n for n in sys.modules if n.partition(".")[0] in ("tests", "retvar")]:
                    del sys.modules[name]
                status = int(importlib.import_module("pytest").main(words))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read().decode(errors="replace")


def verdict(mutant: Mutant, folder: Path, compiled: bool) -> tuple[str, str]:
    """Return whether a mutant was caught, and the reason."""
    path = folder / PACKAGE / mutant.file
    right = path.read_text(encoding="utf-8")
    if right.count(mutant.old) != 1:
        return "TEXT NOT FOUND", ""
    path.write_text(right.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, output = failures(folder, [mutant.test], compiled)
    finally:
        path.write_text(right, encoding="utf-8")
    if status == 0:
        return "NO", ""
    why = re.search(r"^FAILED \S.*? - (.*)$", output, re.MULTILINE)
    reason = why.group(1).strip() if why else output[-300:]
    asserted = re.match(r"assert|AssertionError|Failed: DID NOT RAISE", reason)
    crashed = status != 1 or not asserted  # a crash shows a bad mutant, not a good test
    return ("CRASHED" if crashed else "yes"), reason


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--list", action="store_true", help="names of all bugs")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/bugs.md")
    parser.add_argument("--compiled", action="store_true", help="compile each copy")
    options = parser.parse_args()
    unknown = set(options.names) - {m.name for m in MUTANTS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = [m for m in MUTANTS if not options.names or m.name in options.names]
    if importlib.util.find_spec("torch") is None and not (options.list or options.markdown):
        left_out = [m.name for m in chosen if m.file.startswith("deep/")]
        chosen = [m for m in chosen if m.name not in left_out]
        if left_out:
            print(f"left out, since torch is not installed: {', '.join(left_out)}")
    if options.list:
        print("\n".join(f"{m.name:28} {m.bug}" for m in chosen))
        return 0
    if options.markdown:
        print("| bug | what it does to the numbers | the test that fails |\n| --- | --- | --- |")
        print("\n".join(row(m) for m in chosen))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scratch(folder)
        status, output = failures(folder, sorted({m.test for m in chosen}), options.compiled)
        if status:
            print(output)
            print("The tests fail without any mutant.")
            return 1
        print(f"{'bug':28} {'where':20} {'caught':8} test", flush=True)
        survivors = 0
        for mutant in chosen:
            caught, why = verdict(mutant, folder, options.compiled)
            survivors += caught != "yes"
            test = mutant.test.split("::")[1]
            print(f"{mutant.name:28} {mutant.file:20} {caught:8} {test}", flush=True)
            if caught == "CRASHED":
                print(f"    {why}")
        print(f"{len(chosen) - survivors} of {len(chosen)} caught.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
