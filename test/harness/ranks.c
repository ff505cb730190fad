/* SPDX-License-Identifier: Apache-2.0 */
#include "test/harness/ranks.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"

#ifdef __SANITIZE_THREAD__ /* ranks are forked and start threads */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }
#endif

#define SLOTS 8
#define SLOT_BYTES 256
#define WHY 512

/* Memory that all processes of a job share. */
struct common {
  unsigned char user[RANKS_SHARED];
  struct {
    atomic_int ready;
    unsigned char data[SLOT_BYTES];
  } slot[SLOTS];
  atomic_int arrived, round;
  char why[RANKS_MAX][WHY];
};

struct job {
  int nranks;
  pid_t pid[RANKS_MAX];
  int status[RANKS_MAX];
  bool ended[RANKS_MAX];
  struct common *common;
};

/* ---- in a rank ---- */

static void set_one(const char *word, int rank, int nranks) {
  char value[512], *out = value;
  const char *eq = strchr(word, '=');
  ENSURE(eq && strlen(word) < 250, "'%s' is not NAME=value", word);
  for (const char *p = eq + 1; *p; p++) {
    if (p[0] == '%' && p[1] == 'd')
      out += sprintf(out, "%d", rank), p++;
    else if (p[0] == '%' && p[1] == 'h')
      out += sprintf(out, "%d", rank < (nranks + 1) / 2 ? 0 : 1), p++;
    else
      *out++ = *p;
  }
  *out = 0;
  char name[256];
  snprintf(name, sizeof name, "%.*s", (int)(eq - word), word);
  if (*value)
    setenv(name, value, 1);
  else
    unsetenv(name);
}

static void set_environment(const char *env, int rank, int nranks) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
  if (ranks_plugin()) setenv("NCCL_NET_PLUGIN", ranks_plugin(), 1);
  char copy[2048], *save = NULL;
  ENSURE((size_t)snprintf(copy, sizeof copy, "%s", env ? env : "") < sizeof copy, "environment too long");
  for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) set_one(w, rank, nranks);
}

struct start {
  struct rank rank;
  rank_fn body;
  void *arg;
  const char *env;
};

static void enter(void *arg) {
  struct start *s = arg;
  set_environment(s->env, s->rank.rank, s->rank.nranks);
  s->body(&s->rank, s->arg);
}

static void be_rank(struct job *job, int rank, const char *env, rank_fn body, void *arg) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct start s = {.rank = {rank, job->nranks, job->common->user, job}, .body = body, .arg = arg, .env = env};
  bool ok = kit_catch(enter, &s, job->common->why[rank], WHY);
  fflush(stdout);
  exit(ok ? 0 : 1); /* not _exit: the leak checker runs at exit */
}

void rank_broadcast(const struct rank *rank, int slot, void *data, size_t size) {
  ENSURE(slot < SLOTS && size <= SLOT_BYTES, "slot %d, %zu bytes", slot, size);
  struct common *c = rank->job->common;
  if (rank->rank == 0) {
    memcpy(c->slot[slot].data, data, size);
    atomic_store(&c->slot[slot].ready, 1);
    return;
  }
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(20000));
  while (!atomic_load(&c->slot[slot].ready)) {
    ENSURE(!rail_deadline_passed(deadline), "rank 0 publishes nothing");
    usleep(200);
  }
  memcpy(data, c->slot[slot].data, size);
}

int rank_threads_settled(void) {
  int threads = kit_thread_count();
  for (int quiet = 0; quiet < 50; quiet++) {
    usleep(2000);
    if (kit_thread_count() != threads) quiet = 0, threads = kit_thread_count();
  }
  return threads;
}

void rank_back_to(int fds, int threads, const char *what) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(3000));
#ifdef __SANITIZE_THREAD__
  threads++; /* the sanitizer's own, which starts with the first of ours */
#endif
  while ((kit_fd_count() > fds || kit_thread_count() > threads) && !rail_deadline_passed(deadline)) usleep(2000);
  ENSURE(kit_fd_count() <= fds, "%d descriptors, %d before %s", kit_fd_count(), fds, what);
  ENSURE(kit_thread_count() <= threads, "%d threads, %d before %s", kit_thread_count(), threads, what);
}

void rank_barrier(const struct rank *rank) {
  struct common *c = rank->job->common;
  int round = atomic_load(&c->round);
  if (atomic_fetch_add(&c->arrived, 1) == rank->nranks - 1) {
    atomic_store(&c->arrived, 0);
    atomic_fetch_add(&c->round, 1);
    return;
  }
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(60000));
  while (atomic_load(&c->round) == round) {
    ENSURE(!rail_deadline_passed(deadline), "rank %d waits for others at a barrier", rank->rank);
    usleep(200);
  }
}

/* ---- in the parent ---- */

bool ranks_built(const char *file, char path[RANKS_PATH]) {
  const char *build = getenv("RAIL_BUILD");
  char beside[900];
  path[0] = 0;
  if (!build) {
    ssize_t n = readlink("/proc/self/exe", beside, sizeof beside - 1);
    if (n <= 0) return false;
    beside[n] = 0;
    for (int up = 0; up < 3; up++) /* BUILD/test/KIND/program */
      if (strrchr(beside, '/')) *strrchr(beside, '/') = 0;
    build = beside;
  }
  char relative[RANKS_PATH];
  snprintf(relative, sizeof relative, "%s/%s", build, file);
  char *full = realpath(relative, NULL);
  if (full) snprintf(path, RANKS_PATH, "%s", full);
  free(full);
  return path[0];
}

const char *ranks_plugin(void) {
  static char path[RANKS_PATH];
  return path[0] || ranks_built("lib/libnccl-net-socket.so", path) ? path : NULL;
}

struct job *job_start(const char *env, int nranks, rank_fn body, void *arg) {
  ENSURE(nranks <= RANKS_MAX, "%d ranks", nranks);
  struct job *job = calloc(1, sizeof *job);
  ENSURE(job, "out of memory");
  job->nranks = nranks;
  job->common = mmap(NULL, sizeof *job->common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ENSURE(job->common != MAP_FAILED, "no memory to share");
  fflush(stdout);
  fflush(stderr);
  for (int r = 0; r < nranks; r++) {
    job->pid[r] = fork();
    if (job->pid[r] == 0) be_rank(job, r, env, body, arg);
    if (job->pid[r] < 0) {
      for (int k = 0; k < r; k++) kill(job->pid[k], SIGKILL), waitpid(job->pid[k], NULL, 0);
      ENSURE(false, "fork: %s", strerror(errno));
    }
  }
  return job;
}

void *job_shared(struct job *job) { return job->common->user; }
pid_t job_pid(const struct job *job, int rank) { return job->pid[rank]; }

bool job_wait(struct job *job, int rank, uint64_t ms, int *status) {
  uint64_t deadline = rail_deadline_in_ms(ms);
  while (!job->ended[rank]) {
    if (waitpid(job->pid[rank], &job->status[rank], WNOHANG) == job->pid[rank])
      job->ended[rank] = true;
    else if (rail_deadline_passed(deadline))
      return false;
    else
      usleep(500);
  }
  if (status) *status = job->status[rank];
  return true;
}

/* Says what was wrong with a rank; false: nothing. */
static bool verdict(const struct job *job, int r, bool late, bool may_be_killed, char *text, size_t cap) {
  int s = job->status[r];
  if (late)
    snprintf(text, cap, "rank %d of %d did not end in time", r, job->nranks);
  else if (WIFSIGNALED(s) && WTERMSIG(s) == SIGKILL && may_be_killed)
    return false;
  else if (WIFSIGNALED(s))
    snprintf(text, cap, "rank %d of %d died of %s", r, job->nranks, strsignal(WTERMSIG(s)));
  else if (job->common->why[r][0])
    snprintf(text, cap, "rank %d of %d: %s", r, job->nranks, job->common->why[r]);
  else if (WEXITSTATUS(s))
    snprintf(text, cap, "rank %d of %d ended with status %d", r, job->nranks, WEXITSTATUS(s));
  else
    return false;
  return true;
}

void job_end(struct job *job, uint64_t ms, unsigned expect_killed) {
  char first[WHY + 100] = "", text[WHY + 100];
  uint64_t deadline = rail_deadline_in_ms(ms);
  bool late[RANKS_MAX] = {0};
  for (int r = 0; r < job->nranks; r++) {
    int left = rail_deadline_left_ms(deadline);
    late[r] = !job_wait(job, r, (uint64_t)left, NULL);
  }
  for (int r = 0; r < job->nranks; r++) {
    if (!late[r]) continue;
    kill(job->pid[r], SIGKILL);
    kill(job->pid[r], SIGCONT);
    waitpid(job->pid[r], &job->status[r], 0);
  }
  /* A rank that says what was wrong tells more than one that waited for it. */
  for (int pass = 0; pass < 2 && !first[0]; pass++)
    for (int r = 0; r < job->nranks; r++) {
      if ((pass == 0) != (job->common->why[r][0] != 0)) continue;
      if (!verdict(job, r, late[r], expect_killed >> r & 1, text, sizeof text)) continue;
      if (!first[0])
        snprintf(first, sizeof first, "%s", text);
      else
        printf("# also: %s\n", text);
    }
  munmap(job->common, sizeof *job->common);
  free(job);
  ENSURE(!first[0], "%s", first);
}

void job_run(const char *env, int nranks, uint64_t ms, rank_fn body, void *arg) {
  job_end(job_start(env, nranks, body, arg), ms, 0);
}
