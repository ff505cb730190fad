/* SPDX-License-Identifier: Apache-2.0
 * The three protocols of a connection. */
#include "ghost/nccl/gh_prims.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ghost/driver/gh_driver.h"
#include "ghost/driver/gh_nic.h"

#define LL_LINE 16u       /* bytes on the way for 8 of data */
#define LL128_LINE 128u   /* for 120 */
#define LL128_DATA 120u
#define LL128_SLICE 16u   /* lines that are sent together */
#define LL_CLEAN 0x7ffffff8u /* steps at which all lines are written, before flags begin anew */
#define SPINS 32          /* looks at a word before it sleeps */
#define SLEEP_US 20

static pthread_mutex_t first_lock = PTHREAD_MUTEX_INITIALIZER;
static char first_failure[256];

GH_API const char *ghost_nccl_failure(void) { return first_failure; }

bool gh_block_fail(struct gh_block *b, const char *format, ...) {
  char text[256];
  va_list ap;
  int none = OK;
  if (!__atomic_compare_exchange_n(b->error, &none, LAUNCH_FAILED, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return false;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  fprintf(stderr, "ghost: rank %d, channel %d: %s\n", b->rank, b->id, text);
  pthread_mutex_lock(&first_lock);
  if (!first_failure[0]) snprintf(first_failure, sizeof first_failure, "%s", text);
  pthread_mutex_unlock(&first_lock);
  return false;
}

/* Between two looks at a word that another writes. False: the kernel shall end. */
static bool go_on(struct gh_block *b, unsigned *spins) {
  const uint32_t *abort_flag = GH_FIELD(const uint32_t *, b->comm, b->layout->comm_abort);
  if (abort_flag && __atomic_load_n(abort_flag, __ATOMIC_RELAXED)) return false;
  if (__atomic_load_n(b->error, __ATOMIC_RELAXED)) return false;
  if (++*spins < SPINS) sched_yield();
  else usleep(SLEEP_US);
  return true;
}

/* ---- opened and closed ---- */

static bool open_end(struct gh_prims *p, struct gh_end *e, int peer, int index, bool sends) {
  struct gh_block *b = p->block;
  if (peer >= b->nranks) return gh_block_fail(b, "peer %d of %d ranks", peer, b->nranks);
  char **peers = GH_FIELD(char **, b->channel, GH_CHANNEL_PEERS);
  char *c = peers[peer] + (sends ? GH_PEER_SEND : GH_PEER_RECV) + index * GH_CONN_SIZE;
  uint64_t *head = GH_FIELD(uint64_t *, c, GH_CONN_HEAD), *tail = GH_FIELD(uint64_t *, c, GH_CONN_TAIL);
  *e = (struct gh_end){.conn = c, .peer = peer, .step = GH_FIELD(uint64_t, c, GH_CONN_STEP),
                       .slots = GH_FIELD(char *, c, GH_CONN_BUFFS + 8 * p->proto),
                       .fifo = GH_FIELD(char *, c, GH_CONN_FIFO)};
  if (!e->slots || !head) return gh_block_fail(b, "no connection %s rank %d", sends ? "to" : "from", peer);
  if (GH_FIELD(int, c, GH_CONN_NET_DEVICE) != 0)
    return gh_block_fail(b, "the connection %s rank %d is of net device type %d, which only a GPU can use",
                         sends ? "to" : "from", peer, GH_FIELD(int, c, GH_CONN_NET_DEVICE));
  e->wait = sends ? head : tail;
  if (e->wait) e->seen = __atomic_load_n(e->wait, __ATOMIC_ACQUIRE);
  e->post = sends ? tail : head;
  e->slot_size = p->step_size;
  if (p->proto == GH_SIMPLE) {
    size_t whole = (size_t)p->slices * (size_t)p->steps;
    e->slot_size = (size_t)GH_FIELD(int, c, GH_CONN_STEP_SIZE);
    e->step = (e->step + whole - 1) / whole * whole;
    if (!sends) __atomic_store_n(e->post, e->step, __ATOMIC_RELEASE); /* for what rounding up has skipped */
  } else if (sends && (p->proto == GH_LL || !e->fifo)) {
    e->post = NULL; /* lines say themselves that they are there; only a proxy counts LL128's chunks */
  }
  return true;
}

bool gh_prims_open(struct gh_prims *p, struct gh_block *block, const struct gh_prims_setup *s) {
  int bytes = GH_FIELD(int, block->comm, GH_COMM_BUFF_SIZES + 4 * s->proto);
  *p = (struct gh_prims){.block = block, .reduction = s->reduction, .proto = s->proto, .slices = s->slices,
                         .steps = s->steps, .step_size = (size_t)bytes / GH_STEPS};
  if (s->step_size && s->proto == GH_SIMPLE) p->step_size = s->step_size;
  for (; p->nrecv < GH_TREE_ARITY && s->recv[p->nrecv] >= 0; p->nrecv++)
    if (!open_end(p, &p->recv[p->nrecv], s->recv[p->nrecv], s->conn, false)) return false;
  for (; p->nsend < GH_TREE_ARITY && s->send[p->nsend] >= 0; p->nsend++)
    if (!open_end(p, &p->send[p->nsend], s->send[p->nsend], s->conn, true)) return false;
  if (p->proto == GH_SIMPLE) return true;
  p->chunk = malloc(2 * p->step_size);
  return p->chunk || gh_block_fail(block, "out of memory");
}

void gh_prims_close(struct gh_prims *p) {
  for (int i = 0; i < p->nrecv; i++) GH_FIELD(uint64_t, p->recv[i].conn, GH_CONN_STEP) = p->recv[i].step;
  for (int i = 0; i < p->nsend; i++) GH_FIELD(uint64_t, p->send[i].conn, GH_CONN_STEP) = p->send[i].step;
  free(p->chunk);
}

/* ---- what is done with bytes ---- */

/* What came, and the buffer, to wherever it goes. All ends are at the same chunk; what comes lies in their slots, or in
 * incoming. */
struct operands {
  const char *from;
  char *to;
  char *in[GH_TREE_ARITY], *out[GH_TREE_ARITY];
  int nin, nout;
};

static void combine(const struct gh_prims *p, const struct gh_move *m, const struct operands *o, size_t n) {
  size_t bytes = n * gh_type_size(p->reduction.type);
  char *result = o->to ? o->to : o->out[0];
  int first = 0;
  if (!result) return;
  if (o->from && m->own) gh_reduce_before(&p->reduction, result, o->from, n);
  else if (o->from) memmove(result, o->from, bytes);
  else memcpy(result, o->in[first++], bytes);
  for (int i = first; i < o->nin; i++) gh_reduce(&p->reduction, result, result, o->in[i], n);
  if (m->last) gh_reduce_after(&p->reduction, result, n);
  for (int i = 0; i < o->nout; i++)
    if (o->out[i] != result) memcpy(o->out[i], result, bytes);
}

/* ---- steps ---- */

/* Waits until what the other end has counted, and `ahead` more, are so many steps. Sums may wrap: of shared buffers a
 * sender has no slot until NCCL's proxy gives it one, and its count begins below 0. */
static bool wait_step(struct gh_prims *p, struct gh_end *e, uint64_t ahead, uint64_t until) {
  unsigned spins = 0;
  while (e->seen + ahead < until) {
    e->seen = __atomic_load_n(e->wait, __ATOMIC_ACQUIRE);
    if (e->seen + ahead < until && !go_on(p->block, &spins)) return false;
  }
  return true;
}

static bool wait_data(struct gh_prims *p, struct gh_end *e) {
  return wait_step(p, e, 0, e->step + (uint64_t)p->steps);
}

static bool wait_credit(struct gh_prims *p, struct gh_end *e) {
  return wait_step(p, e, GH_STEPS, e->step + (uint64_t)p->steps);
}

static char *fifo_entry(const struct gh_end *e) { return e->fifo + e->step % GH_STEPS * GH_FIFO_SIZE; }

static void publish_size(const struct gh_end *e, size_t bytes) {
  if (e->fifo) __atomic_store_n(&GH_FIELD(int64_t, fifo_entry(e), GH_FIFO_BYTES), (int64_t)bytes, __ATOMIC_RELAXED);
}

/* ---- Simple ---- */

static char *simple_slot(const struct gh_end *e) {
  if (e->fifo && GH_FIELD(int, fifo_entry(e), GH_FIFO_MODE) == GH_FIFO_MODE_OFFSET)
    return e->slots + __atomic_load_n(&GH_FIELD(int, fifo_entry(e), GH_FIFO_OFFSET), __ATOMIC_RELAXED);
  return e->slots + e->step % GH_STEPS * e->slot_size;
}

static bool slice_fits(struct gh_prims *p, const struct gh_end *e, size_t bytes) {
  size_t room = e->slot_size * (size_t)p->steps;
  return bytes <= room || gh_block_fail(p->block, "a slice of %zu bytes is larger than %zu of a slot", bytes, room);
}

/* LL128's lines need no flush: each comes whole and says itself that it is there. */
static bool is_visible(struct gh_prims *p, const struct gh_end *e, const char *slot, size_t bytes) {
  size_t hidden = ghost_nic_hidden(slot, bytes);
  return !hidden ||
         gh_block_fail(p->block, "%zu of %zu bytes from rank %d are not visible yet: a NIC has written them to the "
                       "GPU's memory and has not read from there since, though NCCL's flush (iflush) is over",
                       hidden, bytes, e->peer);
}

static bool simple_slice(struct gh_prims *p, const struct gh_move *m, size_t at, size_t n) {
  size_t esize = gh_type_size(p->reduction.type);
  struct operands o = {.from = m->from ? m->from + at * esize : NULL, .to = m->to ? m->to + at * esize : NULL};
  for (int i = 0; m->recv && i < p->nrecv; i++) {
    struct gh_end *e = &p->recv[i];
    if (!slice_fits(p, e, n * esize) || !wait_data(p, e)) return false;
    char *slot = o.in[o.nin++] = simple_slot(e);
    if (!is_visible(p, e, slot, n * esize)) return false;
  }
  for (int i = 0; m->send && i < p->nsend; i++) {
    struct gh_end *e = &p->send[i];
    if (!slice_fits(p, e, n * esize) || !wait_credit(p, e)) return false;
    publish_size(e, n * esize);
    o.out[o.nout++] = simple_slot(e);
  }
  if (n > 0) combine(p, m, &o, n);
  for (int i = 0; m->recv && i < p->nrecv; i++)
    __atomic_store_n(p->recv[i].post, p->recv[i].step += (uint64_t)p->steps, __ATOMIC_RELEASE);
  for (int i = 0; m->send && i < p->nsend; i++)
    __atomic_store_n(p->send[i].post, p->send[i].step += (uint64_t)p->steps, __ATOMIC_RELEASE);
  return true;
}

/* A chunk is always the same number of slices, of which the last may be empty. */
static bool simple_move(struct gh_prims *p, const struct gh_move *m, size_t n) {
  size_t esize = gh_type_size(p->reduction.type), least = p->step_size / esize * (size_t)p->steps / 32;
  size_t slice = (n + 16u * (size_t)p->slices - 1) / (16u * (size_t)p->slices) * 16;
  if (slice < least) slice = least;
  for (int i = 0; i < p->slices; i++) {
    size_t at = (size_t)i * slice < n ? (size_t)i * slice : n, now = n - at < slice ? n - at : slice;
    if (!simple_slice(p, m, at, now)) return false;
  }
  return true;
}

/* ---- lines: LL, LL128 ---- */

static size_t lines_of(int proto, size_t bytes) {
  if (proto == GH_LL) return (bytes + 7) / 8;
  size_t slice = LL128_SLICE * LL128_DATA;
  return (bytes + slice - 1) / slice * LL128_SLICE;
}

/* A word of a line as soon as it is there. */
static bool ll_word(struct gh_prims *p, uint64_t *word, uint32_t flag, uint32_t *data) {
  unsigned spins = 0;
  for (;;) {
    uint64_t w = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    *data = (uint32_t)w;
    if ((uint32_t)(w >> 32) == flag) return true;
    if (!go_on(p->block, &spins)) return false;
  }
}

static bool lines_in(struct gh_prims *p, struct gh_end *e, char *to, size_t bytes) {
  char *slot = e->slots + e->step % GH_STEPS * p->step_size;
  size_t n = lines_of(p->proto, bytes);
  for (size_t i = 0; i < n && p->proto == GH_LL; i++) {
    uint64_t *line = (uint64_t *)(void *)(slot + i * LL_LINE);
    uint32_t data[2];
    for (int k = 0; k < 2; k++)
      if (!ll_word(p, &line[k], (uint32_t)e->step + 1, &data[k])) return false;
    memcpy(to + 8 * i, data, 8);
  }
  for (size_t i = 0; i < n && p->proto == GH_LL128; i++) {
    char *line = slot + i * LL128_LINE;
    unsigned spins = 0;
    while (__atomic_load_n(&GH_FIELD(uint64_t, line, LL128_DATA), __ATOMIC_ACQUIRE) != e->step + 1)
      if (!go_on(p->block, &spins)) return false;
    memcpy(to + i * LL128_DATA, line, LL128_DATA);
  }
  return true;
}

static void lines_out(struct gh_prims *p, struct gh_end *e, const char *from, size_t bytes) {
  char *slot = e->slots + e->step % GH_STEPS * p->step_size;
  bool clean = p->proto == GH_LL && (e->step & LL_CLEAN) == LL_CLEAN;
  size_t n = clean ? p->step_size / LL_LINE : lines_of(p->proto, bytes);
  for (size_t i = 0; i < n && p->proto == GH_LL; i++) {
    uint64_t *line = (uint64_t *)(void *)(slot + i * LL_LINE), flag = (uint64_t)((uint32_t)e->step + 1) << 32;
    uint32_t data[2] = {0, 0};
    if (8 * i < bytes) memcpy(data, from + 8 * i, 8);
    for (int k = 0; k < 2; k++) __atomic_store_n(&line[k], data[k] | flag, __ATOMIC_RELEASE);
  }
  for (size_t i = 0; i < n && p->proto == GH_LL128; i++) {
    char *line = slot + i * LL128_LINE;
    memcpy(line, from + i * LL128_DATA, LL128_DATA);
    __atomic_store_n(&GH_FIELD(uint64_t, line, LL128_DATA), e->step + 1, __ATOMIC_RELEASE);
  }
}

static bool lines_move(struct gh_prims *p, const struct gh_move *m, size_t n) {
  size_t bytes = n * gh_type_size(p->reduction.type), line = p->proto == GH_LL ? LL_LINE : LL128_LINE;
  char *result = p->chunk, *incoming = p->chunk + p->step_size;
  if (lines_of(p->proto, bytes) * line > p->step_size)
    return gh_block_fail(p->block, "a chunk of %zu bytes is larger than a slot", bytes);
  for (int i = 0; m->send && i < p->nsend; i++) {
    struct gh_end *e = &p->send[i];
    if (!wait_credit(p, e)) return false;
    bool clean = p->proto == GH_LL && (e->step & LL_CLEAN) == LL_CLEAN;
    publish_size(e, clean ? p->step_size : lines_of(p->proto, bytes) * line);
  }
  if (m->from && m->own) gh_reduce_before(&p->reduction, result, m->from, n);
  else if (m->from) memcpy(result, m->from, bytes);
  for (int i = 0; m->recv && i < p->nrecv; i++) {
    bool first = i == 0 && !m->from;
    if (!lines_in(p, &p->recv[i], first ? result : incoming, bytes)) return false;
    if (!first) gh_reduce(&p->reduction, result, result, incoming, n);
  }
  if (m->last) gh_reduce_after(&p->reduction, result, n);
  for (int i = 0; m->send && i < p->nsend; i++) lines_out(p, &p->send[i], result, bytes);
  if (m->to) memcpy(m->to, result, bytes);
  for (int i = 0; m->recv && i < p->nrecv; i++)
    __atomic_store_n(p->recv[i].post, ++p->recv[i].step, __ATOMIC_RELEASE);
  for (int i = 0; m->send && i < p->nsend; i++) {
    struct gh_end *e = &p->send[i];
    e->step++;
    if (e->post) __atomic_store_n(e->post, e->step, __ATOMIC_RELEASE);
  }
  return true;
}

bool gh_prims_move(struct gh_prims *p, const struct gh_move *m) {
  size_t n = m->n < 0 ? 0 : (size_t)m->n;
  return p->proto == GH_SIMPLE ? simple_move(p, m, n) : lines_move(p, m, n);
}
