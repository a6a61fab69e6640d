"""The Gymnasium environment ``retvar/LinearGaussian-v0``; importing this module registers it.

``gymnasium.make("retvar/LinearGaussian-v0")`` works after ``import gymnasium, retvar``, and in
``retvar.experience.from_gymnasium`` and the command line.
``gymnasium.make("retvar.mdp.linear_gaussian.environment:retvar/LinearGaussian-v0")`` always works.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.mdp.linear_gaussian import LinearGaussian, root
from retvar.support import arguments
from retvar.support.errors import InputError

Array = NDArray[np.float64]
ID = "retvar/LinearGaussian-v0"
STEPS = 1_000  # of an episode
F = ((0.8, 0.3), (-0.3, 0.8))


class LinearGaussianEnv(gymnasium.Env):  # type: ignore[misc]
    """x′ = Fx + w, w ~ N(0, S), with the reward −xᵀQx of the state left; it never terminates.

    With `A`, `B` and `K` there are actions u: x′ = Ax + B(u + n) + w, n ~ N(0, noise), with the
    reward −xᵀQx − uᵀRu. Without them there is one action, 0. An episode starts from the stationary
    distribution (of the policy u = −Kx), and is truncated by Gymnasium after ``max_episode_steps``,
    by default 1,000. A number is that many times the identity.

    >>> import gymnasium, retvar
    >>> env = gymnasium.make("retvar/LinearGaussian-v0", F=0.9, S=0.2, max_episode_steps=50)
    >>> state, _ = env.reset(seed=1)
    >>> _, reward, _, _, _ = env.step(0)
    >>> bool(np.isclose(reward, -(state @ state)))
    True
    """

    def __init__(
        self,
        F: ArrayLike | None = None,
        S: ArrayLike = 0.3,
        Q: ArrayLike = 1.0,
        *,
        A: ArrayLike | None = None,
        B: ArrayLike | None = None,
        K: ArrayLike | None = None,
        R: ArrayLike = 0.0,
        noise: ArrayLike = 0.0,
    ) -> None:
        self._world = _world(F, S, Q, {"A": A, "B": B, "K": K, "R": R, "noise": noise})
        self._start = root(self._world.stationary)
        self._control = self._world.control
        own = self._world if self._control is None else self._control
        self._motion = self._world.F if self._control is None else self._control.A
        self._cost, self._push = own.Q, root(own.S)
        self._x = np.zeros(self._world.width)
        self.observation_names = self._world.names
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._x.shape, np.float64)
        self.action_space: Any = gymnasium.spaces.Discrete(1)
        if self._control is not None:
            self._shake = root(self._control.noise)
            shape = (len(self._control.K),)
            self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode, from the stationary distribution."""
        super().reset(seed=seed)
        self._x = self._start @ self._normal()
        return self._x.copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Move; the reward is that of the state left and of the action taken there."""
        x = self._x
        with np.errstate(over="ignore", invalid="ignore"):
            reward = -float(x @ self._cost @ x)
            after = self._motion @ x + self._push @ self._normal()
            if self._control is None:
                arguments.indices("action", np.ravel(action), 0, 1)
            else:
                u = arguments.numbers("action", np.ravel(action), len(self._shake))
                reward -= float(u @ self._control.R @ u)
                n = self._shake @ self.np_random.standard_normal(u.size)
                after += self._control.B @ (u + n)
        if not (np.isfinite(after).all() and np.isfinite(reward)):
            remedy = "grows beyond all bounds; use a policy that holds it, such as −Kx"
            raise InputError("state", "too large", remedy)
        self._x = after
        return after.copy(), reward, False, False, {}

    def _normal(self) -> Array:
        return np.asarray(self.np_random.standard_normal(self._x.size))


def _world(
    motion: ArrayLike | None, S: ArrayLike, Q: ArrayLike, control: dict[str, Any]
) -> LinearGaussian:
    """The world, without discounting."""
    lacking = [name for name in ("A", "B", "K") if control[name] is None]
    if len(lacking) == 3:
        return LinearGaussian(F if motion is None else motion, S, Q, gamma=0.0)
    if motion is not None:
        raise InputError("F", motion, "is the motion without actions, A with them; give one")
    if lacking:
        raise InputError(lacking[0], "nothing", "A, B and K go together: give all three")
    return LinearGaussian.controlled(**control, S=S, Q=Q, gamma=0.0)


if ID not in gymnasium.registry:
    gymnasium.register(
        ID, entry_point=f"{__name__}:{LinearGaussianEnv.__name__}", max_episode_steps=STEPS
    )
