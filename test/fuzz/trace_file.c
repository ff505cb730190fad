/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Recorded files (plugin/railtrace/trace_file.h) and what reads them: print, summary, and the plan of a replay.
 *
 * Checksums would keep mutations out, so the input's first byte says what the rest is: a whole file; the payload of a
 * chunk of calls, in a file that is made around it; those of several threads; the payload of the last chunk.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kit/trace/kit_trace.h"
#include "kit/trace/replay_plan.h"
#include "plugin/railtrace/trace_file.h"
#include "test/fuzz/lib/fuzz.h"

enum { WHOLE, CALLS, THREADS, END, MODES };

/* A file in memory, as its writer makes it. */
static size_t put_chunk(uint8_t *to, enum rail_trace_chunk_kind kind, uint32_t thread, const uint8_t *bytes, size_t n) {
  rail_trace_put_chunk(to, kind, thread, bytes, n, NULL, 0);
  if (n) memcpy(to + RAIL_TRACE_CHUNK_HEADER, bytes, n);
  return RAIL_TRACE_CHUNK_HEADER + n;
}

static uint8_t *wrap(int mode, struct fuzz_in *in, size_t *size) {
  static const struct rail_trace_header header = {.clock_ns = 1, .realtime_ns = 1000, .pid = 2, .host = "h",
                                                  .program = "p", .plugin_path = "/p", .plugin_name = "P"};
  uint8_t *file = malloc(RAIL_TRACE_HEADER_MAX + 64 * RAIL_TRACE_CHUNK_HEADER + in->left);
  FUZZ_CHECK(file != NULL);
  *size = mode == WHOLE ? 0 : rail_trace_put_header(file, &header);
  if (mode == WHOLE || mode == CALLS || mode == END) {
    if (mode == WHOLE && in->left) memcpy(file, in->at, in->left);
    if (mode == WHOLE) *size = in->left;
    if (mode == CALLS) *size += put_chunk(file + *size, RAIL_TRACE_CHUNK_CALLS, 1, in->at, in->left);
    if (mode == END) *size += put_chunk(file + *size, RAIL_TRACE_CHUNK_END, 1, in->at, in->left);
    return file;
  }
  for (int i = 0; i < 60 && in->left; i++) { /* THREADS: pieces, each with its thread */
    uint32_t thread = fuzz_u8(in) % 5u;
    size_t n = fuzz_u8(in);
    const uint8_t *piece = fuzz_take(in, &n);
    *size += put_chunk(file + *size, RAIL_TRACE_CHUNK_CALLS, thread, piece, n);
  }
  return file;
}

/* What is read, written again and read again is the same. */
static void check_event(const struct rail_trace_event *e) {
  uint8_t bytes[RAIL_TRACE_MAX_RECORD];
  uint64_t before = 0;
  FUZZ_CHECK(e->kind > RAIL_TRACE_NONE && e->kind < RAIL_TRACE_KINDS && e->n <= RAIL_TRACE_GROUP && e->thread >= 1);
  FUZZ_CHECK(rail_trace_put_event(bytes, e, &before) <= sizeof bytes);
}

static void read_events(struct rail_trace *trace, FILE *out) {
  struct rail_trace_event *e = malloc(sizeof *e);
  char why[300] = "";
  uint64_t last = 0;
  int r;
  FUZZ_CHECK(e != NULL);
  while ((r = rail_trace_next(trace, e, why, sizeof why)) == 1) {
    FUZZ_CHECK(e->ns >= last);
    last = e->ns;
    check_event(e);
    kit_trace_line(out, e);
  }
  FUZZ_CHECK((r == 0) == (why[0] == 0));
  if (r < 0) FUZZ_CHECK(strncmp(why, "offset ", 7) == 0);
  free(e);
  rail_trace_rewind(trace);
}

static void sum_up(struct rail_trace *trace, FILE *out) {
  struct kit_trace how = {.gap_ms = 1};
  struct kit_trace_summary s = {0};
  char why[300];
  (void)kit_trace_sum(trace, &how, &s, why, sizeof why);
  kit_trace_print_header(out, trace, "file");
  kit_trace_print_summary(out, trace, &s);
  kit_trace_summary_free(&s);
  rail_trace_rewind(trace);
}

/* The same file as both ends. Every index that the plan holds is one of its lists. */
static void plan(struct rail_trace *trace) {
  struct replay_plan *p = calloc(1, sizeof *p);
  char why[300];
  FUZZ_CHECK(p != NULL);
  bool ok = replay_plan_add(p, trace, why, sizeof why);
  rail_trace_rewind(trace);
  ok = ok && replay_plan_add(p, trace, why, sizeof why) && replay_plan_settle(p);
  const struct replay_file *own = &p->files[0];
  for (size_t i = 0; ok && i < own->ncomms; i++) {
    const struct replay_comm *c = &own->comms[i];
    FUZZ_CHECK(c->peer_file < 2 && (c->peer_file < 0 || c->peer < p->files[c->peer_file].ncomms));
    for (size_t k = 0; k < c->ncalls; k++) {
      const struct replay_call *call = &c->calls[k];
      if (call->kind == REPLAY_SEND) FUZZ_CHECK(call->first < c->nmsgs);
      if (call->kind == REPLAY_RECV) FUZZ_CHECK(call->first + call->n <= c->nslots && call->bufs + call->n <= p->nbufs);
      if (call->kind == REPLAY_DONE) FUZZ_CHECK(call->value < k);
    }
    for (size_t k = 0; k < c->nslots; k++)
      FUZZ_CHECK(c->slots[k].msg == REPLAY_NONE || c->slots[k].msg < p->files[c->peer_file].comms[c->peer].nmsgs);
    for (size_t k = 0; k < c->nmsgs; k++) FUZZ_CHECK(c->msgs[k].text == REPLAY_NONE || c->msgs[k].text <= k);
  }
  replay_plan_free(p);
  free(p);
}

void fuzz_one(const uint8_t *data, size_t size) {
  static FILE *nowhere;
  struct fuzz_in in = {data, size};
  struct rail_trace *trace;
  char why[300] = "";
  size_t file_size;
  if (!nowhere) nowhere = fopen("/dev/null", "w");
  FUZZ_CHECK(nowhere != NULL);
  uint8_t *file = wrap(fuzz_u8(&in) % MODES, &in, &file_size);
  if (rail_trace_open_bytes(file, file_size, &trace, why, sizeof why)) {
    read_events(trace, nowhere);
    sum_up(trace, nowhere);
    plan(trace);
    rail_trace_close(trace);
  } else {
    FUZZ_CHECK(strstr(why, "offset ") || strstr(why, "not a trace"));
  }
  free(file);
}

/* ---- seeds ------------------------------------------------------------- */

struct maker {
  struct fuzz_out out;
  uint64_t before, ns;
};

static void add(struct maker *m, struct rail_trace_event e) {
  uint8_t bytes[RAIL_TRACE_MAX_RECORD];
  e.ns = m->ns += 1000;
  e.duration = 50;
  fuzz_put(&m->out, bytes, rail_trace_put_event(bytes, &e, &m->before));
}

/* A process that talks to itself: 8 messages, some of them in flight together, one receive for two. */
static void conversation(struct maker *m) {
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_INIT, .made = 1, .dev = 12, .tag = -1});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_DEVICES, .value = 1});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_PROPERTIES, .props = {.name = (char *)(uintptr_t)"lo"}});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_LISTEN, .ctx = 1, .made = 1, .handle = {7}});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_CONNECT, .ctx = 1, .made = 2, .tries = 3, .waited = 9,
                                   .handle = {7}});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_ACCEPT, .comm = 1, .made = 3});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_CLOSE_LISTEN, .comm = 1});
  for (uint64_t c = 2; c <= 3; c++)
    add(m, (struct rail_trace_event){.kind = RAIL_TRACE_REG_MR, .comm = c, .made = c, .address = 4096, .size = 8192,
                                     .dev = 1});
  for (uint64_t i = 1; i <= 8; i += 2) {
    add(m, (struct rail_trace_event){.kind = RAIL_TRACE_IRECV, .comm = 3, .made = i, .n = 2,
                                     .bufs = {{3, 0, 64, 1}, {3, 64, 64, 2}}});
    for (uint64_t k = 0; k < 2; k++)
      add(m, (struct rail_trace_event){.kind = RAIL_TRACE_ISEND, .comm = 2, .made = i + k, .n = 1,
                                       .bufs = {{2, i * 16, 64 - i, 2 - (int64_t)k}}});
    for (uint64_t k = 0; k < 2; k++)
      add(m, (struct rail_trace_event){.kind = RAIL_TRACE_TEST, .comm = 2, .request = i + k, .value = 1, .tries = 4});
    add(m, (struct rail_trace_event){.kind = RAIL_TRACE_TEST, .comm = 3, .request = i, .value = 1, .n = 2,
                                     .bufs = {{.size = 64}, {.size = 63}}});
  }
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_FINDING, .comm = 3, .value = 13, .dev = 1});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_DROPPED, .value = 2});
  for (uint64_t c = 2; c <= 3; c++)
    add(m, (struct rail_trace_event){.kind = RAIL_TRACE_DEREG_MR, .comm = c, .mr = c});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_CLOSE_SEND, .comm = 2, .result = 2});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_CLOSE_RECV, .comm = 3});
  add(m, (struct rail_trace_event){.kind = RAIL_TRACE_FINALIZE, .ctx = 1});
}

void fuzz_make_seeds(void) {
  static struct maker m;
  static uint8_t file[sizeof m.out.bytes + 4096];
  struct rail_trace_header header = {.host = "host", .program = "program", .plugin_path = "/x", .plugin_name = "X"};
  struct rail_trace_end end = {.recorded = 40, .dropped = 2};
  uint8_t bytes[1024];
  fuzz_put8(&m.out, CALLS);
  conversation(&m);
  fuzz_seed("calls", m.out.bytes, m.out.size);
  struct fuzz_out threads = {.size = 0};
  fuzz_put8(&threads, THREADS);
  for (size_t at = 1; at < m.out.size && at < 600; at += 120) {
    fuzz_put8(&threads, 1 + at % 4);
    fuzz_put8(&threads, 120);
    fuzz_put(&threads, m.out.bytes + at, m.out.size - at < 120 ? m.out.size - at : 120);
  }
  fuzz_seed("threads", threads.bytes, threads.size);
  size_t size = 1;
  file[0] = WHOLE;
  size += rail_trace_put_header(file + size, &header);
  size += put_chunk(file + size, RAIL_TRACE_CHUNK_THREAD, 1, bytes, rail_trace_put_thread(bytes, 7, "thread"));
  size += put_chunk(file + size, RAIL_TRACE_CHUNK_CALLS, 1, m.out.bytes + 1, m.out.size - 1);
  size += put_chunk(file + size, RAIL_TRACE_CHUNK_END, 0, bytes, rail_trace_put_end(bytes, &end));
  fuzz_seed("whole", file, size);
  struct fuzz_out last = {.size = 0};
  fuzz_put8(&last, END);
  fuzz_put(&last, bytes, rail_trace_put_end(bytes, &end));
  fuzz_seed("end", last.bytes, last.size);
}
