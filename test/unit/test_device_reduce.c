/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's reduceCopy on the CPU executor: every case of test/device/cases.c, some of bulk.c.
 */
#include "core/host/rt_reduce_copy.h"
#include "test/device/bulk.h"
#include "test/device/cases.h"
#include "test/device/emu.h"
#include "test/harness/tap.h"

static _Alignas(128) char memory[BULK_MEMORY]; /* no less than CASES_MEMORY */

static bool copy(char *to, const char *from, size_t n) {
  memcpy(to, from, n);
  return true;
}

static const struct cases_machine machine = {
  .memory = memory,
  .write = copy,
  .read = copy,
  .reduce_copy = emu_reduce_copy,
};

/* Threads that write what another reads do so in few cases, too. */
#ifdef __SANITIZE_THREAD__
#define FEW true
#else
#define FEW false
#endif

static void run_type(int type) {
  char why[500];
  for (int op = 0; op < RT_OP_COUNT; op++)
    CHECK_MSG(cases_run(&machine, type, op, FEW, why, sizeof why) > 0, "%s", why);
}

#define TYPE_TEST(T, value, size, text) TEST(T) { run_type(RT_##T); }
RT_TYPE_LIST(TYPE_TEST)

/* As many sources and destinations as there can be, and one more. */
TEST(eight_to_eight) {
  struct rt_reduce_copy w = {
      .count = 100, .type = RT_UINT32, .op = RT_SUM, .nsrc = RT_REDUCE_COPY_MAX, .ndst = RT_REDUCE_COPY_MAX};
  uint32_t *word = (uint32_t *)(void *)memory;
  for (int i = 0; i < RT_REDUCE_COPY_MAX; i++) {
    w.src[i] = memory + 400 * i;
    w.dst[i] = memory + 400 * (RT_REDUCE_COPY_MAX + i);
  }
  for (uint32_t i = 0; i < 100 * RT_REDUCE_COPY_MAX; i++) word[i] = i;
  CHECK(emu_reduce_copy(&w, 2, 2));
  for (uint32_t d = RT_REDUCE_COPY_MAX; d < 2 * RT_REDUCE_COPY_MAX; d++)
    for (uint32_t i = 0; i < 100; i++) CHECK_INT(word[100 * d + i], RT_REDUCE_COPY_MAX * i + 100 * 28);
  w.nsrc = RT_REDUCE_COPY_MAX + 1;
  CHECK(!emu_reduce_copy(&w, 1, 1));
}

/* Of numbers that are no type and no operation nothing is launched. */
TEST(unknown_numbers) {
  struct rt_reduce_copy w = {.count = 1, .nsrc = 2, .ndst = 1, .src = {memory, memory}, .dst = {memory}};
  w.type = RT_TYPE_COUNT;
  CHECK(!emu_reduce_copy(&w, 1, 1));
  w.type = RT_INT8;
  w.op = RT_OP_COUNT;
  CHECK(!emu_reduce_copy(&w, 1, 1));
}

TEST(bulk) {
  char why[500];
  for (int type = 0; type < RT_TYPE_COUNT; type++)
    CHECK_MSG(bulk_run(&machine, type, 3, true, why, sizeof why) > 0, "%s", why);
}

#define TYPE_CASE(T, value, size, text) TEST_CASE(T),
TEST_MAIN(RT_TYPE_LIST(TYPE_CASE) TEST_CASE(bulk), TEST_CASE(eight_to_eight), TEST_CASE(unknown_numbers))
