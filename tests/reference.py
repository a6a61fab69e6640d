"""Reference implementation of the update equations: slow, plain and dense.

Shares no code with the package. One class for all methods; features are vectors; every array is
made anew. It is also the kind of class that researchers write, and the benchmark's yardstick.
"""

from __future__ import annotations

import numpy as np


class Reference:
    """Direct, VTD or centred estimation with accumulating traces, one stream."""

    def __init__(
        self, method, size, *, alpha, alpha_bar, alpha_mean=None, kappa=0.0, kappa_bar=0.0,
        kappa_mean=None, estimand="target_return", learn_value=True, J=None, V=None, g=None,
        offline=False, order=2, dtype=np.float64,
    ):  # fmt: skip
        self.method, self.estimand, self.learn_value = method, estimand, learn_value
        self.alpha, self.alpha_bar = dtype(alpha), dtype(alpha_bar)
        default = self.alpha if learn_value else self.alpha_bar
        self.alpha_mean = default if alpha_mean is None else dtype(alpha_mean)
        self.kappa, self.kappa_bar = dtype(kappa), dtype(kappa_bar)
        self.kappa_mean = self.kappa if kappa_mean is None else dtype(kappa_mean)
        zero = np.zeros(size, dtype=dtype)
        self.J = zero if J is None else np.array(J, dtype=dtype)
        V = zero if V is None else np.array(V, dtype=dtype)
        self.V = V + self.J**2 if method == "vtd" else V  # for VTD this is M
        self.g = self.J if g is None else np.array(g, dtype=dtype)
        self.order, self.M3, self.M4 = order, zero, zero
        self.offline, self.pending = offline, [zero] * 5
        self.reset()

    def reset(self):
        """Start an episode."""
        zero = np.zeros_like(self.J)
        self.E, self.E_mean, self.E_bar, self.E3, self.E4 = zero, zero, zero, zero, zero
        self.gamma, self.discount, self.gamma_bar = 0.0, 0.0, 0.0

    def update(
        self, x, reward, x_next, gamma, lam, rho=1.0, terminated=False, truncated=False
    ):  # fmt: skip
        if terminated:
            gamma, lam, x_next = 0.0, 0.0, np.zeros_like(x)
        eta, rho_bar = (1.0, rho) if self.estimand == "target_return" else (rho, 1.0)
        J_old, J_old_next = np.dot(self.J, x), np.dot(self.J, x_next)
        delta = reward + gamma * J_old_next - J_old
        self.E = rho * (self.gamma * self.kappa * self.E + x)
        if self.learn_value:
            self._move("J", 0, self.alpha * delta * self.E)
        J_new_next = np.dot(self.J, x_next)
        discount = eta * gamma * lam
        epsilon = eta * delta + (eta - 1) * J_old
        if self.method == "direct":
            reward_bar = epsilon**2
        elif self.method == "vtd":
            G = reward + gamma * (1 - lam) * J_new_next
            reward_bar = eta**2 * (G**2 + 2 * gamma * lam * G * J_new_next)
        else:
            target = eta * (reward + gamma * (1 - lam) * J_old_next)
            error = target + discount * np.dot(self.g, x_next) - np.dot(self.g, x)
            self.E_mean = rho_bar * (self.discount * self.kappa_mean * self.E_mean + x)
            self._move("g", 1, self.alpha_mean * error * self.E_mean)
            epsilon, reward_bar = error, error**2
        gamma_bar = discount**2
        V_next, M3_next, M4_next = (np.dot(w, x_next) for w in (self.V, self.M3, self.M4))
        delta_bar = reward_bar + gamma_bar * V_next - np.dot(self.V, x)
        self.E_bar = rho_bar * (self.gamma_bar * self.kappa_bar * self.E_bar + x)
        self._move("V", 2, self.alpha_bar * delta_bar * self.E_bar)
        if (
            self.order >= 3
        ):  # X = ε + cX′ with E[X′] = 0: the binomials of (ε + cX′)³ and (ε + cX′)⁴
            target = epsilon**3 + 3 * discount**2 * epsilon * V_next + discount**3 * M3_next
            error = target - np.dot(self.M3, x)
            self.E3 = rho_bar * (self.discount**3 * self.kappa_bar * self.E3 + x)
            self._move("M3", 3, self.alpha_bar * error * self.E3)
        if self.order >= 4:
            target = epsilon**4 + 6 * discount**2 * epsilon**2 * V_next
            target += 4 * discount**3 * epsilon * M3_next + discount**4 * M4_next
            error = target - np.dot(self.M4, x)
            self.E4 = rho_bar * (self.discount**4 * self.kappa_bar * self.E4 + x)
            self._move("M4", 4, self.alpha_bar * error * self.E4)
        self.gamma, self.discount, self.gamma_bar = gamma, discount, gamma_bar
        if terminated or truncated:
            self.reset()

    def _move(self, name, node, change):
        if self.offline:
            self.pending[node] = self.pending[node] + change
        else:
            setattr(self, name, getattr(self, name) + change)

    @property
    def variance(self):
        return self.V - self.J**2 if self.method == "vtd" else self.V
