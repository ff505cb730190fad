/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of large messages each of several streams is given. Whichever stream is free takes the next chunk, so a slow
 * one takes fewer; but a message is complete only when its last chunk has arrived, and the caller has only so many
 * messages under way: all streams would soon wait for what a slow one still holds. So up to 20 times a second the rates
 * of the streams are compared, each over the time in which it had bytes to send or unacknowledged (TCP_INFO). One that
 * is slower than the others may take of each message what it sends while they send the rest, and nothing if that is
 * little; its socket takes less ahead. Now and then it is tried with twice as much, and again as long as that goes
 * well.
 */
#ifndef SK_SHARE_H
#define SK_SHARE_H

#include "plugin/socket/sk_stream.h"

#define SK_LEAST_PART (8 * 1024)   /* bytes: a slow stream whose part of a message is less is given none of it */
#define SK_SLOW_UNSENT (16u * 1024) /* bytes, at least, that the socket of a slow stream takes ahead */
#define SK_FULL_WEIGHT 1000u

struct sk_share { /* of one stream */
  uint32_t weight;        /* its rate; SK_FULL_WEIGHT: that of a stream that is not slow */
  bool suspect;           /* in the latest period it was slower than the others */
  uint32_t weight_before; /* slow: than the trial with more that is under way; 0: none is */
  uint64_t waited_ns;     /* slow: since the trial began, or since the latest one failed */
  uint64_t wait_ns;       /* slow: from that failure to the next trial */
  uint64_t pause_ns;      /* what that is after the next failure */
  bool was_busy;          /* slow: since then, in some period */
  bool took_all;          /* slow: in this period there was a time when it might take no more */
  uint64_t allowance;     /* slow: bytes that it may take now */
  uint32_t unsent;        /* bytes that its socket takes ahead */
  struct sk_sent before;  /* when the period began */
};

struct sk_shares {
  uint32_t nstreams;
  uint32_t chunk; /* most bytes that any stream is given at a time */
  uint32_t slow;  /* a bit for each slow stream */
  uint64_t bytes; /* of messages since the clock was last read */
  uint32_t looks; /* at the clock, in this period */
  uint64_t began; /* when it did, in ns; 0: there was none yet */
  struct sk_share of[SK_MAX_STREAMS];
};

void sk_shares_init(struct sk_shares *shares, uint32_t nstreams, uint32_t chunk);
/* A stream has lost its socket or has another: nothing that was noted holds for those that are there now. */
void sk_shares_renew(struct sk_shares *shares, struct sk_stream *streams);
/* A message of `size` is announced: ends the period, if it is time to, and gives slow streams their part of it. */
void sk_shares_announce(struct sk_shares *shares, struct sk_stream *streams, uint64_t size);
/* Its two halves, which know no clock and no socket. `sent`: what each stream has sent by now; `ns`: time since the
 * period began; `lost`: a bit for each stream that is. */
void sk_shares_end_period(struct sk_shares *shares, const struct sk_sent *sent, uint32_t lost, uint64_t ns);
void sk_shares_give(struct sk_shares *shares, uint32_t lost, uint64_t size);

static inline bool sk_shares_is_slow(const struct sk_shares *shares, uint32_t index) {
  return shares->slow >> index & 1;
}
/* May stream `index` take a chunk? */
static inline bool sk_shares_may_take(const struct sk_shares *shares, uint32_t index) {
  return rail_likely(!sk_shares_is_slow(shares, index)) || shares->of[index].allowance >= SK_LEAST_PART;
}
/* What it takes of a message of `size`, of which `left` are in no frame yet; 0 if it may take none. */
uint32_t sk_shares_take(struct sk_shares *shares, uint32_t index, uint64_t size, uint64_t left);
/* Bytes that its socket may take ahead of what TCP has sent: with a slow one fewer, about as many as it sends while
 * the others send what theirs have. */
uint32_t sk_shares_unsent(const struct sk_shares *shares, uint32_t index);

#endif
