/* The walk through an MDP that the C programs share: the edges and the random numbers are those of
 * src/retvar/simulation/streams.py. Episodes begin in one state, rewards have no noise, ratios are 1.
 *
 * Compiled by benchmarks/engine.py with -DSTATES=…; without contraction of multiply-adds the
 * programs that include this learn what the engine learns, bit for bit.
 */
#include <stdint.h>

typedef struct {
    const int64_t *first;    /* first edge of each state */
    const double *fan;       /* how many it has */
    const double *threshold; /* share of a slot that is its own edge's */
    const int64_t *other;    /* edge that has the rest */
    const int64_t *next;     /* STATES where the episode ends */
    const double *reward, *gamma, *lambda; /* of each edge */
    int64_t start;
    uint64_t seed;
} Stream;

typedef struct {
    uint64_t a, b;
} Key;

#define GOLDEN 0x9E3779B97F4A7C15u

static inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline Key key(const Stream *m, int64_t run) {
    uint64_t seed = mix(m->seed + GOLDEN), a = mix(seed + (uint64_t)run * GOLDEN);
    return (Key){a, mix((a ^ 0x6A09E667F3BCC909u) + seed)};
}

/* The edge taken from state s at step t. */
static inline int64_t edge(const Stream *m, Key k, int64_t t, int64_t s) {
    uint64_t word = mix(mix(k.a + 4 * (uint64_t)t * GOLDEN) ^ k.b);
    double scaled = (double)(int64_t)(word >> 11) * 0x1p-53 * m->fan[s];
    int64_t slot = (int64_t)scaled, i = m->first[s] + slot;
    return scaled - (double)slot < m->threshold[i] ? i : m->other[i];
}
