/* SPDX-License-Identifier: Apache-2.0
 * Messages of any size and alignment arrive whole, report their size, and never touch a byte beyond the receive.
 * TEST-LIMIT: 60 */
#include <sched.h>

#include "common/clock.h"
#include "test/harness/program.h"

static const size_t sizes[] = {0,    1,    2,    7,    8,     9,     63,    64,    65,    127,
                               128,  129,  255,  256,  257,   1023,  4095,  4096,  4097,  8191,
                               8192, 8193, 65535, 65536, 65537, 131071, 131072, 131073, 262147, 1048576, 1048583};
enum { NSIZES = sizeof sizes / sizeof sizes[0] };

/* Sends `size` bytes at `out` into a receive of `room` at `in` and checks all of it. */
static void cross(struct kit_pair *p, uint8_t *out, size_t size, uint8_t *in, size_t room, uint64_t seed) {
  kit_pattern_fill(out, size, seed);
  memset(in, 0xcc, room);
  struct kit_op ops[2] = {kit_op_recv(p->recv, in, room, 3), kit_op_send(p->send, out, size, 3)};
  kit_ops_run(p->net, ops, 2, (struct kit_ops_how){0});
  CHECK_MSG(ops[0].sizes[0] == (int)size, "a message of %zu bytes was reported as %d", size, ops[0].sizes[0]);
  ssize_t wrong = kit_pattern_check(in, size, seed);
  CHECK_MSG(wrong < 0, "byte %zd of %zu arrived wrong", wrong, size);
  wrong = kit_bytes_check(in + size, room - size, 0xcc);
  CHECK_MSG(wrong < 0, "byte %zd behind a message of %zu was touched", wrong, size);
  wrong = kit_pattern_check(out, size, seed);
  CHECK_MSG(wrong < 0, "the send buffer was changed at %zd", wrong);
}

TEST(against_guard_pages) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  for (int i = 0; i < NSIZES; i++) {
    struct kit_guarded out = kit_guard_high(sizes[i]), in = kit_guard_high(sizes[i]);
    cross(&p, out.data, sizes[i], in.data, sizes[i], (uint64_t)i);
    kit_guard_free(&out);
    kit_guard_free(&in);
    out = kit_guard_low(sizes[i]);
    in = kit_guard_low(sizes[i]);
    cross(&p, out.data, sizes[i], in.data, sizes[i], (uint64_t)i + 100);
    kit_guard_free(&out);
    kit_guard_free(&in);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(unaligned) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static uint8_t out[70000], in[70000];
  static const size_t some[] = {1, 8, 127, 4097, 65537};
  for (size_t a = 0; a < 16; a++)
    for (size_t s = 0; s < sizeof some / sizeof some[0]; s++)
      cross(&p, out + a, some[s], in + (a * 7) % 16, some[s], a * 100 + s);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(receive_larger_than_send) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static const size_t extra[] = {1, 8, 1000, 100000, 3000000};
  for (int i = 0; i < NSIZES; i++) {
    size_t more = extra[i % 5], room = sizes[i] + more;
    struct kit_guarded out = kit_guard_high(sizes[i]), in = kit_guard_high(room);
    cross(&p, out.data, sizes[i], in.data, room, (uint64_t)i);
    kit_guard_free(&out);
    kit_guard_free(&in);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(sixteen_megabytes_and_three) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  size_t size = ((size_t)16 << 20) + 3;
  for (int i = 0; i < kit_scaled(5); i++) kit_pair_ping(&p, size - (size_t)i, (uint64_t)i);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(sizes_at_random) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_rng_start(&rng);
  static uint8_t out[1 << 20], in[(1 << 20) + 64];
  for (int i = 0; i < kit_scaled(1500); i++) {
    size_t size = kit_rng_below(&rng, 1u << (1 + kit_rng_below(&rng, 20))), room = size + kit_rng_below(&rng, 64);
    cross(&p, out, size, in, room, kit_rng_next(&rng));
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* A send that went ahead of its receive was done before anybody could know; then a later call must say it. */
static void sender_learns(struct kit_net *n, struct kit_pair *p, const struct kit_op *op, const char *what) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  char byte = 0;
  int error = op->error;
  while (!error && !rail_deadline_passed(deadline)) {
    struct kit_op later = kit_op_send(p->send, &byte, 1, 3);
    if (kit_op_post(n, &later))
      while (!later.done && !later.error && !rail_deadline_passed(deadline)) kit_op_test(n, &later);
    error = later.error;
  }
  CHECK_MSG(error == RAIL_BAD_USAGE, "%s: the sender got %d, expected %d", what, error, RAIL_BAD_USAGE);
}

/* The caller's mistake: both ends say so, nothing behind the receive is touched. */
static void too_large(struct kit_net *n, size_t size, size_t room, bool receive_first) {
  struct kit_pair p;
  kit_pair_open(n, &p);
  kit_pair_ping(&p, 100, 1);
  struct kit_guarded out = kit_guard_high(size), in = kit_guard_high(room);
  struct kit_op recv = kit_op_recv(p.recv, in.data, room, 3), send = kit_op_send(p.send, out.data, size, 3), ops[2];
  ops[receive_first ? 0 : 1] = recv;
  ops[receive_first ? 1 : 0] = send;
  bool fine = kit_ops_run(n, ops, 2, (struct kit_ops_how){.errors_are_fine = true, .deadline_ms = 10000});
  CHECK_MSG(!fine, "%zu bytes into %zu were reported as done", size, room);
  char what[80];
  snprintf(what, sizeof what, "%zu bytes into %zu", size, room);
  for (int i = 0; i < 2; i++)
    if (ops[i].kind == KIT_OP_SEND) sender_learns(n, &p, &ops[i], what);
    else
      CHECK_MSG(ops[i].error == RAIL_BAD_USAGE, "%s: the receiver got %d, expected %d", what, ops[i].error,
                RAIL_BAD_USAGE);
  kit_pair_close(&p);
  kit_guard_free(&out);
  kit_guard_free(&in);
}

TEST(send_larger_than_receive) {
  struct kit_net n;
  kit_net_open(&n);
  static const size_t room[] = {0, 1, 99, 4096, 65536, 1 << 20};
  for (size_t i = 0; i < sizeof room / sizeof room[0]; i++) {
    too_large(&n, room[i] + 1, room[i], true);
    too_large(&n, room[i] + 1, room[i], false);
    too_large(&n, 3 * room[i] + 5000000, room[i], true);
  }
  struct kit_pair p; /* other connections are unharmed */
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 1000, 2);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(send_larger_than_receive_in_a_group) {
  struct kit_net n;
  struct rail_net_props_v12 props;
  kit_net_open(&n);
  CHECK_OK(n.vt->get_properties(n.dev, &props));
  if (props.max_recvs < 2) tap_skip_case("the plugin has no grouped receives");
  struct kit_pair p;
  kit_pair_open(&n, &p);
  struct kit_guarded a = kit_guard_high(500), b = kit_guard_high(100), out = kit_guard_high(500);
  struct kit_op ops[3] = {{.kind = KIT_OP_RECV, .comm = p.recv, .n = 2}, kit_op_send(p.send, out.data, 500, 1),
                      kit_op_send(p.send, out.data, 500, 2)};
  ops[0].data[0] = a.data;
  ops[0].size[0] = 500;
  ops[0].tag[0] = 1;
  ops[0].data[1] = b.data;
  ops[0].size[1] = 100;
  ops[0].tag[1] = 2;
  kit_ops_run(&n, ops, 3, (struct kit_ops_how){.errors_are_fine = true, .deadline_ms = 10000});
  CHECK_INT(ops[0].error, RAIL_BAD_USAGE);
  sender_learns(&n, &p, &ops[2], "500 bytes into 100 of a group");
  kit_pair_close(&p);
  kit_guard_free(&a);
  kit_guard_free(&b);
  kit_guard_free(&out);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(against_guard_pages), TEST_CASE(unaligned), TEST_CASE(receive_larger_than_send),
          TEST_CASE(sixteen_megabytes_and_three), TEST_CASE(sizes_at_random), TEST_CASE(send_larger_than_receive),
          TEST_CASE(send_larger_than_receive_in_a_group))
