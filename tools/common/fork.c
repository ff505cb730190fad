/* SPDX-License-Identifier: Apache-2.0
 * Starts the ranks of a job, passes the unique id on, and ends all when one has failed. */
#include "tools/common/fork.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define ID_MAX 512

struct job {
  const char *prog;
  int nranks, alive;
  pid_t *pids; /* 0: has ended */
  int *fds;    /* the parent's ends; -1: closed */
  int status;  /* of the job so far */
  uint64_t deadline; /* 0 until something failed */
  int grace_s;
  char id[ID_MAX];
  size_t id_size, id_have;
};

static int write_all(int fd, const char *data, size_t size) {
  while (size > 0) {
    ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    data += n;
    size -= (size_t)n;
  }
  return 0;
}

int tool_share_id(const struct tool_rank *rank, void *id, size_t size) {
  if (rank->rank == 0) return write_all(rank->fd, id, size);
  char *at = id;
  while (size > 0) {
    ssize_t n = recv(rank->fd, at, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    at += n;
    size -= (size_t)n;
  }
  return 0;
}

static void job_failed(struct job *job, int status) {
  if (job->status == TOOL_EXIT_OK || job->status == TOOL_EXIT_RESULT) job->status = status;
  if (job->deadline == 0) job->deadline = rail_deadline_in_ms((uint64_t)job->grace_s * 1000);
}

static void rank_ended(struct job *job, int rank, int wstatus) {
  bool first = job->deadline == 0;
  const char *rest = first && job->alive > 1 ? "; ending the other ranks" : "";
  pid_t pid = job->pids[rank];
  job->pids[rank] = 0;
  job->alive--;
  if (WIFSIGNALED(wstatus)) {
    int sig = WTERMSIG(wstatus);
    /* Past the deadline it is this process that kills. */
    if (!rail_deadline_passed(job->deadline) || sig != SIGKILL)
      fprintf(stderr, "%s: rank %d (pid %d) was killed by signal %d (%s)%s\n", job->prog, rank, (int)pid, sig,
              strsignal(sig), rest);
    job_failed(job, TOOL_EXIT_FAILED);
    return;
  }
  int code = WEXITSTATUS(wstatus);
  if (code == TOOL_EXIT_OK) return;
  if (code == TOOL_EXIT_RESULT) {
    if (job->status == TOOL_EXIT_OK) job->status = code;
    return;
  }
  /* What follows from the first failure was already told by the rank itself, as a bad argument was by rank 0. */
  if (first && code != TOOL_EXIT_USAGE)
    fprintf(stderr, "%s: rank %d (pid %d) failed with exit status %d%s\n", job->prog, rank, (int)pid, code,
            rest);
  job_failed(job, code);
}

static void reap(struct job *job) {
  for (int i = 0; i < job->nranks; i++) {
    int wstatus;
    if (job->pids[i] != 0 && waitpid(job->pids[i], &wstatus, WNOHANG) == job->pids[i]) rank_ended(job, i, wstatus);
  }
}

static void close_rank_fd(struct job *job, int rank) {
  close(job->fds[rank]);
  job->fds[rank] = -1;
}

/* Rank 0 sends the id; once it is whole it goes out to all others. */
static void read_rank(struct job *job, int rank) {
  char bytes[ID_MAX];
  ssize_t n = recv(job->fds[rank], bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    close_rank_fd(job, rank);
    return;
  }
  if (rank != 0 || (size_t)n > job->id_size - job->id_have) return;
  memcpy(job->id + job->id_have, bytes, (size_t)n);
  job->id_have += (size_t)n;
  if (job->id_have < job->id_size) return;
  for (int i = 1; i < job->nranks; i++)
    if (job->fds[i] >= 0) (void)write_all(job->fds[i], job->id, job->id_size); /* a rank that is gone is reaped */
}

static void kill_rest(struct job *job) {
  int left = 0;
  for (int i = 0; i < job->nranks; i++)
    if (job->pids[i] != 0) left += kill(job->pids[i], SIGKILL) == 0;
  if (left > 0) fprintf(stderr, "%s: killed %d rank%s still running %d s after the failure\n", job->prog, left,
                        left == 1 ? "" : "s", job->grace_s);
}

static void watch(struct job *job, struct pollfd *polls) {
  bool killed = false;
  while (job->alive > 0) {
    nfds_t n = 0;
    for (int i = 0; i < job->nranks; i++) {
      if (job->fds[i] >= 0) polls[n++] = (struct pollfd){.fd = job->fds[i], .events = POLLIN};
    }
    /* A rank's end wakes the poll by closing its socket; the wait is short anyway, because its
     * status may come a little later than that. */
    poll(polls, n, 20);
    for (nfds_t p = 0; p < n; p++) {
      if (polls[p].revents == 0) continue;
      for (int i = 0; i < job->nranks; i++)
        if (job->fds[i] == polls[p].fd) read_rank(job, i);
    }
    reap(job);
    if (!killed && job->alive > 0 && rail_deadline_passed(job->deadline)) {
      kill_rest(job);
      killed = true;
    }
  }
}

/* In the new process. */
__attribute__((noreturn)) static void run_rank(const struct job *job, int rank, int fd, pid_t parent,
                                               int (*body)(const struct tool_rank *, void *), void *arg) {
  for (int i = 0; i < rank; i++) close(job->fds[i]);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(TOOL_EXIT_FAILED); /* it died before prctl */
  struct tool_rank self = {.rank = rank, .nranks = job->nranks, .fd = fd};
  exit(body(&self, arg));
}

static int start_rank(struct job *job, int rank, int (*body)(const struct tool_rank *, void *), void *arg) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return -1;
  pid_t parent = getpid(), pid = fork();
  if (pid < 0) {
    close(pair[0]);
    close(pair[1]);
    return -1;
  }
  if (pid == 0) {
    close(pair[0]);
    run_rank(job, rank, pair[1], parent, body, arg);
  }
  close(pair[1]);
  job->fds[rank] = pair[0];
  job->pids[rank] = pid;
  job->alive++;
  return 0;
}

int tool_fork_job(const char *prog, int nranks, size_t id_size, int grace_s,
                  int (*body)(const struct tool_rank *, void *), void *arg) {
  struct job job = {.prog = prog, .nranks = nranks, .grace_s = grace_s, .id_size = id_size};
  struct pollfd *polls = calloc((size_t)nranks, sizeof *polls);
  job.pids = calloc((size_t)nranks, sizeof *job.pids);
  job.fds = malloc((size_t)nranks * sizeof *job.fds);
  if (!polls || !job.pids || !job.fds || id_size > ID_MAX) {
    fprintf(stderr, "%s: no memory for %d ranks\n", prog, nranks);
    job.status = TOOL_EXIT_FAILED;
    goto out;
  }
  for (int i = 0; i < nranks; i++) job.fds[i] = -1;
  fflush(NULL); /* or every rank would print what is buffered */
  for (int i = 0; i < nranks; i++) {
    if (start_rank(&job, i, body, arg) == 0) continue;
    fprintf(stderr, "%s: cannot start rank %d of %d: %s\n", prog, i, nranks, strerror(errno));
    job_failed(&job, TOOL_EXIT_FAILED);
    job.deadline = 1; /* the others would wait for it in vain */
    break;
  }
  watch(&job, polls);
  for (int i = 0; i < nranks; i++)
    if (job.fds[i] >= 0) close_rank_fd(&job, i);
out:
  free(polls);
  free(job.pids);
  free(job.fds);
  return job.status;
}
