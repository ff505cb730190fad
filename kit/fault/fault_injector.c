/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/fault/fault_hand.h"

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

/* In the hand's own process: */
static int orders = -1;
static pid_t side;

static bool has_new_order(uint64_t us) {
  struct pollfd p = {.fd = orders, .events = POLLIN};
  struct timespec wait = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
  return ppoll(&p, 1, &wait, NULL) > 0;
}

enum { MOST = 4000, TURN_US = 2000, FLOOD_PIECE = 65536 };

struct stranger {
  int fd; /* -1: none */
  bool in;
  bool spoke;
};

static struct stranger crowd[MOST];

static int dial(const struct kit_hand_order *o, struct kit_rng *rng) {
  int which = (int)kit_rng_below(rng, (uint32_t)o->nports);
  const struct sockaddr *addr = (const struct sockaddr *)&o->port[which].addr;
  int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, addr, o->port[which].size) != 0 && errno != EINPROGRESS) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static bool is_in(int fd) {
  struct sockaddr_storage peer;
  socklen_t size = sizeof peer;
  return getpeername(fd, (struct sockaddr *)&peer, &size) == 0;
}

/* What begins like something, and what does not. */
static size_t words(uint8_t *text, size_t room, struct kit_rng *rng) {
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

static void leave(struct stranger *s, bool reset) {
  struct linger now = {.l_onoff = 1, .l_linger = 0};
  if (reset) setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(s->fd);
  *s = (struct stranger){.fd = -1};
}

/* A flood ends when the other side has thrown it out; everybody else speaks once. */
static void speak(struct stranger *s, enum kit_strangers kind, struct kit_rng *rng) {
  static uint8_t text[FLOOD_PIECE];
  if (kind == KIT_STRANGERS_SILENT || (s->spoke && kind != KIT_STRANGERS_FLOOD)) return;
  size_t n = words(text, 400, rng);
  if (kind == KIT_STRANGERS_FLOOD) n = sizeof text;
  if (send(s->fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) leave(s, false);
  else s->spoke = true;
}

static void one(struct stranger *s, const struct kit_hand_order *o, enum kit_strangers kind, struct kit_rng *rng,
                _Atomic int32_t *came) {
  if (s->fd < 0) s->fd = dial(o, rng);
  if (s->fd < 0) return;
  if (!s->in && is_in(s->fd)) {
    s->in = true;
    atomic_fetch_add(came, 1);
  }
  if (!s->in) return;
  if (kind == KIT_STRANGERS_RESET) {
    if (kit_rng_below(rng, 2)) speak(s, kind, rng);
    if (s->fd >= 0) leave(s, true);
  } else if (kind == KIT_STRANGERS_CROWD) { /* of each kind some */
    speak(s, (enum kit_strangers)((s - crowd) % KIT_STRANGERS_RESET), rng);
    if (s->fd >= 0 && kit_rng_below(rng, 200) == 0) leave(s, kit_rng_below(rng, 2));
  } else {
    speak(s, kind, rng);
  }
}

static void play_strangers(const struct kit_hand_order *o, _Atomic int32_t *came) {
  struct kit_rng rng = {o->seed};
  uint64_t end = rail_deadline_in_ms(o->last_ms);
  struct rlimit files;
  size_t n = o->count < MOST ? (size_t)o->count : MOST;
  if (o->nports == 0) return;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  for (size_t i = 0; i < n; i++) crowd[i] = (struct stranger){.fd = -1};
  do {
    for (size_t i = 0; i < n; i++) one(&crowd[i], o, (enum kit_strangers)o->how, &rng, came);
  } while (!rail_deadline_passed(end) && !has_new_order(TURN_US));
  for (size_t i = 0; i < n; i++)
    if (crowd[i].fd >= 0) leave(&crowd[i], false);
}

/* ---- fault_hand ---- */

#define STORM_US 200
#define END_MS 2000 /* to undo and end; then it is killed */

struct page { _Atomic int32_t strangers, signals; };

struct kit_hand {
  pid_t pid;
  int fd; /* orders */
  struct page *page;
};

static void wait_ms(uint64_t ms) {
  uint64_t end = rail_deadline_in_ms(ms), now;
  while ((now = rail_now_ns()) < end && !has_new_order((end - now) / 1000 + 1)) {}
}

static void storm(const struct kit_hand_order *o, struct page *page) {
  uint64_t end = rail_deadline_in_ms(o->last_ms);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", (int)side);
  while (!rail_deadline_passed(end) && !has_new_order(STORM_US)) {
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d)))
      if (e->d_name[0] != '.' && syscall(SYS_tgkill, side, atoi(e->d_name), KIT_STORM_SIGNAL) == 0)
        atomic_fetch_add(&page->signals, 1);
    if (d) closedir(d);
  }
}

static void act(const struct kit_hand_order *o, struct page *page) {
  switch ((enum kit_act)o->act) {
  case KIT_ACT_KILL: kill(side, SIGKILL); break;
  case KIT_ACT_STOP:
    kill(side, SIGSTOP);
    wait_ms(o->last_ms);
    kill(side, SIGCONT);
    break;
  case KIT_ACT_STORM: storm(o, page); break;
  case KIT_ACT_STRANGERS: play_strangers(o, &page->strangers); break;
  case KIT_ACT_LINK:
    kit_fault_link((enum kit_link_act)o->how, o->rank, &o->link, true);
    wait_ms(o->last_ms);
    kit_fault_link((enum kit_link_act)o->how, o->rank, &o->link, false);
    break;
  case KIT_ACT_NOTHING:
  case KIT_ACT_CLOSE:
  case KIT_ACT_DEREG:
  case KIT_ACT_RESET:
  case KIT_ACT_FAIL: break; /* the side's own doing */
  }
}

_Noreturn static void be_hand(struct page *page, pid_t parent) {
  static struct kit_hand_order order;
  side = parent;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  for (int fd = 3; fd < 64; fd++)
    if (fd != orders) close(fd); /* the side's channels are not ours to hold */
  for (;;) {
    ssize_t n = read(orders, &order, sizeof order);
    if (n < 0 && errno == EINTR) continue;
    if (n != (ssize_t)sizeof order) _exit(0);
    struct timespec at = {(time_t)(order.at_ns / 1000000000), (long)(order.at_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
    act(&order, page);
  }
}

/* ---- in the side ---- */

struct kit_hand *kit_hand_start(void) {
  static struct kit_hand only; /* of this process */
  struct kit_hand *hand = &only;
  int fds[2];
  hand->page = mmap(NULL, sizeof *hand->page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ENSURE(hand->page != MAP_FAILED, "mmap: %s", strerror(errno));
  ENSURE(pipe2(fds, O_CLOEXEC) == 0, "pipe: %s", strerror(errno));
  fflush(NULL);
  pid_t me = getpid();
  hand->pid = fork();
  ENSURE(hand->pid >= 0, "fork: %s", strerror(errno));
  if (hand->pid == 0) {
    orders = fds[0];
    be_hand(hand->page, me);
  }
  close(fds[0]);
  hand->fd = fds[1];
  return hand;
}

void kit_hand_do(struct kit_hand *hand, const struct kit_hand_order *order) {
  _Static_assert(sizeof *order <= 8192, "an order fits into a pipe");
  ssize_t n;
  while ((n = write(hand->fd, order, sizeof *order)) < 0 && errno == EINTR) {}
  ENSURE(n == (ssize_t)sizeof *order, "the hand takes no order: %s", strerror(errno));
}

void kit_hand_stop(struct kit_hand *hand) {
  static const struct kit_hand_order nothing = {.act = KIT_ACT_NOTHING};
  kit_hand_do(hand, &nothing); /* any order ends the one before */
}

int kit_hand_strangers(const struct kit_hand *hand) { return atomic_load(&hand->page->strangers); }
int kit_hand_signals(const struct kit_hand *hand) { return atomic_load(&hand->page->signals); }

void kit_hand_end(struct kit_hand *hand) {
  uint64_t deadline = rail_deadline_in_ms(END_MS);
  close(hand->fd); /* it sees the end of its orders */
  pid_t ended;
  while ((ended = waitpid(hand->pid, NULL, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
    if (rail_deadline_passed(deadline)) kill(hand->pid, SIGKILL);
    usleep(500);
  }
  munmap(hand->page, sizeof *hand->page);
}
