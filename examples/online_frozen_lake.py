"""Learn value and spread of the return on FrozenLake, step by step, and compare with the truth.

A uniform random policy walks the lake; a centred learner is fed every transition. Gymnasium tells
apart an episode that ended (a hole, the goal) from one that ran out of time: so does the learner.
"""

import gymnasium

import retvar as rv

GAMMA, LAM = 0.95, 0.9
STEPS = 800_000


def main() -> None:
    """Print, for each state that was visited, what was learned and what is true."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    truth = rv.solve(rv.MDP.from_gymnasium(env, gamma=GAMMA, lam=LAM), "uniform")
    risk = rv.Centred(alpha=rv.Decay(power=0.7), gamma=GAMMA, lam=LAM).online(
        states=int(env.observation_space.n)
    )
    env.action_space.seed(1)
    visits = [0] * len(truth.value)
    state, _ = env.reset(seed=1)
    for _ in range(STEPS):
        follows, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        risk.update(state, reward, follows, terminated=terminated, truncated=truncated)
        visits[state] += 1
        state = env.reset()[0] if terminated or truncated else follows

    print(risk)
    print("state   visits       learned value ± std             exact value ± std")
    for s, count in enumerate(visits):
        if count:
            learned = f"{risk.value(s):.5f} ± {risk.std(s):.5f}"
            exact = f"{truth.value[s]:.5f} ± {truth.std[s]:.5f}"
            print(f"{s:5}  {count:7,}  {learned:>26}  {exact:>28}")


if __name__ == "__main__":
    main()
