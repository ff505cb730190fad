/* SPDX-License-Identifier: Apache-2.0
 * Foreign clients at the port of a listen comm: scanners, health checks, another job. None keeps a real peer out. */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"
#include "kit/conform/kit_listener.h"

/* Those that are still there. */
static void close_all(const int *fds, int count) {
  for (int i = 0; i < count; i++)
    if (fds[i] >= 0) close(fds[i]);
}

static size_t some_junk(struct kit_rng *rng, int i, uint8_t junk[4096]) {
  for (size_t k = 0; k < 4096; k++) junk[k] = (uint8_t)kit_rng_next(rng);
  if (i % 5 == 1) memset(junk, 0, 4096);
  if (i % 5 == 2) memset(junk, 0xff, 4096);
  if (i % 5 == 3) memcpy(junk, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 28);
  return kit_rng_below(rng, 4096);
}

static void garbage(struct kit_process *self) {
  (void)self;
  enum { COUNT = 60 };
  int fds[COUNT];
  struct kit_net n;
  struct kit_listener d;
  struct kit_rng rng;
  kit_rng_start(&rng);
  kit_listener_open(&n, &d);
  for (int i = 0; i < COUNT; i++) {
    uint8_t junk[4096];
    size_t size = some_junk(&rng, i, junk);
    fds[i] = kit_listener_dial(&d);
    ssize_t sent = send(fds[i], junk, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* the plugin may have closed it already */
    if (i % 3 == 0) { /* some close at once, half of these with a reset */
      if (i % 2) kit_tcp_reset_on_close(fds[i]);
      close(fds[i]);
      fds[i] = -1;
    }
    kit_listener_accepts_none(&d, 0);
  }
  kit_listener_accepts_none(&d, 100);
  kit_listener_accept_peer(&d);
  close_all(fds, COUNT);
  kit_listener_close(&d);
  kit_net_close(&n);
}

static void silence_does_not_delay(struct kit_process *self) {
  enum { COUNT = 100 };
  int fds[COUNT];
  struct kit_net n;
  struct kit_listener d;
  kit_listener_open(&n, &d);
  for (int i = 0; i < COUNT; i++) {
    fds[i] = kit_listener_dial(&d);
    if (i % 10 == 0) kit_listener_accepts_none(&d, 1);
  }
  kit_listener_accepts_none(&d, 50);
  uint64_t start = rail_now_ns();
  kit_listener_accept_peer(&d);
  double ms = (double)(rail_now_ns() - start) / 1e6;
  kit_metric(self, "behind_100_silent_clients", ms, "ms");
  ENSURE(ms < (double)kit_patience_ms(5000), "behind %d silent clients a real peer waited for %.0f ms", COUNT, ms);
  close_all(fds, COUNT);
  kit_listener_close(&d);
  kit_net_close(&n);
}

/* Accepts a real peer behind `count` silent clients. All are connected before the first accept; with `polled` accept
 * has been called for 100 ms before the peer connects, so that the plugin holds them as pending connections. */
static struct kit_accept_timing behind(struct kit_process *self, const struct kit_listener *any, int count,
                                       bool polled) {
  static int fds[2000];
  struct kit_listener d = *any;
  kit_listener_open_another(&d);
  for (int i = 0; i < count; i++) fds[i] = kit_listener_dial(&d);
  if (polled) kit_listener_accepts_none(&d, 100);
  struct kit_accept_timing e = kit_listener_accept_peer(&d);
  kit_note(self, "behind %d silent clients%s a real peer took %.1f ms; %d of %d accepts over 1 ms, the longest %.2f",
           count, polled ? " that were pending already" : "", e.ms, e.long_calls, e.calls, e.longest_ms);
  ENSURE(e.ms < (double)kit_patience_ms(1000), "behind %d silent clients a real peer took %.0f ms", count, e.ms);
  close_all(fds, count);
  kit_listener_close(&d);
  return e;
}

static void a_thousand_silent_clients(struct kit_process *self) {
  struct kit_net n;
  struct kit_listener d;
  kit_need_files(4000);
  kit_listener_open(&n, &d);
  const struct kit_accept_timing e[] = {behind(self, &d, 1000, false), behind(self, &d, 1000, true),
                                behind(self, &d, 2000, false)}; /* more than there may be places */
  int calls = 0, long_calls = 0;
  for (int i = 0; i < 3; i++) {
    calls += e[i].calls;
    long_calls += e[i].long_calls;
  }
  /* An interrupt in a call counts as its time, and a busy machine has many. */
  ENSURE(long_calls <= 5 + calls / 5, "%d of %d accepts took more than 1 ms; all connections wait meanwhile",
         long_calls, calls);
  kit_listener_close(&d);
  kit_net_close(&n);
}

/* A flood that uses up the process's files: the foreign clients have to give theirs back. */
static void silence_does_not_use_up_all_files(struct kit_process *self) {
  (void)self;
  struct rlimit limit, before;
  int fds[100], count = 0;
  struct kit_net n;
  struct kit_listener d;
  kit_listener_open(&n, &d);
  for (; count < 100; count++) fds[count] = kit_listener_dial(&d);
  getrlimit(RLIMIT_NOFILE, &before);
  limit = before;
  limit.rlim_cur = (rlim_t)kit_fd_count() + 40;
  setrlimit(RLIMIT_NOFILE, &limit);
  kit_listener_accepts_none(&d, 20);
  for (int i = 0; i < 2; i++) close(fds[--count]); /* for the peer's own end */
  kit_listener_accept_peer(&d);
  setrlimit(RLIMIT_NOFILE, &before);
  while (count > 0) close(fds[--count]);
  kit_listener_close(&d);
  kit_net_close(&n);
}

static void closed_with_clients_connected(struct kit_process *self) {
  (void)self;
  enum { COUNT = 50 };
  int fds[COUNT];
  struct kit_net n;
  struct kit_listener d;
  kit_listener_open(&n, &d);
  int files = kit_fd_count();
  for (int i = 0; i < COUNT; i++) {
    fds[i] = kit_listener_dial(&d);
    if (i % 2) (void)!send(fds[i], "nonsense", 8, MSG_NOSIGNAL | MSG_DONTWAIT); /* the plugin may have closed it */
  }
  kit_listener_accepts_none(&d, 20);
  uint64_t start = rail_now_ns();
  kit_listener_close(&d);
  double ms = (double)(rail_now_ns() - start) / 1e6;
  ENSURE(ms < (double)kit_patience_ms(2000), "closeListen took %.0f ms with foreign clients connected", ms);
  close_all(fds, COUNT);
  int left = kit_files_after(files); /* one less: the listen comm's own, where it has one */
  ENSURE(left <= files, "closeListen left %d files of %d foreign clients open", left - files, COUNT);
  kit_net_close(&n);
}

/* ---- clients with a part of the greeting ---- */

/* Polls accept for `ms`, and closes what it gives: some bytes of a greeting may carry no meaning. */
static void accept_for(struct kit_listener *d, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  void *comm;
  do {
    if (!kit_accept_step(d->net, d->listen, &comm)) continue;
    int rc = d->net->vt->close_recv(comm);
    ENSURE(rc == 0, "closeRecv of a foreign client's connection returned %s", kit_rc_text(rc));
  } while (!rail_deadline_passed(deadline));
}

static bool is_closed_by_peer(int fd) {
  char reason[256]; /* it may send a reason before it closes */
  ssize_t got = recv(fd, reason, sizeof reason, MSG_DONTWAIT);
  if (got > 0) got = recv(fd, reason, sizeof reason, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

/* The genuine greeting with one byte wrong, for every byte: wrong magic, version, length, secret. A wrong byte
 * that carries no such meaning (a nonce) may be accepted; a plugin that accepts nearly all checks nothing. */
static void a_greeting_with_one_wrong_byte(struct kit_process *self) {
  struct kit_net n;
  struct kit_listener d;
  uint8_t hello[256];
  int fds[256], refused = 0;
  kit_listener_open(&n, &d);
  size_t len = kit_listener_record_hello(&d, hello, sizeof hello);
  for (size_t i = 0; i < len; i++) {
    uint8_t wrong[256];
    memcpy(wrong, hello, len);
    wrong[i] ^= 0x80;
    fds[i] = kit_listener_dial(&d);
    ENSURE(send(fds[i], wrong, len, MSG_NOSIGNAL) == (ssize_t)len, "the plugin's port takes no %zu bytes", len);
    accept_for(&d, 0);
  }
  accept_for(&d, 300);
  for (size_t i = 0; i < len; i++) refused += is_closed_by_peer(fds[i]);
  kit_metric(self, "greeting_bytes", (double)len, "B");
  kit_metric(self, "greeting_bytes_checked", refused, "B");
  ENSURE(refused >= 4, "%d of %zu greetings with one wrong byte were hung up on: not even a magic number is checked",
         refused, len);
  kit_listener_accept_peer(&d);
  close_all(fds, (int)len);
  kit_listener_close(&d);
  kit_net_close(&n);
}

static void a_greeting_cut_short(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_listener d;
  uint8_t hello[256];
  int fds[32], count = 0;
  kit_listener_open(&n, &d);
  size_t len = kit_listener_record_hello(&d, hello, sizeof hello);
  for (size_t cut = 1; cut < len && count < 32; cut += len / 30 + 1) {
    fds[count] = kit_listener_dial(&d);
    ENSURE(send(fds[count], hello, cut, MSG_NOSIGNAL) == (ssize_t)cut, "the plugin's port takes no %zu bytes", cut);
    if (count % 4 == 0) shutdown(fds[count], SHUT_WR);
    if (count % 4 == 1) {
      kit_tcp_reset_on_close(fds[count]);
      close(fds[count]);
      fds[count] = -1;
    }
    count++;
    kit_listener_accepts_none(&d, 0);
  }
  kit_listener_accepts_none(&d, 50);
  kit_listener_accept_peer(&d);
  close_all(fds, count);
  kit_listener_close(&d);
  kit_net_close(&n);
}

/* Each listen comm is one connection of one communicator. A greeting for another one, of this job or of one that had
 * the port before, must be refused. */
static void a_greeting_for_another(struct kit_process *self) {
  (void)self;
  enum { COUNT = 10 };
  struct kit_net n;
  struct kit_listener d;
  uint8_t hello[256];
  int fds[COUNT];
  kit_listener_open(&n, &d);
  struct kit_listener other = d;
  size_t len = kit_listener_record_hello(&d, hello, sizeof hello);
  kit_listener_open_another(&other);
  for (int i = 0; i < COUNT; i++) {
    fds[i] = kit_listener_dial(&other);
    ENSURE(send(fds[i], hello, len, MSG_NOSIGNAL) == (ssize_t)len, "the plugin's port takes no %zu bytes", len);
    kit_listener_accepts_none(&other, 10);
  }
  kit_listener_accepts_none(&other, 50);
  kit_listener_accept_peer(&other);
  close_all(fds, COUNT);
  kit_listener_close(&other);
  kit_listener_close(&d);
  kit_net_close(&n);
}

static void connect_and_leave(struct kit_listener *d, struct kit_rng *rng, int count) {
  for (int i = 0; i < count; i++) {
    uint8_t junk[4096];
    int fd = kit_listener_dial(d);
    size_t size = some_junk(rng, i, junk);
    ssize_t sent = i % 4 ? send(fd, junk, size, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    (void)sent;
    kit_listener_accepts_none(d, 0);
    if (i % 2) kit_tcp_reset_on_close(fd);
    close(fd);
    kit_listener_accepts_none(d, 0);
  }
}

static void clients_leave_nothing(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_listener d;
  struct kit_rng rng;
  kit_rng_start(&rng);
  kit_listener_open(&n, &d);
  connect_and_leave(&d, &rng, 5); /* so that what stays for good is there */
  kit_listener_accepts_none(&d, 100);
  int files = kit_fd_count(), count = kit_scaled(100);
  connect_and_leave(&d, &rng, count);
  /* accept is when a plugin sees that they have left */
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_SETTLE_MS));
  while (kit_fd_count() > files && !rail_deadline_passed(deadline)) kit_listener_accepts_none(&d, 1);
  int left = kit_fd_count() - files;
  ENSURE(left <= 0, "%d foreign clients connected and left, and %d more files are open", count, left);
  kit_listener_accept_peer(&d);
  kit_listener_close(&d);
  kit_net_close(&n);
}

const struct kit_check kit_checks_foreign[] = {
  {"3.20", "listen.garbage", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "Foreign clients that write junk are never accepted, and a real peer is accepted after them.",
   .source = "src/misc/socket.cc:327-366; issues 1612, 1808, 1880", .run = garbage},
  {"3.21", "listen.silence_does_not_delay", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "Foreign clients that connect and send nothing do not keep a real peer out.",
   .source = "src/misc/socket.cc:327-357, src/transport/net_socket.cc:514-518", .run = silence_does_not_delay},
  {"3.22", "listen.a_thousand_silent_clients", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "Thousands of them delay a real peer by less than a second, and accept stays short.",
   .source = "src/proxy.cc:1776, src/transport/net_socket.cc:514-518", .run = a_thousand_silent_clients},
  {"3.23", "listen.silence_does_not_use_up_all_files", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "When foreign clients have used up the process's open files, a real peer is still accepted.",
   .source = "src/transport/net_socket.cc:500-530", .run = silence_does_not_use_up_all_files},
  {"3.24", "listen.closed_with_foreign_clients", KIT_SHOULD, KIT_ONE,
   .what = "closeListen with foreign clients connected is quick and closes their files.",
   .source = "src/transport/net.cc:1090, src/transport/net_socket.cc:500-530", .run = closed_with_clients_connected},
  {"3.25", "listen.a_greeting_with_one_wrong_byte", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "A greeting is checked: with a wrong byte in it the connection is refused, and a real peer is accepted "
           "after it.",
   .source = "src/misc/socket.cc:359-366, src/transport/net_socket.cc:460", .run = a_greeting_with_one_wrong_byte},
  {"3.26", "listen.a_greeting_cut_short", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "A greeting that ends in the middle is no connection, and a real peer is accepted after it.",
   .source = "src/misc/socket.cc:327-366", .run = a_greeting_cut_short},
  {"3.27", "listen.a_greeting_for_another", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "The genuine greeting for one listen comm is refused by another: no peer is mistaken for another one.",
   .source = "src/misc/socket.cc:359-366", .run = a_greeting_for_another},
  {"3.28", "listen.foreign_clients_leave_nothing", KIT_SHOULD, KIT_ONE, .limit_s = 30,
   .what = "Foreign clients that have connected and left leave no open file.",
   .source = "src/transport/net_socket.cc:500-530", .run = clients_leave_nothing},
  {0},
};
