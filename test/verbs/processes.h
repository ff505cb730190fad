/* SPDX-License-Identifier: Apache-2.0
 * For tests of the emulated device between processes: ends in processes of their own, whose files are in a folder of
 * the test. */
#ifndef TEST_VERBS_PROCESSES_H
#define TEST_VERBS_PROCESSES_H

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "test/verbs/verbs.h"

/* What one end says to the other. */
struct hello {
  uint32_t qpn, rkey;
  uint64_t addr;
  union ibv_gid gid;
  uint16_t lid;
};

/* As a program ends, with its exit handlers; the leak checker's takes other processes' threads for its own. */
#ifdef __SANITIZE_ADDRESS__
#define CHILD_EXIT _exit
#else
#define CHILD_EXIT exit
#endif

static char folder[] = "/dev/shm/emu-test.XXXXXX";

/* Reads or writes all of it; a peer that ends early is a failure of the case. */
static void say(int fd, const void *what, size_t size) { CHECK(write(fd, what, size) == (ssize_t)size); }
static void hear(int fd, void *what, size_t size) { CHECK(read(fd, what, size) == (ssize_t)size); }

/* `peer` becomes what is known of the end of the process behind `fd`. */
static void swap_hellos(int fd, const struct end *e, struct end *peer) {
  static struct ibv_qp qp;
  static struct ibv_mr mr;
  struct hello own = {e->qp->qp_num, e->mr->rkey, (uintptr_t)e->data, e->gid, e->port.lid}, its;
  say(fd, &own, sizeof own);
  hear(fd, &its, sizeof its);
  memset(peer, 0, sizeof *peer);
  qp.qp_num = its.qpn;
  mr.rkey = its.rkey;
  peer->qp = &qp;
  peer->mr = &mr;
  peer->data = (char *)(uintptr_t)its.addr; /* an address of the other process */
  peer->gid = its.gid;
  peer->port.lid = its.lid;
}

static void swap_ready(int fd) {
  char ready = 1;
  say(fd, &ready, 1);
  hear(fd, &ready, 1);
}

/* Connects `e` with the process behind `fd`. */
static void connect_over(int fd, struct end *e, struct end *peer, const struct shape *s) {
  end_open(e, 0);
  end_make_qp(e, s);
  swap_hellos(fd, e, peer);
  to_init(e, s);
  to_rtr(e, peer, s);
  to_rts(e, s);
  swap_ready(fd);
}

struct other {
  pid_t pid;
  int fd;
};

/* A process that connects, unless s is NULL, then does that. It is made by one that has no device open: ThreadSanitizer
 * cannot follow a fork beside the device's thread into a process that starts one of its own. */
static struct other start(void (*body)(int fd, struct end *e, struct end *peer), const struct shape *s) {
  int fds[2];
  struct other o;
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
  fflush(stdout);
  o.pid = fork();
  CHECK(o.pid >= 0);
  if (o.pid == 0) {
    struct end e, peer;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* stopped or not, it ends with the test */
    close(fds[0]);
    if (setjmp(tap_end_) == 0) {
      if (s) connect_over(fds[1], &e, &peer, s);
      body(fds[1], &e, &peer);
      _exit(0);
    }
    _exit(1);
  }
  close(fds[1]);
  o.fd = fds[0];
  return o;
}

__attribute__((unused)) static void kill_other(struct other *o) {
  kill(o->pid, SIGKILL);
  waitpid(o->pid, NULL, 0);
  close(o->fd);
}

/* Ends it; that must be a good end. */
__attribute__((unused)) static void join_other(struct other *o) {
  int status;
  say(o->fd, "e", 1); /* closing is not enough: processes that were made later have the descriptor, too */
  close(o->fd);
  CHECK(waitpid(o->pid, &status, 0) == o->pid);
  CHECK_INT(status, 0);
}

__attribute__((unused)) static void until_told(int fd, struct end *e, struct end *peer) {
  char c;
  (void)peer;
  hear(fd, &c, 1);
  end_close(e);
}

__attribute__((unused)) static unsigned int files(void) {
  unsigned int n = 0;
  DIR *dir = opendir(folder);
  CHECK(dir);
  for (struct dirent *d; (d = readdir(dir)) != NULL;) n += strncmp(d->d_name, "rail-emu.", 9) == 0;
  closedir(dir);
  return n;
}

__attribute__((unused)) static struct shape short_shape(void) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 10; /* 4 ms */
  s.retry_cnt = 2;
  return s;
}

static int processes_main(int argc, char **argv, const struct tap_case *cases, size_t n) {
  if (!mkdtemp(folder)) return 2;
  setenv("RAIL_EMU_DIR", folder, 1);
  signal(SIGPIPE, SIG_IGN);
  int status = tap_main(argc, argv, cases, n);
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
  return status;
}

#endif
