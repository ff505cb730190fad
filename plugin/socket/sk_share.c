/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of a message each of several streams is given at a time. Whichever stream is free takes the next chunk, so a
 * slow one takes fewer; but a message is complete only when its last chunk has arrived, and the caller has only so many
 * messages under way: with chunks of the same size all streams would move at the pace of the slowest. So at new
 * messages it is noted which streams are still busy with earlier ones. A stream that mostly is, while the others are
 * not, is given half as much at a time, also ahead of what TCP has sent, and now and then twice as much again.
 */
#include "plugin/socket/sk_send.h"

/* Chunks begin at multiples of this: NCCL's LL128 protocol needs lines of 128 bytes whole. */
#define CHUNK_ALIGN 128
#define LEAST_CHUNK (64 * 1024u) /* a message is not cut into smaller ones to give all streams some: each is a system
                                  * call here and there */
#define SAMPLE_BYTES (512 * 1024) /* from sample to sample: each is a system call for every stream */
#define PERIOD_SAMPLES 16         /* before streams are compared */
#define GROW_PERIODS 8            /* before one that was slow and is not is given more */

static uint64_t round_up(uint64_t bytes) { return (bytes + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN; }

void sk_shares_init(struct sk_shares *shares, uint32_t nstreams, uint32_t max_chunk) {
  *shares = (struct sk_shares){.nstreams = nstreams, .max_chunk = max_chunk / CHUNK_ALIGN * CHUNK_ALIGN};
  for (uint32_t i = 0; i < nstreams; i++) shares->chunk[i] = shares->max_chunk;
}

static void set_chunk(struct sk_shares *shares, struct sk_stream *s, uint64_t chunk) {
  chunk = RAIL_MIN(round_up(RAIL_MAX(chunk, SK_LEAST_SHARE)), shares->max_chunk);
  shares->chunk[s->index] = (uint32_t)chunk;
  sk_stream_limit_unsent(s, chunk == shares->max_chunk ? SK_UNSENT_BYTES : (uint32_t)RAIL_MIN(chunk, SK_UNSENT_BYTES));
}

/* Lost streams are not among those that are compared. */
static void end_period(struct sk_shares *shares, struct sk_stream *streams) {
  uint32_t all_busy = 0, live = 0;
  bool grow = ++shares->period % GROW_PERIODS == 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    if (streams[i].fd < 0) continue;
    all_busy += shares->busy[i];
    live++;
  }
  for (uint32_t i = 0; i < shares->nstreams; i++) {
    uint32_t busy = shares->busy[i];
    bool above = live > 1 && 2 * busy * live >= 3 * all_busy; /* 1.5 times the average */
    bool slow = streams[i].fd >= 0 && above && 2 * busy >= shares->samples;
    if (slow) set_chunk(shares, &streams[i], shares->chunk[i] / 2);
    else if (grow && shares->chunk[i] < shares->max_chunk)
      set_chunk(shares, &streams[i], 2 * (uint64_t)shares->chunk[i]);
    shares->busy[i] = 0;
  }
  shares->samples = 0;
}

void sk_shares_renew(struct sk_shares *shares, uint32_t index) {
  shares->chunk[index] = shares->max_chunk;
  shares->busy[index] = 0;
}

void sk_shares_sample(struct sk_shares *shares, struct sk_stream *streams, uint64_t size) {
  shares->bytes += size;
  if (shares->bytes < SAMPLE_BYTES) return;
  shares->bytes = 0;
  for (uint32_t i = 0; i < shares->nstreams; i++) shares->busy[i] += sk_stream_is_busy(&streams[i]);
  if (++shares->samples == PERIOD_SAMPLES) end_period(shares, streams);
}

uint32_t sk_shares_chunk(const struct sk_shares *shares, uint32_t index, uint64_t size, uint64_t left) {
  uint64_t equal = RAIL_MAX(round_up(size / shares->nstreams), LEAST_CHUNK);
  return (uint32_t)RAIL_MIN(left, RAIL_MIN(equal, shares->chunk[index]));
}
