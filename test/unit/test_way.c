/* SPDX-License-Identifier: Apache-2.0
 * Proves: which ways two ranks have to each other's GPU memory, and what an offer may say of its size. */
#include "core/gpu/rt_way.h"

#include "core/comm/rt_comm.h"
#include "test/harness/tap.h"

enum { PAGE = 4096, MIB = 1 << 20 };

static bool fits(uint32_t granularity, uint64_t size, size_t wanted) {
  const struct rt_way_to to = {.way = RT_WAY_FD, .granularity = granularity};
  return rt_way_size_fits(&to, size, wanted);
}

TEST(sizes) {
  CHECK(fits(PAGE, PAGE, 1));
  CHECK(fits(PAGE, 2 * PAGE, PAGE + 1));
  CHECK(fits(2 * MIB, 2 * MIB, 500));
  CHECK(fits(2 * MIB, 6 * MIB, 4 * MIB + 1));
  CHECK(fits(1u << 30, 1u << 30, MIB));
}

TEST(sizes_that_cannot_be) {
  CHECK(!fits(0, 0, 500));
  CHECK(!fits(0, 500, 500));
  CHECK(!fits(1, 500, 500));               /* less than a page */
  CHECK(!fits(3 * PAGE, 3 * PAGE, 500));   /* no power of 2 */
  CHECK(!fits(2u << 30, 2ull << 30, 500)); /* no device has such */
  CHECK(!fits(2 * MIB, 4 * MIB, 500));
  CHECK(!fits(2 * MIB, 2 * MIB, 2 * MIB + 1));
  CHECK(!fits(2 * MIB, MIB, 500));
  CHECK(!fits(PAGE, UINT64_MAX, 500));
}

/* Ways of rank 0 towards rank 1. */
static uint32_t ways(uint32_t mine, uint32_t theirs, bool one_process) {
  struct rt_peer peers[2] = {{.pid = 100, .ways = mine}, {.pid = one_process ? 100 : 101, .ways = theirs}};
  static struct ncclComm comm;
  comm.peers = peers;
  const uint32_t both = rt_ways_to(&comm, &peers[1]);
  comm.peers = NULL;
  return both;
}

TEST(ways_that_both_have) {
  const uint32_t fd = RT_WAY_BIT(RT_WAY_FD), ipc = RT_WAY_BIT(RT_WAY_IPC), fabric = RT_WAY_BIT(RT_WAY_FABRIC);
  const uint32_t mapped = RT_WAY_BIT(RT_WAY_MAPPED), plain = RT_WAY_BIT(RT_WAY_PLAIN);
  CHECK_INT(ways(fd | ipc | mapped | plain, fabric | fd | ipc | mapped | plain, false), fd | ipc);
  CHECK_INT(ways(fd | ipc | mapped | plain, ipc | plain, false), ipc);
  CHECK_INT(ways(~0u, ~0u, false), fabric | fd | ipc);
  CHECK_INT(ways(~0u, ~0u, true), mapped | plain);
  CHECK_INT(ways(ipc | plain, ~0u, true), plain);
  CHECK_INT(ways(0, ~0u, false), 0);
}

TEST(every_way_has_a_name) {
  for (uint32_t way = RT_WAY_FABRIC; way < RT_WAYS; way++) CHECK(strcmp(rt_way_text(way), rt_way_text(0)) != 0);
  CHECK_STR(rt_way_text(RT_WAYS), "an unknown way");
  CHECK_STR(rt_way_text(UINT32_MAX), "an unknown way");
}

TEST_MAIN(TEST_CASE(sizes), TEST_CASE(sizes_that_cannot_be), TEST_CASE(ways_that_both_have),
          TEST_CASE(every_way_has_a_name))
