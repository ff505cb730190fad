/* SPDX-License-Identifier: Apache-2.0
 *
 * The SEND protocol of the ib plugin over the emulated device: order, sizes, parts, what is refused, a peer that lies,
 * and its end with everything in flight. Other failures of its requests are in test_ib_data_faults.c; random traffic is
 * in test_ib_data_random.c.
 */
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_pair_plain.h"

static const struct pair_shape four = {1, 4, 4, 30, 64, 64}, rotating = {1, 4, 1, 30, 64, 64},
                               short_sends = {2, 4, 2, 12, 16, 0};
static const struct pair_shape *const shapes[] = {&simple, &four, &rotating, &short_sends};

/* ---- one message -------------------------------------------------------------------- */

TEST(what_a_message_costs) {
  open_simple(&simple);
  long sends = emu_calls("post_send"), receives = emu_calls("post_recv");
  CHECK_INT(receives, 0); /* nothing before irecv */
  send_and_check(8, 64);
  CHECK_INT(emu_calls("post_send") - sends, 2); /* CTS, SEND */
  CHECK_INT(emu_calls("post_recv") - receives, 1);
  CHECK_INT(p.sc->stats[IB_COMM_WRITES], 1);
  CHECK_INT(p.sc->stats[IB_COMM_MESSAGES], 1);
  CHECK_INT(p.rc->stats[IB_COMM_BYTES], 8);
  pair_close(&p);
}

/* As large as the buffer, shorter, and so short that parts are empty. */
TEST(sizes) {
  static const size_t sizes[] = {0, 1, 127, 128, 129, 4095, 4096, 4097, 65536, 100000};
  ib_params.min_part = 256;
  for (unsigned int k = 0; k < RAIL_COUNT_OF(shapes); k++) {
    open_simple(shapes[k]);
    emu_do(k % 2 ? "progress poll burst=1" : "progress poll");
    for (unsigned int i = 0; i < RAIL_COUNT_OF(sizes); i++) {
      send_and_check(sizes[i], sizes[i]);
      send_and_check(sizes[i], sizes[i] + 1000);
      send_and_check(sizes[i], 130000); /* in parts of 4 KiB, 32 */
    }
    CHECK_INT(atomic_load(&p.sc->outstanding) + atomic_load(&p.rc->outstanding), 0);
    CHECK_INT(atomic_load(&mh_in->memory.outstanding) + atomic_load(&mh_out->memory.outstanding), 0);
    for (unsigned int i = 0; i < shapes[k]->nqps; i++) CHECK_INT(atomic_load(&p.rc->qps[i].receives), 0);
    pair_close(&p);
  }
  ib_params_load();
}

/* Each message of one part takes the next queue pair. */
TEST(queue_pairs_rotate) {
  open_simple(&rotating);
  for (int i = 0; i < 8; i++) send_and_check(1000, 1000);
  for (unsigned int i = 0; i < rotating.nqps; i++) CHECK_INT(p.sc->qps[i].posted.end, 2);
  pair_close(&p);
}

/* No key of the receiver's memory is in an entry, nor its address. */
TEST(nothing_is_told_of_the_buffer) {
  open_simple(&four);
  ib_params.min_part = 128;
  CHECK(pair_irecv(&p, in, 65536, 7, mh_in));
  const struct ib_cts_wire *wire = &p.sc->ctrl_buf->ring.slots[1][0];
  CHECK(wire->addr == 0 && wire->size == 65536 && wire->tag == 7);
  CHECK(wire->rkeys[0] == 4 && wire->rkeys[1] == 0); /* parts, and the first queue pair */
  for (unsigned int i = 2; i < IB_MAX_RAILS; i++) CHECK_INT(wire->rkeys[i], 0);
  pair_close(&p);
  ib_params_load();
}

/* ---- order ---------------------------------------------------------------------------- */

/* 32 groups of 8 buffers; the last is sent first, and each is where it belongs. */
static void all_outstanding(const struct pair_shape *shape, const char *way) {
  enum { SIZE = 1024 };
  void *recvs[IB_MAX_RECVS], *sends[IB_MAX_SENDS], *data[8], *mhs[8], *more = NULL;
  size_t sizes[8];
  int tags[8], got[8];
  open_simple(shape);
  emu_do(way);
  for (int k = 0; k < IB_MAX_RECVS; k++) {
    for (int i = 0; i < 8; i++) {
      data[i] = in + (k * 8 + i) * SIZE;
      sizes[i] = SIZE;
      tags[i] = k * 8 + i;
      mhs[i] = mh_in;
    }
    recvs[k] = NULL;
    for (int tries = 0; tries < 1000 && !recvs[k]; tries++) /* CTS writes may wait for room */
      CHECK_OK(ib_irecv(p.rc, 8, data, sizes, tags, mhs, NULL, &recvs[k]));
    CHECK(recvs[k]);
  }
  CHECK_OK(ib_irecv(p.rc, 8, data, sizes, tags, mhs, NULL, &more));
  CHECK(!more);
  for (int i = 0; i < 1000; i++) (void)ib_progress(p.rc); /* all are announced */
  for (int i = IB_MAX_SENDS - 1; i >= 0; i--)
    CHECK((sends[i] = pair_isend(&p, out + i * SIZE, (size_t)(SIZE - i), i, mh_out)));
  for (int i = 0; i < IB_MAX_SENDS; i++) CHECK_INT(pair_finish(sends[i], RAIL_OK), SIZE - i);
  for (int k = IB_MAX_RECVS - 1; k >= 0; k--) {
    int done = 0;
    while (!done) CHECK_OK(ib_test(recvs[k], &done, got));
    for (int i = 0; i < 8; i++) {
      const int n = k * 8 + i;
      CHECK_INT(got[i], SIZE - n);
      CHECK(memcmp(in + n * SIZE, out + n * SIZE, (size_t)got[i]) == 0);
      check_untouched((size_t)(n + 1) * SIZE - (size_t)n, (size_t)(n + 1) * SIZE);
    }
  }
  CHECK_INT(pair_lines, 0);
  pair_close(&p);
}

TEST(all_that_can_be_outstanding) {
  pair_lines = 0;
  for (unsigned int k = 0; k < RAIL_COUNT_OF(shapes); k++) {
    all_outstanding(shapes[k], "progress post");
    all_outstanding(shapes[k], "progress poll burst=1 skip=3");
  }
}

/* The message of a later receive waits for that of an earlier one, however long; it is not taken for lost. */
TEST(a_turn_that_is_late) {
  int done = 0;
  open_simple(&simple);
  pair_lines = 0;
  void *first = pair_irecv(&p, in, 100, 1, mh_in), *second = pair_irecv(&p, in + 100, 100, 2, mh_in);
  void *s = pair_isend(&p, out + 100, 100, 2, mh_out);
  CHECK(first && second && s);
  p.sc->qps[0].attr.timeout = 1;
  uint64_t end = rail_deadline_in_ms(1500); /* an HCA has its retries, here none, and a second */
  while (!rail_deadline_passed(end)) {
    atomic_fetch_or(&p.sc->pending_work, IB_COMM_STALLED); /* as the watch thread would */
    CHECK_OK(ib_test(s, &done, NULL));
    CHECK(!done);
    usleep(1000);
  }
  CHECK_INT(p.sc->stats[IB_COMM_WRITES], 0);
  CHECK_INT(pair_finish(pair_isend(&p, out, 100, 1, mh_out), RAIL_OK), 100);
  CHECK_INT(pair_finish(s, RAIL_OK), 100);
  CHECK_INT(pair_finish(second, RAIL_OK) + pair_finish(first, RAIL_OK), 200);
  CHECK(memcmp(in, out, 200) == 0);
  CHECK_INT(pair_lines, 0);
  pair_close(&p);
}

TEST(a_turn_that_never_comes) {
  int done = 0;
  rail_result_t result = RAIL_OK;
  open_simple(&simple);
  ib_params.tag_ms = 30;
  CHECK(pair_irecv(&p, in, 100, 41, mh_in) && pair_irecv(&p, in + 100, 100, 2, mh_in));
  void *s = pair_isend(&p, out + 100, 100, 2, mh_out);
  CHECK(s);
  uint64_t begun = rail_now_ns(), end = rail_deadline_in_ms(10000);
  for (; result == RAIL_OK && !rail_deadline_passed(end); usleep(1000)) result = ib_test(s, &done, NULL);
  CHECK_INT(result, RAIL_BAD_USAGE);
  CHECK(rail_now_ns() - begun >= 30000000);
  CHECK_INT(atomic_load(&p.sc->pending_work), 0);
  CHECK(!done && strstr(pair_line, "tag 41") && strstr(pair_line, "RAIL_IB_TAG_TIMEOUT"));
  pair_close(&p);
  ib_params_load();
}

/* ---- what does not fit ------------------------------------------------------------------ */

/* Both sides say so, nothing is written, and the connection lives. */
TEST(larger_than_the_buffer) {
  ib_params.min_part = 256;
  for (unsigned int k = 0; k < RAIL_COUNT_OF(shapes); k++) {
    open_simple(shapes[k]);
    for (int round = 0; round < 50; round++) {
      void *r = pair_irecv(&p, in + 100, 5000, 9, mh_in), *empty = pair_irecv(&p, in + 100, 5000, 9, mh_in);
      void *s = pair_isend(&p, out, 5001, 9, mh_out);
      CHECK(r && s && empty);
      CHECK_INT(pair_finish(s, RAIL_BAD_USAGE), 0);
      CHECK(strstr(pair_line, "isend") && strstr(pair_line, "5001") && strstr(pair_line, "5000 bytes"));
      CHECK_INT(pair_finish(r, RAIL_BAD_USAGE), 0);
      CHECK(strstr(pair_line, "irecv") && strstr(pair_line, "5000 bytes") && strstr(pair_line, "tag 9"));
      CHECK_INT(pair_finish(pair_isend(&p, out, 0, 9, NULL), RAIL_OK), 0);
      CHECK_INT(pair_finish(empty, RAIL_OK), 0); /* not refused, though as empty */
      check_untouched(0, 6000);
      send_and_check(500, 600);
      memset(in, 0xee, 6000);
    }
    CHECK_INT(atomic_load(&mh_in->memory.outstanding) + atomic_load(&mh_out->memory.outstanding), 0);
    pair_close(&p);
  }
  ib_params_load();
}

/* The refused message is that of the oldest receive of 32, and those of all others wait for it. */
TEST(larger_and_awaited_by_all) {
  enum { MOST = IB_MAX_RECVS };
  void *r[MOST], *s[MOST];
  open_simple(&simple);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < MOST; i++) CHECK((r[i] = pair_irecv(&p, in + i * 100, 100, i, mh_in)));
    for (int i = MOST - 1; i >= 0; i--) CHECK((s[i] = pair_isend(&p, out, i ? 100 : 101, i, mh_out)));
    for (int i = 0; i < MOST; i++) {
      CHECK_INT(pair_finish(s[i], i ? RAIL_OK : RAIL_BAD_USAGE), i ? 100 : 0);
      CHECK_INT(pair_finish(r[i], i ? RAIL_OK : RAIL_BAD_USAGE), i ? 100 : 0);
    }
    send_and_check(10, 10); /* so that the next oldest receive is in another slot */
  }
  pair_close(&p);
}

TEST(larger_than_one_of_a_group) {
  open_simple(&four);
  void *data[3] = {in, in + 1000, in + 2000}, *mhs[3] = {mh_in, mh_in, mh_in}, *r = NULL, *s[4];
  int got[3], done = 0;
  CHECK_OK(ib_irecv(p.rc, 3, data, (size_t[]){100, 100, 100}, (int[]){1, 2, 3}, mhs, NULL, &r));
  for (int i = 3; i >= 1; i--) CHECK((s[i] = pair_isend(&p, out, i == 2 ? 101 : 100, i, mh_out)));
  CHECK_INT(pair_finish(s[1], RAIL_OK), 100);
  CHECK_INT(pair_finish(s[2], RAIL_BAD_USAGE), 0);
  CHECK_INT(pair_finish(s[3], RAIL_OK), 100);
  CHECK_INT(ib_test(r, &done, got), RAIL_BAD_USAGE);
  CHECK(done && got[0] == 100 && got[1] == 0 && got[2] == 100);
  check_untouched(1000, 2000);
  pair_close(&p);
}

/* 32 messages of a port; a group of 8 such buffers takes nearly all of a queue pair's receive WRs. */
TEST(the_largest_buffers) {
  enum { MOST = IB_LARGE_PARTS * 4096 };
  void *request = NULL, *data[8], *mhs[8], *r, *more = NULL;
  size_t sizes[8];
  int tags[8], got[8], done = 0;
  open_simple(&(struct pair_shape){1, 1, 1, 12, 64, 0});
  for (int i = 0; i < 8; i++) {
    data[i] = in + i * MOST;
    sizes[i] = i < 7 ? MOST : MOST + 1;
    tags[i] = i;
    mhs[i] = mh_in;
  }
  CHECK_INT(ib_irecv(p.rc, 8, data, sizes, tags, mhs, NULL, &request), RAIL_BAD_ARGUMENT);
  CHECK(!request && strstr(pair_line, "RAIL_IB_PROTOCOL"));
  sizes[7] = MOST - 4096;
  data[7] = in;
  CHECK_OK(ib_irecv(p.rc, 8, data, sizes, tags, mhs, NULL, &r));
  CHECK(r);
  CHECK_OK(ib_irecv(p.rc, 2, data, sizes, tags, mhs, NULL, &more));
  CHECK(!more); /* no room for 64 more */
  CHECK_INT(atomic_load(&p.rc->qps[0].receives), 255);
  for (int i = 0; i < 8; i++) CHECK_INT(pair_finish(pair_isend(&p, out, sizes[i], i, mh_out), RAIL_OK), sizes[i]);
  for (int i = 0; i < 10 && !done; i++) CHECK_OK(ib_test(r, &done, got));
  CHECK(done && got[0] == MOST && got[7] == MOST - 4096);
  CHECK_OK(ib_irecv(p.rc, 2, data, sizes, tags, mhs, NULL, &more));
  CHECK(more);
  pair_close(&p);
}

/* The k-th receive WR of a group of two buffers cannot be posted: none is tried after it, and nothing is announced. */
TEST(a_receive_that_is_not_all_posted) {
  enum { SIZE = 9000, PARTS = 2 * 3 }; /* of at most 4 KiB each */
  void *r;
  int done = 0;
  for (int k = 1; k <= PARTS + 1; k++) {
    char script[64];
    open_simple(&short_sends);
    pair_lines = 0;
    void *data[2] = {in, in + SIZE}, *mhs[2] = {mh_in, mh_in};
    snprintf(script, sizeof script, "fail post_recv from=%d errno=ENOMEM", k);
    emu_do(script);
    long sent = emu_calls("post_send"), posted = emu_calls("post_recv");
    CHECK_OK(ib_irecv(p.rc, 2, data, (size_t[]){SIZE, SIZE}, (int[]){0, 1}, mhs, NULL, &r));
    CHECK(r);
    CHECK_INT(emu_calls("post_recv") - posted, RAIL_MIN(k, PARTS));
    CHECK_INT(emu_calls("post_send") - sent, k > PARTS);
    CHECK_INT(pair_isend(&p, out, 8, 0, mh_out) != NULL, k > PARTS);
    CHECK_INT(ib_test(r, &done, NULL), k <= PARTS ? RAIL_SYSTEM_ERROR : RAIL_OK);
    CHECK_INT(done, 0);
    CHECK_INT(pair_lines, k <= PARTS);
    pair_close(&p);
  }
}

/* ---- a peer that lies ------------------------------------------------------------------- */

/* Entries whose parts cannot be. */
TEST(a_ring_with_nonsense) {
  static const struct { uint32_t parts, first_qp; uint64_t size; } rows[] = {
    {0, 0, 8}, {IB_MAX_QPS + 1, 0, 8}, {UINT32_MAX, 0, 8}, {1, 4, 8}, {1, UINT32_MAX, 8}, {2, 0, 2 * 4096 + 1},
    {1, 0, RAIL_NET_MAX_BYTES}};
  for (unsigned int i = 0; i < RAIL_COUNT_OF(rows); i++) {
    int done = 0;
    open_simple(&short_sends);
    struct ib_cts cts = {.size = rows[i].size, .count = 1};
    cts.parts = rows[i].parts;
    cts.first_qp = rows[i].first_qp;
    ib_cts_encode(&cts, 1, &p.sc->ctrl_buf->ring.slots[1][0]);
    void *s = pair_isend(&p, out, 8, 0, mh_out);
    CHECK(s && strstr(pair_line, "protocol error"));
    CHECK_INT(ib_test(s, &done, NULL), RAIL_REMOTE_ERROR);
    CHECK(!done);
    CHECK_INT(p.sc->stats[IB_COMM_WRITES], 0);
    pair_close(&p);
  }
}

/* What a sender could post by itself, over its first queue pair. */
static void post_raw(enum ibv_wr_opcode opcode, size_t size) {
  struct ibv_sge sge = {.addr = (uintptr_t)out, .length = (uint32_t)size, .lkey = mh_out->lkeys[0]};
  struct ibv_send_wr wr = {.wr_id = ib_wr_id(IB_WR_VERIFY, 0, 1, 0), .opcode = opcode, .sg_list = &sge,
                           .num_sge = size != 0}, *bad;
  CHECK_INT(ibv_post_send(p.sc->qps[0].qp, &wr, &bad), 0);
}

/* Without an entry there is no memory for it: the sender's HCA waits. */
TEST(a_send_without_a_receive) {
  int done = 0;
  open_simple(&simple);
  pair_lines = 0;
  emu_do("progress poll");
  post_raw(IBV_WR_SEND, 100);
  for (int i = 0; i < 100; i++) CHECK_OK(ib_progress(p.sc));
  for (int i = 0; i < 100; i++) CHECK_OK(ib_progress(p.rc));
  check_untouched(0, sizeof in);
  void *r = pair_irecv(&p, in, 50, 1, mh_in); /* smaller than what waits for it */
  rail_result_t result = RAIL_OK;
  uint64_t end = rail_deadline_in_ms(10000); /* it tries again after IB_MIN_RNR_TIMER */
  while (result == RAIL_OK && !rail_deadline_passed(end)) {
    (void)ib_progress(p.sc);
    result = ib_test(r, &done, NULL);
  }
  CHECK(result != RAIL_OK && !done);
  CHECK(strstr(pair_line, "LOC_LEN_ERR"));
  check_untouched(50, sizeof in);
  pair_close(&p);
}

/* An entry behind which nothing was posted: the HCA is not to blame alone. */
TEST(an_announcement_without_a_receive) {
  int done = 0;
  rail_result_t result = RAIL_OK;
  open_simple(&simple);
  emu_do("progress poll");
  struct ib_cts cts = {.size = 8, .count = 1, .parts = 1};
  ib_cts_encode(&cts, 1, &p.sc->ctrl_buf->ring.slots[1][0]);
  void *s = pair_isend(&p, out, 8, 0, mh_out);
  CHECK(s && ib_two_sided_is_posted(ib_send_comm_of(p.sc)));
  p.sc->qps[0].attr.timeout = 1; /* an HCA has its retries, here none, and a second */
  uint64_t begun = rail_now_ns(), end = rail_deadline_in_ms(10000);
  for (; result == RAIL_OK && !rail_deadline_passed(end); usleep(1000)) {
    atomic_fetch_or(&p.sc->pending_work, IB_COMM_STALLED); /* as the watch thread would */
    (void)ib_progress(p.rc);
    result = ib_test(s, &done, NULL);
  }
  CHECK_INT(result, RAIL_SYSTEM_ERROR);
  CHECK(!done && rail_now_ns() - begun >= 1000000000);
  CHECK(strstr(pair_line, "lost a work request, or the peer has not posted what it announced"));
  pair_close(&p);
}

TEST(an_immediate_in_place_of_a_send) {
  int done = 0;
  open_simple(&simple);
  void *r = pair_irecv(&p, in, 50, 1, mh_in);
  post_raw(IBV_WR_RDMA_WRITE_WITH_IMM, 0);
  CHECK_INT(ib_test(r, &done, NULL), RAIL_REMOTE_ERROR);
  CHECK(!done && strstr(pair_line, "protocol error: a write in place of a SEND"));
  pair_close(&p);
}

/* ---- the end ------------------------------------------------------------------------------ */

/* deregMr waits until no receive WR can be written to: none at all, some, those of some queue pairs. */
TEST(stopped_with_everything_in_flight) {
  for (int n = 0; n <= IB_MAX_RECVS; n += n < 4 ? 1 : 7)
    for (int sent = 0; sent <= n; sent += 2) {
      open_simple(&rotating);
      for (int i = 0; i < n; i++) CHECK(pair_irecv(&p, in + i * 1000, 1000, i, mh_in));
      for (int i = 0; i < sent; i++) CHECK(pair_isend(&p, out, 1000, i, mh_out));
      uint64_t begun = kit_cpu_ns(); /* a drain that waits polls, and the machine may stand still */
      ib_comm_stop(p.rc);
      CHECK(ib_comm_drain(p.rc) && ib_comm_drain(p.rc));
      CHECK(kit_cpu_ns() - begun < 200000000ull); /* it gives up, and is false, after 1 s */
      for (unsigned int i = 0; i < rotating.nqps; i++) CHECK_INT(atomic_load(&p.rc->qps[i].receives), 0);
      pair_close(&p);
    }
}

TEST(never_stopped) {
  open_simple(&simple);
  emu_do("fail modify_qp to=err times=ever");
  CHECK(pair_irecv(&p, in, 1000, 1, mh_in));
  ib_comm_stop(p.rc);
  CHECK(!ib_comm_drain(p.rc));
  pair_close(&p);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(what_a_message_costs), TEST_CASE(sizes), TEST_CASE(queue_pairs_rotate),
    TEST_CASE(nothing_is_told_of_the_buffer),
    TEST_CASE(all_that_can_be_outstanding), TEST_CASE(a_turn_that_is_late), TEST_CASE(a_turn_that_never_comes),
    TEST_CASE(larger_than_the_buffer), TEST_CASE(larger_and_awaited_by_all), TEST_CASE(larger_than_one_of_a_group),
    TEST_CASE(the_largest_buffers), TEST_CASE(a_receive_that_is_not_all_posted), TEST_CASE(a_ring_with_nonsense),
    TEST_CASE(a_send_without_a_receive), TEST_CASE(an_announcement_without_a_receive),
    TEST_CASE(an_immediate_in_place_of_a_send),
    TEST_CASE(stopped_with_everything_in_flight), TEST_CASE(never_stopped)};
  ib_emu_use("device emu0 ports=2");
  pair_two_sided = true;
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
