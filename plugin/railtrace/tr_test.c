/* SPDX-License-Identifier: Apache-2.0
 * test: from a request of ours to the plugin's and back. */
#include <inttypes.h>
#include <limits.h>

#include "loader/netload.h"
#include "plugin/railtrace/tr_call.h"

#define STRIP 2 /* entries behind the request's own that must stay as they are */

RAIL_COLD static rail_result_t not_outstanding(enum tr_found found, const struct tr_comm *c, void *request) {
  if (found == TR_STALE)
    (void)tr_broken(RAIL_RULE_TEST_AFTER_DONE, c, 0, (uintptr_t)request, 0, "test of request %p", request);
  else
    (void)tr_broken(RAIL_RULE_TEST_UNKNOWN, NULL, 0, (uintptr_t)request, 0, "test of %p", request);
  return RAIL_INTERNAL_ERROR;
}

/* A finished receive reports how much came into each buffer. True: the call is to fail. */
static bool check_sizes(const struct tr_comm *c, const struct tr_request *r, const int *sizes, unsigned int n) {
  const struct tr_span *spans = tr_request_spans(c, r);
  bool refuse = false;
  for (unsigned int i = 0; i < n; i++) {
    if (sizes[i] == TR_POISON_INT) {
      if (!r->optional)
        refuse |= tr_broken(RAIL_RULE_SIZE_UNWRITTEN, c, r->id, i, n, "the size of buffer %u of %u", i, n);
    } else if (sizes[i] < 0 || (uint64_t)sizes[i] > spans[i].size) {
      refuse |= tr_broken(RAIL_RULE_SIZE_BEYOND, c, r->id, (uint64_t)(int64_t)sizes[i], spans[i].size,
                          "size %d in buffer %u of %" PRIu64 " bytes", sizes[i], i, spans[i].size);
    }
  }
  return refuse;
}

/* What the plugin wrote; what it did not write stays the caller's. */
static void copy_sizes(struct rail_trace_event *e, unsigned int n, const int *from, int *to) {
  e->n = n;
  for (unsigned int i = 0; i < n; i++) {
    bool written = from[i] != TR_POISON_INT;
    e->bufs[i].size = written && from[i] > 0 ? (uint64_t)from[i] : 0;
    if (written) to[i] = from[i];
  }
}

static bool check_done(const struct tr_comm *c, const struct tr_request *r, int *done) {
  bool refuse = false;
  if (*done == TR_POISON_INT) {
    refuse = tr_broken(RAIL_RULE_DONE_UNWRITTEN, c, r->id, 0, 0, "test succeeded without writing *done");
    *done = 0;
  } else {
    refuse = tr_broken(RAIL_RULE_DONE_VALUE, c, r->id, (uint64_t)(int64_t)*done, 0, "*done is %d", *done);
    *done = 1;
  }
  return refuse;
}

/* The request is done: its place is free, once everything about it was checked. */
static void end_request(struct tr_comm *c, struct tr_request *r) {
  tr_comm_lock(c);
  tr_request_put(c, r);
  tr_comm_unlock(c);
}

static bool finish(struct tr_comm *c, struct tr_request *r, struct rail_trace_event *e, const int *got, int *sizes) {
  bool refuse = false;
  unsigned int n = r->kind == RAIL_TRACE_IRECV ? r->n : 1;
  if (sizes && r->kind != RAIL_TRACE_IFLUSH) {
    copy_sizes(e, n, got, sizes);
    if (r->kind == RAIL_TRACE_IRECV) refuse = check_sizes(c, r, got, n);
    for (unsigned int i = n; i < n + STRIP; i++)
      if (rail_unlikely(got[i] != TR_POISON_INT))
        refuse |= tr_broken(RAIL_RULE_SIZES_TOO_MANY, c, r->id, i, n, "entry %u of %u", i, n);
  }
  return refuse;
}

rail_result_t tr_test(void *request, int *done, int *sizes) {
  struct rail_trace_event e;
  struct tr_comm *c;
  struct tr_request *r;
  int flag = TR_POISON_INT, got[RAIL_TRACE_GROUP + STRIP];
  bool refuse = false;
  enum tr_found found = tr_request_find(request, &c, &r);
  if (rail_unlikely(found != TR_OK)) return not_outstanding(found, c, request);
  if (rail_unlikely(!tr_enter(c)))
    refuse = tr_broken(RAIL_RULE_TWO_THREADS, c, r->id, 0, 0, "test while another thread is in a call");
  unsigned int n = r->kind == RAIL_TRACE_IRECV ? r->n : 1;
  for (unsigned int i = 0; i < n + STRIP; i++) got[i] = TR_POISON_INT;
  tr_begin(&e, RAIL_TRACE_TEST);
  int answer = rail_net_raw_test(c->net, r->real, &flag, sizes ? got : NULL);
  rail_result_t result = tr_result(answer, c, "test");
  if (rail_unlikely(result == RAIL_OK && flag != 0 && flag != 1)) refuse |= check_done(c, r, &flag);
  bool ended = result == RAIL_OK && flag == 1;
  if (r->tests == 0) r->first_ns = e.ns;
  e.n = 0;
  if (ended) refuse |= finish(c, r, &e, got, sizes);
  if (ended || result != RAIL_OK || tr_params.tests == TR_TESTS_ALL) {
    e.comm = c->id;
    e.request = r->id;
    e.value = ended;
    e.tries = r->tests;
    e.waited = e.ns - r->first_ns;
    tr_end(&e, answer);
    tr_record(&e);
  }
  r->tests++;
  *done = ended;
  if (ended) end_request(c, r);
  tr_leave(c);
  return rail_unlikely(refuse) && result == RAIL_OK ? RAIL_INTERNAL_ERROR : result;
}

/* It may come after the request's end, and names the plugin's request that is gone: that is how NCCL calls it. */
rail_result_t tr_irecv_consumed(void *recv_comm, int n, void *request) {
  struct rail_trace_event e;
  struct tr_comm *owner;
  struct tr_request *r;
  struct tr_comm *c = tr_comm_of(recv_comm, TR_RECV, "irecvConsumed");
  if (!c) return RAIL_INTERNAL_ERROR;
  (void)tr_request_find(request, &owner, &r);
  if (!r || owner != c || !tr_request_is(r, request)) {
    return tr_broken(RAIL_RULE_CONSUMED_UNKNOWN, c, 0, (uintptr_t)request, 0, "irecvConsumed of %p", request)
               ? RAIL_INTERNAL_ERROR
               : RAIL_OK;
  }
  tr_begin(&e, RAIL_TRACE_CONSUMED);
  e.comm = c->id;
  e.request = r->id;
  e.value = (uint64_t)n;
  rail_result_t result = rail_net_irecv_consumed(c->net, c->real, n, r->real);
  tr_end(&e, (int)result);
  tr_record(&e);
  return result;
}
