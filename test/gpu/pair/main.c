/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_pair: starts two ranks, waits for them, and prints a line of TAP for each
 * collective and type. See ../run.sh, which sets NCCL's environment and prints the plan.
 *
 * The parent never touches CUDA or NCCL: both keep threads and contexts that a
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

#include "pair.h"

#define TICK_NS 20000000L
#define GRACE_TICKS 250 /* 5 s for the other rank, when one has failed */

static void nap(long ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }

bool pair_barrier(struct pair_shared *s) {
  unsigned ticket = atomic_fetch_add(&s->at_barrier, 1), all = (ticket / PAIR_RANKS + 1) * PAIR_RANKS;
  while (atomic_load(&s->at_barrier) < all) {
    if (atomic_load(&s->failed)) return false;
    nap(50000);
  }
  atomic_fetch_add(&s->beat, 1);
  return true;
}

static pid_t start(const struct pair_options *o, struct pair_shared *s, int rank) {
  pid_t parent = getpid();
  fflush(NULL);
  pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);
  /* NCCL takes ranks of one host that share a GPU for a mistake, and would move data between
   * them by shared memory; with names of their own they are on two hosts, joined by the network. */
  char host[64];
  snprintf(host, sizeof host, "railyard-%ld-%d", (long)parent, rank);
  setenv("NCCL_HOSTID", host, 1);
  int status = pair_rank(o, s, rank);
  if (status != 0) atomic_store(&s->failed, true);
  fflush(NULL);
  _exit(status);
}

/* Waits for both. Nothing may hang for ever: neither without progress, nor when the other rank is gone. */
static bool wait_for(const struct pair_options *o, struct pair_shared *s, pid_t *pids) {
  unsigned beat = 0;
  long still = 0, grace = 0, limit = o->limit_s * (1000000000L / TICK_NS);
  bool good = true;
  for (int left = PAIR_RANKS; left > 0; nap(TICK_NS)) {
    for (int r = 0; r < PAIR_RANKS; r++) {
      int status;
      if (pids[r] == 0 || waitpid(pids[r], &status, WNOHANG) != pids[r]) continue;
      pids[r] = 0;
      left--;
      if (status == 0) continue;
      good = false;
      atomic_store(&s->failed, true);
      if (WIFSIGNALED(status)) printf("# rank %d was ended by signal %d\n", r, WTERMSIG(status));
      else printf("# rank %d ended with status %d\n", r, WEXITSTATUS(status));
    }
    unsigned now = atomic_load(&s->beat);
    still = now == beat ? still + 1 : 0;
    beat = now;
    grace = atomic_load(&s->failed) ? grace + 1 : 0;
    if (left == 0 || (still < limit && grace < GRACE_TICKS)) continue;
    if (still >= limit) printf("# no progress for %d s; ending the ranks\n", o->limit_s);
    good = false;
    for (int r = 0; r < PAIR_RANKS; r++)
      if (pids[r] > 0) kill(pids[r], SIGKILL);
    still = grace = 0;
  }
  return good;
}

static int report(const struct pair_shared *s, bool good) {
  int failed = 0;
  for (int i = 0; i < PAIR_CASES; i++) {
    const char *kind = pair_kind_name((enum pair_kind)(i / PAIR_TYPES));
    const char *type = pair_type_name((enum pair_type)(i % PAIR_TYPES));
    bool ok = atomic_load(&s->done[i]) && s->wrong[i] == 0;
    if (!atomic_load(&s->done[i])) printf("# %s of %s did not reach its end\n", kind, type);
    else if (!ok) printf("# %s of %s: %llu wrong\n", kind, type, (unsigned long long)s->wrong[i]);
    printf("%s - NCCL %s of %s, every element right\n", ok ? "ok" : "not ok", kind, type);
    failed += !ok;
  }
  printf("%s - both ranks ended well\n", good ? "ok" : "not ok");
  return failed || !good ? 1 : 0;
}

static size_t number(const char *name, const char *text, size_t least, size_t most) {
  char *end;
  errno = 0;
  unsigned long long v = strtoull(text, &end, 10);
  if (errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == 0 && v >= least && v <= most) return (size_t)v;
  fprintf(stderr, "nccl_pair: --%s: '%s' is not a number from %zu to %zu\n", name, text, least, most);
  exit(2);
}

static void usage(FILE *f) {
  fprintf(f, "usage: nccl_pair [--iters N] [--warmup N] [--minbytes N] [--maxbytes N] [--limit SECONDS]\n"
             "                 [--device0 N] [--device1 N] [--probe]\n");
}

int main(int argc, char **argv) {
  static const struct option longs[] = {
      {"iters", 1, NULL, 'n'}, {"warmup", 1, NULL, 'w'}, {"minbytes", 1, NULL, 'b'}, {"maxbytes", 1, NULL, 'e'},
      {"limit", 1, NULL, 'T'}, {"device0", 1, NULL, '0'}, {"device1", 1, NULL, '1'}, {"probe", 0, NULL, 'p'},
      {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
  struct pair_options o = {.iters = 5, .warmup = 1, .min_bytes = 8, .max_bytes = 64 << 20, .limit_s = 120};
  bool probe = false;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int c; (c = getopt_long(argc, argv, "n:w:b:e:T:h", longs, NULL)) != -1;) {
    switch (c) {
      case 'n': o.iters = (int)number("iters", optarg, 1, 1000000); break;
      case 'w': o.warmup = (int)number("warmup", optarg, 0, 1000000); break;
      case 'b': o.min_bytes = number("minbytes", optarg, 8, (size_t)1 << 34); break;
      case 'e': o.max_bytes = number("maxbytes", optarg, 8, (size_t)1 << 34); break;
      case 'T': o.limit_s = (int)number("limit", optarg, 1, 86400); break;
      case '0': case '1': o.devices[c - '0'] = (int)number("device", optarg, 0, 1023); break;
      case 'p': probe = true; break;
      case 'h': usage(stdout); return 0;
      default: usage(stderr); return 2;
    }
  }
  if (probe) return pair_probe(&o);

  struct pair_shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (s == MAP_FAILED) {
    perror("nccl_pair: mmap");
    return 3;
  }
  pid_t pids[PAIR_RANKS];
  for (int r = 0; r < PAIR_RANKS; r++) {
    pids[r] = start(&o, s, r);
    if (pids[r] > 0) continue;
    perror("nccl_pair: fork"); /* the ranks that run see it at their next barrier, or are killed with us */
    return 3;
  }
  return report(s, wait_for(&o, s, pids));
}
