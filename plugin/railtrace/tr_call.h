/* SPDX-License-Identifier: Apache-2.0
 * What the calls of the wrapper have in common, and the calls. */
#ifndef TR_CALL_H
#define TR_CALL_H

#include "common/base/clock.h"
#include "common/net/net_ops.h"
#include "plugin/railtrace/tr_finding.h"
#include "plugin/railtrace/tr_object.h"
#include "plugin/railtrace/tr_record.h"
#include "plugin/railtrace/trace_rules.h"

/* What outputs hold before the plugin writes; no pointer and no size looks like it. */
#define TR_POISON ((void *)(uintptr_t)0x7a3fdeadc0de5a5aull)
#define TR_POISON_INT (-0x5a5a5a5a)

/* The fields of an event are set one by one: it is too large to be zeroed at each call. */
static inline void tr_begin(struct rail_trace_event *e, enum rail_trace_kind kind) {
  e->kind = kind;
  e->result = 0;
  e->ns = rail_now_ns();
}
static inline void tr_end(struct rail_trace_event *e, int result) {
  e->result = result;
  e->duration = rail_now_ns() - e->ns;
}

/* Calls that led to nothing yet are counted; the one that ends them records how many and since when. */
static inline void tr_try(struct tr_comm *c, uint64_t ns) {
  uint64_t tries = atomic_load_explicit(&c->tries, memory_order_relaxed);
  if (tries == 0) atomic_store_explicit(&c->first_ns, ns, memory_order_relaxed);
  atomic_store_explicit(&c->tries, tries + 1, memory_order_relaxed);
}
static inline void tr_tries_end(struct tr_comm *c, struct rail_trace_event *e) {
  e->tries = atomic_load_explicit(&c->tries, memory_order_relaxed);
  e->waited = e->tries ? e->ns - atomic_load_explicit(&c->first_ns, memory_order_relaxed) : 0;
  if (rail_unlikely(e->tries)) atomic_store_explicit(&c->tries, 0, memory_order_relaxed);
}

/* A comm handle in a call; NULL after a finding. `kinds` are those that the call takes. */
RAIL_COLD struct tr_comm *tr_comm_report(void *handle, unsigned int kinds, const char *call);
static inline struct tr_comm *tr_comm_of(void *handle, unsigned int kinds, const char *call) {
  struct tr_comm *c;
  if (rail_likely(tr_comm_find(handle, &c) == TR_OK &&
                  (atomic_load_explicit(&c->kind, memory_order_relaxed) & kinds) != 0))
    return c;
  return tr_comm_report(handle, kinds, call);
}

/* A result that is none becomes an internal error, with a finding. */
RAIL_COLD rail_result_t tr_bad_result(int result, const struct tr_comm *comm, const char *call);
static inline rail_result_t tr_result(int result, const struct tr_comm *comm, const char *call) {
  if (rail_likely(result >= RAIL_OK && result < RAIL_IN_PROGRESS)) return (rail_result_t)result;
  return tr_bad_result(result, comm, call);
}

/* tr_connect.c */
struct tr_ctx;
void tr_attempts_drop(const struct tr_ctx *ctx); /* its connects that were given up */
rail_result_t tr_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t tr_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
rail_result_t tr_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t tr_close_send(void *send_comm);
rail_result_t tr_close_recv(void *recv_comm);
rail_result_t tr_close_listen(void *listen_comm);

/* tr_memory.c */
rail_result_t tr_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t tr_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
rail_result_t tr_dereg_mr(void *comm, void *mhandle);
rail_result_t tr_get_device_mr(void *comm, void *mhandle, void **dptr_mhandle);
/* Checks one buffer of a post: fills what is recorded of it and the span, reports what is wrong. Gives the plugin's own
 * memory handle; *refuse is set when the call is to fail. */
void *tr_buffer(struct tr_comm *comm, void *data, uint64_t size, void *mhandle, const char *call,
                struct rail_trace_buf *buf, struct tr_span *span, bool *refuse);

/* tr_data.c */
rail_result_t tr_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request);
rail_result_t tr_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request);
rail_result_t tr_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);
/* tr_test.c */
rail_result_t tr_test(void *request, int *done, int *sizes);
rail_result_t tr_irecv_consumed(void *recv_comm, int n, void *request);

/* Data calls come in and go out here: two at once on one comm are a finding. */
static inline bool tr_enter(struct tr_comm *c) {
  return atomic_fetch_add_explicit(&c->inside, 1, memory_order_acquire) == 0;
}
static inline void tr_leave(struct tr_comm *c) { atomic_fetch_sub_explicit(&c->inside, 1, memory_order_release); }

#endif
