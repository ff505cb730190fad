/* SPDX-License-Identifier: Apache-2.0
 * How much of large messages each stream is given. */
#include "plugin/socket/sk_share.h"

#include <math.h>

#include "common/base/clock.h"

/* Chunks begin at multiples of this: NCCL's LL128 protocol needs lines of 128 bytes whole. */
#define CHUNK_ALIGN 128
#define LEAST_CHUNK (64 * 1024u) /* a message is not cut into smaller ones to give all streams some: each is a system
                                  * call here and there */
#define CLOCK_BYTES (512 * 1024) /* of messages, from one look at the clock to the next */
#define MS 1000000ull
#define PERIOD_NS (50 * MS)        /* at least: the kernel counts busy times in ticks of up to 10 ms */
#define PERIOD_LOOKS 8             /* at the clock, at least: a few chunks of each stream say nothing; */
#define LONG_PERIOD_NS (1000 * MS) /* but after this time they do */
#define LEAST_BUSY_US 1000         /* less than a tick is counted as this */
#define SLOW 0.7                   /* of the others' rate, and less: what is nearer to it does little harm */
#define LEAST_WEIGHT 10
#define TRIAL_NS (400 * MS)       /* congestion control does not find at once that it can send more */
#define FIRST_PAUSE_NS (400 * MS) /* before a slow stream is tried with more; twice as long each time that fails, */
#define MAX_PAUSE_NS (6400 * MS)  /* because all streams wait for what it was given too much */

static uint64_t round_up(uint64_t bytes) { return (bytes + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN; }

void sk_shares_init(struct sk_shares *shares, uint32_t nstreams, uint32_t chunk) {
  *shares = (struct sk_shares){.nstreams = nstreams, .chunk = chunk / CHUNK_ALIGN * CHUNK_ALIGN};
  for (uint32_t i = 0; i < nstreams; i++)
    shares->of[i] = (struct sk_share){.weight = SK_FULL_WEIGHT, .pause_ns = FIRST_PAUSE_NS, .unsent = SK_UNSENT_BYTES};
}

/* ---- who is slow ------------------------------------------------------------ */

/* A stream is found slow only beside another that is up and not slow: so one that may take whatever there is always
 * remains. */
static void set_weight(struct sk_shares *shares, uint32_t i, uint32_t weight) {
  struct sk_share *share = &shares->of[i];
  bool slow = weight < SK_FULL_WEIGHT;
  share->allowance = slow ? share->allowance * weight / share->weight : 0;
  share->weight = weight;
  shares->slow = (shares->slow & ~(1u << i)) | (uint32_t)slow << i;
}

/* It was given too much. */
static void back_off(struct sk_share *share) {
  share->weight_before = 0;
  share->waited_ns = 0;
  share->wait_ns = share->pause_ns;
  share->pause_ns = RAIL_MIN(2 * share->pause_ns, MAX_PAUSE_NS);
}

static struct sk_sent since(const struct sk_share *share, const struct sk_sent *now) {
  uint64_t busy_us = now->busy_us - share->before.busy_us;
  return (struct sk_sent){.bytes = now->bytes - share->before.bytes, .busy_us = RAIL_MAX(busy_us, LEAST_BUSY_US)};
}

/* What the streams but `i` that are neither slow nor lost have sent. */
static struct sk_sent sent_by_others(const struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost,
                                     uint32_t i) {
  struct sk_sent all = {0};
  for (uint32_t k = 0; k < shares->nstreams; k++) {
    if (k == i || ((lost | shares->slow) >> k & 1)) continue;
    struct sk_sent one = since(&shares->of[k], &sent[k]);
    all.bytes += one.bytes;
    all.busy_us += one.busy_us;
  }
  return all;
}

static double rate_of(const struct sk_sent *sent) { return (double)sent->bytes / (double)sent->busy_us; }

/* The rate of one stream beside that of others, as a weight. */
static uint32_t weight_beside(const struct sk_sent *one, const struct sk_sent *others) {
  double rate = rate_of(one), of_others = rate_of(others);
  if (rate >= SLOW * of_others) return SK_FULL_WEIGHT;
  return RAIL_MAX((uint32_t)(SK_FULL_WEIGHT * rate / of_others), LEAST_WEIGHT);
}

/* Bytes that are under way are enough: with a long round trip a stream is busy all the time, however little it is
 * given. */
static bool is_busy(const struct sk_sent *own, uint64_t ns) { return 8 * own->busy_us * 1000 >= 7 * ns; }

/* A stream that is not slow. Once may be chance: it is slow after the second period in a row. */
static void judge_fast(struct sk_shares *shares, uint32_t i, bool busy, uint32_t weight) {
  struct sk_share *share = &shares->of[i];
  bool was_suspect = share->suspect;
  share->suspect = busy && weight < SK_FULL_WEIGHT;
  if (was_suspect && share->suspect) {
    share->suspect = false;
    back_off(share);
    set_weight(shares, i, weight);
  } else if (busy && !share->suspect) {
    share->pause_ns = FIRST_PAUSE_NS;
  }
}

static void begin_trial(struct sk_shares *shares, uint32_t i) {
  struct sk_share *share = &shares->of[i];
  share->weight_before = share->weight;
  share->waited_ns = 0;
  share->was_busy = false;
  set_weight(shares, i, RAIL_MIN(2 * share->weight, SK_FULL_WEIGHT));
}

/* Now and then it is tried with twice as much, and again as long as that goes well: as it is not busy all the time, or
 * sends more than before. `weight`: its rate in this period. */
static void judge_slow(struct sk_shares *shares, uint32_t i, bool limited, bool busy, uint32_t weight, uint64_t ns) {
  struct sk_share *share = &shares->of[i];
  bool in_trial = share->weight_before;
  share->waited_ns += ns;
  share->was_busy |= busy;
  if (in_trial && share->waited_ns < TRIAL_NS) return;
  bool failed = in_trial && share->was_busy && 3 * weight < 4 * share->weight_before;
  if (failed) set_weight(shares, i, RAIL_MIN(weight, share->weight_before));
  else if (limited) set_weight(shares, i, RAIL_MIN(weight, 2 * share->weight));
  if (failed) back_off(share);
  else if (sk_shares_is_slow(shares, i) && (in_trial || share->waited_ns >= share->wait_ns)) begin_trial(shares, i);
}

static void judge(struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost, uint64_t ns, uint32_t i) {
  const struct sk_sent own = since(&shares->of[i], &sent[i]), others = sent_by_others(shares, sent, lost, i);
  if (!others.bytes) return; /* nothing to compare it with */
  uint32_t weight = weight_beside(&own, &others);
  bool busy = is_busy(&own, ns);
  if (!sk_shares_is_slow(shares, i)) judge_fast(shares, i, busy, weight);
  else judge_slow(shares, i, busy && !shares->of[i].took_all, busy, weight, ns);
}

/* Has a slow stream sent faster than one can that is not slow? Then none of the weights holds. */
static bool is_overtaken(const struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost, uint64_t ns) {
  double slowest = HUGE_VAL, fastest_slow = 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    if (lost >> i & 1) continue;
    const struct sk_sent own = since(&shares->of[i], &sent[i]);
    if (sk_shares_is_slow(shares, i)) fastest_slow = RAIL_MAX(fastest_slow, rate_of(&own));
    else if (is_busy(&own, ns)) slowest = RAIL_MIN(slowest, rate_of(&own));
  }
  return slowest < SLOW * fastest_slow;
}

static void start_over(struct sk_shares *shares) {
  for (uint32_t i = 0; i < shares->nstreams; i++)
    shares->of[i] = (struct sk_share){.weight = SK_FULL_WEIGHT,
                                      .pause_ns = FIRST_PAUSE_NS,
                                      .unsent = shares->of[i].unsent,
                                      .before = shares->of[i].before};
  shares->slow = 0;
}

void sk_shares_end_period(struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost, uint64_t ns) {
  if (is_overtaken(shares, sent, lost, ns)) start_over(shares);
  else
    for (uint32_t i = 0; i < shares->nstreams; i++)
      if (!(lost >> i & 1)) judge(shares, sent, lost, ns, i);
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    shares->of[i].before = sent[i];
    shares->of[i].took_all = !sk_shares_may_take(shares, i);
  }
}

/* ---- what they are given ----------------------------------------------------- */

void sk_shares_give(struct sk_shares *shares, uint32_t lost, uint64_t size) {
  uint64_t all = 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) all += lost >> i & 1 ? 0 : shares->of[i].weight;
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    struct sk_share *share = &shares->of[i];
    if (!sk_shares_is_slow(shares, i) || lost >> i & 1) continue;
    uint64_t part = size * share->weight / all; /* no overflow: size is at most 2^40 */
    if (part < SK_LEAST_PART) continue;
    share->allowance = RAIL_MAX(share->allowance, RAIL_MIN(share->allowance + part, 2 * part));
  }
}

uint32_t sk_shares_unsent(const struct sk_shares *shares, uint32_t index) {
  return RAIL_MAX(SK_UNSENT_BYTES * shares->of[index].weight / SK_FULL_WEIGHT, SK_SLOW_UNSENT);
}

uint32_t sk_shares_take(struct sk_shares *shares, uint32_t index, uint64_t size, uint64_t left) {
  uint64_t equal = RAIL_MAX(round_up(size / shares->nstreams), LEAST_CHUNK);
  uint64_t bytes = RAIL_MIN(equal, shares->chunk);
  if (rail_unlikely(sk_shares_is_slow(shares, index))) {
    if (!sk_shares_may_take(shares, index)) return 0;
    struct sk_share *share = &shares->of[index];
    bytes = RAIL_MIN(bytes, share->allowance) / CHUNK_ALIGN * CHUNK_ALIGN;
    share->allowance -= RAIL_MIN(left, bytes);
    share->took_all |= !sk_shares_may_take(shares, index);
  }
  return (uint32_t)RAIL_MIN(left, bytes);
}

/* ---- with clock and sockets --------------------------------------------------- */

static uint32_t lost_streams(const struct sk_shares *shares, const struct sk_stream *streams) {
  uint32_t lost = 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) lost |= (uint32_t)(streams[i].fd < 0) << i;
  return lost;
}

static void set_limits(struct sk_shares *shares, struct sk_stream *streams) {
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    uint32_t unsent = sk_shares_unsent(shares, i);
    if (unsent == shares->of[i].unsent) continue;
    shares->of[i].unsent = unsent;
    sk_stream_limit_unsent(&streams[i], unsent);
  }
}

static void end_period(struct sk_shares *shares, struct sk_stream *streams, uint64_t now) {
  struct sk_sent sent[SK_MAX_STREAMS];
  for (uint32_t i = 0; i < shares->nstreams; i++) sent[i] = sk_stream_sent(&streams[i]);
  sk_shares_end_period(shares, sent, lost_streams(shares, streams), now - shares->began);
  set_limits(shares, streams);
  shares->began = now;
  shares->looks = 0;
}

void sk_shares_renew(struct sk_shares *shares, struct sk_stream *streams) {
  start_over(shares);
  for (uint32_t i = 0; i < shares->nstreams; i++) shares->of[i].before = (struct sk_sent){0};
  set_limits(shares, streams);
  shares->began = 0;
}

static void look(struct sk_shares *shares, struct sk_stream *streams) {
  uint64_t now = rail_now_ns(), ns = now - shares->began;
  shares->bytes = 0;
  bool enough = ++shares->looks >= PERIOD_LOOKS && ns >= PERIOD_NS;
  if (!shares->began || enough || ns >= LONG_PERIOD_NS) end_period(shares, streams, now);
}

void sk_shares_announce(struct sk_shares *shares, struct sk_stream *streams, uint64_t size) {
  shares->bytes += size;
  if (shares->bytes >= CLOCK_BYTES) look(shares, streams);
  if (rail_unlikely(shares->slow)) sk_shares_give(shares, lost_streams(shares, streams), size);
}
