/* SPDX-License-Identifier: Apache-2.0
 * Opens listen comms and finds the TCP ports behind them, connects to those as a foreign client would, and times how
 * long a real peer is kept out. */
#include "kit/conform/kit_listener.h"

#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"
#include "kit/kit_process.h"

/* The longest that a real peer may be kept out before the check gives up on it. */
#define ACCEPT_MS 10000

static void listen_and_look(struct kit_listener *d, const struct kit_tcp_socket *before, int nbefore) {
  d->listen = kit_net_listen(d->net, d->handle);
  d->nsockets = kit_tcp_new_listeners(before, nbefore, d->socket, (int)(sizeof d->socket / sizeof d->socket[0]));
}

static struct kit_tcp_socket already[4096]; /* before a listen */

void kit_listener_open(struct kit_net *n, struct kit_listener *d) {
  int count = kit_tcp_sockets(already, 4096);
  kit_net_open(n);
  memset(d, 0, sizeof *d);
  d->net = n;
  listen_and_look(d, already, count);
  if (d->nsockets == 0) kit_skip("the plugin opens no TCP port that foreign clients could connect to");
}

void kit_listener_open_another(struct kit_listener *d) {
  struct kit_tcp_socket same[sizeof d->socket / sizeof d->socket[0]];
  int nsame = d->nsockets;
  memcpy(same, d->socket, sizeof same);
  listen_and_look(d, already, kit_tcp_sockets(already, 4096));
  if (d->nsockets > 0) return;
  memcpy(d->socket, same, sizeof same); /* one port for all its listen comms */
  d->nsockets = nsame;
}

void kit_listener_close(struct kit_listener *d) {
  int rc = d->net->vt->close_listen(d->listen);
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
}

int kit_listener_dial(struct kit_listener *d) { return kit_tcp_dial(&d->socket[d->dials++ % d->nsockets]); }

void kit_listener_accepts_none(struct kit_listener *d, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  void *comm;
  do {
    ENSURE(!kit_accept_step(d->net, d->listen, &comm), "accept gave a connection, but only foreign clients are there");
    kit_short_sleep();
  } while (!rail_deadline_passed(deadline));
}

static double thread_cpu_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

struct kit_accept_timing kit_listener_accept_peer(struct kit_listener *d) {
  struct kit_pair p = {.net = d->net};
  struct kit_accept_timing e = {0};
  memcpy(p.handle, d->handle, sizeof p.handle);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(ACCEPT_MS));
  double start = thread_cpu_ms();
  while (!p.send || !p.recv) {
    if (!p.send) kit_connect_step(d->net, p.handle, &p.send);
    double before = thread_cpu_ms();
    if (!p.recv) kit_accept_step(d->net, d->listen, &p.recv);
    double took = thread_cpu_ms() - before;
    e.calls++;
    e.long_calls += took > (double)kit_patience_ms(1);
    if (took > e.longest_ms) e.longest_ms = took;
    ENSURE(!rail_deadline_passed(deadline), "foreign clients keep a real peer out: after %d s %s", ACCEPT_MS / 1000,
           !p.send ? "connect has not come through" : "it is connected, but accept has not returned it");
  }
  e.ms = thread_cpu_ms() - start;
  kit_pair_ping(&p, 12345, 99);
  kit_pair_close(&p);
  return e;
}

/* ---- what a connecting plugin sends first ---- */

/* A port of ours beside the listener's first one; the handle points to it from now on. */
static struct kit_tcp_socket stand_in(const struct kit_listener *d, char *handle) {
  struct kit_tcp_socket mine = {.local_len = sizeof mine.local};
  for (int s = 0; s < d->nsockets; s++) {
    struct sockaddr_storage any = d->socket[s].local;
    if (any.ss_family == AF_INET) ((struct sockaddr_in *)&any)->sin_port = 0;
    else ((struct sockaddr_in6 *)&any)->sin6_port = 0;
    uint16_t old = htons((uint16_t)kit_tcp_port(&d->socket[s]));
    int found = 0;
    size_t at = 0;
    for (size_t i = 0; i + 2 <= RAIL_NET_HANDLE_SIZE; i++)
      if (memcmp(handle + i, &old, 2) == 0 && found++ == 0) at = i;
    if (found == 0) continue;
    mine.fd = socket(any.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ENSURE(mine.fd >= 0 && bind(mine.fd, (struct sockaddr *)&any, d->socket[s].local_len) == 0 &&
               listen(mine.fd, 5) == 0 && getsockname(mine.fd, (struct sockaddr *)&mine.local, &mine.local_len) == 0,
           "no port of the kit's own beside the plugin's");
    uint16_t new = htons((uint16_t)kit_tcp_port(&mine));
    memcpy(handle + at, &new, 2);
    return mine;
  }
  kit_skip("the handle does not show a port in network order: the greeting cannot be recorded");
}

size_t kit_listener_record_hello(struct kit_listener *d, uint8_t *text, size_t cap) {
  char handle[RAIL_NET_HANDLE_SIZE];
  memcpy(handle, d->handle, sizeof handle);
  struct kit_tcp_socket mine = stand_in(d, handle);
  size_t got = 0;
  void *send = NULL;
  int fd = -1;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_SETTLE_MS));
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
    ssize_t k = recv(fd, text + got, cap - got, MSG_DONTWAIT);
    if (k <= 0) break;
    got += (size_t)k;
  }
  if (fd >= 0) close(fd);
  close(mine.fd);
  int rc = d->net->vt->close_send(send);
  ENSURE(rc == 0, "closeSend of a connection without a real peer returned %s", kit_rc_text(rc));
  if (got == 0) kit_skip("the connecting side sends nothing first: there is no greeting to change");
  return got;
}

/* ---- files ---- */

void kit_need_files(int files) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < (rlim_t)files + 200)
    kit_skip("only %lu files may be open in a process here (ulimit -n); this needs %d", (unsigned long)limit.rlim_cur,
             files + 200);
}

int kit_files_after(int expected) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_SETTLE_MS));
  while (kit_fd_count() > expected && !rail_deadline_passed(deadline))
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return kit_fd_count();
}
