/* SPDX-License-Identifier: Apache-2.0 */
#include "test/harness/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define PROC_PATIENCE_MS 60000

struct job { void (*fn)(struct pipes *io, void *arg); struct pipes io; void *arg; };

static void job_run(void *arg) {
  struct job *j = arg;
  j->fn(&j->io, j->arg);
}

struct proc proc_start(void (*fn)(struct pipes *io, void *arg), void *arg) {
  int down[2], up[2];
  ENSURE(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0, "pipe: %s", strerror(errno));
  fflush(NULL);
  pid_t parent = getpid(), pid = fork();
  ENSURE(pid >= 0, "fork: %s", strerror(errno));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(down[1]);
    close(up[0]);
    struct job j = {fn, {.in = down[0], .out = up[1]}, arg};
    char why[1024];
    bool ok = kit_catch(job_run, &j, why, sizeof why);
    if (!ok) printf("# in child %d: %s\n", (int)getpid(), why);
    fflush(NULL);
    _exit(ok ? 0 : 1);
  }
  close(down[0]);
  close(up[1]);
  return (struct proc){pid, {.in = up[0], .out = down[1]}};
}

static void proc_close(struct proc *p) {
  close(p->io.in);
  close(p->io.out);
  p->pid = -1;
}

/* A child that was killed, or left by _exit, had no chance to remove its counters. */
static void remove_pages(pid_t pid) {
  glob_t found;
  char pattern[64];
  snprintf(pattern, sizeof pattern, "/dev/shm/rail-stat.%d.*", (int)pid);
  if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0) return;
  for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
  globfree(&found);
}

static void proc_kill(struct proc *p) {
  kill(p->pid, SIGKILL);
  waitpid(p->pid, NULL, 0);
  remove_pages(p->pid);
  proc_close(p);
}

void proc_join(struct proc *p) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PROC_PATIENCE_MS));
  int status = 0;
  pid_t got;
  while ((got = waitpid(p->pid, &status, WNOHANG)) == 0) {
    if (rail_deadline_passed(deadline)) {
      proc_kill(p);
      kit_failed(__FILE__, __LINE__, "a child did not end");
    }
    usleep(2000);
  }
  remove_pages(p->pid);
  proc_close(p);
  ENSURE(got > 0, "waitpid: %s", strerror(errno));
  ENSURE(!WIFSIGNALED(status), "a child ended by signal %d", WTERMSIG(status));
  ENSURE(WEXITSTATUS(status) == 0, "a child failed with status %d", WEXITSTATUS(status));
}

void pipe_write(struct pipes *io, const void *data, size_t size) {
  const char *p = data;
  while (size > 0) {
    ssize_t n = write(io->out, p, size);
    if (n < 0 && errno == EINTR) continue;
    ENSURE(n > 0, "write to the other process: %s", strerror(errno));
    p += n;
    size -= (size_t)n;
  }
}

void pipe_read(struct pipes *io, void *data, size_t size) {
  char *p = data;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PROC_PATIENCE_MS));
  while (size > 0) {
    struct pollfd pfd = {.fd = io->in, .events = POLLIN};
    int ready = poll(&pfd, 1, rail_deadline_left_ms(deadline));
    if (ready < 0 && errno == EINTR) continue;
    ENSURE(ready > 0, "the other process says nothing");
    ssize_t n = read(io->in, p, size);
    if (n < 0 && errno == EINTR) continue;
    ENSURE(n > 0, "the other process ended early");
    p += n;
    size -= (size_t)n;
  }
}
