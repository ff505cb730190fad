/* SPDX-License-Identifier: Apache-2.0
 * An acceptor that cannot send its answer on one of two streams.
 * TEST-SAN: asan */
#include <errno.h>
#include <sys/syscall.h>

#include "test/unit/sk_at_acceptor.h"

/* The answer of that number, counted from 1 down, does not leave. */
static int answer_that_fails;

ssize_t send(int fd, const void *data, size_t size, int flags) {
  if (size == rail_answer_size(&sk_protocol) && answer_that_fails && --answer_that_fails == 0) {
    errno = ECONNRESET;
    return -1;
  }
  return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
}

/* With FAILOVER that stream is lost, be it the first, and the connection goes on. */
TEST(one_that_fails_with_failover) {
  for (unsigned int lost = 0; lost < 2; lost++) {
    struct data d;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
    struct sk_acceptor *acceptor = data_begin_at_acceptor(&d, SK_FEATURE_FAILOVER);
    data_create(&d);
    (void)have_all(acceptor);
    (void)isend(&d, 0, 8, 0);
    answer_that_fails = 1 + (int)lost;
    struct sk_accepted_comm *accepted = accept_at(&d, acceptor);
    while (d.comm->paths[lost].state == SK_PATH_UP) {
      CHECK_OK(data_turn(&d));
      CHECK_MSG(!rail_deadline_passed(deadline), "the stream is not given up: %s", log_lines);
    }
    data_settle(&d);
    data_expect(&d, 1 - lost, SK_FRAME_MSG, 0, 8);
    data_close(&d);
    sk_accepted_free(accepted);
    sk_acceptor_close(acceptor);
  }
}

/* Without FAILOVER there is no connection, and the sender learns it at once: from the stream that had its answer, the
 * first, that no HELLO would be read again. */
TEST(a_second_that_fails_without_failover) {
  struct data d;
  struct sk_acceptor *acceptor = data_begin_at_acceptor(&d, 0);
  data_create(&d);
  (void)have_all(acceptor);
  void *request = isend(&d, 0, 8, 0);
  answer_that_fails = 2;
  CHECK(!sk_acceptor_take(acceptor));
  CHECK(TAILQ_EMPTY(&acceptor->half_open));
  CHECK_MSG(log_said("it went away before it was accepted"), "it said: %s", log_lines);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("stream 1 was cut"), "it said: %s", log_lines);
  data_close(&d);
  sk_acceptor_close(acceptor);
}

/* None was answered: all say HELLO again, and the connection comes about. */
TEST(a_first_that_fails_without_failover) {
  struct data d;
  struct sk_acceptor *acceptor = data_begin_at_acceptor(&d, 0);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  struct sk_half_open_comm *p = NULL;
  data_create(&d);
  (void)have_all(acceptor);
  (void)isend(&d, 0, 8, 0);
  answer_that_fails = 1;
  CHECK(!sk_acceptor_take(acceptor));
  while (!(p = sk_acceptor_take(acceptor))) {
    CHECK_OK(data_turn(&d));
    CHECK_OK(sk_acceptor_poll(acceptor));
    CHECK_MSG(!rail_deadline_passed(deadline), "HELLO does not go again: %s", log_lines);
  }
  for (int i = 0; i < 2; i++) {
    d.ends[i] = p->streams[i].fd;
    p->streams[i].fd = -1;
  }
  sk_half_open_free(p);
  data_expect(&d, 0, SK_FRAME_MSG, 0, 8);
  data_close(&d);
  sk_acceptor_close(acceptor);
}

TEST_MAIN(TEST_CASE(one_that_fails_with_failover), TEST_CASE(a_second_that_fails_without_failover),
          TEST_CASE(a_first_that_fails_without_failover))
