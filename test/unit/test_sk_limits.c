/* SPDX-License-Identifier: Apache-2.0
 * What bounds the handshake: files, and time.
 * TEST-SAN: asan tsan */
#include <sys/resource.h>

#include "test/unit/sk_handshake.h"

static void poll_unlocked(void *acceptor) {
  struct sk_acceptor *a = acceptor;
  pthread_mutex_lock(&a->lock);
  CHECK_OK(sk_acceptor_poll(a));
  pthread_mutex_unlock(&a->lock);
}

/* Sends the first HELLO of a comm of 16 streams, until the acceptor has it. False: it is refused, as busy. */
static bool begin_comm(const struct hs *h, uint8_t number, unsigned int *have, int *fd) {
  const struct sk_limits limits = {.eager_bytes = SK_MAX_EAGER_BYTES};
  struct sk_acceptor *a = h->listen->acceptor;
  const struct sk_half_open_comm *p;
  struct sk_hello_bytes w =
    sk_make_hello(&h->decoded, (struct rail_hello){.streams = SK_MAX_STREAMS, .comm_id = {number}}, limits, 0);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  char byte;
  *fd = hs_client(h, 0, &w);
  while (recv(*fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
    unsigned int n = 0;
    poll_unlocked(a);
    TAILQ_FOREACH(p, &a->half_open, next) n++;
    if (n > *have) {
      *have = n;
      return true;
    }
    ENSURE(!rail_deadline_passed(deadline), "the acceptor reads no HELLO");
  }
  CHECK_INT(hs_reason(*fd, poll_unlocked, a), RAIL_REASON_BUSY);
  return false;
}

/* Peers that know the secret and begin comm after comm get half of the files of the process, all together. Each
 * listener has room for one comm, whatever the others have. */
TEST(half_open_comms_leave_files) {
  enum { FILES = 256, MOST = FILES / 2 / SK_MAX_STREAMS };
  struct rlimit before;
  struct hs h[2];
  int fds[MOST + 1], fd;
  unsigned int have[2] = {0, 0};
  ENSURE(getrlimit(RLIMIT_NOFILE, &before) == 0, "getrlimit failed");
  const struct rlimit few = {.rlim_cur = FILES, .rlim_max = before.rlim_max};
  ENSURE(setrlimit(RLIMIT_NOFILE, &few) == 0, "setrlimit failed");
  for (int i = 0; i < 2; i++) {
    hs_begin(&h[i]);
    sk_params.streams = SK_MAX_STREAMS;
    hs_listen(&h[i], DEV_A);
  }
  for (uint8_t i = 0; i < MOST; i++) ENSURE(begin_comm(&h[0], i, &have[0], &fds[i]), "comm %u is refused", i);
  CHECK(!begin_comm(&h[0], MOST, &have[0], &fd));
  CHECK_MSG(strstr(log_lines, "too many half-open connections in this process, 128 sockets of at most 128 (half "
                   "of the files it may open, and 16384); if they are this job's, raise ulimit -n"), "%s", log_lines);
  CHECK(begin_comm(&h[1], 0, &have[1], &fds[MOST]));
  CHECK(!begin_comm(&h[1], 1, &have[1], &fd));
  hs_close_listen(&h[0]); /* which gives all of theirs back */
  CHECK(begin_comm(&h[1], 1, &have[1], &fd));
  rail_sock_close(&fd);
  for (int i = 0; i <= MOST; i++) rail_sock_close(&fds[i]);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  hs_end(&h[1]);
  hs_end(&h[0]);
}

/* Time in which this process is stopped is no time in which the peer does not answer: a second of it counts. */
TEST(connect_after_a_stop) {
  enum { LIMIT_MS = 2500 };
  struct hs h;
  void *comm = NULL;
  hs_begin(&h);
  sk_params.connect_ms = LIMIT_MS;
  hs_listen(&h, DEV_A);
  hs_close_listen(&h);
  CHECK(!hs_connect_step(&h, DEV_A));
  usleep((LIMIT_MS + 100) * 1000);
  CHECK(!hs_connect_step(&h, DEV_A));
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  rail_result_t result;
  while ((result = sk_connect(h.ctx, DEV_A, h.handle, -1, &comm, NULL)) == RAIL_OK) {
    CHECK(!comm && !rail_deadline_passed(deadline));
    usleep(1000);
  }
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK(strstr(log_lines, "no connection within 2500 ms (RAIL_SOCKET_CONNECT_TIMEOUT): Connection refused"));
  hs_end(&h);
}

/* 0: refused connections are retried until the listener is there. */
TEST(connect_without_a_limit) {
  struct hs h;
  hs_begin(&h);
  sk_params.connect_ms = 0;
  hs_listen(&h, DEV_A);
  hs_close_listen(&h);
  uint64_t until = rail_deadline_in_ms(100);
  while (!rail_deadline_passed(until)) CHECK(!hs_connect_step(&h, DEV_A));
  hs_end(&h);
}

TEST_MAIN(TEST_CASE(half_open_comms_leave_files), TEST_CASE(connect_after_a_stop), TEST_CASE(connect_without_a_limit))
