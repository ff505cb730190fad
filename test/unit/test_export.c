/* SPDX-License-Identifier: Apache-2.0
 * Proves: by which types two ranks can share GPU memory, and which sizes a record may have. */
#include "core/gpu/rt_export.h"

#include "core/comm/rt_comm.h"
#include "test/harness/tap.h"

enum { PAGE = 4096, MIB = 1 << 20 };

static bool fits(uint32_t granularity, uint64_t size, size_t wanted) {
  const struct rt_export_record record = {.type = RT_EXPORT_FD, .granularity = granularity, .size = size};
  return rt_export_size_fits(&record, wanted);
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

/* Types of rank 0 towards rank 1. */
static uint32_t types(uint32_t mine, uint32_t theirs, bool one_process) {
  struct rt_peer peers[2] = {{.pid = 100, .export_types = mine},
                             {.pid = one_process ? 100 : 101, .export_types = theirs}};
  static struct ncclComm comm;
  comm.peers = peers;
  const uint32_t both = rt_export_types(&comm, &peers[1]);
  comm.peers = NULL;
  return both;
}

TEST(types_that_both_have) {
  const uint32_t fd = RT_EXPORT_BIT(RT_EXPORT_FD), ipc = RT_EXPORT_BIT(RT_EXPORT_IPC),
                 fabric = RT_EXPORT_BIT(RT_EXPORT_FABRIC);
  const uint32_t mapped = RT_EXPORT_BIT(RT_EXPORT_MAPPED), plain = RT_EXPORT_BIT(RT_EXPORT_PLAIN);
  CHECK_INT(types(fd | ipc | mapped | plain, fabric | fd | ipc | mapped | plain, false), fd | ipc);
  CHECK_INT(types(fd | ipc | mapped | plain, ipc | plain, false), ipc);
  CHECK_INT(types(~0u, ~0u, false), fabric | fd | ipc);
  CHECK_INT(types(~0u, ~0u, true), mapped | plain);
  CHECK_INT(types(ipc | plain, ~0u, true), plain);
  CHECK_INT(types(0, ~0u, false), 0);
}

TEST(every_type_has_a_name) {
  for (uint32_t type = RT_EXPORT_FABRIC; type < RT_EXPORT_TYPES; type++)
    CHECK(strcmp(rt_export_text(type), rt_export_text(0)) != 0);
  CHECK_STR(rt_export_text(RT_EXPORT_TYPES), "an unknown type");
  CHECK_STR(rt_export_text(UINT32_MAX), "an unknown type");
}

TEST_MAIN(TEST_CASE(sizes), TEST_CASE(sizes_that_cannot_be), TEST_CASE(types_that_both_have),
          TEST_CASE(every_type_has_a_name))
