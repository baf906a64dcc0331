/* spread_runs.c: several GPUs: where one GPU's run of layers ends and the next one's begins.
 *
 * 1. Prices of a byte on each GPU (Lagrange multipliers of budgets and floors) by subgradient steps: for given prices the cheapest plan is
 *    a dynamic program over (layer, GPU), and its cost a bound.  2. Common prices hide what it costs that a run begins at one layer and
 *    not at two: so the cuts are branched on, best bound first, each box of cuts with prices of its own.  3. With the runs given each GPU
 *    is a problem of one budget (mck.c): plans.  Plans of neighbouring cuts differ by little: few boxes are enough for a small gap.
 */
#include "spread_runs.h"

#include <math.h>
#include <string.h>

#include "mck.h"

#define TIED 1e-5                                      /* of its cost on the CPU: a class is as well off on either GPU */
#define NEAR_LARGE 1e-5                                /* in large problems a run is not solved any nearer, there are many */
#define NEAR_FLOOR 3e-5
#define NEAR 1e-6                                      /* nearer is the exact search's business */
enum { ROOT_ROUNDS = 600, BOX_ROUNDS = 120, MAX_BOXES = 3000, MCK_STATES = 3000, LARGE = 5000, PARTS = 8, MANY_UNITS = 1000, MAX_SEEN = 512 };

bool hl_spread_late(const hl_spread_solver *s) { return s->pass_deadline_ns && hl_now_ns() > s->pass_deadline_ns; }
double hl_spread_limit(const hl_spread_solver *s) { return s->p->found ? s->best - s->p->tolerance * fabs(s->best) : INFINITY; }

/* ---- a plan for given prices ---- */

/* The cheapest option on a hull at a price: the first whose next slope is above -price. */
static void find_cheapest(hl_spread_solver *s, uint32_t kg, double price)
{
    const double *w = s->p->w, *c = s->p->c;
    uint32_t a = s->hull_first[kg], b = s->hull_first[kg + 1];
    s->cheapest[kg] = INFINITY;
    if (a == b) return;
    for (b--; a < b;) {
        const uint32_t mid = a + (b - a) / 2, i = s->hull[mid], j = s->hull[mid + 1];
        if (c[j] - c[i] + price * (w[j] - w[i]) < 0) a = mid + 1;
        else b = mid;
    }
    s->cheapest_at[kg] = s->hull[a];
    s->cheapest[kg] = c[s->hull[a]] + price * w[s->hull[a]];
}

double hl_spread_free_cost(const hl_spread_solver *s, uint32_t k, int32_t *gpu)
{
    double best = s->p->cpu_cost[k];
    *gpu = -1;
    for (uint32_t g = 0; g < s->G; g++)
        if (s->cheapest[k * s->G + g] < best) { best = s->cheapest[k * s->G + g]; *gpu = (int32_t)g; }
    return best;
}

/* What the budgets are worth at prices, at most: full where a byte has a price, as empty as may be where it is negative. */
static double worth(const hl_spread_solver *s, const double *price, double *u)
{
    double sum = 0, value = 0;
    for (uint32_t g = 0; g < s->G; g++) { u[g] = price[g] > 0 ? s->p->cap[g] : s->least[g]; sum += u[g]; }
    while (sum < s->p->lo) {                           /* the floor: the least negative prices first */
        uint32_t most = UINT32_MAX;
        for (uint32_t g = 0; g < s->G; g++) if (u[g] < s->p->cap[g] && (most == UINT32_MAX || price[g] > price[most])) most = g;
        if (most == UINT32_MAX) break;
        if (s->p->cap[most] - u[most] >= s->p->lo - sum) { u[most] += s->p->lo - sum; break; }
        sum += s->p->cap[most] - u[most];
        u[most] = s->p->cap[most];
    }
    for (uint32_t g = 0; g < s->G; g++) value += price[g] * u[g];
    return value;
}

static void find_cuts(hl_spread_solver *s, const hl_spread_box *b)
{
    const uint32_t G = s->G, n_free = s->p->n_free;
    uint32_t last = 0;
    s->cut[0] = n_free;
    for (uint32_t k = n_free; k < s->n; k++) {
        const double *now = s->table + (size_t)(k - n_free) * G, *then = now + G;
        for (uint32_t h = last; h < G; h++) {
            if (k < b->lo[h] || k >= b->hi[h + 1] || fmin(s->p->cpu_cost[k], s->cheapest[k * G + h]) + then[h] != now[last]) continue;
            while (last < h) s->cut[++last] = k;
            break;
        }
        s->path[k] = s->cheapest[k * G + last] < s->p->cpu_cost[k] ? (int32_t)last : -1;
    }
    while (last < G) s->cut[++last] = s->n;
}

double hl_spread_evaluate(hl_spread_solver *s, const hl_spread_box *b, const double *price, double *beyond)
{
    const uint32_t G = s->G, n_free = s->p->n_free, n_layers = s->n - n_free;
    double u[HL_MAX_GPUS];
    s->constant = -worth(s, price, u);
    for (uint32_t g = 0; g < G; g++) {
        s->price[g] = price[g];
        beyond[g] = -u[g];
        s->free_bytes[g] = 0;
        if (s->unit <= 0) continue;
        beyond[G + g] = -(price[G + g] > 0 ? b->free_hi[g] : b->free_lo[g]);
        s->constant += price[G + g] * beyond[G + g];
    }
    s->free_rest[n_free] = 0;
    for (uint32_t k = n_free; k-- > 0;) {
        for (uint32_t g = 0; g < G; g++) find_cheapest(s, k * G + g, price[g] + (s->unit > 0 ? price[G + g] : 0));
        s->free_rest[k] = s->free_rest[k + 1] + hl_spread_free_cost(s, k, &s->path[k]);
    }
    for (uint32_t g = 0; g < G; g++) s->table[(size_t)n_layers * G + g] = 0;
    for (uint32_t k = s->n; k-- > n_free;) {
        double *now = s->table + (size_t)(k - n_free) * G, best = INFINITY;
        for (uint32_t g = G; g-- > 0;) {
            if (k >= b->lo[g] && k < b->hi[g + 1]) {
                find_cheapest(s, k * G + g, price[g]);
                best = fmin(best, fmin(s->p->cpu_cost[k], s->cheapest[k * G + g]) + now[G + g]);
            }
            now[g] = best;
        }
    }
    find_cuts(s, b);
    for (uint32_t k = 0; k < s->n; k++) {
        if (s->path[k] < 0) continue;
        const uint32_t g = (uint32_t)s->path[k];
        const double w = s->p->w[s->cheapest_at[k * G + g]];
        beyond[g] += w;
        if (k < n_free) s->free_bytes[g] += w;
        if (k < n_free && s->unit > 0) beyond[G + g] += w;
    }
    return s->constant + s->free_rest[0] + s->table[0];
}

/* ---- prices: a proximal bundle method ---- */

enum { MAX_PIECES = 24, WEIGHT_STEPS = 400 };

/* One plan that was seen: its cost as a function of the prices is a plane over them. */
typedef struct piece {
    double price[HL_SPREAD_PRICES], d[HL_SPREAD_PRICES], v, error, weight;
    uint32_t cut[HL_MAX_GPUS + 1];
    double free_bytes[HL_MAX_GPUS];
} piece;
typedef struct bundle { piece x[MAX_PIECES]; uint32_t n; double K[MAX_PIECES][MAX_PIECES]; } bundle;

static double dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add_piece(hl_spread_solver *s, bundle *q, const double *price, const double *d, double v)
{
    uint32_t i = q->n;
    if (i == MAX_PIECES) {                             /* the one that says least */
        i = 0;
        for (uint32_t j = 1; j < q->n; j++) if (q->x[j].weight < q->x[i].weight || (q->x[j].weight <= q->x[i].weight && q->x[j].error > q->x[i].error)) i = j;
        q->x[0].weight += i ? q->x[i].weight : 0;
    } else q->n++;
    memcpy(q->x[i].price, price, sizeof q->x[i].price);
    memcpy(q->x[i].d, d, sizeof q->x[i].d);
    memcpy(q->x[i].cut, s->cut, sizeof s->cut);
    memcpy(q->x[i].free_bytes, s->free_bytes, sizeof s->free_bytes);
    q->x[i].v = v;
    q->x[i].weight = q->n == 1 ? 1 : 0;
    for (uint32_t j = 0; j < q->n; j++) q->K[i][j] = q->K[j][i] = dot(q->x[j].d, d, hl_spread_n_prices(s));
}

/* How far each piece lies above the bound at `price`. */
static void set_errors(const hl_spread_solver *s, bundle *q, const double *price, double v)
{
    for (uint32_t i = 0; i < q->n; i++) {
        piece *x = &q->x[i];
        x->error = x->v - v;
        for (uint32_t g = 0; g < hl_spread_n_prices(s); g++) x->error += x->d[g] * (price[g] - x->price[g]);
        x->error = fmax(0, x->error);
    }
}

/* Weights of the pieces, of sum 1, that minimise t / 2 |sum of d|^2 + sum of errors: two at a time. */
static void weigh(bundle *q, double t)
{
    double sum = 0;
    for (uint32_t i = 0; i < q->n; i++) sum += q->x[i].weight;
    for (uint32_t i = 0; i < q->n; i++) q->x[i].weight = sum > 0 ? q->x[i].weight / sum : 1.0 / q->n;
    for (uint32_t step = 0; step < WEIGHT_STEPS; step++) {
        uint32_t up = 0, down = UINT32_MAX;
        double least = INFINITY, most = -INFINITY;
        for (uint32_t i = 0; i < q->n; i++) {
            double gradient = q->x[i].error;
            for (uint32_t j = 0; j < q->n; j++) gradient += t * q->K[i][j] * q->x[j].weight;
            if (gradient < least) { least = gradient; up = i; }
            if (q->x[i].weight > 0 && gradient > most) { most = gradient; down = i; }
        }
        if (down == UINT32_MAX || up == down || most - least <= 1e-12 * fabs(most)) break;
        const double curve = t * (q->K[up][up] + q->K[down][down] - 2 * q->K[up][down]);
        const double move = curve > 0 ? fmin(q->x[down].weight, (most - least) / curve) : q->x[down].weight;
        q->x[up].weight += move;
        q->x[down].weight = move < q->x[down].weight ? q->x[down].weight - move : 0;
    }
}

/* Raises the bound of a box by better prices, from b->price; enough is enough.  The pieces that are left say between which cuts the
 * prices cannot decide: there the box is cut. */
static void find_prices(hl_spread_solver *s, hl_spread_box *b, uint32_t rounds, double enough, double reach)
{
    bundle q = { .n = 0 };
    const uint32_t N = hl_spread_n_prices(s);
    double d[HL_SPREAD_PRICES], price[HL_SPREAD_PRICES] = { 0 }, v = hl_spread_evaluate(s, b, b->price, d);
    add_piece(s, &q, b->price, d, v);
    double t = dot(d, d, N) > 0 ? reach / dot(d, d, N) : 0;
    for (uint32_t round = 0; round < rounds && v < enough && t > 0; round++) {
        double way[HL_SPREAD_PRICES] = { 0 }, errors = 0, hope;
        if (round % 16 == 15 && hl_spread_late(s)) break;
        set_errors(s, &q, b->price, v);
        weigh(&q, t);
        for (uint32_t i = 0; i < q.n; i++) {
            errors += q.x[i].weight * q.x[i].error;
            for (uint32_t g = 0; g < N; g++) way[g] += q.x[i].weight * q.x[i].d[g];
        }
        hope = t * dot(way, way, N) + errors;
        if (hope <= 1e-10 * fabs(v) + 1e-300) break;
        for (uint32_t g = 0; g < N; g++) price[g] = b->price[g] + t * way[g];
        const double now = hl_spread_evaluate(s, b, price, d);
        if (now - v >= 0.1 * hope) {
            if (now - v >= 0.6 * hope) t *= 4;
            v = now;
            memcpy(b->price, price, sizeof price);
        } else if (now < v - hope) t /= 3;
        add_piece(s, &q, price, d, now);
    }
    b->bound = fmax(b->bound, v);
    for (uint32_t g = 0; g <= s->G; g++) {
        b->low[g] = UINT32_MAX; b->high[g] = 0;
        for (uint32_t i = 0; i < q.n; i++)
            if (q.n == 1 || q.x[i].weight > 1e-4) { b->low[g] = HL_MIN(b->low[g], q.x[i].cut[g]); b->high[g] = HL_MAX(b->high[g], q.x[i].cut[g]); }
        if (b->low[g] > b->high[g]) b->low[g] = b->high[g] = s->cut[g];
    }
    for (uint32_t g = 0; g < s->G; g++) {
        b->free_mean[g] = q.n == 1 ? q.x[0].free_bytes[g] : 0;
        for (uint32_t i = 0; q.n > 1 && i < q.n; i++) b->free_mean[g] += q.x[i].weight * q.x[i].free_bytes[g];
    }
}

/* ---- plans with the GPU of each class given: one budget after the other ---- */

/* mu: what a byte on the GPU is worth beyond its cost, to reach the floor. */
static hl_status solve_one(hl_spread_solver *s, uint32_t g, double lo, double mu, uint32_t *choice, double *bytes, double *bound, bool *found)
{
    hl_status rc = HLLM_OK;
    uint32_t n = 0, n_options = 0, *first = NULL, *picked = NULL;
    double *w = NULL, *c = NULL;
    for (uint32_t k = 0; k < s->n; k++)
        if (s->path[k] == (int32_t)g) { n++; n_options += 1 + s->p->first[k * s->G + g + 1] - s->p->first[k * s->G + g]; }
    *found = lo <= 0;
    *bytes = 0;
    *bound = *found ? 0 : INFINITY;
    if (n == 0) goto done;
    HL_NEED(first = hl_alloc_array(s->mem, n + 1, sizeof *first));
    HL_NEED(picked = hl_alloc_array(s->mem, n, sizeof *picked));
    HL_NEED(w = hl_alloc_array(s->mem, n_options, sizeof *w));
    HL_NEED(c = hl_alloc_array(s->mem, n_options, sizeof *c));
    double all = 0;
    uint32_t at = 0, j = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        if (s->path[k] != (int32_t)g) continue;
        first[j++] = at;
        w[at] = 0; c[at++] = s->p->cpu_cost[k];
        for (uint32_t i = s->p->first[k * s->G + g]; i < s->p->first[k * s->G + g + 1]; i++) { w[at] = s->p->w[i]; c[at++] = s->p->c[i] - mu * s->p->w[i]; }
        all += w[at - 1];
    }
    first[n] = at;
    hl_mck m = { .n_classes = n, .first = first, .w = w, .c = c, .lo = fmax(0, lo), .hi = fmin(s->p->cap[g], all), .tolerance = s->p->tolerance, .enough = s->p->first[s->n * s->G] > LARGE ? NEAR_LARGE : 0,
                 .deadline_ns = s->p->deadline_ns, .max_states = MCK_STATES, .choice = picked };
    HL_TRY(hl_mck_solve(s->mem, &m));
    *found = m.found;
    *bound = m.found || !m.complete ? m.bound : INFINITY;
    for (uint32_t k = 0, i = 0; m.found && k < s->n; k++) {
        if (s->path[k] != (int32_t)g) continue;
        choice[k] = picked[i] ? s->p->first[k * s->G + g] + picked[i] - 1 : UINT32_MAX;
        *bytes += w[first[i] + picked[i]];
        i++;
    }
done:
    hl_free(s->mem, first); hl_free(s->mem, picked); hl_free(s->mem, w); hl_free(s->mem, c);
    return rc;
}

/* The GPUs one after the other, the one whose bytes are cheapest to add last.  hard: together above the floor; else each only as far as the
 * others cannot help.  *bytes: their sum, < 0: one has no plan.  *bound: the sum of theirs. */
static hl_status solve_all(hl_spread_solver *s, const double *price, const double *holds, bool hard, double mu, uint32_t *choice, double *bytes, double *bound)
{
    hl_status rc = HLLM_OK;
    bool taken[HL_MAX_GPUS] = { false };
    double all = 0, room = 0;
    *bytes = *bound = 0;
    for (uint32_t k = 0; k < s->n; k++) choice[k] = UINT32_MAX;
    for (uint32_t g = 0; g < s->G; g++) all += holds[g];
    room = all;
    for (uint32_t turn = 0; turn < s->G; turn++) {
        double used, one;
        bool found;
        uint32_t g = UINT32_MAX;
        for (uint32_t h = 0; h < s->G; h++) if (!taken[h] && (g == UINT32_MAX || price[h] > price[g])) g = h;
        taken[g] = true;
        room -= holds[g];
        HL_TRY(solve_one(s, g, hard ? s->p->lo - *bytes - room : s->p->lo - (all - holds[g]), mu, choice, &used, &one, &found));
        *bound += one;
        if (!found) { *bytes = -1; goto done; }
        *bytes += used;
    }
done:
    return rc;
}

/* Takes the plan in `choice` when it is admissible and the best. */
static bool offer(hl_spread_solver *s, const uint32_t *choice, double bytes)
{
    double total = 0;
    if (bytes < s->p->lo * (1 - 1e-13) || bytes < 0) return false;
    for (uint32_t k = 0; k < s->n; k++) total += choice[k] == UINT32_MAX ? s->p->cpu_cost[k] : s->p->c[choice[k]];
    if (s->p->found && total >= s->best) return false;
    s->best = total; s->p->found = true;
    for (uint32_t k = 0; k < s->n; k++) { s->p->gpu[k] = choice[k] == UINT32_MAX ? -1 : s->path[k]; s->p->option[k] = choice[k]; }
    return true;
}

static void find_holds(const hl_spread_solver *s, double *holds)                             /* the most that each GPU can take */
{
    for (uint32_t g = 0; g < s->G; g++) holds[g] = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        const uint32_t g = (uint32_t)HL_MAX(s->path[k], 0), kg = k * s->G + g;
        if (s->path[k] >= 0 && s->p->first[kg + 1] > s->p->first[kg]) holds[g] += s->p->w[s->p->first[kg + 1] - 1];
    }
    for (uint32_t g = 0; g < s->G; g++) holds[g] = fmin(holds[g], s->p->cap[g]);
}

/* Offers the best plan in which every class has the CPU or the GPU of s->path; *bound: of all plans with these runs (-inf where classes are
 * free to choose otherwise). */
static hl_status try_path(hl_spread_solver *s, const double *price, uint32_t *choice, double *bound, bool *better)
{
    hl_status rc = HLLM_OK;
    double bytes = 0, mu = 0, other, holds[HL_MAX_GPUS];
    *better = false;
    find_holds(s, holds);
    for (uint32_t g = 0; g < s->G; g++) if (s->p->lo > 0) mu = fmax(mu, -price[g]);
    HL_TRY(solve_all(s, price, holds, false, mu, choice, &bytes, bound));
    *bound = bytes >= 0 && !s->p->n_free ? *bound + mu * s->p->lo : -INFINITY;
    if (bytes < s->p->lo * (1 - 1e-13)) HL_TRY(solve_all(s, price, holds, true, mu, choice, &bytes, &other));
    *better = offer(s, choice, bytes);
done:
    return rc;
}

/* Runs that are given, and a floor that couples the GPUs: the bytes that all may stay below full are dealt out in parts; what each GPU
 * costs with so many parts is a problem of its own.  Parts rounded up bound all plans, parts that add up are one. */
static hl_status deal_floor(hl_spread_solver *s, uint32_t *choice, double *bound)
{
    hl_status rc = HLLM_OK;
    double holds[HL_MAX_GPUS], cost[HL_MAX_GPUS][PARTS + 1], spare = -s->p->lo, bytes = 0, used, one;
    double up[PARTS + HL_MAX_GPUS + 1], sum[HL_MAX_GPUS + 1][PARTS + 1];
    uint32_t took[HL_MAX_GPUS][PARTS + 1];
    bool found;
    find_holds(s, holds);
    for (uint32_t g = 0; g < s->G; g++) spare += holds[g];
    if (spare <= 0) goto done;
    const double part = spare / PARTS;
    for (uint32_t g = 0; g < s->G; g++)
        for (int32_t j = PARTS; j >= 0;) {             /* fewer parts than it uses: the next problem */
            HL_TRY(solve_one(s, g, holds[g] - j * part, 0, choice, &used, &one, &found));
            const int32_t enough = found ? (int32_t)HL_MIN(ceil((holds[g] - used) / part - 1e-9), (double)j) : 0;
            for (; j >= HL_MAX(enough, 0); j--) cost[g][j] = one;
        }
    for (uint32_t t = 0; t < HL_COUNT(up); t++) up[t] = 0;
    for (uint32_t t = 0; t <= PARTS; t++) sum[0][t] = 0;
    const uint32_t most = PARTS + s->G - 1;
    for (uint32_t g = 0; g < s->G; g++) {
        for (uint32_t t = most + 1; t-- > 0;) {        /* at most t parts on the GPUs up to g */
            double least = INFINITY;
            for (uint32_t j = 0; j <= HL_MIN(t, (uint32_t)PARTS); j++) least = fmin(least, up[t - j] + cost[g][j]);
            up[t] = least;
        }
        for (uint32_t t = 0; t <= PARTS; t++) {
            sum[g + 1][t] = INFINITY;
            took[g][t] = 0;
            for (uint32_t j = 0; j <= t; j++) if (sum[g][t - j] + cost[g][j] < sum[g + 1][t]) { sum[g + 1][t] = sum[g][t - j] + cost[g][j]; took[g][t] = j; }
        }
    }
    *bound = fmax(*bound, up[most]);
    if (sum[s->G][PARTS] >= hl_spread_limit(s)) goto done;
    for (uint32_t k = 0; k < s->n; k++) choice[k] = UINT32_MAX;
    for (uint32_t g = s->G, t = PARTS; g-- > 0;) {
        const uint32_t j = took[g][t];
        HL_TRY(solve_one(s, g, holds[g] - j * part, 0, choice, &used, &one, &found));
        if (!found) goto done;
        bytes += used;
        t -= j;
    }
    offer(s, choice, bytes);
done:
    return rc;
}

/* Runs that are given, and how many of the free classes, which are all alike, each GPU has: what is left is one budget per GPU. */
static hl_status try_counts(hl_spread_solver *s, const hl_spread_box *b, uint32_t *choice, double *bound)
{
    hl_status rc = HLLM_OK;
    double cap[HL_MAX_GPUS], holds[HL_MAX_GPUS], lo = s->p->lo, taken = 0, mu = 0, bytes = -1, other;
    memcpy(cap, s->p->cap, sizeof cap);
    *bound = INFINITY;
    for (uint32_t g = 0; g < s->G; g++) taken += b->free_hi[g];
    if (taken > (s->p->n_free + 0.5) * s->unit) return HLLM_OK;            /* more than there are */
    *bound = 0;
    for (uint32_t k = 0; k < s->p->n_free; k++) s->path[k] = -1;
    for (uint32_t g = 0; g < s->G; g++) {
        for (uint32_t k = s->cut[g]; k < s->cut[g + 1]; k++) s->path[k] = (int32_t)g;
        s->p->cap[g] -= b->free_hi[g];
        if (lo > 0) mu = fmax(mu, -b->price[g]);
    }
    s->p->lo = fmax(0, lo - taken);
    find_holds(s, holds);
    rc = solve_all(s, b->price, holds, false, mu, choice, &bytes, bound);
    *bound += mu * s->p->lo;
    if (rc == HLLM_OK && bytes >= 0 && bytes < s->p->lo * (1 - 1e-13)) rc = solve_all(s, b->price, holds, true, mu, choice, &bytes, &other);
    memcpy(s->p->cap, cap, sizeof cap);
    s->p->lo = lo;
    HL_TRY(rc);
    uint32_t k = 0;
    for (uint32_t g = 0; g < s->G; g++)
        for (double at = s->unit / 2; at < b->free_hi[g] && k < s->p->n_free; at += s->unit, k++) {
            s->path[k] = (int32_t)g;
            choice[k] = s->p->first[k * s->G + g];
            *bound += s->p->c[choice[k]];
        }
    for (; k < s->p->n_free; k++) *bound += s->p->cpu_cost[k];
    if (bytes >= 0) offer(s, choice, bytes + taken);
done:
    return rc;
}

/* A plan for the runs in s->cut; free classes where the prices evaluated last put them, or would: where several are as good, to the GPU
 * on which the runs, at these prices, leave most. */
static hl_status try_cuts(hl_spread_solver *s, const hl_spread_box *b, uint32_t *choice, double *bound, bool *better)
{
    double left[HL_MAX_GPUS], free_left[HL_MAX_GPUS];
    for (uint32_t g = 0; g < s->G; g++) {
        free_left[g] = s->unit > 0 ? b->free_hi[g] : INFINITY;
        left[g] = s->p->cap[g];
        for (uint32_t k = s->cut[g]; k < s->cut[g + 1]; k++) {
            if (s->path[k] == (int32_t)g) left[g] -= s->p->w[s->cheapest_at[k * s->G + g]];
            s->path[k] = (int32_t)g;
        }
    }
    for (uint32_t k = 0; k < s->p->n_free; k++) {
        const double *cost = s->cheapest + (size_t)k * s->G;
        double least = INFINITY;
        int32_t to = -1;
        for (uint32_t g = 0; g < s->G; g++)
            if (cost[g] < INFINITY && free_left[g] >= s->p->w[s->cheapest_at[k * s->G + g]]) least = fmin(least, cost[g]);
        for (uint32_t g = 0; g < s->G; g++)
            if (cost[g] < INFINITY && free_left[g] >= s->p->w[s->cheapest_at[k * s->G + g]] && cost[g] - least <= TIED * fabs(s->p->cpu_cost[k]) && (to < 0 || left[g] > left[to])) to = (int32_t)g;
        s->path[k] = to;
        if (to < 0) continue;
        left[to] -= s->p->w[s->cheapest_at[k * s->G + (uint32_t)to]];
        free_left[to] -= s->p->w[s->cheapest_at[k * s->G + (uint32_t)to]];
    }
    return try_path(s, b->price, choice, bound, better);
}

/* ---- boxes of cuts ---- */

typedef struct boxes { hl_spread_box *box; uint32_t n, cap; struct seen { uint32_t cut[HL_MAX_GPUS + 1]; double bound; } *seen; uint32_t n_seen; } boxes;

/* The entry of these cuts; *known: they were tried. */
static struct seen *look_up(boxes *q, const uint32_t *cut, uint32_t G, bool *known)
{
    for (uint32_t i = 0; i < HL_MIN(q->n_seen, (uint32_t)MAX_SEEN); i++)
        if (memcmp(q->seen[i].cut, cut, (G + 1) * sizeof *cut) == 0) { *known = true; return &q->seen[i]; }
    struct seen *x = &q->seen[q->n_seen++ % MAX_SEEN];
    *known = false;
    memcpy(x->cut, cut, (G + 1) * sizeof *cut);
    x->bound = -INFINITY;
    return x;
}

static hl_status push_box(hl_spread_solver *s, boxes *q, const hl_spread_box *b)
{
    hl_status rc = HLLM_OK;
    if (q->n == q->cap) {
        hl_spread_box *bigger = hl_realloc(s->mem, q->box, (size_t)(q->cap ? 2 * q->cap : 64) * sizeof *bigger);
        HL_NEED(bigger);
        q->box = bigger; q->cap = q->cap ? 2 * q->cap : 64;
    }
    q->box[q->n++] = *b;
done:
    return rc;
}

/* The GPU whose free bytes the prices would like to have between two multiples of their unit, most clearly; n_gpus: none. */
static uint32_t between_units(const hl_spread_solver *s, const hl_spread_box *b)
{
    uint32_t at = s->G;
    double most = 1e-3;
    for (uint32_t g = 0; s->unit > 0 && g < s->G; g++) {
        const double x = b->free_mean[g] / s->unit, off = fmin(x - floor(x), ceil(x) - x);
        if (off > most && floor(x) * s->unit >= b->free_lo[g] && ceil(x) * s->unit <= b->free_hi[g]) { most = off; at = g; }
    }
    return at;
}

/* A GPU with more than one number of free classes that are all alike: what decides once the cuts are given. */
static uint32_t open_count(const hl_spread_solver *s, const hl_spread_box *b)
{
    for (uint32_t g = 0; s->alike && g < s->G; g++) if (b->free_lo[g] < b->free_hi[g]) return g;
    return s->G;
}

static bool one_point(const hl_spread_box *b, uint32_t G)
{
    for (uint32_t g = 1; g < G; g++) if (b->lo[g] < b->hi[g]) return false;
    return true;
}

/* Halves the box where its prices could not decide; cuts never fall. */
static void halve(const hl_spread_solver *s, const hl_spread_box *b, hl_spread_box *left, hl_spread_box *right)
{
    uint32_t g = between_units(s, b), most = 0;
    *left = *right = *b;
    if (g < s->G) {
        left->free_hi[g] = floor(b->free_mean[g] / s->unit) * s->unit;
        right->free_lo[g] = left->free_hi[g] + s->unit;
        return;
    }
    if (one_point(b, s->G)) {                          /* at the count that the prices chose, or below it */
        g = open_count(s, b);
        const double at = fmin(fmax(floor(b->free_mean[g] / s->unit + 0.5) * s->unit, b->free_lo[g]), b->free_hi[g]);
        left->free_hi[g] = at < b->free_hi[g] ? at : at - s->unit;
        right->free_lo[g] = left->free_hi[g] + s->unit;
        return;
    }
    g = 0;
    for (uint32_t h = 1; h < s->G; h++) {
        const uint32_t wide = b->hi[h] > b->lo[h] ? 1 + b->hi[h] - b->lo[h] + 1000 * (b->high[h] - b->low[h]) : 0;
        if (wide > most) { most = wide; g = h; }
    }
    uint32_t at = b->low[g] + (b->high[g] - b->low[g]) / 2;
    if (at < b->lo[g]) at = b->lo[g];
    if (at >= b->hi[g]) at = b->hi[g] - 1;
    left->hi[g] = at;
    right->lo[g] = at + 1;
    for (uint32_t h = 1; h < g; h++) left->hi[h] = HL_MIN(left->hi[h], at);
    for (uint32_t h = g + 1; h < s->G; h++) right->lo[h] = HL_MAX(right->lo[h], at + 1);
}

static void root_prices(hl_spread_solver *s)
{
    double scale = 0;
    /* A price's order of magnitude: what all could save, over all bytes. */
    for (uint32_t k = 0; k < s->n; k++) {
        double least = s->p->cpu_cost[k];
        for (uint32_t i = s->p->first[k * s->G]; i < s->p->first[(k + 1) * s->G]; i++) least = fmin(least, s->p->c[i]);
        scale += s->p->cpu_cost[k] - least;
    }
    s->root.bound = -INFINITY;
    double d[HL_SPREAD_PRICES];
    s->root.bound = hl_spread_evaluate(s, &s->root, s->root.price, d);
    find_prices(s, &s->root, ROOT_ROUNDS, hl_spread_limit(s), fmax(scale, fabs(s->root.bound) * 1e-9));
}

static hl_status search(hl_spread_solver *s, boxes *q, uint32_t *choice)
{
    hl_status rc = HLLM_OK;
    double closed = INFINITY, d[HL_SPREAD_PRICES];
    bool better;
    root_prices(s);
    HL_TRY(push_box(s, q, &s->root));
    for (uint32_t turn = 0; q->n; turn++) {
        uint32_t least = 0;
        for (uint32_t i = 1; i < q->n; i++) if (q->box[i].bound < q->box[least].bound) least = i;
        hl_spread_box b = q->box[least], half[2];
        s->bound = fmin(b.bound, closed);
        if (b.bound >= hl_spread_limit(s) || (s->p->found && s->best - s->bound <= NEAR * fabs(s->best)) || closed <= b.bound || turn == MAX_BOXES || hl_spread_late(s)) break;
        q->box[least] = q->box[--q->n];
        hl_spread_evaluate(s, &b, b.price, d);
        struct seen *x = look_up(q, s->cut, s->G, &better);
        if (!better) HL_TRY(try_cuts(s, &b, choice, &x->bound, &better));
        if (turn == 0 && s->p->found) {                /* a plan's cost makes better steps */
            find_prices(s, &b, ROOT_ROUNDS, hl_spread_limit(s), s->best - b.bound);
            s->root = b;
        }
        if (one_point(&b, s->G) && s->p->lo > 0 && !s->p->n_free && s->best - fmax(b.bound, x->bound) > NEAR_FLOOR * fabs(s->best) && !hl_spread_late(s)) {
            for (uint32_t g = 0; g < s->G; g++) for (uint32_t k = s->cut[g]; k < s->cut[g + 1]; k++) s->path[k] = (int32_t)g;
            HL_TRY(deal_floor(s, choice, &x->bound));
        }
        if (one_point(&b, s->G) && between_units(s, &b) == s->G && open_count(s, &b) == s->G) {
            double bound = x->bound;
            if (s->alike) HL_TRY(try_counts(s, &b, choice, &bound));
            closed = fmin(closed, fmax(b.bound, bound));
            continue;
        }
        halve(s, &b, &half[0], &half[1]);
        for (uint32_t i = 0; i < 2; i++) {
            find_prices(s, &half[i], BOX_ROUNDS, hl_spread_limit(s), s->p->found ? s->best - b.bound : fabs(b.bound) * 1e-3);
            if (half[i].bound >= hl_spread_limit(s)) closed = fmin(closed, half[i].bound);
            else HL_TRY(push_box(s, q, &half[i]));
        }
    }
    if (q->n == 0) s->bound = closed;
done:
    return rc;
}

/* Free class k has one option per GPU, a unit of bytes, and the costs of the first. */
static bool is_like_first(const hl_spread_solver *s, uint32_t k)
{
    const hl_spread *p = s->p;
    if (p->cpu_cost[k] != p->cpu_cost[0]) return false;
    for (uint32_t g = 0; g < s->G; g++) {
        const uint32_t i = p->first[g], j = p->first[k * s->G + g], n = p->first[k * s->G + g + 1] - j;
        if (n != p->first[g + 1] - i || n > 1 || (n == 1 && (p->w[j] != s->unit || p->c[j] != p->c[i]))) return false;
    }
    return true;
}

hl_status hl_spread_runs(hl_spread_solver *s)
{
    hl_status rc = HLLM_OK;
    boxes q = { 0 };
    uint32_t *choice = NULL;
    for (uint32_t g = 0; g <= s->G; g++) {
        s->root.lo[g] = g < s->G ? s->p->n_free : s->n;
        s->root.hi[g] = g ? s->n : s->p->n_free;
    }
    /* Free classes of few sizes, large beside a budget: only so many fit. */
    s->unit = hl_mck_unit(s->p->w, s->p->first[s->p->n_free * s->G]);
    for (uint32_t g = 0; g < s->G; g++) {
        s->root.free_lo[g] = 0;
        double all = 0;
        for (uint32_t k = 0; k < s->p->n_free; k++) if (s->p->first[k * s->G + g] < s->p->first[k * s->G + g + 1]) all += s->p->w[s->p->first[k * s->G + g]];
        s->root.free_hi[g] = s->unit > 0 ? fmin(all, hl_mck_floor(s->p->cap[g], s->unit)) : 0;
        if (s->p->cap[g] > MANY_UNITS * s->unit) s->unit = 0;
    }
    s->alike = s->unit > 0;
    for (uint32_t k = 0; s->alike && k < s->p->n_free; k++) s->alike = is_like_first(s, k);
    HL_NEED(choice = hl_alloc_array(s->mem, s->n, sizeof *choice));
    HL_NEED(q.seen = hl_alloc_array(s->mem, MAX_SEEN, sizeof *q.seen));
    HL_TRY(search(s, &q, choice));
    if (s->unit > 0 && s->best - s->bound > s->p->tolerance * fabs(s->best)) {               /* what follows knows no prices on top */
        const double bound = s->bound;
        s->unit = 0;
        s->root.bound = -INFINITY;
        find_prices(s, &s->root, ROOT_ROUNDS, hl_spread_limit(s), s->p->found ? s->best - bound : fabs(bound));
    }
done:
    hl_free(s->mem, choice); hl_free(s->mem, q.seen); hl_free(s->mem, q.box);
    return rc;
}
