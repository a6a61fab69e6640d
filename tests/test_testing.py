"""The contract suite: every learner here passes, and learners with a fault do not."""

from typing import ClassVar

import numpy as np
import pytest

import retvar as rv
from retvar.online import OnlineEstimator
from retvar.testing import CHECKS, check_learner
from tests import oracle, streams
from tests.streams import METHODS

SETTINGS = {
    "plain": {"alpha": 0.1, "gamma": 0.9, "lam": 0.9},
    "open": {"alpha": 0.1, "alpha_bar": 0.05},
    "traces": {"alpha": 0.1, "gamma": 0.9, "lam": 0.8, "kappa": 0.7, "kappa_bar": 0.6},
    "full traces": {"alpha": 0.05, "kappa": 1.0, "kappa_bar": 1.0},
    "decay": {"alpha": rv.Decay(), "alpha_bar": rv.Decay(0.5, 0.6), "kappa": 0.5},
    "averaged": {"alpha": rv.Averaged(), "alpha_bar": rv.Averaged(0.5, 0.8), "kappa": 0.5},
    "adadelta": {"alpha": rv.Adadelta(), "kappa": 0.5, "kappa_bar": 0.5},
    "alpha bound": {"alpha": rv.AlphaBound(), "alpha_bar": rv.AlphaBound(0.5), "kappa": 0.9},
    "held": {"alpha": 0.1, "value": [1.0, -2.0, 3.0, 0.5], "learn_value": False},
    "per state": {
        "alpha": 0.1, "gamma": [0.1, 0.5, 0.9], "lam": [1.0, 0.0, 0.5], "kappa": [0.2, 0.9, 1.0],
        "kappa_bar": [1.0, 0.0, 0.3], "value": [1.0, 2.0, 3.0], "initial_variance": [0.5, 1.0, 2.0],
    },
    "no steps": {"alpha": 0.0, "gamma": 0.9, "lam": 0.9, "kappa": 0.7},
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("estimand", ["target_return", "off_policy_return"])
@pytest.mark.parametrize("method", METHODS)
def test_every_learner_passes(method, estimand, settings):
    description = METHODS[method](**SETTINGS[settings], estimand=estimand)
    ran = check_learner(description)
    assert len(ran) >= 55


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("settings", ["traces", "averaged", "per state"])
@pytest.mark.parametrize("method", ["direct", "centred"])
def test_every_learner_of_higher_moments_passes(method, settings, order):
    estimand = "target_return" if settings == "traces" else "off_policy_return"
    description = METHODS[method](**SETTINGS[settings], estimand=estimand, order=order)
    assert "moments_are_scaled" in check_learner(description)


@pytest.mark.soak
def test_random_learners_pass_on_random_experience():
    """20 learners of all kinds; 200 in `make soak`."""
    seed = oracle.fresh_seed()
    rng = np.random.default_rng(seed)
    for k in range(200 if oracle.SOAK else 20):
        description = streams.learner(rng, states=int(rng.integers(3, 6)))
        try:
            check_learner(description, seed=int(rng.integers(2**31)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, learner {k}: {description}") from error


def test_centred_learners_may_have_a_mean_of_their_own():
    check_learner(rv.Centred(alpha=0.1, alpha_mean=0.2, kappa_mean=0.9, initial_mean=2.0))


def test_the_checks_are_sentences_with_names():
    assert len(CHECKS) == 67
    for name, check in CHECKS.items():
        assert check.run.__name__ == name
        assert check.promise.endswith("."), name


def test_what_does_not_apply_is_left_out():
    without = check_learner(rv.Direct(alpha=0.1))
    assert "traces_reach_back" not in without
    assert "traces_reach_back" in check_learner(rv.Direct(alpha=0.1, kappa=0.5))
    assert "rewards_scale" not in check_learner(rv.Direct(alpha=rv.Adadelta()))


def test_a_learner_for_too_few_states_is_refused():
    with pytest.raises(rv.InputError, match="description = for 2 states: needs at least 3"):
        check_learner(rv.Direct(alpha=0.1, gamma=[0.5, 0.9]))


class Faulty(rv.Direct):
    """A direct learner whose estimators have a fault."""

    estimator: ClassVar[type] = OnlineEstimator

    def online(self, *args, **kwargs):
        return self._turned(super().online(*args, **kwargs))

    def load(self, path):
        return self._turned(rv.load(path))

    def to_dict(self):
        return {**super().to_dict(), "learner": "Direct"}

    def _turned(self, estimator):
        estimator.__class__ = self.estimator
        return estimator


def with_fault(estimator) -> Faulty:
    kind = type("Faulty", (Faulty,), {"estimator": estimator})
    return kind(alpha=0.1, gamma=0.9, lam=0.9, kappa=0.8, kappa_bar=0.7)


def test_the_faultless_one_passes():
    assert len(check_learner(with_fault(OnlineEstimator))) >= 55


class Noisy(OnlineEstimator):
    def update_many(self, arrays, on_error="raise"):
        super().update_many(arrays, on_error)
        self._memory.w[0, 0] += np.random.default_rng().normal()


class WritesInput(OnlineEstimator):
    def update_many(self, arrays, on_error="raise"):
        super().update_many(arrays, on_error)
        if not isinstance(arrays, np.ndarray) and len(arrays["reward"]):
            arrays["reward"][0] = 0.0


class LendsItsWeights(OnlineEstimator):
    def value(self, state=None):
        found = super().value(state)
        return self._memory.weights(0) if state is None else found


class ShallowClone(OnlineEstimator):
    def clone(self):
        twin = super().clone()
        twin._memory = self._memory
        twin._attach()
        return twin


class CloneWithoutTraces(OnlineEstimator):
    def clone(self):
        twin = super().clone()
        twin.reset_traces()
        return twin


class CountsChunks(OnlineEstimator):
    def update_many(self, arrays, on_error="raise"):
        before = self.steps
        super().update_many(arrays, on_error)
        self.steps = before + 1


class SavesNoTraces(OnlineEstimator):
    def save(self, path):
        bare = super().clone()
        bare.reset_traces()
        OnlineEstimator.save(bare, path)


class SavesNoCounters(OnlineEstimator):
    def save(self, path):
        bare = super().clone()
        bare.steps = 0
        OnlineEstimator.save(bare, path)


class CutsBySaving(OnlineEstimator):
    def save(self, path):
        super().save(path)
        self.reset_traces()


class OneByOne(OnlineEstimator):
    """A base for faults of single updates: chunks are made of them."""

    def update(self, state, reward=None, next_state=None, **more):
        if reward is None:
            more = state._asdict()
            state, reward, next_state = (more.pop(f) for f in ("state", "reward", "next_state"))
        self.learn(state, reward, next_state, **more)

    def update_many(self, arrays, on_error="raise"):
        trial = OnlineEstimator.clone(self)
        trial.__class__ = OnlineEstimator
        try:
            trial.update_many(arrays, on_error)  # raises if the chunk is invalid
        except rv.InputError:
            self.rejected = trial.rejected
            raise
        names = arrays.dtype.names if isinstance(arrays, np.ndarray) else arrays
        for t in range(len(arrays["reward"])):
            row = {name: arrays[name][t].item() for name in names}
            try:
                self.update(**row)
            except rv.InputError:
                self.reset_traces(row["stream"])

    def learn(self, *arguments, **more):
        super().update(*arguments, **more)


class BootstrapsAtTheEnd(OneByOne):
    def learn(self, state, reward, next_state, terminated=False, **more):
        if terminated and next_state is not None:
            terminated, more["truncated"] = False, True
        super().learn(state, reward, next_state, terminated=terminated, **more)


class TruncationIsTermination(OneByOne):
    def learn(self, *arguments, truncated=False, terminated=False, **more):
        if truncated and arguments[2] is None and not terminated:
            self._reject("next_state", None, "must be given")
        super().learn(*arguments, terminated=terminated or truncated, **more)


class TraceCrossesTruncation(OneByOne):
    def learn(self, *arguments, truncated=False, **more):
        if truncated and arguments[2] is None:
            more["truncated"] = True
        super().learn(*arguments, **more)


class TraceCrossesTermination(OneByOne):
    def learn(self, *arguments, terminated=False, stream=0, **more):
        kept = self._memory.traces.copy()
        super().learn(*arguments, terminated=terminated, stream=stream, **more)
        if terminated and stream < len(kept):
            traces = self._memory.traces.copy()
            traces[stream] = kept[stream]
            self._memory.adopt(traces)
            self._attach()


class ChangesOnRefusal(OneByOne):
    def learn(self, *arguments, **more):
        try:
            super().learn(*arguments, **more)
        except rv.InputError:
            self._memory.w[0, 0] += 1.0
            raise


class RefusesInSilence(OneByOne):
    def learn(self, *arguments, **more):
        try:
            super().learn(*arguments, **more)
        except rv.InputError:
            self.rejected -= 1
            raise


class AcceptsNaN(OneByOne):
    def learn(self, state, reward, *arguments, **more):
        bad = isinstance(reward, float) and np.isnan(reward)
        super().learn(state, 0.0 if bad else reward, *arguments, **more)


class LearnsFromAnything(OneByOne):
    def learn(self, *arguments, rho=1.0, **more):
        super().learn(*arguments, rho=0.5 if rho == 0 else rho, **more)


class OneStreamForAll(OneByOne):
    def learn(self, *arguments, stream=0, **more):
        if not isinstance(stream, int | np.integer) or stream < 0:
            more["stream"] = stream
        super().learn(*arguments, **more)


class ClipsTheVariance(OnlineEstimator):
    def std(self, state=None):
        root = np.sqrt(np.maximum(self.variance(state), 0.0))
        return root if state is None else float(root)


class CutDoesNothing(OnlineEstimator):
    def reset_traces(self, stream=None):
        pass


class CutsAll(OnlineEstimator):
    def reset_traces(self, stream=None):
        super().reset_traces()


class AnswersForNobody(OnlineEstimator):
    def value(self, state=None):
        return super().value(state if state is None else int(state) % 4)


class TDErrorAfterwards(OnlineEstimator):
    @property
    def td_error(self):
        return super().td_error * 0.9


class Deaf(OneByOne):
    def learn(self, *arguments, **more):
        kept = self._memory.w.copy()
        super().learn(*arguments, **more)
        self._memory.w[:] = kept


class SeesGainsOnly(OneByOne):
    def learn(self, state, reward, *arguments, **more):
        loss = isinstance(reward, float) and np.isfinite(reward) and reward < 0
        super().learn(state, 0.0 if loss else reward, *arguments, **more)


class ForgetsTheNormal(OnlineEstimator):
    def kurtosis(self, state=None):
        return super().kurtosis(state) + 3


class LosesTheSign(OnlineEstimator):
    def third_moment(self, state=None):
        return abs(super().third_moment(state))


FAULTS = {
    Noisy: "deterministic",
    WritesInput: "input_untouched",
    LendsItsWeights: "answers_are_copies",
    ShallowClone: "clone_is_independent",
    CloneWithoutTraces: "clone_equals",
    CountsChunks: "chunk_equals_one_by_one",
    SavesNoTraces: "save_and_load_resume",
    SavesNoCounters: "save_and_load_resume",
    CutsBySaving: "saving_changes_nothing",
    BootstrapsAtTheEnd: "terminated_does_not_look_ahead",
    TruncationIsTermination: "truncated_bootstraps",
    TraceCrossesTruncation: "truncated_bootstraps",
    TraceCrossesTermination: "nothing_crosses_a_termination",
    ChangesOnRefusal: "refuses_unknown_states",
    RefusesInSilence: "refuses_unknown_states",
    AcceptsNaN: "refuses_bad_rewards",
    LearnsFromAnything: "ratio_of_zero_leaves_the_value",
    OneStreamForAll: "interleaved_equals_separate",
    ClipsTheVariance: "std_is_the_root",
    CutDoesNothing: "skips_bad_rows",
    CutsAll: "reset_traces_of_a_stream_spares_the_others",
    AnswersForNobody: "unknown_states_have_no_answer",
    TDErrorAfterwards: "td_error_is_that_of_the_value",
    Deaf: "learns",
    SeesGainsOnly: "td_error_is_that_of_the_value",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_by_the_check_that_is_for_it(fault):
    with pytest.raises(AssertionError, match=rf"^{FAULTS[fault]}: .*\. Observed: "):
        check_learner(with_fault(fault))


@pytest.mark.parametrize(
    ("fault", "name"),
    [(ForgetsTheNormal, "moments_are_scaled"), (LosesTheSign, "moments_are_scaled")],
)
def test_faults_of_moments_are_found(fault, name):
    with pytest.raises(AssertionError, match=rf"^{name}: .*\. Observed: "):
        check_learner(with_fault(fault).replace(order=4))


def test_an_error_in_a_learner_is_a_failed_check():
    class Breaks(OnlineEstimator):
        def clone(self):
            raise RuntimeError("no copies")

    message = r"^deterministic: .* Observed: RuntimeError\('no copies'"
    with pytest.raises(AssertionError, match=message):
        check_learner(with_fault(Breaks))


def test_a_faulty_description_is_found():
    class Forgetful(rv.Direct):
        def replace(self, **changes):
            return super().replace(**{**changes, "alpha": 0.3})

    class Unequal(rv.Direct):
        __hash__ = rv.Direct.__hash__

        def __eq__(self, other):
            return self is other

    for kind in (Forgetful, Unequal):
        with pytest.raises(AssertionError, match=r"^description_"):
            check_learner(kind(alpha=0.1, gamma=0.9, lam=0.9))
