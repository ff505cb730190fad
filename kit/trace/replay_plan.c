/* SPDX-License-Identifier: Apache-2.0
 * From files to lists. */
#include "kit/trace/replay_plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"

#define MAX_LIVE 65536

/* Makes room for one more element of an array that is kept with its count and capacity. */
#define ROOM(array, n, cap) ((n) < (cap) || grow((void **)&(array), &(cap), sizeof *(array)))

static bool grow(void **array, size_t *cap, size_t size) {
  size_t more = *cap ? 2 * *cap : 16;
  void *grown = more < REPLAY_NONE ? realloc(*array, more * size) : NULL;
  if (!grown) return false;
  *array = grown;
  *cap = more;
  return true;
}

struct replay_comm *replay_comm_of(struct replay_file *file, uint64_t id) {
  int64_t at = kit_trace_map_get(&file->by_id, id);
  return at < 0 ? NULL : &file->comms[at];
}

static struct replay_call *add_call(struct replay_comm *c, enum replay_kind kind, const struct rail_trace_event *e,
                                    const struct replay_file *file) {
  if (!ROOM(c->calls, c->ncalls, c->calls_cap)) return NULL;
  struct replay_call *call = &c->calls[c->ncalls++];
  *call = (struct replay_call){.kind = kind, .thread = e->thread, .number = e->number, .ns = file->realtime_ns + e->ns};
  return call;
}

/* ---- events ------------------------------------------------------------ */

static bool make_comm(struct replay_plan *p, int at, const struct rail_trace_event *e) {
  struct replay_file *f = &p->files[at];
  struct replay_comm *listen = e->kind == RAIL_TRACE_ACCEPT ? replay_comm_of(f, e->comm) : NULL;
  if (!e->made || replay_comm_of(f, e->made)) return true;
  if (e->kind == RAIL_TRACE_ACCEPT && (!listen || listen->made_by != RAIL_TRACE_LISTEN)) return true;
  size_t listen_at = listen ? (size_t)(listen - f->comms) : 0;
  if (!ROOM(f->comms, f->ncomms, f->cap) || !kit_trace_map_put(&f->by_id, e->made, (uint32_t)f->ncomms)) return false;
  struct replay_comm *c = &f->comms[f->ncomms++];
  *c = (struct replay_comm){.id = e->made, .made_by = e->kind, .peer_file = -1, .order_ns = f->realtime_ns + e->ns};
  listen = e->kind == RAIL_TRACE_ACCEPT ? &f->comms[listen_at] : NULL;
  memcpy(c->handle, listen ? listen->handle : e->handle, sizeof c->handle);
  if (listen) c->listen = listen->id;
  if (at != p->own) return true;
  enum replay_kind kind = e->kind == RAIL_TRACE_LISTEN    ? REPLAY_LISTEN
                          : e->kind == RAIL_TRACE_CONNECT ? REPLAY_CONNECT
                                                          : REPLAY_ACCEPT;
  struct replay_call *call = add_call(c, kind, e, f);
  if (!call) return false;
  call->dev = (int)RAIL_MAX(0, RAIL_MIN(e->dev, 1 << 20));
  call->value = e->made;
  if (!listen) return true;
  call = add_call(listen, REPLAY_ACCEPT, e, f);
  if (call) call->value = e->made;
  return call != NULL;
}

/* Differences, not sums: the numbers are a foreign client's. */
static bool are_disjoint(const struct replay_msg *a, const struct replay_msg *b) {
  return a->at < b->at ? b->at - a->at >= a->size : a->at - b->at >= b->size;
}

/* Messages of one comm that are in flight together and lie over each other: a part of one has its contents, else
 * it is unknown what the receiver will see. */
static uint32_t text_of(const struct replay_comm *c, const struct replay_msg *m, uint32_t own) {
  uint32_t text = own;
  for (size_t i = 0; i < c->nlive; i++) {
    const struct replay_msg *o = &c->msgs[c->live[i]];
    if (!m->mr || o->mr != m->mr || are_disjoint(o, m)) continue;
    if (o->at != m->at || o->size < m->size || (text != own && text != o->text)) return REPLAY_NONE;
    text = o->text;
  }
  return text;
}

static void sent(struct replay_comm *c, uint64_t request) {
  for (size_t i = 0; i < c->nlive; i++) {
    if (c->msgs[c->live[i]].id != request) continue;
    c->live[i] = c->live[--c->nlive];
    return;
  }
}

static bool send_posted(struct replay_plan *p, int at, struct replay_comm *c, const struct rail_trace_event *e) {
  if (e->n != 1 || c->made_by != RAIL_TRACE_CONNECT) return true;
  if (!ROOM(c->msgs, c->nmsgs, c->msgs_cap)) return false;
  struct replay_msg *m = &c->msgs[c->nmsgs];
  *m = (struct replay_msg){.size = e->bufs[0].size, .mr = e->bufs[0].mr, .at = e->bufs[0].at, .tag = e->bufs[0].tag,
                           .id = e->made};
  m->text = text_of(c, m, (uint32_t)c->nmsgs);
  if (c->nlive >= MAX_LIVE) c->nlive = 0; /* more than any comm may have: then none of them matters */
  if (!ROOM(c->live, c->nlive, c->live_cap)) return false;
  c->live[c->nlive++] = (uint32_t)c->nmsgs++;
  if (at != p->own) return true;
  struct replay_call *call = add_call(c, REPLAY_SEND, e, &p->files[at]);
  if (!call) return false;
  call->value = e->made;
  call->n = 1;
  call->first = (uint32_t)(c->nmsgs - 1);
  return true;
}

static bool recv_posted(struct replay_plan *p, int at, struct replay_comm *c, const struct rail_trace_event *e) {
  struct replay_file *f = &p->files[at];
  uint32_t first = (uint32_t)c->nslots;
  if (e->n < 1 || c->made_by != RAIL_TRACE_ACCEPT) return true;
  f->max_group = RAIL_MAX(f->max_group, e->n);
  for (unsigned int i = 0; i < e->n; i++) {
    if (!ROOM(c->slots, c->nslots, c->slots_cap)) return false;
    c->slots[c->nslots++] = (struct replay_slot){.size = e->bufs[i].size, .tag = e->bufs[i].tag, .msg = REPLAY_NONE};
  }
  if (at != p->own) return true;
  struct replay_call *call = add_call(c, REPLAY_RECV, e, f);
  if (!call) return false;
  call->value = e->made;
  call->n = e->n;
  call->first = first;
  call->bufs = (uint32_t)p->nbufs;
  for (unsigned int i = 0; i < e->n; i++) {
    if (!ROOM(p->bufs, p->nbufs, p->bufs_cap)) return false;
    p->bufs[p->nbufs++] = e->bufs[i];
  }
  return true;
}

/* The post of a request: its number is looked for from the end, where it mostly is. */
static struct replay_call *post_of(struct replay_comm *c, uint64_t request, size_t *index) {
  size_t looked = 0;
  for (size_t i = c->ncalls; i-- > 0 && looked < 65536; looked++) {
    struct replay_call *call = &c->calls[i];
    if ((call->kind != REPLAY_SEND && call->kind != REPLAY_RECV) || call->value != request) continue;
    *index = i;
    return call;
  }
  return NULL;
}

static bool request_done(struct replay_plan *p, struct replay_comm *c, const struct rail_trace_event *e) {
  size_t at;
  struct replay_file *f = &p->files[p->own];
  struct replay_call *post = post_of(c, e->request, &at);
  if (!post || post->size) return true; /* a flush, or one that was done before */
  uint64_t end = f->realtime_ns + e->ns + e->duration;
  post->size = end > post->ns ? end - post->ns : 1;
  if (!p->first_ns) p->first_ns = post->ns;
  p->last_ns = RAIL_MAX(p->last_ns, end);
  struct replay_call *call = add_call(c, REPLAY_DONE, e, f);
  if (!call) return false;
  call->value = at;
  return true;
}

static bool own_call(struct replay_plan *p, struct replay_comm *c, const struct rail_trace_event *e) {
  struct replay_file *f = &p->files[p->own];
  struct replay_call *call = NULL;
  switch (e->kind) {
    case RAIL_TRACE_REG_MR:
    case RAIL_TRACE_REG_DMABUF:
      if (!e->made) return true; /* its buffers are registered one by one */
      call = add_call(c, REPLAY_REG, e, f);
      if (!call) return false;
      call->value = e->made;
      call->size = e->size;
      return true;
    case RAIL_TRACE_DEREG_MR:
      call = add_call(c, REPLAY_DEREG, e, f);
      if (!call) return false;
      call->value = e->mr;
      return true;
    case RAIL_TRACE_TEST: return e->value ? request_done(p, c, e) : true;
    case RAIL_TRACE_CLOSE_SEND:
    case RAIL_TRACE_CLOSE_RECV:
    case RAIL_TRACE_CLOSE_LISTEN: return add_call(c, REPLAY_CLOSE, e, f) != NULL;
    default: return true;
  }
}

static bool look_at(struct replay_plan *p, int at, const struct rail_trace_event *e) {
  struct replay_file *f = &p->files[at];
  if (e->kind == RAIL_TRACE_DROPPED) f->dropped += e->value;
  if (e->kind == RAIL_TRACE_FINDING || e->kind == RAIL_TRACE_DROPPED) return true;
  if (e->result) {
    f->errors++;
    return true;
  }
  if (e->kind == RAIL_TRACE_LISTEN || e->kind == RAIL_TRACE_CONNECT || e->kind == RAIL_TRACE_ACCEPT)
    return make_comm(p, at, e);
  if (e->kind == RAIL_TRACE_IFLUSH) f->flushes++;
  struct replay_comm *c = replay_comm_of(f, e->comm);
  if (!c) return true;
  if (e->kind == RAIL_TRACE_ISEND) return !e->made || send_posted(p, at, c, e);
  if (e->kind == RAIL_TRACE_IRECV) return !e->made || recv_posted(p, at, c, e);
  if (e->kind == RAIL_TRACE_TEST && e->value) sent(c, e->request);
  return at == p->own ? own_call(p, c, e) : true;
}

bool replay_plan_add(struct replay_plan *p, struct rail_trace *trace, char *why, size_t why_size) {
  struct rail_trace_event e;
  int r, at = p->nfiles;
  bool ok = at < KIT_MAX_PROCESSES;
  if (ok) p->files[p->nfiles++].realtime_ns = rail_trace_header(trace)->realtime_ns;
  while (ok && (r = rail_trace_next(trace, &e, why, why_size)) != 0) {
    if (r < 0) return false;
    ok = look_at(p, at, &e);
  }
  if (!ok) snprintf(why, why_size, "out of memory");
  else if (rail_trace_cut(trace)) snprintf(why, why_size, "%s", rail_trace_cut(trace));
  return ok && !rail_trace_cut(trace);
}

static bool read_file(struct replay_plan *p, const char *path, char *why, size_t cap) {
  struct rail_trace *trace;
  char problem[300];
  bool ok = rail_trace_open(path, &trace, problem, sizeof problem);
  if (ok) ok = replay_plan_add(p, trace, problem, sizeof problem);
  if (!ok) snprintf(why, cap, "%s: %s", path, problem);
  rail_trace_close(trace);
  return ok;
}

/* All times begin with the earliest file. */
static void align(struct replay_plan *p) {
  uint64_t earliest = UINT64_MAX;
  struct replay_file *own = &p->files[p->own];
  for (int i = 0; i < p->nfiles; i++) earliest = RAIL_MIN(earliest, p->files[i].realtime_ns);
  for (size_t i = 0; i < own->ncomms; i++)
    for (size_t k = 0; k < own->comms[i].ncalls; k++) own->comms[i].calls[k].ns -= earliest;
}

/* ---- which ends belong together, which message goes where, and what is in it ---- */

#define LOOK_AHEAD 1024 /* slots among which a message's is looked for */

struct end {
  int file;
  uint32_t comm;
  const struct replay_comm *c;
};

static int by_handle(const void *a, const void *b) {
  const struct end *x = a, *y = b;
  int r = memcmp(x->c->handle, y->c->handle, sizeof x->c->handle);
  if (r) return r;
  return (x->c->order_ns > y->c->order_ns) - (x->c->order_ns < y->c->order_ns);
}

static size_t ends_of(struct replay_plan *p, enum rail_trace_kind made_by, struct end *ends) {
  size_t n = 0;
  for (int f = 0; f < p->nfiles; f++)
    for (size_t i = 0; i < p->files[f].ncomms; i++)
      if (p->files[f].comms[i].made_by == made_by)
        ends[n++] = (struct end){f, (uint32_t)i, &p->files[f].comms[i]};
  qsort(ends, n, sizeof *ends, by_handle);
  return n;
}

/* The k-th connect to a handle belongs to the k-th accept of it. */
static bool pair_ends(struct replay_plan *p) {
  size_t all = 0;
  for (int f = 0; f < p->nfiles; f++) all += p->files[f].ncomms;
  struct end *sends = calloc(all + 1, sizeof *sends), *recvs = calloc(all + 1, sizeof *recvs);
  bool ok = sends && recvs;
  size_t ns = ok ? ends_of(p, RAIL_TRACE_CONNECT, sends) : 0, nr = ok ? ends_of(p, RAIL_TRACE_ACCEPT, recvs) : 0;
  for (size_t s = 0, r = 0; s < ns && r < nr;) {
    int order = memcmp(sends[s].c->handle, recvs[r].c->handle, sizeof sends[s].c->handle);
    if (order == 0) { /* sorted in the same way: the k-th meets the k-th */
      struct replay_comm *a = &p->files[sends[s].file].comms[sends[s].comm];
      struct replay_comm *b = &p->files[recvs[r].file].comms[recvs[r].comm];
      a->peer_file = recvs[r].file;
      a->peer = recvs[r].comm;
      b->peer_file = sends[s].file;
      b->peer = sends[s].comm;
    }
    s += order <= 0;
    r += order >= 0;
  }
  free(sends);
  free(recvs);
  return ok;
}

/* A message goes to the first free buffer of its tag, also in a receive of one buffer. */
static void match_messages(struct replay_comm *send, struct replay_comm *recv) {
  size_t first = 0; /* first slot that is free */
  for (size_t m = 0; m < send->nmsgs; m++) {
    while (first < recv->nslots && recv->slots[first].msg != REPLAY_NONE) first++;
    for (size_t i = first; i < recv->nslots && i < first + LOOK_AHEAD; i++) {
      struct replay_slot *s = &recv->slots[i];
      if (s->msg != REPLAY_NONE || s->tag != send->msgs[m].tag) continue;
      s->msg = (uint32_t)m;
      send->msgs[m].matched = true;
      break;
    }
  }
}

/* Which comm is connected to which, and which message fills which buffer. */
static bool match_all(struct replay_plan *p) {
  struct replay_file *own = &p->files[p->own];
  if (!pair_ends(p)) return false;
  for (size_t i = 0; i < own->ncomms; i++) {
    struct replay_comm *c = &own->comms[i];
    if (c->peer_file < 0) continue;
    struct replay_comm *peer = &p->files[c->peer_file].comms[c->peer];
    bool sends = c->made_by == RAIL_TRACE_CONNECT;
    if (!sends && peer->paired) continue; /* both ends in this file: done from the sender's side */
    c->paired = true;
    match_messages(sends ? c : peer, sends ? peer : c);
  }
  for (size_t i = 0; i < own->ncomms; i++) {
    const struct replay_comm *c = &own->comms[i];
    for (size_t m = 0; m < c->nmsgs; m++) {
      p->unmatched += !c->msgs[m].matched;
      p->unknown += c->msgs[m].text == REPLAY_NONE;
    }
    for (size_t s = 0; s < c->nslots; s++) p->unmatched += c->slots[s].msg == REPLAY_NONE;
  }
  return true;
}

/* ---- the plan ---- */

bool replay_plan_settle(struct replay_plan *p) {
  align(p);
  return match_all(p);
}

bool replay_plan_make(struct replay_plan *p, char *const *files, int nfiles, int own, char *why, size_t why_size) {
  memset(p, 0, sizeof *p);
  p->own = own;
  for (int i = 0; i < nfiles; i++)
    if (!read_file(p, files[i], why, why_size)) return false;
  if (replay_plan_settle(p)) return true;
  snprintf(why, why_size, "out of memory");
  return false;
}

void replay_plan_free(struct replay_plan *p) {
  for (int i = 0; i < p->nfiles; i++) {
    struct replay_file *f = &p->files[i];
    for (size_t k = 0; k < f->ncomms; k++) {
      free(f->comms[k].msgs);
      free(f->comms[k].slots);
      free(f->comms[k].live);
      free(f->comms[k].calls);
    }
    free(f->comms);
    kit_trace_map_free(&f->by_id);
  }
  free(p->bufs);
}
