/* SPDX-License-Identifier: Apache-2.0
 * NCCL's LL and LL128 protocols: a reader that polls the destination and trusts its flags never sees torn data.
 * TEST-LIMIT: 60
 * TEST-SAN: none
 *
 * LL stores {data32, flag32} as one 8-byte unit and LL128 120 bytes of data
 * and an 8-byte flag as one line. The reader takes a unit as soon as its flag
 * is the expected one; then all the data before the flag must be the new one.
 * The reader here runs while the receive is in flight. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "common/clock.h"
#include "test/harness/program.h"

enum { LL_UNITS = 65536, LL128_LINES = 4096, LINE_WORDS = 16 };

static uint32_t ll_data(uint32_t flag, uint32_t unit) { return (flag * 2654435761u) ^ (unit * 40503u + 1); }

struct reader {
  _Atomic uint64_t *at;
  size_t units;
  bool lines; /* LL128 */
  atomic_uint round;
  atomic_bool over;
  atomic_long torn, seen;
};

static uint64_t line_data(uint32_t round, size_t line, int word) {
  return (uint64_t)round << 32 | (line * LINE_WORDS + (size_t)word);
}

/* One pass over the destination: a unit whose flag is of round r must hold round r's data. */
static void look(struct reader *r) {
  long torn = 0, seen = 0;
  uint32_t round = atomic_load(&r->round);
  for (size_t u = 0; u < r->units; u++) {
    if (!r->lines) {
      uint64_t v = atomic_load_explicit(&r->at[u], memory_order_acquire);
      uint32_t flag = (uint32_t)(v >> 32);
      if (flag != round) continue;
      seen++;
      torn += (uint32_t)v != ll_data(flag, (uint32_t)u);
    } else {
      _Atomic uint64_t *line = r->at + u * LINE_WORDS;
      if (atomic_load_explicit(&line[LINE_WORDS - 1], memory_order_acquire) != round) continue;
      seen++;
      for (int w = 0; w < LINE_WORDS - 1; w++)
        torn += atomic_load_explicit(&line[w], memory_order_relaxed) != line_data(round, u, w);
    }
  }
  atomic_fetch_add(&r->seen, seen);
  if (atomic_load(&r->round) == round) atomic_fetch_add(&r->torn, torn);
}

static void *reader_main(void *arg) {
  struct reader *r = arg;
  while (!atomic_load(&r->over)) look(r);
  return NULL;
}

static void fill(uint64_t *out, size_t units, bool lines, uint32_t round) {
  for (size_t u = 0; u < units; u++) {
    if (!lines) {
      out[u] = (uint64_t)round << 32 | ll_data(round, (uint32_t)u);
      continue;
    }
    for (int w = 0; w < LINE_WORDS - 1; w++) out[u * LINE_WORDS + (size_t)w] = line_data(round, u, w);
    out[u * LINE_WORDS + LINE_WORDS - 1] = round;
  }
}

static void polled_while_received(bool lines, size_t units, int rounds) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_rng_start(&rng);
  size_t words = lines ? units * LINE_WORDS : units, size = words * 8;
  uint64_t *out = aligned_alloc(4096, size);
  _Atomic uint64_t *in = aligned_alloc(4096, size);
  CHECK(out && in);
  memset((void *)in, 0, size);
  struct reader r = {.at = in, .units = units, .lines = lines, .round = 1};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, reader_main, &r) == 0);
  const char *failure = NULL;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  /* On a busy machine the reader may get its first turn late: no end before it has seen something. */
  for (int round = 1; (round <= rounds || !atomic_load(&r.seen)) && !failure; round++) {
    size_t unit = lines ? 128 : 8, part = size / (1 + kit_rng_below(&rng, 8)) / unit * unit;
    fill(out, units, lines, (uint32_t)round);
    atomic_store(&r.round, (uint32_t)round);
    for (size_t at = 0; at < size && !failure; at += part) { /* in several messages, as steps of a FIFO */
      size_t len = size - at < part ? size - at : part;
      struct kit_op recv = kit_op_recv(p.recv, (uint8_t *)(uintptr_t)in + at, len, 0);
      struct kit_op send = kit_op_send(p.send, (uint8_t *)out + at, len, 0);
      while ((!recv.done || !send.done) && !failure) { /* no CHECK here: the reader must be joined first */
        if (!recv.done) recv.req ? kit_op_test(&n, &recv) : kit_op_post(&n, &recv);
        if (!send.done) send.req ? kit_op_test(&n, &send) : kit_op_post(&n, &send);
        if (recv.error || send.error) failure = "a transfer failed";
        if (rail_deadline_passed(deadline)) failure = "not done at the deadline";
      }
    }
  }
  atomic_store(&r.over, true);
  pthread_join(thread, NULL);
  CHECK_MSG(!failure, "%s", failure);
  printf("# %ld units seen in time, %ld torn\n", atomic_load(&r.seen), atomic_load(&r.torn));
  CHECK_MSG(atomic_load(&r.seen) > 0, "the reader saw nothing");
  CHECK_INT(atomic_load(&r.torn), 0);
  free(out);
  free((void *)in);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(ll) { polled_while_received(false, LL_UNITS, kit_scaled(600)); }
TEST(ll128) { polled_while_received(true, LL128_LINES, kit_scaled(600)); }

TEST_MAIN(TEST_CASE(ll), TEST_CASE(ll128))
