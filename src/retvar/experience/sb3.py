"""Stable-Baselines3: its models as policies, in batches; its vector environments recognised."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retvar.experience.moves import describe_error
from retvar.support.errors import InputError

__all__ = ["Predictor", "is_model", "is_vec_env", "load_model", "refuse_normalised"]

LIBRARIES = ("stable_baselines3", "sb3_contrib")
FORM = (
    "loading a model's .zip can run any code that it contains, so it is loaded only when asked for "
    "by name: if you trust where it comes from, say sb3:ALGORITHM:FILE, such as sb3:PPO:model.zip"
)
REWARDS = (
    "normalised rewards are not the rewards, and neither are their returns; set norm_reward = False"
)
TRAINING = "observations would change their meaning from step to step; set training = False"
OBSERVATIONS = (
    "the model knows normalised observations only: give its VecNormalize as the environment, with "
    "training = False and norm_reward = False"
)
MEMORY = "has a memory, so that its returns are not a function of the observation"


def is_model(policy: Any) -> bool:
    """Whether a policy is an object with ``predict``."""
    return callable(getattr(policy, "predict", None))


def load_model(policy: Any) -> Any:
    """The model of a text ``sb3:ALGORITHM:FILE``; another policy is returned as it is."""
    text = str(policy) if isinstance(policy, str | Path) else ""
    prefix, _, rest = text.partition(":")
    name, _, file = rest.partition(":")
    if prefix != "sb3" and not text.endswith(".zip"):
        return policy
    if prefix != "sb3" or not name or not file:
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


class Predictor:
    """Asks a model for actions, of one observation or of a batch.

    Models of Stable-Baselines3, known by the parameters of their ``predict``, take batches. Their
    actions are those of ``deterministic=True`` unless told otherwise, as in Stable-Baselines3's own
    evaluation. Stochastic ones have random numbers of their own: the same for the same seed, and
    without a trace in the global generators.

    >>> class Model:
    ...     def predict(self, observation, deterministic=False):
    ...         return (0 if deterministic else 1), None
    >>> Predictor(Model()).one(5), Predictor(Model(), False).one(5), Predictor(Model()).description
    (0, 1, 'Model (deterministic)')
    """

    def __init__(
        self,
        model: Any,
        deterministic: bool | None = None,
        observation_space: Any = None,
        action_space: Any = None,
    ) -> None:
        self.model, self.description, self.space = model, type(model).__name__, action_space
        self.settings: dict[str, Any] = {}
        parameters: Any = ()
        with contextlib.suppress(TypeError, ValueError):
            parameters = inspect.signature(model.predict).parameters
        if "deterministic" in parameters:
            fixed = deterministic is None or bool(deterministic)
            self.settings["deterministic"] = fixed
            self.description += " (deterministic)" if fixed else " (stochastic)"
        elif deterministic is not None:
            what = f"{self.description}.predict"
            raise InputError("deterministic", deterministic, f"{what} has no such parameter")
        self.stochastic = self.settings.get("deterministic") is False
        self.explores = self.stochastic and hasattr(model, "exploration_rate")  # as DQN's do
        self.batches = "episode_start" in parameters and not self.explores  # one coin for a batch
        spaces = {"observation_space": observation_space, "action_space": action_space}
        for name, space in spaces.items():
            own = getattr(model, name, None)
            if own is None or len(getattr(own, "shape", None) or ()) > 1:  # images are transposed
                continue
            one, other = ((type(x), x.shape, getattr(x, "n", 0)) for x in (own, space))
            if one != other:
                remedy = f"the {self.description} was made for {own}; give its environment"
                raise InputError(name, space, remedy)

    def one(self, observation: Any) -> Any:
        """The action for an observation, or the actions for a batch."""
        from gymnasium.spaces import Tuple

        answer = self.model.predict(observation, **self.settings)
        plain = isinstance(self.space, Tuple) and answer in self.space
        if not isinstance(answer, tuple) or not answer or plain:
            return answer
        if self.settings and len(answer) > 1 and answer[1] is not None:
            raise InputError("policy", self.description, MEMORY)
        return answer[0]

    def drawing(self, seed: int) -> Callable[[Any], Any]:
        """As :meth:`one`, with one thread of torch and random numbers of its own."""
        if self.explores:
            self.model.action_space.seed(seed)
        own = _random_states(seed) if self.stochastic else []

        def within(given: Any) -> Any:
            outside = _set_random_states(own) if own else []
            try:
                with _one_thread():
                    return self.one(given)
            finally:
                if own:
                    own[:] = _set_random_states(outside)

        return within


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """A block in which torch uses one thread: small networks are slower with more."""
    torch: Any = sys.modules.get("torch")
    before = 1 if torch is None else torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


def _random_states(seed: int) -> list[Any]:
    """States of the generators of NumPy and torch, for a seed."""
    torch: Any = sys.modules.get("torch")
    found: list[Any] = [np.random.RandomState(seed).get_state()]
    return found if torch is None else [*found, torch.Generator().manual_seed(seed).get_state()]


def _set_random_states(states: list[Any]) -> list[Any]:
    """Set the states of the global generators; return those before."""
    torch: Any = sys.modules.get("torch")
    before: list[Any] = [np.random.get_state()]  # noqa: NPY002
    np.random.set_state(states[0])  # noqa: NPY002
    if len(states) > 1:
        before.append(torch.get_rng_state())
        torch.set_rng_state(states[1])
    return before


def is_vec_env(env: Any) -> bool:
    """Whether an object is a ``VecEnv`` of Stable-Baselines3, which is not imported here."""
    library = sys.modules.get("stable_baselines3.common.vec_env")
    return library is not None and isinstance(env, library.VecEnv)


def refuse_normalised(env: Any, model: Any) -> None:
    """Refuse normalised rewards, and a model that was trained on normalised observations."""
    own = env if is_vec_env(env) else None
    kind = getattr(sys.modules.get("stable_baselines3.common.vec_env"), "VecNormalize", ())
    while own is not None and not isinstance(own, kind):
        own = getattr(own, "venv", None)
    for name, remedy in (("norm_reward", REWARDS), ("training", TRAINING)):
        if own is not None and getattr(own, name):
            raise InputError(name, True, remedy)
    get = getattr(model, "get_vec_normalize_env", None)
    trained = get() if callable(get) else None
    if trained is not None and trained.norm_obs and (own is None or not own.norm_obs):
        raise InputError("policy", type(model).__name__, OBSERVATIONS)
