/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * Small messages of the ofi plugin ahead of their receives, over a scripted libfabric: on credit, in places of the
 * receiver's; GRANTs that cross them; what is granted only when the sender asks; what waits for room; and close, which
 * loses nothing of what was reported as sent.
 */
#include "plugin/ofi/ofi_progress.h"
#include "test/unit/ofi_rig.h"

#define SIZE 20000 /* larger than what goes on credit */
#define SMALL 100
#define SLOTS (2 * OFI_MAX_EAGER)

static struct rig r;
static uint8_t out[SLOTS * SMALL + SIZE], in[SLOTS * SMALL + 2 * SIZE];

static const char *const kinds[] = {"nic=fake0", "nic=fake0 no=rma", "nic=fake0 no=sas,saw", "nic=fake0 no=rma,sas",
                                    "nic=fake0 prov=shm inject=4096 gone=silent",
                                    "nic=fake0 prov=tcp;ofi_rxm inject=4096"};
static const char *const ways[] = {"", "late=5 reorder=50 overtake=60", "eagain=40 burst=2"};

static void open_pair(const char *offers) {
  rig_start(offers);
  rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 31 + (i >> 8));
  memset(in, 0xee, sizeof in);
}

static struct ofi_send_comm *sc(void) { return ofi_send_comm_of(r.sc); }
static struct ofi_recv_comm *rc(void) { return ofi_recv_comm_of(r.rc); }

/* A send that is done though nobody receives. */
static void send_ahead(int slot, size_t size, int tag) {
  void *send = rig_send(&r, out + (size_t)slot * SMALL, size, tag, r.mh_out);
  RIG_UNTIL(rig_done(send, NULL), rig_poll(r.rc));
}

static void receive(int slot, size_t size, int tag) {
  void *recv = rig_recv(&r, in, size + 30, tag, r.mh_in);
  CHECK_INT(rig_finish(&r, NULL, recv), size);
  CHECK(memcmp(in, out + (size_t)slot * SMALL, size) == 0);
  memset(in, 0xee, size);
}

/* Until it is out of credit; then "not now", until a receive has taken one of them. */
TEST(as_many_as_there_is_credit_for) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++) {
      open_pair(kinds[k]);
      CHECK_INT(rig_comm(r.sc)->eager_count, OFI_MAX_EAGER);
      CHECK_INT(rig_comm(r.rc)->eager_count, OFI_MAX_EAGER);
      fake_script(ways[w]);
      for (int i = 0; i < OFI_MAX_EAGER; i++) send_ahead(i, (size_t)i % SMALL, i % 3);
      CHECK(!rig_isend(r.sc, out, 1, 0, r.mh_out));
      RIG_UNTIL(RIG_LOCKED(r.rc, rc()->unexpected) == OFI_MAX_EAGER, {
        rig_poll(r.sc);
        rig_poll(r.rc);
      });
      CHECK(!rig_isend(r.sc, out, 1, 0, r.mh_out));
      /* The oldest of a tag first, whatever else there is. */
      for (int tag = 2; tag >= 0; tag--)
        for (int i = tag; i < OFI_MAX_EAGER; i += 3) receive(i, (size_t)i % SMALL, tag);
      CHECK_INT(RIG_LOCKED(r.rc, rc()->unexpected), 0);
      for (int i = 0; i < 3 * OFI_MAX_EAGER; i++) { /* all of the credit is back */
        send_ahead(i % SLOTS, SMALL, 7);
        if (i >= 50) receive((i - 50) % SLOTS, SMALL, 7);
      }
      for (int i = 3 * OFI_MAX_EAGER - 50; i < 3 * OFI_MAX_EAGER; i++) receive(i % SLOTS, SMALL, 7);
      rig_close_idle_pair(&r);
    }
}

/* As many of the largest, whatever that is; by default it depends on the provider. Only so many of the receiver's
 * payloads are used as there are messages at a time. */
TEST(the_largest_messages_on_credit) {
  static uint8_t sent[OFI_MAX_EAGER * OFI_MAX_INLINE], got[OFI_MAX_INLINE];
  static const struct { const char *offers; int64_t param; size_t max_inline; } rows[] = {
    {"nic=fake0", -1, 2048}, {"nic=fake0 prov=tcp;ofi_rxm inject=4096", -1, 8192}, {"nic=fake0 prov=tcp", -1, 8192},
    {"nic=fake0 prov=shm inject=4096 gone=silent", -1, 2048}, {"nic=fake0", 8192, 8192}, {"nic=fake0", 1, 1}};
  for (size_t i = 0; i < sizeof sent; i++) sent[i] = (uint8_t)(i * 31 + (i >> 8));
  for (size_t k = 0; k < RAIL_COUNT_OF(rows); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++) {
      const size_t size = rows[k].max_inline;
      rig_start(rows[k].offers);
      ofi_params.inline_bytes = rows[k].param;
      rig_open_pair(&r, 1, 1, sent, sizeof sent, got, sizeof got);
      CHECK_INT(rig_comm(r.sc)->max_inline, size);
      fake_script(ways[w]);
      for (unsigned int round = 0; round < 5; round++) { /* across the wrap */
        const unsigned int n = round == 1 ? 1 : OFI_MAX_EAGER;
        for (unsigned int i = 0; i < n; i++) {
          void *send = rig_send(&r, sent + i * size, size - round % 2, 1, r.mh_out);
          RIG_UNTIL(rig_done(send, NULL), rig_poll(r.rc));
        }
        RIG_UNTIL(RIG_LOCKED(r.rc, rc()->unexpected) == n, {
          rig_poll(r.sc);
          rig_poll(r.rc);
        });
        CHECK_INT(RIG_LOCKED(r.rc, rc()->nfree_payloads), OFI_MAX_EAGER - n);
        for (unsigned int i = 0; i < n; i++) {
          memset(got, 0xee, sizeof got);
          CHECK_INT(rig_finish(&r, NULL, rig_recv(&r, got, size, 1, r.mh_in)), size - round % 2);
          CHECK(memcmp(got, sent + i * size, size - round % 2) == 0);
        }
        CHECK_INT(RIG_LOCKED(r.rc, rc()->nfree_payloads), OFI_MAX_EAGER);
      }
      rig_close_idle_pair(&r);
    }
}

/* While a receive for each message is posted nothing but messages goes to and fro, and now and then a report. */
TEST(receives_that_are_not_granted) {
  open_pair("nic=fake0");
  for (int i = 0; i < 10 * OFI_MAX_EAGER; i++) {
    void *recv = rig_recv(&r, in, SMALL, 1, r.mh_in);
    CHECK_INT(rig_finish(&r, rig_send(&r, out, SMALL, 1, r.mh_out), recv), SMALL);
  }
  CHECK_INT(RIG_LOCKED(r.rc, rc()->ngrants), OFI_FIRST_SEQ);
  CHECK_INT(RIG_LOCKED(r.rc, rc()->have.seen), OFI_FIRST_SEQ + 10 * OFI_MAX_EAGER); /* across the wrap */
  rig_close_idle_pair(&r);
}

/* Some buffers of a group have their message before it is posted, some get it on credit, one is large. */
TEST(groups_in_part) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++)
      for (int ahead = 0; ahead < 3; ahead++) {
        void *data[4], *mhs[4] = {r.mh_in}, *sends[4];
        size_t sizes[4] = {SMALL, SMALL, SIZE, SMALL};
        int tags[4] = {5, 6, 7, 5}, got[8] = {0};
        open_pair(kinds[k]);
        fake_script(ways[w]);
        for (int i = 0; i < 4; i++) {
          data[i] = in + i * SMALL + (i == 3 ? SIZE : 0);
          mhs[i] = r.mh_in;
        }
        for (int i = 0; i < ahead; i++) send_ahead(i, 10 + (size_t)i, tags[i]);
        void *recv = rig_recv_group(&r, 4, data, sizes, tags, mhs);
        static const int order[] = {2, 1, 0, 3}; /* those of tag 5 keep theirs */
        for (int k2 = 0; k2 < 4; k2++) {
          int i = order[k2];
          if (i >= ahead) sends[i] = rig_send(&r, out + i * SMALL, i == 2 ? SIZE : 10 + (size_t)i, tags[i], r.mh_out);
        }
        for (int i = ahead; i < 4; i++) RIG_UNTIL(rig_done(sends[i], NULL), rig_poll(r.rc));
        RIG_UNTIL(rig_done(recv, got), rig_poll(r.sc));
        for (int i = 0; i < 4; i++) {
          CHECK_INT(got[i], i == 2 ? SIZE : 10 + i);
          CHECK(memcmp(data[i], out + i * SMALL, (size_t)got[i]) == 0);
        }
        rig_close_idle_pair(&r);
      }
}

/* Large receives are granted, and before the sender knows it has sent small messages of their tag on credit. A tagged
 * receive that is posted for such a buffer is cancelled. The last message is large: it must find the last buffer. */
TEST(grants_that_cross_messages) {
  enum { N = 4 };
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++)
      for (int crossing = 0; crossing <= N; crossing++) {
        void *recvs[N + 1], *sends[N + 1];
        open_pair(kinds[k]);
        fake_script(ways[w]);
        for (int i = 0; i <= N; i++) recvs[i] = rig_recv(&r, in + i * 4000, i == N ? SIZE : 4000, 3, r.mh_in);
        for (int i = 0; i <= N; i++) {
          if (i == crossing)
            for (int p = 0; p < 20; p++) rig_poll(p % 2 ? r.sc : r.rc); /* now it knows, or soon */
          sends[i] = rig_send(&r, out + i * SMALL, i == N ? SIZE : (size_t)(i + 1), 3, r.mh_out);
        }
        for (int i = N; i >= 0; i--) {
          CHECK_INT(rig_finish(&r, sends[i], recvs[i]), i == N ? SIZE : i + 1);
          CHECK(memcmp(in + i * 4000, out + i * SMALL, i == N ? SIZE : (size_t)(i + 1)) == 0);
        }
        rig_close_idle_pair(&r);
      }
}

/* A message that is too large for credit, and for the small buffer that waits for it: that is not granted until the
 * sender asks. Both sides fail. */
TEST(too_large_for_a_buffer_that_is_not_granted) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++) {
    void *send = NULL;
    rail_result_t result = RAIL_OK;
    open_pair(kinds[k]);
    void *recv = rig_recv(&r, in, SMALL, 3, r.mh_in);
    RIG_UNTIL(send || result, {
      result = net->isend(r.sc, out, SIZE, 3, r.mh_out, NULL, &send);
      rig_poll(r.rc);
    });
    CHECK_OK(result);
    CHECK_INT(rig_error(send), RAIL_BAD_USAGE);
    for (int i = 0; i < 20; i++) rig_poll(r.sc); /* its refusal goes out */
    CHECK_INT(rig_error(recv), RAIL_BAD_USAGE);
    CHECK_INT(log_warnings(), 2);
    log_forget();
    rig_close_pair(&r);
    CHECK_MSG(log_warnings() == 0, "%s", log_warning);
  }
}

/* Both wait for the one before them. The first is kept; of the second the receiver keeps nothing, and fails. */
TEST(two_early_messages_of_one_number) {
  struct { struct ofi_frame_wire head; uint8_t payload[SMALL]; } bytes = {.payload = {0}};
  const struct ofi_frame early = {.type = OFI_FRAME_EAGER, .eager = OFI_FIRST_SEQ + 1,
                                  .first_unknown = OFI_FIRST_SEQ};
  open_pair(kinds[0]);
  ofi_head_encode(&early, &bytes);
  CHECK(ofi_is_eager(&bytes.head, sizeof bytes));
  for (int i = 0; i < 2; i++) {
    CHECK_INT(log_warnings(), 0);
    RIG_LOCKED(r.rc, (ofi_progress_ops.eager(r.rc, &bytes.head, sizeof bytes), 0));
    CHECK_INT(RIG_LOCKED(r.rc, rc()->nfree_payloads), OFI_MAX_EAGER - 1);
  }
  CHECK_INT(log_warnings(), 1);
  CHECK(strstr(log_warning, "a message beyond the credit"));
  CHECK_INT(rail_first_error(&rig_comm(r.rc)->error), RAIL_REMOTE_ERROR);
  log_forget();
  rig_close_pair(&r);
}

/* Out of credit, which messages of another tag have: the small buffer that is posted later is granted, and used. */
TEST(a_small_buffer_without_credit) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (int first = 0; first < 2; first++) {
      void *recv = NULL;
      open_pair(kinds[k]);
      if (first) recv = rig_recv(&r, in, SMALL, 9, r.mh_in);
      for (int i = 0; i < OFI_MAX_EAGER; i++) send_ahead(i, SMALL, 1);
      if (!first) recv = rig_recv(&r, in, SMALL, 9, r.mh_in);
      CHECK_INT(rig_finish(&r, rig_send(&r, out, 50, 9, r.mh_out), recv), 50);
      CHECK(memcmp(in, out, 50) == 0);
      for (int i = 0; i < OFI_MAX_EAGER; i++) receive(i, SMALL, 1);
      rig_close_idle_pair(&r);
    }
}

/* The sender closes right after its last send is done, and its context with it, while nothing is received. */
TEST(close_loses_nothing) {
  enum { N = 50 };
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++) {
      open_pair(kinds[k]);
      void *large = rig_recv(&r, in + SIZE, SIZE, 4, r.mh_in), *sent = NULL;
      fake_script(ways[w]);
      sent = rig_send(&r, out, SIZE, 4, r.mh_out);
      for (int i = 0; i < N; i++) send_ahead(i, SMALL, 1);
      RIG_UNTIL(rig_done(sent, NULL), rig_poll(r.rc));
      CHECK_OK(net->dereg_mr(r.sc, r.mh_out));
      CHECK_OK(net->close_send(r.sc));
      CHECK_OK(net->finalize(r.ctx[0]));
      r.sc = r.ctx[0] = NULL;
      RIG_UNTIL(rig_done(large, NULL), (void)0);
      CHECK(memcmp(in + SIZE, out, SIZE) == 0);
      for (int i = 0; i < N; i++) {
        void *recv = NULL;
        RIG_UNTIL(recv, recv = rig_irecv(r.rc, in, SMALL, 1, r.mh_in));
        RIG_UNTIL(rig_done(recv, NULL), (void)0);
        CHECK(memcmp(in, out + i * SMALL, SMALL) == 0);
      }
      CHECK_OK(net->dereg_mr(r.rc, r.mh_in));
      CHECK_OK(net->close_recv(r.rc));
      CHECK_OK(net->finalize(r.ctx[1]));
      CHECK_MSG(log_warnings() == 0, "%s", log_warning);
      rig_end();
    }
}

/* A peer that answers nothing holds close up for RAIL_OFI_CLOSE_TIMEOUT, and a line says so. */
TEST(close_with_a_peer_that_does_not_answer) {
  open_pair("nic=fake0");
  ofi_params.close_ms = 50;
  fake_script("lose=send:1:ever");
  void *send = rig_send(&r, out, SMALL, 1, r.mh_out);
  RIG_UNTIL(rig_done(send, NULL), (void)0);
  CHECK_OK(net->dereg_mr(r.sc, r.mh_out));
  CHECK_OK(net->close_send(r.sc));
  CHECK_MSG(log_warnings() == 1 && log_said("RAIL_OFI_CLOSE_TIMEOUT"), "%s", log_lines);
  CHECK_OK(net->dereg_mr(r.rc, r.mh_in));
  CHECK_OK(net->close_recv(r.rc));
  rig_finalize(&r);
  rig_end();
}

/* Where memory of devices may be registered, or nothing goes inside a control message, every receive is granted. */
TEST(without_credit) {
  rig_start("nic=fake0");
  ofi_params.inline_bytes = 0;
  rig_open(&r, 1, 1);
  CHECK_INT(rig_comm(r.sc)->eager_count, 0);
  r.mh_out = rig_reg(r.sc, out, sizeof out);
  r.mh_in = rig_reg(r.rc, in, sizeof in);
  for (int i = 0; i < 10; i++) CHECK(!rig_isend(r.sc, out, 0, 1, r.mh_out));
  for (int i = 0; i < 600; i++) { /* across the wrap */
    void *recv = rig_recv(&r, in, SMALL, 1, r.mh_in);
    CHECK_INT(rig_finish(&r, rig_send(&r, out, (size_t)i % SMALL, 1, r.mh_out), recv), i % SMALL);
  }
  CHECK_INT(RIG_LOCKED(r.sc, sc()->grants_applied), OFI_FIRST_SEQ + 600);
  rig_close_idle_pair(&r);
}

/* Receives of control messages are posted anew while nothing else is to be done, or once a quarter of them is used. */
TEST(receives_are_posted_anew) {
  open_pair("nic=fake0 rx_size=32");
  struct ofi_endpoint_nic *nic = &rig_comm(r.rc)->endpoint->nics[0];
  CHECK_INT(nic->nreceives, 16);
  for (int round = 0; round < OFI_MAX_EAGER / 12; round++) {
    for (int i = 0; i < 12; i++) (void)rig_send(&r, out, SMALL, 7, r.mh_out);
    rig_poll(r.sc);
    rig_poll(r.rc);
    CHECK(RIG_LOCKED(r.rc, nic->nused) <= 4);
  }
  RIG_UNTIL(RIG_LOCKED(r.rc, rc()->unexpected) == OFI_MAX_EAGER, {
    rig_poll(r.sc);
    rig_poll(r.rc);
  });
  RIG_UNTIL(RIG_LOCKED(r.rc, nic->nused) == 0, rig_poll(r.rc));
  for (int i = 0; i < OFI_MAX_EAGER; i++) receive(0, SMALL, 7);
  rig_close_idle_pair(&r);
}

static ssize_t no_room_to_write(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags) {
  (void)ep, (void)msg, (void)flags;
  return -FI_EAGAIN;
}
static ssize_t no_room_to_tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                                void *context) {
  (void)ep, (void)buf, (void)len, (void)desc, (void)to, (void)tag, (void)context;
  return -FI_EAGAIN;
}

/* A large message finds no room. A small one behind it, for which there is room, and which needs no operation, waits
 * as well; one for another peer does not. */
TEST(an_injected_message_does_not_overtake) {
  static const char *const offers[] = {"nic=fake0 prov=shm inject=4096", "nic=fake0 prov=tcp;ofi_rxm inject=4096"};
  for (size_t i = 0; i < RAIL_COUNT_OF(offers); i++) {
    open_pair(offers[i]);
    struct rig other = {.ctx = {r.ctx[0], rig_ctx()}};
    rig_connect(&other, 0, 0);
    void *other_out = rig_reg(other.sc, out, sizeof out), *other_in = rig_reg(other.rc, in, sizeof in);
    void *large_recv = rig_recv(&r, in + SIZE, SIZE, 4, r.mh_in);
    RIG_UNTIL(RIG_LOCKED(r.sc, sc()->grants_applied) == OFI_FIRST_SEQ + 1, {
      rig_poll(r.sc);
      rig_poll(r.rc);
    });
    struct fid_ep *ep = rig_comm(r.sc)->endpoint->nics[0].ep;
    struct fi_ops_rma *rma = ep->rma, no_write = *rma;
    struct fi_ops_tagged *tagged = ep->tagged, no_tsend = *tagged;
    no_write.writemsg = no_room_to_write;
    no_tsend.send = no_room_to_tsend;
    RIG_LOCKED(r.sc, (ep->rma = &no_write, ep->tagged = &no_tsend, 0));
    struct ofi_send *large = rig_send(&r, out, SIZE, 4, r.mh_out), *small = rig_send(&r, out, 50, 1, r.mh_out);
    CHECK_INT(RIG_LOCKED(r.sc, large->parts[0].data.state), OFI_OP_WAITING);
    CHECK_INT(RIG_LOCKED(r.sc, small->parts[0].data.state), OFI_OP_WAITING);
    struct ofi_send *elsewhere = rig_send(&other, out, 50, 1, other_out);
    CHECK(RIG_LOCKED(other.sc, ofi_request_is_complete(&elsewhere->base)));
    CHECK_INT(rig_finish(&other, elsewhere, rig_recv(&other, in, SMALL, 1, other_in)), 50);
    for (int k = 0; k < 50; k++) {
      CHECK(!rig_done(small, NULL));
      rig_poll(r.rc);
    }
    CHECK_INT(RIG_LOCKED(r.rc, rc()->have.seen), OFI_FIRST_SEQ);
    RIG_LOCKED(r.sc, (ep->rma = rma, ep->tagged = tagged, 0));
    CHECK_INT(rig_finish(&r, small, rig_recv(&r, in, SMALL, 1, r.mh_in)), 50);
    CHECK_INT(rig_finish(&r, large, large_recv), SIZE);
    CHECK(memcmp(in, out, 50) == 0 && memcmp(in + SIZE, out, SIZE) == 0);
    CHECK_OK(net->dereg_mr(other.sc, other_out));
    CHECK_OK(net->dereg_mr(other.rc, other_in));
    CHECK_OK(net->close_send(other.sc));
    CHECK_OK(net->close_recv(other.rc));
    CHECK_OK(net->finalize(other.ctx[1]));
    rig_close_idle_pair(&r);
  }
}

RIG_MAIN(TEST_CASE(as_many_as_there_is_credit_for), TEST_CASE(the_largest_messages_on_credit),
         TEST_CASE(receives_that_are_not_granted), TEST_CASE(groups_in_part),
         TEST_CASE(grants_that_cross_messages), TEST_CASE(too_large_for_a_buffer_that_is_not_granted),
         TEST_CASE(two_early_messages_of_one_number), TEST_CASE(a_small_buffer_without_credit),
         TEST_CASE(close_loses_nothing), TEST_CASE(close_with_a_peer_that_does_not_answer), TEST_CASE(without_credit),
         TEST_CASE(receives_are_posted_anew), TEST_CASE(an_injected_message_does_not_overtake))
