/* SPDX-License-Identifier: Apache-2.0
 * TEST-QUIET
 *
 * What the watch thread makes of silence: of a peer's process, of its host, of the network between. */
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "test/unit/ib_watch_rig.h"

/* Parameters are read once, before there is a thread. */
static void with_times(int64_t deadline_ms, int64_t peer_ms, int64_t peer_warn_ms) {
  rail_watch_end(&ib_watch);
  ib_params.deadline_ms = deadline_ms;
  ib_params.peer_ms = peer_ms;
  ib_params.peer_warn_ms = peer_warn_ms;
  CHECK_OK(rail_watch_begin(&ib_watch));
}

static void with_defaults(void) { with_times(30000, 300000, 10000); }

/* ---- silence ---- */

TEST(silence_without_requests_is_fine) {
  int peer;
  with_times(60, 60, 30);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  CHECK_INT(recv_frame(peer, NULL, 200), -1);
  CHECK_INT(PENDING(comm), 0);
  done(comm, peer);
}

TEST(silence_with_requests_ends) {
  int peer, type, pings = 0;
  with_times(0, 300, 0);
  uint64_t number, then = rail_now_ns();
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  atomic_store(&comm->outstanding, 1);
  while ((type = recv_frame(peer, &number, 2000)) == RAIL_OOB_PING) CHECK_INT(number, ++pings);
  CHECK_INT(type, 0); /* should it wake up it learns that this is over */
  CHECK(pings >= 1 && pings <= 3);
  CHECK_INT(PENDING(comm), IB_COMM_PEER_SILENT);
  CHECK(rail_now_ns() - then >= 300 * 1000000ull);
  done(comm, peer);
}

/* A send that finds no buffer at the peer is no request, but its caller waits all the same. */
TEST(silence_while_sends_wait_ends) {
  int peer;
  with_times(0, 120, 0);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  uint64_t until = rail_deadline_in_ms(5000);
  while (!(PENDING(comm) & IB_COMM_PEER_SILENT) && !rail_deadline_passed(until)) {
    rail_stats_add(&comm->stats[IB_COMM_WAITS_CTS], 1);
    usleep(1000);
  }
  CHECK_INT(PENDING(comm), IB_COMM_PEER_SILENT);
  done(comm, peer);
}

/* A connection with that process, watched, with requests outstanding. */
static struct ib_comm *comm_with(uint64_t process, bool sender, uint32_t outstanding, int *peer) {
  struct ib_comm *comm = rig_comm(sender, RIG_COUNTED, 1, peer);
  comm->peer_process = process;
  atomic_store(&comm->outstanding, outstanding);
  CHECK_OK(ib_watch_add(comm));
  return comm;
}

/* The peer answers each PING until it is seen to have answered: it is silent again 60 ms later, and this thread may
 * have had no core meanwhile. */
static bool answer_until_seen(struct ib_comm *comm, int peer) {
  uint64_t number, deadline = rail_deadline_in_ms(10000);
  while (atomic_load(&comm->peer_silent) && !rail_deadline_passed(deadline))
    if (recv_frame(peer, &number, 5) == RAIL_OOB_PING) send_frame(peer, RAIL_OOB_PONG, number);
  return !rail_deadline_passed(deadline);
}

/* A process that is silent while its host answers is reported once, whatever the number of its connections, and goes on
 * when it answers again. RAIL_IB_DEADLINE does not count for it. */
TEST(silence_is_reported_once) {
  int peers[3];
  struct ib_comm *comms[3];
  with_times(120, 0, 60);
  log_forget();
  for (int i = 0; i < 3; i++) comms[i] = comm_with(7, i % 2, 2, &peers[i]);
  RIG_WAIT(log_warnings() == 1, 10000);
  CHECK(log_said("no sign of life from the peer's process for ") && log_said("10.0.0.2:4711"));
  CHECK(log_said("2 requests outstanding") && log_said("RAIL_IB_PEER_TIMEOUT"));
  poll(NULL, 0, 300); /* longer than RAIL_IB_DEADLINE */
  CHECK_INT(log_warnings(), 1);
  for (int i = 0; i < 3; i++) {
    RIG_WAIT(PENDING(comms[i]) == IB_COMM_STALLED && atomic_load(&comms[i]->peer_silent), 10000);
    CHECK(answer_until_seen(comms[i], peers[i]));
  }
  RIG_WAIT(log_said("the peer answers again, after "), 10000);
  RIG_WAIT(log_warnings() >= 2, 10000); /* and is silent once more */
  for (int i = 0; i < 3; i++) done(comms[i], peers[i]);
  with_defaults();
}

/* A process that reads nothing for hours is not sent PINGs until its buffer is full. */
TEST(asked_64_times_at_most) {
  int peer, asked = 0;
  uint64_t number = 0;
  with_times(0, 0, 20);
  struct ib_comm *comm = comm_with(7, true, 1, &peer);
  while (asked < 64 && recv_frame(peer, &number, 5000) == RAIL_OOB_PING) asked++;
  CHECK_INT(asked, 64);
  CHECK_INT(recv_frame(peer, NULL, 400), -1); /* no 65th */
  CHECK_INT(number, 64);
  send_frame(peer, RAIL_OOB_PONG, number);
  CHECK_INT(recv_frame(peer, &number, 1000), RAIL_OOB_PING);
  CHECK_INT(number, 65);
  done(comm, peer);
  with_defaults();
}

TEST(each_silent_process_is_reported) {
  int peers[2];
  struct ib_comm *comms[2];
  with_times(0, 0, 60);
  log_forget();
  for (int i = 0; i < 2; i++) comms[i] = comm_with(7 + (uint64_t)i, true, 1, &peers[i]);
  RIG_WAIT(log_warnings() == 2, 3000);
  for (int i = 0; i < 2; i++) done(comms[i], peers[i]);
  with_defaults();
}

/* ---- a network that goes ---- */

static void lo_goes(bool up) {
  struct ifreq face = {.ifr_name = "lo", .ifr_flags = up ? IFF_UP | IFF_RUNNING : 0};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  CHECK_MSG(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &face) == 0, "lo: %s", strerror(errno));
  close(fd);
}

/* Both ends of a TCP connection over lo; fds[0] does not block. */
static void tcp_pair(int fds[2]) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 1) == 0);
  CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
  fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(fds[0], (struct sockaddr *)&at, len) == 0);
  fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  CHECK(fds[1] >= 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
  close(listener);
}

/* A comm whose oob connection is TCP over lo, of a network namespace of our own; *peer is the other end. */
static struct ib_comm *tcp_comm(int *peer) {
  int fds[2];
  if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) tap_skip_case("no network namespace may be made");
  lo_goes(true);
  tcp_pair(fds);
  struct ib_comm *comm = rig_comm(true, RIG_MEMORY, 1, NULL);
  CHECK_OK(ib_stats_comm_begin(comm));
  CHECK(dup2(fds[0], comm->oob_fd) == comm->oob_fd);
  close(fds[0]);
  *peer = fds[1];
  return comm;
}

/* The peer's process is silent for longer than RAIL_IB_DEADLINE, which is fine as long as its host acknowledges; then
 * the host is silent, too. The kernel would give it up a second later. */
TEST(a_silent_host_ends) {
  int peer;
  with_times(1500, 0, 500);
  log_forget();
  struct ib_comm *comm = tcp_comm(&peer);
  CHECK_OK(ib_watch_add(comm));
  atomic_store(&comm->outstanding, 1);
  RIG_WAIT(log_said("though its host answers"), 1400);
  poll(NULL, 0, 2000);
  CHECK_INT(PENDING(comm), IB_COMM_STALLED);
  lo_goes(false);
  uint64_t then = rail_now_ns();
  RIG_WAIT(PENDING(comm) & IB_COMM_HOST_SILENT, 4000);
  CHECK(rail_now_ns() - then > 500 * 1000000ull);
  CHECK(!log_said("network is down"));
  done(comm, peer);
  with_defaults();
}

/* The oob connection's network, which is another than RDMA's: what moves goes on, and who moves nothing is given up at
 * the deadline, not before. */
TEST(the_side_channels_network_goes) {
  int peer, soon = 200;
  with_times(3000, 300000, 10000);
  struct ib_comm *comm = tcp_comm(&peer);
  log_forget();
  CHECK_OK(ib_watch_add(comm));
  CHECK(setsockopt(comm->oob_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &soon, sizeof soon) == 0);
  lo_goes(false);
  atomic_store(&comm->outstanding, 1); /* so a PING is sent, in a second, and no PONG comes */
  RIG_WAIT(log_said("network is down"), 2500);
  CHECK_INT(PENDING(comm) & ~(uint32_t)IB_COMM_STALLED, 0);
  uint64_t until = rail_deadline_in_ms(4000);
  while (!rail_deadline_passed(until)) {
    rail_stats_add(&comm->stats[IB_COMM_MESSAGES], 1);
    usleep(10000);
  }
  CHECK_INT(PENDING(comm) & ~(uint32_t)IB_COMM_STALLED, 0);
  RIG_WAIT(PENDING(comm) & IB_COMM_HOST_SILENT, 5000);
  CHECK_INT(PENDING(comm), IB_COMM_HOST_SILENT | IB_COMM_STALLED);
  done(comm, peer);
}

#define LATE_MS 50

/* False: this thread was kept from a core for so long that it may have looked silent, or has, and was given up. */
static bool alive_for(struct ib_comm *comm, int peer, bool answers, bool moves, int ms) {
  uint64_t last = rail_now_ns(), end = rail_deadline_in_ms((uint64_t)ms), number, longest = 0;
  while (!rail_deadline_passed(end)) {
    if (recv_frame(peer, &number, 5) == RAIL_OOB_PING && answers && !try_frame(peer, RAIL_OOB_PONG, number))
      return false;
    if (moves) rail_stats_add(&comm->stats[IB_COMM_MESSAGES], 1);
    uint64_t now = rail_now_ns();
    longest = RAIL_MAX(longest, now - last);
    last = now;
  }
  return longest < LATE_MS * 1000000ull;
}

/* Alive without progress: the HCA is to be asked, and no more. False: as alive_for. */
static bool is_alive_enough(bool moves) {
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  atomic_store(&comm->outstanding, 1);
  bool timely = alive_for(comm, peer, !moves, moves, 700);
  for (int i = 0; timely && !moves && !PENDING(comm) && i < 100; i++) timely = alive_for(comm, peer, true, false, 100);
  if (timely) CHECK_INT(PENDING(comm), moves ? 0 : IB_COMM_STALLED);
  atomic_store(&comm->outstanding, 0);
  done(comm, peer);
  return timely;
}

TEST(a_sign_of_life_or_progress_is_enough) {
  with_times(300, 300, 0);
  for (int moves = 0; moves < 2; moves++) {
    int tries = 100;
    while (!is_alive_enough(moves)) CHECK_MSG(--tries > 0, "this thread was never left on a core for 0.7 s");
  }
}

TEST(no_deadline_no_ping) {
  int peer;
  with_times(0, 0, 0);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  atomic_store(&comm->outstanding, 1);
  CHECK_INT(recv_frame(peer, NULL, 150), -1);
  CHECK_INT(PENDING(comm), 0);
  done(comm, peer);
  with_defaults();
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(silence_without_requests_is_fine),
    TEST_CASE(silence_with_requests_ends),
    TEST_CASE(silence_while_sends_wait_ends),
    TEST_CASE(silence_is_reported_once),
    TEST_CASE(asked_64_times_at_most),
    TEST_CASE(each_silent_process_is_reported),
    TEST_CASE(a_sign_of_life_or_progress_is_enough),
    TEST_CASE(no_deadline_no_ping),
    TEST_CASE(a_silent_host_ends),
    TEST_CASE(the_side_channels_network_goes),
  };
  rig_use(NULL);
  return rig_main_watched(argc, argv, cases, RAIL_COUNT_OF(cases));
}
