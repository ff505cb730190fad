/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's FIFO and its protocols on the CPU executor: a producer block and
 * a consumer block, each thread a real one. Under the thread sanitizer every
 * access that no barrier, counter or flag orders is a failure.
 */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "core/host/rt_prims.h"
#include "test/device/emu.h"
#include "test/harness/tap.h"

#define SLOT 1024u
#define MAX_STEPS 40u
#define WARPS 32u /* threads */

static _Alignas(128) char buff[RT_STEPS * SLOT];
static struct rt_slot slots[RT_STEPS];
static uint64_t tail, credit;
static uint32_t aborted, gave_up[2];
static char src[MAX_STEPS * SLOT], dst[MAX_STEPS * SLOT + 64];

static uint64_t most_of(int proto) {
  switch (proto) {
    case RT_LL: return SLOT / RT_LL_LINE * RT_LL_PAYLOAD;
    case FIFO_LL128: return SLOT / 128 * 120;
    default: return SLOT;
  }
}

static struct fifo_pair pair_of(int proto, unsigned roles, uint64_t first, uint64_t steps) {
  memset(buff, first >> 31 ? 0xee : 0, sizeof buff); /* after so many steps every line has been written */
  memset(dst, 0x55, sizeof dst);
  for (size_t i = 0; i < sizeof src; i++) src[i] = (char)(i * 7 + i / 251 + 1);
  tail = first;
  credit = first + RT_STEPS;
  aborted = 0;
  gave_up[0] = gave_up[1] = 9;
  return (struct fifo_pair){
    .proto = proto, .roles = roles, .buff = buff, .slot_size = SLOT, .slot = slots, .tail = &tail, .credit = &credit,
    .abort = &aborted, .gave_up = gave_up, .src = src, .dst = dst, .first = first, .steps = steps,
    .most = most_of(proto),
  };
}

/* Blocks that wait for data that never comes get the abort flag; if they do not return then, the program ends. */
#define TOO_LONG 15 /* seconds */
static void on_alarm(int signal) {
  static const char hang[] = "Bail out! A block waits although it was aborted\n";
  (void)signal;
  if (__atomic_exchange_n(&aborted, 1, __ATOMIC_RELAXED) == 0) {
    alarm(TOO_LONG);
    return;
  }
  if (write(STDOUT_FILENO, hang, sizeof hang - 1) < 0) _exit(3);
  _exit(2);
}

static void run_pair(const struct fifo_pair *p, unsigned threads) {
  signal(SIGALRM, on_alarm);
  alarm(TOO_LONG);
  emu_fifo_pair(p, threads);
  alarm(0);
}

static uint64_t bytes_before(const struct fifo_pair *p, uint64_t steps) {
  uint64_t n = 0;
  for (uint64_t s = 0; s < steps; s++) n += fifo_pair_bytes(p, p->first + s);
  return n;
}

static void check_dst(const struct fifo_pair *p) {
  const uint64_t n = bytes_before(p, p->steps);
  for (uint64_t i = 0; i < n; i++)
    CHECK_MSG(dst[i] == src[i], "byte %d of %d is %d, expected %d", (int)i, (int)n, dst[i], src[i]);
  for (uint64_t i = n; i < n + 64; i++) CHECK_INT(dst[i], 0x55);
}

static void pass(int proto, unsigned threads, uint64_t first, uint64_t steps) {
  const struct fifo_pair p = pair_of(proto, FIFO_PRODUCER | FIFO_CONSUMER, first, steps);
  run_pair(&p, threads);
  CHECK_INT(gave_up[0], 0);
  CHECK_INT(gave_up[1], 0);
  CHECK_INT(tail, first + steps);
  CHECK_INT(credit, first + steps + RT_STEPS);
  check_dst(&p);
}

TEST(executor) { CHECK_INT(emu_self_check(), 0); }

TEST(simple) { pass(RT_SIMPLE, WARPS, 0, MAX_STEPS); }
TEST(simple_few_threads) {
  pass(RT_SIMPLE, 1, 1000, MAX_STEPS);
  pass(RT_SIMPLE, 5, 77, MAX_STEPS);
}

TEST(ll) { pass(RT_LL, WARPS, 0, MAX_STEPS); }
TEST(ll_few_threads) {
  pass(RT_LL, 1, 1000, MAX_STEPS);
  pass(RT_LL, 5, 77, MAX_STEPS);
}
/* Slots are written to their end for a round. */
TEST(ll_clean) {
  const uint64_t first = RT_LL_CLEAN_MASK - 4, steps = 4 + RT_STEPS;
  pass(RT_LL, 4, first, steps);
  for (uint64_t s = RT_LL_CLEAN_MASK; s < first + steps; s++)
    CHECK_INT(rt_ll_arrived(buff + s % RT_STEPS * SLOT, 0, SLOT / RT_LL_LINE, rt_ll_flag(s)), SLOT / RT_LL_LINE);
}
TEST(ll_flag_wraps) { pass(RT_LL, 4, ((uint64_t)1 << 32) - 5, 10); }

TEST(ll128) { pass(FIFO_LL128, WARPS, 0, MAX_STEPS); }
TEST(ll128_two_warps) {
  const uint64_t first = 5000000000u, steps = 10;
  pass(FIFO_LL128, 2 * WARPS, first, steps);
  for (uint64_t s = first + steps - RT_STEPS; s < first + steps; s++) {
    const uint64_t *line = (const uint64_t *)(const void *)(buff + s % RT_STEPS * SLOT);
    CHECK_INT(line[15], s + 1); /* all 64 bits of it */
  }
}

/* ---- what the host's kernels write and read ---- */

TEST(ll_from_host) {
  const struct fifo_pair p = pair_of(RT_LL, FIFO_CONSUMER, 16, RT_STEPS);
  for (uint64_t s = 0; s < RT_STEPS; s++) {
    const uint64_t bytes = fifo_pair_bytes(&p, 16 + s), lines = (bytes + RT_LL_PAYLOAD - 1) / RT_LL_PAYLOAD;
    rt_ll_pack(buff + s * SLOT, src + bytes_before(&p, s), bytes, lines ? lines : 1, rt_ll_flag(16 + s));
  }
  run_pair(&p, 5);
  CHECK_INT(gave_up[1], 0);
  check_dst(&p);
}

TEST(ll_to_host) {
  const struct fifo_pair p = pair_of(RT_LL, FIFO_PRODUCER, 16, RT_STEPS);
  run_pair(&p, 5);
  CHECK_INT(gave_up[0], 0);
  for (uint64_t s = 0; s < RT_STEPS; s++) {
    const uint64_t bytes = fifo_pair_bytes(&p, 16 + s), lines = slots[s].bytes / RT_LL_LINE;
    CHECK_INT(slots[s].proto, RT_LL);
    CHECK_INT(rt_ll_arrived(buff + s * SLOT, 0, lines, rt_ll_flag(16 + s)), lines);
    rt_ll_unpack(dst + bytes_before(&p, s), buff + s * SLOT, bytes);
  }
  check_dst(&p);
}

/* Of each line first only a half, the first and the second in turn: the consumer waits for the other. */
static void *other_halves(void *arg) {
  const struct fifo_pair *p = arg;
  usleep(20000);
  for (uint64_t i = 0; i < sizeof buff / RT_LL_LINE; i++) {
    uint64_t *half = (uint64_t *)(void *)(buff + i * RT_LL_LINE) + (i + 1) % 2;
    const uint64_t step = p->first + i / (SLOT / RT_LL_LINE);
    __atomic_store_n(half, (uint64_t)rt_ll_flag(step) << 32 | (uint32_t)~*half, __ATOMIC_RELAXED);
  }
  return NULL;
}

TEST(ll_half_lines) {
  struct fifo_pair p = pair_of(RT_LL, FIFO_CONSUMER, 16, RT_STEPS);
  pthread_t other;
  for (uint64_t s = 0; s < RT_STEPS; s++) {
    char *slot = buff + s * SLOT;
    const uint64_t bytes = fifo_pair_bytes(&p, 16 + s);
    rt_ll_pack(slot, src + bytes_before(&p, s), bytes, SLOT / RT_LL_LINE, rt_ll_flag(16 + s));
    for (uint64_t i = 0; i < SLOT / RT_LL_LINE; i++) { /* not yet: other data, no flag */
      uint64_t *half = (uint64_t *)(void *)(slot + i * RT_LL_LINE) + (i + 1) % 2;
      *half = (uint32_t)~*half;
    }
  }
  CHECK_OK(pthread_create(&other, NULL, other_halves, &p));
  run_pair(&p, 5);
  CHECK_OK(pthread_join(other, NULL));
  CHECK_INT(gave_up[1], 0);
  check_dst(&p);
}

/* ---- abort: every wait ends ---- */

static void *set_abort(void *arg) {
  (void)arg;
  usleep(20000);
  __atomic_store_n(&aborted, 1, __ATOMIC_RELAXED);
  return NULL;
}

static void abandon(int proto, unsigned role) {
  const struct fifo_pair p = pair_of(proto, role, 0, MAX_STEPS);
  pthread_t other;
  CHECK_OK(pthread_create(&other, NULL, set_abort, NULL));
  run_pair(&p, WARPS);
  CHECK_OK(pthread_join(other, NULL));
  CHECK_INT(gave_up[role == FIFO_PRODUCER ? 0 : 1], 1);
  /* A producer had 8 slots. */
  CHECK_INT(tail, role == FIFO_PRODUCER ? RT_STEPS : 0);
  CHECK_INT(credit, RT_STEPS);
}

TEST(abort_producer) {
  abandon(RT_SIMPLE, FIFO_PRODUCER);
  abandon(RT_LL, FIFO_PRODUCER);
  abandon(FIFO_LL128, FIFO_PRODUCER);
}
TEST(abort_simple_consumer) { abandon(RT_SIMPLE, FIFO_CONSUMER); }
TEST(abort_ll_consumer) { abandon(RT_LL, FIFO_CONSUMER); }
TEST(abort_ll128_consumer) { abandon(FIFO_LL128, FIFO_CONSUMER); }

TEST_MAIN(TEST_CASE(executor), TEST_CASE(simple), TEST_CASE(simple_few_threads), TEST_CASE(ll),
          TEST_CASE(ll_few_threads), TEST_CASE(ll_clean), TEST_CASE(ll_flag_wraps), TEST_CASE(ll128),
          TEST_CASE(ll128_two_warps), TEST_CASE(ll_from_host), TEST_CASE(ll_to_host), TEST_CASE(ll_half_lines),
          TEST_CASE(abort_producer), TEST_CASE(abort_simple_consumer), TEST_CASE(abort_ll_consumer),
          TEST_CASE(abort_ll128_consumer))
