/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of a message each of several streams takes. Whichever stream is free takes the next chunk, so a slow one
 * takes fewer. But a socket takes more than it can send at once, a message is complete only when its last chunk has
 * arrived, and the caller has only so many messages under way: what lies in the socket of a slow stream would set the
 * pace of all. So while messages are under way the sender samples what each stream holds: the bytes that it was given
 * and the peer's kernel has not acknowledged. That, on average, divided by the rate of acknowledgements is the delay of
 * a byte (Little's law). A stream whose delay is longer than the others' is slow: it gets a limit of what it holds,
 * with which its delay is about theirs. A limit makes the delay shorter, so one that is too low is noticed and raised.
 */
#include "plugin/socket/sk_send.h"

/* Chunks begin at multiples of this: NCCL's LL128 protocol needs lines of 128 bytes whole. */
#define CHUNK_ALIGN 128
#define LEAST_EQUAL (64 * 1024u) /* a message is not cut into smaller chunks to give all streams some: each is a
                                  * system call here and there */
#define NO_LIMIT (4u << 20)      /* a limit that would be raised to this is taken off */
#define SLOW_NS 500000u          /* a shorter delay delays no other stream: twice what a path of 1 GB/s needs for
                                  * SK_MOST_UNSENT */
#define UNSENT_NS 8000000u       /* so long may what a socket holds unsent take: longer than a busy host keeps a caller
                                  * from filling it again, shorter than a round trip of a long path */
#define LEAST_UNSENT (32 * 1024u)

static uint64_t round_up(uint64_t bytes) { return (bytes + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN; }

void sk_shares_init(struct sk_shares *shares, uint32_t nstreams, uint32_t max_chunk) {
  *shares = (struct sk_shares){.nstreams = nstreams, .max_chunk = max_chunk / CHUNK_ALIGN * CHUNK_ALIGN};
}

void sk_shares_renew(struct sk_shares *shares) {
  bool under_way = shares->under_way;
  sk_shares_init(shares, shares->nstreams, shares->max_chunk);
  shares->under_way = under_way;
}

/* ---- comparing streams ------------------------------------------------------------ */

static double delay_ns(const struct sk_load *load) { return load->held / RAIL_MAX(load->acked, 1); }

/* Slow: the others hold nothing for a part of the time in which this stream holds bytes. Or its delay is several times
 * theirs; the others may hold bytes then, which the receiver does not read before those of this stream. */
static bool is_slow(const struct sk_load *own, const struct sk_load *others, double nothers, bool limited) {
  double more = delay_ns(own) / delay_ns(others);
  bool others_wait = own->busy * nothers > 1.1 * others->busy;
  return more > 4 || (others_wait && more > (limited ? 1 : 2));
}

/* The first limit is what the stream holds. Each period after, the limit falls towards 1.4 times what the stream would
 * hold at the others' delay, by half at most, since samples vary. On average it holds half of its limit: its delay is
 * 0.7 of theirs then, and theirs when it holds the most. */
static uint32_t lower_limit(uint32_t limit, const struct sk_load *own, const struct sk_load *others, double nothers) {
  double held = own->held / SK_SHARES_PERIOD_NS;
  double fair = 1.4 * held * delay_ns(others) / delay_ns(own) * others->busy / (own->busy * nothers);
  double lower = limit ? RAIL_MAX(RAIL_MIN(fair, limit), limit / 2.0) : RAIL_MIN(held, NO_LIMIT);
  return (uint32_t)RAIL_MAX(lower, SK_LEAST_LIMIT);
}

static void set_limit(struct sk_shares *shares, const struct sk_stream *s, const struct sk_load *others,
                      double nothers) {
  const struct sk_load *own = &shares->load[s->index];
  double delay = delay_ns(own);
  uint32_t *limit = &shares->limit[s->index];
  bool queued = delay > SLOW_NS && delay > 2 * (double)sk_stream_min_rtt_ns(s); /* most of it, not under way */
  bool idle = own->busy * nothers < 0.8 * others->busy;
  bool too_low = delay < delay_ns(others) / 2 || (delay < delay_ns(others) && idle);
  if (queued && is_slow(own, others, nothers, *limit)) *limit = lower_limit(*limit, own, others, nothers);
  else if (*limit && too_low) *limit = *limit + *limit / 2 < NO_LIMIT ? *limit + *limit / 2 : 0;
}

/* Over a long path that loses packets all streams are slow: what lies in their sockets is much of what is under way,
 * and a message is complete only when its last chunk is. */
static void set_unsent(struct sk_shares *shares, const struct sk_stream *s) {
  const struct sk_load *own = &shares->load[s->index];
  uint32_t *before = &shares->unsent[s->index];
  if (own->busy <= 0) return;
  double fits = own->acked / own->busy * UNSENT_NS;
  uint32_t unsent = (uint32_t)RAIL_MAX(RAIL_MIN(fits, SK_MOST_UNSENT), LEAST_UNSENT);
  if (*before && unsent < *before * 2 && unsent > *before / 2 && unsent != SK_MOST_UNSENT) return;
  if (unsent != *before) sk_stream_limit_unsent(s, unsent);
  *before = unsent;
}

/* Lost streams are not among those that are compared. */
static void end_period(struct sk_shares *shares, const struct sk_stream *streams) {
  struct sk_load all = {0};
  uint32_t live = 0, unlimited = 0, fastest = 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    if (streams[i].fd < 0) continue;
    all.held += shares->load[i].held;
    all.busy += shares->load[i].busy;
    all.acked += shares->load[i].acked;
    if (!live++ || shares->load[i].acked > shares->load[fastest].acked) fastest = i;
  }
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    const struct sk_load *own = &shares->load[i];
    const struct sk_load others = {all.held - own->held, all.busy - own->busy, all.acked - own->acked};
    if (streams[i].fd < 0) continue;
    if (live > 1 && others.acked > 0) set_limit(shares, &streams[i], &others, live - 1);
    set_unsent(shares, &streams[i]);
    unlimited += !shares->limit[i];
  }
  /* One must take whatever there is. Those that are about as fast have a limit by chance. */
  for (uint32_t i = 0; i < shares->nstreams && !unlimited; i++)
    if (shares->load[i].acked >= shares->load[fastest].acked / 2) shares->limit[i] = 0;
  memset(shares->load, 0, sizeof shares->load);
  shares->period_ns = 0;
}

/* ---- samples ---------------------------------------------------------------------- */

void sk_shares_sample(struct sk_shares *shares, const struct sk_stream *streams, uint64_t now) {
  uint64_t ns = now - shares->sampled_at, all_held = 0;
  if (ns < SK_SHARES_SAMPLE_NS) return;
  if (ns > SK_SHARES_PAUSE_NS) ns = 0; /* nothing is known of the time in between */
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    uint64_t held = sk_stream_held(&streams[i]), given = rail_stats_get(&streams[i].counts.stream[SK_STREAM_BYTES]);
    uint64_t acked = given - RAIL_MIN(given, held), before = shares->acked[i];
    struct sk_load *load = &shares->load[i];
    load->held += (double)held * (double)ns;
    load->busy += held ? (double)ns : 0;
    load->acked += ns && acked > before ? (double)(acked - before) : 0;
    shares->acked[i] = acked;
    all_held += held;
  }
  shares->sampled_at = now;
  shares->under_way = all_held > 0;
  shares->period_ns += ns;
  if (shares->period_ns >= SK_SHARES_PERIOD_NS) end_period(shares, streams);
}

/* ---- what a stream takes ------------------------------------------------------------ */

bool sk_shares_may_take(const struct sk_shares *shares, const struct sk_stream *s) {
  uint32_t limit = shares->limit[s->index];
  return rail_likely(!limit) || sk_stream_held(s) <= limit / 2;
}

uint32_t sk_shares_chunk_size(const struct sk_shares *shares, uint32_t index, uint64_t size, uint64_t left) {
  uint64_t equal = RAIL_MIN(RAIL_MAX(round_up(size / shares->nstreams), LEAST_EQUAL), shares->max_chunk);
  uint32_t limit = shares->limit[index];
  return (uint32_t)RAIL_MIN(left, limit ? RAIL_MIN(equal, round_up(limit / 2)) : equal);
}
