"""The table of checks, and the function that runs them."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from retvar import arguments
from retvar.testing import (
    conditions,
    determinism,
    episode_ends,
    inputs,
    predictions,
    stationarity,
    update_rules,
)
from retvar.testing.case import Case, states_of

__all__ = ["CHECKS", "Check", "check_learner"]


class Check(NamedTuple):
    """A function that raises an AssertionError, and the condition under which it applies.

    >>> CHECKS["deterministic"].promise
    'Two estimators of one description with the same experience hold the same bits.'
    """

    run: Callable[[Case], None]
    applies: Callable[[Case], bool] = conditions.always

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.run.__name__

    @property
    def promise(self) -> str:
        """What the check promises, in one sentence."""
        return inspect.getdoc(self.run) or ""


class Checks(dict[str, Check]):
    """Checks by name, in the order in which they run.

    >>> len(CHECKS)
    67
    """


CHECKS = Checks(
    (check.name, check)
    for check in (
        Check(inputs.input_untouched),
        Check(determinism.deterministic),
        Check(determinism.description_unchanged),
        Check(determinism.description_compares_by_its_settings),
        Check(determinism.starts_as_described),
        Check(determinism.estimators_share_nothing),
        Check(determinism.answers_are_copies),
        Check(determinism.queries_change_nothing),
        Check(determinism.clone_equals),
        Check(determinism.clone_is_independent),
        Check(determinism.save_and_load_resume),
        Check(determinism.saving_changes_nothing),
        Check(determinism.saved_file_is_deterministic),
        Check(determinism.loaded_copies_are_independent),
        Check(inputs.chunk_equals_one_by_one),
        Check(inputs.split_equals_joined),
        Check(inputs.empty_chunk_changes_nothing),
        Check(inputs.transitions_are_updates),
        Check(inputs.records_are_columns),
        Check(inputs.numpy_numbers_are_numbers),
        Check(inputs.ratio_defaults_to_one),
        Check(inputs.gamma_and_lambda_of_a_transition_come_first),
        Check(inputs.interleaved_equals_separate, conditions.steps_are_local),
        Check(inputs.stream_numbers_do_not_matter),
        Check(inputs.refuses_unknown_states),
        Check(inputs.refuses_a_missing_next_state),
        Check(inputs.refuses_bad_rewards),
        Check(inputs.refuses_bad_ratios),
        Check(inputs.refuses_bad_gammas_and_lambdas),
        Check(inputs.refuses_bad_streams),
        Check(inputs.refuses_a_bad_chunk_whole),
        Check(inputs.skips_bad_rows),
        Check(inputs.refuses_columns_that_do_not_fit),
        Check(episode_ends.terminated_does_not_look_ahead),
        Check(episode_ends.terminated_has_no_discount),
        Check(episode_ends.terminated_and_truncated_is_terminated),
        Check(episode_ends.truncated_bootstraps),
        Check(episode_ends.nothing_crosses_a_termination),
        Check(episode_ends.nothing_crosses_a_truncation),
        Check(episode_ends.reset_traces_clears_all_streams),
        Check(episode_ends.reset_traces_of_a_stream_spares_the_others),
        Check(predictions.steps_are_counted),
        Check(predictions.td_error_is_that_of_the_value),
        Check(predictions.vectors_equal_single_answers),
        Check(predictions.std_is_the_root),
        Check(predictions.moments_are_scaled, conditions.has_moments),
        Check(predictions.unknown_states_have_no_answer),
        Check(predictions.step_sizes_are_finite),
        Check(update_rules.learns, conditions.moves),
        Check(update_rules.first_step_is_step_size_times_error, conditions.learns_value),
        Check(update_rules.traces_reach_back, conditions.has_value_trace),
        Check(update_rules.traces_need_more_than_one_step),
        Check(update_rules.zero_steps_change_nothing),
        Check(update_rules.fixed_value_stays_fixed),
        Check(update_rules.unvisited_states_stay),
        Check(update_rules.ratio_of_zero_leaves_the_value),
        Check(update_rules.ratio_of_zero_clears_the_trace, conditions.estimates_target_return),
        Check(update_rules.zero_rewards_keep_zero_estimates),
        Check(update_rules.rewards_scale, conditions.steps_ignore_rewards),
        Check(update_rules.negated_rewards_negate_the_value),
        Check(update_rules.state_order_does_not_matter),
        Check(update_rules.lambda_has_no_effect_without_gamma),
        Check(update_rules.value_does_not_depend_on_lambda),
        Check(update_rules.stays_finite),
        Check(stationarity.exact_value_is_stationary, conditions.has_known_method),
        Check(stationarity.exact_variance_is_stationary, conditions.has_known_method),
        Check(stationarity.fixed_point_is_stationary, conditions.has_known_method),
    )
)


def check_learner(description: Any, *, seed: int = 0) -> list[str]:
    """Run every check that applies to a learner; return their names.

    Parameters
    ----------
    description
        A learner for at least 3 states. If :func:`retvar.load` cannot read its files, it needs a
        method ``load(path)``.
    seed
        Seed of the random experience.

    Raises
    ------
    AssertionError
        Names the check that failed, what it promises and what was observed.

    Examples
    --------
    >>> import retvar as rv
    >>> names = check_learner(rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, kappa=0.8))
    >>> len(names) >= 40, "save_and_load_resume" in names
    (True, True)
    """
    seed = arguments.integer("seed", seed, 0)
    states = states_of(description)
    names = []
    for name, check in CHECKS.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        case = Case(description, states, rng)
        if not check.applies(case):
            continue
        try:
            check.run(case)
        except Exception as error:
            observed = str(error) if type(error) is AssertionError else repr(error)
            raise AssertionError(f"{name}: {check.promise} Observed: {observed}") from error
        names.append(name)
    return names
