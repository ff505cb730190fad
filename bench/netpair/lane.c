/* SPDX-License-Identifier: Apache-2.0
 * Posting and testing the messages of one lane. */
#include <string.h>

#include "bench/netpair/mark.h"
#include "bench/netpair/side.h"

RAIL_COLD static bool call_failed(struct side *s, const struct lane *lane, const char *call, uint64_t number,
                                  rail_result_t result) {
  return side_fail(s, VERDICT_FAILED, "%s of message %llu of connection %u returned %d", call,
                   (unsigned long long)number, lane->index, (int)result);
}

static inline char *slot_at(const struct lane *lane, unsigned int slot) { return lane->base + slot * lane->stride; }

static inline unsigned int slot_after(const struct side *s, unsigned int slot) {
  return slot + 1 == s->o->window ? 0 : slot + 1;
}

static inline bool may_post(const struct side *s, const struct lane *lane) {
  return lane->posted < lane->limit && lane->posted - lane->done < s->o->window;
}

static bool post_out(struct side *s, struct lane *lane, bool *progress) {
  while (may_post(s, lane)) {
    char *data = slot_at(lane, lane->next);
    uint64_t mark = bench_mark(lane->index, lane->posted);
    memcpy(data, &mark, sizeof mark);
    rail_result_t result = s->ops->send(s, lane, data, &lane->requests[lane->next]);
    if (rail_unlikely(result != RAIL_OK)) return call_failed(s, lane, "isend", lane->posted, result);
    if (!lane->requests[lane->next]) break; /* not now */
    lane->next = slot_after(s, lane->next);
    lane->posted++;
    *progress = true;
  }
  return true;
}

bool lane_post_in(struct side *s, struct lane *lane, bool *progress) {
  while (may_post(s, lane)) {
    rail_result_t result = s->ops->recv(s, lane, slot_at(lane, lane->next), &lane->requests[lane->next]);
    if (rail_unlikely(result != RAIL_OK)) return call_failed(s, lane, "irecv", lane->posted, result);
    if (!lane->requests[lane->next]) break;
    lane->next = slot_after(s, lane->next);
    lane->posted++;
    *progress = true;
  }
  return true;
}

RAIL_COLD static bool wrong_message(struct side *s, const struct lane *lane, uint64_t mark, int size) {
  return side_fail(s, VERDICT_WRONG,
                   "message %llu of connection %u: %d bytes instead of %zu, beginning with "
                   "0x%016llx instead of 0x%016llx",
                   (unsigned long long)lane->done, lane->index, size, s->o->size, (unsigned long long)mark,
                   (unsigned long long)bench_mark(lane->index, lane->done));
}

static bool check(struct side *s, const struct lane *lane, int size) {
  uint64_t mark;
  memcpy(&mark, slot_at(lane, lane->head), sizeof mark);
  if (rail_likely(mark == bench_mark(lane->index, lane->done) && (size_t)size == s->o->size)) return true;
  return wrong_message(s, lane, mark, size);
}

/* All messages have one size: a transport that finds one longer than its buffer has lost its place in the stream. */
RAIL_COLD static bool test_failed(struct side *s, const struct lane *lane, bool in, rail_result_t result) {
  if (!in || result != RAIL_BAD_USAGE)
    return call_failed(s, lane, in ? "test of irecv" : "test of isend", lane->done, result);
  return side_fail(s, VERDICT_WRONG,
                   "message %llu of connection %u: the transport says that it exceeds its buffer, "
                   "but all have %zu bytes",
                   (unsigned long long)lane->done, lane->index, s->o->size);
}

static inline bool test_oldest(struct side *s, struct lane *lane, bool in, bool *progress) {
  while (lane->done < lane->posted) {
    int done = 0, size = 0;
    rail_result_t result = s->ops->test(s, lane, lane->requests[lane->head], &done, in ? &size : NULL);
    if (rail_unlikely(result != RAIL_OK)) return test_failed(s, lane, in, result);
    if (!done) break;
    if (in && !check(s, lane, size)) return false;
    lane->head = slot_after(s, lane->head);
    lane->done++;
    *progress = true;
  }
  return true;
}

bool lane_test_in(struct side *s, struct lane *lane, bool *progress) { return test_oldest(s, lane, true, progress); }

bool lane_pass_out(struct side *s, struct lane *lane, bool *progress) {
  return post_out(s, lane, progress) && test_oldest(s, lane, false, progress);
}

bool lane_pass_in(struct side *s, struct lane *lane, bool *progress) {
  return lane_post_in(s, lane, progress) && lane_test_in(s, lane, progress);
}
