/* SPDX-License-Identifier: Apache-2.0
 * Listening: a thousand at once, closed at any moment, and strangers never keep a real peer out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "kit/conform/kit_check.h"
#include "kit/conform/kit_door.h"

/* Room for `files` more, else the check is skipped. */
static void need_files(int files) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < (rlim_t)files + 200)
    kit_skip("only %lu files may be open in a process here (ulimit -n); this needs %d", (unsigned long)limit.rlim_cur,
             files + 200);
}

static void close_listen(struct kit_net *n, void *listen) {
  int rc = n->vt->close_listen(listen);
  ENSURE(rc == 0, "closeListen returned %d", rc);
}

/* ---- the handle ---- */

/* The bytes that listen does not write are whatever lay in NCCL's memory. They must mean nothing: not to the peer, and
 * not to a connect that keeps its state in them. */
static void handle_is_written_whole(struct kit_side *side) {
  static const uint8_t fill[] = {0x00, 0xff, 0x3c, 0x01};
  struct kit_net n;
  int written = 0;
  kit_net_open(&n);
  for (size_t f = 0; f < sizeof fill; f++) {
    uint8_t other[RAIL_NET_HANDLE_SIZE];
    struct kit_pair p = {.net = &n};
    memset(other, 0x5a, sizeof other);
    memset(p.handle, 0xa5, sizeof p.handle);
    void *unused = kit_net_listen(&n, other);
    p.listen = kit_net_listen(&n, p.handle);
    written = 0;
    for (size_t i = 0; i < sizeof other; i++) {
      if ((uint8_t)p.handle[i] == 0xa5 && other[i] == 0x5a) p.handle[i] = (char)fill[f];
      else written++;
    }
    ENSURE(written > 0, "listen wrote nothing into the handle: the peer has nothing to connect to");
    kit_pair_meet(&p);
    kit_pair_ping(&p, 100, f);
    kit_pair_close(&p);
    close_listen(&n, unused);
  }
  kit_metric(side, "handle_bytes_written", written, "B");
  kit_net_close(&n);
}

static void handles_differ(struct kit_side *side) {
  (void)side;
  enum { MANY = 20 };
  static char handle[MANY][RAIL_NET_HANDLE_SIZE];
  void *listen[MANY];
  struct kit_net n;
  kit_net_open(&n);
  for (int i = 0; i < MANY; i++) listen[i] = kit_net_listen(&n, handle[i]);
  for (int i = 0; i < MANY; i++)
    for (int k = 0; k < i; k++)
      ENSURE(memcmp(handle[i], handle[k], sizeof handle[0]) != 0,
             "listen gave the same handle twice, in calls %d and %d", k, i);
  for (int i = 0; i < MANY; i++) close_listen(&n, listen[i]);
  kit_net_close(&n);
}

/* ---- many ---- */

static void a_thousand_listens(struct kit_side *side) {
  enum { MOST = 1000 };
  static char handle[MOST][RAIL_NET_HANDLE_SIZE];
  static void *listen[MOST];
  struct kit_net n;
  need_files(MOST);
  kit_net_open(&n);
  int count = kit_scaled(MOST), fds = kit_fd_count(), threads = kit_thread_count();
  for (int i = 0; i < count; i++) listen[i] = kit_net_listen(&n, handle[i]);
  kit_metric(side, "files_per_listen", (double)(kit_fd_count() - fds) / count, "");
  kit_metric(side, "threads_for_all", kit_thread_count() - threads, "");
  const int some[] = {count - 1, count / 2, 0};
  for (int i = 0; i < 3; i++) {
    struct kit_pair p = {.net = &n, .listen = listen[some[i]]};
    memcpy(p.handle, handle[some[i]], sizeof p.handle);
    kit_pair_meet(&p);
    kit_pair_ping(&p, 100, (uint64_t)i);
    p.listen = NULL;
    kit_pair_close(&p);
  }
  for (int i = 0; i < count; i++) close_listen(&n, listen[i]);
  kit_net_close(&n);
}

/* Asks again while files are being given back by a thread of the plugin's. */
static int files_after(int expected) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(2000));
  while (kit_fd_count() > expected && !rail_deadline_passed(deadline))
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return kit_fd_count();
}

static void closed_listens_leave_nothing(struct kit_side *side) {
  (void)side;
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  for (int i = 0; i < 3; i++) close_listen(&n, kit_net_listen(&n, handle));
  int fds = kit_fd_count(), threads = kit_thread_count(), count = kit_scaled(300);
  for (int i = 0; i < count; i++) {
    void *listen = kit_net_listen(&n, handle), *comm;
    if (i % 2) kit_accept_step(&n, listen, &comm);
    close_listen(&n, listen);
  }
  int left = files_after(fds);
  ENSURE(left <= fds, "%d listens, all closed, left %d files open", count, left - fds);
  ENSURE(kit_thread_count() <= threads, "%d listens, all closed, left %d threads", count,
         kit_thread_count() - threads);
  kit_net_close(&n);
}

/* ---- closed early ---- */

static void closed_without_accept(struct kit_side *side) {
  (void)side;
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  void *comm;
  kit_net_open(&n);
  for (int polls = 0; polls < 4; polls++) {
    void *listen = kit_net_listen(&n, handle);
    for (int i = 0; i < polls; i++)
      ENSURE(!kit_accept_step(&n, listen, &comm), "accept gave a connection, and nobody has connected");
    close_listen(&n, listen);
  }
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void close_of_null(struct kit_side *side) {
  (void)side;
  struct kit_net n;
  kit_net_open(&n);
  close_listen(&n, NULL);
  kit_net_close(&n);
}

static void closed_with_a_half_connected_peer(struct kit_side *side) {
  (void)side;
  struct kit_net n;
  kit_net_open(&n);
  for (int steps = 1; steps <= 8; steps++) {
    char handle[RAIL_NET_HANDLE_SIZE];
    void *listen = kit_net_listen(&n, handle), *send = NULL, *recv = NULL;
    for (int i = 0; i < steps && !send; i++) kit_connect_step(&n, handle, &send);
    if (steps > 4) kit_accept_step(&n, listen, &recv);
    close_listen(&n, listen);
    /* The connecting side learns of it or is left waiting; it never hangs or breaks. */
    uint64_t deadline = rail_deadline_in_ms(200);
    int rc = 0;
    while (!send && rc == 0 && !rail_deadline_passed(deadline)) {
      struct rail_net_device_handle *dh = NULL;
      rc = n.vt->connect(n.ctx, n.dev, handle, &send, &dh);
      ENSURE(rc == 0 || !send, "connect failed with %d and left *sendComm at %p; NCCL closes that, twice", rc, send);
    }
    rc = n.vt->close_send(send);
    ENSURE(rc == 0, "closeSend(%p) returned %d", send, rc);
    rc = n.vt->close_recv(recv);
    ENSURE(rc == 0, "closeRecv(%p) returned %d", recv, rc);
  }
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* ---- strangers ---- */

static size_t some_junk(struct kit_rng *rng, int i, uint8_t junk[4096]) {
  for (size_t k = 0; k < 4096; k++) junk[k] = (uint8_t)kit_rng_next(rng);
  if (i % 5 == 1) memset(junk, 0, 4096);
  if (i % 5 == 2) memset(junk, 0xff, 4096);
  if (i % 5 == 3) memcpy(junk, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 28);
  return kit_rng_below(rng, 4096);
}

static void garbage(struct kit_side *side) {
  (void)side;
  enum { COUNT = 60 };
  int fds[COUNT];
  struct kit_net n;
  struct kit_door d;
  struct kit_rng rng;
  kit_rng_start(&rng);
  kit_door_open(&n, &d);
  for (int i = 0; i < COUNT; i++) {
    uint8_t junk[4096];
    size_t size = some_junk(&rng, i, junk);
    fds[i] = kit_door_knock(&d);
    ssize_t sent = send(fds[i], junk, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* the plugin may have hung up already */
    if (i % 3 == 0) { /* some leave at once, half of these with a reset */
      if (i % 2) kit_tcp_reset_on_close(fds[i]);
      close(fds[i]);
      fds[i] = -1;
    }
    kit_door_stays_shut(&d, 0);
  }
  kit_door_stays_shut(&d, 100);
  kit_door_peer(&d);
  for (int i = 0; i < COUNT; i++)
    if (fds[i] >= 0) close(fds[i]);
  kit_door_close(&d);
  kit_net_close(&n);
}

static void silence_does_not_delay(struct kit_side *side) {
  enum { COUNT = 100 };
  int fds[COUNT];
  struct kit_net n;
  struct kit_door d;
  kit_door_open(&n, &d);
  for (int i = 0; i < COUNT; i++) {
    fds[i] = kit_door_knock(&d);
    if (i % 10 == 0) kit_door_stays_shut(&d, 1);
  }
  kit_door_stays_shut(&d, 50);
  uint64_t start = rail_now_ns();
  kit_door_peer(&d);
  double ms = (double)(rail_now_ns() - start) / 1e6;
  kit_metric(side, "behind_100_silent_clients", ms, "ms");
  ENSURE(ms < (double)kit_patience_ms(5000), "behind %d silent clients a real peer waited for %.0f ms", COUNT, ms);
  for (int i = 0; i < COUNT; i++) close(fds[i]);
  kit_door_close(&d);
  kit_net_close(&n);
}

static void note_entry(struct kit_side *side, const char *when, const struct kit_entry *e) {
  kit_note(side, "%s, a real peer took %.1f ms; %d of %d accepts took over 1 ms, the longest %.2f", when, e->ms,
           e->long_calls, e->calls, e->longest_ms);
}

static void a_thousand_silent_clients(struct kit_side *side) {
  enum { MOST = 1000 };
  static int fds[2 * MOST];
  struct kit_net n;
  struct kit_door d;
  struct kit_entry e[3];
  need_files(4 * MOST);
  kit_door_open(&n, &d);
  for (int i = 0; i < MOST; i++) fds[i] = kit_door_knock(&d); /* all of them before the first accept */
  e[0] = kit_door_peer(&d);
  note_entry(side, "before any of 1000 silent clients was seen", &e[0]);
  e[1] = kit_door_peer(&d);
  note_entry(side, "with 1000 of them inside", &e[1]);
  for (int i = MOST; i < 2 * MOST; i++) fds[i] = kit_door_knock(&d); /* more than there may be places */
  e[2] = kit_door_peer(&d);
  note_entry(side, "with 1000 more", &e[2]);
  int calls = 0, long_calls = 0;
  for (int i = 0; i < 3; i++) {
    ENSURE(e[i].ms < (double)kit_patience_ms(1000), "behind a thousand silent clients a real peer took %.0f ms",
           e[i].ms);
    calls += e[i].calls;
    long_calls += e[i].long_calls;
  }
  /* An interrupt in a call counts as its time, and a busy machine has many. */
  ENSURE(long_calls <= 5 + calls / 5, "%d of %d accepts took more than 1 ms; all connections wait meanwhile",
         long_calls, calls);
  for (int i = 0; i < 2 * MOST; i++) close(fds[i]);
  kit_door_close(&d);
  kit_net_close(&n);
}

/* A flood that uses up the process's files: the strangers have to give theirs back. */
static void silence_does_not_use_up_all_files(struct kit_side *side) {
  (void)side;
  struct rlimit limit, before;
  int fds[100], count = 0;
  struct kit_net n;
  struct kit_door d;
  kit_door_open(&n, &d);
  for (; count < 100; count++) fds[count] = kit_door_knock(&d);
  getrlimit(RLIMIT_NOFILE, &before);
  limit = before;
  limit.rlim_cur = (rlim_t)kit_fd_count() + 40;
  setrlimit(RLIMIT_NOFILE, &limit);
  kit_door_stays_shut(&d, 20);
  for (int i = 0; i < 2; i++) close(fds[--count]); /* for the peer's own end */
  kit_door_peer(&d);
  setrlimit(RLIMIT_NOFILE, &before);
  while (count > 0) close(fds[--count]);
  kit_door_close(&d);
  kit_net_close(&n);
}

static void closed_with_strangers_inside(struct kit_side *side) {
  (void)side;
  enum { COUNT = 50 };
  int fds[COUNT];
  struct kit_net n;
  struct kit_door d;
  kit_door_open(&n, &d);
  int files = kit_fd_count();
  for (int i = 0; i < COUNT; i++) {
    fds[i] = kit_door_knock(&d);
    if (i % 2) ENSURE(send(fds[i], "stranger", 8, MSG_NOSIGNAL | MSG_DONTWAIT) != 0, "send says nothing");
  }
  kit_door_stays_shut(&d, 20);
  uint64_t start = rail_now_ns();
  kit_door_close(&d);
  double ms = (double)(rail_now_ns() - start) / 1e6;
  ENSURE(ms < (double)kit_patience_ms(2000), "closeListen took %.0f ms with strangers inside", ms);
  for (int i = 0; i < COUNT; i++) close(fds[i]);
  int left = files_after(files); /* one less: the listen comm's own, where it has one */
  ENSURE(left <= files, "closeListen left %d files of %d strangers open", left - files, COUNT);
  kit_net_close(&n);
}

/* ---- those who know half of the greeting ---- */

/* Polls accept for `ms`. Whoever comes out is closed: in a greeting there are bytes that mean nothing. */
static void let_in(struct kit_door *d, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  void *comm;
  do {
    if (!kit_accept_step(d->net, d->listen, &comm)) continue;
    int rc = d->net->vt->close_recv(comm);
    ENSURE(rc == 0, "closeRecv of a stranger's connection returned %d", rc);
  } while (!rail_deadline_passed(deadline));
}

static bool hung_up(int fd) {
  char words[256]; /* it may say why before it hangs up */
  ssize_t got = recv(fd, words, sizeof words, MSG_DONTWAIT);
  if (got > 0) got = recv(fd, words, sizeof words, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

/* The genuine greeting with one byte wrong, for every byte: wrong magic, version, length, secret. Those bytes that
 * carry no such meaning (a nonce) may be let in; a plugin that lets in nearly all checks nothing. */
static void a_greeting_with_one_wrong_byte(struct kit_side *side) {
  struct kit_net n;
  struct kit_door d;
  uint8_t hello[256];
  int fds[256], refused = 0;
  kit_door_open(&n, &d);
  size_t len = kit_door_greeting(&d, hello, sizeof hello);
  for (size_t i = 0; i < len; i++) {
    uint8_t wrong[256];
    memcpy(wrong, hello, len);
    wrong[i] ^= 0x80;
    fds[i] = kit_door_knock(&d);
    ENSURE(send(fds[i], wrong, len, MSG_NOSIGNAL) == (ssize_t)len, "the plugin's port takes no %zu bytes", len);
    let_in(&d, 0);
  }
  let_in(&d, 300);
  for (size_t i = 0; i < len; i++) refused += hung_up(fds[i]);
  kit_metric(side, "greeting_bytes", (double)len, "B");
  kit_metric(side, "greeting_bytes_checked", refused, "B");
  ENSURE(refused >= 4, "%d of %zu greetings with one wrong byte were hung up on: not even a magic number is checked",
         refused, len);
  kit_door_peer(&d);
  for (size_t i = 0; i < len; i++) close(fds[i]);
  kit_door_close(&d);
  kit_net_close(&n);
}

static void a_greeting_cut_short(struct kit_side *side) {
  (void)side;
  struct kit_net n;
  struct kit_door d;
  uint8_t hello[256];
  int fds[32], count = 0;
  kit_door_open(&n, &d);
  size_t len = kit_door_greeting(&d, hello, sizeof hello);
  for (size_t cut = 1; cut < len && count < 32; cut += len / 30 + 1) {
    fds[count] = kit_door_knock(&d);
    ENSURE(send(fds[count], hello, cut, MSG_NOSIGNAL) == (ssize_t)cut, "the plugin's port takes no %zu bytes", cut);
    if (count % 4 == 0) shutdown(fds[count], SHUT_WR);
    if (count % 4 == 1) {
      kit_tcp_reset_on_close(fds[count]);
      close(fds[count]);
      fds[count] = -1;
    }
    count++;
    kit_door_stays_shut(&d, 0);
  }
  kit_door_stays_shut(&d, 50);
  kit_door_peer(&d);
  for (int i = 0; i < count; i++)
    if (fds[i] >= 0) close(fds[i]);
  kit_door_close(&d);
  kit_net_close(&n);
}

const struct kit_check kit_checks_listen[] = {
  {"3.1", "listen.handle_is_written_whole", KIT_MUST, KIT_ONE, 0, 0, false,
   "All bytes of the handle that connect reads were written by listen; what else lies there means nothing.",
   "src/transport/net.cc:189-190, src/include/transport.h:67", handle_is_written_whole},
  {"3.2", "listen.handles_differ", KIT_MUST, KIT_ONE, 0, 0, false,
   "Each listen gives a handle of its own.",
   "src/transport/net.cc:810", handles_differ},
  {"3.3", "listen.a_thousand_listens", KIT_MUST, KIT_ONE, 60, 0, false,
   "A thousand listen comms are open at the same time, and each of them works.",
   "src/transport.cc:75, 140-330, src/transport/net.cc:810", a_thousand_listens},
  {"3.4", "listen.closed_listens_leave_nothing", KIT_SHOULD, KIT_ONE, 0, 0, false,
   "Closed listen comms leave no thread and no open file.",
   "src/transport/net.cc:1090", closed_listens_leave_nothing},
  {"3.5", "listen.closed_without_accept", KIT_MUST, KIT_ONE, 0, 0, false,
   "closeListen works before any connection was accepted, and accept before anybody connects gives NULL.",
   "src/transport/net.cc:1048-1065, 1090", closed_without_accept},
  {"3.6", "listen.closed_with_a_half_connected_peer", KIT_MUST, KIT_ONE, 0, 0, false,
   "closeListen works while a peer is connecting; that peer gets an error or waits, and *sendComm stays NULL.",
   "src/transport/net.cc:862-878, 890-892, 1090", closed_with_a_half_connected_peer},
  {"3.7", "listen.close_of_null", KIT_SHOULD, KIT_ONE, 0, 0, false,
   "closeListen(NULL) is accepted.",
   "src/bootstrap.cc:1323-1327", close_of_null},
  {"3.8", "listen.garbage", KIT_SHOULD, KIT_ONE, 60, 0, false,
   "Strangers who write junk are never accepted, and a real peer comes in after them.",
   "src/misc/socket.cc:327-366; issues 1612, 1808, 1880", garbage},
  {"3.9", "listen.silence_does_not_delay", KIT_SHOULD, KIT_ONE, 60, 0, false,
   "Strangers who connect and say nothing do not keep a real peer out.",
   "src/misc/socket.cc:327-357, src/transport/net_socket.cc:514-518", silence_does_not_delay},
  {"3.10", "listen.a_thousand_silent_clients", KIT_SHOULD, KIT_ONE, 60, 0, true,
   "A thousand of them, twice, delay a real peer by less than a second, and no accept is long.",
   "src/proxy.cc:1776, src/transport/net_socket.cc:514-518", a_thousand_silent_clients},
  {"3.11", "listen.silence_does_not_use_up_all_files", KIT_SHOULD, KIT_ONE, 60, 0, false,
   "When strangers have used up the process's open files, a real peer still comes in.",
   "src/transport/net_socket.cc:500-530", silence_does_not_use_up_all_files},
  {"3.12", "listen.closed_with_strangers_inside", KIT_SHOULD, KIT_ONE, 0, 0, false,
   "closeListen with strangers inside is quick and gives back their files.",
   "src/transport/net.cc:1090, src/transport/net_socket.cc:500-530", closed_with_strangers_inside},
  {"3.13", "listen.a_greeting_with_one_wrong_byte", KIT_SHOULD, KIT_ONE, 60, 0, false,
   "A greeting is checked: with a wrong byte in it the connection is refused, and a real peer comes in after it.",
   "src/misc/socket.cc:359-366, src/transport/net_socket.cc:460", a_greeting_with_one_wrong_byte},
  {"3.14", "listen.a_greeting_cut_short", KIT_SHOULD, KIT_ONE, 60, 0, false,
   "A greeting that ends in the middle is no connection, and a real peer comes in after it.",
   "src/misc/socket.cc:327-366", a_greeting_cut_short},
  {0},
};
