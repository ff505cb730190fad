/* SPDX-License-Identifier: Apache-2.0
 * The watch thread: what it hears over side channels and from HCAs, and that it comes, sleeps, goes and forks without
 * leaving anything. */
#include <dirent.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "plugin/ib/ib_pulse.h"
#include "test/unit/ib_rig.h"

#define HEALTH(comm) atomic_load(&(comm)->health)

static void say_number(int fd, enum ib_pulse_type type, uint64_t number) {
  uint8_t wire[IB_PULSE_SIZE];
  ib_pulse_encode(&(struct ib_pulse){type, number}, wire);
  CHECK_INT(write(fd, wire, sizeof wire), sizeof wire);
}

/* The next message within `ms`; type 0: end of stream, -1: nothing. */
static int hear(int fd, uint64_t *number, int ms) {
  uint8_t wire[IB_PULSE_SIZE];
  struct ib_pulse pulse;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  if (poll(&p, 1, ms) != 1) return -1;
  ssize_t n = read(fd, wire, sizeof wire);
  if (n <= 0) return 0;
  CHECK_INT(n, sizeof wire);
  CHECK(ib_pulse_decode(wire, &pulse));
  if (number) *number = pulse.number;
  return (int)pulse.type;
}

static void done(struct ib_comm *comm, int peer) {
  CHECK_OK(ib_close_send(comm));
  if (peer >= 0) close(peer);
}

/* Parameters are read once, before there is a thread. */
static void with_times(int64_t deadline_ms, int64_t peer_ms, int64_t peer_warn_ms) {
  ib_watch_end();
  ib_params.deadline_ms = deadline_ms;
  ib_params.peer_ms = peer_ms;
  ib_params.peer_warn_ms = peer_warn_ms;
  CHECK_OK(ib_watch_begin());
}

static void with_events(int64_t return_async_events) {
  ib_watch_end();
  ib_params.return_async_events = return_async_events;
  CHECK_OK(ib_watch_begin());
}

static void with_defaults(void) { with_times(30000, 300000, 10000); }

/* ---- side channels ---- */

TEST(goodbye) {
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  say_number(peer, IB_PULSE_GOODBYE, 0);
  close(peer);
  RIG_WAIT(HEALTH(comm), 1000);
  poll(NULL, 0, 20);
  CHECK_INT(HEALTH(comm), IB_COMM_PEER_CLOSED); /* the end of the stream after it is no news */
  done(comm, -1);
}

TEST(end_of_stream) {
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  close(peer);
  RIG_WAIT(HEALTH(comm), 1000);
  CHECK_INT(HEALTH(comm), IB_COMM_PEER_LOST);
  done(comm, -1);
}

/* A message whose field at `at` is another is none. */
TEST(garbage) {
  static const struct { size_t at; uint8_t value; } bad[] = {
    {0, 'X'}, {4, 1}, {6, 0}, {6, 5}, {7, 1}, {8, 31}, {11, 1}, {12, 1}, {24, 1}, {31, 0x80}};
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++) {
    int peer;
    uint8_t wire[IB_PULSE_SIZE];
    struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
    log_forget();
    ib_pulse_encode(&(struct ib_pulse){IB_PULSE_PING, 5}, wire);
    wire[bad[i].at] = bad[i].value;
    CHECK_INT(write(peer, wire, sizeof wire), sizeof wire);
    RIG_WAIT(HEALTH(comm), 1000);
    CHECK_INT(HEALTH(comm), IB_COMM_PEER_LOST);
    CHECK(log_said("no message of ours") && log_said("10.0.0.2:4711"));
    done(comm, peer);
  }
  int peer; /* an answer that was not asked for */
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  say_number(peer, IB_PULSE_PONG, 1);
  RIG_WAIT(HEALTH(comm) == IB_COMM_PEER_LOST, 1000);
  done(comm, peer);
}

TEST(ping_is_answered) {
  int peer;
  uint64_t number = 0;
  uint8_t wire[IB_PULSE_SIZE];
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  for (uint64_t i = 7; i < 12; i++) {
    say_number(peer, IB_PULSE_PING, i << 40);
    CHECK_INT(hear(peer, &number, 1000), IB_PULSE_PONG);
    CHECK(number == i << 40);
  }
  ib_pulse_encode(&(struct ib_pulse){IB_PULSE_PING, 3}, wire); /* bytewise */
  for (size_t i = 0; i < sizeof wire; i++) {
    CHECK_INT(write(peer, wire + i, 1), 1);
    if (i % 8 == 0) poll(NULL, 0, 1);
  }
  CHECK_INT(hear(peer, &number, 1000), IB_PULSE_PONG);
  CHECK_INT(number, 3);
  CHECK_INT(HEALTH(comm), 0);
  done(comm, peer);
}

/* A peer that asks and does not read: what it is owed is one answer, not one per question. */
TEST(a_peer_that_does_not_read) {
  int peer, pongs = 0, type, small = 4096;
  uint64_t number = 0, last = 0;
  struct ib_comm *comm = rig_comm(true, RIG_MEMORY, 1, &peer);
  CHECK_OK(ib_stats_comm_begin(comm));
  CHECK_OK(setsockopt(comm->side_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
  CHECK_OK(ib_watch_add(comm));
  for (uint64_t i = 1; i <= 2000; i++) {
    uint8_t wire[IB_PULSE_SIZE];
    struct pollfd p = {.fd = peer, .events = POLLOUT};
    ib_pulse_encode(&(struct ib_pulse){IB_PULSE_PING, i}, wire);
    CHECK_INT(poll(&p, 1, 1000), 1);
    CHECK_INT(write(peer, wire, sizeof wire), sizeof wire);
  }
  poll(NULL, 0, 20);
  while ((type = hear(peer, &number, 100)) == IB_PULSE_PONG) {
    CHECK(number > last);
    last = number;
    pongs++;
  }
  CHECK_INT(type, -1);
  CHECK_INT(last, 2000);
  CHECK_MSG(pongs < 500, "%d answers were kept for a peer that read none", pongs);
  CHECK_INT(HEALTH(comm), 0);
  done(comm, peer);
}

/* ---- silence ---- */

TEST(silence_without_requests_is_fine) {
  int peer;
  with_times(60, 60, 30);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  CHECK_INT(hear(peer, NULL, 200), -1);
  CHECK_INT(HEALTH(comm), 0);
  done(comm, peer);
}

TEST(silence_with_requests_ends) {
  int peer, type, pings = 0;
  with_times(0, 300, 0);
  uint64_t number, then = rail_now_ns();
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  atomic_store(&comm->outstanding, 1);
  while ((type = hear(peer, &number, 2000)) == IB_PULSE_PING) CHECK_INT(number, ++pings);
  CHECK_INT(type, 0); /* should it wake up it learns that this is over */
  CHECK(pings >= 1 && pings <= 3);
  CHECK_INT(HEALTH(comm), IB_COMM_PEER_SILENT);
  CHECK(rail_now_ns() - then >= 300 * 1000000ull);
  done(comm, peer);
}

/* A send that finds no buffer at the peer is no request, but its caller waits all the same. */
TEST(silence_while_sends_wait_ends) {
  int peer;
  with_times(0, 120, 0);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  uint64_t until = rail_deadline_in_ms(5000);
  while (!(HEALTH(comm) & IB_COMM_PEER_SILENT) && !rail_deadline_passed(until)) {
    rail_stats_add(&comm->stats[IB_COMM_WAITS_CTS], 1);
    usleep(1000);
  }
  CHECK_INT(HEALTH(comm), IB_COMM_PEER_SILENT);
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

/* A process that is silent while its host answers is reported once, whatever the number of its connections, and goes on
 * when it answers again. RAIL_IB_DEADLINE does not count for it. */
TEST(silence_is_reported_once) {
  int peers[3];
  struct ib_comm *comms[3];
  uint64_t number = 0;
  with_times(120, 0, 60);
  log_forget();
  for (int i = 0; i < 3; i++) comms[i] = comm_with(7, i % 2, 2, &peers[i]);
  RIG_WAIT(log_warnings() == 1, 1000);
  CHECK(log_said("no sign of life from the peer's process for 0.") && log_said("10.0.0.2:4711"));
  CHECK(log_said("2 requests outstanding") && log_said("RAIL_IB_PEER_TIMEOUT"));
  poll(NULL, 0, 300); /* longer than RAIL_IB_DEADLINE */
  CHECK_INT(log_warnings(), 1);
  for (int i = 0; i < 3; i++) {
    CHECK_INT(HEALTH(comms[i]), IB_COMM_STILL);
    CHECK(atomic_load(&comms[i]->peer_quiet));
    CHECK_INT(hear(peers[i], &number, 1000), IB_PULSE_PING);
    say_number(peers[i], IB_PULSE_PONG, number);
    RIG_WAIT(!atomic_load(&comms[i]->peer_quiet), 1000);
  }
  RIG_WAIT(log_said("the peer answers again, after 0."), 1000);
  RIG_WAIT(log_warnings() == 2, 1000); /* and is silent once more */
  for (int i = 0; i < 3; i++) done(comms[i], peers[i]);
  with_defaults();
}

/* A process that reads nothing for hours is not sent PINGs until its buffer is full. */
TEST(asked_64_times_at_most) {
  int peer, asked = 0;
  uint64_t number = 0;
  with_times(0, 0, 20);
  struct ib_comm *comm = comm_with(7, true, 1, &peer);
  while (asked < 65 && hear(peer, &number, 400) == IB_PULSE_PING) asked++;
  CHECK_INT(asked, 64);
  CHECK_INT(number, 64);
  say_number(peer, IB_PULSE_PONG, number);
  CHECK_INT(hear(peer, &number, 1000), IB_PULSE_PING);
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
  int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(bind(door, (struct sockaddr *)&at, len) == 0 && listen(door, 1) == 0);
  CHECK(getsockname(door, (struct sockaddr *)&at, &len) == 0);
  fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(fds[0], (struct sockaddr *)&at, len) == 0);
  fds[1] = accept4(door, NULL, NULL, SOCK_CLOEXEC);
  CHECK(fds[1] >= 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
  close(door);
}

/* A comm whose side channel is TCP over lo, of a network namespace of our own; *peer is the other end. */
static struct ib_comm *tcp_comm(int *peer) {
  int fds[2];
  if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) tap_skip_case("no network namespace may be made");
  lo_goes(true);
  tcp_pair(fds);
  struct ib_comm *comm = rig_comm(true, RIG_MEMORY, 1, NULL);
  CHECK_OK(ib_stats_comm_begin(comm));
  CHECK(dup2(fds[0], comm->side_fd) == comm->side_fd);
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
  CHECK_INT(HEALTH(comm), IB_COMM_STILL);
  lo_goes(false);
  uint64_t then = rail_now_ns();
  RIG_WAIT(HEALTH(comm) & IB_COMM_HOST_SILENT, 4000);
  CHECK(rail_now_ns() - then > 500 * 1000000ull);
  CHECK(!log_said("network is down"));
  done(comm, peer);
  with_defaults();
}

/* The side channel's network, which is another than RDMA's: what moves goes on, and who moves nothing is given up at
 * the deadline, not before. */
TEST(the_side_channels_network_goes) {
  int peer, soon = 200;
  with_times(3000, 300000, 10000);
  struct ib_comm *comm = tcp_comm(&peer);
  log_forget();
  CHECK_OK(ib_watch_add(comm));
  CHECK(setsockopt(comm->side_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &soon, sizeof soon) == 0);
  lo_goes(false);
  atomic_store(&comm->outstanding, 1); /* so it is asked, in a second, and nobody answers */
  RIG_WAIT(log_said("network is down"), 2500);
  CHECK_INT(HEALTH(comm) & ~(uint32_t)IB_COMM_STILL, 0);
  uint64_t until = rail_deadline_in_ms(4000);
  while (!rail_deadline_passed(until)) {
    rail_stats_add(&comm->stats[IB_COMM_MESSAGES], 1);
    usleep(10000);
  }
  CHECK_INT(HEALTH(comm) & ~(uint32_t)IB_COMM_STILL, 0);
  RIG_WAIT(HEALTH(comm) & IB_COMM_HOST_SILENT, 5000);
  CHECK_INT(HEALTH(comm), IB_COMM_HOST_SILENT | IB_COMM_STILL);
  done(comm, peer);
}

static void alive_for(struct ib_comm *comm, int peer, bool answers, bool moves, int ms) {
  uint64_t end = rail_deadline_in_ms((uint64_t)ms), number;
  while (!rail_deadline_passed(end)) {
    if (hear(peer, &number, 5) == IB_PULSE_PING && answers) say_number(peer, IB_PULSE_PONG, number);
    if (moves) rail_stats_add(&comm->stats[IB_COMM_MESSAGES], 1);
  }
}

TEST(a_sign_of_life_or_progress_is_enough) {
  int peer;
  with_times(120, 120, 0);
  for (int moves = 0; moves < 2; moves++) {
    struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
    atomic_store(&comm->outstanding, 1);
    alive_for(comm, peer, !moves, moves, 500);
    CHECK_INT(HEALTH(comm), moves ? 0 : IB_COMM_STILL); /* alive, but the HCA is to be asked */
    atomic_store(&comm->outstanding, 0);
    done(comm, peer);
  }
}

TEST(no_deadline_no_ping) {
  int peer;
  with_times(0, 0, 0);
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  atomic_store(&comm->outstanding, 1);
  CHECK_INT(hear(peer, NULL, 150), -1);
  CHECK_INT(HEALTH(comm), 0);
  done(comm, peer);
  with_defaults();
}

/* ---- events of HCAs ---- */

static uint64_t counter(enum ib_stats_device which) {
  return rail_stats_get(&ib_device_at(0, "test")->rails[0]->stats[which]);
}

TEST(events_of_queue_pairs) {
  static const struct { const char *name; uint32_t health; } events[] = {
    {"qp_fatal", IB_COMM_QP_FATAL},      {"qp_req_err", IB_COMM_QP_FATAL}, {"qp_access_err", IB_COMM_QP_FATAL},
    {"cq_err", IB_COMM_CQ_ERROR}};
  for (int returned = 1; returned >= 0; returned--) {
    with_events(returned);
    for (size_t i = 0; i < RAIL_COUNT_OF(events); i++) {
      char text[80];
      struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 2, NULL), *other = rig_comm(true, RIG_WATCHED, 2, NULL);
      uint64_t errors = counter(IB_DEVICE_ERRORS);
      log_forget();
      snprintf(text, sizeof text, "event fake0 %s qp=%u", events[i].name, comm->qps[1].qp->qp_num);
      fake_script(text);
      RIG_WAIT(counter(IB_DEVICE_ERRORS) == errors + 1, 1000);
      RIG_WAIT(log_warnings() == 1, 1000);
      CHECK(log_said("fake0 reports"));
      if (returned) RIG_WAIT(HEALTH(comm) & events[i].health, 1000);
      CHECK_INT(HEALTH(comm) & (IB_COMM_QP_FATAL | IB_COMM_CQ_ERROR), returned ? events[i].health : 0);
      CHECK_INT(HEALTH(other) & (IB_COMM_QP_FATAL | IB_COMM_CQ_ERROR), 0);
      done(comm, -1); /* waits until the event is acknowledged */
      done(other, -1);
    }
  }
  with_events(1);
}

TEST(events_without_consequence) {
  static const char *const names[] = {"comm_est", "path_mig"};
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  log_forget();
  for (size_t i = 0; i < RAIL_COUNT_OF(names); i++) {
    char text[80];
    uint64_t events = counter(IB_DEVICE_EVENTS);
    snprintf(text, sizeof text, "event fake0 %s", names[i]);
    fake_script(text);
    RIG_WAIT(counter(IB_DEVICE_EVENTS) == events + 1, 1000);
  }
  ib_comm_stop(comm); /* what a QP in its error state says is no news */
  fake_script("event fake0 qp_access_err");
  poll(NULL, 0, 30);
  CHECK_INT(HEALTH(comm), 0);
  CHECK_INT(log_warnings(), 0);
  done(comm, peer);
}

TEST(a_port_goes_down_and_up) {
  struct ib_port *port = ib_device_at(0, "test")->rails[0];
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  uint64_t flaps = atomic_load(&port->flaps), downs = counter(IB_DEVICE_PORT_DOWNS), ups = counter(IB_DEVICE_PORT_UPS);
  log_forget();
  for (uint64_t i = 1; i <= 3; i++) {
    fake_script("event fake0 port_err");
    RIG_WAIT(atomic_load(&port->health) & IB_PORT_DOWN, 1000);
    fake_script("event fake0 port_err"); /* nothing new */
    fake_script("event fake0 port_active");
    RIG_WAIT(counter(IB_DEVICE_PORT_UPS) == ups + i, 1000);
    CHECK(!(atomic_load(&port->health) & IB_PORT_DOWN));
    CHECK_INT(atomic_load(&port->flaps), flaps + i);
    CHECK_INT(counter(IB_DEVICE_PORT_DOWNS), downs + i);
    CHECK_INT(log_warnings(), i);
  }
  CHECK(log_said("is up again after") && log_said(" UTC (3 times so far)"));
  CHECK_INT(HEALTH(comm), 0); /* by itself no error */
  done(comm, peer);
}

TEST(a_port_changes) {
  static const char *const names[] = {"lid_change", "gid_change", "pkey_change", "sm_change", "client_reregister"};
  log_forget();
  for (size_t i = 0; i < RAIL_COUNT_OF(names); i++) {
    char text[80];
    uint64_t events = counter(IB_DEVICE_EVENTS);
    snprintf(text, sizeof text, "event fake0 %s", names[i]);
    fake_script(text);
    RIG_WAIT(counter(IB_DEVICE_EVENTS) == events + 1, 1000);
  }
  RIG_WAIT(log_said("table of GIDs changed") && log_said("registrations anew"), 1000);
  CHECK_INT(log_warnings(), 0);
}

/* Every connection over the HCA, and no other. Not undone: the last test with fake1. */
TEST(an_hca_dies) {
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  struct ib_hca *other = ib_device_at(1, "test")->rails[0]->hca;
  fake_script("event fake1 device_fatal");
  RIG_WAIT(atomic_load(&other->health) & IB_HCA_FATAL, 1000);
  poll(NULL, 0, 20);
  CHECK_INT(HEALTH(comm), 0);
  fake_script("event fake0 device_fatal");
  RIG_WAIT(HEALTH(comm) & IB_COMM_DEVICE_FATAL, 1000);
  done(comm, peer);
}

/* One that a fused device has only among its further rails. */
TEST(an_hca_of_a_later_rail_dies) {
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  comm->rails[1] = comm->rails[0];
  comm->rails[0].port = ib_device_at(1, "test")->rails[0];
  comm->nrails = 2;
  fake_script("event fake0 device_fatal");
  RIG_WAIT(HEALTH(comm) & IB_COMM_DEVICE_FATAL, 1000);
  comm->rails[0] = comm->rails[1];
  comm->nrails = 1;
  done(comm, peer);
}

/* ---- the thread ---- */

static int open_fds(void) {
  int count = 0;
  for (int fd = 0; fd < 512; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* Threads named so, and (may be NULL) the processor time in ns that the last of them took. */
static int threads(const char *name, uint64_t *ns) {
  int count = 0;
  DIR *dir = opendir("/proc/self/task");
  for (struct dirent *e; dir && (e = readdir(dir));) {
    char path[300], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", e->d_name);
    FILE *f = fopen(path, "r");
    if (!f) continue;
    bool ours = fgets(text, sizeof text, f) && strncmp(text, name, strlen(name)) == 0;
    fclose(f);
    count += ours;
    snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", e->d_name);
    if (!ours || !ns || !(f = fopen(path, "r"))) continue;
    if (fscanf(f, "%" SCNu64, ns) != 1) *ns = 0;
    fclose(f);
  }
  if (dir) closedir(dir);
  return count;
}

TEST(start_and_stop) {
  ib_watch_end();
  CHECK_INT(threads("rail-ib-watch", NULL), 0);
  int fds = open_fds();
  for (int i = 0; i < 100; i++) {
    CHECK_OK(ib_watch_begin());
    CHECK_OK(ib_watch_begin());
    struct ib_comm *comm = i % 2 ? rig_comm(true, RIG_WATCHED, 1, NULL) : NULL;
    if (i == 7) CHECK_INT(threads("rail-ib-watch", NULL), 1);
    ib_watch_end();
    if (comm) done(comm, -1);
    ib_watch_end();
    CHECK_INT(open_fds(), fds);
  }
  CHECK_INT(threads("rail-ib-watch", NULL), 0);
  CHECK_OK(ib_watch_begin());
}

/* Nothing is outstanding: a tick a second at most, and without a connection none. */
TEST(sleeps) {
  uint64_t before = 0, after = 0;
  int peer;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  poll(NULL, 0, 50);
  CHECK_INT(threads("rail-ib-watch", &before), 1);
  poll(NULL, 0, 400);
  CHECK_INT(threads("rail-ib-watch", &after), 1);
  CHECK_MSG(after - before < 5000000, "it ran for %" PRIu64 " ns", after - before);
  done(comm, peer);
}

/* A child keeps no connection of its parent's alive, says nothing for it, and touches no verbs object. */
TEST(fork_leaves_the_parent_alone) {
  int peer, status;
  uint64_t number;
  struct ib_comm *comm = rig_comm(true, RIG_WATCHED, 1, &peer);
  long qps = fake_live("qp");
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    bool ok = comm->side_fd < 0 && atomic_load(&comm->stopped) && !comm->watched;
    ib_comm_stop(comm);
    ok = ok && ib_close_send(comm) == RAIL_OK && fake_live("qp") == qps;
    ib_watch_end();
    _exit(ok ? 0 : 1);
  }
  CHECK_INT(waitpid(pid, &status, 0), pid);
  CHECK(WIFEXITED(status));
  CHECK_INT(WEXITSTATUS(status), 0);
  CHECK_INT(hear(peer, NULL, 20), -1);
  say_number(peer, IB_PULSE_PING, 77);
  CHECK_INT(hear(peer, &number, 1000), IB_PULSE_PONG);
  CHECK_INT(HEALTH(comm), 0);
  done(comm, peer);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(goodbye),
    TEST_CASE(end_of_stream),
    TEST_CASE(garbage),
    TEST_CASE(ping_is_answered),
    TEST_CASE(a_peer_that_does_not_read),
    TEST_CASE(silence_without_requests_is_fine),
    TEST_CASE(silence_with_requests_ends),
    TEST_CASE(silence_while_sends_wait_ends),
    TEST_CASE(silence_is_reported_once),
    TEST_CASE(asked_64_times_at_most),
    TEST_CASE(each_silent_process_is_reported),
    TEST_CASE(a_sign_of_life_or_progress_is_enough),
    TEST_CASE(no_deadline_no_ping),
    TEST_CASE(events_of_queue_pairs),
    TEST_CASE(events_without_consequence),
    TEST_CASE(a_port_goes_down_and_up),
    TEST_CASE(a_port_changes),
    TEST_CASE(a_silent_host_ends),
    TEST_CASE(the_side_channels_network_goes),
    TEST_CASE(start_and_stop),
    TEST_CASE(sleeps),
    TEST_CASE(fork_leaves_the_parent_alone),
    TEST_CASE(an_hca_dies),
    TEST_CASE(an_hca_of_a_later_rail_dies),
  };
  rig_use(argv[0], NULL);
  if (ib_stats_open() != RAIL_OK || ib_watch_begin() != RAIL_OK) abort();
  int failed = tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
  ib_watch_end();
  ib_stats_close();
  return failed;
}
