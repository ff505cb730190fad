/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Proves: kernels give right results over connections in plain memory, all ranks polled in turn by one thread:
 * both protocols, tiny slots, shared-memory and proxied connections, with and without direct buffers, step
 * counters and LL flags that wrap, stale lines; and that calls which differ are found, not waited for. With one thread
 * there is nothing for the thread sanitizer: unit/test_device_block has host kernels on threads, and e2e/ has all.
 */
#include "core/host/rt_program.h"

#include "core/host/rt_prims.h"
#include "core/host/rt_types.h"
#include "test/device/link.h"
#include "test/harness/tap.h"

#define MAX_RANKS 5
#define SLOT 256u /* bytes of a slot, both protocols */
#define POLLS 2000000

static void link_open(struct link *l, bool proxied, uint64_t step) {
  link_init(l, aligned_alloc(128, link_bytes(SLOT, proxied)), SLOT, proxied, step);
}

static void link_close(struct link *l) { free(l->at_send.buff[0]); }

static void move(struct link *l, enum rt_proto proto) {
  link_move(l, proto);
  CHECK_MSG(!l->broken, "%s", l->broken);
}

/* ---- collectives of a ring ---- */

struct ring {
  int n;
  struct link link[MAX_RANKS]; /* from r to r + 1 */
};

struct shape {
  enum rt_coll coll;
  enum rt_proto proto;
  int n, root;
  uint64_t count;
  bool proxied, direct, in_place;
  uint64_t step;
};

static void ring_init(struct ring *ring, const struct shape *s) {
  ring->n = s->n;
  for (int r = 0; r < s->n; r++) link_open(&ring->link[r], s->proxied, s->step);
}

static void ring_free(struct ring *ring) {
  for (int r = 0; r < ring->n; r++) link_close(&ring->link[r]);
}

static int32_t value(int rank, uint64_t i) { return (int32_t)(i * 7 + (uint64_t)rank * 1000003 + 1); }

/* The independent reference. */
static int32_t expected(const struct shape *s, int rank, uint64_t i) {
  if (s->coll == RT_BROADCAST) return value(s->root, i);
  if (s->coll == RT_ALLGATHER) return value((int)(i / s->count), i % s->count);
  uint64_t at = s->coll == RT_REDUCE_SCATTER ? (uint64_t)rank * s->count + i : i;
  uint32_t sum = 0;
  for (int r = 0; r < s->n; r++) sum += (uint32_t)value(r, at);
  return (int32_t)sum;
}

static void make_kernel(struct rt_program *k, struct ring *ring, const struct shape *s, int r, char *send, char *recv,
                        uint64_t nsend, uint64_t nrecv) {
  memset(k, 0, sizeof *k);
  bool reduces = s->coll == RT_ALLREDUCE || s->coll == RT_REDUCE_SCATTER || s->coll == RT_REDUCE;
  int prev = (r + s->n - 1) % s->n, next = (r + 1) % s->n;
  k->proto = s->proto;
  k->fns = reduces ? rt_reduce_lookup(RT_INT32, RT_SUM) : NULL;
  k->sched = (struct rt_sched){.coll = s->coll,
                               .rank = r,
                               .nranks = s->n,
                               .root = s->root,
                               .esize = 4,
                               .send = send,
                               .recv = recv,
                               .count = s->count,
                               .len = s->count,
                               .chunk = rt_proto_payload(s->proto, SLOT) / 4};
  bool has_recv = true, has_send = true;
  if (s->coll == RT_BROADCAST) {
    has_recv = r != s->root;
    has_send = next != s->root;
  }
  if (s->coll == RT_REDUCE) {
    has_send = r != s->root;
    has_recv = prev != s->root;
  }
  if (s->n > 1 && has_recv) k->recv[0] = &ring->link[prev].recv;
  if (s->n > 1 && has_send) k->send[0] = &ring->link[r].send;
  if (s->direct) {
    k->send_direct[0] = (struct rt_direct){send, nsend * 4, send};
    if (recv && s->coll != RT_REDUCE_SCATTER) k->send_direct[1] = (struct rt_direct){recv, nrecv * 4, recv};
    if (recv) k->recv_direct = (struct rt_direct){recv, nrecv * 4, recv};
  }
  rt_program_init(k);
}

static void poll_all(struct ring *ring, struct rt_program *k, int n, enum rt_proto proto) {
  bool done[MAX_RANKS] = {0};
  for (int left = n, polls = 0; left > 0; polls++) {
    CHECK_MSG(polls < POLLS, "no end: rank 0 is at action %llu of %llu", (unsigned long long)k[0].i,
              (unsigned long long)k[0].n);
    for (int r = 0; r < n; r++) {
      if (done[r]) continue;
      enum rt_program_state state = rt_program_poll(&k[r]);
      CHECK_MSG(state != RT_PROGRAM_MISMATCH, "rank %d: mismatch, %llu for %llu", r, (unsigned long long)k[r].got,
                (unsigned long long)k[r].expected);
      if (state == RT_PROGRAM_DONE) done[r] = true, left--;
    }
    for (int r = 0; r < ring->n; r++) move(&ring->link[r], proto);
  }
}

static void run_on(struct ring *ring, const struct shape *s) {
  struct rt_program k[MAX_RANKS];
  int32_t *send[MAX_RANKS], *recv[MAX_RANKS], *memory[MAX_RANKS];
  uint64_t n = (uint64_t)s->n, nsend = s->coll == RT_REDUCE_SCATTER ? n * s->count : s->count;
  uint64_t nrecv = s->coll == RT_ALLGATHER ? n * s->count : s->count;
  for (int r = 0; r < s->n; r++) {
    memory[r] = calloc(nsend + nrecv + 1, 4);
    send[r] = memory[r];
    recv[r] = send[r] + nsend;
    if (s->in_place) {
      recv[r] = s->coll == RT_REDUCE_SCATTER ? send[r] + (uint64_t)r * s->count : send[r];
      if (s->coll == RT_ALLGATHER) send[r] += (uint64_t)r * s->count;
    }
    if (s->coll == RT_REDUCE && r != s->root) recv[r] = NULL;
    for (uint64_t i = 0; i < nsend; i++) send[r][i] = value(r, i);
    make_kernel(&k[r], ring, s, r, (char *)send[r], (char *)recv[r], nsend, nrecv);
  }
  poll_all(ring, k, s->n, s->proto);
  for (int r = 0; r < s->n; r++) {
    for (uint64_t i = 0; recv[r] && i < nrecv; i++)
      CHECK_MSG(recv[r][i] == expected(s, r, i),
                "coll %d proto %d ranks %d count %llu%s%s%s: rank %d element %llu: %d, expected %d", (int)s->coll,
                (int)s->proto, s->n, (unsigned long long)s->count, s->proxied ? " proxied" : "",
                s->direct ? " direct" : "", s->in_place ? " in place" : "", r, (unsigned long long)i, recv[r][i],
                expected(s, r, i));
    free(memory[r]);
  }
}

static void run_shape(const struct shape *s) {
  struct ring ring;
  ring_init(&ring, s);
  for (int again = 0; again < 3; again++) run_on(&ring, s); /* counters go on from call to call */
  ring_free(&ring);
}

static void run_all(enum rt_proto proto, uint64_t step) {
  const uint64_t counts[] = {1, 2, 5, 31, 32, 33, 64, 100, 1000, 5003};
  for (int coll = RT_ALLREDUCE; coll <= RT_REDUCE; coll++)
    for (int n = 1; n <= MAX_RANKS; n++)
      for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (int how = 0; how < 8; how++) {
          struct shape s = {.coll = (enum rt_coll)coll,
                            .proto = proto,
                            .n = n,
                            .root = how % n,
                            .count = counts[c],
                            .proxied = how & 1,
                            .direct = how & 1 && how & 2,
                            .in_place = how & 4,
                            .step = step};
          run_shape(&s);
        }
}

TEST(simple) { run_all(RT_SIMPLE, 0); }
TEST(ll) { run_all(RT_LL, 0); }
/* The rounds in which slots are written to their ends, and where the 32-bit flags start again. */
TEST(ll_near_the_cleaning) { run_all(RT_LL, RT_LL_CLEAN_MASK - 20); }
TEST(ll_near_2_to_the_32) { run_all(RT_LL, (1ull << 32) - 20); }
TEST(simple_near_2_to_the_32) { run_all(RT_SIMPLE, (1ull << 32) - 20); }
TEST(ll_near_2_to_the_33) { run_all(RT_LL, (1ull << 33) - 20); }

/* ---- point to point ---- */

static void pair_kernels(struct rt_program *s, struct rt_program *r, struct link *l, enum rt_proto sp, enum rt_proto rp,
                         char *send, uint64_t nsend, char *recv, uint64_t nrecv) {
  memset(s, 0, sizeof *s);
  memset(r, 0, sizeof *r);
  s->proto = sp;
  r->proto = rp;
  s->sched = (struct rt_sched){.coll = RT_SEND,
                               .nranks = 2,
                               .rank = 0,
                               .root = 1,
                               .esize = 1,
                               .send = send,
                               .count = nsend,
                               .len = nsend,
                               .chunk = rt_proto_payload(sp, SLOT)};
  r->sched = (struct rt_sched){.coll = RT_RECV,
                               .nranks = 2,
                               .rank = 1,
                               .root = 0,
                               .esize = 1,
                               .recv = recv,
                               .count = nrecv,
                               .len = nrecv,
                               .chunk = rt_proto_payload(rp, SLOT)};
  s->send[0] = &l->send;
  r->recv[0] = &l->recv;
  rt_program_init(s);
  rt_program_init(r);
}

/* A line that short messages never reached keeps its flag; once 2^32 steps have passed that flag is right again, unless
 * it was cleaned away. The receiver looks when the sender has written the first line only. */
TEST(ll_lines_of_2_to_the_32_steps_ago) {
  struct link l;
  uint64_t start = (1ull << 32) - 24;
  link_open(&l, false, start);
  link_poison(&l.at_send, SLOT, start, 5); /* right in the fifth round from now, two rounds after 2^32 */
  for (int i = 0; i < 60; i++) {
    uint64_t bytes = i < 36 ? 8 : 120; /* one line; fifteen lines from step 2^32 + 12 on */
    char out[120], in[120] = {0};
    memset(out, 'a' + i % 26, sizeof out);
    struct rt_program s, r;
    pair_kernels(&s, &r, &l, RT_LL, RT_LL, out, bytes, in, bytes);
    CHECK_INT(rt_program_poll(&r), RT_PROGRAM_WAIT);
    if (bytes > 8) {
      rt_ll_pack(rt_conn_slot_buff(&l.send, RT_LL, l.send.step), out, 8, 1, rt_ll_flag(l.send.step));
      CHECK_MSG(rt_program_poll(&r) == RT_PROGRAM_WAIT, "message %d arrived before it was sent", i);
    }
    CHECK_INT(rt_program_poll(&s), RT_PROGRAM_DONE);
    CHECK_INT(rt_program_poll(&r), RT_PROGRAM_DONE);
    CHECK_MSG(memcmp(in, out, bytes) == 0, "message %d", i);
  }
  link_close(&l);
}

/* The receiver's last state when the two disagree. */
static enum rt_program_state disagree(bool proxied, enum rt_proto sp, enum rt_proto rp, uint64_t nsend,
                                      uint64_t nrecv) {
  static char out[2 * SLOT], in[2 * SLOT];
  struct link l;
  link_open(&l, proxied, 0);
  struct rt_program s, r;
  pair_kernels(&s, &r, &l, sp, rp, out, nsend, in, nrecv);
  enum rt_program_state state = RT_PROGRAM_WAIT;
  for (int i = 0; i < 1000 && state != RT_PROGRAM_DONE && state != RT_PROGRAM_MISMATCH; i++) {
    state = rt_program_poll(&r);
    rt_program_poll(&s);
    move(&l, sp);
  }
  link_close(&l);
  return state;
}

TEST(sizes_that_differ_are_found) {
  for (int proxied = 0; proxied < 2; proxied++)
    for (int proto = 0; proto < RT_NPROTO; proto++) {
      enum rt_proto p = (enum rt_proto)proto;
      CHECK_INT(disagree(proxied, p, p, 100, 100), RT_PROGRAM_DONE);
      CHECK_INT(disagree(proxied, p, p, 100, 40), RT_PROGRAM_MISMATCH);
      CHECK_INT(disagree(proxied, p, p, 40, 100), RT_PROGRAM_MISMATCH);
      CHECK_INT(disagree(proxied, p, p, 0, 100), RT_PROGRAM_MISMATCH);
      CHECK_INT(disagree(proxied, p, p, 100, 0), RT_PROGRAM_MISMATCH);
    }
}

TEST(protocols_that_differ_are_found) {
  CHECK_INT(disagree(false, RT_LL, RT_SIMPLE, 100, 100), RT_PROGRAM_MISMATCH);
  CHECK_INT(disagree(false, RT_SIMPLE, RT_LL, 100, 100), RT_PROGRAM_MISMATCH);
  CHECK_INT(disagree(false, RT_LL, RT_SIMPLE, 64, 128),
            RT_PROGRAM_MISMATCH); /* the bytes on the FIFO happen to be equal */
  CHECK_INT(disagree(false, RT_SIMPLE, RT_LL, 128, 64), RT_PROGRAM_MISMATCH);
  CHECK_INT(disagree(false, RT_LL, RT_SIMPLE, SLOT, SLOT), RT_PROGRAM_MISMATCH); /* and the calls are, too */
  CHECK_INT(disagree(false, RT_SIMPLE, RT_LL, SLOT, SLOT), RT_PROGRAM_MISMATCH);
}

TEST(mismatch_says_both_sizes) {
  static char out[SLOT], in[SLOT];
  struct link l;
  link_open(&l, false, 0);
  struct rt_program s, r;
  pair_kernels(&s, &r, &l, RT_SIMPLE, RT_SIMPLE, out, 100, in, 60);
  rt_program_poll(&s);
  CHECK_INT(rt_program_poll(&r), RT_PROGRAM_MISMATCH);
  CHECK_INT(r.got, 100);
  CHECK_INT(r.expected, 60);
  link_close(&l);
}

/* ---- order on one connection ---- */

TEST(operations_take_turns) {
  struct link l;
  link_open(&l, false, 0);
  enum { N = 4, BYTES = 20 * SLOT };
  static char out[N][BYTES], in[N][BYTES];
  struct rt_program s[N], r[N];
  for (int i = 0; i < N; i++) {
    memset(out[i], 'a' + i, BYTES);
    memset(in[i], 0, BYTES);
    pair_kernels(&s[i], &r[i], &l, i % 2 ? RT_LL : RT_SIMPLE, i % 2 ? RT_LL : RT_SIMPLE, out[i], BYTES, in[i], BYTES);
  }
  bool done[2 * N] = {0};
  for (int left = 2 * N, polls = 0; left > 0; polls++) {
    CHECK(polls < POLLS);
    for (int i = 2 * N - 1; i >= 0; i--) { /* the later ones are asked first */
      if (done[i]) continue;
      if (rt_program_poll(i % 2 ? &s[i / 2] : &r[i / 2]) != RT_PROGRAM_DONE) continue;
      for (int before = i - 2; before >= 0; before -= 2) CHECK(done[before]);
      done[i] = true;
      left--;
    }
  }
  for (int i = 0; i < N; i++) CHECK_MSG(memcmp(in[i], out[i], BYTES) == 0, "message %d is wrong", i);
  link_close(&l);
}

/* A kernel that sends from user memory is not done before the proxy is. */
TEST(direct_sends_are_drained) {
  struct link l;
  link_open(&l, true, 0);
  static char out[100], in[100];
  struct rt_program s, r;
  pair_kernels(&s, &r, &l, RT_SIMPLE, RT_SIMPLE, out, 100, in, 100);
  s.send_direct[0] = (struct rt_direct){out, sizeof out, out};
  for (int i = 0; i < 10; i++) CHECK(rt_program_poll(&s) != RT_PROGRAM_DONE);
  CHECK(l.at_send.slot[0].ptr == out);
  rt_program_poll(&r); /* grants */
  move(&l, RT_SIMPLE);
  CHECK_INT(rt_program_poll(&s), RT_PROGRAM_DONE);
  CHECK_INT(rt_program_poll(&r), RT_PROGRAM_DONE);
  link_close(&l);
}

/* Of a buffer that is registered in part, only what lies in that part goes without a copy. */
TEST(steps_across_the_end_of_a_registered_range_are_copied) {
  enum { BYTES = 4 * SLOT, PART = 2 * SLOT + SLOT / 2 };
  static char out[BYTES], in[BYTES];
  struct link l;
  link_open(&l, true, 0);
  struct rt_program s, r;
  for (int i = 0; i < BYTES; i++) out[i] = (char)(i * 7);
  pair_kernels(&s, &r, &l, RT_SIMPLE, RT_SIMPLE, out, BYTES, in, BYTES);
  s.send_direct[0] = (struct rt_direct){out, PART, out};
  r.recv_direct = (struct rt_direct){in, PART, in};
  for (int i = 0; i < 4; i++) {
    rt_program_poll(&s);
    rt_program_poll(&r);
  }
  for (int i = 0; i < 4; i++) {
    CHECK_MSG(l.at_send.slot[i].ptr == (i < 2 ? out + i * (int)SLOT : NULL), "step %d is sent from elsewhere", i);
    CHECK_MSG(l.at_recv.slot[i].ptr == (i < 2 ? in + i * (int)SLOT : NULL), "step %d is received elsewhere", i);
  }
  enum rt_program_state sent = RT_PROGRAM_WAIT, received = RT_PROGRAM_WAIT;
  for (int i = 0; i < 100 && (sent != RT_PROGRAM_DONE || received != RT_PROGRAM_DONE); i++) {
    move(&l, RT_SIMPLE);
    sent = rt_program_poll(&s);
    received = rt_program_poll(&r);
  }
  CHECK_INT(received, RT_PROGRAM_DONE);
  CHECK(memcmp(in, out, BYTES) == 0);
  link_close(&l);
}

/* Where rank 0 of two receives the first and the second step of a call on registered memory; NULL: into the slot. */
static void landing(enum rt_coll coll, uint64_t bytes, enum rt_redop op, char *send, char *recv, char *at[2]) {
  const struct shape s = {.coll = coll, .proto = RT_SIMPLE, .n = 2, .count = bytes / 4, .proxied = true,
                          .direct = true, .in_place = send == recv};
  struct ring ring;
  struct rt_program k;
  ring_init(&ring, &s);
  make_kernel(&k, &ring, &s, 0, send, recv, s.count * (coll == RT_REDUCE_SCATTER ? 2 : 1), s.count);
  k.fns = rt_reduce_lookup(RT_INT32, op);
  (void)rt_program_poll(&k);
  for (int i = 0; i < 2; i++) at[i] = ring.link[1].at_recv.slot[i].ptr;
  ring_free(&ring);
}

/* What is reduced into the output comes there without a slot, unless something is there that is needed before. */
TEST(reduced_steps_land_in_the_output) {
  static char in[4 * SLOT], out[2 * SLOT];
  char *at[2];
  landing(RT_ALLREDUCE, 2 * SLOT, RT_SUM, in, out, at);
  CHECK(at[0] == out && at[1] == out + SLOT);
  landing(RT_EXCHANGE, 2 * SLOT, RT_SUM, in, out, at);
  CHECK(at[0] == out && at[1] == out + SLOT);
  landing(RT_REDUCE_SCATTER, 2 * SLOT, RT_SUM, in, out, at);
  CHECK(at[0] == out && at[1] == out + SLOT);
  landing(RT_REDUCE, 2 * SLOT, RT_SUM, in, out, at);
  CHECK(at[0] == out && at[1] == out + SLOT);
  /* In place; and with a pre-operation, whose result goes to the output. Only the all-gather's step is not reduced. */
  landing(RT_ALLREDUCE, 2 * SLOT, RT_SUM, out, out, at);
  CHECK(at[0] == NULL && at[1] == out + SLOT);
  landing(RT_ALLREDUCE, 2 * SLOT, RT_PREMULSUM, in, out, at);
  CHECK(at[0] == NULL && at[1] == out + SLOT);
  /* No byte of these buffers is touched before a step comes. */
  landing(RT_EXCHANGE, 8 << 20, RT_SUM, in, out, at);
  CHECK(at[0] == out && at[1] == out + SLOT);
  landing(RT_EXCHANGE, (8 << 20) + 4, RT_SUM, in, out, at);
  CHECK(at[0] == NULL && at[1] == NULL);
}

/* The counts told to the proxies are the steps that are made. */
TEST(step_counts_are_true) {
  for (int coll = RT_ALLREDUCE; coll <= RT_REDUCE; coll++)
    for (uint64_t count = 1; count < 2000; count = count * 3 + 1) {
      struct shape s = {.coll = (enum rt_coll)coll, .proto = RT_SIMPLE, .n = 4, .root = 2, .count = count};
      struct ring ring;
      ring_init(&ring, &s);
      uint64_t sent[4][RT_LINKS], received[4][RT_LINKS];
      for (int r = 0; r < 4; r++) {
        struct rt_program k;
        make_kernel(&k, &ring, &s, r, NULL, (coll != RT_REDUCE || r == 2) ? (char *)64 : NULL, 0, 0);
        rt_program_count_steps(&k, sent[r], received[r]);
      }
      ring_free(&ring);
      ring_init(&ring, &s);
      run_on(&ring, &s);
      for (int r = 0; r < 4; r++) {
        CHECK_INT(ring.link[r].send.step, sent[r][0]);
        CHECK_INT(ring.link[r].recv.step, received[(r + 1) % 4][0]);
      }
      ring_free(&ring);
    }
}

/* Every element is combined, packed and unpacked once, and nothing behind the last one is written. */
TEST(primitives_of_every_length) {
  enum { MOST = 200 };
  struct rt_program k = {.sched = {.esize = 4}, .fns = rt_reduce_lookup(RT_INT32, RT_SUM)};
  for (uint64_t n = 0; n <= MOST; n += n < 20 ? 1 : 37) {
    int32_t in[MOST], local[MOST], out[MOST + 1] = {0}, out2[MOST + 1] = {0};
    _Alignas(64) char lines[(MOST + 1) / 2 * RT_LL_LINE], back[4 * MOST];
    for (uint64_t i = 0; i < n; i++) in[i] = (int32_t)(7 * i), local[i] = (int32_t)(1000 + i);
    rt_prim_combine(&k, (char *)out, (char *)out2, (char *)in, (char *)local, RT_PRIM_PRE | RT_PRIM_POST, n);
    for (uint64_t i = 0; i < n; i++) CHECK_INT(out[i], 1000 + 8 * i);
    CHECK(memcmp(out, out2, sizeof out) == 0 && out[n] == 0);
    uint64_t nlines = (n + 1) / 2;
    memset(lines, 0, sizeof lines);
    rt_ll_pack(lines, (char *)out, 4 * n, nlines, 5);
    CHECK_INT(rt_ll_arrived(lines, 0, nlines, 5), nlines);
    rt_ll_unpack(back, lines, 4 * n);
    CHECK(memcmp(back, out, 4 * n) == 0);
  }
}

TEST_MAIN(TEST_CASE(primitives_of_every_length), TEST_CASE(simple), TEST_CASE(ll), TEST_CASE(ll_near_the_cleaning),
          TEST_CASE(ll_near_2_to_the_32), TEST_CASE(simple_near_2_to_the_32), TEST_CASE(ll_near_2_to_the_33),
          TEST_CASE(ll_lines_of_2_to_the_32_steps_ago), TEST_CASE(sizes_that_differ_are_found),
          TEST_CASE(protocols_that_differ_are_found), TEST_CASE(mismatch_says_both_sizes),
          TEST_CASE(operations_take_turns), TEST_CASE(direct_sends_are_drained),
          TEST_CASE(reduced_steps_land_in_the_output),
          TEST_CASE(steps_across_the_end_of_a_registered_range_are_copied), TEST_CASE(step_counts_are_true))
