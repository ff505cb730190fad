/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/fault/fault_hand.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_plan.h"

#define STORM_US 200
#define END_MS 2000 /* to undo and end; then it is killed */

struct page { _Atomic int32_t strangers, signals; };

struct kit_hand {
  pid_t pid;
  int fd; /* orders */
  struct page *page;
};

/* In the hand's own process: */
static int orders = -1;
static pid_t side;

bool kit_hand_called(uint64_t us) {
  struct pollfd p = {.fd = orders, .events = POLLIN};
  struct timespec wait = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
  return ppoll(&p, 1, &wait, NULL) > 0;
}

static void wait_ms(uint64_t ms) {
  uint64_t end = rail_deadline_in_ms(ms), now;
  while ((now = rail_now_ns()) < end && !kit_hand_called((end - now) / 1000 + 1)) {}
}

static void storm(const struct kit_hand_order *o, struct page *page) {
  uint64_t end = rail_deadline_in_ms(o->last_ms);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", (int)side);
  while (!rail_deadline_passed(end) && !kit_hand_called(STORM_US)) {
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
  case KIT_ACT_STRANGERS: kit_strangers_play(o, &page->strangers); break;
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
