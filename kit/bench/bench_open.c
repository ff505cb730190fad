/* SPDX-License-Identifier: Apache-2.0
 * The lanes of a side: what there are, how they are connected and closed. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/bench/bench_side.h"

#define OPEN_LIMIT_MS 10000

static unsigned int count_edges(const struct kit_bench_side *s, bool out) {
  unsigned int n = 0;
  for (int r = 0; r < (int)s->cell.sides; r++)
    n += out ? kit_bench_edge(&s->cell, s->rank, r) : kit_bench_edge(&s->cell, r, s->rank);
  return n;
}

/* The number that a receiver gives the first lane of an edge: senders in order of rank. */
static unsigned int first_index(const struct kit_bench_side *s, int from, int to) {
  unsigned int n = 0;
  for (int r = 0; r < from; r++) n += kit_bench_edge(&s->cell, r, to);
  return n * s->cell.comms;
}

static void number_lanes(struct kit_bench_side *s, struct kit_bench_lane *lanes, bool out) {
  for (int r = 0; r < (int)s->cell.sides; r++) {
    int from = out ? s->rank : r, to = out ? r : s->rank;
    if (!kit_bench_edge(&s->cell, from, to)) continue;
    for (unsigned int c = 0; c < s->cell.comms; c++, lanes++) {
      lanes->peer = (unsigned int)r;
      lanes->number = c;
      lanes->index = first_index(s, from, to) + c;
    }
  }
}

/* From message to message. One byte at least, so that messages of no bytes have addresses of their own. */
static size_t stride_of(const struct kit_bench_side *s) {
  return RAIL_ROUND_UP(RAIL_MAX(s->cell.size, 1ul), (size_t)RAIL_CACHELINE);
}

static size_t lane_size(const struct kit_bench_side *s) { return RAIL_ROUND_UP(stride_of(s) * s->window, 4096ul); }

static void lay_out(struct kit_bench_side *s, struct kit_bench_lane *lanes, unsigned int n, unsigned int first,
                    unsigned int slots) {
  for (unsigned int i = 0; i < n; i++) {
    lanes[i].stride = stride_of(s);
    lanes[i].base = s->memory.base + (first + i) * lane_size(s);
    lanes[i].requests = s->requests + (size_t)(first + i) * s->window;
    lanes[i].slots = slots;
  }
}

void kit_bench_make_lanes(struct kit_bench_side *s) {
  char why[200];
  s->nout = count_edges(s, true) * s->cell.comms;
  s->nin = count_edges(s, false) * s->cell.comms;
  unsigned int n = s->nout + s->nin;
  struct kit_bench_lane *lanes = aligned_alloc(RAIL_CACHELINE, (n + 1) * sizeof *lanes);
  s->requests = calloc((size_t)n * s->window + 1, sizeof *s->requests);
  bool fine = lanes && s->requests && kit_bench_samples_make(&s->samples);
  if (!fine) kit_bench_fail(s, KIT_BENCH_ERROR, "no memory for %u connections", n);
  memset(lanes, 0, (n + 1) * sizeof *lanes);
  if (!kit_bench_memory_make(&s->memory, RAIL_MAX(n, 1u) * lane_size(s),
                             s->cell.memory == KIT_BENCH_CUDA, why, sizeof why))
    kit_bench_fail(s, s->cell.memory == KIT_BENCH_CUDA ? KIT_BENCH_SKIPPED : KIT_BENCH_ERROR, "%s", why);
  s->marks = !s->memory.cuda;
  s->out = lanes;
  s->in = lanes + s->nout;
  number_lanes(s, s->out, true);
  number_lanes(s, s->in, false);
  lay_out(s, s->out, s->nout, 0, s->window);
  lay_out(s, s->in, s->nin, s->nout, s->window / s->cell.group);
}

void kit_bench_listen_all(struct kit_bench_side *s) {
  for (unsigned int i = 0; i < s->nin; i++) {
    struct kit_bench_lane *lane = &s->in[i];
    kit_bench_must(s, s->wire->listen(s, lane), "listen");
    kit_put(s->kit, (int)lane->peer, lane->handle, sizeof lane->handle);
  }
  for (unsigned int i = 0; i < s->nout; i++) kit_get(s->kit, (int)s->out[i].peer, s->out[i].handle,
                                                     sizeof s->out[i].handle);
}

/* One step of what is not open yet. */
static bool step(struct kit_bench_side *s, struct kit_bench_lane *lane, bool out) {
  if (lane->comm) return true;
  kit_bench_must(s, out ? s->wire->connect(s, lane) : s->wire->accept(s, lane), out ? "connect" : "accept");
  if (!lane->comm) return false;
  lane->opened_ns = rail_now_ns();
  if (s->cell.kind != KIT_BENCH_CONNECT) kit_bench_must(s, s->wire->reg(s, lane, lane->stride * s->window), "regMr");
  return true;
}

void kit_bench_join_all(struct kit_bench_side *s) {
  uint64_t deadline = rail_deadline_in_ms(OPEN_LIMIT_MS);
  for (;;) {
    bool all = true;
    for (unsigned int i = 0; i < s->nout; i++) all &= step(s, &s->out[i], true);
    for (unsigned int i = 0; i < s->nin; i++) all &= step(s, &s->in[i], false);
    if (all) return;
    if (rail_deadline_passed(deadline))
      kit_bench_fail(s, KIT_BENCH_STUCK, "not all connections made after %d ms", OPEN_LIMIT_MS);
    kit_bench_idle(s);
  }
}

void kit_bench_close_all(struct kit_bench_side *s) {
  for (unsigned int i = 0; i < s->nout; i++) kit_bench_must(s, s->wire->close(s, &s->out[i], true), "closeSend");
  for (unsigned int i = 0; i < s->nin; i++) kit_bench_must(s, s->wire->close(s, &s->in[i], false), "closeRecv");
}
