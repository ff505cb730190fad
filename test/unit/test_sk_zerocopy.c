/* SPDX-License-Identifier: Apache-2.0
 * The bookkeeping of calls whose pages the kernel still reads: ranges, any order, numbers that wrap, nonsense. */
#include "plugin/socket/sk_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include "test/harness/tap.h"

static void begin(struct sk_zerocopy *zc, uint32_t first, sk_completion *pending, uint32_t calls) {
  *zc = (struct sk_zerocopy){.from = SK_ZEROCOPY_MIN, .first = first, .next = first};
  for (uint32_t i = 0; i < calls; i++) {
    zc->calls[zc->next++ % SK_ZEROCOPY_CALLS] = &pending[i];
    atomic_store(&pending[i], 1);
  }
}

static const uint32_t starts[] = {0, 1, 63, 64, 0x7ffffff0u, UINT32_MAX - 1, UINT32_MAX - 30, UINT32_MAX};

TEST(one_by_one_and_ranges) {
  for (unsigned int k = 0; k < sizeof starts / sizeof starts[0]; k++) {
    struct sk_zerocopy zc;
    sk_completion pending[SK_ZEROCOPY_CALLS];
    uint32_t f = starts[k];
    begin(&zc, f, pending, SK_ZEROCOPY_CALLS);
    sk_zerocopy_finished(&zc, f, f);
    CHECK_INT(pending[0], 0);
    CHECK_INT(pending[1], 1);
    CHECK(zc.first == f + 1);
    sk_zerocopy_finished(&zc, f + 1, f + 40);
    for (uint32_t i = 1; i <= 40; i++) CHECK_INT(pending[i], 0);
    CHECK_INT(pending[41], 1);
    sk_zerocopy_finished(&zc, f + 41, f + SK_ZEROCOPY_CALLS - 1);
    CHECK(zc.first == zc.next);
    CHECK_INT(pending[SK_ZEROCOPY_CALLS - 1], 0);
  }
}

TEST(any_order) {
  for (unsigned int k = 0; k < sizeof starts / sizeof starts[0]; k++) {
    struct sk_zerocopy zc;
    sk_completion pending[20];
    uint32_t f = starts[k];
    begin(&zc, f, pending, 20);
    sk_zerocopy_finished(&zc, f + 5, f + 19);
    CHECK(zc.first == f); /* an older one is open: its place may not be used */
    CHECK_INT(pending[5], 0);
    CHECK_INT(pending[4], 1);
    sk_zerocopy_finished(&zc, f + 1, f + 4);
    CHECK(zc.first == f);
    sk_zerocopy_finished(&zc, f, f);
    CHECK(zc.first == f + 20 && zc.next == f + 20);
    for (int i = 0; i < 20; i++) CHECK_INT(pending[i], 0);
  }
}

/* Several calls for one send, and one notice twice: it is counted down once for each call. */
TEST(twice) {
  struct sk_zerocopy zc;
  sk_completion unused[1], send;
  begin(&zc, UINT32_MAX, unused, 0);
  for (int i = 0; i < 4; i++) zc.calls[zc.next++ % SK_ZEROCOPY_CALLS] = &send;
  atomic_store(&send, 5);
  sk_zerocopy_finished(&zc, 0, 1);
  sk_zerocopy_finished(&zc, 0, 1);
  CHECK_INT(send, 3);
  sk_zerocopy_finished(&zc, UINT32_MAX, UINT32_MAX);
  CHECK_INT(send, 2);
  sk_zerocopy_finished(&zc, UINT32_MAX, 2); /* begins with one that is over */
  CHECK_INT(send, 2);
  sk_zerocopy_finished(&zc, 2, 2);
  CHECK_INT(send, 1);
  CHECK(zc.first == zc.next);
}

TEST(numbers_that_were_not_given) {
  struct sk_zerocopy zc;
  sk_completion pending[3];
  begin(&zc, 100, pending, 3);
  static const uint32_t bad[][2] = {{99, 99},   {103, 103},      {100, 103}, {99, 102},
                                  {102, 100}, {0, UINT32_MAX}, {101, 4000}};
  for (unsigned int i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    sk_zerocopy_finished(&zc, bad[i][0], bad[i][1]);
    CHECK(zc.first == 100 && zc.next == 103);
    for (int k = 0; k < 3; k++) CHECK_INT(pending[k], 1);
  }
}

/* What is beyond the table is copied: the place of a call that is open is not used again. */
TEST(no_more_calls_than_the_table_holds) {
  struct sk_zerocopy zc;
  struct sk_stream s = {.zerocopy = &zc};
  sk_completion pending[SK_ZEROCOPY_CALLS];
  for (unsigned int k = 0; k < sizeof starts / sizeof starts[0]; k++) {
    begin(&zc, starts[k], pending, SK_ZEROCOPY_CALLS - 1);
    CHECK(sk_zerocopy_is_on(&s));
    begin(&zc, starts[k], pending, SK_ZEROCOPY_CALLS);
    CHECK(!sk_zerocopy_is_on(&s));
    sk_zerocopy_finished(&zc, starts[k], starts[k]);
    CHECK(sk_zerocopy_is_on(&s));
  }
}

/* Only calls that gave something to the kernel are waited for. (This socket copies, and does not say so.) */
TEST(a_call_that_wrote_nothing_is_not_waited_for) {
  static uint8_t payload[2 << 20];
  struct sk_traffic traffic = {0};
  struct sk_stream s;
  struct sk_zerocopy zc = {.from = SK_ZEROCOPY_MIN};
  sk_completion send = 1;
  uint64_t bytes = 0;
  int fd[2];
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd));
  CHECK_OK(sk_stream_init(&s, fd[0], 0, 4096, &traffic));
  s.zerocopy = &zc;
  memset(sk_stream_queue(&s, SK_HEAD, payload, sizeof payload, &send), 0, SK_HEAD);
  while (sk_stream_flush(&s, &bytes) == RAIL_OK) continue;
  uint32_t calls = zc.next;
  CHECK(calls > 0 && bytes < sizeof payload);
  for (int i = 0; i < 5; i++) CHECK_INT(sk_stream_flush(&s, &bytes), RAIL_IN_PROGRESS); /* it is full */
  CHECK_INT(zc.next, calls);
  CHECK_INT(send, 1 + calls);
  s.zerocopy = NULL; /* it is not on the heap */
  sk_stream_destroy(&s);
  close(fd[1]);
}

TEST_MAIN(TEST_CASE(one_by_one_and_ranges), TEST_CASE(any_order), TEST_CASE(twice),
          TEST_CASE(numbers_that_were_not_given), TEST_CASE(no_more_calls_than_the_table_holds),
          TEST_CASE(a_call_that_wrote_nothing_is_not_waited_for))
