"""Policies with ``predict``, as Stable-Baselines3's models: in batches, with random numbers."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.files import kind_of
from retvar.reading import MOST, parse_json

__all__ = ["Predictor", "is_model", "load_model"]

PREFIX = "sb3:"  # sb3:ALGORITHM:FILE
LIBRARIES = ("stable_baselines3", "sb3_contrib")
MARKS = {  # settings in a file, and the algorithms that write them
    "clip_range": ("PPO", "MaskablePPO", "RecurrentPPO"),
    "exploration_fraction": ("DQN", "QRDQN"),
    "target_entropy": ("SAC", "TQC", "CrossQ"),
    "target_policy_noise": ("TD3", "DDPG"),
    "cg_max_steps": ("TRPO",),
    "delta_std": ("ARS",),
}
UNSAFE = (
    "loading a model's .zip can run any code that it contains, so it is loaded only when asked for "
    "by name: if you trust where it comes from, say sb3:ALGORITHM:FILE, such as sb3:PPO:{}"
)
FORM = "must be sb3:ALGORITHM:FILE, such as sb3:PPO:model.zip"
MEMORY = "has a memory, so that its returns are not a function of the observation"


def is_model(policy: Any) -> bool:
    """Whether a policy is an object with ``predict``.

    >>> is_model("random")
    False
    """
    return callable(getattr(policy, "predict", None))


def load_model(policy: Any) -> Any:
    """The model of a text ``sb3:ALGORITHM:FILE``; another policy is returned as it is.

    >>> load_model("random")
    'random'
    >>> load_model("ppo.zip")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: policy = ppo.zip: loading a model's .zip can run any code that it
    contains, so it is loaded only when asked for by name: if you trust where it comes from, say
    sb3:ALGORITHM:FILE, such as sb3:PPO:ppo.zip
    """
    text = str(policy) if isinstance(policy, str | Path) else ""
    if not text.startswith(PREFIX):
        if text.endswith(".zip"):
            raise InputError("policy", text, UNSAFE.format(text))
        return policy
    name, _, file = text.removeprefix(PREFIX).partition(":")
    if not name or not file:
        raise InputError("policy", text, FORM)
    algorithm = _algorithm(name, text)
    if kind_of("policy", Path(file)) != "file":
        raise InputError("policy", text, f"{file} is not a file")
    _refuse_other_algorithm(algorithm, file, text)
    try:
        return algorithm.load(file, device="cpu")
    except Exception as error:  # a damaged file may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError("policy", text, f"cannot be loaded: {reason}") from None


def _refuse_other_algorithm(algorithm: Any, file: str, text: str) -> None:
    """Refuse a file with the settings of another algorithm.

    A file does not say which algorithm wrote it, and loads with any that has the same networks.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.getinfo("data").file_size > MOST:
                raise ValueError("the settings are too large")
            saved = parse_json(archive.read("data"), "policy", text)
        complete = "policy_class" in saved
        writers = next((names for mark, names in MARKS.items() if mark in saved), ("A2C",))
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        return  # loading it says what is wrong
    name = algorithm.__name__
    known = {each for names in MARKS.values() for each in names} | {"A2C"}
    if complete and name in known and name not in writers:
        right = f"say {PREFIX}{writers[0]}:{file}"
        remedy = f"it was written by {' or '.join(writers)}, not by {name}: {right}"
        raise InputError("policy", text, remedy)


def _algorithm(name: str, text: str) -> Any:
    """A class of Stable-Baselines3, or of its contributions."""
    known: list[str] = []
    for library in LIBRARIES:
        try:
            module = importlib.import_module(library)
        except ImportError:
            continue
        found = {n: x for n, x in vars(module).items() if callable(getattr(x, "load", None))}
        if name in found:
            return found[name]
        known += found
    if not known:
        raise InputError("policy", text, 'needs Stable-Baselines3: pip install "retvar[sb3]"')
    raise InputError("policy", text, f"the algorithm must be one of {', '.join(sorted(known))}")


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

    def __init__(self, model: Any, deterministic: bool | None = None, space: Any = None) -> None:
        self.model, self.description = model, type(model).__name__
        self.space = space  #: of actions
        self.settings: dict[str, Any] = {}
        parameters = _parameters(model)
        if "deterministic" in parameters:
            fixed = True if deterministic is None else bool(deterministic)
            self.settings["deterministic"] = fixed
            self.description += " (deterministic)" if fixed else " (stochastic)"
        elif deterministic is not None:
            what = f"{self.description}.predict"
            raise InputError("deterministic", deterministic, f"{what} has no such parameter")
        self.stochastic = self.settings.get("deterministic") is False
        self.explores = self.stochastic and hasattr(model, "exploration_rate")  # as DQN's do
        self.batches = "episode_start" in parameters and not self.explores  # one coin for a batch

    def refuse_spaces(self, observation: Any, action: Any) -> None:
        """Refuse a model that was made for other observations or actions."""
        for name, space in (("observation_space", observation), ("action_space", action)):
            own = getattr(self.model, name, None)
            if own is None or len(getattr(own, "shape", None) or ()) > 1:  # images are transposed
                continue
            if (type(own), own.shape, getattr(own, "n", 0)) != (
                type(space), space.shape, getattr(space, "n", 0)
            ):  # fmt: skip
                what = f"the {self.description} was made for"
                raise InputError(name, space, f"{what} {own}; give its environment")

    def one(self, observation: Any) -> Any:
        """The action for an observation."""
        answer = self.model.predict(observation, **self.settings)
        if not isinstance(answer, tuple) or not answer or self._is_action(answer):
            return answer
        action, *rest = answer
        if self.settings and rest and rest[0] is not None:
            raise InputError("policy", self.description, MEMORY)
        return action

    def _is_action(self, answer: tuple[Any, ...]) -> bool:
        from gymnasium.spaces import Tuple

        return isinstance(self.space, Tuple) and answer in self.space

    def many(self, observations: list[Any]) -> list[Any]:
        """The actions for observations, from one call of the model."""
        return list(self.one(np.stack(observations)))

    def random_numbers(self, seed: int) -> contextlib.AbstractContextManager[Any]:
        """A context, to be entered again and again, in which a model draws numbers of its own."""
        if not self.stochastic:
            return contextlib.nullcontext()
        if self.explores:
            self.model.action_space.seed(seed)
        return _RandomNumbers(seed)


def _parameters(model: Any) -> set[str]:
    """Names of the parameters of ``predict``."""
    try:
        return set(inspect.signature(model.predict).parameters)
    except (TypeError, ValueError):
        return set()


class _RandomNumbers(contextlib.AbstractContextManager[None]):
    """Random numbers of NumPy and torch: within, a sequence of its own; outside, undisturbed."""

    def __init__(self, seed: int) -> None:
        self._torch: Any = sys.modules.get("torch")
        self._own = [np.random.RandomState(seed).get_state()]
        if self._torch is not None:
            self._own.append(self._torch.Generator().manual_seed(seed).get_state())
        self._outside: list[Any] = []

    def __enter__(self) -> None:
        self._outside = self._states()
        self._restore(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = self._states()
        self._restore(self._outside)

    def _states(self) -> list[Any]:
        found: list[Any] = [np.random.get_state()]  # noqa: NPY002
        return found if self._torch is None else [*found, self._torch.get_rng_state()]

    def _restore(self, states: list[Any]) -> None:
        np.random.set_state(states[0])  # noqa: NPY002
        if self._torch is not None:
            self._torch.set_rng_state(states[1])
