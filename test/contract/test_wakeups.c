/* SPDX-License-Identifier: Apache-2.0
 * A caller who is seldom there: it posts, sleeps, looks again much later. Whatever moves the data behind its back must
 * get on without it; a wake-up that is lost shows as a message that does not come, or as one that comes only when some
 * clock ticks. (Where nothing moves data behind its back, the few looks must be enough.)
 * TEST-LIMIT: 100 */
#include <unistd.h>

#include "common/clock.h"
#include "test/harness/program.h"

#define COMMS 3
#define MESSAGES 6        /* at a time and connection */
#define MOST 700000
#define QUICK_LOOKS 50    /* microseconds apart; then the caller is away for 10 ms at a time */
#define PATIENCE 300      /* looks of the second kind at one round */
#define LONG_MS 150       /* a round takes 2; one that a tick saved takes longer than this */
#define MANY_LONG 2       /* and so may as many as that on a busy machine */

static uint8_t *out[COMMS][MESSAGES], *in[COMMS][MESSAGES];

static size_t some_size(struct kit_rng *rng) {
  static const size_t around[] = {0, 1, 300, 4096, 32768, 65536, 65537, 300000, MOST};
  size_t size = around[kit_rng_below(rng, sizeof around / sizeof around[0])];
  return size + 8 <= MOST ? size + kit_rng_below(rng, 8) : size;
}

static void doze(struct kit_rng *rng, uint64_t most_us) {
  uint64_t us = kit_rng_below(rng, most_us + 1);
  if (us) usleep((useconds_t)us);
}

/* Every connection carries up to MESSAGES, posted on both sides in random order with naps between. */
static int post_round(struct kit_net *n, struct kit_pair *p, struct kit_op *ops, struct kit_rng *rng) {
  int count = 0, left[COMMS][2];
  size_t sizes[COMMS][MESSAGES];
  for (int c = 0; c < COMMS; c++) {
    left[c][0] = left[c][1] = (int)kit_rng_below(rng, MESSAGES + 1);
    for (int i = 0; i < left[c][0]; i++) sizes[c][i] = some_size(rng);
  }
  for (bool any = true; any;) {
    int c = (int)kit_rng_below(rng, COMMS), side = (int)kit_rng_below(rng, 2);
    any = false;
    for (int k = 0; k < COMMS; k++) any |= left[k][0] || left[k][1];
    if (!left[c][side]) continue;
    int i = --left[c][side];
    if (side == 0) {
      kit_pattern_fill(out[c][i], sizes[c][i], (uint64_t)i);
      ops[count] = kit_op_send(p[c].send, out[c][i], sizes[c][i], i);
    } else {
      ops[count] = kit_op_recv(p[c].recv, in[c][i], MOST, i);
    }
    ENSURE(kit_op_post(n, &ops[count]), "no request, or error %d", ops[count].error);
    count++;
    if (kit_rng_below(rng, 3) == 0) doze(rng, 60);
  }
  return count;
}

static void finish_round(struct kit_net *n, struct kit_op *ops, int count, struct kit_rng *rng) {
  int left = count;
  for (int look = 0; left; look++) {
    for (int i = 0; i < count; i++) {
      if (ops[i].done || !kit_op_test(n, &ops[i])) continue;
      ENSURE(!ops[i].error, "error %d", ops[i].error);
      left--;
    }
    if (!left) return;
    ENSURE(look < QUICK_LOOKS + PATIENCE, "%d of %d transfers do not get on without their caller", left, count);
    if (look < QUICK_LOOKS) doze(rng, 100);
    else usleep(10000);
  }
}

TEST(a_caller_who_is_seldom_there) {
  struct kit_net n;
  struct kit_pair p[COMMS];
  struct kit_rng rng;
  static struct kit_op ops[2 * COMMS * MESSAGES];
  kit_net_open(&n);
  kit_rng_start(&rng);
  for (int c = 0; c < COMMS; c++) kit_pair_open(&n, &p[c]);
  for (int c = 0; c < COMMS; c++)
    for (int i = 0; i < MESSAGES; i++) {
      out[c][i] = malloc(MOST);
      in[c][i] = malloc(MOST);
      ENSURE(out[c][i] && in[c][i], "out of memory");
    }
  uint64_t end = rail_deadline_in_ms(2000);
  int rounds = 0, messages = 0, slow = 0;
  for (; !rail_deadline_passed(end); rounds++) {
    int count = post_round(&n, p, ops, &rng);
    uint64_t begun = rail_now_ns();
    finish_round(&n, ops, count, &rng);
    slow += rail_now_ns() - begun > kit_patience_ms(LONG_MS) * 1000000;
    for (int i = 0; i < count; i++)
      if (ops[i].kind == KIT_OP_RECV)
        CHECK(kit_pattern_check(ops[i].data[0], (size_t)ops[i].sizes[0], (uint64_t)ops[i].tag[0]) < 0);
    messages += count / 2;
  }
  printf("# %d rounds, %d messages; %d rounds took longer than %d ms\n", rounds, messages, slow, LONG_MS);
  CHECK(slow <= MANY_LONG);
  for (int c = 0; c < COMMS; c++) {
    kit_pair_close(&p[c]);
    for (int i = 0; i < MESSAGES; i++) {
      free(out[c][i]);
      free(in[c][i]);
    }
  }
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(a_caller_who_is_seldom_there))
