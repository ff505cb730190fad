/* SPDX-License-Identifier: Apache-2.0
 * Posting and testing the messages of one lane. */
#include "common/base/clock.h"
#include "kit/bench/bench_mark.h"
#include "kit/bench/bench_side.h"

RAIL_COLD _Noreturn static void call_failed(struct kit_bench_side *s, const struct kit_bench_lane *lane,
                                            const char *call, uint64_t number, rail_result_t result) {
  kit_bench_fail(s, KIT_BENCH_FAILED, "%s of message %llu of connection %u with side %u returned %d (%s)", call,
                 (unsigned long long)number, lane->number, lane->peer, (int)result, rail_result_name(result));
}

static inline char *slot_at(const struct kit_bench_lane *lane, unsigned int slot, unsigned int messages) {
  return lane->base + (size_t)slot * messages * lane->stride;
}

static inline unsigned int slot_after(const struct kit_bench_lane *lane, unsigned int slot) {
  return slot + 1 == lane->slots ? 0 : slot + 1;
}

static inline bool may_post(const struct kit_bench_side *s, const struct kit_bench_lane *lane, unsigned int n) {
  return lane->posted + n <= lane->limit && lane->posted - lane->done + n <= s->window;
}

static bool post_out(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  bool progress = false;
  while (may_post(s, lane, 1)) {
    char *data = slot_at(lane, lane->next, 1);
    if (s->marks) kit_bench_write_mark(data, s->cell.size, kit_bench_mark(lane->index, lane->posted));
    rail_result_t result = s->wire->send(s, lane, data, lane->tag, &lane->requests[lane->next]);
    if (rail_unlikely(result != RAIL_OK)) call_failed(s, lane, "isend", lane->posted, result);
    if (!lane->requests[lane->next]) break; /* not now */
    lane->next = slot_after(lane, lane->next);
    lane->posted++;
    if (++lane->tag == (int)s->cell.group) lane->tag = 0;
    progress = true;
  }
  return progress;
}

bool kit_bench_post_in(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  const unsigned int n = s->cell.group;
  bool progress = false;
  while (may_post(s, lane, n)) {
    rail_result_t result = s->wire->recv(s, lane, slot_at(lane, lane->next, n), &lane->requests[lane->next]);
    if (rail_unlikely(result != RAIL_OK)) call_failed(s, lane, "irecv", lane->posted, result);
    if (!lane->requests[lane->next]) break;
    lane->next = slot_after(lane, lane->next);
    lane->posted += n;
    progress = true;
  }
  return progress;
}

RAIL_COLD _Noreturn static void wrong_message(struct kit_bench_side *s, const struct kit_bench_lane *lane,
                                              unsigned int i, int size) {
  uint64_t number = lane->done + i, mark = kit_bench_mark(lane->index, number);
  const char *data = slot_at(lane, lane->head, s->cell.group) + i * lane->stride;
  if (size < 0 || (uint64_t)size != s->cell.size)
    kit_bench_fail(s, KIT_BENCH_WRONG, "message %llu of connection %u with side %u: %d bytes instead of %llu",
                   (unsigned long long)number, lane->number, lane->peer, size, (unsigned long long)s->cell.size);
  kit_bench_fail(s, KIT_BENCH_WRONG,
                 "message %llu of connection %u with side %u: its first or last 8 bytes are not 0x%016llx; "
                 "bits that differ: 0x%016llx",
                 (unsigned long long)number, lane->number, lane->peer, (unsigned long long)mark,
                 (unsigned long long)kit_bench_wrong_mark(data, s->cell.size, mark));
}

static inline void check(struct kit_bench_side *s, const struct kit_bench_lane *lane, const int *sizes,
                         unsigned int n) {
  const char *data = slot_at(lane, lane->head, n);
  for (unsigned int i = 0; i < n; i++) {
    bool fine = sizes[i] >= 0 && (uint64_t)sizes[i] == s->cell.size &&
                (!s->marks || kit_bench_wrong_mark(data + i * lane->stride, s->cell.size,
                                                   kit_bench_mark(lane->index, lane->done + i)) == 0);
    if (rail_unlikely(!fine)) wrong_message(s, lane, i, sizes[i]);
  }
}

/* All messages have one size: a transport that finds one longer than its buffer has lost its place in the stream. */
RAIL_COLD _Noreturn static void test_failed(struct kit_bench_side *s, const struct kit_bench_lane *lane, bool in,
                                            rail_result_t result) {
  if (!in || result != RAIL_BAD_USAGE)
    call_failed(s, lane, in ? "test of irecv" : "test of isend", lane->done, result);
  kit_bench_fail(s, KIT_BENCH_WRONG,
                 "message %llu of connection %u with side %u: the transport says that it exceeds its buffer, but all "
                 "have %llu bytes",
                 (unsigned long long)lane->done, lane->number, lane->peer, (unsigned long long)s->cell.size);
}

/* What has come into memory of a GPU is there for its reader once a flush is done. */
static bool flush_oldest(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  void **request = &lane->requests[lane->head];
  rail_result_t result = s->wire->flush(s, lane, slot_at(lane, lane->head, s->cell.group), request);
  if (rail_unlikely(result != RAIL_OK)) call_failed(s, lane, "iflush", lane->done, result);
  lane->flushing = *request != NULL;
  return lane->flushing;
}

static inline void retire(struct kit_bench_lane *lane, unsigned int messages) {
  lane->head = slot_after(lane, lane->head);
  lane->done += messages;
}

static bool test_out(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  bool progress = false;
  while (lane->done < lane->posted) {
    int done = 0;
    rail_result_t result = s->wire->test(s, lane, lane->requests[lane->head], &done, NULL);
    if (rail_unlikely(result != RAIL_OK)) test_failed(s, lane, false, result);
    if (!done) break;
    retire(lane, 1);
    progress = true;
  }
  return progress;
}

static void note_arrival(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  uint64_t now = rail_now_ns();
  if (lane->arrived_ns) kit_bench_sample(&s->samples, now - lane->arrived_ns);
  lane->arrived_ns = now;
}

bool kit_bench_test_in(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  const unsigned int n = s->cell.group;
  bool progress = false;
  while (lane->done < lane->posted) {
    int done = 0, sizes[KIT_BENCH_GROUP];
    for (unsigned int i = 0; i < n; i++) sizes[i] = -1;
    rail_result_t result = s->wire->test(s, lane, lane->requests[lane->head], &done, lane->flushing ? NULL : sizes);
    if (rail_unlikely(result != RAIL_OK)) test_failed(s, lane, true, result);
    if (!done) break;
    progress = true;
    if (lane->flushing) {
      lane->flushing = false;
    } else {
      check(s, lane, sizes, n);
      if (rail_unlikely(s->memory.cuda) && flush_oldest(s, lane)) break;
    }
    if (rail_unlikely(s->cell.kind == KIT_BENCH_JITTER)) note_arrival(s, lane);
    retire(lane, n);
  }
  return progress;
}

bool kit_bench_pass_out(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  bool posted = post_out(s, lane);
  return test_out(s, lane) || posted;
}

bool kit_bench_pass_in(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  bool posted = kit_bench_post_in(s, lane);
  return kit_bench_test_in(s, lane) || posted;
}

bool kit_bench_pass(struct kit_bench_side *s) {
  bool progress = false;
  for (unsigned int i = 0; i < s->nout; i++) progress |= kit_bench_pass_out(s, &s->out[i]);
  for (unsigned int i = 0; i < s->nin; i++) progress |= kit_bench_pass_in(s, &s->in[i]);
  return progress;
}

bool kit_bench_all_done(const struct kit_bench_side *s) {
  for (unsigned int i = 0; i < s->nout; i++)
    if (s->out[i].done < s->out[i].limit) return false;
  for (unsigned int i = 0; i < s->nin; i++)
    if (s->in[i].done < s->in[i].limit) return false;
  return true;
}
