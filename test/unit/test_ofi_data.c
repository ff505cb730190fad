/* SPDX-License-Identifier: Apache-2.0
 *
 * The data path of the ofi plugin, both sides, over a scripted libfabric: every size class, groups, tags and tests in
 * any order, full tables, over providers that lack each of the capabilities in turn. Random traffic is in
 * test_ofi_data_random.c, what fails in test_ofi_close.c.
 */
#include "test/unit/ofi_rig.h"

#define MOST (128 << 10)

static struct rig r;
static uint8_t out[MOST], in[MOST + 64];

static void fill_out(void) {
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 31 + (i >> 8));
}

static void open_pair_inline(const char *offers, int nics_s, int nics_r, int64_t inline_bytes) {
  rig_start(offers);
  ofi_params.inline_bytes = inline_bytes;
  ofi_params.min_part = 4096;
  rig_open_pair(&r, nics_s, nics_r, out, sizeof out, in, sizeof in);
  fill_out();
}

static void open_pair(const char *offers, int nics_s, int nics_r) { open_pair_inline(offers, nics_s, nics_r, 2048); }

static void check_untouched(size_t from, size_t to) {
  for (size_t i = from; i < to; i++) CHECK_MSG(in[i] == 0xee, "byte %zu was written", i);
}

/* One message through a buffer of that size, and nothing beside it. */
static void send_and_check(size_t size, size_t capacity) {
  memset(in, 0xee, capacity + 64);
  void *recv = rig_recv(&r, in + 16, capacity, 1, capacity ? r.mh_in : NULL);
  void *send = rig_send(&r, out + 3, size, 1, size ? r.mh_out : NULL);
  CHECK_INT(rig_finish(&r, send, recv), size);
  CHECK(memcmp(in + 16, out + 3, size) == 0);
  check_untouched(16 + size, capacity + 64);
  check_untouched(0, 16);
}

static void all_sizes(void) {
  static const size_t sizes[] = {0, 1, 8, 63, 64, 65, 2047, 2048, 2049, 4096, 4097, 8192, 40001, MOST - 4096};
  for (size_t i = 0; i < RAIL_COUNT_OF(sizes); i++) {
    send_and_check(sizes[i], sizes[i]);
    if (sizes[i] + 3000 < MOST) send_and_check(sizes[i], sizes[i] + 3000);
  }
}

/* ---- what a provider offers ---------------------------------------------------------------- */

/* Each capability is missing in turn, or demanded. */
static const struct offer {
  const char *what, *script;
  enum ofi_protocol protocol;
} offers[] = {
  {"all", "nic=fake0", OFI_PROTOCOL_RMA},
  {"no rma", "nic=fake0 no=rma", OFI_PROTOCOL_TAGGED},
  {"no tagged", "nic=fake0 no=tagged", OFI_PROTOCOL_RMA},
  {"no send after write", "nic=fake0 no=saw early=0", OFI_PROTOCOL_RMA},
  {"no delivery complete", "nic=fake0 no=delivery", OFI_PROTOCOL_RMA},
  {"neither", "nic=fake0 no=saw,delivery", OFI_PROTOCOL_TAGGED},
  {"no orders", "nic=fake0 no=sas,saw,was,waw,raw,war,rar,sar,ras", OFI_PROTOCOL_RMA},
  {"no remote CQ data", "nic=fake0 cq_data=0", OFI_PROTOCOL_RMA},
  {"no inject", "nic=fake0 inject=0", OFI_PROTOCOL_RMA},
  {"local registrations", "nic=fake0 mr_mode=local,virt_addr,allocated,prov_key", OFI_PROTOCOL_RMA},
  {"local registrations, tagged", "nic=fake0 no=rma mr_mode=local", OFI_PROTOCOL_TAGGED},
  {"no mr mode", "nic=fake0 mr_mode=none", OFI_PROTOCOL_RMA},
  {"offsets", "nic=fake0 mr_mode=prov_key", OFI_PROTOCOL_RMA},
  {"keys of ours", "nic=fake0 mr_mode=virt_addr", OFI_PROTOCOL_RMA},
  {"registrations bound to endpoints", "nic=fake0 mr_mode=local,virt_addr,prov_key,endpoint", OFI_PROTOCOL_RMA},
  {"one iov", "nic=fake0 iov=1", OFI_PROTOCOL_RMA},
  {"one iov, tagged", "nic=fake0 iov=1 no=rma", OFI_PROTOCOL_TAGGED},
  {"short queues", "nic=fake0 tx_size=4 rx_size=4", OFI_PROTOCOL_RMA},
  {"short queues, tagged", "nic=fake0 no=rma tx_size=4 rx_size=16", OFI_PROTOCOL_TAGGED},
  {"contexts", "nic=fake0 mode=context", OFI_PROTOCOL_RMA},
  {"large contexts", "nic=fake0 mode=context2", OFI_PROTOCOL_RMA},
  {"tables of addresses", "nic=fake0 av=table addr=str", OFI_PROTOCOL_RMA},
  {"raw addresses", "nic=fake0 av=map addr=raw", OFI_PROTOCOL_RMA},
};

static const char *const behaviours[] = {
  "",
  "eagain=50",
  "late=20 reorder=50",
  "overtake=60 burst=1",
  "torn=4096 overtake=30",
  "eager=0 late=3",
  "move=sender",
  "move=receiver eagain=20 late=5",
};

TEST(sizes_over_every_provider) {
  for (size_t i = 0; i < RAIL_COUNT_OF(offers); i++)
    for (size_t k = 0; k < RAIL_COUNT_OF(behaviours); k++) {
      open_pair(offers[i].script, 1, 1);
      CHECK_INT(rig_comm(r.rc)->device->rails[0]->protocol, offers[i].protocol);
      fake_script(behaviours[k]);
      all_sizes();
      rig_close_idle_pair(&r);
    }
}

/* Around the limit of what travels inside a control message, whatever it is set to. */
TEST(sizes_around_the_inline_limit) {
  static const int64_t limits[] = {0, 1, 100, OFI_MAX_INLINE};
  for (size_t i = 0; i < RAIL_COUNT_OF(limits); i++)
    for (int tagged = 0; tagged < 2; tagged++) {
      open_pair_inline(tagged ? "nic=fake0 no=rma" : "nic=fake0", 1, 1, limits[i]);
      CHECK_INT(rig_comm(r.sc)->max_inline, limits[i]);
      for (size_t size = limits[i] ? (size_t)limits[i] - 1 : 0; size <= (size_t)limits[i] + 1; size++) {
        uint64_t before = rail_stats_get(&rig_comm(r.sc)->stats[OFI_COMM_INLINE]);
        send_and_check(size, size);
        send_and_check(size, size + 40000);
        uint64_t inside = rail_stats_get(&rig_comm(r.sc)->stats[OFI_COMM_INLINE]) - before;
        /* One that the sender knows to be a large tagged buffer takes no control message. */
        if (tagged && size <= (size_t)limits[i]) CHECK(inside >= 1 && inside <= 2);
        else CHECK_INT(inside, size > (size_t)limits[i] ? 0 : 2);
      }
      rig_close_idle_pair(&r);
    }
}

/* A small message costs one control message, a large one two; and a report each at most, where the watch thread finds
 * time to poll between two of them. */
TEST(what_a_message_costs) {
  open_pair("nic=fake0", 1, 1);
  long sends = fake_calls("send"), writes = fake_calls("write"), tsends = fake_calls("tsend");
  for (int i = 0; i < 100; i++) send_and_check(100, 100);
  CHECK(fake_calls("send") - sends >= 100 && fake_calls("send") - sends <= 200);
  CHECK_INT(fake_calls("write"), writes);
  sends = fake_calls("send");
  for (int i = 0; i < 100; i++) send_and_check(50000, 50000);
  CHECK(fake_calls("send") - sends <= 300);
  CHECK_INT(fake_calls("write") - writes, 100);
  CHECK_INT(fake_calls("tsend"), tsends);
  rig_close_idle_pair(&r);
}

/* ---- several NICs ---------------------------------------------------------------------------- */

static const int shapes[][2] = {{2, 2}, {3, 3}, {4, 4}, {1, 2}, {2, 1}, {1, 4}, {4, 1}, {2, 3}, {3, 2}, {4, 3}};
static const char four_rma[] = "net=one nic=fake0 nic=fake1 nic=fake2 nic=fake3",
                  four_ordered[] = "net=one no=saw nic=fake0 nic=fake1 nic=fake2 nic=fake3",
                  four_tagged[] = "net=one no=rma nic=fake0 nic=fake1 nic=fake2 nic=fake3";

TEST(fused_nics) {
  static const char *const kinds[] = {four_rma, four_ordered, four_tagged};
  for (size_t i = 0; i < RAIL_COUNT_OF(shapes); i++)
    for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
      for (size_t b = 0; b < RAIL_COUNT_OF(behaviours); b += 2) {
        open_pair(kinds[k], shapes[i][0], shapes[i][1]);
        CHECK_INT(rig_comm(r.sc)->npaths, RAIL_MAX(shapes[i][0], shapes[i][1]));
        fake_script(behaviours[b]);
        all_sizes();
        rig_close_idle_pair(&r);
      }
}

/* A large message goes in parts over all paths; while one NIC of the sender takes nothing, the others take the rest. */
TEST(one_slow_nic) {
  open_pair(four_rma, 4, 4);
  long writes = fake_calls("write");
  send_and_check(MOST - 4096, MOST - 4096);
  CHECK_INT(fake_calls("write") - writes, 4);
  struct ofi_endpoint *endpoint = rig_comm(r.sc)->endpoint;
  ofi_endpoint_lock(endpoint);
  endpoint->nics[2].bytes_outstanding += 1 << 30; /* as if it had much to do */
  ofi_endpoint_unlock(endpoint);
  writes = fake_calls("write");
  uint64_t before = RIG_LOCKED(r.sc, endpoint->nics[2].bytes_outstanding);
  void *recv = rig_recv(&r, in, MOST - 4096, 1, r.mh_in), *send = rig_send(&r, out, MOST - 4096, 1, r.mh_out);
  CHECK_INT(RIG_LOCKED(r.sc, endpoint->nics[2].bytes_outstanding), before);
  CHECK_INT(rig_finish(&r, send, recv), MOST - 4096);
  CHECK_INT(fake_calls("write") - writes, 4);
  CHECK(memcmp(in, out, MOST - 4096) == 0);
  ofi_endpoint_lock(endpoint);
  endpoint->nics[2].bytes_outstanding -= 1 << 30;
  ofi_endpoint_unlock(endpoint);
  for (unsigned int i = 0; i < 4; i++) CHECK_INT(RIG_LOCKED(r.sc, endpoint->nics[i].bytes_outstanding), 0);
  rig_close_idle_pair(&r);
}

/* ---- groups, and order --------------------------------------------------------------------------- */

#define STRIDE 8192

/* A group's sends in a given order; everything is tested in another. */
static void one_group(const int *order, int n, const int *tests) {
  void *data[8], *mhs[8], *sends[8];
  size_t sizes[8];
  int tags[8], got[8] = {0};
  for (int i = 0; i < n; i++) {
    data[i] = in + i * STRIDE;
    sizes[i] = i % 2 ? 1500 : STRIDE;
    tags[i] = 100 + i;
    mhs[i] = r.mh_in;
  }
  void *recv = rig_recv_group(&r, n, data, sizes, tags, mhs);
  memset(data, 0x55, sizeof data); /* the caller may reuse its arrays after the call */
  memset(sizes, 0x55, sizeof sizes);
  memset(tags, 0x55, sizeof tags);
  memset(mhs, 0x55, sizeof mhs);
  for (int i = 0; i < n; i++) {
    int b = order[i];
    sends[b] = rig_send(&r, out + b * 300, (size_t)(b % 2 ? b * 100 : b * 1000 + n), 100 + b, r.mh_out);
  }
  for (int i = 0; i < n; i++) {
    int size, b = tests[i];
    RIG_UNTIL(rig_done(sends[b], &size), rig_poll(r.rc));
    CHECK_INT(size, b % 2 ? b * 100 : b * 1000 + n);
  }
  RIG_UNTIL(rig_done(recv, got), rig_poll(r.sc));
  for (int i = 0; i < n; i++) {
    CHECK_INT(got[i], i % 2 ? i * 100 : i * 1000 + n);
    CHECK(memcmp(in + i * STRIDE, out + i * 300, (size_t)got[i]) == 0);
  }
}

TEST(groups_in_every_order) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  static const char *const kinds[] = {"nic=fake0", "nic=fake0 no=rma", "nic=fake0 no=saw"};
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++) {
    open_pair(kinds[k], 1, 1);
    fake_script("overtake=50 reorder=50 late=3 eagain=10");
    for (int round = 0; round < 100; round++) {
      int n = 8 - round % 8, order[8], tests[8];
      for (int i = 0; i < 8; i++) order[i] = tests[i] = i;
      kit_rng_shuffle(&rng, order, n);
      kit_rng_shuffle(&rng, tests, n);
      one_group(order, n, tests);
    }
    rig_close_idle_pair(&r);
  }
}

/* Equal tags are taken in the order of the receives, also when their grants overtake each other. */
TEST(equal_tags_in_order) {
  enum { N = 32 };
  void *recvs[N], *sends[N];
  for (int tagged = 0; tagged < 2; tagged++) {
    open_pair(tagged ? "nic=fake0 no=rma,sas" : "nic=fake0 no=sas", 1, 1);
    fake_script("overtake=80");
    for (int round = 0; round < 20; round++) {
      for (int i = 0; i < N; i++) recvs[i] = rig_recv(&r, in + i * 4096, 4096, 7, r.mh_in);
      for (int i = 0; i < N; i++) sends[i] = rig_send(&r, out + i * 512, (size_t)i * 100, 7, r.mh_out);
      for (int i = N - 1; i >= 0; i--) {
        CHECK_INT(rig_finish(&r, sends[i], recvs[i]), i * 100);
        CHECK(memcmp(in + i * 4096, out + i * 512, (size_t)i * 100) == 0);
      }
    }
    rig_close_idle_pair(&r);
  }
}

/* ---- full tables ------------------------------------------------------------------------------------ */

/* 32 receives of 8 buffers: 256 sends outstanding; then "not now". Over queues of 16 most of them wait for room. */
TEST(as_many_as_may_be_outstanding) {
  static const char *const kinds[] = {"nic=fake0", "nic=fake0 no=rma", "nic=fake0 tx_size=16 rx_size=16",
                                      "nic=fake0 no=rma tx_size=16 rx_size=600", "nic=fake0 no=saw tx_size=16"};
  enum { BUFFERS = OFI_MAX_RECVS * OFI_MAX_GROUP, SIZE = 500 };
  static void *sends[BUFFERS];
  void *recvs[OFI_MAX_RECVS];
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (int inside = 0; inside < 2; inside++) {
      open_pair_inline(kinds[k], 1, 1, inside ? 2048 : 0);
      memset(in, 0, sizeof in);
      for (int i = 0; i < OFI_MAX_RECVS; i++) {
        void *data[8], *mhs[8];
        size_t sizes[8];
        int tags[8];
        for (int b = 0; b < 8; b++) {
          tags[b] = i * 8 + b;
          data[b] = in + tags[b] * SIZE;
          sizes[b] = SIZE;
          mhs[b] = r.mh_in;
        }
        recvs[i] = rig_recv_group(&r, 8, data, sizes, tags, mhs);
      }
      CHECK(!rig_irecv(r.rc, in, SIZE, 1000, r.mh_in));
      for (int i = BUFFERS - 1; i >= 0; i--) sends[i] = rig_send(&r, out + i * SIZE, SIZE, i, r.mh_out);
      CHECK(!rig_isend(r.sc, out, SIZE, 0, r.mh_out)); /* nothing is granted any more */
      for (int i = 0; i < BUFFERS; i += 2) RIG_UNTIL(rig_done(sends[i], NULL), rig_poll(r.rc));
      for (int i = 1; i < BUFFERS; i += 2) RIG_UNTIL(rig_done(sends[i], NULL), rig_poll(r.rc));
      for (int i = OFI_MAX_RECVS - 1; i >= 0; i--) RIG_UNTIL(rig_done(recvs[i], NULL), rig_poll(r.sc));
      CHECK(memcmp(in, out, BUFFERS * SIZE) == 0);
      send_and_check(700, 700);
      rig_close_idle_pair(&r);
    }
}

/* Both directions over one pair of endpoints of which no queue has much room: the receives of one direction must not
 * take the place of those for the control messages of the other. */
TEST(both_directions_through_short_queues) {
  struct rig back;
  enum { N = 24, SIZE = 4000 };
  static uint8_t back_in[N * SIZE];
  open_pair("nic=fake0 no=rma rx_size=16 tx_size=8", 1, 1);
  memset(&back, 0, sizeof back);
  back.ctx[0] = r.ctx[1];
  back.ctx[1] = r.ctx[0];
  rig_connect(&back, 0, 0);
  void *mh_back_in = rig_reg(back.rc, back_in, sizeof back_in), *mh_back_out = rig_reg(back.sc, out, sizeof out);
  for (int round = 0; round < 20; round++) {
    void *recvs[2][N], *sends[2][N] = {{NULL}};
    for (int i = 0; i < N; i++) {
      CHECK((recvs[0][i] = rig_recv(&r, in + i * SIZE, SIZE, i, r.mh_in)));
      CHECK((recvs[1][i] = rig_recv(&back, back_in + i * SIZE, SIZE, i, mh_back_in)));
    }
    for (int i = 0; i < N; i++)
      RIG_UNTIL(sends[0][i] && sends[1][i], {
        if (!sends[0][i]) sends[0][i] = rig_isend(r.sc, out + i * SIZE, SIZE, i, r.mh_out);
        if (!sends[1][i]) sends[1][i] = rig_isend(back.sc, out + i * SIZE, SIZE, i, mh_back_out);
      });
    for (int i = 0; i < N; i++) {
      CHECK_INT(rig_finish(&r, sends[0][i], recvs[0][i]), SIZE);
      CHECK_INT(rig_finish(&back, sends[1][i], recvs[1][i]), SIZE);
    }
    CHECK(memcmp(in, out, N * SIZE) == 0 && memcmp(back_in, out, N * SIZE) == 0);
  }
  CHECK_OK(net->dereg_mr(back.rc, mh_back_in));
  CHECK_OK(net->dereg_mr(back.sc, mh_back_out));
  CHECK_OK(net->close_send(back.sc));
  CHECK_OK(net->close_recv(back.rc));
  rig_close_idle_pair(&r);
}

RIG_MAIN(TEST_CASE(sizes_over_every_provider), TEST_CASE(sizes_around_the_inline_limit),
         TEST_CASE(what_a_message_costs), TEST_CASE(fused_nics), TEST_CASE(one_slow_nic),
         TEST_CASE(groups_in_every_order), TEST_CASE(equal_tags_in_order), TEST_CASE(as_many_as_may_be_outstanding),
         TEST_CASE(both_directions_through_short_queues))
