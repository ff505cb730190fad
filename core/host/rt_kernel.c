/* SPDX-License-Identifier: Apache-2.0 */
#include "core/host/rt_kernel.h"

#include <assert.h>
#include <string.h>

#include "common/base/compiler.h"
#include "core/host/rt_prims.h"

/* Actions done in one poll before other kernels get their turn. */
#define POLL_BUDGET 4
/* LL payload handled through the stack at a time: LL is for small messages. */
#define LL_MAX_PAYLOAD 4096u
/* Polls for lines between two looks at the counter, which costs the sender a cache miss. */
#define LL_IDLE_LOOK 64u

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

void rt_kernel_count_steps(const struct rt_kernel *k, uint64_t nsend[RT_PEERS], uint64_t nrecv[RT_PEERS]) {
  memset(nsend, 0, RT_PEERS * sizeof *nsend);
  memset(nrecv, 0, RT_PEERS * sizeof *nrecv);
  struct rt_action a;
  for (uint64_t i = 0, n = rt_sched_actions(&k->sched); i < n; i++) {
    rt_sched_action(&k->sched, i, &a);
    nsend[a.to] += a.send;
    nrecv[a.from] += a.recv;
  }
}

void rt_kernel_init(struct rt_kernel *k) {
  k->call = rt_sched_call(&k->sched);
  k->n = rt_sched_actions(&k->sched);
  k->i = k->ll_line = k->ll_idle = k->direct_steps = 0;
  k->phase = RT_KP_TURN;
  k->blocked = NULL;
  for (int p = 0; p < RT_PEERS; p++) {
    k->grant_i[p] = 0;
    if (k->recv[p]) k->recv_turn[p] = k->recv[p]->next_turn++;
    if (k->send[p]) k->send_turn[p] = k->send[p]->next_turn++;
  }
}

/* The range, if [p, p+bytes) lies in it and may so be moved without a copy; else NULL. */
static const struct rt_direct *direct_for(const struct rt_direct *d, const char *p, uint64_t bytes) {
  return d->base && p >= d->base && p + bytes <= d->base + d->size ? d : NULL;
}

/* Does this receive land straight in the user's buffer? */
static const struct rt_direct *direct_recv(const struct rt_kernel *k, const struct rt_action *a) {
  if (k->proto != RT_SIMPLE || a->reduce || !a->dst || a->n == 0) return NULL;
  return direct_for(&k->recv_direct, a->dst, a->n * k->sched.esize);
}

/* ---- receiving side ------------------------------------------------------ */

/* Tells a connection's proxy where the next receives shall land, up to 8 steps ahead. */
static void grant_receives(struct rt_kernel *k, int peer) {
  struct rt_conn *c = k->recv[peer];
  struct rt_action a;
  while (k->grant_i[peer] < k->n && c->granted < c->step + RT_STEPS) {
    rt_sched_action(&k->sched, k->grant_i[peer], &a);
    k->grant_i[peer]++;
    if (!a.recv || a.from != peer) continue;
    struct rt_slot *slot = &c->slot[c->granted % RT_STEPS];
    const struct rt_direct *d = direct_recv(k, &a);
    slot->ptr = d ? a.dst : NULL;
    slot->mhandle = d ? d->mhandle : NULL;
    slot->capacity = a.n * k->sched.esize;
    rt_publish(c->credit, ++c->granted);
  }
}

/* True also when what came is not what we expect: the action then says so. */
static bool recv_ready(struct rt_kernel *k, const struct rt_action *a) {
  struct rt_conn *c = k->recv[a->from];
  if (k->proto == RT_LL && !(c->flags & RT_CONN_PROXY)) {
    uint64_t lines = ll_lines(a->n * k->sched.esize);
    k->ll_line = rt_ll_arrived(rt_conn_slot_buff(c, RT_LL, c->step), k->ll_line, lines, rt_ll_flag(c->step));
    /* Lines that never come belong to a sender whose call differs; the counter, seldom looked at, has its step. */
    if (k->ll_line < lines && k->ll_idle++ % LL_IDLE_LOOK != LL_IDLE_LOOK - 1) return false;
    /* Lines have no order of their own: what the slot says of a GPU's step can be read when the counter has it. */
  }
  if (c->seen <= c->step) c->seen = rt_observe(c->tail);
  if (c->seen <= c->step) return false;
  return !c->fetch || c->fetch(c);
}

/* Is the step in hand of the size, and over shared memory of the protocol and call, that our own call asks for? */
static bool recv_matches(struct rt_kernel *k, const struct rt_conn *c, uint64_t bytes) {
  const struct rt_slot *slot = &c->slot[c->step % RT_STEPS];
  bool proxied = c->flags & RT_CONN_PROXY, same_call = proxied || slot->call == k->call;
  if (slot->bytes == bytes && same_call && (proxied || slot->proto == k->proto)) return true;
  k->got = same_call ? slot->bytes : slot->call >> 4;
  k->expected = same_call ? bytes : k->call >> 4;
  k->blocked = c;
  return false;
}

static void recv_finish(struct rt_kernel *k, struct rt_conn *c) {
  c->step++;
  k->ll_line = 0;
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
static void send_describe(const struct rt_kernel *k, const struct rt_conn *c, uint64_t bytes, const char *from,
                          const struct rt_direct *d) {
  struct rt_slot *slot = &c->slot[c->step % RT_STEPS];
  slot->bytes = bytes;
  slot->proto = k->proto;
  slot->in_area = false;
  slot->call = k->call;
  slot->ptr = d ? (void *)(uintptr_t)from : NULL;
  slot->mhandle = d ? d->mhandle : NULL;
}

static void send_finish(struct rt_conn *c) { rt_publish(c->tail, ++c->step); }

/* ---- one action ------------------------------------------------------------ */

static unsigned prim_what(const struct rt_action *a) {
  return (a->partial ? 0 : RT_PRIM_PRE) | (a->last ? RT_PRIM_POST : 0);
}

static enum rt_kernel_state act_simple(struct rt_kernel *k, const struct rt_action *a) {
  uint64_t bytes = a->n * k->sched.esize;
  struct rt_conn *recv = k->recv[a->from], *send = k->send[a->to];
  const char *in = NULL;
  if (a->recv) {
    if (!recv_matches(k, recv, bytes)) return RT_K_MISMATCH;
    in = direct_recv(k, a) ? a->dst : rt_conn_slot_buff(recv, RT_SIMPLE, recv->step);
  }
  char *out = a->dst, *out2 = NULL;
  const char *from = NULL;
  const struct rt_direct *d = NULL;
  if (a->send) {
    /* What goes out is what ends up in dst, or the untouched input: send it from there if we may. Each has its own
     * range: in place, the input of an all-reduce is overwritten while the plugin may still read it. */
    from = out ? out : (!a->recv && !(k->fns && k->fns->pre) ? a->src : NULL);
    if (from && bytes) d = direct_for(&k->send_direct[out ? 1 : 0], from, bytes);
    if (!d) out2 = rt_conn_slot_buff(send, RT_SIMPLE, send->step);
  }
  rt_prim_combine(k, RT_HOST_GROUP, out, out2, a->recv ? in : NULL, a->reduce || !a->recv ? a->src : NULL,
                  prim_what(a), a->n);
  rt_group_sync(RT_HOST_GROUP);
  if (a->recv) recv_finish(k, recv);
  if (a->send) {
    send_describe(k, send, bytes, from, d);
    send_finish(send);
    if (d) k->direct_steps = send->step;
  }
  return RT_K_PROGRESS;
}

/* Bytes of an LL step; both ends know which steps are written to the slot's end. */
static uint64_t ll_bytes(const struct rt_conn *c, uint64_t payload) {
  bool clean = (c->step & RT_LL_CLEAN_MASK) == RT_LL_CLEAN_MASK;
  return clean ? c->slot_size[RT_LL] / RT_LL_LINE * RT_LL_LINE : rt_proto_bytes(RT_LL, payload);
}

static enum rt_kernel_state act_ll(struct rt_kernel *k, const struct rt_action *a) {
  RAIL_ALIGNED(64) char in[LL_MAX_PAYLOAD], out[LL_MAX_PAYLOAD];
  uint64_t bytes = a->n * k->sched.esize;
  struct rt_conn *recv = k->recv[a->from], *send = k->send[a->to];
  if (a->recv) {
    if (!recv_matches(k, recv, ll_bytes(recv, bytes))) return RT_K_MISMATCH;
    rt_ll_unpack(RT_HOST_GROUP, in, rt_conn_slot_buff(recv, RT_LL, recv->step), bytes);
  }
  rt_prim_combine(k, RT_HOST_GROUP, a->dst, a->send ? out : NULL, a->recv ? in : NULL,
                  a->reduce || !a->recv ? a->src : NULL, prim_what(a), a->n);
  rt_group_sync(RT_HOST_GROUP);
  if (a->recv) recv_finish(k, recv);
  if (a->send) {
    uint64_t size = ll_bytes(send, bytes);
    send_describe(k, send, size, NULL, NULL);
    rt_ll_pack(RT_HOST_GROUP, rt_conn_slot_buff(send, RT_LL, send->step), out, bytes, size / RT_LL_LINE,
               rt_ll_flag(send->step));
    send_finish(send);
  }
  return RT_K_PROGRESS;
}

static enum rt_kernel_state run(struct rt_kernel *k) {
  struct rt_action a;
  int budget = POLL_BUDGET;
  while (k->i < k->n && budget-- > 0) {
    for (int p = 0; p < RT_PEERS; p++)
      if (k->recv[p] && k->recv[p]->flags & RT_CONN_PROXY) grant_receives(k, p);
    rt_sched_action(&k->sched, k->i, &a);
    struct rt_conn *recv = k->recv[a.from], *send = k->send[a.to];
    assert((recv || !a.recv) && (send || !a.send) && (k->fns || !a.reduce));
    k->blocked = a.recv && !recv_ready(k, &a) ? recv : a.send && !send_ready(send) ? send : NULL;
    if (k->blocked) return budget == POLL_BUDGET - 1 ? RT_K_WAIT : RT_K_PROGRESS;
    enum rt_kernel_state state = k->proto == RT_LL ? act_ll(k, &a) : act_simple(k, &a);
    if (state != RT_K_PROGRESS) return state;
    k->i++;
  }
  return RT_K_PROGRESS;
}

static bool has_turns(const struct rt_kernel *k) {
  for (int p = 0; p < RT_PEERS; p++)
    if ((k->recv[p] && k->recv[p]->turn != k->recv_turn[p]) || (k->send[p] && k->send[p]->turn != k->send_turn[p]))
      return false;
  return true;
}

static void pass_turns(const struct rt_kernel *k) {
  for (int p = 0; p < RT_PEERS; p++) {
    if (k->recv[p]) k->recv[p]->turn++;
    if (k->send[p]) k->send[p]->turn++;
  }
}

enum rt_kernel_state rt_kernel_poll(struct rt_kernel *k) {
  switch (k->phase) {
    case RT_KP_TURN:
      if (!has_turns(k)) return RT_K_WAIT;
      k->phase = RT_KP_RUN;
      RAIL_FALLTHROUGH;
    case RT_KP_RUN: {
      enum rt_kernel_state state = run(k);
      if (state == RT_K_MISMATCH || k->i < k->n) return state;
      pass_turns(k);
      k->phase = RT_KP_DRAIN;
    }
      RAIL_FALLTHROUGH;
    case RT_KP_DRAIN:
      /* User memory belongs to the proxy until its steps are sent: credit is what is done plus the slots. */
      assert(k->send[0] || !k->direct_steps);
      if (k->direct_steps && rt_observe(k->send[0]->credit) < k->direct_steps + RT_STEPS) return RT_K_WAIT;
      k->phase = RT_KP_DONE;
      RAIL_FALLTHROUGH;
    default: return RT_K_DONE;
  }
}
