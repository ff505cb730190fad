/* SPDX-License-Identifier: Apache-2.0
 * One process of a group: how it is started, what is queued for it, how it ends. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit/kit_group_impl.h"

#define NOT_STARTED 127

/* ---- the queue ---- */

bool kit_queue_add(struct kit_queue *q, const struct kit_frame *f) {
  size_t size = KIT_FRAME_HEAD + f->size, have = q->end - q->first;
  if (q->room - q->end < size) {
    size_t room = 2 * (have + size);
    uint8_t *bigger = malloc(room);
    if (!bigger) return false;
    if (have > 0) memcpy(bigger, q->data + q->first, have);
    free(q->data);
    *q = (struct kit_queue){.data = bigger, .end = have, .room = room};
  }
  memcpy(q->data + q->end, f, size);
  q->end += size;
  return true;
}

void kit_queue_free(struct kit_queue *q) {
  free(q->data);
  *q = (struct kit_queue){0};
}

/* ---- in the child, before exec ---- */

_Noreturn static void cannot(const char *what, const char *name) {
  fprintf(stderr, "rail-kit: %s %s: %s\n", what, name, strerror(errno));
  _exit(NOT_STARTED);
}

/* The namespace's own view of /sys as well, as ip-netns(8) does it. */
static void enter_netns(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "/run/netns/%s", name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) cannot("network namespace", name);
  close(fd);
  if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "none", MS_SLAVE | MS_REC, NULL) != 0) return;
  umount2("/sys", MNT_DETACH);
  mount(name, "/sys", "sysfs", 0, NULL);
}

static void bind_to(int cpu) {
  char name[16];
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  snprintf(name, sizeof name, "%d", cpu);
  if (sched_setaffinity(0, sizeof set, &set) != 0) cannot("processor", name);
}

static void place(int fd, int at) {
  if (fd == at) fcntl(fd, F_SETFD, 0);
  else if (dup2(fd, at) < 0) cannot("dup2", "of a side's descriptor");
}

_Noreturn static void become_process(pid_t parent, int fd, int calls_fd, const struct kit_job *job,
                                  const struct kit_process_setup *setup) {
  static char name[] = "rail-kit", role[] = "side";
  char *argv[] = {name, role, NULL};
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(NOT_STARTED);
  int high = fcntl(fd, F_DUPFD_CLOEXEC, 10), high_calls = fcntl(calls_fd, F_DUPFD_CLOEXEC, 10);
  if (high < 0 || high_calls < 0) cannot("fcntl", "of a side's descriptor");
  place(high, KIT_PROCESS_FD);
  place(high_calls, KIT_CALL_TRACE_FD);
  if (setup->netns) enter_netns(setup->netns);
  if (setup->cpu) bind_to(*setup->cpu);
  if (setup->netns || job->hosts > 1) setenv("RAIL_KIT_REMOTE", "1", 1); /* loopback does not lead there */
  if (setup->preload) setenv("LD_PRELOAD", setup->preload, 1);
  for (const char *const *e = setup->env; e && *e; e++) putenv((char *)(uintptr_t)*e);
  for (const char *const *e = setup->place_env; e && *e; e++) putenv((char *)(uintptr_t)*e);
  execv("/proc/self/exe", argv);
  cannot("exec of", "/proc/self/exe");
}

/* ---- in the parent ---- */

static bool not_started(struct kit_child *child, const char *what) {
  child->over = true;
  child->end.end = KIT_END_ERROR;
  snprintf(child->end.text, sizeof child->end.text, "the process could not be started: %s: %s", what, strerror(errno));
  return false;
}

bool kit_spawn(struct kit_child *child, const struct kit_job *job, const struct kit_process_setup *setup) {
  struct kit_frame f = {.kind = KIT_FRAME_JOB, .from = -1, .to = job->rank, .size = sizeof *job};
  int pair[2], calls_fd = kit_call_trace_create();
  child->here = true;
  if (calls_fd < 0) return not_started(child, "memfd");
  child->calls = kit_call_trace_map(calls_fd);
  if (!child->calls || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    close(calls_fd);
    return not_started(child, "socketpair");
  }
  fflush(NULL);
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) become_process(parent, pair[1], calls_fd, job, setup);
  close(pair[1]);
  close(calls_fd);
  if (pid < 0) {
    close(pair[0]);
    return not_started(child, "fork");
  }
  setpgid(pid, pid);
  child->pid = pid;
  child->fd = pair[0];
  _Static_assert(sizeof *job <= KIT_FRAME_ROOM, "a job fits into a frame");
  memcpy(f.data, job, sizeof *job);
  kit_child_send(child, &f);
  return true;
}

void kit_child_kill(struct kit_child *child) {
  if (child->pid > 0) kill(-child->pid, SIGKILL);
}

void kit_child_release(struct kit_child *child) {
  if (child->fd >= 0) close(child->fd);
  kit_call_trace_unmap(child->calls);
  kit_queue_free(&child->out);
  child->fd = -1;
  child->calls = NULL;
  child->pid = -1;
}

bool kit_child_reap(struct kit_child *child, int *status) {
  siginfo_t ended = {0};
  if (waitid(P_PID, (id_t)child->pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0) {
    if (ended.si_pid == 0) return false;
    kit_child_kill(child); /* what it has left behind; its number may be another's once it is reaped */
  }
  pid_t got = waitpid(child->pid, status, WNOHANG);
  if (got < 0 && errno != EINTR) *status = NOT_STARTED << 8;
  return got == child->pid || (got < 0 && errno != EINTR);
}

int kit_child_receive(struct kit_child *child, struct kit_frame *f) {
  ssize_t n = recv(child->fd, f, sizeof *f, MSG_DONTWAIT);
  /* A process that ended with something unread: the kernel reports that once, ahead of the last frames. */
  if (n < 0 && errno == ECONNRESET) n = recv(child->fd, f, sizeof *f, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return -1;
  /* A plugin may have spoilt the process's memory, or found the descriptor. */
  if ((size_t)n < KIT_FRAME_HEAD || f->size != (size_t)n - KIT_FRAME_HEAD || f->kind >= KIT_FRAME_KINDS) return 0;
  return 1;
}

static bool send_now(struct kit_child *child, const void *frame, size_t size) {
  return send(child->fd, frame, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || (errno != EAGAIN && errno != EINTR);
}

void kit_child_send(struct kit_child *child, const struct kit_frame *f) {
  if (child->fd < 0) return;
  if (child->out.first == child->out.end && send_now(child, f, KIT_FRAME_HEAD + f->size)) return;
  kit_queue_add(&child->out, f);
}

void kit_child_flush(struct kit_child *child) {
  struct kit_queue *q = &child->out;
  while (q->first < q->end) {
    struct kit_frame head;
    memcpy(&head, q->data + q->first, KIT_FRAME_HEAD);
    if (!send_now(child, q->data + q->first, KIT_FRAME_HEAD + head.size)) return;
    q->first += KIT_FRAME_HEAD + head.size;
  }
  q->first = q->end = 0;
}
