/* SPDX-License-Identifier: Apache-2.0
 * Listening: a thousand at once, closed at any moment, and strangers never keep a real peer out.
 * TEST-LIMIT: 60 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "kit/kit_tcp.h"
#include "test/harness/program.h"

/* A listen comm and the port it opened. */
struct door { struct kit_net *net; void *listen; char handle[RAIL_NET_HANDLE_SIZE]; struct kit_tcp_socket socket; };

static void door_open(struct kit_net *n, struct door *d) {
  static struct kit_tcp_socket before[4096];
  int nbefore = kit_tcp_sockets(before, 4096);
  d->net = n;
  d->listen = kit_net_listen(n, d->handle);
  d->socket = kit_tcp_new_listener(before, nbefore);
}

/* A real peer comes through; returns the milliseconds it took. */
static uint64_t door_real_peer(struct door *d) {
  struct kit_pair p = {.net = d->net, .listen = d->listen};
  memcpy(p.handle, d->handle, sizeof p.handle);
  uint64_t start = rail_now_ns(), deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!p.send || !p.recv) {
    if (!p.send) kit_connect_step(d->net, p.handle, &p.send);
    if (!p.recv) kit_accept_step(d->net, d->listen, &p.recv);
    ENSURE(!rail_deadline_passed(deadline), "the real peer was kept out (send %p, recv %p)", p.send, p.recv);
    sched_yield();
  }
  uint64_t ms = (rail_now_ns() - start) / 1000000;
  kit_pair_ping(&p, 12345, 99);
  p.listen = NULL;
  kit_pair_close(&p);
  return ms;
}

static void door_close(struct door *d) { CHECK_OK(d->net->vt->close_listen(d->listen)); }

/* Nobody but a real peer may come out of accept. */
static void accept_nobody(struct door *d, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  void *comm;
  while (!rail_deadline_passed(deadline)) {
    CHECK_MSG(!kit_accept_step(d->net, d->listen, &comm), "a stranger was accepted");
    sched_yield();
  }
}

TEST(handle_is_written_whole) {
  struct kit_net n;
  kit_net_open(&n);
  uint8_t a[RAIL_NET_HANDLE_SIZE], b[RAIL_NET_HANDLE_SIZE];
  memset(a, 0xa5, sizeof a);
  memset(b, 0x5a, sizeof b);
  void *la = kit_net_listen(&n, a), *lb = kit_net_listen(&n, b);
  for (size_t i = 0; i < sizeof a; i++)
    CHECK_MSG(a[i] != 0xa5 || b[i] != 0x5a, "byte %zu of the handle is unwritten", i);
  CHECK(memcmp(a, b, sizeof a) != 0);
  CHECK_OK(n.vt->close_listen(la));
  CHECK_OK(n.vt->close_listen(lb));
  kit_net_close(&n);
}

TEST(a_thousand_listens) {
  enum { MOST = 1000 };
  static char handle[MOST][RAIL_NET_HANDLE_SIZE];
  static void *listen[MOST];
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < MOST + 200) tap_skip_case("only %lu files may be open", (unsigned long)limit.rlim_cur);
  struct kit_net n;
  kit_net_open(&n);
  int count = kit_scaled(MOST), fds = kit_fd_count(), threads = kit_thread_count();
  for (int i = 0; i < count; i++) listen[i] = kit_net_listen(&n, handle[i]);
  CHECK_MSG(kit_thread_count() <= threads + 8, "%d listens made %d threads", count, kit_thread_count() - threads);
  const int some[] = {count - 1, count / 2, 0};
  for (int i = 0; i < 3; i++) {
    struct kit_pair p = {.net = &n};
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!p.send || !p.recv) {
      if (!p.send) kit_connect_step(&n, handle[some[i]], &p.send);
      if (!p.recv) kit_accept_step(&n, listen[some[i]], &p.recv);
      CHECK(!rail_deadline_passed(deadline));
    }
    kit_pair_ping(&p, 100, (uint64_t)i);
    kit_pair_close(&p);
  }
  for (int i = 0; i < count; i++) CHECK_OK(n.vt->close_listen(listen[i]));
  CHECK_INT(kit_fd_count(), fds);
  kit_net_close(&n);
}

TEST(closed_without_accept) {
  struct kit_net n;
  kit_net_open(&n);
  struct door d;
  void *comm;
  for (int polls = 0; polls < 4; polls++) {
    door_open(&n, &d);
    for (int i = 0; i < polls; i++) CHECK(!kit_accept_step(&n, d.listen, &comm));
    door_close(&d);
  }
  CHECK_OK(n.vt->close_listen(NULL));
  kit_net_close(&n);
}

TEST(closed_with_a_half_connected_peer) {
  struct kit_net n;
  kit_net_open(&n);
  for (int steps = 1; steps <= 8; steps++) {
    struct door d;
    door_open(&n, &d);
    void *send = NULL, *recv = NULL;
    for (int i = 0; i < steps && !send; i++) kit_connect_step(&n, d.handle, &send);
    if (steps > 4) kit_accept_step(&n, d.listen, &recv);
    door_close(&d);
    /* The connecting side learns of it or is left waiting; it never hangs or breaks. */
    uint64_t deadline = rail_deadline_in_ms(200);
    int rc = 0;
    while (!send && rc == 0 && !rail_deadline_passed(deadline)) {
      struct rail_net_device_handle *dh = NULL;
      rc = n.vt->connect(n.ctx, n.dev, d.handle, &send, &dh);
      CHECK_MSG(rc == 0 || !send, "connect failed with %d and still gave a comm", rc);
    }
    CHECK_OK(n.vt->close_send(send));
    CHECK_OK(n.vt->close_recv(recv));
  }
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(garbage) {
  struct kit_net n;
  kit_net_open(&n);
  struct door d;
  door_open(&n, &d);
  struct kit_rng rng;
  kit_rng_start(&rng);
  int fds[64];
  const int count = 60;
  for (int i = 0; i < count; i++) {
    uint8_t junk[4096];
    for (size_t k = 0; k < sizeof junk; k++) junk[k] = (uint8_t)kit_rng_next(&rng);
    if (i % 5 == 1) memset(junk, 0, sizeof junk);
    if (i % 5 == 2) memset(junk, 0xff, sizeof junk);
    if (i % 5 == 3) memcpy(junk, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 28);
    fds[i] = kit_tcp_dial(&d.socket);
    ssize_t sent = send(fds[i], junk, kit_rng_below(&rng, sizeof junk), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* the plugin may have hung up already */
    if (i % 3 == 0) { /* some leave at once, half of these with a reset */
      if (i % 2) kit_tcp_reset_on_close(fds[i]);
      close(fds[i]);
      fds[i] = -1;
    }
    void *comm;
    CHECK_MSG(!kit_accept_step(&n, d.listen, &comm), "garbage was accepted");
  }
  accept_nobody(&d, 100);
  door_real_peer(&d);
  for (int i = 0; i < count; i++) if (fds[i] >= 0) close(fds[i]);
  door_close(&d);
  kit_net_close(&n);
}

TEST(silence_does_not_delay) {
  struct kit_net n;
  kit_net_open(&n);
  struct door d;
  door_open(&n, &d);
  int fds[200];
  void *comm;
  for (int i = 0; i < 200; i++) {
    fds[i] = kit_tcp_dial(&d.socket);
    CHECK(!kit_accept_step(&n, d.listen, &comm));
  }
  accept_nobody(&d, 50);
  uint64_t ms = door_real_peer(&d);
  CHECK_MSG(ms < kit_patience_ms(1000), "behind 200 silent clients a real peer took %d ms", (int)ms);
  for (int i = 0; i < 200; i++) close(fds[i]);
  door_close(&d);
  kit_net_close(&n);
}

static uint64_t thread_cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Calls of accept, and those that took longer than a call may. */
struct crowd { int calls, long_calls; uint64_t longest_ns; };

/* As door_real_peer, in milliseconds of this thread's processor time: it never
 * sleeps, so that is how long it takes where nobody else wants the core. */
static uint64_t door_in_a_crowd(struct door *d, struct crowd *c) {
  void *send = NULL, *recv = NULL;
  char handle[RAIL_NET_HANDLE_SIZE];
  memcpy(handle, d->handle, sizeof handle);
  uint64_t start = thread_cpu_ns(), deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!send || !recv) {
    if (!send) kit_connect_step(d->net, handle, &send);
    uint64_t before = thread_cpu_ns();
    if (!recv) kit_accept_step(d->net, d->listen, &recv);
    uint64_t took = thread_cpu_ns() - before;
    c->calls++;
    c->long_calls += took > kit_patience_ms(1) * 1000000;
    if (took > c->longest_ns) c->longest_ns = took;
    ENSURE(!rail_deadline_passed(deadline), "the real peer was kept out (send %p, recv %p)", send, recv);
  }
  uint64_t ms = (thread_cpu_ns() - start) / 1000000;
  CHECK_OK(d->net->vt->close_send(send));
  CHECK_OK(d->net->vt->close_recv(recv));
  return ms;
}

TEST(a_thousand_silent_clients) {
  enum { MOST = 1000 };
  static int fds[2 * MOST];
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 4 * MOST + 200) tap_skip_case("only %lu files may be open", (unsigned long)limit.rlim_cur);
  struct kit_net n;
  kit_net_open(&n);
  struct door d;
  door_open(&n, &d);
  struct crowd c = {0};
  uint64_t ms[3];
  for (int i = 0; i < MOST; i++) fds[i] = kit_tcp_dial(&d.socket); /* all of them before the first accept */
  ms[0] = door_in_a_crowd(&d, &c);
  ms[1] = door_in_a_crowd(&d, &c); /* all of them inside */
  for (int i = MOST; i < 2 * MOST; i++) fds[i] = kit_tcp_dial(&d.socket); /* more than there are places */
  ms[2] = door_in_a_crowd(&d, &c);
  printf("# a real peer came in after %d, %d and %d ms; %d of %d accepts took longer than 1 ms, the longest %.2f\n",
         (int)ms[0], (int)ms[1], (int)ms[2], c.long_calls, c.calls, (double)c.longest_ns / 1e6);
  for (int i = 0; i < 3; i++) CHECK_MSG(ms[i] < kit_patience_ms(100), "a real peer had to wait for %d ms", (int)ms[i]);
  /* An interrupt in a call counts as its time: hence not none at all. */
  CHECK_MSG(c.long_calls <= 2 + c.calls / 50, "%d of %d accepts took longer than 1 ms", c.long_calls, c.calls);
  CHECK_MSG(c.longest_ns < kit_patience_ms(4) * 1000000, "one accept took %d us", (int)(c.longest_ns / 1000));
  for (int i = 0; i < 2 * MOST; i++) close(fds[i]);
  door_close(&d);
  kit_net_close(&n);
}

/* A flood that uses up the process's files: the strangers have to give theirs back. */
TEST(silence_does_not_use_up_all_files) {
  struct rlimit limit, before;
  int fds[100], count = 0;
  struct kit_net n;
  kit_net_open(&n);
  struct door d;
  door_open(&n, &d);
  for (; count < 100; count++) fds[count] = kit_tcp_dial(&d.socket);
  getrlimit(RLIMIT_NOFILE, &before);
  limit = before;
  limit.rlim_cur = (rlim_t)kit_fd_count() + 40;
  setrlimit(RLIMIT_NOFILE, &limit);
  void *comm;
  for (int i = 0; i < 50; i++) CHECK(!kit_accept_step(&n, d.listen, &comm));
  struct crowd c = {0};
  close(fds[--count]); /* for the peer's own end */
  uint64_t ms = door_in_a_crowd(&d, &c);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK_MSG(ms < kit_patience_ms(1000), "a real peer had to wait for %d ms", (int)ms);
  while (count > 0) close(fds[--count]);
  door_close(&d);
  kit_net_close(&n);
}

/* Lets a connecting plugin talk to a socket of ours instead of `d`, by putting
 * its port into the handle, and takes what it says first. */
static size_t record_hello(struct door *d, uint8_t *hello, size_t cap) {
  struct sockaddr_in6 any = {0};
  socklen_t len = d->socket.local_len;
  memcpy(&any, &d->socket.local, len);
  if (any.sin6_family == AF_INET) ((struct sockaddr_in *)&any)->sin_port = 0;
  else any.sin6_port = 0;
  struct kit_tcp_socket mine = {.local_len = len};
  mine.fd = socket(any.sin6_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(mine.fd >= 0 && bind(mine.fd, (struct sockaddr *)&any, len) == 0 && listen(mine.fd, 5) == 0);
  CHECK(getsockname(mine.fd, (struct sockaddr *)&mine.local, &mine.local_len) == 0);
  char handle[RAIL_NET_HANDLE_SIZE];
  memcpy(handle, d->handle, sizeof handle);
  uint16_t old = htons((uint16_t)kit_tcp_port(&d->socket)), new = htons((uint16_t)kit_tcp_port(&mine));
  int found = 0;
  for (size_t i = 0; i + 2 <= sizeof handle; i++) {
    if (memcmp(handle + i, &old, 2) != 0 || found) continue;
    memcpy(handle + i, &new, 2);
    found++;
  }
  CHECK_MSG(found == 1, "the handle does not hold the port in network order");
  size_t got = 0;
  void *send = NULL;
  int fd = -1;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(1000));
  while (!rail_deadline_passed(deadline) && got < cap) {
    struct rail_net_device_handle *dh = NULL;
    /* Some plugins finish here, before anybody accepts; their greeting is on its way all the same. */
    if (!send && d->net->vt->connect(d->net->ctx, d->net->dev, handle, &send, &dh) != 0) break;
    struct pollfd pfd = {.fd = fd < 0 ? mine.fd : fd, .events = POLLIN};
    if (poll(&pfd, 1, got ? 20 : 1) <= 0) {
      if (got) break; /* it waits for an answer */
      continue;
    }
    if (fd < 0) {
      fd = accept4(mine.fd, NULL, NULL, SOCK_CLOEXEC);
      continue;
    }
    ssize_t k = recv(fd, hello + got, cap - got, MSG_DONTWAIT);
    if (k <= 0) break;
    got += (size_t)k;
  }
  if (fd >= 0) close(fd);
  close(mine.fd);
  CHECK_OK(d->net->vt->close_send(send));
  return got;
}

/* The genuine greeting with one byte wrong, for every byte: wrong magic,
 * version, length, secret. Those bytes that carry no such meaning (a nonce)
 * may be let in; a plugin that lets in nearly all checks nothing. */
TEST(a_greeting_with_one_wrong_byte) {
  struct kit_net n;
  kit_net_open(&n);
  struct door d;
  door_open(&n, &d);
  uint8_t hello[256];
  size_t len = record_hello(&d, hello, sizeof hello);
  printf("# the greeting has %zu bytes\n", len);
  CHECK_MSG(len >= 16, "a greeting of %zu bytes holds no magic, version and secret", len);
  int fds[256], refused = 0;
  for (size_t i = 0; i < len; i++) {
    uint8_t wrong[256];
    memcpy(wrong, hello, len);
    wrong[i] ^= 0x80;
    fds[i] = kit_tcp_dial(&d.socket);
    CHECK_INT(send(fds[i], wrong, len, MSG_NOSIGNAL), len);
    void *comm;
    for (int k = 0; k < 50; k++)
      if (kit_accept_step(&n, d.listen, &comm)) CHECK_OK(n.vt->close_recv(comm));
  }
  uint64_t deadline = rail_deadline_in_ms(300);
  while (!rail_deadline_passed(deadline)) {
    void *comm;
    if (kit_accept_step(&n, d.listen, &comm)) CHECK_OK(n.vt->close_recv(comm));
  }
  for (size_t i = 0; i < len; i++) {
    char words[256]; /* a plugin may say why before it hangs up */
    ssize_t got = recv(fds[i], words, sizeof words, MSG_DONTWAIT);
    if (got > 0) got = recv(fds[i], words, sizeof words, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) refused++;
  }
  printf("# refused %d of %zu\n", refused, len);
  CHECK_MSG(refused >= 16, "only %d greetings with a wrong byte were hung up on", refused);
  door_real_peer(&d);
  for (size_t i = 0; i < len; i++) close(fds[i]);
  door_close(&d);
  kit_net_close(&n);
}

TEST(a_greeting_cut_short) {
  struct kit_net n;
  kit_net_open(&n);
  struct door d;
  door_open(&n, &d);
  uint8_t hello[256];
  size_t len = record_hello(&d, hello, sizeof hello);
  CHECK(len > 1);
  int fds[32], count = 0;
  for (size_t cut = 1; cut < len && count < 32; cut += len / 30 + 1) {
    fds[count] = kit_tcp_dial(&d.socket);
    CHECK_INT(send(fds[count], hello, cut, MSG_NOSIGNAL), cut);
    if (count % 4 == 0) shutdown(fds[count], SHUT_WR);
    if (count % 4 == 1) {
      kit_tcp_reset_on_close(fds[count]);
      close(fds[count]);
      fds[count] = -1;
    }
    count++;
    void *comm;
    CHECK_MSG(!kit_accept_step(&n, d.listen, &comm), "%zu bytes of a greeting were accepted", cut);
  }
  accept_nobody(&d, 50);
  uint64_t ms = door_real_peer(&d);
  CHECK_MSG(ms < kit_patience_ms(1000), "behind half greetings a real peer took %d ms", (int)ms);
  for (int i = 0; i < count; i++) if (fds[i] >= 0) close(fds[i]);
  door_close(&d);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(handle_is_written_whole), TEST_CASE(a_thousand_listens), TEST_CASE(closed_without_accept),
          TEST_CASE(closed_with_a_half_connected_peer), TEST_CASE(garbage), TEST_CASE(silence_does_not_delay),
          TEST_CASE(a_thousand_silent_clients), TEST_CASE(silence_does_not_use_up_all_files),
          TEST_CASE(a_greeting_with_one_wrong_byte), TEST_CASE(a_greeting_cut_short))
