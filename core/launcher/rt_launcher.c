/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks that a launcher has set in the environment, and a unique id derived from it.
 */
#include "core/launcher/rt_launcher.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/sock.h"
#include "core/bootstrap/rt_boot_wire.h"
#include "core/bootstrap/rt_rendezvous.h"
#include "core/comm/rt_error.h"
#include "core/comm/rt_param.h"

#define NONCE_BYTES 16
#define DERIVED_PORT_FIRST 20000 /* below Linux's ephemeral ports, which begin at 32768 */
#define DERIVED_PORTS 12000

_Static_assert(NCCL_UNIQUE_ID_BYTES == RT_UNIQUE_ID_BYTES, "one id");

/* ---- reading the environment ---- */

/* One launcher: the variables that must all be set, and optional ones. */
struct launcher {
  const char *source;
  const char *rank, *size;
  const char *size_else;               /* where `size` may be absent */
  const char *local_rank, *local_size; /* local_size NULL: from Slurm's lists */
  const char *required;                /* without it the other variables mean something else */
};

/* Ranks that mpirun starts in a job step inherit Slurm's variables, which count Slurm's tasks (the daemons of mpirun),
 * not the ranks; hence Open MPI before Slurm. A batch script has SLURM_PROCID=0 and SLURM_NTASKS too, but only tasks of
 * a step are ranks. */
static const struct launcher launchers[] = {
    {.source = "torchrun",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE"},
    {.source = "openmpi",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {.source = "slurm",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .size_else = "SLURM_NTASKS",
     .local_rank = "SLURM_LOCALID",
     .required = "SLURM_STEP_ID"},
};

static const char *env(const char *name) {
  const char *value = name ? getenv(name) : NULL;
  return value && *value ? value : NULL;
}

/* The whole text is a number in lo..hi. */
static bool parse_number(const char *text, long lo, long hi, int *out) {
  char *end;
  errno = 0;
  long value = strtol(text, &end, 10);
  if (end == text || *end || errno || value < lo || value > hi) return false;
  *out = (int)value;
  return true;
}

static rail_result_t bad_variable(const char *name, const char *value, const char *want) {
  rt_error(RAIL_BAD_USAGE, "launcher: %s=%s: %s expected", name, value, want);
  return RAIL_BAD_USAGE;
}

/* An optional variable; -1 when it is not set or not valid. */
static void read_optional(const char *name, long lo, long hi, int *out) {
  const char *text = env(name);
  *out = -1;
  if (text && !parse_number(text, lo, hi, out))
    RAIL_WARN("launcher: %s=%s is ignored: not a number in its range", name, text);
}

bool rt_launcher_first_host(const char *list, char *host, size_t cap) {
  size_t n = 0;
  while (*list && *list != ',') {
    if (*list == '[') { /* the first number of the range, with its zeros */
      const char *end = strchr(list, ']');
      size_t digits = strspn(list + 1, "0123456789");
      if (!end || digits == 0 || n + digits >= cap) return false;
      memcpy(host + n, list + 1, digits);
      n += digits;
      list = end + 1;
    } else {
      if (n + 1 >= cap || *list == ']') return false;
      host[n++] = *list++;
    }
  }
  host[n] = 0;
  return n > 0;
}

int rt_launcher_tasks_of_node(const char *text, int node) {
  while (node >= 0 && *text) {
    char *end;
    long tasks = strtol(text, &end, 10), times = 1;
    if (end == text || tasks < 1 || tasks > RT_BOOT_MAX_RANKS) return -1;
    if (end[0] == '(' && end[1] == 'x') {
      text = end + 2;
      times = strtol(text, &end, 10);
      if (end == text || *end++ != ')' || times < 1) return -1;
    }
    if (*end && *end != ',') return -1;
    if (node < times) return (int)tasks;
    node -= (int)RAIL_MIN(times, (long)node);
    text = *end ? end + 1 : end;
  }
  return -1;
}

static void slurm_local_size(int *local_size) {
  const char *tasks = env("SLURM_STEP_TASKS_PER_NODE");
  int node;
  if (!tasks) tasks = env("SLURM_TASKS_PER_NODE");
  read_optional("SLURM_NODEID", 0, RT_BOOT_MAX_RANKS, &node);
  *local_size = tasks ? rt_launcher_tasks_of_node(tasks, node) : -1;
}

RAIL_EXPORT ncclResult_t railLaunchFromEnv(railLaunch_t *launch) {
  if (!launch) return rt_error(RAIL_BAD_ARGUMENT, "launcher: NULL");
  for (size_t i = 0; i < RAIL_COUNT_OF(launchers); i++) {
    const struct launcher *l = &launchers[i];
    const char *size_name = env(l->size) ? l->size : l->size_else;
    const char *rank = env(l->rank), *size = env(size_name);
    if (!rank || !size || (l->required && !env(l->required))) continue;
    railLaunch_t found = {.source = l->source};
    if (!parse_number(size, 1, RT_BOOT_MAX_RANKS, &found.nranks))
      return rt_error(RAIL_BAD_ARGUMENT, "launcher: %s=%s: a count up to %d expected", size_name, size,
                      RT_BOOT_MAX_RANKS);
    if (!parse_number(rank, 0, found.nranks - 1, &found.rank))
      return rt_error(RAIL_BAD_ARGUMENT, "launcher: %s=%s, but %s=%d: ranks are 0 to %d", l->rank, rank, size_name,
                      found.nranks, found.nranks - 1);
    read_optional(l->local_rank, 0, found.nranks - 1, &found.localRank);
    if (l->local_size)
      read_optional(l->local_size, 1, found.nranks, &found.localSize);
    else
      slurm_local_size(&found.localSize);
    *launch = found;
    return ncclSuccess;
  }
  return ncclInvalidUsage; /* not logged: a program may ask whether there is a launcher */
}

/* ---- exchange through a store ---- */

struct request {
  uint8_t nonce[NONCE_BYTES];
};
struct answer {
  uint8_t nonce[NONCE_BYTES];
  char id[RT_UNIQUE_ID_BYTES];
};

static void key_of(char key[RT_STORE_MAX_KEY + 1], const char *prefix, const char *what, int rank) {
  snprintf(key, RT_STORE_MAX_KEY + 1, "%.40s-%s-%d", prefix, what, rank);
}

/* Rank 0 reads one rank's request and answers a new one. When an answered request is gone, that rank is done. */
static rail_result_t serve(struct rt_store *s, const char *prefix, int rank, const char *id, struct answer *last,
                           uint8_t *done) {
  char key[RT_STORE_MAX_KEY + 1];
  static const uint8_t none[NONCE_BYTES];
  struct request request;
  size_t size = sizeof request;
  key_of(key, prefix, "ask", rank);
  rail_result_t result = rt_store_try_get(s, key, &request, &size);
  if (result == RAIL_IN_PROGRESS) {
    *done = memcmp(last->nonce, none, NONCE_BYTES) != 0;
    return RAIL_OK;
  }
  if (result != RAIL_OK || size != sizeof request) return result != RAIL_OK ? result : RAIL_REMOTE_ERROR;
  if (memcmp(request.nonce, last->nonce, NONCE_BYTES) == 0) return RAIL_OK;
  memcpy(last->nonce, request.nonce, NONCE_BYTES);
  memcpy(last->id, id, RT_UNIQUE_ID_BYTES);
  key_of(key, prefix, "id", rank);
  return rt_store_set(s, key, last, sizeof *last);
}

static rail_result_t distribute(struct rt_store *s, const char *prefix, int nranks, const char *id,
                                uint64_t timeout_ms) {
  char missing[160];
  uint64_t deadline = rail_deadline_in_ms(timeout_ms);
  struct answer *last = calloc((size_t)nranks, sizeof *last);
  uint8_t *done = calloc((size_t)nranks, 1);
  rail_result_t result = RAIL_OK;
  if (!last || !done)
    result = (rail_result_t)rt_error(RAIL_SYSTEM_ERROR, "launcher: out of memory for the requests of %d ranks", nranks);
  int left = nranks - 1;
  if (result == RAIL_OK) done[0] = 1;
  for (int pause = RT_STORE_POLL_FIRST_MS; result == RAIL_OK && left > 0;
       pause = RAIL_MIN(2 * pause, RT_STORE_POLL_MAX_MS)) {
    for (int rank = 1; rank < nranks && result == RAIL_OK; rank++) {
      if (done[rank]) continue;
      result = serve(s, prefix, rank, id, &last[rank], &done[rank]);
      if (done[rank]) {
        left--;
        pause = RT_STORE_POLL_FIRST_MS;
      }
    }
    if (result != RAIL_OK || left == 0) break;
    if (rail_deadline_passed(deadline)) {
      rt_rendezvous_missing(done, nranks, missing, sizeof missing);
      rt_error(RAIL_REMOTE_ERROR,
               "launcher: %d of %d ranks fetched the unique id from %s within %" PRIu64
               " ms; missing: %s. Do they run, and do they see the same directory?",
               nranks - left, nranks, rt_store_path(s), timeout_ms, missing);
      result = RAIL_REMOTE_ERROR;
    } else {
      poll(NULL, 0, pause);
    }
  }
  free(last);
  free(done);
  return result;
}

static rail_result_t fetch(struct rt_store *s, const char *prefix, int rank, char *id, uint64_t timeout_ms) {
  char request_key[RT_STORE_MAX_KEY + 1], id_key[RT_STORE_MAX_KEY + 1];
  uint64_t deadline = rail_deadline_in_ms(timeout_ms);
  struct request request;
  struct answer answer;
  key_of(request_key, prefix, "ask", rank);
  key_of(id_key, prefix, "id", rank);
  RAIL_TRY(rail_random_bytes(&request, sizeof request));
  RAIL_TRY(rt_store_set(s, request_key, &request, sizeof request));
  rail_result_t result;
  for (int pause = RT_STORE_POLL_FIRST_MS;; pause = RAIL_MIN(2 * pause, RT_STORE_POLL_MAX_MS)) {
    size_t size = sizeof answer;
    result = rt_store_get(s, id_key, &answer, &size, deadline, NULL);
    if (result != RAIL_OK) break;
    if (size == sizeof answer && memcmp(answer.nonce, request.nonce, NONCE_BYTES) == 0) break;
    if (rail_deadline_passed(deadline)) {
      errno = ETIMEDOUT;
      result = RAIL_REMOTE_ERROR;
      break;
    }
    poll(NULL, 0, pause); /* an answer to a rank of an earlier job */
  }
  if (result == RAIL_OK)
    memcpy(id, answer.id, RT_UNIQUE_ID_BYTES);
  else if (errno == ETIMEDOUT)
    rt_error(result,
             "launcher: rank %d got no unique id from rank 0 through %s within %" PRIu64
             " ms; does rank 0 run, and does it see the same directory?",
             rank, rt_store_path(s), timeout_ms);
  rt_store_remove(s, id_key);
  rt_store_remove(s, request_key); /* last: rank 0 sees by it that this rank does not use the directory any more */
  return result;
}

rail_result_t rt_launcher_exchange(struct rt_store *s, const char *prefix, int rank, int nranks,
                                   char id[RT_UNIQUE_ID_BYTES], uint64_t timeout_ms) {
  return rank == 0 ? distribute(s, prefix, nranks, id, timeout_ms) : fetch(s, prefix, rank, id, timeout_ms);
}

/* ---- a unique id from the environment ---- */

static uint64_t hash_text(uint64_t hash, const char *text) {
  static const uint8_t end = 0xff; /* so that "a","bc" differs from "ab","c" */
  return rail_hash(rail_hash_text(hash, text ? text : ""), &end, 1);
}

/* The launchers' variables that name a job; only those, because variables of an outer launcher may differ from rank to
 * rank. */
static const char *const job_names[][2] = {
    {"torchrun", "TORCHELASTIC_RUN_ID"}, {"torchrun", "TORCHELASTIC_RESTART_COUNT"}, {"torchrun", "MASTER_PORT"},
    {"slurm", "SLURM_JOB_ID"},           {"slurm", "SLURM_STEP_ID"},                 {"openmpi", "PMIX_NAMESPACE"},
    {"openmpi", "OMPI_MCA_ess_base_jobid"},
};

/* Identifies the job. `serial` counts the ids of one job; all ranks ask for equally many. *named: by its launcher. */
static uint64_t job_hash(const railLaunch_t *launch, unsigned serial, bool *named) {
  char text[32];
  const char *source = launch->source ? launch->source : "";
  uint64_t hash = hash_text(RAIL_HASH_BASIS, source);
  *named = false;
  for (size_t i = 0; i < RAIL_COUNT_OF(job_names); i++) {
    if (strcmp(source, job_names[i][0]) != 0) continue;
    hash = hash_text(hash, env(job_names[i][1]));
    *named |= env(job_names[i][1]) != NULL;
  }
  snprintf(text, sizeof text, "%d %u", launch->nranks, serial);
  return hash_text(hash, text);
}

static rail_result_t through_store(const railLaunch_t *launch, const char *dir, bool personal, uint64_t job, char *id) {
  char prefix[32];
  struct rt_store *s;
  snprintf(prefix, sizeof prefix, "id-%016" PRIx64, job);
  if (launch->rank == 0) RAIL_TRY(rt_unique_id_create(id));
  if (launch->nranks == 1) return RAIL_OK;
  RAIL_TRY(rt_store_open(dir, personal, &s));
  rail_result_t result =
      rt_launcher_exchange(s, prefix, launch->rank, launch->nranks, id, (uint64_t)rt_params()->bootstrap_timeout_ms);
  if (personal && launch->rank == 0) rt_store_remove_dir(s);
  rt_store_close(s);
  return result;
}

/* One directory for each id, so that rank 0 may remove it when all are done. Jobs to which the launcher gives no name
 * are told apart by the ranks' parent process, its daemon: there each rank must be started by it, not by a script. */
static rail_result_t through_tmp(const railLaunch_t *launch, uint64_t job, bool named, char *id) {
  char dir[512];
  const char *tmp = env("TMPDIR");
  if (launch->nranks > 1 && launch->localSize != launch->nranks) {
    char here[32] = "an unknown number";
    if (launch->localSize >= 0) snprintf(here, sizeof here, "%d", launch->localSize);
    rt_error(RAIL_BAD_USAGE, "launcher: %d ranks, of which %s are on this host (%s): set RAIL_STORE to a directory "
             "that all see, or NCCL_COMM_ID=host:port of rank 0", launch->nranks, here,
             launch->source ? launch->source : "no launcher");
    return RAIL_BAD_USAGE;
  }
  snprintf(dir, sizeof dir, "%.400s/railyard-%u-%d-%016" PRIx64, tmp ? tmp : "/tmp", geteuid(),
           named ? 0 : (int)getppid(), job);
  return through_store(launch, dir, true, job, id);
}

static rail_result_t from_master_addr(const char *host, const char *port_text, uint64_t job, char *id) {
  char text[300];
  int port, offset = (int)rt_params()->master_port_offset;
  if (!parse_number(port_text, 1, 65535 - offset, &port))
    return bad_variable("MASTER_PORT", port_text, "a port from which RAIL_MASTER_PORT_OFFSET leads to a valid one");
  bool bare_ipv6 = strchr(host, ':') && host[0] != '[';
  snprintf(text, sizeof text, "%s%.250s%s:%d", bare_ipv6 ? "[" : "", host, bare_ipv6 ? "]" : "", port + offset);
  return rt_unique_id_from_address(text, job, id);
}

/* Slurm over several nodes: rank 0 is on the first one; the port is derived from the job. */
static rail_result_t from_first_node(const char *nodes, uint64_t job, char *id) {
  char host[256], text[300];
  if (!rt_launcher_first_host(nodes, host, sizeof host))
    return bad_variable("SLURM_STEP_NODELIST", nodes, "a host list");
  snprintf(text, sizeof text, "%s:%d", host, DERIVED_PORT_FIRST + (int)(job % DERIVED_PORTS));
  return rt_unique_id_from_address(text, job, id);
}

RAIL_EXPORT ncclResult_t railUniqueIdFromEnv(const railLaunch_t *launch, ncclUniqueId *id) {
  static _Atomic unsigned serials;
  const struct rt_params *p = rt_params();
  if (!launch || !id || launch->nranks < 1 || launch->nranks > RT_BOOT_MAX_RANKS || launch->rank < 0 ||
      launch->rank >= launch->nranks)
    return rt_error(RAIL_BAD_ARGUMENT, "railUniqueIdFromEnv: NULL, or a rank or count out of range (at most %d ranks)",
                    RT_BOOT_MAX_RANKS);
  bool named;
  uint64_t job = job_hash(launch, atomic_fetch_add(&serials, 1), &named);
  bool slurm = launch->source && strcmp(launch->source, "slurm") == 0;
  const char *nodes = env("SLURM_STEP_NODELIST") ? env("SLURM_STEP_NODELIST") : env("SLURM_JOB_NODELIST");
  if (p->store) return (ncclResult_t)through_store(launch, p->store, false, job, id->internal);
  if (p->comm_id) return (ncclResult_t)rt_unique_id_from_address(p->comm_id, 0, id->internal);
  if (env("MASTER_ADDR") && env("MASTER_PORT"))
    return (ncclResult_t)from_master_addr(env("MASTER_ADDR"), env("MASTER_PORT"), job, id->internal);
  if (slurm && nodes && launch->localSize != launch->nranks)
    return (ncclResult_t)from_first_node(nodes, job, id->internal);
  return (ncclResult_t)through_tmp(launch, job, named, id->internal);
}
