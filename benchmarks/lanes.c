/* The paper's value-error experiment as one would write it in C for this purpose alone: direct and
 * VTD learners in lanes on one stream, the value frozen, no traces, ratios 1, no end of an episode.
 *
 * Compiled by benchmarks/engine.py with -DLANES=… and -DSTATES=….
 */
#include "walk.h"

typedef double Table[STATES][LANES];
typedef double Row[LANES];

typedef struct {
    Table sums, squares, frozen_squares;
} Window;

/* One transition s → s2 in all lanes: V and M of s move. */
static inline void update(const double *restrict alpha, const double *J, const double *J2,
                          double *V, const double *V2, double *M, const double *M2, double R,
                          double gamma, double lambda) {
    double root = gamma * lambda, discount = root * root;
    double rest = gamma * (1 - lambda), twice = 2 * gamma * lambda;
#pragma GCC ivdep /* s and s2 may be one: a lane reads before it writes */
    for (int l = 0; l < LANES; l++) {
        double delta = R + gamma * J2[l] - J[l];
        double G = R + rest * J2[l];
        double direct = delta * delta + discount * V2[l] - V[l];
        double vtd = G * G + twice * G * J2[l] + discount * M2[l] - M[l];
        V[l] += alpha[l] * direct;
        M[l] += alpha[l] * vtd;
    }
}

/* Count an estimate, V or M − J², for as many moments as it stood. */
static inline void tally(Window *w, int64_t s, double since, const double *restrict x,
                         const double *restrict J, const double *restrict truth,
                         const double *restrict frozen) {
    double *restrict sums = w->sums[s], *restrict squares = w->squares[s];
    double *restrict others = w->frozen_squares[s];
    for (int l = 0; l < LANES; l++) {
        double found = J ? x[l] - J[l] * J[l] : x[l];
        double gap = found - truth[l], other = found - frozen[l];
        sums[l] += since * found;
        squares[l] += since * (gap * gap);
        others[l] += since * (other * other);
    }
}

/* Run number `run`: V and M hold the initial estimates and are changed; `window` moments at the end
 * are counted in `direct` and `vtd`, none of them where it is 0. */
void learn(const Stream *m, int64_t run, int64_t steps, int64_t window, const Row alpha,
           const Table J, Table V, Table M, const Table truth, const Table frozen, Window *direct,
           Window *vtd) {
    Key k = key(m, run);
    int64_t seen[STATES], s = m->start;
    for (int i = 0; i < STATES; i++)
        seen[i] = window ? steps - window : steps;
    for (int64_t t = 0; t < steps; t++) {
        int64_t e = edge(m, k, t, s), s2 = m->next[e];
        if (t > seen[s]) {
            double since = (double)(t - seen[s]);
            tally(direct, s, since, V[s], 0, truth[s], frozen[s]);
            tally(vtd, s, since, M[s], J[s], truth[s], frozen[s]);
            seen[s] = t;
        }
        update(alpha, J[s], J[s2], V[s], V[s2], M[s], M[s2], m->reward[e], m->gamma[e],
               m->lambda[e]);
        s = s2;
    }
    for (int i = 0; i < STATES; i++)
        if (steps > seen[i]) {
            double since = (double)(steps - seen[i]);
            tally(direct, i, since, V[i], 0, truth[i], frozen[i]);
            tally(vtd, i, since, M[i], J[i], truth[i], frozen[i]);
        }
}

/* A chain of additions of one cycle each, to tell how fast the clock ticks. */
uint64_t ticks(uint64_t count) {
    uint64_t x = 0;
    for (uint64_t i = 0; i < count; i++)
        __asm__ volatile("add $1, %0" : "+r"(x));
    return x;
}
