/* Direct learners with traces as one would write them in C for this purpose alone: one lane for
 * each, on one stream, a weight and a trace for each state, all of them updated at every step;
 * ratios 1, no end of an episode.
 *
 * Compiled by benchmarks/engine.py with -DLANES=… and -DSTATES=….
 */
#include "walk.h"

typedef double Table[STATES][LANES];
typedef double Row[LANES];

/* E = decay·E + φ and w = w + αδE, for all states and lanes. */
static inline void move(Table w, Table E, int64_t s, const double *decay, const double *push) {
    for (int i = 0; i < STATES; i++) {
        double phi = i == s, *restrict weights = w[i], *restrict trace = E[i];
        for (int l = 0; l < LANES; l++) {
            double e = decay[l] * trace[l] + phi;
            trace[l] = e;
            weights[l] += push[l] * e;
        }
    }
}

/* Run number `run`: J and V hold the initial estimates and are changed, as are the traces E of J
 * and F of V; the settings are those of each lane. */
void learn(const Stream *m, int64_t run, int64_t steps, const Row alpha, const Row alpha_bar,
           const Row kappa, const Row kappa_bar, Table J, Table V, Table E, Table F) {
    Key k = key(m, run);
    int64_t s = m->start;
    double last = 0, last_bar = 0; /* discounts of the transition before this one */
    Row push, push_bar, decay, decay_bar;
    for (int64_t t = 0; t < steps; t++) {
        int64_t e = edge(m, k, t, s), s2 = m->next[e];
        double R = m->reward[e], gamma = m->gamma[e], root = gamma * m->lambda[e];
        double discount = root * root;
        for (int l = 0; l < LANES; l++) {
            double delta = R + gamma * J[s2][l] - J[s][l];
            double delta_bar = delta * delta + discount * V[s2][l] - V[s][l];
            push[l] = alpha[l] * delta;
            push_bar[l] = alpha_bar[l] * delta_bar;
            decay[l] = last * kappa[l];
            decay_bar[l] = last_bar * kappa_bar[l];
        }
        move(J, E, s, decay, push);
        move(V, F, s, decay_bar, push_bar);
        last = gamma;
        last_bar = discount;
        s = s2;
    }
}
