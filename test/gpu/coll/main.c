/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_coll: starts ranks on one GPU, waits for them, and prints a line of TAP for each collective and type. Which
 * library it calls is an option, and NCCL's variables are the caller's (../suite.py).
 *
 * The parent never touches CUDA or the library: both keep threads and contexts that a
 * fork would break.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "coll.h"

#define TICK_NS 20000000L
#define GRACE_TICKS 250 /* 5 s for the other ranks, when one has failed */

static void nap(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }

bool coll_wanted(const struct coll_options *o, int index) {
  if (o->one_type && index % COLL_TYPES != COLL_FLOAT) return false;
  return !o->only || strcmp(o->only, coll_kind_name((enum coll_kind)(index / COLL_TYPES))) == 0;
}

bool coll_barrier(const struct coll_options *o, struct coll_shared *s) {
  unsigned n = (unsigned)o->nranks, ticket = atomic_fetch_add(&s->at_barrier, 1), all = (ticket / n + 1) * n;
  while (atomic_load(&s->at_barrier) < all) {
    if (atomic_load(&s->failed)) return false;
    nap(50000);
  }
  atomic_fetch_add(&s->beat, 1);
  return true;
}

/* NCCL takes ranks of one host that share a GPU for a mistake, and any library would move data between them without
 * the network; with names of their own they are on several hosts. */
static void name_host(pid_t parent, int rank) {
  char host[64];
  snprintf(host, sizeof host, "railyard-%ld-%d", (long)parent, rank);
  setenv("NCCL_HOSTID", host, 1);
}

static pid_t start(const struct coll_options *o, struct coll_shared *s, int rank) {
  pid_t parent = getpid();
  fflush(NULL);
  pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);
  if (o->hosts) name_host(parent, rank);
  int status = coll_rank(o, s, rank);
  if (status != 0) atomic_store(&s->failed, true);
  fflush(NULL);
  _exit(status);
}

/* One look at who has ended. False: somebody did badly. */
static bool collect(struct coll_shared *s, pid_t *pids, int n, int *left) {
  bool good = true;
  for (int r = 0; r < n; r++) {
    int status;
    if (pids[r] == 0 || waitpid(pids[r], &status, WNOHANG) != pids[r]) continue;
    pids[r] = 0;
    --*left;
    if (status == 0) continue;
    good = false;
    atomic_store(&s->failed, true);
    if (WIFSIGNALED(status)) printf("# rank %d was ended by signal %d\n", r, WTERMSIG(status));
    else printf("# rank %d ended with status %d\n", r, WEXITSTATUS(status));
  }
  return good;
}

/* Waits for all. Nothing may hang for ever: neither without progress, nor when another rank is gone. */
static bool wait_for(const struct coll_options *o, struct coll_shared *s, pid_t *pids) {
  unsigned beat = 0;
  long still = 0, grace = 0, limit = o->limit_s * (1000000000L / TICK_NS);
  bool good = true;
  for (int left = o->nranks; left > 0; nap(TICK_NS)) {
    good = collect(s, pids, o->nranks, &left) && good;
    unsigned now = atomic_load(&s->beat);
    still = now == beat ? still + 1 : 0;
    beat = now;
    grace = atomic_load(&s->failed) ? grace + 1 : 0;
    if (left == 0 || (still < limit && grace < GRACE_TICKS)) continue;
    if (still >= limit) printf("# no progress for %d s; ending the ranks\n", o->limit_s);
    good = false;
    for (int r = 0; r < o->nranks; r++)
      if (pids[r] > 0) kill(pids[r], SIGKILL);
    still = grace = 0;
  }
  return good;
}

static int report(const struct coll_options *o, const struct coll_shared *s, bool good) {
  int failed = 0, cases = 0;
  for (int i = 0; i < COLL_CASES; i++) {
    if (!coll_wanted(o, i)) continue;
    const char *kind = coll_kind_name((enum coll_kind)(i / COLL_TYPES));
    const char *type = coll_type_name((enum coll_type)(i % COLL_TYPES));
    bool ok = atomic_load(&s->done[i]) && s->wrong[i] == 0;
    if (!atomic_load(&s->done[i])) printf("# %s of %s did not reach its end\n", kind, type);
    else if (!ok) printf("# %s of %s: %llu wrong\n", kind, type, (unsigned long long)s->wrong[i]);
    printf("%s %d - %s of %s on %d ranks, every element right\n", ok ? "ok" : "not ok", ++cases, kind, type, o->nranks);
    failed += !ok;
  }
  printf("%s %d - all ranks ended well\n", good ? "ok" : "not ok", ++cases);
  printf("1..%d\n", cases);
  return failed || !good ? 1 : 0;
}

static size_t number(const char *name, const char *text, size_t least, size_t most) {
  char *end;
  errno = 0;
  unsigned long long v = strtoull(text, &end, 10);
  if (errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == 0 && v >= least && v <= most) return (size_t)v;
  fprintf(stderr, "gpu_coll: --%s: '%s' is not a number from %zu to %zu\n", name, text, least, most);
  exit(2);
}

static const char *collective(const char *text) {
  for (int i = 0; i < COLL_KINDS; i++)
    if (strcmp(text, coll_kind_name((enum coll_kind)i)) == 0) return text;
  fprintf(stderr, "gpu_coll: --only: '%s' is none of the collectives\n", text);
  exit(2);
}

static void usage(FILE *f) {
  fprintf(f, "usage: gpu_coll [--library LIBNCCL] [--ranks N] [--only COLLECTIVE] [--float] [--iters N]\n"
             "                [--most-ms MS] [--minbytes N] [--maxbytes N] [--factor N] [--limit SECONDS]\n"
             "                [--hosts] [--probe]\n");
}

/* True: only a probe is wanted. */
static bool read_options(int argc, char **argv, struct coll_options *o) {
  static const struct option longs[] = {
      {"library", 1, NULL, 'l'}, {"ranks", 1, NULL, 'r'}, {"only", 1, NULL, 'o'}, {"float", 0, NULL, 'F'},
      {"iters", 1, NULL, 'n'}, {"most-ms", 1, NULL, 'm'}, {"minbytes", 1, NULL, 'b'}, {"maxbytes", 1, NULL, 'e'},
      {"factor", 1, NULL, 'f'}, {"limit", 1, NULL, 'T'}, {"hosts", 0, NULL, 'H'}, {"probe", 0, NULL, 'p'},
      {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
  bool probe = false;
  for (int c; (c = getopt_long(argc, argv, "l:r:o:n:m:b:e:f:T:h", longs, NULL)) != -1;) {
    switch (c) {
      case 'l': o->library = optarg; break;
      case 'r': o->nranks = (int)number("ranks", optarg, 1, COLL_MAX_RANKS); break;
      case 'o': o->only = collective(optarg); break;
      case 'F': o->one_type = true; break;
      case 'H': o->hosts = true; break;
      case 'n': o->iters = (int)number("iters", optarg, 1, 1000000); break;
      case 'm': o->most_ms = (int)number("most-ms", optarg, 1, 3600000); break;
      case 'b': o->min_bytes = number("minbytes", optarg, 8, (size_t)1 << 34); break;
      case 'e': o->max_bytes = number("maxbytes", optarg, 8, (size_t)1 << 34); break;
      case 'f': o->factor = (unsigned)number("factor", optarg, 2, 1u << 20); break;
      case 'T': o->limit_s = (int)number("limit", optarg, 1, 86400); break;
      case 'p': probe = true; break;
      case 'h': usage(stdout); exit(0);
      default: usage(stderr); exit(2);
    }
  }
  return probe;
}

int main(int argc, char **argv) {
  struct coll_options o = {.library = "libnccl.so.2", .nranks = 2, .iters = 5, .most_ms = 1000, .min_bytes = 8,
                           .max_bytes = 4 << 20, .factor = 2, .limit_s = 60};
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (read_options(argc, argv, &o)) return coll_probe();

  struct coll_shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) {
    perror("gpu_coll: mmap");
    return 3;
  }
  pid_t pids[COLL_MAX_RANKS];
  for (int r = 0; r < o.nranks; r++) {
    pids[r] = start(&o, s, r);
    if (pids[r] > 0) continue;
    perror("gpu_coll: fork"); /* the ranks that run are killed with us */
    return 3;
  }
  return report(&o, s, wait_for(&o, s, pids));
}
