/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 13, a caller that rarely tests: it posts, sleeps, and tests again much later. NCCL's progress thread serves
 * many operations by turns, and shares its core. */
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

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
  bool unshared; /* maxRecvs is 1 */
};

static size_t some_size(struct kit_rng *rng) {
  static const size_t around[] = {0, 1, 300, 4096, 32768, 65536, 65537, 300000, LARGEST};
  size_t size = around[kit_rng_below(rng, sizeof around / sizeof around[0])];
  return size + 8 <= LARGEST ? size + kit_rng_below(rng, 8) : size;
}

static void sleep_up_to(struct kit_rng *rng, uint32_t most_us) {
  uint32_t us = kit_rng_below(rng, most_us + 1);
  struct timespec nap = {0, (long)us * 1000};
  if (us) nanosleep(&nap, NULL);
}

static void visit_open(struct visit *v) {
  struct rail_net_props_v12 props;
  kit_net_open(&v->n);
  int rc = v->n.vt->get_properties(v->n.dev, &props);
  ENSURE(rc == 0, "getProperties returned %s", kit_rc_text(rc));
  v->unshared = props.max_recvs == 1;
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
      ENSURE(!op->error, "isend returned %s", kit_rc_text(op->error));
      continue;
    }
    if (!op->req) kit_op_start(&v->n, op);
    left[c][end]--;
    any--;
    v->count++;
    if (kit_rng_below(rng, 3) == 0) sleep_up_to(rng, 60);
  }
}

/* Is an older one of its comm not done? Where a comm is not shared NCCL looks at the oldest only. */
static bool waits(const struct visit *v, int i) {
  for (int j = 0; v->unshared && j < i; j++)
    if (v->ops[j].comm == v->ops[i].comm && !v->ops[j].done) return true;
  return false;
}

static void finish_round(struct visit *v, struct kit_rng *rng) {
  int left = v->count;
  for (int look = 0; left; look++) {
    for (int i = 0; i < v->count; i++) {
      struct kit_op *op = &v->ops[i];
      if (op->done || waits(v, i) || !kit_op_test(&v->n, op)) continue;
      ENSURE(!op->error, "a %s ended with error %s", op->kind == KIT_OP_SEND ? "send" : "receive",
             kit_rc_text(op->error));
      left--;
    }
    if (!left) return;
    ENSURE(look < QUICK_LOOKS + SLOW_LOOKS,
           "%d of %d transfers are not done although their caller has looked %d times in %.1f s", left, v->count,
           look, SLOW_LOOKS * 0.01);
    if (look < QUICK_LOOKS) sleep_up_to(rng, 100);
    else kit_sleep_ms(10);
  }
}

/* Whatever moves the data behind the caller's back must get on without it; a wake-up that is lost shows as a message
 * that does not come, or as one that comes only when some timer goes off. (Where nothing moves data behind its back,
 * the few looks must be enough.) */
static void a_caller_who_is_seldom_there(struct kit_process *self) {
  static struct visit v;
  struct kit_rng rng;
  visit_open(&v);
  kit_rng_start(&rng);
  uint64_t end = rail_deadline_in_ms(1200);
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
  kit_note(self, "%d rounds, %d of them slow", rounds, slow);
  visit_close(&v);
}

/* Pages that hold the message already. The plugin's threads may be writing: a thread sanitizer must not look. */
__attribute__((no_sanitize("thread"))) static size_t pages_here(const volatile uint8_t *in, size_t size) {
  size_t here = 0;
  for (size_t at = 0; at < size; at += 4096) here += in[at] == 0x11;
  return here;
}

static void progress_without_calls(struct kit_process *self) {
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
  size_t pages = size / 4096;
  kit_metric(self, "moved without calls", 100.0 * (double)pages_here(in, size) / (double)pages, "%");
  struct kit_op ops[2] = {recv, send};
  kit_ops_run(&n, ops, 2, (struct kit_ops_options){0});
  kit_mr_dereg(&n, p.send, send.mh[0]);
  kit_mr_dereg(&n, p.recv, recv.mh[0]);
  kit_pair_close(&p);
  kit_net_close(&n);
}

const struct kit_check kit_checks_wakeups[] = {
    {"13.31", "wakeups.a_caller_who_is_seldom_there", KIT_SHOULD, KIT_ONE, .limit_s = 100,
     .what = "transfers get on, and soon, when the caller is away for milliseconds at a time",
     .source = "src/proxy.cc:801,848", .run = a_caller_who_is_seldom_there},
    {"13.32", "wakeups.progress_without_calls", KIT_OBSERVED, KIT_ONE, .limit_s = 60,
     .what = "how much of a large message moves while no call is made",
     .source = "src/proxy.cc:848", .run = progress_without_calls},
    {0},
};
