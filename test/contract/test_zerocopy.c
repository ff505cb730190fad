/* SPDX-License-Identifier: Apache-2.0
 * Sends whose pages the kernel reads: a send is done only when it is through with them, whatever ends it.
 *
 * Loopback copies, and says so; to stay in the way of a real device the program takes that word out of the kernel's
 * notices, which it also can hold back, and refuses calls as a full kernel does. For that it stands before the C
 * library's sendmsg and recvmsg.
 * TEST-LIMIT: 120 */
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/errqueue.h> /* which needs struct timespec */

#include "common/base/clock.h"
#include "test/harness/program.h"

#define LARGE (3u << 20) /* more than the peer's window, less than the socket's buffer can grow to */
#define MARK 0xd1        /* what buffers are overwritten with: not in the pattern's first bytes by chance alone */

static atomic_int zero_calls, notices, refuse_every, notices_held, copied_hidden;

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *msg, int flags) {
  if (flags & MSG_ZEROCOPY) {
    int n = atomic_fetch_add(&zero_calls, 1) + 1, every = refuse_every;
    if (every && n % every == 0) {
      errno = ENOBUFS;
      return -1;
    }
  }
  return syscall(SYS_sendmsg, fd, msg, flags);
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *msg, int flags) {
  if ((flags & MSG_ERRQUEUE) && notices_held) {
    errno = EAGAIN;
    return -1;
  }
  ssize_t n = syscall(SYS_recvmsg, fd, msg, flags);
  if (n < 0 || !(flags & MSG_ERRQUEUE)) return n;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
    struct sock_extended_err e;
    memcpy(&e, CMSG_DATA(c), sizeof e);
    if (e.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    notices++;
    if (copied_hidden) e.ee_code = 0;
    memcpy(CMSG_DATA(c), &e, sizeof e);
  }
  return n;
}

static void open_with(struct kit_net *n, struct kit_pair *p, const char *zerocopy, const char *streams) {
  setenv("RAIL_SOCKET_ZEROCOPY", zerocopy, 1);
  setenv("RAIL_SOCKET_STREAMS", streams, 1);
  zero_calls = notices = refuse_every = notices_held = copied_hidden = 0;
  kit_net_open(n);
  kit_pair_open(n, p);
}

static void close_both(struct kit_net *n, struct kit_pair *p) {
  kit_pair_close(p);
  kit_net_close(n);
  unsetenv("RAIL_SOCKET_ZEROCOPY");
  unsetenv("RAIL_SOCKET_STREAMS");
}

static uint8_t out[4][LARGE], in[4][LARGE];

/* Four messages at a time; each send's buffer is overwritten as soon as it is done, before anything else happens. */
static void stream_and_overwrite(struct kit_net *n, struct kit_pair *p, int rounds) {
  static const size_t sizes[] = {LARGE, 65536, 65535, 1000, 1 << 20, 70001, LARGE - 1, 0};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int round = 0; round < rounds; round++) {
    struct kit_op sends[4], recvs[4];
    size_t size[4];
    uint64_t seed = (uint64_t)round * 4;
    for (int i = 0; i < 4; i++) {
      size[i] = sizes[(round * 3 + i) % 8];
      kit_pattern_fill(out[i], size[i], seed + (uint64_t)i);
      memset(in[i], 0, size[i]);
      recvs[i] = kit_op_recv(p->recv, in[i], LARGE, i);
      sends[i] = kit_op_send(p->send, out[i], size[i], i);
      while (!kit_op_post(n, &recvs[i])) CHECK(!rail_deadline_passed(deadline));
    }
    for (int i = 0; i < 4; i++)
      while (!kit_op_post(n, &sends[i])) CHECK(!rail_deadline_passed(deadline));
    for (int left = 8; left > 0;) {
      for (int i = 0; i < 4; i++) {
        /* The sender gets ahead of the receiver, which lets done come early if it can. */
        for (int k = 0; k < 4 && !sends[i].done; k++) {
          if (!kit_op_test(n, &sends[i])) continue;
          CHECK_INT(sends[i].error, 0);
          memset(out[i], MARK, size[i]);
          left--;
        }
        if (!recvs[i].done && kit_op_test(n, &recvs[i])) left--;
        CHECK_INT(recvs[i].error, 0);
      }
      CHECK(!rail_deadline_passed(deadline));
    }
    for (int i = 0; i < 4; i++) {
      CHECK_INT(recvs[i].sizes[0], size[i]);
      ssize_t wrong = kit_pattern_check(in[i], size[i], seed + (uint64_t)i);
      CHECK_MSG(wrong < 0, "round %d, message of %zu bytes: byte %zd", round, size[i], wrong);
    }
  }
}

TEST(off) {
  struct kit_net n;
  struct kit_pair p;
  open_with(&n, &p, "0", "1");
  stream_and_overwrite(&n, &p, 4);
  CHECK_INT(zero_calls, 0);
  close_both(&n, &p);
}

TEST(auto_leaves_loopback_alone) {
  struct kit_net n;
  struct kit_pair p;
  open_with(&n, &p, "auto", "1");
  stream_and_overwrite(&n, &p, 4);
  CHECK_INT(zero_calls, 0);
  close_both(&n, &p);
}

TEST(stops_where_the_kernel_copies) {
  struct kit_net n;
  struct kit_pair p;
  open_with(&n, &p, "65536", "1");
  stream_and_overwrite(&n, &p, 2);
  int before = zero_calls;
  CHECK(before > 0 && notices > 0);
  stream_and_overwrite(&n, &p, 8);
  CHECK_INT(zero_calls, before);
  close_both(&n, &p);
}

static void goes_on(const char *streams, const char *engine, int refuse) {
  struct kit_net n;
  struct kit_pair p;
  setenv("RAIL_SOCKET_ENGINE", engine, 1);
  open_with(&n, &p, "65536", streams);
  copied_hidden = 1;
  refuse_every = refuse;
  stream_and_overwrite(&n, &p, 20);
  CHECK_MSG(zero_calls > 20, "%d calls", zero_calls);
  CHECK(notices > 0);
  close_both(&n, &p);
  unsetenv("RAIL_SOCKET_ENGINE");
}

TEST(one_stream) { goes_on("1", "inline", 0); }
TEST(many_streams) { goes_on("8", "inline", 0); }
TEST(one_stream_with_threads) { goes_on("1", "epoll", 0); }
TEST(many_streams_with_threads) { goes_on("4", "epoll", 0); }
TEST(kernel_without_room) { goes_on("2", "inline", 2); }

/* All has arrived, the pages are not free: not done. Then the notice comes: done. */
TEST(done_waits_for_the_notice) {
  struct kit_net n;
  struct kit_pair p;
  open_with(&n, &p, "65536", "2");
  copied_hidden = notices_held = 1;
  kit_pattern_fill(out[0], LARGE, 5);
  struct kit_op recv = kit_op_recv(p.recv, in[0], LARGE, 1), send = kit_op_send(p.send, out[0], LARGE, 1);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_post(&n, &recv)) CHECK(!rail_deadline_passed(deadline));
  while (!kit_op_post(&n, &send)) CHECK(!rail_deadline_passed(deadline));
  while (!kit_op_test(&n, &recv)) {
    CHECK(!kit_op_test(&n, &send));
    CHECK(!rail_deadline_passed(deadline));
  }
  CHECK(kit_pattern_check(in[0], LARGE, 5) < 0);
  for (int i = 0; i < 200; i++) CHECK(!kit_op_test(&n, &send));
  struct kit_op small_recv = kit_op_recv(p.recv, in[1], 100, 2), small = kit_op_send(p.send, out[1], 100, 2);
  struct kit_op both[2] = {small_recv, small};
  kit_ops_run(&n, both, 2, (struct kit_ops_options){0}); /* what is copied goes on as ever */
  CHECK(!kit_op_test(&n, &send));
  notices_held = 0;
  while (!kit_op_test(&n, &send)) CHECK(!rail_deadline_passed(deadline));
  close_both(&n, &p);
}

/* ---- given up half-way: the peer must never see what is written into the memory afterwards ---- */

/* A send that has begun to move and whose receiver takes no more than it has. */
static void begin_large(struct kit_net *n, struct kit_pair *p, struct kit_op *recv, struct kit_op *send, void **mh) {
  copied_hidden = 1;
  kit_pattern_fill(out[0], LARGE, 6);
  for (size_t i = 0; i < LARGE; i++) out[0][i] &= 0x7f; /* so that MARK is not among them */
  memset(in[0], 0, LARGE);
  *mh = kit_mr_reg(n, p->send, out[0], LARGE);
  *recv = kit_op_recv(p->recv, in[0], LARGE, 1);
  *send = kit_op_send(p->send, out[0], LARGE, 1);
  send->mh[0] = *mh;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_post(n, recv)) CHECK(!rail_deadline_passed(deadline));
  while (!kit_op_post(n, send)) CHECK(!rail_deadline_passed(deadline));
  while (zero_calls < 1) {
    if (zero_calls == 0) CHECK(!kit_op_test(n, recv)); /* grants the buffer */
    CHECK(!kit_op_test(n, send));
    CHECK(!rail_deadline_passed(deadline));
  }
  for (int i = 0; i < 50; i++) CHECK(!kit_op_test(n, send)); /* all that goes into the socket */
}

static void read_the_rest(struct kit_net *n, struct kit_op *recv) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_test(n, recv)) CHECK(!rail_deadline_passed(deadline));
  if (!recv->error) CHECK_INT(recv->sizes[0], LARGE); /* it found room after all; then whole */
  for (size_t i = 0; i < LARGE; i++) CHECK_MSG(in[0][i] != MARK, "byte %zu was sent after it was given back", i);
}

TEST(dereg_half_way) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_op recv, send;
  void *mh;
  open_with(&n, &p, "65536", "1");
  begin_large(&n, &p, &recv, &send, &mh);
  uint64_t before = rail_now_ns();
  CHECK_OK(n.vt->dereg_mr(p.send, mh));
  CHECK(rail_now_ns() - before < 1000000000);
  memset(out[0], MARK, LARGE);
  read_the_rest(&n, &recv);
  close_both(&n, &p);
}

TEST(close_half_way) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_op recv, send;
  void *mh;
  open_with(&n, &p, "65536", "1");
  begin_large(&n, &p, &recv, &send, &mh);
  uint64_t before = rail_now_ns();
  CHECK_OK(n.vt->close_send(p.send));
  p.send = NULL;
  CHECK(rail_now_ns() - before < 1000000000);
  memset(out[0], MARK, LARGE);
  read_the_rest(&n, &recv);
  close_both(&n, &p);
}

/* The peer dies: the kernel throws the queue away, the send ends with an error or done, close does not wait. */
TEST(peer_gone_half_way) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_op recv, send;
  void *mh;
  open_with(&n, &p, "65536", "1");
  begin_large(&n, &p, &recv, &send, &mh);
  CHECK_OK(n.vt->close_recv(p.recv));
  p.recv = NULL;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_test(&n, &send)) CHECK(!rail_deadline_passed(deadline));
  kit_mr_dereg(&n, p.send, mh);
  close_both(&n, &p);
}

TEST_MAIN(TEST_CASE(off), TEST_CASE(auto_leaves_loopback_alone), TEST_CASE(stops_where_the_kernel_copies),
          TEST_CASE(one_stream), TEST_CASE(many_streams), TEST_CASE(one_stream_with_threads),
          TEST_CASE(many_streams_with_threads), TEST_CASE(kernel_without_room), TEST_CASE(done_waits_for_the_notice),
          TEST_CASE(dereg_half_way), TEST_CASE(close_half_way), TEST_CASE(peer_gone_half_way))
