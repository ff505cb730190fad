/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 13, who is there how often: a sender far ahead, with hundreds of thousands of small messages; and a caller who
 * posts, sleeps, and looks again much later. NCCL's progress thread is both: it spins while it has work, and sleeps
 * or serves other operations meanwhile. */
#include <sched.h>
#include <string.h>

#include "common/clock.h"
#include "kit/conform/kit_many.h"

/* ---- a flood ---- */

enum { DEPTH = 16, MOST = 300, ROOM = MOST + 8, MANY = 200000, LONG_ENOUGH_MS = 2000 };

static size_t size_of(uint64_t i) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
  return (size_t)((x >> 33) % (MOST + 1));
}

/* The message index, then bytes that follow from it; short ones hold what fits. */
static void compose(uint8_t *data, uint64_t i) {
  uint8_t whole[ROOM];
  memcpy(whole, &i, 8);
  memset(whole + 8, (int)(i * 7 + 1) & 0xff, MOST);
  memcpy(data, whole, size_of(i));
}

/* A ring of DEPTH requests over messages 0 … count-1. The sender ends at MANY, or when it has taken long enough; the
 * receiver learns of it, and by then has posted more. */
struct stream {
  struct kit_net *net;
  void *comm, *mh;
  enum kit_op_kind kind;
  uint64_t count, posted, done, deadline;
  struct kit_op op[DEPTH];
  uint8_t *buf; /* DEPTH times ROOM */
};

static struct stream stream_of(struct kit_net *n, void *comm, enum kit_op_kind kind) {
  struct stream s = {.net = n, .comm = comm, .kind = kind, .count = UINT64_MAX, .buf = kit_pages(DEPTH * ROOM)};
  if (kind == KIT_OP_SEND) s.count = (uint64_t)kit_scaled(MANY);
  if (kind == KIT_OP_SEND) s.deadline = rail_deadline_in_ms(LONG_ENOUGH_MS);
  s.mh = kit_mr_reg(n, comm, s.buf, DEPTH * ROOM);
  return s;
}

static void arrived(const struct kit_op *op, uint64_t i) {
  uint8_t expected[ROOM];
  uint64_t seen = 0;
  compose(expected, i);
  ENSURE(op->sizes[0] == (int)size_of(i), "message %llu has %d bytes, sent were %zu: lost, doubled or out of order",
         (unsigned long long)i, op->sizes[0], size_of(i));
  if (memcmp(op->data[0], expected, size_of(i)) == 0) return;
  if (size_of(i) >= 8) memcpy(&seen, op->data[0], 8);
  ENSURE(false, "message %llu holds something else%s%llu", (unsigned long long)i,
         size_of(i) >= 8 ? ": as its number " : ", of bytes ",
         (unsigned long long)(size_of(i) >= 8 ? seen : size_of(i)));
}

/* Posts what fits, retires what is done. True if anything moved. */
static bool stream_step(struct stream *s) {
  uint64_t before = s->posted + s->done;
  while (s->posted < s->count && s->posted < s->done + DEPTH) {
    uint64_t i = s->posted;
    struct kit_op *op = &s->op[i % DEPTH];
    uint8_t *data = s->buf + i % DEPTH * ROOM;
    if (s->kind == KIT_OP_SEND) compose(data, i);
    *op = s->kind == KIT_OP_SEND ? kit_op_send(s->comm, data, size_of(i), 4) : kit_op_recv(s->comm, data, MOST, 4);
    op->mh[0] = s->mh;
    if (!kit_op_post(s->net, op)) {
      ENSURE(!op->error, "message %llu could not be posted: error %d", (unsigned long long)i, op->error);
      break;
    }
    s->posted++;
  }
  while (s->done < s->posted) {
    struct kit_op *op = &s->op[s->done % DEPTH];
    if (!kit_op_test(s->net, op)) break;
    ENSURE(!op->error, "message %llu ended with error %d", (unsigned long long)s->done, op->error);
    if (s->kind == KIT_OP_RECV) arrived(op, s->done);
    else memset(op->data[0], 0xdd, ROOM); /* ours again */
    s->done++;
  }
  return s->posted + s->done != before;
}

static void steps(struct stream *s, uint64_t *idle) {
  if (rail_deadline_passed(s->deadline) && s->posted < s->count) s->count = s->posted;
  if (stream_step(s)) *idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  else sched_yield();
  ENSURE(!rail_deadline_passed(*idle), "nothing has moved for %.0f s: stuck at message %llu, %s",
         (double)kit_patience_ms(KIT_PATIENCE_MS) / 1000, (unsigned long long)s->done,
         s->kind == KIT_OP_SEND ? "sending" : "receiving");
}

static void on_one_thread(struct kit_side *side) {
  struct kit_net n;
  struct kit_pair p;
  static struct stream out, in;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  out = stream_of(&n, p.send, KIT_OP_SEND);
  in = stream_of(&n, p.recv, KIT_OP_RECV);
  uint64_t idle_out = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS)), idle_in = idle_out;
  while (out.done < out.count || in.done < out.count) {
    if (out.done < out.count) steps(&out, &idle_out);
    steps(&in, &idle_in);
  }
  kit_note(side, "%llu messages", (unsigned long long)out.count);
  kit_mr_dereg(&n, p.send, out.mh);
  kit_mr_dereg(&n, p.recv, in.mh);
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void from_another_process(struct kit_side *side) {
  struct kit_net n;
  struct kit_pair p;
  static struct stream s;
  kit_net_open(&n);
  kit_join(side, &n, &p);
  s = kit_sends(side) ? stream_of(&n, p.send, KIT_OP_SEND) : stream_of(&n, p.recv, KIT_OP_RECV);
  uint64_t idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int looks = 0; s.done < s.count; looks++) {
    steps(&s, &idle);
    if (kit_receives(side) && looks % 64 == 0 && s.count == UINT64_MAX && kit_heard(side, 0, sizeof s.count))
      kit_get(side, 0, &s.count, sizeof s.count);
  }
  if (kit_sends(side)) kit_put(side, 1, &s.count, sizeof s.count);
  kit_meet(side); /* deregistering what is posted ahead ends the connection */
  kit_mr_dereg(&n, s.comm, s.mh);
  kit_part(side, &p);
  kit_net_close(&n);
}

/* ---- a caller who is seldom there ---- */

enum {
  COMMS = 3, MESSAGES = 6, /* at a time and connection */
  LARGEST = 700000,
  QUICK_LOOKS = 50, /* some 50 microseconds apart; then the caller is away for 10 ms at a time */
  SLOW_LOOKS = 300, /* at one round */
  LONG_MS = 250,    /* a round takes 2; one that a timer saved takes longer than this */
  MANY_LONG = 2,    /* and so may as many as that on a busy machine */
};

struct visit {
  struct kit_net n;
  struct kit_pair p[COMMS];
  uint8_t *out[COMMS][MESSAGES], *in[COMMS][MESSAGES];
  void *mh_out[COMMS], *mh_in[COMMS];
  struct kit_op ops[2 * COMMS * MESSAGES];
  int count;
};

static size_t some_size(struct kit_rng *rng) {
  static const size_t around[] = {0, 1, 300, 4096, 32768, 65536, 65537, 300000, LARGEST};
  size_t size = around[kit_rng_below(rng, sizeof around / sizeof around[0])];
  return size + 8 <= LARGEST ? size + kit_rng_below(rng, 8) : size;
}

static void doze(struct kit_rng *rng, uint32_t most_us) {
  uint32_t us = kit_rng_below(rng, most_us + 1);
  struct timespec nap = {0, (long)us * 1000};
  if (us) nanosleep(&nap, NULL);
}

static void visit_open(struct visit *v) {
  kit_net_open(&v->n);
  for (int c = 0; c < COMMS; c++) {
    kit_pair_open(&v->n, &v->p[c]);
    uint8_t *mem = kit_pages((size_t)2 * MESSAGES * LARGEST);
    for (int i = 0; i < MESSAGES; i++) {
      v->out[c][i] = mem + (size_t)i * LARGEST;
      v->in[c][i] = mem + (size_t)(MESSAGES + i) * LARGEST;
    }
    v->mh_out[c] = kit_mr_reg(&v->n, v->p[c].send, v->out[c][0], (size_t)MESSAGES * LARGEST);
    v->mh_in[c] = kit_mr_reg(&v->n, v->p[c].recv, v->in[c][0], (size_t)MESSAGES * LARGEST);
  }
}

static void visit_close(struct visit *v) {
  for (int c = 0; c < COMMS; c++) {
    kit_mr_dereg(&v->n, v->p[c].send, v->mh_out[c]);
    kit_mr_dereg(&v->n, v->p[c].recv, v->mh_in[c]);
    kit_pair_close(&v->p[c]);
    kit_pages_free(v->out[c][0], (size_t)2 * MESSAGES * LARGEST);
  }
  kit_net_close(&v->n);
}

/* Every connection carries up to MESSAGES, posted on both ends in random order with naps between. Receives are posted
 * and sends, too, where the plugin takes them: it may want a receive first. */
static void post_round(struct visit *v, struct kit_rng *rng) {
  int left[COMMS][2], any = 0;
  size_t sizes[COMMS][MESSAGES];
  for (int c = 0; c < COMMS; c++) {
    left[c][0] = left[c][1] = (int)kit_rng_below(rng, MESSAGES + 1);
    any += 2 * left[c][0];
    for (int i = 0; i < left[c][0]; i++) sizes[c][i] = some_size(rng);
  }
  for (v->count = 0; any;) {
    int c = (int)kit_rng_below(rng, COMMS), end = (int)kit_rng_below(rng, 2);
    if (!left[c][end]) continue;
    int i = left[c][end] - 1;
    struct kit_op *op = &v->ops[v->count];
    if (end == 0) kit_pattern_fill(v->out[c][i], sizes[c][i], (uint64_t)i);
    *op = end == 0 ? kit_op_send(v->p[c].send, v->out[c][i], sizes[c][i], i)
                   : kit_op_recv(v->p[c].recv, v->in[c][i], LARGEST, i);
    op->mh[0] = end == 0 ? v->mh_out[c] : v->mh_in[c];
    if (end == 0 && left[c][1] && !kit_op_post(&v->n, op)) { /* its receive comes first */
      ENSURE(!op->error, "isend returned %d", op->error);
      continue;
    }
    if (!op->req) kit_op_start(&v->n, op);
    left[c][end]--;
    any--;
    v->count++;
    if (kit_rng_below(rng, 3) == 0) doze(rng, 60);
  }
}

static void finish_round(struct visit *v, struct kit_rng *rng) {
  int left = v->count;
  for (int look = 0; left; look++) {
    for (int i = 0; i < v->count; i++) {
      struct kit_op *op = &v->ops[i];
      if (op->done || !kit_op_test(&v->n, op)) continue;
      ENSURE(!op->error, "a %s ended with error %d", op->kind == KIT_OP_SEND ? "send" : "receive", op->error);
      left--;
    }
    if (!left) return;
    ENSURE(look < QUICK_LOOKS + SLOW_LOOKS,
           "%d of %d transfers are not done although their caller has looked %d times in %.1f s", left, v->count,
           look, SLOW_LOOKS * 0.01);
    if (look < QUICK_LOOKS) doze(rng, 100);
    else kit_sleep_ms(10);
  }
}

/* Whatever moves the data behind the caller's back must get on without it; a wake-up that is lost shows as a message
 * that does not come, or as one that comes only when some timer goes off. (Where nothing moves data behind its back,
 * the few looks must be enough.) */
static void a_caller_who_is_seldom_there(struct kit_side *side) {
  static struct visit v;
  struct kit_rng rng;
  visit_open(&v);
  kit_rng_start(&rng);
  uint64_t end = rail_deadline_in_ms(2000);
  int rounds = 0, slow = 0;
  for (; !rail_deadline_passed(end); rounds++) {
    post_round(&v, &rng);
    uint64_t begun = rail_now_ns();
    finish_round(&v, &rng);
    slow += rail_now_ns() - begun > kit_patience_ms(LONG_MS) * 1000000;
    for (int i = 0; i < v.count; i++)
      if (v.ops[i].kind == KIT_OP_RECV)
        ENSURE(kit_pattern_check(v.ops[i].data[0], (size_t)v.ops[i].sizes[0], (uint64_t)v.ops[i].tag[0]) < 0,
               "a message of %d bytes arrived wrong", v.ops[i].sizes[0]);
  }
  ENSURE(slow <= MANY_LONG, "%d of %d rounds took longer than %d ms, expected 2: a wake-up is lost now and then, and a "
         "timer makes up for it", slow, rounds, LONG_MS);
  kit_note(side, "%d rounds, %d of them slow", rounds, slow);
  visit_close(&v);
}

static void progress_without_calls(struct kit_side *side) {
  struct kit_net n;
  struct kit_pair p;
  size_t size = (size_t)16 << 20; /* more than the kernel takes by itself */
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  uint8_t *out = kit_pages(size), *in = kit_pages(size);
  struct kit_op send = kit_op_send(p.send, out, size, 0), recv = kit_op_recv(p.recv, in, size, 0);
  send.mh[0] = kit_mr_reg(&n, p.send, out, size);
  recv.mh[0] = kit_mr_reg(&n, p.recv, in, size);
  memset(out, 0x11, size);
  kit_op_start(&n, &recv);
  kit_op_start(&n, &send);
  kit_sleep_ms(500);
  size_t here = 0;
  for (size_t at = 0; at < size; at += 4096) here += ((volatile uint8_t *)in)[at] == 0x11;
  kit_metric(side, "moved without calls", 100.0 * (double)here / (double)(size / 4096), "%");
  struct kit_op ops[2] = {recv, send};
  kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
  kit_mr_dereg(&n, p.send, send.mh[0]);
  kit_mr_dereg(&n, p.recv, recv.mh[0]);
  kit_pair_close(&p);
  kit_net_close(&n);
}

const struct kit_check kit_checks_flood[] = {
    {"13.31", "flood.on_one_thread", KIT_MUST, KIT_ONE, 60, 0, false,
     "of very many small messages, both ends on one thread, none is lost, doubled or out of order",
     "src/transport/net.cc:1414,1435", on_one_thread},
    {"13.32", "flood.from_another_process", KIT_MUST, KIT_TWO, 60, 0, false,
     "of very many small messages between two processes none is lost, doubled or out of order",
     "src/transport/net.cc:1414,1575", from_another_process},
    {"13.33", "wakeups.a_caller_who_is_seldom_there", KIT_SHOULD, KIT_ONE, 100, 0, false,
     "transfers get on, and soon, when the caller is away for milliseconds at a time", "src/proxy.cc:801,848",
     a_caller_who_is_seldom_there},
    {"13.34", "wakeups.progress_without_calls", KIT_OBSERVED, KIT_ONE, 60, 0, false,
     "how much of a large message moves while no call is made", "src/proxy.cc:848", progress_without_calls},
    {0},
};
