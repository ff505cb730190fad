/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 13, forks: programs that the application starts meanwhile. Training programs fork data loaders and call
 * compilers while NCCL runs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { MAX_FDS = 4096, CHILD_MS = 10000 };
#define SIZE ((size_t)1 << 20)

static pid_t forked(void) {
  fflush(NULL); /* what is in the buffers is written once */
  pid_t pid = fork();
  ENSURE(pid >= 0, "the kit could not fork: %s", strerror(errno));
  return pid;
}

/* The child's status; fails when it does not end. */
static int ended(pid_t pid, const char *what) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(CHILD_MS));
  int status = 0;
  pid_t got;
  while ((got = waitpid(pid, &status, WNOHANG)) == 0 && !rail_deadline_passed(deadline)) kit_sleep_ms(2);
  if (got == 0) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
  }
  ENSURE(got == pid, "a forked child %s has not ended after %.0f s", what,
         (double)kit_patience_ms(CHILD_MS) / 1000);
  return status;
}

/* Data across p that is in flight while `fn` runs in a forked child. */
static void fork_in_flight(struct kit_pair *p, uint8_t *out, uint8_t *in, uint64_t seed, void (*fn)(void),
                           const char *what) {
  struct kit_net *n = p->net;
  kit_pattern_fill(out, SIZE, seed);
  struct kit_op ops[2] = {kit_op_recv(p->recv, in, SIZE, 0), kit_op_send(p->send, out, SIZE, 0)};
  ops[0].mh[0] = kit_mr_reg(n, p->recv, in, SIZE);
  ops[1].mh[0] = kit_mr_reg(n, p->send, out, SIZE);
  kit_op_post(n, &ops[0]);
  kit_op_post(n, &ops[1]);
  pid_t pid = forked();
  if (pid == 0) {
    fn();
    _exit(0);
  }
  int status = ended(pid, what);
  ENSURE(!WIFSIGNALED(status), "a forked child %s was ended by signal %d", what, WTERMSIG(status));
  kit_ops_run(n, ops, 2, (struct kit_ops_options){0});
  ENSURE(kit_pattern_check(in, SIZE, seed) < 0,
         "data that was in flight while a process forked a child %s arrived wrong", what);
  kit_mr_dereg(n, p->recv, ops[0].mh[0]);
  kit_mr_dereg(n, p->send, ops[1].mh[0]);
}

static void nothing(void) {}
static void another_program(void) { execl("/bin/true", "true", (char *)NULL); }
static void call_exit(void) { exit(0); }

static void forks(struct kit_process *self, void (*const fn[2])(void), const char *const what[2]) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  uint8_t *out = kit_pages(SIZE), *in = kit_pages(SIZE);
  int fds = 0;
  for (int round = 0; round < 2 + kit_scaled(20); round++) {
    if (round == 2) fds = kit_fd_count(); /* what the first data have opened is there by now */
    fork_in_flight(&p, out, in, (uint64_t)round, fn[round % 2], what[round % 2]);
  }
  int now = kit_fd_count();
  ENSURE(now <= fds, "%d descriptors are open after some forks, %d were before", now, fds);
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void forks_during_traffic(struct kit_process *self) {
  static void (*const fn[2])(void) = {nothing, another_program};
  static const char *const what[2] = {"that ends at once", "that starts a program"};
  forks(self, fn, what);
}

/* The plugin's destructors run there, without the plugin's threads. */
static void a_forked_child_exits(struct kit_process *self) {
  static void (*const fn[2])(void) = {call_exit, call_exit};
  static const char *const what[2] = {"that calls exit", "that calls exit"};
  if (kit_sanitized()) kit_skip("a sanitizer's own work at exit is not for a forked child");
  forks(self, fn, what);
}

static void open_fds(bool *open) {
  DIR *d = opendir("/proc/self/fd");
  ENSURE(d, "the kit cannot read /proc/self/fd: %s", strerror(errno));
  memset(open, 0, MAX_FDS * sizeof *open);
  for (struct dirent *e; (e = readdir(d));) {
    int fd = atoi(e->d_name);
    if (e->d_name[0] != '.' && fd != dirfd(d) && fd < MAX_FDS) open[fd] = true;
  }
  closedir(d);
}

/* A program that inherits a connection keeps it, and its port, alive after this process has gone. */
static void programs_started_meanwhile(struct kit_process *self) {
  (void)self;
  static bool before[MAX_FDS], after[MAX_FDS];
  struct kit_net n;
  struct kit_pair p, q;
  char handle[RAIL_NET_HANDLE_SIZE];
  open_fds(before);
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_open(&n, &q);
  kit_pair_ping(&p, 1000, 1);
  void *listen = kit_net_listen(&n, handle);
  open_fds(after);
  for (int fd = 0; fd < MAX_FDS; fd++) {
    char path[64], target[256] = "";
    if (!after[fd] || before[fd] || fcntl(fd, F_GETFD) & FD_CLOEXEC) continue;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(path, target, sizeof target - 1);
    ENSURE(false, "descriptor %d (%s) is not close-on-exec: a program started by this process inherits it, and peers "
           "do not notice when this process has gone", fd, len > 0 ? target : "?");
  }
  int rc = n.vt->close_listen(listen);
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
  kit_pair_close(&p);
  kit_pair_close(&q);
  kit_net_close(&n);
}

/* A forked child that lives on, without exec, keeps copies of the descriptors. Its parent's close must reach the peer
 * all the same. */
static void a_forked_bystander_does_not_hide_a_close(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  int hold[2];
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 100, 1);
  ENSURE(pipe2(hold, O_CLOEXEC) == 0, "the kit cannot make a pipe");
  pid_t pid = forked();
  if (pid == 0) {
    char c;
    close(hold[1]);
    _exit(read(hold[0], &c, 1) == 1);
  }
  close(hold[0]);
  uint8_t *byte = kit_pages(1);
  struct kit_op op = kit_op_recv(p.recv, byte, 1, 0);
  void *mh = op.mh[0] = kit_mr_reg(&n, p.recv, byte, 1);
  int rc = n.vt->close_send(p.send);
  kit_op_within(&n, &op, kit_patience_ms(5000));
  close(hold[1]);
  waitpid(pid, NULL, 0);
  ENSURE(rc == 0, "closeSend returned %s while a forked child lived", kit_rc_text(rc));
  ENSURE(op.error, "closeSend has not reached the peer within %.0f s while a forked child lived: the peer waits as "
         "long as somebody's data loader does", (double)kit_patience_ms(5000) / 1000);
  kit_mr_dereg(&n, p.recv, mh);
  kit_close_within(n.vt->close_recv, p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
  kit_net_close(&n);
}

const struct kit_check kit_checks_forks[] = {
    {"13.21", "processes.forks_during_traffic", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "a fork, with or without exec, does not disturb data that is in flight",
     .source = "src/transport/net_ib/init.cc:293", .run = forks_during_traffic},
    {"13.22", "processes.a_forked_child_exits", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "a forked child that calls exit ends, and does not disturb its parent's connections",
     .source = "src/plugin/net.cc:78", .run = a_forked_child_exits},
    {"13.23", "processes.programs_started_meanwhile", KIT_SHOULD, KIT_ONE, .limit_s = 30,
     .what = "every descriptor of the plugin is closed when a program is started",
     .source = "src/misc/socket.cc:48", .run = programs_started_meanwhile},
    {"13.24", "processes.a_forked_bystander_does_not_hide_a_close", KIT_SHOULD, KIT_ONE, .limit_s = 30,
     .what = "closing reaches the peer although a forked child still has copies of the descriptors",
     .source = "src/misc/socket.cc:48", .run = a_forked_bystander_does_not_hide_a_close},
    {0},
};
