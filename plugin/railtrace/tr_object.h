/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands for the plugin's objects. The caller never sees a pointer of the
 * plugin: comms, memory handles and requests are numbers of ours that look like
 * pointers, each with a generation, so that the use of one that was given back
 * is seen for sure, whatever address the plugin reuses. They name places in
 * tables that are never freed while the library lives: a wrong handle finds
 * nothing, or something old, but never memory that is gone.
 */
#ifndef TR_OBJECT_H
#define TR_OBJECT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/compiler.h"
#include "loader/netload.h"
#include "plugin/railtrace/trace_file.h"

enum tr_kind { TR_FREE, TR_LISTEN = 1, TR_SEND = 2, TR_RECV = 4 }; /* bits, so that a call can allow several */

struct tr_span {
  uint32_t mr; /* index in the table + 1; 0: none */
  uint64_t size;
};

struct tr_request {
  void *real;
  uint64_t id, tests, first_ns; /* tests that found it unfinished, and when the first began */
  uint32_t gen;
  uint32_t next_free; /* slot + 1 */
  bool live, optional;
  uint8_t kind; /* enum rail_trace_kind: isend, irecv, iflush */
  uint8_t n;
  uint32_t order; /* its place in `outstanding` */
};

struct tr_comm {
  uint32_t index;
  _Atomic uint32_t gen;
  _Atomic uint32_t kind; /* enum tr_kind */
  uint64_t id;
  struct rail_net *net;
  void *real;
  int dev;
  unsigned int limit; /* requests outstanding */
  unsigned int max_recvs;
  uint32_t next_free;
  _Atomic uint32_t mrs, null_mrs; /* registered; of these, with a handle of NULL */
  _Atomic uint32_t inside;        /* threads in data calls */
  /* isend, irecv or accept that led to nothing yet: of the one calling thread, atomic should there be two. */
  _Atomic uint64_t tries, first_ns;
  /* The pool of requests, made at the first post of the slot's life and kept. `lock` is held for a few instructions. */
  atomic_flag lock;
  unsigned int slots, group;
  struct tr_request *requests;
  struct tr_span *spans; /* `group` for each request */
  void **outstanding;    /* the plugin's pointers, close together: they are searched at each post */
  uint32_t *owner;       /* slot of each of these */
  uint32_t live, free_first, free_last, gens;
  uint64_t posted; /* ids */
};

struct tr_mr {
  _Atomic uint32_t gen;
  _Atomic bool live;
  uint32_t index, next_free;
  uint64_t comm_id, id;
  uint64_t base, size;
  void *real;
  _Atomic uint32_t users; /* the registration itself, and each outstanding buffer; the place is free behind the last */
};

/* ---- comms ------------------------------------------------------------- */

/* NULL: no memory, or more comms than there are numbers. */
struct tr_comm *tr_comm_new(enum tr_kind kind, struct rail_net *net, void *real, int dev, unsigned int max_recvs);
void tr_comm_free(struct tr_comm *comm);
void *tr_comm_handle(const struct tr_comm *comm);

enum tr_found { TR_OK, TR_UNKNOWN, TR_STALE };
/* The comm of a handle; with TR_STALE it is the comm whose place was taken over since, or is empty. */
enum tr_found tr_comm_find(void *handle, struct tr_comm **comm);

/* ---- memory ------------------------------------------------------------ */

struct tr_mr *tr_mr_new(struct tr_comm *comm, uint64_t base, uint64_t size, void *real);
void tr_mr_free(struct tr_mr *mr);
void tr_mr_use(struct tr_mr *mr); /* by an outstanding buffer */
void tr_mr_unuse(struct tr_mr *mr);
void *tr_mr_handle(const struct tr_mr *mr);
enum tr_found tr_mr_find(void *handle, struct tr_mr **mr);
struct tr_mr *tr_mr_at(uint32_t index);

/* ---- requests ---------------------------------------------------------- */

static inline void tr_comm_lock(struct tr_comm *c) {
  while (atomic_flag_test_and_set_explicit(&c->lock, memory_order_acquire)) rail_cpu_relax();
}
static inline void tr_comm_unlock(struct tr_comm *c) { atomic_flag_clear_explicit(&c->lock, memory_order_release); }

/* Makes the pool ready; false: no memory. */
bool tr_requests_prepare(struct tr_comm *comm);
/* The calls below want the comm's lock. NULL: none is left. */
struct tr_request *tr_request_get(struct tr_comm *comm);
/* It is outstanding now, as `real`; false: another one is, with the same pointer. */
bool tr_request_start(struct tr_comm *comm, struct tr_request *request, void *real);
/* Started or not. The memory of its first n spans is in use no longer. */
void tr_request_put(struct tr_comm *comm, struct tr_request *request);
void *tr_request_handle(const struct tr_comm *comm, const struct tr_request *request);
struct tr_span *tr_request_spans(const struct tr_comm *comm, const struct tr_request *request);
/* Takes the lock itself: all that are outstanding are given up. */
void tr_requests_drop(struct tr_comm *comm);
/* Without the lock; the request's own fields are those of the thread that makes its calls. */
bool tr_request_is(const struct tr_request *request, void *handle); /* it is that one, outstanding or just done */
enum tr_found tr_request_find(void *handle, struct tr_comm **comm, struct tr_request **request);

/* When the library goes and all contexts have ended. */
void tr_objects_free(void);

#endif
