/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of large messages each of several streams is given at a time. Whichever stream is free takes the next chunk,
 * so a slow one takes fewer; but a message is complete only when its last chunk has arrived, and the caller has only so
 * many messages under way: with chunks of the same size all streams would move at the pace of the slowest. So at new
 * messages it is noted which streams are still busy with earlier ones. A stream that mostly is, while the others are
 * not, is given half as much at a time, also ahead of what TCP has sent, and now and then twice as much again.
 */
#ifndef SK_SHARE_H
#define SK_SHARE_H

#include "plugin/socket/sk_stream.h"

#define SK_LEAST_SHARE (16 * 1024) /* bytes: no stream is given less at a time */

struct sk_shares {
  uint32_t nstreams;
  uint32_t max_chunk; /* most bytes that any stream is given at a time */
  uint64_t bytes;     /* of messages since the latest sample */
  uint32_t samples;   /* in this period */
  uint32_t period;    /* number */
  uint32_t chunk[SK_MAX_STREAMS]; /* most bytes that this stream is given at a time */
  uint32_t busy[SK_MAX_STREAMS];  /* samples of this period that found it busy */
};

void sk_shares_init(struct sk_shares *shares, uint32_t nstreams, uint32_t max_chunk);
/* A stream that was lost has another socket: nothing is known of it. */
void sk_shares_renew(struct sk_shares *shares, uint32_t index);
/* A message of `size` is announced: samples which streams are busy, if it is time to. */
void sk_shares_sample(struct sk_shares *shares, struct sk_stream *streams, uint64_t size);
/* What stream `index` takes of a message of `size`, of which `left` are in no frame yet. */
uint32_t sk_shares_chunk(const struct sk_shares *shares, uint32_t index, uint64_t size, uint64_t left);

#endif
