/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles and their tables. A handle's bits, from the top: 0x7a3 (no address
 * of a process begins so), what it is, a generation, and its place:
 *   comm, memory   12 mark | 4 kind | 20 generation | 28 index
 *   request        12 mark | 4 kind | 20 generation | 16 comm's index | 12 slot
 */
#include "plugin/railtrace/tr_object.h"

#include <pthread.h>
#include <stdlib.h>

#define MARK 0x7a3ull
#define GEN_MASK 0xfffffu
#define MAX_COMMS 65536
#define MAX_SLOTS 4096
#define MR_BLOCK 1024
#define MAX_MR_BLOCKS 4096

enum handle_kind { H_COMM = 1, H_MR = 2, H_REQUEST = 3 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* taking and giving back comms and memory */
static _Atomic(struct tr_comm *) comms[MAX_COMMS];
static uint32_t ncomms, free_comm; /* free_comm: index + 1 */
static uint64_t comm_ids;
static _Atomic(struct tr_mr *) mr_blocks[MAX_MR_BLOCKS];
static uint32_t nmrs, free_mr;
static uint64_t mr_ids;

static inline void *handle_of(enum handle_kind kind, uint32_t gen, uint32_t place) {
  uint64_t bits = MARK << 52 | (uint64_t)kind << 48 | (uint64_t)(gen & GEN_MASK) << 28 | place;
  return (void *)(uintptr_t)bits;
}

static inline bool is_handle(uint64_t bits, enum handle_kind kind) { return bits >> 48 == (MARK << 4 | kind); }
static inline uint32_t gen_in(uint64_t bits) { return (uint32_t)(bits >> 28) & GEN_MASK; }
static inline uint32_t place_in(uint64_t bits) { return (uint32_t)bits & 0xfffffffu; }

/* ---- comms ------------------------------------------------------------- */

static struct tr_comm *take_comm(void) {
  struct tr_comm *c = NULL;
  if (free_comm) {
    c = atomic_load(&comms[free_comm - 1]);
    free_comm = c->next_free;
  } else if (ncomms < MAX_COMMS && (c = calloc(1, sizeof *c)) != NULL) {
    c->index = ncomms;
    atomic_flag_clear(&c->lock);
    atomic_store_explicit(&comms[ncomms++], c, memory_order_release);
  }
  return c;
}

struct tr_comm *tr_comm_new(enum tr_kind kind, struct rail_net *net, void *real, int dev, unsigned int max_recvs) {
  pthread_mutex_lock(&table_lock);
  struct tr_comm *c = take_comm();
  if (c) c->id = ++comm_ids;
  pthread_mutex_unlock(&table_lock);
  if (!c) return NULL;
  c->net = net;
  c->real = real;
  c->dev = dev;
  c->max_recvs = max_recvs < 1 ? 1 : RAIL_MIN(max_recvs, RAIL_TRACE_GROUP);
  c->limit = RAIL_NET_MAX_REQUESTS * c->max_recvs;
  c->posted = 0;
  atomic_store(&c->tries, 0);
  atomic_store(&c->mrs, 0);
  atomic_store(&c->null_mrs, 0);
  atomic_store(&c->inside, 0);
  atomic_store(&c->kind, kind);
  return c;
}

void tr_comm_free(struct tr_comm *c) {
  atomic_fetch_add(&c->gen, 1);
  pthread_mutex_lock(&table_lock);
  c->next_free = free_comm;
  free_comm = c->index + 1;
  pthread_mutex_unlock(&table_lock);
}

void *tr_comm_handle(const struct tr_comm *c) {
  return handle_of(H_COMM, atomic_load_explicit(&c->gen, memory_order_relaxed), c->index);
}

enum tr_found tr_comm_find(void *handle, struct tr_comm **comm) {
  uint64_t bits = (uintptr_t)handle;
  *comm = NULL;
  if (!is_handle(bits, H_COMM) || place_in(bits) >= MAX_COMMS) return TR_UNKNOWN;
  *comm = atomic_load_explicit(&comms[place_in(bits)], memory_order_acquire);
  if (!*comm) return TR_UNKNOWN;
  uint32_t gen = atomic_load_explicit(&(*comm)->gen, memory_order_acquire);
  return (gen & GEN_MASK) == gen_in(bits) ? TR_OK : TR_STALE;
}

/* ---- memory ------------------------------------------------------------ */

struct tr_mr *tr_mr_at(uint32_t index) {
  if (index / MR_BLOCK >= MAX_MR_BLOCKS) return NULL;
  struct tr_mr *block = atomic_load_explicit(&mr_blocks[index / MR_BLOCK], memory_order_acquire);
  return block ? &block[index % MR_BLOCK] : NULL;
}

static struct tr_mr *take_mr(void) {
  if (free_mr) {
    struct tr_mr *mr = tr_mr_at(free_mr - 1);
    free_mr = mr->next_free;
    return mr;
  }
  uint32_t block = nmrs / MR_BLOCK;
  if (block >= MAX_MR_BLOCKS) return NULL;
  if (nmrs % MR_BLOCK == 0) {
    struct tr_mr *fresh = calloc(MR_BLOCK, sizeof *fresh);
    if (!fresh) return NULL;
    for (uint32_t i = 0; i < MR_BLOCK; i++) fresh[i].index = nmrs + i;
    atomic_store_explicit(&mr_blocks[block], fresh, memory_order_release);
  }
  return tr_mr_at(nmrs++);
}

struct tr_mr *tr_mr_new(struct tr_comm *comm, uint64_t base, uint64_t size, void *real) {
  pthread_mutex_lock(&table_lock);
  struct tr_mr *mr = take_mr();
  if (mr) mr->id = ++mr_ids;
  pthread_mutex_unlock(&table_lock);
  if (!mr) return NULL;
  mr->comm_id = comm->id;
  mr->base = base;
  mr->size = size;
  mr->real = real;
  atomic_store(&mr->users, 1);
  atomic_store(&mr->live, true);
  return mr;
}

void tr_mr_free(struct tr_mr *mr) {
  atomic_store(&mr->live, false);
  atomic_fetch_add(&mr->gen, 1);
  tr_mr_unuse(mr);
}

void tr_mr_use(struct tr_mr *mr) { atomic_fetch_add(&mr->users, 1); }

void tr_mr_unuse(struct tr_mr *mr) {
  if (atomic_fetch_sub(&mr->users, 1) != 1) return;
  pthread_mutex_lock(&table_lock);
  mr->next_free = free_mr;
  free_mr = mr->index + 1;
  pthread_mutex_unlock(&table_lock);
}

void *tr_mr_handle(const struct tr_mr *mr) {
  return handle_of(H_MR, atomic_load_explicit(&mr->gen, memory_order_relaxed), mr->index);
}

enum tr_found tr_mr_find(void *handle, struct tr_mr **mr) {
  uint64_t bits = (uintptr_t)handle;
  *mr = NULL;
  if (!is_handle(bits, H_MR)) return TR_UNKNOWN;
  *mr = tr_mr_at(place_in(bits));
  if (!*mr) return TR_UNKNOWN;
  uint32_t gen = atomic_load_explicit(&(*mr)->gen, memory_order_acquire);
  return (gen & GEN_MASK) == gen_in(bits) && atomic_load_explicit(&(*mr)->live, memory_order_relaxed) ? TR_OK
                                                                                                      : TR_STALE;
}

/* ---- requests ---------------------------------------------------------- */

/* Twice what may be outstanding, so that a finished request's slot is not taken again at once: irecvConsumed names
 * it after its end. */
bool tr_requests_prepare(struct tr_comm *c) {
  unsigned int slots = RAIL_MIN(2 * c->limit, MAX_SLOTS);
  unsigned int group = atomic_load(&c->kind) == TR_SEND ? 1 : c->max_recvs;
  if (c->slots < slots || c->group < group) {
    free(c->requests);
    free(c->spans);
    free(c->outstanding);
    free(c->owner);
    c->requests = calloc(slots, sizeof *c->requests);
    c->spans = calloc((size_t)slots * group, sizeof *c->spans);
    c->outstanding = calloc(slots, sizeof *c->outstanding);
    c->owner = calloc(slots, sizeof *c->owner);
    c->slots = c->requests && c->spans && c->outstanding && c->owner ? slots : 0;
    c->group = group;
  }
  c->live = 0;
  for (uint32_t i = 0; i < c->slots; i++) {
    c->requests[i].live = false;
    c->requests[i].next_free = i + 1 < c->slots ? i + 2 : 0;
  }
  c->free_first = c->slots ? 1 : 0;
  c->free_last = c->slots;
  return c->slots != 0;
}

static void unuse(const struct tr_comm *c, const struct tr_request *r) {
  const struct tr_span *spans = tr_request_spans(c, r);
  for (unsigned int i = 0; i < r->n; i++)
    if (spans[i].mr) tr_mr_unuse(tr_mr_at(spans[i].mr - 1));
}

void tr_requests_drop(struct tr_comm *c) {
  tr_comm_lock(c);
  while (c->live) tr_request_put(c, &c->requests[c->owner[0]]);
  tr_comm_unlock(c);
}

struct tr_request *tr_request_get(struct tr_comm *c) {
  if (!c->free_first) return NULL;
  struct tr_request *r = &c->requests[c->free_first - 1];
  c->free_first = r->next_free;
  if (!c->free_first) c->free_last = 0;
  r->gen = ++c->gens;
  r->live = false;
  r->tests = 0;
  r->n = 0;
  return r;
}

bool tr_request_start(struct tr_comm *c, struct tr_request *r, void *real) {
  bool alone = true;
  for (uint32_t i = 0; i < c->live; i++) alone &= c->outstanding[i] != real;
  r->real = real;
  r->id = ++c->posted;
  r->live = true;
  r->order = c->live++;
  c->outstanding[r->order] = real;
  c->owner[r->order] = (uint32_t)(r - c->requests);
  return alone;
}

void tr_request_put(struct tr_comm *c, struct tr_request *r) {
  uint32_t slot = (uint32_t)(r - c->requests);
  unuse(c, r);
  r->n = 0;
  if (r->live) {
    uint32_t last = --c->live;
    c->outstanding[r->order] = c->outstanding[last];
    c->owner[r->order] = c->owner[last];
    c->requests[c->owner[last]].order = r->order;
    r->live = false;
  }
  r->next_free = 0;
  if (c->free_last) c->requests[c->free_last - 1].next_free = slot + 1;
  else c->free_first = slot + 1;
  c->free_last = slot + 1;
}

void *tr_request_handle(const struct tr_comm *c, const struct tr_request *r) {
  return handle_of(H_REQUEST, r->gen, c->index << 12 | (uint32_t)(r - c->requests));
}

struct tr_span *tr_request_spans(const struct tr_comm *c, const struct tr_request *r) {
  return &c->spans[(size_t)(r - c->requests) * c->group];
}

bool tr_request_is(const struct tr_request *r, void *handle) {
  return (r->gen & GEN_MASK) == gen_in((uintptr_t)handle);
}

enum tr_found tr_request_find(void *handle, struct tr_comm **comm, struct tr_request **request) {
  uint64_t bits = (uintptr_t)handle;
  *comm = NULL;
  *request = NULL;
  if (!is_handle(bits, H_REQUEST)) return TR_UNKNOWN;
  struct tr_comm *c = atomic_load_explicit(&comms[place_in(bits) >> 12], memory_order_acquire);
  uint32_t slot = place_in(bits) & (MAX_SLOTS - 1);
  if (!c || slot >= c->slots) return TR_UNKNOWN;
  *comm = c;
  *request = &c->requests[slot];
  return ((*request)->gen & GEN_MASK) == gen_in(bits) && (*request)->live ? TR_OK : TR_STALE;
}

/* ---- unload ------------------------------------------------------------ */

void tr_objects_free(void) {
  for (uint32_t i = 0; i < ncomms; i++) {
    struct tr_comm *c = atomic_exchange(&comms[i], NULL);
    free(c->requests);
    free(c->spans);
    free(c->outstanding);
    free(c->owner);
    free(c);
  }
  for (uint32_t i = 0; i < MAX_MR_BLOCKS; i++) free(atomic_exchange(&mr_blocks[i], NULL));
}
