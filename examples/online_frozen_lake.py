"""Learn value and standard deviation of the return on FrozenLake online; compare with the truth.

The policy is uniformly random, and a centred estimator is updated with every transition. Gymnasium
distinguishes termination (a hole, the goal) from truncation (the time limit), and so does retvar.
"""

import gymnasium

import retvar as rv

GAMMA, LAM = 0.95, 0.9
STEPS = 800_000


def main() -> None:
    """Print the estimate and the exact solution of each visited state."""
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    truth = rv.solve(rv.MDP.from_gymnasium(env, gamma=GAMMA, lam=LAM), "uniform")
    estimator = rv.Centred(alpha=rv.Decay(power=0.7), gamma=GAMMA, lam=LAM).online(
        states=int(env.observation_space.n)
    )
    env.action_space.seed(1)
    visits = [0] * len(truth.value)
    state, _ = env.reset(seed=1)
    for _ in range(STEPS):
        next_state, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        estimator.update(state, reward, next_state, terminated=terminated, truncated=truncated)
        visits[state] += 1
        state = env.reset()[0] if terminated or truncated else next_state

    print(estimator)
    print("state   visits       learned value ± std             exact value ± std")
    for s, count in enumerate(visits):
        if count:
            learned = f"{estimator.value(s):.5f} ± {estimator.std(s):.5f}"
            exact = f"{truth.value[s]:.5f} ± {truth.std[s]:.5f}"
            print(f"{s:5}  {count:7,}  {learned:>26}  {exact:>28}")


if __name__ == "__main__":
    main()
