/* SPDX-License-Identifier: Apache-2.0
 * NCCL's LL and LL128 protocols: a reader that polls the destination and trusts its flags never sees torn data.
 *
 * LL stores {data32, flag32} as one 8-byte unit; a reader takes it as soon as
 * the flag is the expected one. LL128 stores 120 bytes of data and an 8-byte
 * flag as one line; its reader waits for the flag, loads the line once more
 * (src/device/prims_ll128.h), and takes that. The reader here is a thread
 * that runs while the receive is in flight. It waits for RELOAD_NS before
 * it loads a line again, as a GPU's load over PCIe takes a while: a processor's
 * string copies, and so a kernel's, may store within a line in any order. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { LINE_WORDS = 16, LINE = 128, UNIT = 8, STEPS = 8, RELOAD_NS = 5000 };

struct reader {
  _Atomic uint64_t *at;
  size_t units;
  bool lines; /* LL128 */
  atomic_uint round;
  atomic_bool over;
  atomic_long torn, late, seen; /* late: a line that was whole only when loaded again */
  atomic_ulong passes, where; /* where: 1 + the first torn unit */
};

/* A plugin's writes race with the reader's loads by design: a thread sanitizer must not look. */
#define NO_RACE __attribute__((no_sanitize("thread")))

static uint32_t ll_data(uint32_t flag, size_t unit) { return (flag * 2654435761u) ^ ((uint32_t)unit * 40503u + 1); }

static uint64_t line_data(uint32_t round, size_t line, int word) {
  return (uint64_t)round << 32 | (line * LINE_WORDS + (size_t)word);
}

enum sight { NOTHING, WHOLE, LATE, TORN };

NO_RACE static bool line_whole(const _Atomic uint64_t *line, uint32_t round, size_t u) {
  for (int w = 0; w < LINE_WORDS - 1; w++)
    if (atomic_load_explicit(&line[w], memory_order_relaxed) != line_data(round, u, w)) return false;
  return true;
}

/* Unit u, if its flag is of this round. */
NO_RACE static enum sight look_at(const struct reader *r, uint32_t round, size_t u) {
  if (!r->lines) {
    uint64_t v = atomic_load_explicit(&r->at[u], memory_order_acquire);
    if ((uint32_t)(v >> 32) != round) return NOTHING;
    return (uint32_t)v == ll_data(round, u) ? WHOLE : TORN;
  }
  const _Atomic uint64_t *line = r->at + u * LINE_WORDS;
  if (atomic_load_explicit(&line[LINE_WORDS - 1], memory_order_acquire) != round) return NOTHING;
  if (line_whole(line, round, u)) return WHOLE;
  for (uint64_t until = rail_now_ns() + RELOAD_NS; rail_now_ns() < until;) {}
  return line_whole(line, round, u) ? LATE : TORN;
}

/* What is written under the reader is the next round's as soon as `round` has changed, and proves nothing. */
NO_RACE static void look(struct reader *r) {
  long torn = 0, late = 0, seen = 0;
  size_t first = 0;
  uint32_t round = atomic_load(&r->round);
  for (size_t u = 0; u < r->units; u++) {
    enum sight what = look_at(r, round, u);
    seen += what != NOTHING;
    late += what == LATE;
    if (what == TORN && torn++ == 0) first = u + 1;
  }
  atomic_fetch_add(&r->seen, seen);
  atomic_fetch_add(&r->late, late);
  if (torn && atomic_load(&r->round) == round) {
    atomic_fetch_add(&r->torn, torn);
    atomic_store(&r->where, first);
  }
  atomic_fetch_add(&r->passes, 1);
}

static void *reader_main(void *arg) {
  struct reader *r = arg;
  while (!atomic_load(&r->over)) {
    look(r);
    sched_yield();
  }
  return NULL;
}

static void fill(uint64_t *out, size_t units, bool lines, uint32_t round) {
  for (size_t u = 0; u < units; u++) {
    if (!lines) {
      out[u] = (uint64_t)round << 32 | ll_data(round, u);
      continue;
    }
    for (int w = 0; w < LINE_WORDS - 1; w++) out[u * LINE_WORDS + (size_t)w] = line_data(round, u, w);
    out[u * LINE_WORDS + LINE_WORDS - 1] = round;
  }
}

/* Two passes that began after now: what is there has been looked at. */
static void reader_catches_up(const struct reader *r) {
  unsigned long from = atomic_load(&r->passes);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (atomic_load(&r->passes) < from + 2) {
    ENSURE(!rail_deadline_passed(deadline), "the reading thread gets no time");
    sched_yield();
  }
}

struct tear {
  struct kit_conn *conn;
  struct reader reader;
  uint8_t *out, *in;
  size_t size;
};

/* One round in messages of `part` bytes, up to 8 outstanding, as the steps of a FIFO. */
static void tear_round(struct tear *t, uint32_t round, size_t part) {
  struct kit_op ops[2 * STEPS];
  for (size_t at = 0; at < t->size;) {
    int n = 0;
    for (; n < STEPS && at < t->size; n++, at += part) {
      size_t len = t->size - at < part ? t->size - at : part;
      ops[2 * n] = kit_conn_recv(t->conn, t->in + at, len, 0);
      ops[2 * n + 1] = kit_conn_send(t->conn, t->out + at, len, 0);
    }
    kit_conn_run(t->conn, ops, 2 * n, KIT_OPS_OLDEST);
    ENSURE(atomic_load(&t->reader.torn) == 0, "round %u, messages of %zu bytes: %ld units had the new flag and old "
           "data, the first at byte %zu%s: NCCL's kernels take what the flag stands behind", round, part,
           atomic_load(&t->reader.torn), (atomic_load(&t->reader.where) - 1) * (t->reader.lines ? LINE : UNIT),
           t->reader.lines ? ", a while later still" : "");
  }
}

/* `offset` bytes into a page; rounds of `units`, each cut into messages of one random length below `longest`. */
static void polled(struct kit_process *self, bool lines, size_t units, size_t offset, size_t longest, int rounds) {
  static struct tear t;
  struct kit_conn conn;
  pthread_t thread = 0;
  kit_conn_open(&conn, self);
  size_t unit = lines ? LINE : UNIT, size = units * unit;
  memset(&t, 0, sizeof t);
  t = (struct tear){.conn = &conn, .size = size};
  t.out = kit_conn_low(&conn, size + offset) + offset;
  t.in = kit_conn_low(&conn, size + offset) + offset;
  t.reader.at = (_Atomic uint64_t *)(void *)t.in;
  t.reader.units = units;
  t.reader.lines = lines;
  atomic_store(&t.reader.round, 1);
  if (conn.receives) ENSURE(pthread_create(&thread, NULL, reader_main, &t.reader) == 0, "no thread for the reader");
  for (int round = 1; round <= rounds; round++) {
    fill((uint64_t *)(void *)t.out, units, lines, (uint32_t)round);
    atomic_store(&t.reader.round, (uint32_t)round);
    tear_round(&t, (uint32_t)round, (1 + kit_rng_below(&conn.rng, (uint32_t)(longest / unit))) * unit);
  }
  if (conn.receives) {
    reader_catches_up(&t.reader);
    atomic_store(&t.reader.over, true);
    pthread_join(thread, NULL);
    kit_metric(self, "units_seen", (double)atomic_load(&t.reader.seen), "");
    if (lines) kit_metric(self, "lines_late", (double)atomic_load(&t.reader.late), "");
    ENSURE(atomic_load(&t.reader.torn) == 0, "%ld units had the new flag and old data", atomic_load(&t.reader.torn));
    ENSURE(atomic_load(&t.reader.seen) > 0, "after the last round no unit holds its flag");
  }
  kit_conn_close(&conn);
}

static void ll(struct kit_process *self) { polled(self, false, 65536, 0, 524288, kit_scaled(150)); }
static void ll_short(struct kit_process *self) { polled(self, false, 2048, 1160, 1024, kit_scaled(100)); }
static void ll128(struct kit_process *self) { polled(self, true, 4096, 0, 524288, kit_scaled(150)); }
static void ll128_short(struct kit_process *self) { polled(self, true, 256, 1152, 4096, kit_scaled(100)); }
static void ll128_long(struct kit_process *self) { polled(self, true, 38400, 128, 4915200, kit_scaled(30)); }

#define NET "src/transport/net.cc:"
#define IB "src/transport/net_ib/p2p.cc:80-81, 116; src/device/prims_ll128.h"

const struct kit_check kit_checks_tear[] = {
    {"10.1", "tear.ll", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "Every aligned 8 bytes are written at once: LL's flag and data are one such unit.",
     .source = NET "1585-1589; " IB, .run = ll},
    {"10.2", "tear.ll_short", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "The same with messages of 8 to 1024 bytes that do not begin at a page or line.",
     .source = NET "1585-1589; " IB, .run = ll_short},
    {"10.3", "tear.ll128", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "When the last 8 of an aligned 128 bytes are new, LL128's flag, so are the rest.",
     .source = NET "1585-1589; " IB, .run = ll128},
    {"10.4", "tear.ll128_short", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "The same with messages of 1 to 32 lines that do not begin at a page.",
     .source = NET "1585-1589; " IB, .run = ll128_short},
    {"10.5", "tear.ll128_long", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "The same with messages of up to 4.9 MB: cut into pieces, they are cut between lines.",
     .source = NET "1585-1589; " IB, .run = ll128_long},
    {0},
};
