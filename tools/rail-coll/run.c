/* SPDX-License-Identifier: Apache-2.0
 *
 * A process' ranks from start to end: GPUs, communicators, one thread per
 * worker, and a watchdog that aborts when nothing finishes any more.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tools/rail-coll/coll.h"

#define ABORT_GRACE_S 10
#define INFO_MAGIC 0x7261696cu

/* ---- failures ---- */

int rc_failed(struct rc_worker *w, const struct rc_rank *r, const char *what, ncclResult_t result) {
  /* The text of this thread's call: the communicator's may be of a later failure of another rank. */
  if (!atomic_exchange(&w->process->failed, true))
    fprintf(stderr, RC_NAME ": rank %d: %s: %s: %s\n", r->rank, what, ncclGetErrorString(result),
            ncclGetLastError(NULL));
  w->status = TOOL_EXIT_FAILED;
  return -1;
}

int rc_gpu_failed(struct rc_worker *w, const struct rc_rank *r, const char *what, int result) {
  if (!atomic_exchange(&w->process->failed, true))
    fprintf(stderr, RC_NAME ": rank %d: CUDA device %d: %s: %s (%d)\n", r->rank, r->gpu.device, what,
            rc_gpu_error(result), result);
  w->status = TOOL_EXIT_FAILED;
  return -1;
}

int rc_report_error(const char *what, int err) {
  fprintf(stderr, RC_NAME ": %s: %s\n", what, strerror(err));
  return -1;
}

static void abort_all(struct rc_process *p) {
  for (int i = 0; i < p->nlocal; i++) {
    ncclComm_t comm = atomic_exchange(&p->ranks[i].comm, NULL), split = atomic_exchange(&p->ranks[i].split, NULL);
    if (split) (void)ncclCommAbort(split);
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
    int cuda = w->ranks[i].gpu.open ? rc_gpu_wait(&w->ranks[i].gpu) : 0;
    if (cuda != 0) return rc_gpu_failed(w, &w->ranks[i], what, cuda);
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
    result = ncclAllGather(r->mine, r->all, size, ncclInt8, r->on_host, NULL);
    if (result != ncclSuccess) return rc_failed(w, r, what, result), NULL;
  }
  if (w->n > 1 && (result = ncclGroupEnd()) != ncclSuccess) return rc_failed(w, &w->ranks[0], what, result), NULL;
  for (int i = 0; i < w->n; i++)
    if ((result = railCommWait(w->ranks[i].on_host)) != ncclSuccess)
      return rc_failed(w, &w->ranks[i], what, result), NULL;
  return rc_wait(w, what) == 0 ? w->ranks[0].all : NULL;
}

/* ---- communicators ---- */

/* A rank's GPU is the one that is current when its communicator is made. */
static int gpus_open(struct rc_process *p) {
  for (int i = 0; i < p->nlocal; i++) {
    struct rc_rank *r = &p->ranks[i];
    r->rank = p->first + i;
    r->memory = rc_memory_of(p->o, r->rank);
    if (r->memory != RC_MEMORY_HOST && rc_gpu_open(&r->gpu, r->rank, p->o->device) != 0) return -1;
  }
  return 0;
}

static ncclResult_t init_rank(struct rc_process *p, ncclComm_t *comms, int i, ncclUniqueId id) {
  if (rc_gpu_use(&p->ranks[i].gpu) != 0) return ncclUnhandledCudaError;
  return ncclCommInitRank(&comms[i], p->nranks, id, p->first + i);
}

static ncclResult_t init_ranks(struct rc_process *p, ncclComm_t *comms, ncclUniqueId id) {
  if (p->nlocal == 1) return init_rank(p, comms, 0, id);
  ncclResult_t result = ncclGroupStart();
  for (int i = 0; i < p->nlocal && result == ncclSuccess; i++) result = init_rank(p, comms, i, id);
  ncclResult_t end = ncclGroupEnd();
  return result == ncclSuccess ? end : result;
}

/* A communicator works on one kind of memory: where that is a GPU's, the ranks talk by another one. */
static int comms_split(struct rc_process *p) {
  ncclComm_t *splits = calloc((unsigned)p->nlocal, sizeof(ncclComm_t));
  if (!splits) return rc_report_error("communicators", ENOMEM);
  ncclResult_t result = p->nlocal > 1 ? ncclGroupStart() : ncclSuccess;
  for (int i = 0; i < p->nlocal && result == ncclSuccess; i++)
    result = ncclCommSplit(p->ranks[i].c, 0, p->first + i, &splits[i], NULL);
  ncclResult_t end = p->nlocal > 1 ? ncclGroupEnd() : ncclSuccess;
  if (result == ncclSuccess) result = end;
  if (result != ncclSuccess && !atomic_exchange(&p->failed, true))
    fprintf(stderr, RC_NAME ": rank %d: ncclCommSplit: %s: %s\n", p->first, ncclGetErrorString(result),
            ncclGetLastError(NULL));
  for (int i = 0; i < p->nlocal; i++) {
    p->ranks[i].on_host = splits[i];
    if (result == ncclSuccess) atomic_store(&p->ranks[i].split, splits[i]);
  }
  free(splits);
  return result == ncclSuccess ? 0 : -1;
}

static int comms_open(struct rc_process *p, int (*share_id)(void *, ncclUniqueId *), void *arg) {
  ncclUniqueId id;
  ncclComm_t *comms = calloc((unsigned)p->nlocal, sizeof(ncclComm_t));
  ncclResult_t result;
  const char *what = "ncclCommInitRank";
  if (!comms) return rc_report_error("communicators", ENOMEM);
  if (p->nranks == p->nlocal && p->nlocal > 1 && !rc_uses_gpus(p->o)) {
    what = "ncclCommInitAll";
    result = ncclCommInitAll(comms, p->nlocal, NULL);
  } else if (share_id(arg, &id) != 0) {
    free(comms);
    return -1; /* reported */
  } else {
    result = init_ranks(p, comms, id);
  }
  if (result != ncclSuccess && !atomic_exchange(&p->failed, true))
    fprintf(stderr, RC_NAME ": rank %d: %s: %s: %s\n", p->first, what, ncclGetErrorString(result),
            ncclGetLastError(NULL));
  for (int i = 0; i < p->nlocal; i++) {
    p->ranks[i].c = p->ranks[i].on_host = comms[i];
    if (result == ncclSuccess) atomic_store(&p->ranks[i].comm, comms[i]);
  }
  free(comms);
  if (result != ncclSuccess) return -1;
  return rc_uses_gpus(p->o) ? comms_split(p) : 0;
}

/* Before any thread makes a call: allocating may wait for kernels, and those for ranks whose turn comes later. */
static int buffers_open(struct rc_process *p) {
  for (int i = 0; i < p->o->threads; i++)
    if (rc_buffers_open(&p->workers[i]) != 0) return -1;
  return 0;
}

/* Uses the buffers once: what connects the ranks is known then. */
static int use_gpus(struct rc_worker *w) {
  static const char what[] = "the first use of the buffers";
  ncclResult_t result = ncclGroupStart();
  for (int i = 0; i < w->n && result == ncclSuccess; i++) {
    struct rc_rank *r = &w->ranks[i];
    char *guard = r->recv.user - RC_GUARD;
    result = ncclAllReduce(guard, guard, RC_GUARD, ncclInt8, ncclMax, r->c, r->gpu.stream);
  }
  ncclResult_t end = ncclGroupEnd();
  if (result == ncclSuccess) result = end;
  return result == ncclSuccess ? rc_wait(w, what) : rc_failed(w, &w->ranks[0], what, result);
}

/* Figures of a run over another transport are not about the plugin. All ranks reach the same answer. */
static bool plugin_is_used(const struct rc_worker *w, const struct rc_rank_info *all) {
  const char *plugin = w->process->o->plugin;
  for (int i = 0; i < w->process->nranks; i++)
    if (!plugin || all[i].plugin[0]) return true;
  if (w->prints)
    fprintf(stderr, RC_NAME ": --plugin %s is not used: no rank needs a network to reach another; add --net-only\n",
            plugin);
  return false;
}

static int exchange_rank_info(struct rc_worker *w) {
  _Static_assert(sizeof(struct rc_rank_info) <= RC_RECORD_MAX, "fits the exchange");
  struct rc_rank_info *mine = calloc((unsigned)w->n, sizeof *mine);
  if (!mine) return rc_report_error("rank information", ENOMEM);
  if (!rc_exchange(w, mine, sizeof *mine)) { /* transports are known once they have been used */
    free(mine);
    return -1;
  }
  for (int i = 0; i < w->n; i++) {
    int device = -1;
    const char *plugin = railCommNetPlugin(w->ranks[i].c), *transports = railCommTransports(w->ranks[i].c);
    const struct rc_gpu *gpu = &w->ranks[i].gpu;
    (void)ncclCommCuDevice(w->ranks[i].c, &device);
    mine[i] = (struct rc_rank_info){.magic = INFO_MAGIC, .rank = w->ranks[i].rank, .pid = getpid(), .device = device,
                                    .memory = w->ranks[i].memory};
    snprintf(mine[i].gpu, sizeof mine[i].gpu, "%s", gpu->name);
    snprintf(mine[i].bus_id, sizeof mine[i].bus_id, "%s", gpu->bus_id);
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
  if (w->prints) memcpy(w->process->report->ranks, all, (size_t)w->process->nranks * sizeof *all);
  if (!plugin_is_used(w, all)) atomic_store(&w->process->plugin_unused, true);
  return 0;
}

static void *work(void *arg) {
  struct rc_worker *w = arg;
  w->status = TOOL_EXIT_FAILED;
  /* The analyzer takes --threads for 0, where worker 0 has no process; the option's minimum is 1. */
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
  if ((rc_uses_gpus(w->process->o) && use_gpus(w) != 0) || exchange_rank_info(w) != 0) goto out;
  w->status = TOOL_EXIT_OK;
  if (atomic_load(&w->process->plugin_unused)) goto out;
  if (w->prints) rc_report_head(w->process->report);
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
  pthread_t *threads = calloc((unsigned)p->o->threads, sizeof *threads);
  int started = 0;
  if (!threads) return rc_report_error("threads", ENOMEM), TOOL_EXIT_FAILED;
  for (; started < p->o->threads - 1; started++) {
    int err = pthread_create(&threads[started], NULL, work, &p->workers[started + 1]);
    if (err == 0) continue;
    rc_report_error("threads", err);
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
  rc_buffers_close(p);
  if (atomic_load(&p->failed)) {
    abort_all(p);
    return;
  }
  /* All of them at once: the destroy of one rank may wait for the others. */
  (void)ncclGroupStart();
  for (int i = 0; i < p->nlocal; i++) {
    ncclComm_t comm = atomic_exchange(&p->ranks[i].comm, NULL), split = atomic_exchange(&p->ranks[i].split, NULL);
    if (split) (void)ncclCommDestroy(split);
    if (comm) (void)ncclCommDestroy(comm);
  }
  (void)ncclGroupEnd();
}

static int process_open(struct rc_process *p, const struct rc_place *place, struct rc_report *report) {
  const struct rc_options *o = p->o;
  p->ranks = calloc((size_t)p->nlocal, sizeof *p->ranks);
  p->workers = calloc((size_t)o->threads, sizeof *p->workers);
  if (!p->ranks || !p->workers) return rc_report_error("ranks", ENOMEM);
  for (int i = 0; i < o->threads; i++)
    p->workers[i] = (struct rc_worker){.process = p, .ranks = p->ranks + i * o->comms_per_thread,
                                       .n = o->comms_per_thread, .prints = p->first == 0 && i == 0};
  if (p->first != 0) return 0;
  *report = (struct rc_report){.o = o, .nranks = p->nranks, .launch = place->source,
                               .started = (double)rail_now_ns() / 1e9,
                               .table = o->json && strcmp(o->json, "-") == 0 ? stderr : stdout};
  report->ranks = calloc((size_t)p->nranks, sizeof *report->ranks);
  p->report = report;
  return report->ranks ? 0 : rc_report_error("ranks", ENOMEM);
}

static int check_job(const struct rc_process *p, const struct rc_place *place) {
  const char *problem = NULL;
  int value = p->nranks;
  if (p->nranks > RC_MAX_RANKS) problem = "ranks are more than this tool's limit of 1024";
  else if (p->o->collective->has_root && p->o->root >= p->nranks) problem = "is no rank for --root", value = p->o->root;
  if (problem && p->first == 0) fprintf(stderr, RC_NAME ": %d %s (there are %d ranks)\n", value, problem, p->nranks);
  return problem ? -1 : rc_memory_check(p, place);
}

int rc_run(const struct rc_options *o, const struct rc_place *place, int (*share_id)(void *, ncclUniqueId *),
           void *arg) {
  int status = TOOL_EXIT_FAILED, nlocal = o->threads * o->comms_per_thread;
  struct rc_report report = {0};
  struct rc_process p = {.o = o, .first = place->process * nlocal, .nranks = place->nprocesses * nlocal,
                         .nlocal = nlocal, .doing = "initialisation"};
  bool watched = false;
  pthread_t thread;
  p.last_progress_ns = rail_now_ns();
  if (check_job(&p, place) != 0) return TOOL_EXIT_USAGE;
  if (process_open(&p, place, &report) != 0) goto out;
  if (o->timeout_s > 0) {
    int err = pthread_create(&thread, NULL, watchdog, &p);
    if (err != 0 && rc_report_error("watchdog", err) != 0) goto out;
    watched = true;
  }
  if (gpus_open(&p) == 0 && comms_open(&p, share_id, arg) == 0 && buffers_open(&p) == 0) status = run_workers(&p);
  if (status == TOOL_EXIT_FAILED) atomic_store(&p.failed, true);
  if (status != TOOL_EXIT_FAILED && p.report && !atomic_load(&p.plugin_unused)) {
    rc_report_tail(p.report);
    if (p.report->wrong + p.report->outside > 0) status = TOOL_EXIT_RESULT; /* on whichever rank */
    if (o->json && rc_json_write(p.report) != 0) status = TOOL_EXIT_FAILED;
  }
  atomic_store(&p.doing, "the end of the communicators");
  if (p.ranks) ranks_close(&p);
  if (atomic_load(&p.plugin_unused)) status = TOOL_EXIT_RESULT;
  for (int i = 0; i < p.nlocal; i++) rc_gpu_close(&p.ranks[i].gpu);
out:
  atomic_store(&p.ended, true);
  if (watched) pthread_join(thread, NULL);
  free(report.ranks);
  free(report.rows);
  free(p.ranks);
  free(p.workers);
  return status;
}
