/* SPDX-License-Identifier: Apache-2.0
 * The injector: a process that takes orders from its parent, and kills, stops or interrupts the parent, runs foreign
 * clients, or acts on a link when their time has come. */
#include "kit/fault/fault_injector.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_plan.h"

/* In the injector process: */
static int orders = -1;
static pid_t self;

static bool has_new_order(uint64_t us) {
  struct pollfd p = {.fd = orders, .events = POLLIN};
  struct timespec wait = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
  return ppoll(&p, 1, &wait, NULL) > 0;
}

enum { MAX_CLIENTS = 4000, TURN_US = 2000, FLOOD_PIECE = 65536 };

struct client {
  int fd; /* -1: none */
  bool connected;
  bool sent;
};

static struct client clients[MAX_CLIENTS];

static int dial(const struct kit_injector_order *o, struct kit_rng *rng) {
  int which = (int)kit_rng_below(rng, (uint32_t)o->nports);
  const struct sockaddr *addr = (const struct sockaddr *)&o->port[which].addr;
  int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, addr, o->port[which].size) != 0 && errno != EINPROGRESS) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static bool is_connected(int fd) {
  struct sockaddr_storage peer;
  socklen_t size = sizeof peer;
  return getpeername(fd, (struct sockaddr *)&peer, &size) == 0;
}

/* The start of HTTP or TLS, constant bytes, or random ones. */
static size_t make_payload(uint8_t *text, size_t room, struct kit_rng *rng) {
  static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  static const char tls[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc";
  size_t n = 1 + kit_rng_below(rng, (uint32_t)room - 1);
  switch (kit_rng_below(rng, 5)) {
  case 0: n = sizeof http - 1; memcpy(text, http, n); break;
  case 1: n = sizeof tls - 1; memcpy(text, tls, n); break;
  case 2: memset(text, 0, n); break;
  case 3: memset(text, 0xff, n); break;
  default:
    for (size_t i = 0; i < n; i++) text[i] = (uint8_t)kit_rng_next(rng);
  }
  return n;
}

static void leave(struct client *s, bool reset) {
  struct linger now = {.l_onoff = 1, .l_linger = 0};
  if (reset) setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(s->fd);
  *s = (struct client){.fd = -1};
}

/* A flood sends until the peer closes the connection; the other kinds send once. */
static void send_payload(struct client *s, enum kit_client_kind kind, struct kit_rng *rng) {
  static uint8_t text[FLOOD_PIECE];
  if (kind == KIT_CLIENTS_SILENT || (s->sent && kind != KIT_CLIENTS_FLOOD)) return;
  size_t n = make_payload(text, 400, rng);
  if (kind == KIT_CLIENTS_FLOOD) n = sizeof text;
  if (send(s->fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) leave(s, false);
  else s->sent = true;
}

static void client_step(struct client *s, const struct kit_injector_order *o, enum kit_client_kind kind,
                        struct kit_rng *rng, _Atomic int32_t *connected) {
  if (s->fd < 0) s->fd = dial(o, rng);
  if (s->fd < 0) return;
  if (!s->connected && is_connected(s->fd)) {
    s->connected = true;
    atomic_fetch_add(connected, 1);
  }
  if (!s->connected) return;
  if (kind == KIT_CLIENTS_RESET) {
    if (kit_rng_below(rng, 2)) send_payload(s, kind, rng);
    if (s->fd >= 0) leave(s, true);
  } else if (kind == KIT_CLIENTS_MIXED) { /* of each kind some */
    send_payload(s, (enum kit_client_kind)((s - clients) % KIT_CLIENTS_RESET), rng);
    if (s->fd >= 0 && kit_rng_below(rng, 200) == 0) leave(s, kit_rng_below(rng, 2));
  } else {
    send_payload(s, kind, rng);
  }
}

static void run_clients(const struct kit_injector_order *o, _Atomic int32_t *connected) {
  struct kit_rng rng = {o->seed};
  uint64_t end = rail_deadline_in_ms(o->last_ms);
  struct rlimit files;
  size_t n = o->count < MAX_CLIENTS ? (size_t)o->count : MAX_CLIENTS;
  if (o->nports == 0) return;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  for (size_t i = 0; i < n; i++) clients[i] = (struct client){.fd = -1};
  do {
    for (size_t i = 0; i < n; i++) client_step(&clients[i], o, (enum kit_client_kind)o->how, &rng, connected);
  } while (!rail_deadline_passed(end) && !has_new_order(TURN_US));
  for (size_t i = 0; i < n; i++)
    if (clients[i].fd >= 0) leave(&clients[i], false);
}

/* ---- the injector process ---- */

#define SIGNALS_US 200
#define END_MS 2000 /* to undo and end; then it is killed */

struct page { _Atomic int32_t clients, signals; };

struct kit_injector {
  pid_t pid;
  int fd; /* orders */
  struct page *page;
};

static void wait_ms(uint64_t ms) {
  uint64_t end = rail_deadline_in_ms(ms), now;
  while ((now = rail_now_ns()) < end && !has_new_order((end - now) / 1000 + 1)) {}
}

static void send_signals(const struct kit_injector_order *o, struct page *page) {
  uint64_t end = rail_deadline_in_ms(o->last_ms);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", (int)self);
  while (!rail_deadline_passed(end) && !has_new_order(SIGNALS_US)) {
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d)))
      if (e->d_name[0] != '.' && syscall(SYS_tgkill, self, atoi(e->d_name), KIT_INJECTED_SIGNAL) == 0)
        atomic_fetch_add(&page->signals, 1);
    if (d) closedir(d);
  }
}

static void act(const struct kit_injector_order *o, struct page *page) {
  switch ((enum kit_act)o->act) {
  case KIT_ACT_KILL: kill(self, SIGKILL); break;
  case KIT_ACT_STOP:
    kill(self, SIGSTOP);
    wait_ms(o->last_ms);
    kill(self, SIGCONT);
    break;
  case KIT_ACT_SIGNALS: send_signals(o, page); break;
  case KIT_ACT_CLIENTS: run_clients(o, &page->clients); break;
  case KIT_ACT_LINK:
    kit_fault_link((enum kit_link_act)o->how, o->rank, &o->link, true);
    wait_ms(o->last_ms);
    kit_fault_link((enum kit_link_act)o->how, o->rank, &o->link, false);
    break;
  case KIT_ACT_NOTHING:
  case KIT_ACT_CLOSE:
  case KIT_ACT_DEREG:
  case KIT_ACT_RESET:
  case KIT_ACT_FAIL: break; /* the process's own doing */
  }
}

_Noreturn static void injector_main(struct page *page, pid_t parent) {
  static struct kit_injector_order order;
  self = parent;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  for (int fd = 3; fd < 64; fd++)
    if (fd != orders) close(fd); /* the process's channels are not ours to hold */
  for (;;) {
    ssize_t n = read(orders, &order, sizeof order);
    if (n < 0 && errno == EINTR) continue;
    if (n != (ssize_t)sizeof order) _exit(0);
    struct timespec at = {(time_t)(order.at_ns / 1000000000), (long)(order.at_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
    act(&order, page);
  }
}

/* ---- in the process ---- */

struct kit_injector *kit_injector_start(void) {
  static struct kit_injector only; /* of this process */
  struct kit_injector *injector = &only;
  int fds[2];
  injector->page = mmap(NULL, sizeof *injector->page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ENSURE(injector->page != MAP_FAILED, "mmap: %s", strerror(errno));
  ENSURE(pipe2(fds, O_CLOEXEC) == 0, "pipe: %s", strerror(errno));
  fflush(NULL);
  pid_t me = getpid();
  injector->pid = fork();
  ENSURE(injector->pid >= 0, "fork: %s", strerror(errno));
  if (injector->pid == 0) {
    orders = fds[0];
    injector_main(injector->page, me);
  }
  close(fds[0]);
  injector->fd = fds[1];
  return injector;
}

void kit_injector_send(struct kit_injector *injector, const struct kit_injector_order *order) {
  _Static_assert(sizeof *order <= 8192, "an order fits into a pipe");
  ssize_t n;
  while ((n = write(injector->fd, order, sizeof *order)) < 0 && errno == EINTR) {}
  ENSURE(n == (ssize_t)sizeof *order, "the fault injector takes no order: %s", strerror(errno));
}

void kit_injector_stop(struct kit_injector *injector) {
  static const struct kit_injector_order nothing = {.act = KIT_ACT_NOTHING};
  kit_injector_send(injector, &nothing); /* any order ends the one before */
}

int kit_injector_clients(const struct kit_injector *injector) { return atomic_load(&injector->page->clients); }
int kit_injector_signals(const struct kit_injector *injector) { return atomic_load(&injector->page->signals); }

void kit_injector_end(struct kit_injector *injector) {
  uint64_t deadline = rail_deadline_in_ms(END_MS);
  close(injector->fd); /* it sees the end of its orders */
  pid_t ended;
  while ((ended = waitpid(injector->pid, NULL, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
    if (rail_deadline_passed(deadline)) kill(injector->pid, SIGKILL);
    usleep(500);
  }
  munmap(injector->page, sizeof *injector->page);
}
