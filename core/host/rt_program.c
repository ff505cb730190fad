/* SPDX-License-Identifier: Apache-2.0
 * Runs the actions of a host program. rt_enqueue.c initializes it when a plan is made ready; rt_plan_poll polls it, in
 * the one thread that runs the communicator's plans. */
#include "core/host/rt_program.h"

#include <assert.h>
#include <string.h>

#include "common/base/compiler.h"
#include "core/host/rt_prims.h"

/* Actions done in one poll before other programs are polled. */
#define POLL_BUDGET 4
/* Largest LL step: it is assembled in buffers on the stack. LL is for small messages. */
#define LL_MAX_PAYLOAD 4096u
/* Polls for lines between two reads of the counter, each of which costs the sender a cache miss. */
#define LL_IDLE_LOOK 64u

/* The largest call whose steps are received where they are reduced. The slots' memory would push the call's buffers out
 * of a processor's cache; larger buffers do not stay there anyway (docs/results/2026-11-28-allreduce-tcp.md). */
#define REDUCE_IN_DST_MAX (8u << 20)

#ifdef __SANITIZE_THREAD__
char rt_tsan_steps;
#endif

uint64_t rt_proto_payload(enum rt_proto proto, uint64_t slot) {
  if (proto == RT_SIMPLE) return slot;
  if ((int)proto == RD_LL128) return slot / RT_LL128_LINE * RT_LL128_PAYLOAD;
  return RAIL_MIN(slot / RT_LL_LINE * RT_LL_PAYLOAD, LL_MAX_PAYLOAD);
}

static uint64_t ll_lines(uint64_t payload) { return RAIL_MAX(RAIL_DIV_UP(payload, RT_LL_PAYLOAD), 1u); }

uint64_t rt_proto_bytes(enum rt_proto proto, uint64_t payload) {
  if ((int)proto == RD_LL128) return RAIL_MAX(RAIL_DIV_UP(payload, RT_LL128_PAYLOAD), 1u) * RT_LL128_LINE;
  return proto == RT_SIMPLE ? payload : ll_lines(payload) * RT_LL_LINE;
}

void rt_program_count_steps(const struct rt_program *prog, uint64_t nsend[RT_LINKS], uint64_t nrecv[RT_LINKS]) {
  memset(nsend, 0, RT_LINKS * sizeof *nsend);
  memset(nrecv, 0, RT_LINKS * sizeof *nrecv);
  struct rt_action a;
  for (uint64_t i = 0, n = rt_sched_actions(&prog->sched); i < n; i++) {
    rt_sched_action(&prog->sched, i, &a);
    nsend[a.to] += a.send;
    nrecv[a.from] += a.recv;
  }
}

void rt_program_init(struct rt_program *prog) {
  prog->call = rt_sched_call(&prog->sched);
  prog->n = rt_sched_actions(&prog->sched);
  prog->i = prog->ll_line = prog->ll_idle = prog->direct_steps = 0;
  prog->phase = RT_PHASE_TICKET;
  prog->blocked = NULL;
  prog->nlinks = 0;
  for (int p = 0; p < RT_LINKS; p++) {
    if (prog->recv[p] || prog->send[p]) prog->nlinks = p + 1;
    prog->grant_i[p] = 0;
    if (prog->recv[p]) prog->recv_ticket[p] = prog->recv[p]->next_ticket++;
    if (prog->send[p]) prog->send_ticket[p] = prog->send[p]->next_ticket++;
  }
}

/* The range, if [p, p+bytes) lies in it and may so be moved without a copy; else NULL. */
static const struct rt_direct *direct_for(const struct rt_direct *d, const char *p, uint64_t bytes) {
  return d->base && p >= d->base && p + bytes <= d->base + d->size ? d : NULL;
}

/* May a step that is reduced be received into dst, and the rank's own input be combined with it there? Not in place,
 * where dst is that input; nor where dst has a partial sum, or where the pre-operation writes its result to dst. */
static bool reduces_in_dst(const struct rt_program *prog, const struct rt_action *a) {
  const struct rt_sched *s = &prog->sched;
  uint64_t blocks = s->coll == RT_REDUCE_SCATTER ? (uint64_t)s->nranks : 1;
  return a->src != a->dst && !a->partial && !prog->fns->pre && blocks * s->count * s->esize <= REDUCE_IN_DST_MAX;
}

/* Does this receive land straight in the user's buffer? */
static const struct rt_direct *direct_recv(const struct rt_program *prog, const struct rt_action *a) {
  if (prog->proto != RT_SIMPLE || !a->dst || a->n == 0 || (a->reduce && !reduces_in_dst(prog, a))) return NULL;
  return direct_for(&prog->recv_direct, a->dst, a->n * prog->sched.esize);
}

/* ---- receiving side ------------------------------------------------------ */

/* Posts to a connection's proxy where the next receives shall land, up to 8 steps ahead. */
static void grant_receives(struct rt_program *prog, int peer) {
  struct rt_conn *c = prog->recv[peer];
  struct rt_action a;
  while (prog->grant_i[peer] < prog->n && c->granted < c->step + RT_STEPS) {
    rt_sched_action(&prog->sched, prog->grant_i[peer], &a);
    prog->grant_i[peer]++;
    if (!a.recv || a.from != peer) continue;
    struct rt_slot *slot = &c->slot[c->granted % RT_STEPS];
    const struct rt_direct *d = direct_recv(prog, &a);
    slot->ptr = d ? a.dst : NULL;
    slot->mhandle = d ? d->mhandle : NULL;
    slot->capacity = a.n * prog->sched.esize;
    rt_publish(c->credit, ++c->granted);
  }
}

/* True also when the step is not the expected one: recv_matches finds that out. */
static bool recv_ready(struct rt_program *prog, const struct rt_action *a) {
  struct rt_conn *c = prog->recv[a->from];
  if (prog->proto == RT_LL && !(c->flags & RT_CONN_PROXY)) {
    uint64_t lines = ll_lines(a->n * prog->sched.esize);
    prog->ll_line = rt_ll_arrived(rt_conn_slot_buff(c, RT_LL, c->step), prog->ll_line, lines, rt_ll_flag(c->step));
    /* When the sender's call differs the lines never come; only the counter shows that it sent another step. */
    if (prog->ll_line < lines && prog->ll_idle++ % LL_IDLE_LOOK != LL_IDLE_LOOK - 1) return false;
    /* The lines are not ordered with the slot's header: that may be read once the counter includes the step. */
  }
  if (c->seen <= c->step) c->seen = rt_observe(c->tail);
  return c->seen > c->step;
}

/* Has the current step the size, and over shared memory the protocol and call, that our own call expects? */
static bool recv_matches(struct rt_program *prog, const struct rt_conn *c, uint64_t bytes) {
  const struct rt_slot *slot = &c->slot[c->step % RT_STEPS];
  bool proxied = c->flags & RT_CONN_PROXY, same_call = proxied || slot->call == prog->call;
  if (slot->bytes == bytes && same_call && (proxied || slot->proto == prog->proto)) return true;
  prog->got = same_call ? slot->bytes : slot->call >> 4;
  prog->expected = same_call ? bytes : prog->call >> 4;
  prog->blocked = c;
  return false;
}

static void recv_finish(struct rt_program *prog, struct rt_conn *c) {
  c->step++;
  prog->ll_line = 0;
  if (c->flags & RT_CONN_PROXY) return; /* credit follows the next grant */
  c->granted = c->step + RT_STEPS;
  rt_publish(c->credit, c->granted);
}

/* ---- sending side -------------------------------------------------------- */

static bool send_ready(struct rt_conn *c) {
  if (c->seen <= c->step) c->seen = rt_observe(c->credit);
  return c->seen > c->step;
}

/* Before an LL step's lines, whose release order then covers it. */
static void send_describe(const struct rt_program *prog, const struct rt_conn *c, uint64_t bytes, const char *from,
                          const struct rt_direct *d) {
  struct rt_slot *slot = &c->slot[c->step % RT_STEPS];
  slot->bytes = bytes;
  slot->proto = prog->proto;
  slot->call = prog->call;
  slot->ptr = d ? (void *)(uintptr_t)from : NULL;
  slot->mhandle = d ? d->mhandle : NULL;
}

static void send_finish(struct rt_conn *c) {
  if (!(c->flags & RT_CONN_PROXY)) rt_tsan_release_step();
  rt_publish(c->tail, ++c->step);
}

/* ---- one action ------------------------------------------------------------ */

static unsigned prim_flags(const struct rt_action *a) {
  return (a->partial ? 0 : RT_PRIM_PRE) | (a->last ? RT_PRIM_POST : 0);
}

static enum rt_program_state act_simple(struct rt_program *prog, const struct rt_action *a) {
  uint64_t bytes = a->n * prog->sched.esize;
  struct rt_conn *recv = prog->recv[a->from], *send = prog->send[a->to];
  const char *in = NULL;
  if (a->recv) {
    if (!recv_matches(prog, recv, bytes)) return RT_PROGRAM_MISMATCH;
    in = direct_recv(prog, a) ? a->dst : rt_conn_slot_buff(recv, RT_SIMPLE, recv->step);
  }
  char *out = a->dst, *out2 = NULL;
  const char *from = NULL;
  const struct rt_direct *d = NULL;
  if (a->send) {
    /* The step sends what was stored in dst, or the unchanged input: from there if it is registered. The two have
     * ranges of their own: in place, the input of an all-reduce is overwritten while the plugin may still read it. */
    from = out ? out : (!a->recv && !(prog->fns && prog->fns->pre) ? a->src : NULL);
    if (from && bytes) d = direct_for(&prog->send_direct[out ? 1 : 0], from, bytes);
    if (!d) out2 = rt_conn_slot_buff(send, RT_SIMPLE, send->step);
  }
  rt_prim_combine(prog, out, out2, a->recv ? in : NULL, a->reduce || !a->recv ? a->src : NULL, prim_flags(a), a->n);
  if (a->recv) recv_finish(prog, recv);
  if (a->send) {
    send_describe(prog, send, bytes, from, d);
    send_finish(send);
    if (d) prog->direct_steps = send->step;
  }
  return RT_PROGRAM_PROGRESS;
}

/* Bytes of an LL step; both ends know which steps are written to the slot's end. */
static uint64_t ll_bytes(const struct rt_conn *c, uint64_t payload) {
  bool clean = (c->step & RT_LL_CLEAN_MASK) == RT_LL_CLEAN_MASK;
  return clean ? c->slot_size[RT_LL] / RT_LL_LINE * RT_LL_LINE : rt_proto_bytes(RT_LL, payload);
}

static enum rt_program_state act_ll(struct rt_program *prog, const struct rt_action *a) {
  RAIL_ALIGNED(64) char in[LL_MAX_PAYLOAD], out[LL_MAX_PAYLOAD];
  uint64_t bytes = a->n * prog->sched.esize;
  struct rt_conn *recv = prog->recv[a->from], *send = prog->send[a->to];
  if (a->recv) {
    if (!recv_matches(prog, recv, ll_bytes(recv, bytes))) return RT_PROGRAM_MISMATCH;
    rt_ll_unpack(in, rt_conn_slot_buff(recv, RT_LL, recv->step), bytes);
  }
  rt_prim_combine(prog, a->dst, a->send ? out : NULL, a->recv ? in : NULL, a->reduce || !a->recv ? a->src : NULL,
                  prim_flags(a), a->n);
  if (a->recv) recv_finish(prog, recv);
  if (a->send) {
    uint64_t size = ll_bytes(send, bytes);
    send_describe(prog, send, size, NULL, NULL);
    rt_ll_pack(rt_conn_slot_buff(send, RT_LL, send->step), out, bytes, size / RT_LL_LINE, rt_ll_flag(send->step));
    send_finish(send);
  }
  return RT_PROGRAM_PROGRESS;
}

static enum rt_program_state run(struct rt_program *prog) {
  struct rt_action a;
  int budget = POLL_BUDGET;
  while (prog->i < prog->n && budget-- > 0) {
    for (int p = 0; p < prog->nlinks; p++)
      if (prog->recv[p] && prog->recv[p]->flags & RT_CONN_PROXY) grant_receives(prog, p);
    rt_sched_action(&prog->sched, prog->i, &a);
    struct rt_conn *recv = prog->recv[a.from], *send = prog->send[a.to];
    assert((recv || !a.recv) && (send || !a.send) && (prog->fns || !a.reduce));
    prog->blocked = a.recv && !recv_ready(prog, &a) ? recv : a.send && !send_ready(send) ? send : NULL;
    if (prog->blocked) return budget == POLL_BUDGET - 1 ? RT_PROGRAM_WAIT : RT_PROGRAM_PROGRESS;
    enum rt_program_state state = prog->proto == RT_LL ? act_ll(prog, &a) : act_simple(prog, &a);
    if (state != RT_PROGRAM_PROGRESS) return state;
    prog->i++;
  }
  return RT_PROGRAM_PROGRESS;
}

static bool is_served(const struct rt_program *prog) {
  for (int p = 0; p < prog->nlinks; p++)
    if ((prog->recv[p] && prog->recv[p]->serving != prog->recv_ticket[p]) ||
        (prog->send[p] && prog->send[p]->serving != prog->send_ticket[p]))
      return false;
  return true;
}

static void serve_next(const struct rt_program *prog) {
  for (int p = 0; p < prog->nlinks; p++) {
    if (prog->recv[p]) prog->recv[p]->serving++;
    if (prog->send[p]) prog->send[p]->serving++;
  }
}

enum rt_program_state rt_program_poll(struct rt_program *prog) {
  switch (prog->phase) {
    case RT_PHASE_TICKET:
      if (!is_served(prog)) return RT_PROGRAM_WAIT;
      prog->phase = RT_PHASE_RUN;
      RAIL_FALLTHROUGH;
    case RT_PHASE_RUN: {
      enum rt_program_state state = run(prog);
      if (state == RT_PROGRAM_MISMATCH || prog->i < prog->n) return state;
      serve_next(prog);
      prog->phase = RT_PHASE_DRAIN;
    }
      RAIL_FALLTHROUGH;
    case RT_PHASE_DRAIN:
      /* User memory belongs to the proxy until its steps are sent: credit is what is done plus the slots. */
      assert(prog->send[0] || !prog->direct_steps);
      if (prog->direct_steps && rt_observe(prog->send[0]->credit) < prog->direct_steps + RT_STEPS)
        return RT_PROGRAM_WAIT;
      prog->phase = RT_PHASE_DONE;
      RAIL_FALLTHROUGH;
    default: return RT_PROGRAM_DONE;
  }
}
