"""An actor–critic for mean − c × variance of the return; its critics are the direct method's nodes.

Γ_t is the product of the discounts γ′ up to step t, δ_t the TD error of the value node,
δ̄_t = δ_t² + γ′²v(s_{t+1}) − v(s_t) that of the variance node with λ = 1, and ψ_t the score
∇ log π(a_t|s_t). Differentiate v(s) = E[δ² + γ′²v′] and j(s) = E[r + γ′j′]; E[δ] = 0 removes ∇j(s):

    ∇v(s) = E[ψ(δ² + γ′²v′) + 2γ′δ∇j′ + γ′²∇v′]        ∇j(s) = E[ψδ + γ′∇j′]

Both unroll along an episode. ∇j(s_{t+1}) = E[Σ_{k>t} Γ_k/Γ_{t+1} ψ_k δ_k] multiplies what happened
before, Γ_t²·2γ′δ_t, so the order of the two sums can be changed: score k meets the sum of all TD
errors before it. With a start that is drawn, whose variance is E[v(s_0)] + Var[j(s_0)], and m the
mean of j(s_0),

    Y_0 = j(s_0) − m        Y_{t+1} = Y_t + Γ_t δ_t        how far the episode is ahead of the mean
    ∇(mean − c variance) = E[Σ_t ψ_t Γ_t ((1 − 2cY_t) δ_t − cΓ_t δ̄_t)]

v(s_t) in δ̄ is a baseline, as j(s_t) in δ is: both add nothing, since E[ψ] = 0. So the actor has two
numbers to remember, Γ and Y, and no gradient of a critic. Without Y the cross term is missing.
"""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.mdp import END, MDP, Policy
from retvar.online import OnlineEstimator
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, literal
from retvar.td import rules
from retvar.td.features import Features, Rows, States
from retvar.td.learners import Direct
from retvar.td.step_sizes import Constant, Decay, step_size

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
START_STEP = 0.05  # of the node that learns the mean value of the starts
MEMORY = 0.99  # of the running mean of squared lengths of directions
NEGLIGIBLE = 1e-6  # a weight Γ below which the rest of an episode is left out
MAX_STEPS = 10_000  # of an episode


class _Place(NamedTuple):
    """Features of a state, its actions and their probabilities, also as sums."""

    columns: Indices
    phi: Array
    allowed: NDArray[np.bool_]
    chances: Array
    ends: list[float]


class Progression(NamedTuple):
    """What the episodes of a training returned, in their order."""

    returns: Array  #: discounted
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]  #: the others were cut off


class ActorCritic:
    """Learns a softmax policy that maximises mean − penalty × variance of the return.

    Parameters
    ----------
    critic
        :class:`Direct` with λ = 1: its value and variance nodes are the critics.
    actions
        Their number; or, for a table, which of them each state has: an array [state, action].
    states, features
        As in :meth:`Learner.online`; critics and actor have the same. Action preferences are
        linear in the features.
    policy
        The policy to begin with, in a table: probabilities [state, action], none of them 0 for an
        action that the state has; default: uniform.
    penalty
        c. A negative one seeks risk; 0 maximises the mean.
    alpha
        Length of the step in the preferences after an episode of typical length of the direction
        (at most ten times as much): a number or :class:`Decay`, which counts episodes.
    seed
        Seed of the actions.

    Examples
    --------
    >>> import retvar as rv
    >>> bets = rv.MDP.from_edges(                 # the bet earns 1.1 ± 1 instead of 1
    ...     [(0, "bet", "end", 0.5, 2.1), (0, "bet", "end", 0.5, 0.1), (0, "pass", "end", 1, 1.0)],
    ...     gamma=1.0)
    >>> def learned(penalty):
    ...     critic = rv.Direct(alpha=0.05, gamma=1.0, lam=1.0)
    ...     agent = rv.ActorCritic(critic, actions=2, states=1, penalty=penalty, alpha=0.1)
    ...     agent.train(bets, episodes=3_000)
    ...     return agent.policy.probabilities[0, 0]
    >>> bool(learned(penalty=0.0) > 0.9), bool(learned(penalty=0.5) < 0.1)
    (True, True)
    """

    def __init__(
        self,
        critic: Direct,
        actions: int | ArrayLike,
        *,
        states: int | None = None,
        features: Any = None,
        policy: ArrayLike | Policy | None = None,
        penalty: float = 0.0,
        alpha: float | Decay = 0.05,
        seed: int | np.random.Generator = 0,
    ) -> None:
        arguments.instance("critic", critic, Direct, "a Direct learner with lam=1")
        if critic.lam is None or np.any(np.asarray(critic.lam) != 1):
            remedy = "must be 1: the variance is that of the return"
            raise InputError("critic.lam", critic.lam, remedy)
        self.critic = critic.online(states, features)
        self.penalty = arguments.number("penalty", penalty)
        rule = step_size("alpha", alpha)
        constant = isinstance(rule, Constant)
        self.alpha: Decay = Decay(rule.alpha, power=0.0) if constant else rule  # type: ignore
        arguments.instance("alpha", self.alpha, Decay, "a number or Decay")
        self._features: Features = self.critic.features[0]
        self._tabular = self._features.states is not None
        self._rows: Rows | None = self._features.rows() if self._tabular else None
        self._available = self._read_actions(actions)
        self._theta = self._logarithms(policy)
        self.direction = np.zeros_like(self._theta)  #: of the last episode, or of the present one
        self.starts: OnlineEstimator = Direct(alpha=START_STEP).online(states=1)
        self.episodes = 0
        self._square = 0.0  # running mean of squared lengths of directions
        self._rng = arguments.generator("seed", seed)
        self._places: dict[int, _Place] = {}  # of a table, until the policy moves
        self._begun = False
        self._weight, self._ahead = 1.0, 0.0  # Γ and Y

    def _read_actions(self, given: Any) -> NDArray[np.bool_]:
        """Which actions there are, [state, action], or one row for all states."""
        if arguments.is_integer(given):
            return np.ones((1, arguments.integer("actions", given, 1)), dtype=bool)
        what = f"a number, or true and false for [{self._features.states}, action]"
        table = arguments.array("actions", given, what)
        good = self._tabular and table.dtype == bool and table.ndim == 2
        if not good or table.shape[0] != self._features.states or not table.any(axis=1).all():
            remedy = f"must be {what}, at least one in each state"
            raise InputError("actions", f"an array of shape {table.shape}", remedy)
        return table.copy()

    def _logarithms(self, policy: ArrayLike | Policy | None) -> Array:
        """Preferences of a policy, the logarithms of its probabilities."""
        shape = self._features.size, self._available.shape[1]
        if policy is None:
            return np.zeros(shape)
        if not isinstance(self._features, States):
            raise InputError("policy", "features", "goes with states; set preferences instead")
        table = Policy(policy).probabilities
        if table.shape != shape or np.any((table > 0) != np.broadcast_to(self._available, shape)):
            remedy = f"must be an array {list(shape)}, above 0 exactly for actions that states have"
            raise InputError("policy", "other states or actions", remedy)
        return np.log(table, out=np.zeros(shape), where=table > 0)

    # ------------------------------------------------------------------ the policy

    @property
    def preferences(self) -> Array:
        """θ[feature, action], copied; π is the softmax of φθ. It can be set."""
        return self._theta.copy()

    @preferences.setter
    def preferences(self, theta: ArrayLike) -> None:
        given = arguments.floats("preferences", theta, "an array [feature, action]")
        if given.shape != self._theta.shape or not np.isfinite(given).all():
            remedy = f"must be an array {list(self._theta.shape)} of finite numbers"
            raise InputError("preferences", f"an array of shape {given.shape}", remedy)
        self._theta = given
        self._places.clear()

    @property
    def policy(self) -> Policy:
        """The policy of a table."""
        if self._rows is None:
            raise InputError("policy", "features", "there is no list of all states; see act")
        states = range(len(self._rows.indptr) - 1)
        return Policy(np.stack([self._at(s).chances for s in states]))

    def probabilities(self, state: Any) -> Array:
        """Probabilities of the actions in a state."""
        return self._at(state).chances.copy()

    def act(self, state: Any) -> int:
        """Draw an action."""
        ends = self._at(state).ends
        return bisect.bisect_right(ends, self._rng.random() * ends[-1])

    def _at(self, state: Any) -> _Place:
        """Features of a state and the probabilities of its actions; the policy is that of now."""
        found = self._places.get(state) if arguments.is_integer(state) else None
        if found is not None:
            return found
        rows, s = self._rows, 0
        if rows is None:
            rows = self._features.rows([state])
        else:
            s = arguments.integer("state", state, 0, len(rows.indptr) - 2)
        part = slice(rows.indptr[s], rows.indptr[s + 1])
        columns, phi = rows.indices[part], rows.values[part]
        allowed = self._available[s if len(self._available) > 1 else 0]
        x = np.where(allowed, phi @ self._theta[columns], -np.inf)
        chances = np.exp(x - x.max())
        chances /= chances.sum()
        found = _Place(columns, phi, allowed, chances, np.cumsum(chances).tolist())
        if self._rows is not None:
            self._places[s] = found
        return found

    # ------------------------------------------------------------------ learning

    def update(
        self,
        state: Any,
        action: int,
        reward: float,
        next_state: Any = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        gamma: float | None = None,
    ) -> None:
        """Learn from one transition; the policy moves at the end of an episode.

        The arguments are those of :meth:`OnlineEstimator.update`. `gamma` is the discount of this
        transition, if it is not the critic's.
        """
        at = self._at(state)
        a = arguments.integer("action", action, 0, at.chances.size - 1)
        if not at.allowed[a]:
            raise InputError("action", a, "this state does not have it")
        before = 0.0 if self._begun else self.critic.value(state)
        self.critic.update(
            state, reward, next_state, terminated=terminated, truncated=truncated, gamma=gamma
        )
        if not self._begun:
            self._begun, self._weight, self.direction[:] = True, 1.0, 0.0
            self._ahead = before - self.starts.value(0)
            self.starts.update(0, before, None, terminated=True, gamma=1.0, lam=1.0)
        errors = self.critic.td_errors
        delta, weight = errors["value"], self._weight
        error = rules.actor_error(delta, errors["variance"], weight, self._ahead, self.penalty)
        score = -at.chances
        score[a] += 1.0
        self.direction[at.columns] += np.multiply.outer(error * at.phi, score)
        self._ahead += weight * delta
        if terminated or truncated:
            self._end()
            return
        own = self.critic.gammas
        known = own[0 if own.size == 1 else next_state] if gamma is None else gamma
        self._weight = weight * float(known)

    def _end(self) -> None:
        """Move the policy at the end of an episode."""
        self._begun, self._weight = False, 1.0
        self.episodes += 1
        length = float(np.linalg.norm(self.direction))
        self._square = rules.running_mean_square(MEMORY, self._square, length)
        if not np.isfinite(self._square):
            raise InputError("reward", "too large", "a power of it overflows; scale rewards down")
        typical = np.sqrt(self._square / (1 - MEMORY**self.episodes))
        if typical > 0:
            step = rules.decayed_step(self.alpha.alpha, self.alpha.power, self.episodes)
            self._theta += step / typical * self.direction
            self._places.clear()

    def train(
        self, world: Any, episodes: int, *, start: object = None, max_steps: int = MAX_STEPS
    ) -> Progression:
        """Learn from episodes in an MDP or a Gymnasium environment.

        An episode is cut off after `max_steps`, or when what follows has a weight below 10⁻⁶.
        `start` is for MDPs, as in :func:`policy_gradient`. The discounts of an MDP count, not the
        critic's γ.
        """
        episodes = arguments.integer("episodes", episodes, 1)
        max_steps = arguments.integer("max_steps", max_steps, 1)
        world = self._world(world, start)
        first = {"seed": int(self._rng.integers(2**31))}
        rows = [self._episode(world, max_steps, first if i == 0 else {}) for i in range(episodes)]
        returns, lengths, ended = zip(*rows, strict=True)
        return Progression(np.array(returns), np.array(lengths), np.array(ended))

    def _episode(
        self, world: Any, max_steps: int, options: dict[str, int]
    ) -> tuple[float, int, bool]:
        """Return, length and whether it ended of one more episode."""
        self._begun, self._weight = False, 1.0  # whatever was left unfinished
        state, total = world.reset(**options)[0], 0.0
        for step in range(1, max_steps + 1):
            action = self.act(state)
            after, reward, terminated, truncated, info = world.step(action)
            gamma = info["gamma"] if isinstance(world, MDPWorld) else None
            total += self._weight * float(reward)
            cut = bool(truncated or self._weight < NEGLIGIBLE or step == max_steps)
            ends = {"terminated": bool(terminated), "truncated": cut and not terminated}
            self.update(state, action, reward, None if terminated else after, gamma=gamma, **ends)
            if terminated or cut:
                break
            state = after
        return total, step, bool(terminated)

    def _world(self, world: Any, start: object) -> Any:
        """An environment; raise an InputError unless the policy fits."""
        if isinstance(world, MDP):
            fits = self._tabular and self._features.states == world.n_states
            fits = fits and self._available.shape[1] == world.n_actions
            if not fits or np.any(self._available & ~world.available):
                remedy = f"needs a table of {world.n_states} states, and actions=mdp.available"
                raise InputError("world", "an MDP", remedy)
            return MDPWorld(world, start, self._rng)
        if start is not None:
            raise InputError("start", start, "goes with an MDP")
        if not (callable(getattr(world, "reset", None)) and callable(getattr(world, "step", None))):
            raise InputError("world", literal(world), "must be an MDP or a Gymnasium environment")
        return world

    def __repr__(self) -> str:
        size, actions = self._theta.shape
        done = f"{count(size, 'feature')} × {count(actions, 'action')}"
        return f"<ActorCritic: {done}, penalty {self.penalty:g}, {count(self.episodes, 'episode')}>"


class MDPWorld:
    """An MDP with ``reset`` and ``step`` of an environment; ``info["gamma"]`` is the discount.

    >>> import retvar as rv
    >>> world = MDPWorld(rv.domains.chain(reward_std=0.0), None, np.random.default_rng(0))
    >>> world.reset(), world.step(0)
    ((0, {}), (1, 1.0, False, False, {'gamma': 1.0}))
    """

    def __init__(self, mdp: MDP, start: object, rng: np.random.Generator) -> None:
        e = mdp.edges
        self._start = np.cumsum(mdp.start_distribution(start))
        pair = e.state * mdp.n_actions + e.action
        order = np.argsort(pair, kind="stable")
        self._first = np.searchsorted(pair[order], np.arange(mdp.n_states * mdp.n_actions + 1))
        self._total = np.cumsum(e.probability[order])
        columns = (e.next_state, e.reward, e.reward_std, e.gamma)
        self._next, self._reward, self._noise, self._gamma = (c[order].tolist() for c in columns)
        self._actions, self._rng, self._state = mdp.n_actions, rng, 0

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        """Draw a start; the seed is that of the random generator given."""
        self._state = self._draw(self._start, 0, self._start.size)
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Draw an edge of an action."""
        pair = self._state * self._actions + action
        edge = self._draw(self._total, self._first[pair], self._first[pair + 1])
        self._state = self._next[edge]
        reward = self._reward[edge]
        if noise := self._noise[edge]:
            reward += noise * self._rng.standard_normal()
        return self._state, reward, self._state == END, False, {"gamma": self._gamma[edge]}

    def _draw(self, total: Any, first: int, last: int) -> int:
        """Draw a number from `first` to `last` (excluded), given sums of probabilities."""
        below = total[first - 1] if first else 0.0
        point = below + self._rng.random() * (total[last - 1] - below)
        return min(int(np.searchsorted(total[first:last], point, side="right")) + first, last - 1)
