/* SPDX-License-Identifier: Apache-2.0
 *
 * The data path of the ib plugin, both sides, over the emulated device: what a
 * message costs, groups and tests in every order, long chains, full queues and
 * tables. What is refused is in test_ib_data_refused.c, what fails in
 * test_ib_data_faults.c, random traffic in test_ib_data_random.c.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "test/unit/ib_pair_plain.h"

/* ---- one message ------------------------------------------------------------ */

/* One work request on either side, inline. */
TEST(what_a_message_costs) {
  open_simple(&simple);
  emu_do("progress poll");
  long before = emu_calls("post_send");
  void *r = pair_irecv(&p, in, 64, 5, mh_in);
  CHECK(r);
  CHECK_INT(emu_calls("post_send") - before, 1);
  CHECK_OK(ib_progress(p.rc));
  void *s = pair_isend(&p, out, 8, 5, mh_out);
  CHECK(s);
  memset(out, 0, 8); /* inline: it has gone already */
  CHECK_INT(emu_calls("post_send") - before, 2);
  CHECK_INT(pair_finish(s, RAIL_OK), 8);
  CHECK_INT(pair_finish(r, RAIL_OK), 8);
  CHECK_INT(in[1], 31);
  check_untouched(8, 100);
  CHECK_INT(p.sc->stats[IB_COMM_WRITES], 1);
  CHECK_INT(p.rc->stats[IB_COMM_WRITES], 1);
  CHECK_INT(p.sc->stats[IB_COMM_MESSAGES], 1);
  CHECK_INT(p.rc->stats[IB_COMM_BYTES], 8);
  CHECK_INT(emu_calls("post_recv"), IB_RECV_DEPTH);
  pair_close(&p);
}

/* Above the threshold of adaptive routing the immediate goes apart: by the port's type, or as the parameter says. */
TEST(the_immediate_apart) {
  static const struct { int param; bool roce; bool apart; } rows[] = {
    {-2, true, false}, {-2, false, true}, {0, false, false}, {1, true, true}};
  for (unsigned int i = 0; i < RAIL_COUNT_OF(rows); i++) {
    ib_params.adaptive_routing = rows[i].param;
    ib_params.ar_threshold = 8192;
    open_simple(&simple);
    p.ports[0].roce = rows[i].roce;
    CHECK(ib_send_comm_start(p.sc, ib_progress));
    send_and_check(8192, 8192);
    CHECK_INT(p.sc->stats[IB_COMM_WRITES], 1);
    send_and_check(8193, 8193);
    CHECK_INT(p.sc->stats[IB_COMM_WRITES], rows[i].apart ? 3 : 2);
    pair_close(&p);
  }
  ib_params_load();
}

TEST(sizes) {
  static const size_t sizes[] = {0,   1,   7,    8,    63,   64,    127,   128,   129,
                                 255, 256, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 18};
  static const struct pair_shape shapes[] = {
    {1, 1, 1, 30, 64, 128}, {1, 4, 4, 12, 64, 0}, {2, 6, 6, 14, 16, 64}, {2, 4, 2, 30, 8, 256}, {3, 3, 3, 12, 3, 32}};
  for (unsigned int k = 0; k < RAIL_COUNT_OF(shapes); k++)
    for (int adaptive = 0; adaptive < 2; adaptive++) {
      ib_params.min_part = 128;
      ib_params.adaptive_routing = adaptive;
      ib_params.ar_threshold = 512;
      open_simple(&shapes[k]);
      emu_do(k % 2 ? "progress poll burst=1" : "progress poll");
      for (unsigned int i = 0; i < RAIL_COUNT_OF(sizes); i++) {
        send_and_check(sizes[i], sizes[i]);
        send_and_check(sizes[i], sizes[i] + 1000);
      }
      CHECK_INT(atomic_load(&p.sc->outstanding) + atomic_load(&p.rc->outstanding), 0);
      CHECK_INT(atomic_load(&mh_in->memory.outstanding) + atomic_load(&mh_out->memory.outstanding), 0);
      pair_close(&p);
    }
  ib_params_load();
}

/* A mapping of one small file again and again: memory beyond 4 GiB that costs nothing. */
static uint8_t *huge(size_t size, size_t piece) {
  int fd = memfd_create("huge", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)piece) == 0);
  uint8_t *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(base != MAP_FAILED);
  for (size_t at = 0; at < size; at += piece)
    CHECK(mmap(base + at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == base + at);
  close(fd);
  return base;
}

TEST(beyond_four_gigabytes) {
  enum { PIECE = 2 << 20 };
  const size_t size = (4ull << 30) + 3 * 128 + 5, mapped = (4ull << 30) + PIECE;
  if (kit_sanitized()) tap_skip_case("4 GiB under a sanitizer take too long");
  uint8_t *from = huge(mapped, PIECE), *to = huge(mapped, PIECE);
  open_simple(&(struct pair_shape){1, 2, 2, 30, 64, 64});
  for (size_t i = 0; i < PIECE; i++) from[i] = (uint8_t)(i * 7 + (i >> 9));
  struct ib_mhandle *mf = pair_reg(&p, p.sc, from, mapped), *mt = pair_reg(&p, p.rc, to, mapped);
  void *r = pair_irecv(&p, to, size, 1, mt), *s = pair_isend(&p, from, size, 1, mf);
  CHECK(r && s);
  CHECK_INT(pair_finish(s, RAIL_OK), INT_MAX); /* all that an int can say */
  CHECK_INT(pair_finish(r, RAIL_OK), INT_MAX);
  CHECK_INT(p.rc->stats[IB_COMM_BYTES], size);
  CHECK(memcmp(from, to, PIECE) == 0);
  pair_close(&p);
  munmap(from, mapped);
  munmap(to, mapped);
}

/* A chain of 256 writes over a queue of 8 goes bit by bit, and what comes behind it waits its turn. */
TEST(long_chains) {
  ib_params.min_part = 1 << 30;
  for (uint32_t depth = 1; depth <= 20; depth += depth < 4 ? 1 : 8) {
    open_simple(&(struct pair_shape){1, 2, 2, 12, depth, 64});
    emu_do("progress poll burst=3");
    void *r[4], *s[4];
    static const size_t sizes[] = {900000, 8, 5000, 0};
    size_t at = 0;
    for (int i = 0; i < 4; at += sizes[i++]) {
      CHECK((r[i] = pair_irecv(&p, in + at, sizes[i], i, mh_in)));
      (void)ib_progress(p.rc);
      uint64_t writes = p.sc->stats[IB_COMM_WRITES];
      bool waits = !STAILQ_EMPTY(&ib_send_comm_of(p.sc)->unposted);
      CHECK((s[i] = pair_isend(&p, out + at, sizes[i], i, mh_out)));
      CHECK(!waits || p.sc->stats[IB_COMM_WRITES] == writes); /* nobody overtakes */
    }
    CHECK_INT(p.sc->stats[IB_COMM_WAITS_ROOM], 4);
    CHECK_INT(pair_finish(s[3], RAIL_OK), 0); /* testing the last moves all */
    for (int i = 0; i < 3; i++) CHECK_INT(pair_finish(s[i], RAIL_OK), sizes[i]);
    for (int i = 3; i >= 0; i--) CHECK_INT(pair_finish(r[i], RAIL_OK), sizes[i]);
    CHECK(memcmp(in, out, at) == 0);
    check_untouched(at, sizeof in);
    pair_close(&p);
  }
  ib_params_load();
}

/* Which of the peer's keys a write takes follows from where its queue pair leads, not from where it begins. */
TEST(keys_of_the_rail_at_the_other_end) {
  open_simple(&(struct pair_shape){2, 2, 1, 30, 64, 64});
  for (unsigned int i = 0; i < 2; i++) p.sc->qps[i].remote_rail = (uint8_t)(1 - i);
  for (unsigned int i = 0; i < 4; i++) {
    uint32_t good = p.mrs[1]->rkey;
    for (unsigned int r = 0; r < 2; r++) mh_in->rkeys[r] = r == 1 - i % 2 ? good : 0x7777; /* queue pairs take turns */
    send_and_check(100, 100);
  }
  pair_close(&p);
}

/* One look takes what has come over all rails. */
TEST(one_look_at_all_rails) {
  ib_params.min_part = 1024;
  open_simple(&(struct pair_shape){2, 2, 2, 30, 64, 64});
  void *r = pair_irecv(&p, in, 8192, 1, mh_in);
  CHECK_OK(ib_progress(p.rc));
  void *s = pair_isend(&p, out, 8192, 1, mh_out);
  CHECK(r && s);
  CHECK_INT(p.sc->stats[IB_COMM_WRITES], 2); /* one over each rail */
  CHECK_OK(ib_progress(p.sc));
  CHECK_INT(((struct ib_request *)s)->pending, 0);
  CHECK_OK(ib_progress(p.rc));
  CHECK_INT(((struct ib_request *)r)->pending, 0);
  CHECK_INT(pair_finish(s, RAIL_OK), 8192);
  CHECK_INT(pair_finish(r, RAIL_OK), 8192);
  pair_close(&p);
  ib_params_load();
}

/* ---- groups, and order --------------------------------------------------------- */

/* A group's sends in a given order; everything is tested in another. */
static void one_group(const int *order, int n, const int *tests) {
  void *data[8], *mhs[8], *r = RAIL_NET_OPTIONAL_RECV, *s[8];
  size_t sizes[8];
  int tags[8], got[8] = {0};
  for (int i = 0; i < n; i++) {
    data[i] = in + i * 4096;
    sizes[i] = 3000;
    tags[i] = 100 + i;
    mhs[i] = mh_in;
  }
  CHECK_OK(ib_irecv(p.rc, n, data, sizes, tags, mhs, NULL, &r));
  CHECK(r && r != RAIL_NET_OPTIONAL_RECV);
  memset(data, 0x55, sizeof data); /* the caller may reuse its arrays after the call */
  memset(sizes, 0x55, sizeof sizes);
  memset(tags, 0x55, sizeof tags);
  memset(mhs, 0x55, sizeof mhs);
  for (int i = 0; i < n; i++) {
    int b = order[i];
    CHECK((s[b] = pair_isend(&p, out + b * 300, (size_t)b * 256 + (size_t)n, 100 + b, mh_out)));
  }
  for (int i = 0; i < n; i++) CHECK_INT(pair_finish(s[tests[i]], RAIL_OK), tests[i] * 256 + n);
  int done = 0;
  for (int i = 0; i < 1000 && !done; i++) CHECK_OK(ib_test(r, &done, got));
  CHECK(done);
  for (int i = 0; i < n; i++) {
    CHECK_INT(got[i], i * 256 + n);
    CHECK(memcmp(in + i * 4096, out + i * 300, (size_t)got[i]) == 0);
  }
  CHECK_INT(atomic_load(&mh_in->memory.outstanding), 0);
  CHECK_INT(atomic_load(&mh_out->memory.outstanding), 0);
}

TEST(groups_in_every_order) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  open_simple(&(struct pair_shape){2, 4, 4, 30, 64, 64});
  for (int round = 0; round < 200; round++) { /* n shrinks as NCCL's does */
    int n = 8 - round % 8, order[8], tests[8];
    for (int i = 0; i < 8; i++) order[i] = tests[i] = i;
    kit_rng_shuffle(&rng, order, n);
    kit_rng_shuffle(&rng, tests, n);
    one_group(order, n, tests);
  }
  pair_close(&p);
}

/* 32 receives of 8 buffers, 256 sends: all may be outstanding, one more is "not now"; the newest is tested first. */
TEST(full_tables) {
  open_simple(&simple);
  static void *r[IB_MAX_RECVS], *s[IB_MAX_SENDS];
  emu_do("progress poll");
  for (int round = 0; round < 3; round++) {
    void *data[8], *mhs[8], *none = &p;
    size_t sizes[8];
    int tags[8], got[8];
    for (int k = 0; k <= IB_MAX_RECVS; k++) {
      for (int i = 0; i < 8; i++) {
        data[i] = in + (k * 8 + i) * 64, sizes[i] = 64, tags[i] = i, mhs[i] = mh_in;
      }
      CHECK_OK(ib_irecv(p.rc, 8, data, sizes, tags, mhs, NULL, k < IB_MAX_RECVS ? &r[k] : &none));
      CHECK(k == IB_MAX_RECVS || r[k]);
    }
    CHECK(!none);
    CHECK_OK(ib_progress(p.rc));
    for (int i = 0; i < IB_MAX_SENDS; i++) CHECK((s[i] = pair_isend(&p, out + i * 64, 64, i % 8, mh_out)));
    CHECK(!pair_isend(&p, out, 64, 0, mh_out));
    CHECK_INT(p.sc->stats[IB_COMM_OUTSTANDING], IB_MAX_SENDS);
    CHECK_INT(p.rc->stats[IB_COMM_OUTSTANDING], IB_MAX_RECVS);
    for (int i = IB_MAX_SENDS; i-- > 0;) CHECK_INT(pair_finish(s[i], RAIL_OK), 64);
    for (int k = IB_MAX_RECVS; k-- > 0;) {
      int done = 0;
      while (!done) CHECK_OK(ib_test(r[k], &done, got));
      for (int i = 0; i < 8; i++) CHECK_INT(got[i], 64);
    }
    CHECK(memcmp(in, out, IB_MAX_SENDS * 64) == 0);
  }
  pair_close(&p);
}

/* What was done stays done until it is tested, whatever is tested meanwhile. */
TEST(only_the_second_is_tested) {
  open_simple(&simple);
  emu_do("progress poll");
  void *r1 = pair_irecv(&p, in, 100, 1, mh_in), *r2 = pair_irecv(&p, in + 200, 100, 1, mh_in);
  (void)ib_progress(p.rc);
  void *s1 = pair_isend(&p, out, 100, 1, mh_out), *s2 = pair_isend(&p, out + 200, 100, 1, mh_out);
  CHECK(r1 && r2 && s1 && s2);
  CHECK_INT(pair_finish(s2, RAIL_OK), 100);
  CHECK_INT(pair_finish(r2, RAIL_OK), 100);
  emu_do("fail poll_cq from=1 times=ever"); /* no need to look any more */
  CHECK_INT(pair_finish(r1, RAIL_OK), 100);
  CHECK_INT(pair_finish(s1, RAIL_OK), 100);
  pair_close(&p);
}

/* Receives are over in any order; a slot that is still in use is "not now", and nothing else. */
TEST(slots_are_used_again) {
  open_simple(&simple);
  void *old = pair_irecv(&p, in, 100, 77, mh_in), *r;
  int posted = 0;
  CHECK(old);
  while ((r = pair_irecv(&p, in + 200, 100, 1, mh_in))) {
    CHECK(posted++ < 100);
    CHECK_INT(pair_finish(pair_isend(&p, out, 50, 1, mh_out), RAIL_OK), 50);
    CHECK_INT(pair_finish(r, RAIL_OK), 50);
  }
  CHECK_INT(posted, IB_MAX_RECVS - 1);
  CHECK_INT(pair_finish(pair_isend(&p, out, 20, 77, mh_out), RAIL_OK), 20);
  CHECK_INT(pair_finish(old, RAIL_OK), 20);
  CHECK(pair_irecv(&p, in + 200, 100, 1, mh_in));
  pair_close(&p);
}

/* The number of the receive goes around. */
TEST(numbers_wrap) {
  open_simple(&simple);
  uint32_t near = 0u - 40;
  ib_recv_comm_of(p.rc)->next_seq = near;
  ib_send_comm_of(p.sc)->match.oldest = ib_send_comm_of(p.sc)->match.next = near;
  for (size_t i = 0; i < 100; i++) send_and_check(i, i);
  CHECK_INT(ib_recv_comm_of(p.rc)->next_seq, 60);
  pair_close(&p);
}

/* CTS writes that no test polls for: irecv looks itself before it gives up. */
TEST(no_room_for_cts) {
  for (uint32_t depth = 1; depth < 6; depth++) {
    open_simple(&(struct pair_shape){1, 1, 1, 30, depth, 64});
    for (int i = 0; i < 20; i++) CHECK_MSG(pair_irecv(&p, in, 100, 1, mh_in), "no room for receive %d", i);
    pair_close(&p);
    open_simple(&(struct pair_shape){1, 1, 1, 30, depth, 64});
    for (size_t i = 0; i < 100; i++) send_and_check(i, i);
    emu_do("progress poll; stall op=write");
    uint32_t room = p.rc->qps[0].sq_avail, posted = 0;
    CHECK(room >= 1 && room <= depth);
    while (pair_irecv(&p, in, 100, 1, mh_in)) posted++;
    CHECK_INT(posted, room); /* and there it ends, without an error */
    pair_close(&p);
  }
}

/* ---- the profiler ------------------------------------------------------------------------- */

static int starts, stops;
static int profiler(void **e_handle, int type, void *p_handle, int64_t plugin_id, void *data) {
  struct descr { uint8_t type; struct { int device; uint64_t wr_id; int opcode, qp_num; size_t length; } qp; };
  if (type == 0) {
    const struct descr *event = data;
    if (!p_handle || plugin_id != (1 << 16 | 1) || event->type != 1 || event->qp.length != 100) abort();
    *e_handle = starts % 3 == 2 ? NULL : &starts; /* one that it does not want */
    starts++;
  } else if (type == 1) {
    if (*e_handle != &starts) abort();
    stops++;
  }
  return 0;
}

TEST(profiler_events) {
  open_simple(&simple);
  p.sc->profiler = p.rc->profiler = profiler;
  starts = stops = 0;
  send_and_check(10, 100); /* NULL handles: no event */
  CHECK_INT(starts, 0);
  for (int i = 0; i < 3; i++) {
    void *r, *s, *data = in, *mhs = mh_in, *handle = &p;
    CHECK_OK(ib_irecv(p.rc, 1, &data, &(size_t){100}, &(int){1}, &mhs, &handle, &r));
    CHECK_OK(ib_isend(p.sc, out, 100, 1, mh_out, &p, &s));
    pair_finish(s, RAIL_OK);
    pair_finish(r, RAIL_OK);
  }
  CHECK_INT(starts, 6);
  CHECK_INT(stops, 4);
  pair_close(&p);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(what_a_message_costs), TEST_CASE(the_immediate_apart), TEST_CASE(sizes), TEST_CASE(beyond_four_gigabytes),
    TEST_CASE(long_chains), TEST_CASE(keys_of_the_rail_at_the_other_end),
    TEST_CASE(one_look_at_all_rails), TEST_CASE(groups_in_every_order), TEST_CASE(full_tables),
    TEST_CASE(only_the_second_is_tested), TEST_CASE(slots_are_used_again), TEST_CASE(numbers_wrap),
    TEST_CASE(no_room_for_cts), TEST_CASE(profiler_events)};
  ib_emu_use("device emu0 ports=3");
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
