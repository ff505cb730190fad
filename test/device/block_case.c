/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/block_case.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/compiler.h"
#include "core/host/rt_prims.h"
#include "core/host/rt_program.h"
#include "core/host/rt_types.h"
#include "core/plan/rt_tree.h"
#include "test/device/link.h"
#include "test/harness/elements.h"

#define RING_RANKS 4
#define CHANNELS 2
#define PARTS 2
#define GUARD 64u      /* bytes around each buffer */
#define TOO_LONG 20    /* seconds without an end */

/* All ranks, with all they have. There are two of them: what is tested, and host kernels alone. */
struct world {
  const struct block_case *c;
  size_t esize, nsend, nrecv, user_bytes; /* of a rank */
  char *memory;                           /* all that is below */
  int nlinks;
  struct link *link;                      /* [(channel * nranks + from) * nranks + to] */
  char *user[BLOCK_RANKS];
  char *factor;
  uint32_t *abort;
  struct rt_device_launch *launch;
  int job[PARTS][CHANNELS][BLOCK_RANKS]; /* its number, or -1 */
  struct rt_program kernel[PARTS * CHANNELS * BLOCK_RANKS];
  int nkernels;
  const char *wrong; /* what the thread of host kernels and proxies found */
  int stop;
};

uint64_t block_case_chunk(int proto, uint64_t esize) {
  const uint64_t ll128 = BLOCK_SLOT / 128 * 120;
  const uint64_t bytes = proto == RD_LL128 ? ll128 : rt_proto_payload((enum rt_proto)proto, BLOCK_SLOT);
  return bytes / RAIL_MAX(esize, 1u);
}

const char *block_case_text(const struct block_case *c) {
  static char text[300];
  static const char *const protos[] = {"Simple", "LL", "LL128"};
  snprintf(text, sizeof text,
           "coll %d, %s, %s, op %d, %d ranks, root %d, count %llu, chunk %llu, %d channels, %d parts%s%s%s, "
           "misalign %u, host ranks %#x, step %llu, %u threads, %d runs",
           (int)c->coll, protos[c->proto], rt_type_name(c->type), c->op, c->nranks, c->root,
           (unsigned long long)c->count, (unsigned long long)c->chunk, c->channels, c->parts,
           c->proxied ? ", proxied" : "", c->in_place ? ", in place" : "", c->deferred ? ", deferred" : "", c->misalign,
           c->host_ranks, (unsigned long long)c->step, c->threads, c->runs);
  return text;
}

/* ---- user memory ---- */

static char *send_buffer(const struct world *w, int r) {
  const struct block_case *c = w->c;
  char *p = w->user[r] + GUARD + c->misalign;
  if (c->coll == RT_ALLGATHER && c->in_place) return p + w->nsend * w->esize + GUARD + (size_t)r * c->count * w->esize;
  return p;
}

static char *recv_buffer(const struct world *w, int r) {
  const struct block_case *c = w->c;
  if (c->coll == RT_REDUCE && r != c->root) return NULL;
  char *p = w->user[r] + GUARD + c->misalign;
  if (c->in_place && c->coll == RT_REDUCE_SCATTER) return p + (size_t)r * c->count * w->esize;
  if (c->in_place && c->coll != RT_ALLGATHER) return p;
  return p + w->nsend * w->esize + GUARD;
}

static void user_fill(const struct world *w, int run) {
  uint64_t x = 88172645463325252u + (uint64_t)run;
  for (int r = 0; r < w->c->nranks; r++)
    for (size_t i = 0; i < w->user_bytes; i++) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      w->user[r][i] = (char)(x >> 56);
    }
}

/* ---- who does what ---- */

static struct rt_sched sched_of(const struct world *w, int r, int channel, int part) {
  const struct block_case *c = w->c;
  const uint64_t parts = (uint64_t)c->parts, pieces = (uint64_t)c->channels * parts;
  const uint64_t i = (uint64_t)channel * parts + (uint64_t)part;
  struct rt_sched s = {.coll = c->coll, .rank = r, .nranks = c->nranks, .root = c->root, .esize = w->esize};
  if (c->coll == RT_SEND && r == 1) s.coll = RT_RECV;
  if (s.coll != RT_RECV) s.send = send_buffer(w, r);
  if (s.coll != RT_SEND) s.recv = recv_buffer(w, r);
  s.count = c->count;
  s.lo = c->count * i / pieces;
  s.len = c->count * (i + 1) / pieces - s.lo;
  s.chunk = c->chunk;
  if (c->coll == RT_TREE) {
    const struct rt_tree t = rt_tree_of(part % RT_TREES, r, c->nranks);
    s.tree.children = (uint8_t)((t.child[0] >= 0) + (t.child[1] >= 0));
    s.tree.has_parent = t.parent >= 0;
    s.tree.depth = (uint16_t)t.depth;
  }
  return s;
}

static struct link *link_between(const struct world *w, int channel, int from, int to) {
  return &w->link[(channel * w->c->nranks + from) * w->c->nranks + to];
}

/* A channel's parts are on different trees, and share the links that both have. */
static void tree_conns(const struct world *w, int r, int channel, int part, struct rt_conn *recv[RT_PEERS],
                       struct rt_conn *send[RT_PEERS]) {
  const struct rt_tree t = rt_tree_of(part % RT_TREES, r, w->c->nranks);
  const int peers[RT_PEERS] = {t.child[0], t.child[1], t.parent};
  for (int p = 0; p < RT_PEERS; p++) {
    recv[p] = peers[p] < 0 ? NULL : &link_between(w, channel, peers[p], r)->recv;
    send[p] = peers[p] < 0 ? NULL : &link_between(w, channel, r, peers[p])->send;
  }
}

static struct rt_conn *recv_conn(const struct world *w, const struct rt_sched *s, int channel) {
  const int prev = (s->rank + s->nranks - 1) % s->nranks;
  const bool none = s->nranks == 1 || s->coll == RT_SEND || (s->coll == RT_BROADCAST && s->rank == s->root) ||
                    (s->coll == RT_REDUCE && prev == s->root);
  return none ? NULL : &link_between(w, channel, prev, s->rank)->recv;
}

static struct rt_conn *send_conn(const struct world *w, const struct rt_sched *s, int channel) {
  const bool none = s->nranks == 1 || s->coll == RT_RECV || (s->coll == RT_REDUCE && s->rank == s->root) ||
                    (s->coll == RT_BROADCAST && (s->rank + 1) % s->nranks == s->root);
  return none ? NULL : &link_between(w, channel, s->rank, (s->rank + 1) % s->nranks)->send;
}

static void conns_of(const struct world *w, const struct rt_sched *s, int channel, int part,
                     struct rt_conn *recv[RT_PEERS], struct rt_conn *send[RT_PEERS]) {
  if (s->coll == RT_TREE) {
    tree_conns(w, s->rank, channel, part, recv, send);
    return;
  }
  recv[0] = recv_conn(w, s, channel);
  send[0] = send_conn(w, s, channel);
}

/* The rank's job before that part that uses the connection, or -1. */
static int job_before(const struct world *w, int r, int channel, int part, const struct rt_conn *c) {
  while (c && --part >= 0) {
    const struct rt_device_job *j = &w->launch->job[w->job[part][channel][r]];
    for (int p = 0; p < RT_PEERS; p++)
      if (j->recv[p] == c || j->send[p] == c) return w->job[part][channel][r];
  }
  return -1;
}

static union rt_scalar scalar_of(const struct world *w) {
  union rt_scalar s = {0};
  if (w->c->op == RT_AVG) rt_scalar_avg(&s, w->c->type, w->c->nranks);
  if (w->c->op == RT_PREMULSUM) rt_scalar_premul(&s, w->c->type, w->factor);
  return s;
}

static void add_kernel(struct world *w, int proto, int r, int channel, int part) {
  struct rt_program *k = &w->kernel[w->nkernels++];
  *k = (struct rt_program){.sched = sched_of(w, r, channel, part), .proto = (enum rt_proto)proto};
  if (w->c->op >= 0) k->fns = rt_reduce_lookup(w->c->type, w->c->op);
  k->scalar = scalar_of(w);
  conns_of(w, &k->sched, channel, part, k->recv, k->send);
}

static void add_job(struct world *w, int r, int channel, int part) {
  const struct block_case *c = w->c;
  const int number = w->launch->nblocks++;
  struct rt_device_job *j = &w->launch->job[number];
  *j = (struct rt_device_job){.sched = sched_of(w, r, channel, part), .proto = c->proto, .type = c->type, .op = c->op};
  w->job[part][channel][r] = number;
  if (c->deferred) {
    j->deferred = w->factor;
  } else {
    j->scalar = scalar_of(w);
  }
  conns_of(w, &j->sched, channel, part, j->recv, j->send);
  for (int p = 0; p < RT_PEERS; p++) {
    j->recv_after[p] = job_before(w, r, channel, part, j->recv[p]);
    j->send_after[p] = job_before(w, r, channel, part, j->send[p]);
  }
  j->call = rt_sched_call(&j->sched);
}

/* ---- a world ---- */

static size_t room(size_t bytes) { return RAIL_ROUND_UP(bytes, (size_t)128); }

static bool world_open(struct world *w, const struct block_machine *m, const struct block_case *c, bool tested) {
  const int njobs = c->parts * c->channels * c->nranks, nlinks = c->channels * c->nranks * c->nranks;
  const bool proxied = tested && c->proxied;
  memset(w, 0, sizeof *w);
  w->c = c;
  w->nlinks = nlinks;
  w->esize = rt_type_size(c->type);
  w->nsend = (c->coll == RT_REDUCE_SCATTER ? (size_t)c->nranks : 1) * c->count;
  w->nrecv = (c->coll == RT_ALLGATHER ? (size_t)c->nranks : 1) * c->count;
  w->user_bytes = room(3 * GUARD + c->misalign + (w->nsend + w->nrecv) * w->esize);
  const uint64_t slot = tested ? BLOCK_SLOT : room(c->chunk * w->esize);
  const size_t link_memory = room(link_bytes(slot, proxied));
  const size_t links = room((size_t)nlinks * sizeof *w->link);
  const size_t launch = room(sizeof *w->launch + (size_t)njobs * sizeof w->launch->job[0]);
  char *at = m->get(links + (size_t)nlinks * link_memory + (size_t)c->nranks * w->user_bytes + launch + 2 * room(8));
  if (!at) return false;
  w->memory = at;
  w->link = (struct link *)(void *)at;
  at += links;
  for (int i = 0; i < nlinks; i++, at += link_memory) link_init(&w->link[i], at, slot, proxied, tested ? c->step : 0);
  for (int r = 0; r < c->nranks; r++, at += w->user_bytes) w->user[r] = at;
  w->factor = at;
  element_put(w->factor, c->type, c->type >= RT_FLOAT16 ? 1.5 : 3); /* the types before have no halves */
  w->abort = (uint32_t *)(void *)(at + room(8));
  *w->abort = 0;
  w->launch = (struct rt_device_launch *)(void *)(at + 2 * room(8));
  w->launch->run = 0;
  w->launch->abort = w->abort;
  w->launch->nblocks = 0;
  return true;
}

/* Jobs once; kernels, which are used up, before each run. */
static void world_fill(struct world *w, bool tested, int run) {
  const struct block_case *c = w->c;
  w->nkernels = 0;
  for (int part = 0; part < c->parts; part++)
    for (int channel = 0; channel < c->channels; channel++)
      for (int r = 0; r < c->nranks; r++) {
        const bool host = !tested || (c->host_ranks >> r & 1);
        if (host) {
          w->job[part][channel][r] = -1;
          add_kernel(w, tested ? c->proto : RT_SIMPLE, r, channel, part);
        } else if (run == 0) {
          add_job(w, r, channel, part);
        }
      }
  for (int i = 0; i < w->nkernels; i++) rt_program_init(&w->kernel[i]);
  user_fill(w, run);
}

/* ---- running ---- */

/* One look at every host kernel and every wire. True when all kernels are done. */
static bool host_pass(struct world *w, bool *done) {
  bool all = true;
  for (int i = 0; i < w->nlinks; i++) {
    link_move(&w->link[i], RT_SIMPLE);
    if (w->link[i].broken) w->wrong = w->link[i].broken;
  }
  for (int i = 0; i < w->nkernels; i++) {
    if (done[i]) continue;
    const enum rt_program_state state = rt_program_poll(&w->kernel[i]);
    if (state == RT_PROGRAM_MISMATCH) w->wrong = "a host kernel found a mismatch";
    done[i] = state == RT_PROGRAM_DONE;
    all = all && done[i];
  }
  return all;
}

/* Host kernels and wires, until the former are done and the blocks have ended. If that takes too long: abort. */
static void *host_main(void *arg) {
  struct world *w = arg;
  bool done[PARTS * CHANNELS * BLOCK_RANKS] = {0};
  const time_t start = time(NULL);
  for (;;) {
    const bool all = host_pass(w, done), ended = __atomic_load_n(&w->stop, __ATOMIC_ACQUIRE);
    if (all && ended) return NULL;
    if (time(NULL) - start > TOO_LONG) w->wrong = "no end";
    if (w->wrong) {
      __atomic_store_n(w->abort, 1, __ATOMIC_RELAXED);
      return NULL;
    }
    sched_yield();
  }
}

static const char *run_tested(struct world *w, const struct block_machine *m) {
  pthread_t host;
  w->stop = 0;
  w->launch->run++;
  if (pthread_create(&host, NULL, host_main, w) != 0) return "no thread";
  const bool ran = m->run(w->launch, w->c->threads);
  __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
  pthread_join(host, NULL);
  if (!ran) return "the launch failed";
  if (w->wrong) return w->wrong;
  for (int i = 0; i < w->launch->nblocks; i++) {
    if (!block_ended(w->launch, i)) return "a job does not say that it has run";
    if (w->launch->job[i].state != RT_DEVICE_DONE) return "a job is not done";
  }
  return NULL;
}

static const char *compare(const struct world *tested, const struct world *alone) {
  static char text[160];
  const struct block_case *c = tested->c;
  for (int r = 0; r < c->nranks; r++)
    for (size_t i = 0; i < tested->user_bytes; i++) {
      if (tested->user[r][i] == alone->user[r][i]) continue;
      snprintf(text, sizeof text, "rank %d, byte %zu of %zu is %#x, host kernels have %#x", r, i, tested->user_bytes,
               (unsigned char)tested->user[r][i], (unsigned char)alone->user[r][i]);
      return text;
    }
  for (int i = 0; i < tested->nlinks; i++) {
    const struct link *t = &tested->link[i], *a = &alone->link[i];
    if (t->send.step - c->step != a->send.step || t->recv.step - c->step != a->recv.step)
      return "a connection's steps are not those that were made";
    if (rt_observe(t->send.tail) != t->send.step || rt_observe(t->recv.tail) != t->recv.step)
      return "a connection's counters are not its steps";
    if (t->proxied && t->recv.granted != t->recv.step) return "a step was granted that nobody sends";
  }
  return NULL;
}

const char *block_case_run(const struct block_machine *m, const struct block_case *c) {
  struct world tested, alone;
  const char *why = NULL;
  if (!world_open(&tested, m, c, true)) return "no memory";
  if (!world_open(&alone, m, c, false)) {
    m->put(tested.memory);
    return "no memory";
  }
  for (int run = 0; run < c->runs && !why; run++) {
    world_fill(&tested, true, run);
    world_fill(&alone, false, run);
    alone.stop = 1; /* when its kernels are done, it is over */
    host_main(&alone);
    why = alone.wrong ? alone.wrong : run_tested(&tested, m);
    if (!why) why = compare(&tested, &alone);
  }
  m->put(tested.memory);
  m->put(alone.memory);
  return why;
}

/* ---- the list ---- */

/* The same numbers every time. */
static unsigned pick(unsigned *state, unsigned n) {
  *state = *state * 1103515245u + 12345u;
  return (*state >> 16) % n;
}

static bool reduces(enum rt_coll coll) {
  return coll != RT_ALLGATHER && coll != RT_BROADCAST && coll != RT_SEND && coll != RT_RECV;
}

/* What goes along with a case, chosen by lot. */
static void pick_the_rest(struct block_case *c, unsigned *lot) {
  static const uint64_t steps[] = {0, RT_LL_CLEAN_MASK - 4, (1ull << 32) - 5};
  const uint64_t most = block_case_chunk(c->proto, rt_type_size(c->type));
  c->root = (int)pick(lot, (unsigned)c->nranks);
  c->chunk = pick(lot, 2) ? most : most / 3 + 1;
  c->channels = 1 + (int)pick(lot, CHANNELS);
  c->parts = 1 + (int)pick(lot, PARTS);
  c->proxied = c->proto == RT_SIMPLE && pick(lot, 3) == 0;
  c->in_place = c->coll != RT_SEND && pick(lot, 2);
  c->deferred = c->op == RT_PREMULSUM && pick(lot, 2);
  c->misalign = pick(lot, 2) ? 0 : pick(lot, 17);
  if (c->proto != RD_LL128 && c->nranks > 1 && pick(lot, 3) == 0) c->host_ranks = 1u << pick(lot, (unsigned)c->nranks);
  c->step = steps[pick(lot, 3)];
  c->runs = pick(lot, 3) ? 1 : 3;
  c->threads = c->proto == RD_LL128 ? (pick(lot, 6) ? 8 : 32) : (pick(lot, 6) ? 1 + pick(lot, 6) : 33);
}

void block_cases(enum rt_coll coll, bool few, bool (*each)(const struct block_case *c, void *arg), void *arg) {
  const bool pair = coll == RT_SEND || coll == RT_EXCHANGE;
  const int least = pair || coll == RT_TREE ? 2 : 1;
  const int most = pair ? 2 : coll == RT_COPY ? 1 : coll == RT_TREE ? BLOCK_RANKS : RING_RANKS;
  unsigned lot = (unsigned)coll;
  for (int proto = RT_SIMPLE; proto <= RD_LL128; proto++)
    for (int n = least; n <= most; n += few || n >= RING_RANKS ? 2 : 1)
      for (int size = few || n > RING_RANKS ? 3 : 0; size < 5; size++) {
        struct block_case c = {.coll = coll, .proto = proto, .nranks = n};
        c.type = (int)pick(&lot, RT_TYPE_COUNT);
        c.op = reduces(coll) ? (int)pick(&lot, RT_OP_COUNT) : -1;
        pick_the_rest(&c, &lot);
        /* Many ranks are many threads, which the CPU executor has to run all at once. */
        if (n > RING_RANKS) c.channels = c.runs = 1, c.threads = 8;
        const uint64_t loop = c.chunk * (uint64_t)n, counts[] = {0, 1, 7, loop + 3, 3 * loop + 5};
        c.count = counts[size];
        if (!each(&c, arg)) return;
      }
}

void block_cases_of_types(bool few, bool (*each)(const struct block_case *c, void *arg), void *arg) {
  unsigned lot = 1;
  for (int type = 0; type < RT_TYPE_COUNT; type += few ? 5 : 1)
    for (int op = 0; op < RT_OP_COUNT; op++)
      for (int proto = RT_SIMPLE; proto <= RD_LL128; proto++) {
        struct block_case c = {.coll = RT_ALLREDUCE, .proto = proto, .type = type, .op = op, .nranks = 2, .count = 61};
        pick_the_rest(&c, &lot);
        c.channels = c.parts = c.runs = 1;
        c.threads = proto == RD_LL128 ? 8 : 3;
        if (!each(&c, arg)) return;
      }
}
