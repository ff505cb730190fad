/* SPDX-License-Identifier: Apache-2.0
 * One connection: posting and testing its messages, making and closing it, failing. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "kit/bench/bench_process.h"

struct kit_bench_record kit_bench_empty_record(const struct kit_bench_process *s) {
  struct kit_bench_record r = {.magic = KIT_BENCH_MAGIC, .version = s->version};
  snprintf(r.wire, sizeof r.wire, "%s", s->wire_name);
  return r;
}

void kit_bench_fail(struct kit_bench_process *s, enum kit_bench_verdict verdict, const char *fmt, ...) {
  struct kit_bench_record r = kit_bench_empty_record(s);
  va_list ap;
  int n = snprintf(r.what, sizeof r.what, "side %d: ", s->rank);
  va_start(ap, fmt);
  vsnprintf(r.what + n, sizeof r.what - (size_t)n, fmt, ap);
  va_end(ap);
  r.verdict = (int32_t)verdict;
  kit_send_record(s->kit, &r, sizeof r);
  kit_failed(__FILE__, __LINE__, "%s", r.what);
}

void kit_bench_require(struct kit_bench_process *s, rail_result_t result, const char *call) {
  if (result == RAIL_OK) return;
  kit_bench_fail(s, KIT_BENCH_FAILED, "%s returned %s", call, kit_rc_text((int)result));
}

void kit_bench_check_stall(struct kit_bench_process *s, uint64_t now, uint64_t moved) {
  kit_bench_note_time(s, now);
  if (rail_likely(now - moved <= s->patience_ns)) return;
  kit_bench_fail(s, KIT_BENCH_STUCK, "nothing moved for %.1f s", (double)(now - moved) / 1e9);
}

void kit_bench_idle(const struct kit_bench_process *s) {
  struct timespec t = {.tv_sec = s->cell.sleep_us / 1000000, .tv_nsec = s->cell.sleep_us % 1000000 * 1000};
  if (s->cell.spin) rail_cpu_relax();
  else if (s->cell.sleep_us > 0) nanosleep(&t, NULL);
  else sched_yield();
}

/* ---- Posting and testing the messages of one conn ---- */

RAIL_COLD _Noreturn static void call_failed(struct kit_bench_process *s, const struct kit_bench_conn *conn,
                                            const char *call, uint64_t number, rail_result_t result) {
  kit_bench_fail(s, KIT_BENCH_FAILED, "%s of message %llu of connection %u with side %u returned %s", call,
                 (unsigned long long)number, conn->number, conn->peer, kit_rc_text((int)result));
}

static inline char *slot_at(const struct kit_bench_conn *conn, unsigned int slot, unsigned int messages) {
  return conn->base + (size_t)slot * messages * conn->stride;
}

static inline unsigned int slot_after(const struct kit_bench_conn *conn, unsigned int slot) {
  return slot + 1 == conn->slots ? 0 : slot + 1;
}

static inline bool may_post(const struct kit_bench_process *s, const struct kit_bench_conn *conn, unsigned int n) {
  return conn->posted + n <= conn->limit && conn->posted - conn->done + n <= s->window;
}

static bool post_out(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  bool progress = false;
  while (may_post(s, conn, 1)) {
    char *data = slot_at(conn, conn->next, 1);
    if (s->marks) kit_bench_write_mark(data, s->cell.size, kit_bench_mark(conn->index, conn->posted));
    rail_result_t result = s->wire->send(s, conn, data, conn->tag, &conn->requests[conn->next]);
    if (rail_unlikely(result != RAIL_OK)) call_failed(s, conn, "isend", conn->posted, result);
    if (!conn->requests[conn->next]) break; /* not now */
    conn->next = slot_after(conn, conn->next);
    conn->posted++;
    if (++conn->tag == (int)s->cell.group) conn->tag = 0;
    progress = true;
  }
  return progress;
}

bool kit_bench_post_in(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  const unsigned int n = s->cell.group;
  bool progress = false;
  while (may_post(s, conn, n)) {
    rail_result_t result = s->wire->recv(s, conn, slot_at(conn, conn->next, n), &conn->requests[conn->next]);
    if (rail_unlikely(result != RAIL_OK)) call_failed(s, conn, "irecv", conn->posted, result);
    if (!conn->requests[conn->next]) break;
    conn->next = slot_after(conn, conn->next);
    conn->posted += n;
    progress = true;
  }
  return progress;
}

RAIL_COLD _Noreturn static void wrong_message(struct kit_bench_process *s, const struct kit_bench_conn *conn,
                                              unsigned int i, int size) {
  uint64_t number = conn->done + i, mark = kit_bench_mark(conn->index, number);
  const char *data = slot_at(conn, conn->head, s->cell.group) + i * conn->stride;
  if (size < 0 || (uint64_t)size != s->cell.size)
    kit_bench_fail(s, KIT_BENCH_WRONG, "message %llu of connection %u with side %u: %d bytes instead of %llu",
                   (unsigned long long)number, conn->number, conn->peer, size, (unsigned long long)s->cell.size);
  kit_bench_fail(s, KIT_BENCH_WRONG,
                 "message %llu of connection %u with side %u: its first or last 8 bytes are not 0x%016llx; "
                 "bits that differ: 0x%016llx",
                 (unsigned long long)number, conn->number, conn->peer, (unsigned long long)mark,
                 (unsigned long long)kit_bench_wrong_mark(data, s->cell.size, mark));
}

static inline void check(struct kit_bench_process *s, const struct kit_bench_conn *conn, const int *sizes,
                         unsigned int n) {
  const char *data = slot_at(conn, conn->head, n);
  for (unsigned int i = 0; i < n; i++) {
    bool fine = sizes[i] >= 0 && (uint64_t)sizes[i] == s->cell.size &&
                (!s->marks || kit_bench_wrong_mark(data + i * conn->stride, s->cell.size,
                                                   kit_bench_mark(conn->index, conn->done + i)) == 0);
    if (rail_unlikely(!fine)) wrong_message(s, conn, i, sizes[i]);
  }
}

/* All messages have one size: a transport that finds one longer than its buffer has lost its place in the stream. */
RAIL_COLD _Noreturn static void test_failed(struct kit_bench_process *s, const struct kit_bench_conn *conn, bool in,
                                            rail_result_t result) {
  if (!in || result != RAIL_BAD_USAGE)
    call_failed(s, conn, in ? "test of irecv" : "test of isend", conn->done, result);
  kit_bench_fail(s, KIT_BENCH_WRONG,
                 "message %llu of connection %u with side %u: the transport says that it exceeds its buffer, but all "
                 "have %llu bytes",
                 (unsigned long long)conn->done, conn->number, conn->peer, (unsigned long long)s->cell.size);
}

/* What has come into memory of a GPU is there for its reader once a flush is done. */
static bool flush_oldest(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  void **request = &conn->requests[conn->head];
  rail_result_t result = s->wire->flush(s, conn, slot_at(conn, conn->head, s->cell.group), request);
  if (rail_unlikely(result != RAIL_OK)) call_failed(s, conn, "iflush", conn->done, result);
  conn->flushing = *request != NULL;
  return conn->flushing;
}

static inline void retire(struct kit_bench_conn *conn, unsigned int messages) {
  conn->head = slot_after(conn, conn->head);
  conn->done += messages;
}

static bool test_out(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  bool progress = false;
  while (conn->done < conn->posted) {
    int done = 0;
    rail_result_t result = s->wire->test(s, conn, conn->requests[conn->head], &done, NULL);
    if (rail_unlikely(result != RAIL_OK)) test_failed(s, conn, false, result);
    if (!done) break;
    retire(conn, 1);
    progress = true;
  }
  return progress;
}

static void note_arrival(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  uint64_t now = rail_now_ns();
  if (conn->arrived_ns) kit_bench_sample(&s->samples, now - conn->arrived_ns);
  conn->arrived_ns = now;
}

bool kit_bench_test_in(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  const unsigned int n = s->cell.group;
  bool progress = false;
  while (conn->done < conn->posted) {
    int done = 0, sizes[KIT_BENCH_GROUP];
    for (unsigned int i = 0; i < n; i++) sizes[i] = -1;
    rail_result_t result = s->wire->test(s, conn, conn->requests[conn->head], &done, conn->flushing ? NULL : sizes);
    if (rail_unlikely(result != RAIL_OK)) test_failed(s, conn, true, result);
    if (!done) break;
    progress = true;
    if (conn->flushing) {
      conn->flushing = false;
    } else {
      check(s, conn, sizes, n);
      if (rail_unlikely(s->memory.cuda) && flush_oldest(s, conn)) break;
    }
    if (rail_unlikely(s->cell.kind == KIT_BENCH_JITTER)) note_arrival(s, conn);
    retire(conn, n);
  }
  return progress;
}

bool kit_bench_pass_out(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  bool posted = post_out(s, conn);
  return test_out(s, conn) || posted;
}

static bool pass_in(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  bool posted = kit_bench_post_in(s, conn);
  return kit_bench_test_in(s, conn) || posted;
}

bool kit_bench_pass(struct kit_bench_process *s) {
  bool progress = false;
  for (unsigned int i = 0; i < s->nout; i++) progress |= kit_bench_pass_out(s, &s->out[i]);
  for (unsigned int i = 0; i < s->nin; i++) progress |= pass_in(s, &s->in[i]);
  return progress;
}

bool kit_bench_all_done(const struct kit_bench_process *s) {
  for (unsigned int i = 0; i < s->nout; i++)
    if (s->out[i].done < s->out[i].limit) return false;
  for (unsigned int i = 0; i < s->nin; i++)
    if (s->in[i].done < s->in[i].limit) return false;
  return true;
}

/* ---- The conns of a process: what there are, how they are connected and closed ---- */

#define OPEN_LIMIT_MS 10000

static unsigned int count_edges(const struct kit_bench_process *s, bool out) {
  unsigned int n = 0;
  for (int r = 0; r < (int)s->cell.sides; r++)
    n += out ? kit_bench_edge(&s->cell, s->rank, r) : kit_bench_edge(&s->cell, r, s->rank);
  return n;
}

/* The number that a receiver gives the first conn of an edge: senders in order of rank. */
static unsigned int first_index(const struct kit_bench_process *s, int from, int to) {
  unsigned int n = 0;
  for (int r = 0; r < from; r++) n += kit_bench_edge(&s->cell, r, to);
  return n * s->cell.comms;
}

static void number_conns(struct kit_bench_process *s, struct kit_bench_conn *conns, bool out) {
  for (int r = 0; r < (int)s->cell.sides; r++) {
    int from = out ? s->rank : r, to = out ? r : s->rank;
    if (!kit_bench_edge(&s->cell, from, to)) continue;
    for (unsigned int c = 0; c < s->cell.comms; c++, conns++) {
      conns->peer = (unsigned int)r;
      conns->number = c;
      conns->index = first_index(s, from, to) + c;
    }
  }
}

/* From message to message. One byte at least, so that messages of no bytes have addresses of their own. */
static size_t stride_of(const struct kit_bench_process *s) {
  return RAIL_ROUND_UP(RAIL_MAX(s->cell.size, 1ul), (size_t)RAIL_CACHELINE);
}

/* The buffers of a conn. */
static size_t buffers_size(const struct kit_bench_process *s) {
  return stride_of(s) * (s->cell.one_buffer ? 1 : s->window);
}

static size_t conn_size(const struct kit_bench_process *s) { return RAIL_ROUND_UP(buffers_size(s), 4096ul); }

static void lay_out(struct kit_bench_process *s, struct kit_bench_conn *conns, unsigned int n, unsigned int first,
                    unsigned int slots) {
  for (unsigned int i = 0; i < n; i++) {
    conns[i].stride = s->cell.one_buffer ? 0 : stride_of(s);
    conns[i].base = s->memory.base + (first + i) * conn_size(s);
    conns[i].requests = s->requests + (size_t)(first + i) * s->window;
    conns[i].slots = slots;
  }
}

void kit_bench_make_conns(struct kit_bench_process *s) {
  char why[200];
  s->nout = count_edges(s, true) * s->cell.comms;
  s->nin = count_edges(s, false) * s->cell.comms;
  unsigned int n = s->nout + s->nin;
  struct kit_bench_conn *conns = aligned_alloc(RAIL_CACHELINE, (n + 1) * sizeof *conns);
  s->requests = calloc((size_t)n * s->window + 1, sizeof *s->requests);
  if (!conns || !s->requests) kit_bench_fail(s, KIT_BENCH_ERROR, "no memory for %u connections", n);
  // cppcheck-suppress nullPointerRedundantCheck ; kit_bench_fail does not return
  memset(conns, 0, (n + 1) * sizeof *conns);
  if (!kit_bench_memory_make(&s->memory, RAIL_MAX(n, 1u) * conn_size(s),
                             s->cell.memory == KIT_BENCH_CUDA, why, sizeof why))
    kit_bench_fail(s, s->cell.memory == KIT_BENCH_CUDA ? KIT_BENCH_SKIPPED : KIT_BENCH_ERROR, "%s", why);
  s->marks = !s->memory.cuda && !s->cell.one_buffer;
  s->out = conns;
  s->in = conns + s->nout;
  number_conns(s, s->out, true);
  number_conns(s, s->in, false);
  lay_out(s, s->out, s->nout, 0, s->window);
  lay_out(s, s->in, s->nin, s->nout, s->window / s->cell.group);
}

void kit_bench_listen_all(struct kit_bench_process *s) {
  for (unsigned int i = 0; i < s->nin; i++) {
    struct kit_bench_conn *conn = &s->in[i];
    kit_bench_require(s, s->wire->listen(s, conn), "listen");
    kit_send_bytes(s->kit, (int)conn->peer, conn->handle, sizeof conn->handle);
  }
  for (unsigned int i = 0; i < s->nout; i++) kit_recv_bytes(s->kit, (int)s->out[i].peer, s->out[i].handle,
                                                     sizeof s->out[i].handle);
}

/* One step of what is not open yet. */
static bool step(struct kit_bench_process *s, struct kit_bench_conn *conn, bool out) {
  if (conn->comm) return true;
  kit_bench_require(s, out ? s->wire->connect(s, conn) : s->wire->accept(s, conn), out ? "connect" : "accept");
  if (!conn->comm) return false;
  conn->opened_ns = rail_now_ns();
  if (s->cell.kind != KIT_BENCH_CONNECT) kit_bench_require(s, s->wire->reg(s, conn, buffers_size(s)), "regMr");
  return true;
}

void kit_bench_connect_all(struct kit_bench_process *s) {
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

void kit_bench_close_all(struct kit_bench_process *s) {
  for (unsigned int i = 0; i < s->nout; i++) kit_bench_require(s, s->wire->close(s, &s->out[i], true), "closeSend");
  for (unsigned int i = 0; i < s->nin; i++) kit_bench_require(s, s->wire->close(s, &s->in[i], false), "closeRecv");
}
