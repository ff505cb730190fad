/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * GRANTs of several receives in one control message, over a scripted libfabric: which receives go together, that none
 * waits for a call that nobody makes, and that messages on credit which cross them find their buffers.
 *
 * The watch thread may poll at any time, which sends what waits for a poll: bounds are of the polls that were made.
 */
#include "plugin/ofi/ofi_progress.h"
#include "test/unit/ofi_rig.h"

#define SIZE 3000 /* larger than what goes on credit */
#define SMALL 100
#define MOST 20 /* receives in a row: more than one control message holds */

static struct rig r;
static uint8_t out[OFI_MAX_RECVS * SIZE], in[OFI_MAX_RECVS * SIZE];

static const char *const kinds[] = {"nic=fake0", "nic=fake0 no=rma", "nic=fake0 no=sas,saw",
                                    "nic=fake0 prov=shm inject=4096 gone=silent",
                                    "nic=fake0 prov=tcp;ofi_rxm inject=4096"};
static const char *const ways[] = {"", "late=5 reorder=50 overtake=60", "eagain=40 burst=2"};

/* Without credit nothing but GRANTs brings a message. */
static void open_pair(const char *offers, bool credit) {
  rig_start(offers);
  if (!credit) ofi_params.inline_bytes = 0;
  int nics = strstr(offers, "fake3") ? 4 : 1;
  rig_open_pair(&r, nics, nics, out, sizeof out, in, sizeof in);
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 31 + (i >> 8));
  memset(in, 0xee, sizeof in);
}

static struct ofi_recv_comm *rc(void) { return ofi_recv_comm_of(r.rc); }
static uint64_t polls(void) { return RIG_LOCKED(r.rc, rig_comm(r.rc)->endpoint->polls); }
static uint64_t frames(void) { return rail_stats_get(&rig_comm(r.rc)->stats[OFI_COMM_FRAMES]); }
static uint32_t grants(void) { return RIG_LOCKED(r.rc, rc()->ngrants) - OFI_FIRST_SEQ; }

static void *receive(int slot, size_t size, int tag) { return rig_recv(&r, in + slot * SIZE, size, tag, r.mh_in); }
static void *send_from(int slot, size_t size, int tag) { return rig_send(&r, out + slot * SIZE, size, tag, r.mh_out); }

static void check_message(int slot, size_t size, void *send, void *recv) {
  CHECK_INT(rig_finish(&r, send, recv), size);
  CHECK(memcmp(in + slot * SIZE, out + slot * SIZE, size) == 0);
}

/* The first receive is granted at once, the others with the next poll, as many in a control message as fit. */
TEST(receives_in_a_row) {
  static const char *const offers[] = {"nic=fake0", "nic=fake0 no=rma", "nic=fake0 nic=fake1 nic=fake2 nic=fake3",
                                       "nic=fake0 prov=shm inject=4096 gone=silent"};
  for (size_t k = 0; k < RAIL_COUNT_OF(offers); k++) {
    void *recvs[MOST], *sends[MOST];
    open_pair(offers[k], true);
    uint64_t each = OFI_BUFFERS_MAX / OFI_BUFFER_SIZE(rig_comm(r.rc)->endpoint->nnics);
    uint64_t frames_before = frames(), polls_before = polls();
    for (int i = 0; i < MOST; i++) recvs[i] = receive(i, SIZE, i % 3);
    rig_poll(r.rc);
    uint64_t made = frames() - frames_before, seen = polls() - polls_before;
    CHECK_INT(grants(), MOST);
    /* Between two polls one goes at once; the last poll finds all others at most. */
    uint64_t together = (MOST - 1 + each - 1) / each;
    CHECK_MSG(made <= 2 * seen - 1 + together, "%llu control messages with %llu polls", (unsigned long long)made,
              (unsigned long long)seen);
    if (seen == 1) CHECK_INT(made, 1 + together);
    for (int i = 0; i < MOST; i++) sends[i] = send_from(i, SIZE - (size_t)i, i % 3);
    for (int i = MOST - 1; i >= 0; i--) check_message(i, SIZE - (size_t)i, sends[i], recvs[i]);
    rig_close_idle_pair(&r);
  }
}

/* A receive after each poll is granted at once. */
TEST(a_receive_after_each_poll) {
  open_pair("nic=fake0", true);
  for (int i = 0; i < 10; i++) {
    rig_poll(r.rc);
    void *recv = receive(0, SIZE, 1);
    CHECK_INT(grants(), i + 1);
    check_message(0, SIZE, send_from(0, SIZE, 1), recv);
  }
  rig_close_idle_pair(&r);
}

/* Nobody calls for the receiver: the watch thread sends what waits for a poll. */
TEST(no_call_after_the_receives) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++) {
      enum { N = 3 };
      void *recvs[N], *sends[N] = {NULL};
      open_pair(kinds[k], true);
      fake_script(ways[w]);
      for (int i = 0; i < N; i++) recvs[i] = receive(i, SIZE, 1);
      for (int i = 0; i < N; i++) RIG_UNTIL(sends[i], sends[i] = rig_isend(r.sc, out + i * SIZE, SIZE, 1, r.mh_out));
      for (int i = 0; i < N; i++) RIG_UNTIL(rig_done(sends[i], NULL), (void)0);
      for (int i = 0; i < N; i++) check_message(i, SIZE, NULL, recvs[i]);
      rig_close_idle_pair(&r);
    }
}

/* Small messages on credit, sent before their sender knows of any receive, fill some that are granted and some that are
 * about to be. The messages behind them are too large for credit, and find the buffers that are left. */
TEST(messages_that_cross) {
  enum { N = 12 };
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++)
      for (int small = 0; small <= N; small += 3) {
        void *recvs[N], *sends[N];
        open_pair(kinds[k], true);
        fake_script(ways[w]);
        for (int i = 0; i < N / 2; i++) recvs[i] = receive(i, SIZE, 3);
        for (int i = 0; i < small; i++) sends[i] = send_from(i, SMALL + (size_t)i, 3);
        for (int i = N / 2; i < N; i++) recvs[i] = receive(i, SIZE, 3);
        for (int i = small; i < N; i++) sends[i] = send_from(i, SIZE - (size_t)i, 3);
        for (int i = 0; i < N; i++)
          check_message(i, i < small ? SMALL + (size_t)i : SIZE - (size_t)i, sends[i], recvs[i]);
        rig_close_idle_pair(&r);
      }
}

/* Small receives are not granted; what the sender asks for, or a large one behind them, has all of them granted. */
TEST(all_at_once) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (int asked = 0; asked < 2; asked++) {
      void *recvs[MOST], *send = NULL;
      open_pair(kinds[k], true);
      for (int i = 0; i < MOST - 1; i++) recvs[i] = receive(i, SMALL, 1);
      CHECK_INT(grants(), 0);
      uint64_t before = frames();
      if (asked)
        RIG_UNTIL(grants() == MOST - 1, {
          CHECK(!rig_isend(r.sc, out + (MOST - 1) * SIZE, SIZE, 2, r.mh_out));
          rig_poll(r.rc);
        });
      else recvs[MOST - 1] = receive(MOST - 1, SIZE, 2);
      CHECK_INT(frames() - before, 2);
      if (asked) recvs[MOST - 1] = receive(MOST - 1, SIZE, 2);
      send = send_from(MOST - 1, SIZE, 2);
      CHECK_INT(grants(), MOST);
      check_message(MOST - 1, SIZE, send, recvs[MOST - 1]);
      for (int i = 0; i < MOST - 1; i++) check_message(i, SMALL, send_from(i, SMALL, 1), recvs[i]);
      rig_close_idle_pair(&r);
    }
}

/* Groups of every size, of which some do not fit behind another. */
static void pass_groups(bool credit) {
  enum { N = 12 };
  static const int sizes_of[N] = {8, 1, 7, 8, 2, 6, 5, 3, 8, 8, 4, 4};
  void *recvs[N], *sends[N][OFI_MAX_GROUP];
  for (int i = 0; i < N; i++) {
    void *data[OFI_MAX_GROUP], *mhs[OFI_MAX_GROUP];
    size_t sizes[OFI_MAX_GROUP];
    int tags[OFI_MAX_GROUP];
    for (int b = 0; b < sizes_of[i]; b++) {
      data[b] = in + i * SIZE + b * 300;
      sizes[b] = b == i % 8 ? 300 : 200;
      tags[b] = b;
      mhs[b] = r.mh_in;
    }
    recvs[i] = rig_recv_group(&r, sizes_of[i], data, sizes, tags, mhs);
  }
  if (credit) { /* else they are granted without being asked for */
    const struct ofi_frame ask = {.type = OFI_FRAME_ASK, .seq = OFI_FIRST_SEQ};
    ofi_endpoint_lock(rig_comm(r.rc)->endpoint);
    ofi_progress_ops.frame(r.rc, &ask, NULL);
    ofi_endpoint_unlock(rig_comm(r.rc)->endpoint);
  }
  for (int i = 0; i < N; i++)
    for (int b = 0; b < sizes_of[i]; b++) sends[i][b] = send_from(i, b == i % 8 ? 300 : (size_t)(b * 20), b);
  for (int i = N - 1; i >= 0; i--) {
    int got[OFI_MAX_GROUP] = {0};
    RIG_UNTIL(rig_done(recvs[i], got), rig_poll(r.sc));
    for (int b = 0; b < sizes_of[i]; b++) {
      RIG_UNTIL(rig_done(sends[i][b], NULL), rig_poll(r.rc));
      CHECK_INT(got[b], b == i % 8 ? 300 : b * 20);
      CHECK(memcmp(in + i * SIZE + b * 300, out + i * SIZE, (size_t)got[b]) == 0);
    }
  }
}

TEST(groups_in_a_row) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++)
      for (int credit = 0; credit < 2; credit++) {
        open_pair(kinds[k], credit);
        fake_script(ways[w]);
        pass_groups(credit);
        rig_close_idle_pair(&r);
      }
}

/* Close and deregMr where some receives wait for a poll to be granted: none is, and nothing is left. */
TEST(closed_before_they_are_granted) {
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (size_t w = 0; w < RAIL_COUNT_OF(ways); w++)
      for (int dereg = 0; dereg < 2; dereg++) {
        open_pair(kinds[k], true);
        fake_script(ways[w]);
        for (int i = 0; i < MOST; i++) (void)receive(i, SIZE, 1);
        if (dereg) {
          CHECK_OK(net->dereg_mr(r.rc, r.mh_in));
          CHECK(log_warnings() <= 1);
          log_forget();
        }
        CHECK_OK(net->close_recv(r.rc));
        r.rc = NULL;
        CHECK_OK(net->dereg_mr(r.sc, r.mh_out));
        CHECK_OK(net->close_send(r.sc));
        r.sc = NULL;
        rig_finalize(&r);
        rig_end();
        CHECK_MSG(log_warnings() == 0, "%s", log_warning);
      }
}

RIG_MAIN(TEST_CASE(receives_in_a_row), TEST_CASE(a_receive_after_each_poll), TEST_CASE(no_call_after_the_receives),
         TEST_CASE(messages_that_cross), TEST_CASE(all_at_once), TEST_CASE(groups_in_a_row),
         TEST_CASE(closed_before_they_are_granted))
