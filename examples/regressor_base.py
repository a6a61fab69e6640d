"""A regressor of scikit-learn, or any object with fit and predict, as a base of the stack.

Fitted TD: the regressor learns λ-returns that end in its own values, again and again, once without
each fold of the episodes. Held-out returns decide how much it counts. Without scikit-learn a small
regressor takes its place.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import retvar as rv
from retvar.estimation.episodes import lambda_returns


class Trees:
    """Fitted TD by the regressors that `make` returns."""

    def __init__(self, make: Callable[[], Any], sweeps: int = 6, kappa: float = 0.9) -> None:
        self.make, self.sweeps, self.kappa = make, sweeps, kappa

    def fit(self, moves: Any, folds: Any) -> None:
        """Fit a regressor without each fold."""
        self.models = [self.fitted(moves.only(rows)) for rows in folds.others()]

    def fitted(self, log: Any) -> Any:
        """The regressor whose own λ-returns it has learned last."""
        value, end_value = np.zeros(len(log)), np.zeros(len(log.end_state))
        for _ in range(self.sweeps):
            model = self.make()
            model.fit(log.state, lambda_returns(log, value, end_value, self.kappa))
            value = model.predict(log.state)
            end_value = model.predict(log.end_state) if len(log.end_state) else end_value
        return model

    def predict(self, points: np.ndarray) -> np.ndarray:
        """Values [fold, place]."""
        return np.array([model.predict(points) for model in self.models])


class Cells:
    """A regressor in a few lines: the mean of each cell of a grid over the unit square."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        """Take the means; of empty cells that of all."""
        sums, counts = (np.bincount(self.cell(x), w, 100) for w in (y, np.ones(len(y))))
        self.means = np.where(counts > 0, sums / np.maximum(counts, 1), y.mean())

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The mean of each place's cell."""
        return self.means[self.cell(x)]

    def cell(self, x: np.ndarray) -> np.ndarray:
        """The number of each place's cell."""
        column, row = np.clip((10 * x).astype(int), 0, 9).T
        return 10 * column + row


def regressor() -> Any:
    """Boosted trees where scikit-learn is installed."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        return Cells()
    return HistGradientBoostingRegressor(max_iter=60)


def main(steps: int = 20_000) -> None:
    """Walk on a square, of which a corner pays; print weights, and value ± std in two places."""
    rng, x = np.random.default_rng(0), np.empty((steps + 1, 2))
    x[0] = 0.5
    for t in range(steps):
        x[t + 1] = np.clip(x[t] + 0.1 * rng.normal(size=2), 0, 1)
    pays = (x[:-1] > 0.6).all(axis=1)
    log = {"x": x[:-1, 0], "y": x[:-1, 1], "next_x": x[1:, 0], "next_y": x[1:, 1]}
    log |= {"reward": pays + 0.5 * rng.normal(size=steps), "terminated": np.zeros(steps, bool)}
    walk = rv.experience.from_table(log, state=["x", "y"], next_state=["next_x", "next_y"])
    bases = ["tiles", "waves", "neighbours", Trees(regressor)]
    found = rv.estimate(walk, gamma=0.9, features=bases)
    print(found.estimator.remarks[0])
    for place in ([0.2, 0.2], [0.8, 0.8]):
        print(f"{place}: {found.value(place):.1f} ± {found.std(place):.1f}")


if __name__ == "__main__":
    main()
