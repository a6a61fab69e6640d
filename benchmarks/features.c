/* The paper's random walk with linear features as one would write it in C for this purpose alone:
 * a direct, a VTD and a centred learner that share their value node, with traces; ratios 1.
 *
 * Compiled by benchmarks/engine.py with -DSTATES=…, -DFEW=… (features of value and mean) and
 * -DMANY=… (features of the variance nodes).
 */
#include "walk.h"

#include <string.h>

typedef struct {
    double weights[MANY], trace[MANY]; /* value and mean use FEW of them */
    double last;                       /* discount of the transition before this one */
} Node;

typedef struct {
    Node value, mean, direct, moment, centred;
} Network;

typedef struct {
    double alpha, alpha_bar, kappa, kappa_bar;
} Settings;

static inline double dot(int n, const double *x, const double *w) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * w[i];
    return sum;
}

/* One TD update; returns the TD error. */
static inline double learn_node(int n, Node *node, const double *x, const double *x2, double alpha,
                                double kappa, double reward, double discount) {
    double now = dot(n, x, node->weights), after = dot(n, x2, node->weights);
    double delta = reward + discount * after - now;
    double push = alpha * delta, decay = node->last * kappa;
    for (int i = 0; i < n; i++) {
        node->trace[i] = decay * node->trace[i] + x[i];
        node->weights[i] += push * node->trace[i];
    }
    node->last = discount;
    return delta;
}

static inline void forget(Node *node) {
    memset(node->trace, 0, sizeof node->trace);
    node->last = 0;
}

/* Run number `run`: the network holds the initial weights, and traces and discounts of 0. The rows
 * after the last state's are 0, for the end of an episode. */
void learn(const Stream *m, int64_t run, int64_t steps, const Settings *set,
           const double few[STATES + 1][FEW], const double many[STATES + 1][MANY],
           Network *network) {
    Key k = key(m, run);
    int64_t s = m->start;
    Network net = *network;
    double alpha = set->alpha, kappa = set->kappa;
    double alpha_bar = set->alpha_bar, kappa_bar = set->kappa_bar;
    for (int64_t t = 0; t < steps; t++) {
        int64_t e = edge(m, k, t, s), s2 = m->next[e];
        const double *x = few[s], *x2 = few[s2], *y = many[s], *y2 = many[s2];
        double R = m->reward[e], gamma = m->gamma[e], lambda = m->lambda[e];
        double root = gamma * lambda, discount = root * root, rest = gamma * (1 - lambda);
        double before = dot(FEW, x2, net.value.weights);
        double delta = learn_node(FEW, &net.value, x, x2, alpha, kappa, R, gamma);
        double updated = dot(FEW, x2, net.value.weights);
        double error = learn_node(FEW, &net.mean, x, x2, alpha, kappa,
                                  R + rest * before, root);
        double G = R + rest * updated, squares = G * G + 2 * gamma * lambda * G * updated;
        learn_node(MANY, &net.direct, y, y2, alpha_bar, kappa_bar, delta * delta, discount);
        learn_node(MANY, &net.moment, y, y2, alpha_bar, kappa_bar, squares, discount);
        learn_node(MANY, &net.centred, y, y2, alpha_bar, kappa_bar, error * error, discount);
        s = s2;
        if (s == STATES) {
            s = m->start;
            forget(&net.value);
            forget(&net.mean);
            forget(&net.direct);
            forget(&net.moment);
            forget(&net.centred);
        }
    }
    *network = net;
}
