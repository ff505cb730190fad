/* SPDX-License-Identifier: Apache-2.0
 * The segment of small collectives, and a rank's part in one: publish, then read the others. Opened by the thread that
 * makes a plan ready; an operation is polled by the caller's thread (rt_task_run_small), or by the thread that runs
 * plans. */
#include "core/plan/rt_small.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_wait.h"

/* Calls that are not small and that a rank remembers for others to compare. */
#define ANNOUNCED 16u
#define LINE 64u
#define OPEN_TAG 0xd0000000u

struct slot {
  _Atomic uint64_t seq; /* sequence number + 1 */
  _Atomic uint64_t call;
  _Atomic uint64_t number; /* of the collective + 1 */
  char payload[LINE - 24];
};
_Static_assert(sizeof(struct slot) == LINE, "a slot begins with one line");

struct announced {
  _Atomic uint64_t number, id; /* number + 1 */
};

/* Followed by RT_SMALL_SLOTS slots. */
struct lane {
  _Atomic uint64_t attached, left; /* its rank has mapped the segment; has ended its communicator */
  uint64_t pad[6];
  struct announced announced[ANNOUNCED];
};

static struct lane *lane_of(const struct rt_small *s, int rank) {
  return (struct lane *)(void *)(s->segment + (size_t)rank * s->lane_size);
}

static struct slot *slot_of(const struct rt_small *s, int rank, uint64_t seq) {
  char *slots = (char *)lane_of(s, rank) + sizeof(struct lane);
  return (struct slot *)(void *)(slots + seq % RT_SMALL_SLOTS * s->slot_size);
}

static char *payload_of(struct slot *slot, uint64_t bytes) {
  return bytes <= sizeof slot->payload ? slot->payload : (char *)(slot + 1);
}

/* Has that rank published so many operations? Its slot may have been taken again since. */
static bool has_published(const struct rt_small *s, int rank, uint64_t count) {
  return atomic_load_explicit(&slot_of(s, rank, count - 1)->seq, memory_order_acquire) >= count;
}

/* ---- opening ---------------------------------------------------------------------------- */

/* What rank 0 sends to each other rank. */
struct open_record {
  int64_t pid, fd;
  uint64_t size;
  uint32_t memory, pad; /* enum rt_memory_kind; the rest only of RT_HOST_MEMORY */
};

/* An odd number of lines, so that the same slot of many ranks does not fall into the same set of a cache. */
static void lay_out(struct rt_small *s, uint64_t payload) {
  s->slot_size = LINE + RAIL_ROUND_UP((size_t)payload, LINE);
  s->lane_size = sizeof(struct lane) + RT_SMALL_SLOTS * s->slot_size;
  s->lane_size |= LINE;
  s->size = s->lane_size * (size_t)s->nranks;
}

static rail_result_t map(struct rt_small *s, int fd) {
  void *at = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return RAIL_SYSTEM_ERROR;
  s->segment = at;
  atomic_store_explicit(&lane_of(s, s->rank)->attached, 1, memory_order_release);
  return RAIL_OK;
}

#define PROBE_AFTER_NS 1000000000ull /* it may open a connection */

/* Waits a moment more for rank `peer` to open the segment, too. */
static rail_result_t wait_for(struct ncclComm *comm, int peer, struct rt_wait *wait) {
  uint64_t now, ms;
  nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
  if (rt_wait_check_due(wait, &now)) {
    const bool left = now - wait->since_ns > PROBE_AFTER_NS && rt_bootstrap_peer_left(comm->bootstrap, peer);
    rt_wait_check_departed(wait, comm, left ? peer : -1);
    if (rt_wait_is_long(wait, now, &ms))
      RAIL_WARN("rank %d of %d: its first small collective has waited %.1f s for rank %d (%s). Do all ranks make the "
                "same calls?",
                comm->rank, comm->nranks, (double)ms / 1000, peer, rt_bootstrap_peer_text(comm->bootstrap, peer));
  }
  return (rail_result_t)atomic_load(&comm->failed);
}

/* The others open this process' descriptor, so it stays open until they have. */
static rail_result_t wait_for_all(struct ncclComm *comm) {
  struct rt_wait wait;
  rt_wait_begin(&wait);
  for (int r = 1; r < comm->nranks; r++)
    while (!atomic_load_explicit(&lane_of(&comm->small, r)->attached, memory_order_acquire))
      RAIL_TRY(wait_for(comm, r, &wait));
  return RAIL_OK;
}

static rail_result_t send_record(struct ncclComm *comm, int fd) {
  const struct open_record mine = {.pid = getpid(), .fd = fd, .size = comm->small.size, .memory = comm->memory};
  for (int p = 1; p < comm->nranks; p++)
    RAIL_TRY(rt_bootstrap_send(comm->bootstrap, p, OPEN_TAG, &mine, sizeof mine));
  return RAIL_OK;
}

static rail_result_t make_segment(struct ncclComm *comm) {
  struct rt_small *s = &comm->small;
  if (comm->memory != RT_HOST_MEMORY) return send_record(comm, -1);
  int fd = memfd_create("railyard-small", MFD_CLOEXEC);
  rail_result_t r = fd >= 0 && ftruncate(fd, (off_t)s->size) == 0 ? map(s, fd) : RAIL_SYSTEM_ERROR;
  if (r != RAIL_OK)
    RAIL_WARN("rank %d cannot make a segment of %zu bytes for small collectives: %s; raise the memory limit, or set "
              "RAIL_SMALL_MAX=0 on all ranks",
              comm->rank, s->size, strerror(errno));
  if (r == RAIL_OK) r = send_record(comm, fd);
  if (r == RAIL_OK) r = wait_for_all(comm);
  if (fd >= 0) close(fd);
  return r;
}

static rail_result_t open_segment(struct ncclComm *comm) {
  struct rt_small *s = &comm->small;
  struct open_record theirs;
  struct rt_wait wait;
  rail_result_t r;
  rt_wait_begin(&wait);
  while ((r = rt_bootstrap_try_recv(comm->bootstrap, 0, OPEN_TAG, &theirs, sizeof theirs)) == RAIL_IN_PROGRESS)
    RAIL_TRY(wait_for(comm, 0, &wait));
  if (r == RAIL_OK) r = rt_check_memory(comm, 0, theirs.memory);
  if (r != RAIL_OK || comm->memory != RT_HOST_MEMORY) return r;
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)theirs.pid, (long long)theirs.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  r = RAIL_SYSTEM_ERROR;
  if (theirs.size != s->size)
    errno = EPROTO;
  else if (fd >= 0)
    r = map(s, fd);
  if (r != RAIL_OK)
    RAIL_WARN("rank %d cannot map the segment %s of rank 0 for small collectives: %s; ranks of one host must run as "
              "one user, or set RAIL_SMALL_MAX=0 on all ranks",
              comm->rank, path, strerror(errno));
  if (fd >= 0) close(fd);
  return r;
}

rail_result_t rt_small_open(struct ncclComm *comm) {
  struct rt_small *s = &comm->small;
  s->rank = comm->rank;
  s->nranks = comm->nranks;
  s->opened = true;
  lay_out(s, rt_tune_small_max(&comm->tuning, comm->nranks));
  return comm->rank == 0 ? make_segment(comm) : open_segment(comm);
}

void rt_small_close(struct rt_small *s) {
  if (!s->segment) return;
  atomic_store(&lane_of(s, s->rank)->left, 1);
  munmap(s->segment, s->size);
  s->segment = NULL;
}

/* ---- what a rank does in a call --------------------------------------------------------- */

bool rt_small_describe(struct rt_small_call *c, enum rt_coll coll, int type, int op, uint64_t count, int root,
                       int rank, int nranks) {
  const bool reduces = coll == RT_ALLREDUCE || coll == RT_REDUCE_SCATTER || coll == RT_REDUCE;
  *c = (struct rt_small_call){.coll = coll, .type = type, .op = op, .root = root, .count = count, .published = count,
                              .n = count, .end = nranks, .esize = rt_type_size(type)};
  const struct rt_sched sched = {.coll = coll, .count = count, .esize = c->esize};
  c->id = rt_sched_call(&sched);
  if (reduces) c->fns = rt_reduce_lookup(type, op);
  if (reduces && op == RT_AVG) rt_scalar_avg(&c->scalar, type, nranks);
  switch (coll) {
    case RT_REDUCE_SCATTER:
      c->published = count * (uint64_t)nranks;
      c->at = count * (uint64_t)rank;
      break;
    case RT_BROADCAST:
      c->published = rank == root ? count : 0;
      c->first = root;
      c->end = root + 1;
      break;
    case RT_REDUCE:
      if (rank != root) c->end = 0;
      break;
    default: break;
  }
  return c->fns || !reduces;
}

/* ---- running ---------------------------------------------------------------------------- */

void rt_small_init(struct rt_small *s, struct rt_small_op *op) {
  op->seq = s->next_seq++;
  op->begun = false;
  op->next = op->call.first;
  op->acc = NULL;
}

/* How many operations each rank must have published before `seq` is: then it has read the one whose slot that takes. */
static uint64_t oldest_needed(uint64_t seq) { return seq < RT_SMALL_SLOTS ? 0 : seq - RT_SMALL_SLOTS + 2; }

/* Has each rank published so many? */
static bool slot_is_free(struct rt_small *s, uint64_t seq) {
  const uint64_t needed = oldest_needed(seq);
  if (s->all_published >= needed) return true;
  for (int r = 0; r < s->nranks; r++)
    if (!has_published(s, r, needed)) return false;
  s->all_published = needed;
  return true;
}

static void publish(const struct rt_small *s, const struct rt_small_op *op) {
  const struct rt_small_call *c = &op->call;
  struct slot *slot = slot_of(s, s->rank, op->seq);
  const size_t bytes = (size_t)(c->published * c->esize);
  char *payload = payload_of(slot, bytes);
  if (c->fns && c->fns->pre)
    c->fns->pre(payload, op->send, (size_t)c->published, &c->scalar);
  else
    rt_copy(payload, op->send, bytes);
  atomic_store_explicit(&slot->call, c->id, memory_order_relaxed);
  atomic_store_explicit(&slot->number, op->number + 1, memory_order_release);
  atomic_store_explicit(&slot->seq, op->seq + 1, memory_order_release);
}

/* One rank's published input, into the output. */
static void take(struct rt_small_op *op, const char *in) {
  const struct rt_small_call *c = &op->call;
  const size_t bytes = (size_t)(c->n * c->esize);
  if (!c->fns) {
    rt_copy(op->recv + (c->coll == RT_ALLGATHER ? (size_t)op->next * bytes : 0), in, bytes);
    return;
  }
  if (op->acc) {
    c->fns->reduce(op->recv, op->acc, in, (size_t)c->n);
    in = op->recv;
  }
  op->acc = in;
}

static enum rt_program_state differs(struct rt_small_op *op, uint64_t id) {
  op->peer = op->next;
  op->got = id;
  return RT_PROGRAM_MISMATCH;
}

enum rt_program_state rt_small_poll(struct rt_small *s, struct rt_small_op *op) {
  const struct rt_small_call *c = &op->call;
  enum rt_program_state state = RT_PROGRAM_WAIT;
  if (!op->begun) {
    if (s->serving != op->seq || !slot_is_free(s, op->seq)) return RT_PROGRAM_WAIT;
    publish(s, op);
    op->begun = true;
    state = RT_PROGRAM_PROGRESS;
  }
  for (; op->next < c->end; op->next++) {
    struct slot *slot = slot_of(s, op->next, op->seq);
    if (atomic_load_explicit(&slot->seq, memory_order_acquire) != op->seq + 1) return state;
    const uint64_t id = atomic_load_explicit(&slot->call, memory_order_relaxed);
    if (id != c->id) return differs(op, id);
    take(op, payload_of(slot, (c->coll == RT_REDUCE_SCATTER ? c->published : c->count) * c->esize) + c->at * c->esize);
    state = RT_PROGRAM_PROGRESS;
  }
  if (c->fns && c->fns->post && c->end > 0) c->fns->post(op->recv, op->recv, (size_t)c->n, &c->scalar);
  if (c->end - c->first == s->nranks) s->all_published = op->seq + 1;
  s->serving++;
  return RT_PROGRAM_DONE;
}

int rt_small_awaited(const struct rt_small *s, const struct rt_small_op *op, bool departed) {
  if (!op->begun && s->serving != op->seq) return -1;
  for (int r = 0; r < s->nranks; r++) {
    bool needed = !op->begun || (r >= op->call.first && r < op->call.end);
    bool left = atomic_load_explicit(&lane_of(s, r)->left, memory_order_acquire);
    if (!needed || (departed && !left)) continue;
    if (!has_published(s, r, op->begun ? op->seq + 1 : oldest_needed(op->seq))) return r;
  }
  return -1;
}

/* ---- calls that are not small ----------------------------------------------------------- */

void rt_small_announce(struct rt_small *s, uint64_t number, uint64_t id) {
  if (!s->segment) return;
  struct announced *a = &lane_of(s, s->rank)->announced[number % ANNOUNCED];
  atomic_store_explicit(&a->id, id, memory_order_relaxed);
  atomic_store_explicit(&a->number, number + 1, memory_order_release);
}

int rt_small_find_announced(const struct rt_small *s, uint64_t number, uint64_t *id) {
  for (int r = 0; s->segment && r < s->nranks; r++) {
    const struct announced *a = &lane_of(s, r)->announced[number % ANNOUNCED];
    if (r == s->rank || atomic_load_explicit(&a->number, memory_order_acquire) != number + 1) continue;
    *id = atomic_load_explicit(&a->id, memory_order_relaxed);
    return r;
  }
  return -1;
}

int rt_small_find_published(const struct rt_small *s, uint64_t number, uint64_t *id) {
  for (int r = 0; s->segment && r < s->nranks; r++)
    for (uint64_t i = 0; i < RT_SMALL_SLOTS; i++) {
      const struct slot *slot = slot_of(s, r, i);
      if (r == s->rank || atomic_load_explicit(&slot->number, memory_order_acquire) != number + 1) continue;
      *id = atomic_load_explicit(&slot->call, memory_order_relaxed);
      return r;
    }
  return -1;
}
