/* SPDX-License-Identifier: Apache-2.0
 *
 * A process' ranks from start to end: memory, communicators, one thread per
 * worker, and a watchdog that aborts when nothing finishes any more.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "tools/rail-coll/coll.h"

#define ABORT_GRACE_S 10
#define INFO_MAGIC 0x7261696cu

/* ---- failures ---- */

int rc_failed(struct rc_worker *w, const struct rc_rank *r, const char *what, ncclResult_t result) {
  ncclComm_t comm = atomic_load(&r->comm); /* NULL when the watchdog took it, which has told why */
  if (!atomic_exchange(&w->process->failed, true))
    fprintf(stderr, RC_NAME ": rank %d: %s: %s: %s\n", r->rank, what, ncclGetErrorString(result),
            ncclGetLastError(comm));
  w->status = TOOL_EXIT_FAILED;
  return -1;
}

static int told(const char *what, int err) {
  fprintf(stderr, RC_NAME ": %s: %s\n", what, strerror(err));
  return -1;
}

static void abort_all(struct rc_process *p) {
  for (int i = 0; i < p->nlocal; i++) {
    ncclComm_t comm = atomic_exchange(&p->ranks[i].comm, NULL);
    if (comm) (void)ncclCommAbort(comm);
  }
}

static void *watchdog(void *arg) {
  struct rc_process *p = arg;
  uint64_t limit = (uint64_t)p->o->timeout_s * 1000000000ull;
  while (!atomic_load(&p->ended)) {
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    uint64_t last = atomic_load(&p->last_progress_ns), now = rail_now_ns();
    if (now < last || now - last < limit) continue;
    if (!atomic_exchange(&p->failed, true))
      fprintf(stderr, RC_NAME ": rank %d: nothing finished for %d s (--timeout) in %s; aborting\n", p->first,
              p->o->timeout_s, atomic_load(&p->doing));
    abort_all(p);
    for (int i = 0; i < ABORT_GRACE_S * 20 && !atomic_load(&p->ended); i++)
      nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    if (!atomic_load(&p->ended)) _exit(TOOL_EXIT_FAILED);
    break;
  }
  return NULL;
}

/* ---- what ranks do together ---- */

int rc_wait(struct rc_worker *w, const char *what) {
  for (int i = 0; i < w->n; i++) {
    if (!atomic_load(&w->ranks[i].comm)) return rc_failed(w, &w->ranks[i], what, ncclRemoteError);
    ncclResult_t result = railCommWait(w->ranks[i].c);
    if (result != ncclSuccess) return rc_failed(w, &w->ranks[i], what, result);
  }
  atomic_store(&w->process->last_progress_ns, rail_now_ns());
  return 0;
}

const char *rc_exchange(struct rc_worker *w, const void *mine, size_t size) {
  static const char what[] = "exchange between the ranks";
  ncclResult_t result = w->n > 1 ? ncclGroupStart() : ncclSuccess;
  if (result != ncclSuccess) return rc_failed(w, &w->ranks[0], what, result), NULL;
  for (int i = 0; i < w->n; i++) {
    struct rc_rank *r = &w->ranks[i];
    memcpy(r->mine, (const char *)mine + (size_t)i * size, size);
    result = ncclAllGather(r->mine, r->all, size, ncclInt8, r->c, NULL);
    if (result != ncclSuccess) return rc_failed(w, r, what, result), NULL;
  }
  if (w->n > 1 && (result = ncclGroupEnd()) != ncclSuccess) return rc_failed(w, &w->ranks[0], what, result), NULL;
  return rc_wait(w, what) == 0 ? w->ranks[0].all : NULL;
}

/* ---- memory ---- */

static uint64_t available_bytes(void) {
  char line[128];
  unsigned long long kb = 0;
  FILE *f = fopen("/proc/meminfo", "re");
  if (!f) return UINT64_MAX;
  while (fgets(line, sizeof line, f))
    if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
  fclose(f);
  return kb ? kb * 1024 : UINT64_MAX;
}

static int check_memory(const struct rc_process *p, const struct rc_place *place) {
  uint64_t ranks = (uint64_t)p->nlocal * (uint64_t)place->local_processes;
  uint64_t each = 2 * (p->o->max_bytes + p->o->offset + 3 * RC_GUARD), have = available_bytes();
  if (each < have / ranks / 10 * 9) return 0;
  if (p->first == 0)
    fprintf(stderr, RC_NAME ": -e %llu MiB needs %llu MiB for the buffers of %llu ranks on this machine, which has "
            "%llu MiB available; use a smaller -e\n", (unsigned long long)p->o->max_bytes >> 20,
            (unsigned long long)(each >> 20) * ranks, (unsigned long long)ranks, (unsigned long long)have >> 20);
  return -1;
}

static int buffer_open(struct rc_worker *w, struct rc_rank *r, struct rc_buffer *b) {
  const struct rc_options *o = w->process->o;
  size_t total = o->max_bytes + o->offset + 2 * RC_GUARD;
  b->bytes = o->max_bytes;
  if (o->registered) {
    ncclResult_t result = ncclMemAlloc((void **)&b->base, total);
    if (result != ncclSuccess) return rc_failed(w, r, "ncclMemAlloc", result);
    result = ncclCommRegister(r->c, b->base, total, &b->handle);
    if (result != ncclSuccess) return rc_failed(w, r, "ncclCommRegister", result);
  } else {
    int err = posix_memalign((void **)&b->base, 4096, total);
    if (err != 0) return told("buffers", err);
  }
  b->data = b->base + RC_GUARD + o->offset;
  return 0;
}

static void buffer_close(struct rc_rank *r, struct rc_buffer *b, bool registered) {
  if (b->handle && atomic_load(&r->comm)) (void)ncclCommDeregister(r->c, b->handle);
  if (registered) (void)ncclMemFree(b->base);
  else free(b->base);
  *b = (struct rc_buffer){0};
}

static int buffers_open(struct rc_worker *w) {
  for (int i = 0; i < w->n; i++) {
    struct rc_rank *r = &w->ranks[i];
    if (buffer_open(w, r, &r->send) != 0 || buffer_open(w, r, &r->recv) != 0) return -1;
    r->mine = calloc(1, RC_RECORD_MAX);
    r->all = calloc((size_t)w->process->nranks, RC_RECORD_MAX);
    if (!r->mine || !r->all) return told("buffers", ENOMEM);
  }
  return 0;
}

/* ---- communicators ---- */

static int comms_open(struct rc_process *p, int (*share_id)(void *, ncclUniqueId *), void *arg) {
  ncclUniqueId id;
  ncclComm_t *comms = calloc((size_t)p->nlocal, sizeof(ncclComm_t));
  ncclResult_t result;
  const char *what = "ncclCommInitRank";
  if (!comms) return told("communicators", ENOMEM);
  if (p->nranks == p->nlocal && p->nlocal > 1) {
    what = "ncclCommInitAll";
    result = ncclCommInitAll(comms, p->nlocal, NULL);
  } else if (share_id(arg, &id) != 0) {
    free(comms);
    return -1; /* told */
  } else if (p->nlocal == 1) {
    result = ncclCommInitRank(&comms[0], p->nranks, id, p->first);
  } else {
    result = ncclGroupStart();
    for (int i = 0; i < p->nlocal && result == ncclSuccess; i++)
      result = ncclCommInitRank(&comms[i], p->nranks, id, p->first + i);
    ncclResult_t end = ncclGroupEnd();
    if (result == ncclSuccess) result = end;
  }
  if (result != ncclSuccess && !atomic_exchange(&p->failed, true))
    fprintf(stderr, RC_NAME ": rank %d: %s: %s: %s\n", p->first, what, ncclGetErrorString(result),
            ncclGetLastError(NULL));
  for (int i = 0; i < p->nlocal; i++) {
    p->ranks[i].rank = p->first + i;
    p->ranks[i].c = comms[i];
    if (result == ncclSuccess) atomic_store(&p->ranks[i].comm, comms[i]);
  }
  free(comms);
  return result == ncclSuccess ? 0 : -1;
}

static int tell_of_ranks(struct rc_worker *w) {
  _Static_assert(sizeof(struct rc_rank_info) <= RC_RECORD_MAX, "fits the exchange");
  struct rc_rank_info *mine = calloc((unsigned)w->n, sizeof *mine);
  if (!mine) return told("rank information", ENOMEM);
  if (!rc_exchange(w, mine, sizeof *mine)) { /* transports are known once they have been used */
    free(mine);
    return -1;
  }
  for (int i = 0; i < w->n; i++) {
    int device = -1;
    const char *plugin = railCommNetPlugin(w->ranks[i].c), *transports = railCommTransports(w->ranks[i].c);
    (void)ncclCommCuDevice(w->ranks[i].c, &device);
    mine[i] = (struct rc_rank_info){.magic = INFO_MAGIC, .rank = w->ranks[i].rank, .pid = getpid(), .device = device};
    gethostname(mine[i].host, sizeof mine[i].host - 1);
    snprintf(mine[i].transports, sizeof mine[i].transports, "%s", transports ? transports : "");
    snprintf(mine[i].plugin, sizeof mine[i].plugin, "%s", plugin ? plugin : "");
  }
  const struct rc_rank_info *all = (const void *)rc_exchange(w, mine, sizeof *mine);
  free(mine);
  if (!all) return -1;
  for (int i = 0; i < w->process->nranks; i++)
    if (all[i].magic != INFO_MAGIC || all[i].rank != i) {
      fprintf(stderr, RC_NAME ": rank %d got a damaged record of rank %d through ncclAllGather\n", w->ranks[0].rank, i);
      return -1;
    }
  if (w->speaks) memcpy(w->process->report->ranks, all, (size_t)w->process->nranks * sizeof *all);
  return 0;
}

static void *work(void *arg) {
  struct rc_worker *w = arg;
  w->status = TOOL_EXIT_FAILED;
  if (buffers_open(w) != 0 || tell_of_ranks(w) != 0) goto out;
  if (w->speaks) rc_report_head(w->process->report);
  w->status = TOOL_EXIT_OK;
  if (rc_bench(w) != 0) w->status = TOOL_EXIT_FAILED;
  else if (w->bad_elements > 0) w->status = TOOL_EXIT_RESULT;
out:
  /* The process' other threads wait for this one's ranks: an end of them all, not a hang. */
  if (w->status == TOOL_EXIT_FAILED) {
    atomic_store(&w->process->failed, true);
    abort_all(w->process);
  }
  return NULL;
}

static int run_workers(struct rc_process *p) {
  int status = TOOL_EXIT_OK;
  pthread_t *threads = calloc((size_t)p->o->threads, sizeof *threads);
  int started = 0;
  if (!threads) return told("threads", ENOMEM), TOOL_EXIT_FAILED;
  for (; started < p->o->threads - 1; started++) {
    int err = pthread_create(&threads[started], NULL, work, &p->workers[started + 1]);
    if (err == 0) continue;
    told("threads", err);
    status = TOOL_EXIT_FAILED;
    abort_all(p);
    break;
  }
  if (status == TOOL_EXIT_OK) work(&p->workers[0]);
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < p->o->threads; i++)
    if (p->workers[i].status > status) status = p->workers[i].status;
  free(threads);
  return status;
}

static void ranks_close(struct rc_process *p) {
  for (int i = 0; i < p->nlocal; i++) {
    buffer_close(&p->ranks[i], &p->ranks[i].send, p->o->registered);
    buffer_close(&p->ranks[i], &p->ranks[i].recv, p->o->registered);
    free(p->ranks[i].mine);
    free(p->ranks[i].all);
  }
  if (atomic_load(&p->failed)) {
    abort_all(p);
    return;
  }
  /* All of them at once: the destroy of one rank may wait for the others. */
  (void)ncclGroupStart();
  for (int i = 0; i < p->nlocal; i++) {
    ncclComm_t comm = atomic_exchange(&p->ranks[i].comm, NULL);
    if (comm) (void)ncclCommDestroy(comm);
  }
  (void)ncclGroupEnd();
}

static int process_open(struct rc_process *p, const struct rc_place *place, struct rc_report *report) {
  const struct rc_options *o = p->o;
  p->ranks = calloc((size_t)p->nlocal, sizeof *p->ranks);
  p->workers = calloc((size_t)o->threads, sizeof *p->workers);
  if (!p->ranks || !p->workers) return told("ranks", ENOMEM);
  for (int i = 0; i < o->threads; i++)
    p->workers[i] = (struct rc_worker){.process = p, .ranks = p->ranks + i * o->comms_per_thread,
                                       .n = o->comms_per_thread, .speaks = p->first == 0 && i == 0};
  if (p->first != 0) return 0;
  *report = (struct rc_report){.o = o, .nranks = p->nranks, .launch = place->source,
                               .started = (double)rail_now_ns() / 1e9,
                               .table = o->json && strcmp(o->json, "-") == 0 ? stderr : stdout};
  report->ranks = calloc((size_t)p->nranks, sizeof *report->ranks);
  p->report = report;
  return report->ranks ? 0 : told("ranks", ENOMEM);
}

static int check_job(const struct rc_process *p, const struct rc_place *place) {
  const char *problem = NULL;
  int value = p->nranks;
  if (p->nranks > RC_MAX_RANKS) problem = "ranks are more than this tool's limit of 1024";
  else if (p->o->collective->has_root && p->o->root >= p->nranks) problem = "is no rank for --root", value = p->o->root;
  if (problem && p->first == 0) fprintf(stderr, RC_NAME ": %d %s (there are %d ranks)\n", value, problem, p->nranks);
  return problem ? -1 : check_memory(p, place);
}

int rc_run(const struct rc_options *o, const struct rc_place *place, int (*share_id)(void *, ncclUniqueId *),
           void *arg) {
  int status = TOOL_EXIT_FAILED, nlocal = o->threads * o->comms_per_thread;
  struct rc_report report = {0};
  struct rc_process p = {.o = o, .first = place->process * nlocal, .nranks = place->nprocesses * nlocal,
                         .nlocal = nlocal, .doing = "initialisation"};
  bool watched = false;
  pthread_t dog;
  p.last_progress_ns = rail_now_ns();
  if (check_job(&p, place) != 0) return TOOL_EXIT_USAGE;
  if (process_open(&p, place, &report) != 0) goto out;
  if (o->timeout_s > 0) {
    int err = pthread_create(&dog, NULL, watchdog, &p);
    if (err != 0 && told("watchdog", err) != 0) goto out;
    watched = true;
  }
  if (comms_open(&p, share_id, arg) == 0) status = run_workers(&p);
  if (status == TOOL_EXIT_FAILED) atomic_store(&p.failed, true);
  if (status != TOOL_EXIT_FAILED && p.report) {
    rc_report_tail(p.report);
    if (p.report->wrong + p.report->outside > 0) status = TOOL_EXIT_RESULT; /* on whichever rank */
    if (o->json && rc_json_write(p.report) != 0) status = TOOL_EXIT_FAILED;
  }
  atomic_store(&p.doing, "the end of the communicators");
  if (p.ranks) ranks_close(&p);
out:
  atomic_store(&p.ended, true);
  if (watched) pthread_join(dog, NULL);
  free(report.ranks);
  free(report.rows);
  free(p.ranks);
  free(p.workers);
  return status;
}
