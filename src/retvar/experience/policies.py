"""Select actions in environments: at random, from tables, by a function or by a model."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import itertools
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retvar.experience.moves import describe_error
from retvar.experience.observations import ObservationReader
from retvar.mdp import Policy
from retvar.simulation.streams import uniforms
from retvar.support.errors import InputError
from retvar.support.format import literal

Selector = Callable[[Any], Any]  # returns the action for an observation
Chooser = Callable[[Sequence[Any], Sequence[int]], Iterable[Any]]
# from the current observations, and numbers of environments, to the actions of these
BLOCK = 4_096  # random numbers drawn at a time
POLICY = (
    "must be 'random', an array of actions [state] or of probabilities [state, action] where "
    "observations are states and actions are numbered, a function of the observation, an object "
    "with predict(observation), or sb3:ALGORITHM:FILE"
)
LIBRARIES = ("stable_baselines3", "sb3_contrib")
FORM = (
    "loading a model's .zip can run any code that it contains, so it is loaded only when asked for "
    "by name: if you trust where it comes from, say sb3:ALGORITHM:FILE, such as sb3:PPO:model.zip"
)
NORMALISED = {
    "norm_reward": "normalised rewards are not the rewards, and neither are their returns; set "
    "norm_reward = False",
    "training": "observations would change their meaning from step to step; set training = False",
}
OBSERVATIONS = (
    "the model knows normalised observations only: give its VecNormalize as the environment, with "
    "training = False and norm_reward = False"
)


def action_selection(
    policy: Any, env: Any, spaces: list[Any], reader: ObservationReader, seed: int,
    seeds: list[int], deterministic: bool | None = None,
) -> tuple[str, Callable[[], Chooser]]:  # fmt: skip
    """The name of a policy, and how it begins to select actions in environments with these spaces.

    Each environment has random numbers of its own: `seeds` are those with which its action space is
    sampled; `deterministic` is for a policy with ``predict``.
    """
    from gymnasium.spaces import Discrete

    policy, space = _loaded(policy), spaces[1]
    select: Callable[[int], Selector]
    _refuse_normalised(env, policy)
    model = callable(getattr(policy, "predict", None))
    if deterministic is not None and not model:
        raise InputError("deterministic", deterministic, "goes with a policy that has predict")
    if model:
        asked = _Model(policy, deterministic, *spaces)
        name, select = asked.name, lambda i: _validated(asked.drawing(seeds[i]), space)
        if asked.batches:
            batches = _in_batches(asked.drawing(seeds[0]), space)
            return name, lambda: batches
    elif isinstance(policy, str) and policy == "random":
        name, select = "random", lambda i: _at_random(space, seed, i, seeds[i])
    elif callable(policy):
        name = getattr(policy, "__qualname__", type(policy).__qualname__)
        own: Selector = policy
        select = lambda _: _validated(own, space)  # noqa: E731
    elif isinstance(policy, str) or reader.states is None or not isinstance(space, Discrete):
        raise InputError("policy", literal(policy), POLICY)
    else:
        kind, table = _table(policy, reader.states, space)
        name, select = f"an array of {kind}", _drawing(table, space, reader, seed)

    def one_by_one() -> Chooser:
        selectors = [select(i) for i in range(len(seeds))]
        return lambda current, live: (selectors[i](current[i]) for i in live)

    return name, one_by_one


def _in_batches(select: Selector, space: Any) -> Chooser:
    valid = _validating(space)
    return lambda current, live: map(valid, list(select(np.stack([current[i] for i in live]))))


def _validated(select: Selector, space: Any) -> Selector:
    valid = _validating(space)
    return lambda observation: valid(select(observation))


def _at_random(space: Any, seed: int, i: int, own_seed: int) -> Selector:
    """Uniform actions; where they are not numbered, samples from a copy of the space."""
    from gymnasium.spaces import Discrete

    if isinstance(space, Discrete):
        count, start = int(space.n), int(space.start)
        draw = _random_numbers(seed, i, lambda x: (x * count).astype(np.int64) + start)
        return lambda _: draw()
    own = copy.deepcopy(space)
    own.seed(own_seed)
    return lambda _: own.sample()


def _random_numbers(
    seed: int, i: int, change: Callable[[Any], Any] = lambda x: x
) -> Callable[[], Any]:
    """Draws one after the other from random numbers in [0, 1) of environment i, once changed."""

    def blocks() -> Iterator[list[Any]]:
        for first in itertools.count(0, BLOCK):
            out = np.empty((1, BLOCK))
            uniforms(np.uint64(seed), i, first, out)
            yield change(out[0]).tolist()

    return itertools.chain.from_iterable(blocks()).__next__


def _table(policy: Any, states: int, space: Any) -> tuple[str, Any]:
    """An array of actions [state] or of probabilities [state, action]: which, as the latter."""
    try:
        table = policy.probabilities if isinstance(policy, Policy) else np.asarray(policy)
    except Exception:  # no memory for it, or an error of its own
        table = np.zeros(0, dtype=object)
    if table.ndim == 2 and table.dtype.kind in "biuf":
        probabilities = Policy(table).probabilities
        if probabilities.shape != (states, int(space.n)):
            found = "{} states × {} actions".format(*probabilities.shape)
            raise InputError("policy", found, f"must be for {states} states × {space.n} actions")
        return "probabilities", probabilities
    if table.dtype.kind not in "iu" or table.shape != (states,):
        remedy = f"{POLICY}: here {states:,} numbers of actions"
        raise InputError("policy", literal(policy), remedy)
    for state, action in enumerate(table.tolist()):
        if not space.start <= action < space.start + space.n:
            raise _invalid_action(f"policy[{state}]", action, space)
    return "actions", np.eye(int(space.n))[table - space.start]


def _drawing(
    probabilities: Any, space: Any, reader: ObservationReader, seed: int
) -> Callable[[int], Selector]:
    """Selectors that draw from the cumulative probabilities of the state's row."""
    cumulative = np.cumsum(probabilities, axis=1)
    final = space.n - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=1)
    cumulative[np.arange(int(space.n)) >= final[:, None]] = 1.0  # against rounding of the sum
    rows, start = cumulative.tolist(), int(space.start)

    def selector(i: int) -> Selector:
        draw = _random_numbers(seed, i)
        return lambda observation: start + bisect_right(rows[reader.read(observation)], draw())

    return selector


def _validating(space: Any) -> Selector:
    """Refuses actions that are not in the space; numbered ones become integers."""
    from gymnasium.spaces import Box, Discrete

    numbered = isinstance(space, Discrete)
    allowed = range(int(space.start), int(space.start + space.n)) if numbered else space

    def valid(given: Any) -> Any:
        answer = given
        if numbered:
            array = np.asarray(given)
            answer = array.item() if array.size == 1 and array.dtype.kind in "iu" else None
        elif isinstance(space, Box):
            with contextlib.suppress(TypeError, ValueError):
                answer = np.asarray(given, dtype=space.dtype)
        if answer not in allowed:
            raise _invalid_action("action", literal(given), space)
        return answer

    return valid


def _invalid_action(field: str, action: Any, space: Any) -> InputError:
    return InputError(field, action, f"the policy must return an action of {space}")


# ------------------------------------------------------------------ models


def _loaded(policy: Any) -> Any:
    """The model of a text ``sb3:ALGORITHM:FILE``; another policy is returned as it is."""
    text = str(policy) if isinstance(policy, str | Path) else ""
    kind, name, file = [*text.split(":", 2), "", ""][:3]
    if kind != "sb3" and not text.endswith(".zip"):
        return policy
    if kind != "sb3" or not name or not file:
        raise InputError("policy", text, FORM)
    known: dict[str, Any] = {}
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            classes = vars(importlib.import_module(library))
            known |= {n: x for n, x in classes.items() if callable(getattr(x, "load", None))}
    if not known:
        raise InputError("policy", text, 'needs Stable-Baselines3: pip install "retvar[sb3]"')
    if name not in known:
        raise InputError("policy", text, f"the algorithm must be one of {', '.join(sorted(known))}")
    try:
        return known[name].load(file, device="cpu")
    except Exception as error:  # a damaged file may raise anything
        raise InputError("policy", text, f"cannot be loaded: {describe_error(error)}") from None


class _Model:
    """Asks a model for actions, of one observation or of a batch.

    Models of Stable-Baselines3, known by the parameters of their ``predict``, take batches. Their
    actions are those of ``deterministic=True`` unless told otherwise, as in Stable-Baselines3's own
    evaluation. Stochastic ones have random numbers of their own: the same for the same seed, and
    without a trace in the global generators.
    """

    def __init__(self, model: Any, deterministic: bool | None, *spaces: Any) -> None:
        self.model, self.name, self.space = model, type(model).__name__, spaces[1]
        parameters: Any = ()
        with contextlib.suppress(TypeError, ValueError):
            parameters = inspect.signature(model.predict).parameters
        fixed, self.settings = deterministic in (None, True), {}
        if "deterministic" in parameters:
            self.settings["deterministic"] = fixed
            self.name += " (deterministic)" if fixed else " (stochastic)"
        elif deterministic is not None:
            remedy = f"{self.name}.predict has no such parameter"
            raise InputError("deterministic", deterministic, remedy)
        self.stochastic = "deterministic" in parameters and not fixed
        self.explores = self.stochastic and hasattr(model, "exploration_rate")  # as DQN's do
        self.batches = "episode_start" in parameters and not self.explores  # one coin for a batch
        own: Any = getattr(model, "observation_space", None)
        if own is not None and len(own.shape or ()) < 2 and own.shape != spaces[0].shape:
            remedy = f"the {self.name} was made for {own}; give its environment"  # no image
            raise InputError("observation_space", spaces[0], remedy)

    def _ask(self, observation: Any) -> Any:
        """The action for an observation, or the actions for a batch."""
        from gymnasium.spaces import Tuple

        answer = self.model.predict(observation, **self.settings)
        plain = isinstance(self.space, Tuple) and answer in self.space
        if not isinstance(answer, tuple) or not answer or plain:
            return answer
        if self.settings and len(answer) > 1 and answer[1] is not None:
            remedy = "has a memory, so that its returns are not a function of the observation"
            raise InputError("policy", self.name, remedy)
        return answer[0]

    def drawing(self, seed: int) -> Selector:
        """Asks with one thread of torch, and with random numbers of its own."""
        torch: Any = sys.modules.get("torch")
        if self.explores:
            self.model.action_space.seed(seed)
        own: list[Any] = []
        if self.stochastic:
            own = [np.random.RandomState(seed).get_state()]
            own += [torch.Generator().manual_seed(seed).get_state()] if torch else []

        def within(given: Any) -> Any:
            threads = torch.get_num_threads() if torch else 1
            outside = _exchanged(own)
            try:
                if threads > 1:  # small networks are slower with more
                    torch.set_num_threads(1)
                return self._ask(given)
            finally:
                own[:] = _exchanged(outside)
                if threads > 1:
                    torch.set_num_threads(threads)

        return within


def _exchanged(states: list[Any]) -> list[Any]:
    """Set states of the global generators of NumPy and torch; return those before."""
    torch: Any = sys.modules.get("torch")
    before: list[Any] = []
    if states:
        before.append(np.random.get_state())  # noqa: NPY002
        np.random.set_state(states[0])  # noqa: NPY002
    if len(states) > 1:
        before.append(torch.get_rng_state())
        torch.set_rng_state(states[1])
    return before


def is_vec_env(env: Any) -> bool:
    """Whether an object is a ``VecEnv`` of Stable-Baselines3, which is not imported here."""
    library = sys.modules.get("stable_baselines3.common.vec_env")
    return library is not None and isinstance(env, library.VecEnv)


def _refuse_normalised(env: Any, model: Any) -> None:
    """Refuse normalised rewards, and a model that was trained on normalised observations."""
    own = env if is_vec_env(env) else None
    kind = getattr(sys.modules.get("stable_baselines3.common.vec_env"), "VecNormalize", ())
    while own is not None and not isinstance(own, kind):
        own = getattr(own, "venv", None)
    for name, remedy in NORMALISED.items():
        if own is not None and getattr(own, name):
            raise InputError(name, True, remedy)
    get = getattr(model, "get_vec_normalize_env", None)
    trained = get() if callable(get) else None
    if trained is not None and trained.norm_obs and (own is None or not own.norm_obs):
        raise InputError("policy", type(model).__name__, OBSERVATIONS)
