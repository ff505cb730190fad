/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ib plugin's data path refuses: messages that do not fit their buffers,
 * tags that nobody posts, bad arguments, a peer that lies. Each with a line that
 * says so, and never a byte outside of a buffer.
 */
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_pair_plain.h"

/* ---- what does not fit ------------------------------------------------------------ */

TEST(larger_than_the_buffer) {
  open_simple(&simple);
  for (int round = 0; round < 50; round++) {
    void *r = pair_irecv(&p, in + 100, 1000, 9, mh_in);
    void *s = pair_isend(&p, out, 1001, 9, mh_out);
    CHECK(r && s);
    CHECK_INT(pair_finish(s, RAIL_BAD_USAGE), 0);
    CHECK(strstr(pair_line, "isend") && strstr(pair_line, "1001") && strstr(pair_line, "1000 bytes"));
    CHECK_INT(pair_finish(r, RAIL_BAD_USAGE), 0);
    CHECK(strstr(pair_line, "irecv") && strstr(pair_line, "1000 bytes") && strstr(pair_line, "tag 9"));
    check_untouched(0, 3000);
    CHECK_INT(atomic_load(&mh_in->memory.outstanding) + atomic_load(&mh_out->memory.outstanding), 0);
    send_and_check(500, 600); /* the connection lives */
    memset(in, 0xee, 3000);
  }
  pair_close(&p);
}

/* The group's other receives complete. The error is reported at once; the request ends when nothing can be written. */
TEST(larger_than_one_of_a_group) {
  open_simple(&simple);
  void *data[3] = {in, in + 1000, in + 2000}, *mhs[3] = {mh_in, mh_in, mh_in}, *r = NULL;
  size_t sizes[3] = {100, 100, 100};
  int tags[3] = {1, 2, 3}, got[3], done = 0;
  CHECK_OK(ib_irecv(p.rc, 3, data, sizes, tags, mhs, NULL, &r));
  CHECK_INT(pair_finish(pair_isend(&p, out, 100, 3, mh_out), RAIL_OK), 100);
  CHECK_INT(pair_finish(pair_isend(&p, out, 101, 2, mh_out), RAIL_BAD_USAGE), 0);
  CHECK_INT(ib_test(r, &done, got), RAIL_BAD_USAGE);
  CHECK_INT(done, 0);
  CHECK_INT(pair_finish(pair_isend(&p, out, 99, 1, mh_out), RAIL_OK), 99);
  CHECK_INT(ib_test(r, &done, got), RAIL_BAD_USAGE);
  CHECK_INT(done, 1);
  CHECK(got[0] == 99 && got[1] == 0 && got[2] == 100);
  check_untouched(1000, 2000);
  pair_close(&p);
}

TEST(a_tag_that_nobody_posts) {
  open_simple(&simple);
  ib_params.tag_ms = 30;
  void *request = NULL;
  rail_result_t result = RAIL_OK;
  CHECK(!pair_isend(&p, out, 8, 5, mh_out)); /* nothing there at all: that may take for ever */
  usleep(40000);
  CHECK(!pair_isend(&p, out, 8, 5, mh_out));
  for (int i = 0; i < 10; i++) { /* as long as anything changes there is hope */
    CHECK(pair_irecv(&p, in, 8, 6, mh_in));
    CHECK(!pair_isend(&p, out, 8, 5, mh_out));
    usleep(5000);
  }
  for (int i = 0; i < 1000 && result == RAIL_OK; i++, usleep(1000)) {
    result = ib_isend(p.sc, out, 8, 5, mh_out, NULL, &request);
    CHECK(!request);
  }
  CHECK_INT(result, RAIL_BAD_USAGE);
  CHECK(strstr(pair_line, "tag 5") && strstr(pair_line, " 6 6 6"));
  CHECK_INT(ib_isend(p.sc, out, 8, 6, mh_out, NULL, &request), RAIL_BAD_USAGE);
  CHECK(!request);
  pair_close(&p);
  ib_params_load();
}

/* A buffer that was taken meanwhile shows that the peer is at it: the wait begins anew. */
TEST(a_tag_while_others_are_taken) {
  open_simple(&simple);
  ib_params.tag_ms = 30;
  for (int i = 0; i < 8; i++) CHECK(pair_irecv(&p, in, 8, 6, mh_in));
  for (int i = 0; i < 6; i++) {
    CHECK(!pair_isend(&p, out, 8, 5, mh_out)); /* an error if the time of the first one counted on */
    CHECK(pair_isend(&p, out, 8, 6, mh_out));
    usleep(31000);
  }
  pair_close(&p);
  ib_params_load();
}

/* While a process is stopped, the peer's or this one, nobody posts, and the tag may still come. */
TEST(a_tag_whose_receiver_is_stopped) {
  open_simple(&simple);
  ib_params.tag_ms = 30;
  void *request = NULL;
  CHECK(pair_irecv(&p, in, 8, 6, mh_in));
  atomic_store(&p.sc->peer_silent, true);
  for (int i = 0; i < 100; i++, usleep(1000)) CHECK(!pair_isend(&p, out, 8, 5, mh_out));
  atomic_store(&p.sc->peer_silent, false);
  rail_result_t result = RAIL_OK;
  for (int i = 0; i < 1000 && result == RAIL_OK; i++, usleep(1000))
    result = ib_isend(p.sc, out, 8, 5, mh_out, NULL, &request);
  CHECK_INT(result, RAIL_BAD_USAGE);
  pair_close(&p);
  open_simple(&simple);
  ib_params.tag_ms = 1300;
  CHECK(pair_irecv(&p, in, 8, 6, mh_in));
  CHECK(!pair_isend(&p, out, 8, 5, mh_out));
  usleep(1500000); /* nobody called */
  CHECK(!pair_isend(&p, out, 8, 5, mh_out));
  pair_close(&p);
  ib_params_load();
}

/* ---- arguments ------------------------------------------------------------------------ */

static void refused_send(void *data, size_t size, void *mh, const char *word) {
  void *request = NULL;
  CHECK_INT(ib_isend(p.sc, data, size, 1, mh, NULL, &request), RAIL_BAD_ARGUMENT);
  CHECK(!request);
  CHECK_MSG(strstr(pair_line, word) != NULL, "\"%s\" does not say \"%s\"", pair_line, word);
}

static void refused_recv(int n, void *data, size_t size, void *mh, const char *word) {
  void *request = NULL, *datas[8] = {data}, *mhs[8] = {mh};
  size_t sizes[8] = {size};
  int tags[8] = {1};
  CHECK_INT(ib_irecv(p.rc, n, datas, sizes, tags, mhs, NULL, &request), RAIL_BAD_ARGUMENT);
  CHECK(!request);
  CHECK_MSG(strstr(pair_line, word) != NULL, "\"%s\" does not say \"%s\"", pair_line, word);
}

TEST(bad_arguments) {
  open_simple(&simple);
  int done = 0;
  void *r = pair_irecv(&p, in, 100, 1, mh_in);
  refused_send(out, 8, NULL, "mhandle");
  refused_send(out, 8, mh_in, "no registration");
  refused_send(out + sizeof out - 7, 8, mh_out, "not inside");
  refused_send((void *)((uintptr_t)out - 1), 8, mh_out, "not inside");
  refused_send(NULL, 8, mh_out, "data is NULL");
  refused_send(out, RAIL_NET_MAX_BYTES + 1, mh_out, "allowed");
  refused_recv(1, in, 8, NULL, "mhandle");
  refused_recv(1, in, 8, mh_out, "no registration");
  refused_recv(1, in + sizeof in - 7, 8, mh_in, "not inside");
  refused_recv(0, in, 8, mh_in, "n is 0");
  refused_recv(9, in, 8, mh_in, "n is 9");
  CHECK_INT(ib_isend(p.rc, out, 8, 1, mh_out, NULL, &r), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_test(NULL, &done, NULL), RAIL_BAD_ARGUMENT);
  CHECK_INT(done, 0);
  CHECK_INT(ib_test(RAIL_NET_OPTIONAL_RECV, &done, NULL), RAIL_BAD_ARGUMENT);
  void *s = pair_isend(&p, out, 8, 1, mh_out);
  CHECK_OK(ib_test(s, &done, NULL)); /* nobody wants the size */
  CHECK_INT(done, 1);
  CHECK_INT(ib_test(s, &done, NULL), RAIL_BAD_ARGUMENT);
  CHECK(strstr(pair_line, "not outstanding"));
  struct ib_request unknown = {.magic = 0, .comm = p.sc};
  for (unsigned int bit = 0; bit < 32; bit++) { /* no bit of a flush's magic is there for nothing */
    unknown.magic = IB_REQ_FLUSH ^ 1u << bit;
    if (unknown.magic != IB_REQ_SEND && unknown.magic != IB_REQ_RECV)
      CHECK_INT(ib_test(&unknown, &done, NULL), RAIL_BAD_ARGUMENT);
  }
  send_and_check(0, 0); /* no memory, no registration */
  CHECK((r = pair_irecv(&p, NULL, 0, 1, (void *)16))); /* nor a look at it */
  CHECK((s = pair_isend(&p, NULL, 0, 1, (void *)16)));
  pair_finish(s, RAIL_OK);
  pair_finish(r, RAIL_OK);
  (void)ib_comm_set_stopped(p.sc);
  CHECK_INT(ib_isend(p.sc, out, 8, 1, mh_out, NULL, &s), RAIL_BAD_USAGE);
  pair_close(&p);
}

/* ---- a peer that lies ------------------------------------------------------------------- */

/* Whatever is in an immediate: the receiver's buffers are what the HCA let through, and either the numbers fit or the
 * connection is over. */
TEST(any_immediate) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  int failed = 0;
  for (int i = 0; i < kit_scaled(600); i++) {
    char script[64];
    open_simple(&(struct pair_shape){1, 3, 3, 12, 64, 64});
    snprintf(script, sizeof script, "immediate xor=%x from=%u", i < 32 ? 1u << i : (uint32_t)kit_rng_next(&rng),
             1 + kit_rng_below(&rng, 3));
    emu_do(script);
    void *r[4];
    for (int k = 0; k < 4; k++) CHECK((r[k] = pair_irecv(&p, in + k * 1000, 1000, k, mh_in)));
    for (int k = 0; k < 4; k++) CHECK(pair_isend(&p, out, 1000, k, mh_out));
    for (int k = 0; k < 4; k++) {
      int done = 0, size = -1;
      rail_result_t result = ib_test(r[k], &done, &size);
      CHECK(result == RAIL_OK || result == RAIL_REMOTE_ERROR || result == RAIL_BAD_USAGE);
      if (done) CHECK(size >= 0 && size <= 1000);
      else if (result != RAIL_OK) failed++;
    }
    check_untouched(4000, 8000);
    pair_close(&p);
  }
  CHECK(failed > 50);
}

/* Two buffers, and messages of `size` to both; the immediate of write `from` is another. */
static void lie(size_t size, unsigned int from, struct ib_imm truth, struct ib_imm said, const char *word) {
  char script[64];
  void *data[2] = {in, in + 100000}, *mhs[2] = {mh_in, mh_in}, *r;
  open_simple(&(struct pair_shape){1, 3, 3, 12, 64, 64});
  mhs[0] = mhs[1] = mh_in;
  snprintf(script, sizeof script, "immediate xor=%x from=%u", ib_imm_encode(&truth, 3) ^ ib_imm_encode(&said, 3), from);
  emu_do(script);
  CHECK_OK(ib_irecv(p.rc, 2, data, (size_t[]){5000, 5000}, (int[]){0, 1}, mhs, NULL, &r));
  for (int i = 0; i < 2; i++) CHECK(pair_isend(&p, out, size, i, mh_out));
  int done = 0, sizes[2];
  rail_result_t result = RAIL_OK;
  for (int i = 0; i < 10 && result == RAIL_OK; i++) result = ib_test(r, &done, sizes);
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK(!done);
  CHECK_MSG(strstr(pair_line, word) != NULL, "\"%s\" does not say \"%s\"", pair_line, word);
  pair_close(&p);
}

TEST(each_lie_has_its_name) {
  struct ib_imm one = {.slot = 1, .parts = 1}, of_two = {.slot = 1, .parts = 2};
  struct ib_imm second = {.slot = 1, .index = 1, .parts = 1};
  ib_params.min_part = 1024;
  lie(100, 1, one, (struct ib_imm){.slot = 2, .parts = 1}, "not posted");
  lie(100, 1, one, (struct ib_imm){.slot = 1, .index = 2, .parts = 1}, "not posted");
  lie(100, 2, second, one, "not posted"); /* once more what is complete */
  lie(100, 1, one, (struct ib_imm){.slot = 1, .parts = 64}, "number of parts");
  lie(2048, 2, of_two, one, "number of parts");
  lie(100, 1, one, (struct ib_imm){.slot = 1, .parts = 1, .body = 4992}, "more data");
  /* Two parts of 1,024 bytes, of which one is said to be 4,992: each fits into 5,000 bytes, both do not. */
  for (unsigned int from = 1; from <= 2; from++)
    lie(2048, from, of_two, (struct ib_imm){.slot = 1, .parts = 2, .body = 3968}, "more data");
  lie(100, 1, one, (struct ib_imm){.slot = 1, .parts = 1, .error = 77}, "unknown error code");
  lie(2048, 2, of_two, (struct ib_imm){.slot = 1, .parts = 2, .error = IB_IMM_TOO_LARGE}, "unknown error code");
  ib_params_load();
}

TEST(a_ring_with_nonsense) {
  void *request = NULL;
  open_simple(&simple);
  struct ib_cts cts = {.addr = 1, .size = RAIL_NET_MAX_BYTES + 1, .count = 1};
  ib_cts_encode(&cts, 1, &p.sc->ctrl_buf->ring.slots[1][0]);
  CHECK_INT(ib_isend(p.sc, out, 8, 0, mh_out, NULL, &request), RAIL_REMOTE_ERROR);
  CHECK(!request && strstr(pair_line, "protocol error"));
  pair_close(&p);
}

/* isend until it fails; how often it was called is in *calls. */
static rail_result_t send_until_error(int *calls) {
  void *request = NULL;
  rail_result_t result = RAIL_OK;
  uint64_t end = rail_deadline_in_ms(60000);
  for (*calls = 0; result == RAIL_OK && !rail_deadline_passed(end); ++*calls, usleep(1000)) {
    result = ib_isend(p.sc, out, 8, 0, mh_out, NULL, &request);
    CHECK(!request);
  }
  return result;
}

/* Receive 1, or 2 behind one of another tag, has its number in a slot, and is never whole: an entry with a wrong
 * checksum, or one of several. The time limit is that of the HCA's retries, here microseconds, and one second. */
TEST(a_slot_that_is_never_whole) {
  static const struct {
    unsigned int seq;
    uint8_t count, index;
    uint64_t addr_bits;
    uint32_t checksum_bits;
  } rows[] = {{1, 1, 0, 1, 0}, {1, 1, 0, 0, 1u << 31}, {1, 2, 0, 0, 0}, {1, 2, 1, 0, 0}, {1, 8, 7, 0, 0},
              {2, 8, 3, 0, 0}};
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    struct ib_cts cts = {.addr = 0x1000, .size = 100, .count = rows[i].count, .index = rows[i].index};
    char line[80];
    int calls;
    open_simple(&simple);
    if (rows[i].seq == 2) CHECK(pair_irecv(&p, in, 8, 77, mh_in));
    struct ib_cts_wire *entry = &p.sc->ctrl_buf->ring.slots[rows[i].seq][rows[i].index];
    p.sc->receiver_timeout = 1;
    ib_cts_encode(&cts, rows[i].seq, entry);
    entry->addr ^= rows[i].addr_bits;
    entry->checksum ^= rows[i].checksum_bits;
    uint64_t then = rail_now_ns();
    CHECK_INT(send_until_error(&calls), RAIL_SYSTEM_ERROR);
    CHECK(rail_now_ns() - then >= 1000 * 1000000ull && calls > 1);
    snprintf(line, sizeof line, "the CTS of receive %u has been torn (only a part of it is there) for 1000 ms",
             rows[i].seq);
    CHECK(strstr(pair_line, line));
    pair_close(&p);
  }
}

/* An HCA without a time limit of its own (NCCL_IB_TIMEOUT=0) may retransmit the rest at any time. */
TEST(a_torn_slot_without_a_time_limit) {
  int calls;
  const struct ib_cts cts = {.addr = 0x1000, .size = 100, .count = 1};
  void *request = NULL;
  open_simple(&simple);
  struct ib_cts_wire *entry = &p.sc->ctrl_buf->ring.slots[1][0];
  ib_cts_encode(&cts, 1, entry);
  entry->addr ^= 1;
  p.sc->receiver_timeout = 0;
  for (uint64_t end = rail_deadline_in_ms(1500); !rail_deadline_passed(end); usleep(200)) {
    CHECK_OK(ib_isend(p.sc, out, 8, 0, mh_out, NULL, &request));
    CHECK(!request);
  }
  ib_params.tag_ms = 1600;
  CHECK_INT(send_until_error(&calls), RAIL_SYSTEM_ERROR);
  CHECK(strstr(pair_line, "(only a part of it is there) for 1600 ms"));
  pair_close(&p);
}

/* After 2^32 - 1 receives the next one's number is 0, and so is what is in entries that were never written. */
TEST(a_ring_at_the_wrap_of_numbers) {
  void *request = NULL;
  open_simple(&simple);
  struct ib_send_comm *sc = ib_send_comm_of(p.sc);
  sc->match.oldest = sc->match.next = 0;
  p.sc->ctrl_buf->ring.slots[0][0].seq = htole32(0u - IB_MAX_RECVS);
  p.sc->receiver_timeout = 1;
  const uint64_t end = rail_deadline_in_ms(1500);
  for (int calls = 0; calls < 1100 || !rail_deadline_passed(end); calls++, usleep(200)) {
    CHECK_OK(ib_isend(p.sc, out, 8, 0, mh_out, NULL, &request));
    CHECK(!request);
  }
  CHECK(sc->unmatched_calls > 1000 && !sc->torn_timer.last_seen);
  pair_close(&p);
}

/* One that becomes whole is used, however long that took, if the time is within the limit. */
TEST(a_slot_that_is_whole_late) {
  void *request = NULL;
  open_simple(&simple);
  CHECK(pair_irecv(&p, in, 8, 0, mh_in));
  struct ib_cts_wire *entry = &p.sc->ctrl_buf->ring.slots[1][0];
  for (int i = 0; i < 3; i++) {
    entry->addr ^= 1;
    CHECK_OK(ib_isend(p.sc, out, 8, 0, mh_out, NULL, &request));
    CHECK(!request);
    entry->addr ^= 1;
    usleep(10000);
  }
  CHECK_OK(ib_isend(p.sc, out, 8, 0, mh_out, NULL, &request));
  CHECK_INT(pair_finish(request, RAIL_OK), 8);
  pair_close(&p);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(larger_than_the_buffer), TEST_CASE(larger_than_one_of_a_group), TEST_CASE(a_tag_that_nobody_posts),
    TEST_CASE(a_tag_while_others_are_taken), TEST_CASE(a_tag_whose_receiver_is_stopped),
    TEST_CASE(bad_arguments), TEST_CASE(any_immediate), TEST_CASE(each_lie_has_its_name),
    TEST_CASE(a_ring_with_nonsense), TEST_CASE(a_slot_that_is_never_whole),
    TEST_CASE(a_torn_slot_without_a_time_limit), TEST_CASE(a_slot_that_is_whole_late),
    TEST_CASE(a_ring_at_the_wrap_of_numbers)};
  ib_emu_use("device emu0 ports=1");
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
