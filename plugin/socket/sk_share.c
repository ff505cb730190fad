/* SPDX-License-Identifier: Apache-2.0
 * How much of large messages each stream is given. */
#include "plugin/socket/sk_share.h"

#include "common/base/clock.h"

/* Chunks begin at multiples of this: NCCL's LL128 protocol needs lines of 128 bytes whole. */
#define CHUNK_ALIGN 128
#define LEAST_CHUNK (64 * 1024u) /* a message is not cut into smaller ones to give all streams some: each is a system
                                  * call here and there */
#define CLOCK_BYTES (512 * 1024) /* of messages, from one look at the clock to the next */
#define PERIOD_NS 50000000       /* at least: the kernel counts busy times in ticks of up to 10 ms */
#define PERIOD_LOOKS 8           /* at the clock, at least: a few chunks of each stream say nothing */
#define LEAST_BUSY_US 1000       /* less than a tick is counted as this */
#define SLOW 0.7                 /* of the others' rate, and less: what is nearer to it does little harm */
#define LEAST_WEIGHT 10
#define FIRST_PAUSE 8 /* periods before a slow stream is tried with more; twice as many each time that fails, because */
#define MAX_PAUSE 128 /* all streams wait for what it was given too much */

static uint64_t round_up(uint64_t bytes) { return (bytes + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN; }

void sk_shares_init(struct sk_shares *shares, uint32_t nstreams, uint32_t chunk) {
  *shares = (struct sk_shares){.nstreams = nstreams, .chunk = chunk / CHUNK_ALIGN * CHUNK_ALIGN};
  for (uint32_t i = 0; i < nstreams; i++)
    shares->of[i] = (struct sk_share){.weight = SK_FULL_WEIGHT, .pause = FIRST_PAUSE};
}

/* ---- who is slow ------------------------------------------------------------ */

static void set_weight(struct sk_shares *shares, uint32_t i, uint32_t weight) {
  struct sk_share *share = &shares->of[i];
  share->weight = weight;
  share->waited = 0;
  if (weight < SK_FULL_WEIGHT) {
    shares->slow |= 1u << i;
    return;
  }
  shares->slow &= ~(1u << i);
  share->allowance = 0;
  share->pause = FIRST_PAUSE;
}

static struct sk_sent since(const struct sk_share *share, const struct sk_sent *now) {
  return (struct sk_sent){.bytes = now->bytes - share->before.bytes, .busy_us = now->busy_us - share->before.busy_us};
}

/* What the streams but `i` that are neither slow nor lost have sent. */
static struct sk_sent sent_by_others(const struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost,
                                     uint32_t i) {
  struct sk_sent all = {0};
  for (uint32_t k = 0; k < shares->nstreams; k++) {
    if (k == i || ((lost | shares->slow) >> k & 1)) continue;
    struct sk_sent one = since(&shares->of[k], &sent[k]);
    all.bytes += one.bytes;
    all.busy_us += RAIL_MAX(one.busy_us, LEAST_BUSY_US);
  }
  return all;
}

/* The rate of one stream beside that of others, as a weight. */
static uint32_t weight_beside(const struct sk_sent *one, const struct sk_sent *others) {
  double rate = (double)one->bytes / (double)one->busy_us, of_others = (double)others->bytes / (double)others->busy_us;
  if (rate >= SLOW * of_others) return SK_FULL_WEIGHT;
  return RAIL_MAX((uint32_t)(SK_FULL_WEIGHT * rate / of_others), LEAST_WEIGHT);
}

/* A stream that has something to send nearly all the time shows what it can do. Once may be chance: a stream that was
 * as fast as the others is slow after the second period in a row. */
static void judge(struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost, uint64_t ns, uint32_t i) {
  struct sk_share *share = &shares->of[i];
  const struct sk_sent own = since(share, &sent[i]), others = sent_by_others(shares, sent, lost, i);
  bool was_slow = sk_shares_is_slow(shares, i), shows = others.bytes && 8 * own.busy_us * 1000 >= 7 * ns;
  uint32_t weight = shows ? weight_beside(&own, &others) : SK_FULL_WEIGHT;
  bool suspect = share->suspect;
  share->suspect = weight < SK_FULL_WEIGHT;
  if (was_slow && !shows) {
    if (++share->waited >= share->pause) set_weight(shares, i, RAIL_MIN(2 * share->weight, SK_FULL_WEIGHT));
  } else if (was_slow) {
    if (3 * weight < 2 * share->weight) share->pause = RAIL_MIN(2 * share->pause, MAX_PAUSE);
    set_weight(shares, i, RAIL_MIN(weight, 2 * share->weight));
  } else if (suspect && share->suspect) {
    set_weight(shares, i, weight);
  }
}

void sk_shares_end_period(struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost, uint64_t ns) {
  for (uint32_t i = 0; i < shares->nstreams; i++)
    if (!(lost >> i & 1)) judge(shares, sent, lost, ns, i);
  for (uint32_t i = 0; i < shares->nstreams; i++) shares->of[i].before = sent[i];
}

/* ---- what they are given ----------------------------------------------------- */

void sk_shares_give(struct sk_shares *shares, uint32_t lost, uint64_t size) {
  uint64_t all = 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) all += lost >> i & 1 ? 0 : shares->of[i].weight;
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    struct sk_share *share = &shares->of[i];
    if (!sk_shares_is_slow(shares, i) || lost >> i & 1) continue;
    uint64_t part = size / all * share->weight;
    if (part >= SK_LEAST_PART) share->allowance = RAIL_MIN(share->allowance + part, 2 * part);
  }
}

uint32_t sk_shares_take(struct sk_shares *shares, uint32_t index, uint64_t size, uint64_t left) {
  uint64_t equal = RAIL_MAX(round_up(size / shares->nstreams), LEAST_CHUNK);
  uint64_t bytes = RAIL_MIN(equal, shares->chunk);
  if (rail_unlikely(sk_shares_is_slow(shares, index))) {
    if (!sk_shares_may_take(shares, index)) return 0;
    struct sk_share *share = &shares->of[index];
    bytes = RAIL_MIN(bytes, share->allowance) / CHUNK_ALIGN * CHUNK_ALIGN;
    share->allowance -= RAIL_MIN(left, bytes);
  }
  return (uint32_t)RAIL_MIN(left, bytes);
}

/* ---- with clock and sockets --------------------------------------------------- */

static uint32_t lost_streams(const struct sk_shares *shares, const struct sk_stream *streams) {
  uint32_t lost = 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) lost |= (uint32_t)(streams[i].fd < 0) << i;
  return lost;
}

static void set_limits(const struct sk_shares *shares, struct sk_stream *streams, uint32_t changed) {
  for (uint32_t i = 0; i < shares->nstreams; i++)
    if (changed >> i & 1)
      sk_stream_limit_unsent(&streams[i], sk_shares_is_slow(shares, i) ? SK_SLOW_UNSENT : SK_UNSENT_BYTES);
}

static void end_period(struct sk_shares *shares, struct sk_stream *streams, uint64_t now) {
  struct sk_sent sent[SK_MAX_STREAMS];
  uint32_t before = shares->slow;
  for (uint32_t i = 0; i < shares->nstreams; i++) sent[i] = sk_stream_sent(&streams[i]);
  sk_shares_end_period(shares, sent, lost_streams(shares, streams), now - shares->began);
  set_limits(shares, streams, before ^ shares->slow);
  shares->began = now;
  shares->looks = 0;
}

void sk_shares_renew(struct sk_shares *shares, struct sk_stream *streams) {
  uint32_t before = shares->slow;
  sk_shares_init(shares, shares->nstreams, shares->chunk);
  set_limits(shares, streams, before);
}

static void look(struct sk_shares *shares, struct sk_stream *streams) {
  uint64_t now = rail_now_ns();
  shares->bytes = 0;
  bool enough = ++shares->looks >= PERIOD_LOOKS && now - shares->began >= PERIOD_NS;
  if (!shares->began || enough) end_period(shares, streams, now);
}

void sk_shares_announce(struct sk_shares *shares, struct sk_stream *streams, uint64_t size) {
  shares->bytes += size;
  if (shares->bytes >= CLOCK_BYTES) look(shares, streams);
  if (rail_unlikely(shares->slow)) sk_shares_give(shares, lost_streams(shares, streams), size);
}
