/* SPDX-License-Identifier: Apache-2.0
 *
 * isend, irecv and iflush in one way. Take a request slot, check the
 * buffers, call the plugin with a poisoned *request, check what it left
 * there. A post that "cannot start now" is made again by the caller: such
 * tries are counted, and the one that starts is recorded.
 */
#include <inttypes.h>

#include "loader/netload.h"
#include "plugin/railtrace/tr_call.h"

struct post {
  struct rail_trace_event e;
  struct tr_comm *c;
  struct tr_request *r;
  const char *call;
  bool refuse;
  void *mhandles[RAIL_TRACE_GROUP]; /* the plugin's */
};

RAIL_COLD static void no_place(struct post *p) {
  p->refuse |= tr_broken(RAIL_RULE_TOO_MANY_REQUESTS, p->c, 0, p->c->live, p->c->limit,
                         "%s with %u requests outstanding, at most %u are allowed", p->call, p->c->live, p->c->limit);
}

/* False: the call ends here, with RAIL_INTERNAL_ERROR. */
static bool begin(struct post *p, enum rail_trace_kind kind, void *comm, enum tr_kind wanted, int n) {
  p->call = rail_trace_kind_name(kind);
  p->refuse = false;
  p->r = NULL;
  p->c = tr_comm_of(comm, wanted, p->call);
  if (rail_unlikely(!p->c)) return false;
  struct tr_comm *c = p->c;
  bool too_many = n < 1 || (unsigned int)n > c->max_recvs;
  if (rail_unlikely(wanted == TR_RECV && too_many)) {
    p->refuse = tr_broken(RAIL_RULE_BUFFER_COUNT, c, 0, (uint64_t)n, c->max_recvs,
                          "%s of %d buffers, allowed are 1 to %u", p->call, n, c->max_recvs);
    return false; /* there is no place to note more */
  }
  if (rail_unlikely(!tr_enter(c)))
    p->refuse |= tr_broken(RAIL_RULE_TWO_THREADS, c, 0, 0, 0, "%s while another thread is in a call", p->call);
  tr_comm_lock(c);
  uint32_t live = c->live;
  p->r = tr_request_get(c);
  tr_comm_unlock(c);
  if (rail_unlikely(live >= c->limit)) no_place(p);
  p->e.comm = c->id;
  p->e.made = 0;
  p->e.n = (unsigned int)n;
  p->e.kind = kind;
  if (p->r) {
    p->r->kind = (uint8_t)kind;
    p->r->optional = false;
  }
  return true;
}

static void buffer(struct post *p, unsigned int i, void *data, uint64_t size, int tag, void *mhandle) {
  struct tr_span unused = {0}, *span = p->r ? tr_request_spans(p->c, p->r) + i : &unused;
  p->mhandles[i] = tr_buffer(p->c, data, size, mhandle, p->call, &p->e.bufs[i], span, &p->refuse);
  p->e.bufs[i].tag = tag;
  /* In use from here on: the caller's service thread may read it at any time. */
  if (span->mr && p->r) tr_mr_use(tr_mr_at(span->mr - 1));
  if (p->r) p->r->n = (uint8_t)(i + 1);
}

static void give_back(struct post *p) {
  if (p->r) {
    tr_comm_lock(p->c);
    tr_request_put(p->c, p->r);
    tr_comm_unlock(p->c);
  }
  tr_leave(p->c);
}

/* Should the plugin not be asked? Then the call ends here, too. */
static bool refused(struct post *p) {
  if (rail_likely(!p->refuse && p->r)) return false;
  give_back(p);
  return true;
}

/* The plugin has given a request: it becomes one of ours. */
static rail_result_t start(struct post *p, void *real, void **request) {
  struct tr_comm *c = p->c;
  tr_comm_lock(c);
  bool alone = tr_request_start(c, p->r, real);
  tr_comm_unlock(c);
  p->e.made = p->r->id;
  *request = tr_request_handle(c, p->r);
  tr_tries_end(c, &p->e);
  if (rail_unlikely(!alone) &&
      tr_broken(RAIL_RULE_REQUEST_TWICE, c, p->r->id, (uintptr_t)real, 0, "%s gave %p, which is outstanding", p->call,
                real))
    return RAIL_INTERNAL_ERROR;
  return RAIL_OK;
}

/* After the plugin: `real` is what it left in *request, `stale` what it found there. */
static rail_result_t finish(struct post *p, int answer, void *real, void *stale, void **request) {
  struct tr_comm *c = p->c;
  tr_end(&p->e, answer);
  rail_result_t result = tr_result(answer, c, p->call);
  if (rail_unlikely(result == RAIL_OK && real == stale)) {
    if (tr_broken(RAIL_RULE_REQUEST_UNWRITTEN, c, 0, 0, 0, "%s succeeded without writing *request", p->call))
      result = RAIL_INTERNAL_ERROR;
    real = NULL;
  }
  if (rail_likely(result == RAIL_OK && real)) {
    result = start(p, real, request);
    tr_record(&p->e);
    tr_leave(c);
    return result;
  }
  if (result == RAIL_OK && p->e.kind != RAIL_TRACE_IFLUSH) { /* a flush without a request is one that is done */
    tr_try(c, p->e.ns);
  } else {
    tr_tries_end(c, &p->e);
    tr_record(&p->e);
  }
  give_back(p);
  return result;
}

/* With no place left the plugin is not asked: "not now" is an answer that every caller understands. */
static rail_result_t turned_away(const struct post *p) {
  return p->refuse || !p->c ? RAIL_INTERNAL_ERROR : RAIL_OK;
}

rail_result_t tr_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request) {
  struct post p;
  void *real = TR_POISON;
  if (rail_unlikely(!begin(&p, RAIL_TRACE_ISEND, send_comm, TR_SEND, 1))) return RAIL_INTERNAL_ERROR;
  buffer(&p, 0, data, size, tag, mhandle);
  if (rail_unlikely(refused(&p))) return turned_away(&p);
  tr_begin(&p.e, RAIL_TRACE_ISEND);
  int answer = rail_net_raw_isend(p.c->net, p.c->real, data, size, tag, p.mhandles[0], phandle, &real);
  return finish(&p, answer, real, TR_POISON, request);
}

/* Duplicates do not come from NCCL, and which buffer a message goes to would be chance. */
static void check_tags(struct post *p, int n, const int *tags) {
  for (int i = 1; i < n; i++) {
    for (int j = 0; j < i; j++) {
      if (rail_likely(tags[i] != tags[j])) continue;
      p->refuse |= tr_broken(RAIL_RULE_TAG_TWICE, p->c, 0, (uint64_t)(int64_t)tags[i], (uint64_t)n,
                             "tag %d at %d and %d of %d buffers", tags[i], j, i, n);
    }
  }
}

rail_result_t tr_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request) {
  struct post p;
  bool optional = *request == RAIL_NET_OPTIONAL_RECV;
  void *stale = optional ? RAIL_NET_OPTIONAL_RECV : TR_POISON, *real = stale;
  *request = NULL;
  if (rail_unlikely(!begin(&p, RAIL_TRACE_IRECV, recv_comm, TR_RECV, n))) return RAIL_INTERNAL_ERROR;
  for (int i = 0; i < n; i++) buffer(&p, (unsigned int)i, data[i], sizes[i], tags[i], mhandles ? mhandles[i] : NULL);
  if (tr_checking()) check_tags(&p, n, tags);
  if (rail_unlikely(refused(&p))) return turned_away(&p);
  p.r->optional = optional;
  p.e.value = optional;
  tr_begin(&p.e, RAIL_TRACE_IRECV);
  int answer = rail_net_raw_irecv(p.c->net, p.c->real, n, data, sizes, tags, p.mhandles, phandles, &real);
  /* Through v6 to v8 the hint does not reach the plugin: it finds NULL, and may leave that. */
  return finish(&p, answer, real, stale, request);
}

rail_result_t tr_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request) {
  struct post p;
  void *real = TR_POISON;
  if (rail_unlikely(!begin(&p, RAIL_TRACE_IFLUSH, recv_comm, TR_RECV, n))) return RAIL_INTERNAL_ERROR;
  for (int i = 0; i < n; i++)
    buffer(&p, (unsigned int)i, data[i], sizes[i] > 0 ? (uint64_t)sizes[i] : 0, 0, mhandles ? mhandles[i] : NULL);
  if (rail_unlikely(refused(&p))) return turned_away(&p);
  tr_begin(&p.e, RAIL_TRACE_IFLUSH);
  int answer = rail_net_raw_iflush(p.c->net, p.c->real, n, data, sizes, p.mhandles, &real);
  return finish(&p, answer, real, TR_POISON, request);
}
