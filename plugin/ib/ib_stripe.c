/* SPDX-License-Identifier: Apache-2.0
 *
 * A message is divided when isend is called. A part is outstanding on its route from then until its last write
 * completes. Now and then, in a round, a message is measured: for each of its routes, when as much is completed as the
 * route has outstanding then. Until that moment it had work without a pause, so bytes by time is its rate. The clock
 * is read when a round begins and when a measurement ends.
 */
#include "plugin/ib/ib_stripe.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "plugin/ib/ib_param.h"

#define NO_MEASUREMENT UINT64_MAX
#define GAIN 0.25              /* share of a new measurement in a route's rate: 8 of them replace nine tenths of it */
#define MOST_FASTER 2          /* one measurement raises a rate to so many times the old one at most */
/* Parts are equal until the fastest route's rate is LEAVE_EQUAL times the slowest's, and by rate until it is
 * RETURN_TO_EQUAL times. */
#define LEAVE_EQUAL 1.15
#define RETURN_TO_EQUAL 1.08
#define OVERDUE 2              /* a measurement counts before its end if it takes so many times the expected time */
#define FIRST_ROUND (256 << 10) /* bytes of messages before the first round */
#define ROUND_NS 125000        /* and between two rounds: what all routes carry in so many ns */
/* A trial: a part for a route that had none in TRIAL_ROUNDS rounds and TRIAL_NS ns. It has the bytes that another route
 * (the mean of them) carries in TRIAL_LONG_NS ns, which is long against the few us of a completion; but no more than
 * the route itself is expected to carry in TRIAL_MOST_NS ns. */
#define TRIAL_ROUNDS 4
#define TRIAL_NS 100000000
#define TRIAL_LONG_NS 20000
#define TRIAL_MOST_NS 1000000

static uint64_t outstanding(const struct ib_stripe_route *route) { return route->assigned - route->done; }
static uint64_t lines_of(uint64_t bytes) { return (bytes + IB_ALIGN - 1) / IB_ALIGN; }

/* ---- the connection -------------------------------------------------------------- */

static struct ib_stripe_route *route_of(struct ib_stripe *stripe, const struct ib_qp *qp) {
  return &stripe->routes[stripe->route_of[qp->index]];
}

/* QP i connects rail i mod the rails of each side, so pairs recur after the least common multiple of the two. */
static unsigned int count_routes(const struct ib_comm *comm) {
  unsigned int pairs = comm->nrails;
  if (comm->plan.qps_per_message == comm->plan.nqps) return comm->plan.nqps;
  while (pairs % comm->nremote_rails) pairs += comm->nrails;
  return RAIL_MIN(pairs, comm->plan.nqps);
}

bool ib_stripe_open(struct ib_send_comm *sc) {
  const struct ib_plan *plan = &sc->base.plan;
  const unsigned int width = RAIL_MAX(sc->base.nrails, sc->base.nremote_rails);
  const unsigned int most = plan->qps_per_message;
  if (ib_params.striping != IB_STRIPING_RATE || width < 2) return true;
  struct ib_stripe *stripe = calloc(1, sizeof *stripe);
  struct ib_share *shares = calloc(IB_MAX_SENDS * most, sizeof *shares);
  if (!stripe || !shares) {
    free(stripe);
    free(shares);
    return false;
  }
  stripe->equal = true;
  stripe->round_left = FIRST_ROUND;
  stripe->width = width;
  stripe->all = most;
  stripe->least = lines_of(RAIL_MAX(sc->min_part / 8, (uint64_t)IB_ALIGN));
  stripe->shares = shares;
  for (unsigned int i = 0; i < IB_MAX_SENDS; i++) sc->sends[i].shares = &shares[i * most];
  stripe->nroutes = count_routes(&sc->base);
  for (unsigned int i = 0; i < plan->nqps; i++) stripe->route_of[i] = (uint8_t)(i % stripe->nroutes);
  for (unsigned int i = 0; i < stripe->nroutes; i++)
    stripe->routes[i] =
      (struct ib_stripe_route){.ends_at = NO_MEASUREMENT, .weight = IB_STRIPE_WEIGHTS / stripe->nroutes};
  for (unsigned int r = 0; r < sc->base.nrails; r++) {
    stripe->records[r] = ib_stats_rail_begin(&sc->base, r);
    stripe->stats[r] = stripe->records[r] ? stripe->records[r] : stripe->unseen;
    rail_stats_set(&stripe->stats[r][IB_RAIL_SHARE], 1000 / sc->base.nrails);
  }
  sc->stripe = stripe;
  return true;
}

void ib_stripe_close(struct ib_send_comm *sc) {
  struct ib_stripe *stripe = sc->stripe;
  if (!stripe) return;
  for (unsigned int r = 0; r < sc->base.nrails; r++) ib_stats_rail_end(stripe->records[r]);
  for (unsigned int i = 0; i < IB_MAX_SENDS; i++) sc->sends[i].shares = NULL;
  free(stripe->shares);
  free(stripe);
  sc->stripe = NULL;
}

/* ---- rates and weights ----------------------------------------------------------- */

bool ib_stripe_weights(const double *rates, unsigned int n, bool equal_before, uint32_t *weights) {
  double sum = 0, least = 0, largest = 0;
  unsigned int known = 0;
  for (unsigned int i = 0; i < n; i++) {
    if (rates[i] <= 0) continue;
    least = known ? RAIL_MIN(least, rates[i]) : rates[i];
    largest = RAIL_MAX(largest, rates[i]);
    sum += rates[i];
    known++;
  }
  const bool equal = largest <= least * (equal_before ? LEAVE_EQUAL : RETURN_TO_EQUAL);
  const double mean = known ? sum / known : 1, all = mean * n;
  for (unsigned int i = 0; i < n; i++) {
    double rate = equal || rates[i] <= 0 ? mean : rates[i];
    weights[i] = 1 + (uint32_t)(rate / all * (IB_STRIPE_WEIGHTS - n));
  }
  return equal;
}

/* Of the routes whose rate is known; 0: of none. */
static double mean_rate(const struct ib_stripe *stripe) {
  double sum = 0;
  unsigned int known = 0;
  for (unsigned int i = 0; i < stripe->nroutes; i++) {
    sum += stripe->routes[i].rate;
    known += stripe->routes[i].rate > 0;
  }
  return known ? sum / known : 0;
}

/* A route that has not done by now what is measured is at most so fast: one that stands still is found, too, also if it
 * has never been measured and is taken to be as fast as the mean. */
static double rate_by_now(const struct ib_stripe_route *route, double mean, uint64_t now) {
  if (route->ends_at == NO_MEASUREMENT || now <= route->began) return route->rate;
  double at_most = (double)route->bytes / (double)(now - route->began), expected = route->rate > 0 ? route->rate : mean;
  return at_most * OVERDUE < expected ? at_most : route->rate;
}

/* Of the routes that have a QP left. */
struct rates {
  unsigned int n;
  uint8_t route[IB_MAX_QPS], rail[IB_MAX_QPS];
  double rate[IB_MAX_QPS];
  uint32_t weight[IB_MAX_QPS];
};

static void collect_rates(const struct ib_send_comm *sc, uint64_t now, struct rates *rates) {
  const double mean = mean_rate(sc->stripe);
  bool seen[IB_MAX_QPS] = {false};
  for (unsigned int i = 0; i < sc->nlive; i++) {
    const uint8_t route = sc->stripe->route_of[sc->live[i]->index];
    if (seen[route]) continue;
    seen[route] = true;
    rates->route[rates->n] = route;
    rates->rail[rates->n] = sc->live[i]->rail;
    rates->rate[rates->n++] = rate_by_now(&sc->stripe->routes[route], mean, now);
  }
}

static void show_rails(const struct ib_send_comm *sc, const struct rates *rates) {
  double by_rail[IB_MAX_RAILS] = {0};
  uint64_t share[IB_MAX_RAILS] = {0}, all = 0;
  for (unsigned int i = 0; i < rates->n; i++) {
    by_rail[rates->rail[i]] += rates->rate[i];
    share[rates->rail[i]] += rates->weight[i];
    all += rates->weight[i];
  }
  for (unsigned int r = 0; r < sc->base.nrails; r++) {
    rail_stats_set(&sc->stripe->stats[r][IB_RAIL_RATE], (uint64_t)(by_rail[r] * 1e9));
    rail_stats_set(&sc->stripe->stats[r][IB_RAIL_SHARE], (share[r] * 1000 + all / 2) / RAIL_MAX(all, 1u));
  }
}

static void weigh(struct ib_send_comm *sc, uint64_t now) {
  struct ib_stripe *stripe = sc->stripe;
  struct rates rates = {0};
  double sum = 0;
  collect_rates(sc, now, &rates);
  stripe->equal = ib_stripe_weights(rates.rate, rates.n, stripe->equal, rates.weight);
  for (unsigned int i = 0; i < rates.n; i++) {
    stripe->routes[rates.route[i]].weight = rates.weight[i];
    sum += rates.rate[i];
  }
  stripe->round_left = sum > 0 ? (int64_t)(sum * ROUND_NS) : FIRST_ROUND;
  show_rails(sc, &rates);
}

/* Returns the time. */
static uint64_t begin_round(struct ib_send_comm *sc) {
  uint64_t now = rail_now_ns();
  weigh(sc, now);
  for (unsigned int i = 0; i < sc->stripe->nroutes; i++) sc->stripe->routes[i].left_out++;
  return now;
}

static void measure(struct ib_send_comm *sc, const struct ib_send *send, uint64_t now) {
  for (unsigned int i = 0; i < send->nparts; i++) {
    struct ib_stripe_route *route = route_of(sc->stripe, &sc->base.qps[send->shares[i].qp]);
    route->left_out = 0;
    route->used_at = now;
    if (route->ends_at != NO_MEASUREMENT) continue;
    route->began = now;
    route->bytes = outstanding(route);
    route->ends_at = route->assigned;
  }
}

static void end_measurement(struct ib_stripe_route *route) {
  route->ends_at = NO_MEASUREMENT;
  route->on_trial = false;
}

/* In the next round. */
static void try_again(struct ib_stripe_route *route) {
  route->left_out = TRIAL_ROUNDS;
  route->used_at = 0;
}

/* One that is much too fast is no rate: this thread did not run for a while, and what was counted as outstanding had
 * been completed, and not polled. If it is one after all, the next ones say so again. */
static void measured(struct ib_stripe_route *route) {
  uint64_t now = rail_now_ns();
  double rate = (double)route->bytes / (double)(now > route->began ? now - route->began : 1);
  if (route->rate > 0 && rate > MOST_FASTER * route->rate) {
    rate = MOST_FASTER * route->rate;
    if (route->on_trial) try_again(route);
  }
  route->rate = route->rate > 0 ? route->rate + GAIN * (rate - route->rate) : rate;
  end_measurement(route);
}

/* ---- dividing: pure ---------------------------------------------------------------- */

/* What each of the open QPs gets, when all of them finish at the same time; below 0 for one that has too much already.
 * The sum is `lines`, or a few less. */
static void level(const struct ib_stripe_claim *claims, unsigned int n, const bool *open, uint64_t lines,
                  int64_t *gets) {
  uint64_t work = lines, weights = 0;
  for (unsigned int i = 0; i < n; i++) {
    if (!open[i]) continue;
    work += claims[i].outstanding;
    weights += claims[i].weight;
  }
  const uint64_t each = work * IB_STRIPE_WEIGHTS / RAIL_MAX(weights, 1u); /* 2^41 lines at most are outstanding */
  for (unsigned int i = 0; i < n; i++)
    if (open[i]) gets[i] = (int64_t)(each * claims[i].weight / IB_STRIPE_WEIGHTS) - (int64_t)claims[i].outstanding;
}

/* Of several the last. */
static unsigned int find_least(const int64_t *gets, const bool *open, unsigned int n) {
  unsigned int least = n;
  for (unsigned int i = 0; i < n; i++)
    if (open[i] && (least == n || gets[i] <= gets[least])) least = i;
  return least;
}

static unsigned int find_largest(const int64_t *gets, const bool *open, unsigned int n) {
  unsigned int largest = n;
  for (unsigned int i = 0; i < n; i++)
    if (open[i] && (largest == n || gets[i] > gets[largest])) largest = i;
  return largest;
}

/* An immediate can name so many parts. */
static bool has_name(unsigned int parts, unsigned int all) { return parts == all || !(parts & (parts - 1)); }

unsigned int ib_stripe_shares(const struct ib_stripe_claim *claims, unsigned int n,
                              const struct ib_stripe_limits *limits, uint64_t lines, uint64_t *shares) {
  int64_t gets[IB_MAX_QPS];
  bool open[IB_MAX_QPS];
  const bool trial = limits->trial >= 0 && n > 1 && limits->most > 1 && lines > 2 * limits->least;
  const uint64_t tried = trial ? RAIL_MAX(RAIL_MIN(limits->trial_lines, lines / n), limits->least) : 0;
  unsigned int nopen = n - trial;
  uint64_t rest = lines - tried;
  for (unsigned int i = 0; i < n; i++) open[i] = !trial || (int)i != limits->trial;
  for (;;) {
    level(claims, n, open, rest, gets);
    if (nopen == 1) break;
    const unsigned int parts = nopen + trial, least = find_least(gets, open, n);
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): level() set it, for one is always open
    const bool large = gets[least] >= (int64_t)limits->least;
    if (large && parts <= limits->most && has_name(parts, limits->all)) break;
    open[least] = false;
    nopen--;
  }
  const unsigned int largest = find_largest(gets, open, n);
  for (unsigned int i = 0; i < n; i++) {
    shares[i] = open[i] ? (uint64_t)gets[i] : 0;
    rest -= shares[i];
  }
  // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): as above, largest < n
  shares[largest] += rest; /* of rounding; and all, where there is one */
  if (trial) shares[limits->trial] = tried;
  return nopen + trial;
}

/* ---- dividing a message -------------------------------------------------------------- */

static const struct ib_qp *in_turn(const struct ib_send_comm *sc, unsigned int i) {
  unsigned int turn = sc->next_qp + i;
  return sc->live[turn >= sc->nlive ? turn - sc->nlive : turn];
}

static void give(struct ib_send_comm *sc, struct ib_send *send, unsigned int part, const struct ib_qp *qp,
                 uint64_t offset, uint64_t size) {
  send->shares[part] = (struct ib_share){.offset = offset, .size = size, .qp = qp->index};
  route_of(sc->stripe, qp)->assigned += size;
}

/* One part: to the QP that would be done with it first. One of each rail is looked at. */
static void give_whole(struct ib_send_comm *sc, struct ib_send *send) {
  struct ib_stripe *stripe = sc->stripe;
  const struct ib_qp *best = in_turn(sc, 0);
  const bool none_is_better = stripe->equal && !outstanding(route_of(stripe, best));
  const unsigned int n = none_is_better ? 1 : RAIL_MIN(stripe->width, sc->nlive);
  for (unsigned int i = 1; i < n; i++) {
    const struct ib_qp *qp = in_turn(sc, i);
    const struct ib_stripe_route *a = route_of(stripe, best), *b = route_of(stripe, qp);
    if ((outstanding(b) + send->length) * a->weight < (outstanding(a) + send->length) * b->weight) best = qp;
  }
  give(sc, send, 0, best, 0, send->length);
}

static void divide_equally(struct ib_send_comm *sc, struct ib_send *send) {
  for (unsigned int i = 0; i < send->nparts; i++) {
    const struct ib_layout layout = ib_equal_part(send->length, i, send->nparts);
    give(sc, send, i, in_turn(sc, i), layout.offset, layout.size);
  }
}

/* The first route that has carried nothing for long: TRIAL_NS, or ever. A route without a rate counts with the mean of
 * the others and so mostly gets a part, which measures more than a trial does. It gets none where as many routes are
 * faster as a message has parts. */
static int find_trial(const struct ib_send_comm *sc, unsigned int n, uint64_t now) {
  for (unsigned int i = 0; i < n; i++) {
    const struct ib_stripe_route *route = route_of(sc->stripe, in_turn(sc, i));
    const bool idle = route->left_out > TRIAL_ROUNDS && route->ends_at == NO_MEASUREMENT;
    if (idle && (route->rate <= 0 || now - route->used_at > TRIAL_NS)) return (int)i;
  }
  return -1;
}

/* The size of a trial, in lines of IB_ALIGN bytes. It is large enough for its rate to say more than the latency of a
 * completion. It is small enough that a route which is still slow delays the message by about TRIAL_MOST_NS, or by the
 * smallest part. */
static uint64_t trial_lines(const struct ib_stripe *stripe, const struct ib_stripe_route *route) {
  double others = 0;
  unsigned int n = 0;
  for (unsigned int i = 0; i < stripe->nroutes; i++) {
    if (&stripe->routes[i] == route || stripe->routes[i].rate <= 0) continue;
    others += stripe->routes[i].rate;
    n++;
  }
  double bytes = n ? others / n * TRIAL_LONG_NS : 0;
  const double own = route->rate > 0 ? route->rate : mean_rate(stripe);
  return (uint64_t)RAIL_MIN(bytes, own * TRIAL_MOST_NS) / IB_ALIGN;
}

/* n is not 0. */
static void collect_claims(const struct ib_send_comm *sc, unsigned int n, struct ib_stripe_claim *claims) {
  unsigned int i = 0;
  do {
    const struct ib_stripe_route *route = route_of(sc->stripe, in_turn(sc, i));
    claims[i] = (struct ib_stripe_claim){.outstanding = lines_of(outstanding(route)), .weight = route->weight};
  } while (++i < n);
}

/* `now`: the message begins a round; else 0. */
static void divide_by_rate(struct ib_send_comm *sc, struct ib_send *send, uint64_t now) {
  const struct ib_stripe *stripe = sc->stripe;
  const unsigned int n = RAIL_MIN(RAIL_MAX(send->nparts, stripe->width), sc->nlive);
  struct ib_stripe_limits limits = {.most = send->nparts, .all = stripe->all, .least = stripe->least,
                                    .trial = now ? find_trial(sc, n, now) : -1};
  struct ib_stripe_claim claims[IB_MAX_QPS];
  uint64_t shares[IB_MAX_QPS], offset = 0;
  collect_claims(sc, n, claims);
  if (rail_unlikely(limits.trial >= 0))
    limits.trial_lines = trial_lines(stripe, route_of(sc->stripe, in_turn(sc, (unsigned int)limits.trial)));
  send->nparts = (uint16_t)ib_stripe_shares(claims, n, &limits, lines_of(send->length), shares);
  for (unsigned int part = 0, i = 0; i < n; i++) {
    if (!shares[i]) continue;
    if ((int)i == limits.trial) route_of(sc->stripe, in_turn(sc, i))->on_trial = true;
    uint64_t size = RAIL_MIN(shares[i] * IB_ALIGN, send->length - offset);
    give(sc, send, part++, in_turn(sc, i), offset, size);
    offset += size;
  }
}

struct ib_qp *ib_stripe_divide(struct ib_send_comm *sc, struct ib_send *send) {
  struct ib_stripe *stripe = sc->stripe;
  uint64_t now = 0;
  send->first_place = IB_QP_BY_SHARE;
  if (send->nparts == 1) {
    give_whole(sc, send);
  } else {
    /* A message that waits for room in a send queue would be measured with that wait. */
    stripe->round_left -= (int64_t)send->length;
    if (rail_unlikely(stripe->round_left <= 0) && STAILQ_EMPTY(&sc->unposted)) now = begin_round(sc);
    if (rail_likely(stripe->equal)) divide_equally(sc, send);
    else divide_by_rate(sc, send, now);
    if (rail_unlikely(now != 0)) measure(sc, send, now);
  }
  sc->next_qp += send->nparts;
  if (sc->next_qp >= sc->nlive) sc->next_qp -= sc->nlive;
  return &sc->base.qps[send->shares[0].qp];
}

void ib_stripe_done(struct ib_stripe *stripe, const struct ib_qp *qp, const struct ib_send *send,
                    struct ib_posted entry) {
  if (!entry.tail) return;
  const uint64_t size = send->shares[entry.part].size;
  struct ib_stripe_route *route = route_of(stripe, qp);
  route->done += size;
  rail_stats_add(&stripe->stats[qp->rail][IB_RAIL_BYTES], size);
  if (rail_unlikely(route->done >= route->ends_at)) measured(route);
}

/* ---- the loss and the return of QPs ----------------------------------------------------- */

void ib_stripe_move(struct ib_stripe *stripe, struct ib_send *send, unsigned int part, const struct ib_qp *to) {
  struct ib_share *share = &send->shares[part];
  struct ib_stripe_route *from = &stripe->routes[stripe->route_of[share->qp]];
  from->assigned -= share->size;
  end_measurement(from); /* less is left of it than was counted on */
  share->qp = to->index;
  route_of(stripe, to)->assigned += share->size;
}

void ib_stripe_update_live(struct ib_send_comm *sc) {
  struct ib_stripe *stripe = sc->stripe;
  bool live[IB_MAX_QPS] = {false}, open[IB_MAX_QPS] = {false};
  struct ib_send *send;
  unsigned int to = 0;
  for (unsigned int i = 0; i < sc->nlive; i++) {
    live[sc->live[i]->index] = true;
    open[stripe->route_of[sc->live[i]->index]] = true;
  }
  STAILQ_FOREACH(send, &sc->unposted, link)
    for (unsigned int i = send->next_part; i < send->nparts; i++)
      // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): one is always live
      if (!live[send->shares[i].qp]) ib_stripe_move(stripe, send, i, sc->live[to++ % sc->nlive]);
  for (unsigned int i = 0; i < sc->base.plan.nqps; i++)
    if (!live[i]) end_measurement(route_of(stripe, &sc->base.qps[i])); /* it would measure the loss */
  for (unsigned int i = 0; i < stripe->nroutes; i++) {
    if (!open[i]) stripe->routes[i].rate = 0; /* when it returns it may be another's */
    if (stripe->routes[i].rate <= 0) stripe->routes[i].left_out = 0; /* it was not there to have a part */
  }
  weigh(sc, rail_now_ns());
}
