/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ib plugin's data path makes of errors: each work request of an
 * exchange fails in its turn, each call into the library does, and the watch thread's
 * findings arrive at every moment. No request is lost or reported twice, what was
 * done stays done, and after the first error every call says the same.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"
#include "test/unit/ib_pair.h"

#define N 6
#define SIZE 9000

static const struct pair_shape shape = {1, 2, 2, 12, 16, 64};
static struct pair p;
static uint8_t out[N * SIZE], in[N * SIZE];
static struct ib_mhandle *mh_out, *mh_in;
static void *recvs[N], *sends[N];

static void open_plain(const char *script) {
  ib_params.min_part = 1024;
  pair_open(&p, &shape);
  mh_out = pair_reg(&p, p.sc, out, sizeof out);
  mh_in = pair_reg(&p, p.rc, in, sizeof in);
  memset(recvs, 0, sizeof recvs);
  memset(sends, 0, sizeof sends);
  pair_lines = 0;
  emu_do(script);
}

/* ---- every request in its turn ------------------------------------------------- */

static rail_result_t begin(void **request, bool sends_it, int i) {
  void *data = in + i * SIZE, *mhs = mh_in;
  size_t size = SIZE;
  *request = sends_it ? NULL : &p;
  rail_result_t result = sends_it ? ib_isend(p.sc, out + i * SIZE, (size_t)i * 1700, i, mh_out, NULL, request)
                                  : ib_irecv(p.rc, 1, &data, &size, &i, &mhs, NULL, request);
  CHECK(*request != &p); /* always written */
  return result;
}

/* Tests what is left of one side; true if all is over, one way or the other. */
static bool test_side(void **requests, struct ib_comm *comm, unsigned int *done_count) {
  bool over = true;
  for (int i = N - 1; i >= 0; i--) {
    int done = 0, size;
    if (!requests[i]) continue;
    rail_result_t result = ib_test(requests[i], &done, &size);
    CHECK(done == 0 || (done == 1 && result == RAIL_OK));
    CHECK_INT(result, done ? RAIL_OK : rail_first_error(&comm->error));
    if (done) {
      requests[i] = NULL;
      ++*done_count;
    } else if (result == RAIL_OK) {
      over = false;
    }
  }
  return over;
}

/* What a comm that has failed says, for ever. */
static void check_failed(struct ib_comm *comm, void **requests, struct ib_mhandle *mh) {
  unsigned int left = 0, again = 0, lines = pair_lines;
  void *request;
  rail_result_t error = rail_first_error(&comm->error);
  CHECK(error == RAIL_REMOTE_ERROR || error == RAIL_SYSTEM_ERROR || error == RAIL_INTERNAL_ERROR);
  CHECK_INT(begin(&request, comm->sender, 0), error);
  CHECK(!request);
  CHECK(test_side(requests, comm, &again));
  CHECK_INT(again, 0);
  for (int i = 0; i < N; i++) left += requests[i] != NULL;
  CHECK_INT(atomic_load(&comm->outstanding), left);
  CHECK(atomic_load(&mh->memory.outstanding) <= left);
  CHECK_INT(pair_lines, lines); /* it was said once */
}

/* The exchange, up to its end or the first error. *reached: somebody failed. */
static void exchange(bool *reached) {
  unsigned int sent = 0, received = 0;
  bool over = false;
  int next = N - 1; /* to be sent */
  for (int i = 0; i < N && !rail_first_error(&p.rc->error); i++) (void)begin(&recvs[i], false, i);
  for (int round = 0; round < 300 && !over; round++) {
    while (next >= 0 && !rail_first_error(&p.sc->error) && begin(&sends[next], true, next) == RAIL_OK && sends[next])
      next--;
    bool sender = test_side(sends, p.sc, &sent), receiver = test_side(recvs, p.rc, &received);
    bool sc_failed = rail_first_error(&p.sc->error), rc_failed = rail_first_error(&p.rc->error);
    if (sc_failed && !rc_failed) atomic_store(&p.rc->pending_work, IB_COMM_PEER_LOST);
    if (rc_failed && !sc_failed) atomic_store(&p.sc->pending_work, IB_COMM_PEER_LOST);
    over = sender && receiver && (next < 0 || rail_first_error(&p.sc->error));
  }
  CHECK(over);
  *reached = rail_first_error(&p.sc->error) != RAIL_OK || rail_first_error(&p.rc->error) != RAIL_OK;
  if (rail_first_error(&p.sc->error)) check_failed(p.sc, sends, mh_out);
  if (rail_first_error(&p.rc->error)) check_failed(p.rc, recvs, mh_in);
  if (!*reached) CHECK(sent == N && received == N && pair_lines == 0);
  else CHECK(pair_lines >= 1 && pair_lines <= 2); /* one line for each side that failed */
}

/* The k-th of something fails, for all k; returns how many there are. */
static int each_in_turn(const char *what, const char *how, const char *way) {
  bool reached = true;
  int k = 0;
  while (reached) {
    char script[128];
    snprintf(script, sizeof script, "%s from=%d %s", what, ++k, how);
    CHECK(k < 400);
    open_plain(way);
    emu_do(script);
    exchange(&reached);
    pair_close(&p);
  }
  return k - 1;
}

static const char *const ways[] = {"progress post", "progress poll", "progress poll burst=1 skip=9"};

TEST(every_completion) {
  for (unsigned int i = 0; i < RAIL_COUNT_OF(ways); i++) {
    CHECK(each_in_turn("complete retry_exc_err op=any", "times=ever", ways[i]) > 2 * N);
    CHECK(each_in_turn("complete rem_access_err op=imm", "", ways[i]) >= N);
    CHECK(each_in_turn("complete loc_prot_err op=recv", "", ways[i]) >= N);
    CHECK(each_in_turn("complete wr_flush_err op=write", "", ways[i]) >= N);
  }
}

TEST(every_call) {
  for (unsigned int i = 0; i < RAIL_COUNT_OF(ways); i++) {
    CHECK(each_in_turn("fail post_send", "errno=ENOMEM", ways[i]) > 2 * N);
    CHECK(each_in_turn("fail poll_cq", "errno=EIO", ways[i]) >= 2);
  }
}

/* The SEND protocol: receive WRs are irecv's, and one that fails is that of a buffer. */
TEST(every_request_of_sends) {
  pair_two_sided = true;
  for (unsigned int i = 0; i < RAIL_COUNT_OF(ways); i++) {
    CHECK(each_in_turn("complete retry_exc_err op=any", "times=ever", ways[i]) > 2 * N);
    CHECK(each_in_turn("complete rem_inv_req_err op=send", "", ways[i]) >= N);
    CHECK(each_in_turn("complete loc_len_err op=recv", "", ways[i]) >= N);
    CHECK(each_in_turn("complete wr_flush_err op=write", "", ways[i]) >= 1);
    CHECK(each_in_turn("fail post_send", "errno=ENOMEM", ways[i]) > 2 * N);
    CHECK(each_in_turn("fail post_recv", "errno=ENOMEM", ways[i]) >= 2 * N);
    CHECK(each_in_turn("fail poll_cq", "errno=EIO", ways[i]) >= 2);
  }
  pair_two_sided = false;
}

/* Giving receive WRs back: after 32 messages. */
TEST(post_recv_fails) {
  open_plain("progress post");
  emu_do("fail post_recv from=1");
  int done = 0, messages = 0;
  for (; messages < 100 && !rail_first_error(&p.rc->error); messages++) {
    CHECK_OK(begin(&recvs[0], false, 0));
    CHECK_OK(begin(&sends[0], true, 0));
    CHECK_INT(pair_finish(sends[0], RAIL_OK), 0);
    CHECK_OK(ib_test(recvs[0], &done, NULL));
    CHECK(done); /* this one had arrived */
  }
  CHECK_INT(messages, 2 * IB_RECV_BATCH - 1); /* by turns over two QPs: the 63rd is the 32nd of the first */
  CHECK_INT(pair_lines, 1);
  CHECK(strstr(pair_line, "post_recv"));
  CHECK_INT(begin(&recvs[0], false, 0), rail_first_error(&p.rc->error));
  pair_close(&p);
}

/* ---- what the watch thread found ----------------------------------------------------- */

/* A message that arrived, and a goodbye: the message first. */
TEST(closed_behind_the_last_message) {
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 1));
  CHECK_OK(begin(&recvs[1], false, 2));
  CHECK_OK(begin(&sends[0], true, 1));
  atomic_store(&p.rc->pending_work, IB_COMM_PEER_CLOSED);
  CHECK_INT(pair_finish(recvs[0], RAIL_OK), 1700);
  int done = 0;
  CHECK_INT(ib_test(recvs[1], &done, NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(done, 0);
  CHECK_INT(pair_lines, 1);
  pair_close(&p);
}

/* The goodbye is read between two polls of the CQ, of which the second finds what came before it. */
TEST(news_between_two_looks) {
  int second = 0;
  for (int seed = 1; seed < 60; seed++) {
    char script[64];
    int done = 0;
    open_plain("progress post");
    CHECK_OK(begin(&recvs[0], false, 1));
    snprintf(script, sizeof script, "progress poll skip=%d", seed * 7919);
    emu_do(script);
    CHECK_OK(begin(&sends[0], true, 1));
    atomic_store(&p.sc->pending_work, IB_COMM_PEER_LOST);
    long polls = emu_calls("poll_cq");
    CHECK_INT(ib_test(sends[0], &done, NULL), done ? RAIL_OK : RAIL_REMOTE_ERROR);
    CHECK_INT(rail_first_error(&p.sc->error), done ? RAIL_OK : RAIL_REMOTE_ERROR);
    second += done && emu_calls("poll_cq") - polls == 2;
    pair_close(&p);
  }
  CHECK(second > 0);
}

/* One QP breaks; what another has brought in the same look at the CQ counts. */
TEST(beside_an_error) {
  open_plain("progress post");
  for (int i = 0; i < 2; i++) CHECK_OK(begin(&recvs[i], false, i));
  emu_do("progress poll; complete retry_exc_err op=imm from=1");
  for (int i = 0; i < 2; i++) CHECK_OK(begin(&sends[i], true, i));
  unsigned int done = 0;
  CHECK(test_side(sends, p.sc, &done));
  CHECK_INT(done, 1);
  check_failed(p.sc, sends, mh_out);
  pair_close(&p);
}

/* Sends under way when the receiver says goodbye: what it got it acknowledges, until its time is up, or its oob
 * connection ends. */
static void closed_before_the_acknowledgement(bool gone) {
  open_plain("progress post");
  ib_params.linger_ms = gone ? 60000 : 100;
  for (int i = 1; i < 4; i++) CHECK_OK(begin(&recvs[i], false, i));
  emu_do("progress poll");
  CHECK_OK(begin(&sends[1], true, 1));
  atomic_store(&p.sc->pending_work, IB_COMM_PEER_CLOSED);
  int done = 0;
  uint64_t begun = rail_now_ns();
  rail_result_t result = RAIL_OK;
  CHECK_INT(pair_finish(sends[1], RAIL_OK), 1700);
  emu_do("stall op=imm");
  CHECK_OK(begin(&sends[3], true, 3));
  CHECK_OK(ib_test(sends[3], &done, NULL));
  if (gone) atomic_fetch_or(&p.sc->pending_work, IB_COMM_PEER_GONE);
  while (result == RAIL_OK && rail_now_ns() - begun < 10000000000ull) {
    result = ib_test(sends[3], &done, NULL);
    CHECK(!done);
    usleep(1000);
  }
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK(rail_now_ns() - begun >= 100000000ull);
  CHECK_INT(pair_lines, 1);
  pair_close(&p);
  ib_params_load();
}

TEST(closed_for_a_while) { closed_before_the_acknowledgement(false); }
TEST(closed_and_gone) { closed_before_the_acknowledgement(true); }

static void sender_hears(uint32_t faults, rail_result_t expected) {
  int done = 0;
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 1));
  emu_do("stall op=imm");
  CHECK_OK(begin(&sends[0], true, 1));
  CHECK_OK(ib_test(sends[0], &done, NULL));
  atomic_store(&p.sc->pending_work, faults);
  CHECK_INT(ib_test(sends[0], &done, NULL), expected);
  CHECK_INT(done, 0);
  check_failed(p.sc, sends, mh_out);
  CHECK_INT(pair_lines, 1);
  pair_close(&p);
}

TEST(bad_news_for_a_sender) {
  sender_hears(IB_COMM_PEER_LOST, RAIL_REMOTE_ERROR);
  sender_hears(IB_COMM_PEER_SILENT, RAIL_REMOTE_ERROR);
  sender_hears(IB_COMM_QP_FATAL, RAIL_SYSTEM_ERROR);
  sender_hears(IB_COMM_CQ_ERROR, RAIL_SYSTEM_ERROR);
  sender_hears(IB_COMM_DEVICE_FATAL | IB_COMM_PEER_CLOSED, RAIL_SYSTEM_ERROR);
}

/* Nothing is outstanding, and nothing will ever be posted: isend reports it. */
TEST(nobody_left_to_send_to) {
  static const uint32_t news[] = {IB_COMM_PEER_CLOSED, IB_COMM_PEER_LOST, IB_COMM_PEER_SILENT};
  for (unsigned int i = 0; i < RAIL_COUNT_OF(news); i++) {
    open_plain("progress post");
    CHECK_OK(begin(&sends[0], true, 1));
    CHECK(!sends[0]);
    atomic_store(&p.sc->pending_work, news[i]);
    CHECK_INT(begin(&sends[0], true, 1), RAIL_REMOTE_ERROR);
    CHECK(!sends[0]);
    CHECK_INT(pair_lines, 1);
    pair_close(&p);
  }
}

/* ---- nothing moves ------------------------------------------------------------------------ */

/* As the watch thread would, after a while; the HCA gets its grace of a second and little more. */
static rail_result_t ask(struct ib_comm *comm, void *request) {
  int done = 0;
  comm->qps[0].attr.timeout = 1;
  atomic_fetch_or(&comm->pending_work, IB_COMM_STALLED);
  rail_result_t result = ib_test(request, &done, NULL);
  CHECK_INT(done, 0);
  return result;
}

static void check_lost(struct ib_comm *comm, void **requests, struct ib_mhandle *mh) {
  int done = 0;
  rail_result_t result = RAIL_OK;
  uint64_t begun = rail_now_ns();
  CHECK_OK(ask(comm, requests[0]));
  while (result == RAIL_OK && rail_now_ns() - begun < 10000000000ull) {
    usleep(1000);
    result = ib_test(requests[0], &done, NULL);
    CHECK(!done);
  }
  CHECK_INT(result, RAIL_SYSTEM_ERROR);
  CHECK(rail_now_ns() - begun >= 1000000000ull);
  CHECK(strstr(pair_line, "lost a work request"));
  check_failed(comm, requests, mh);
}

/* A CTS write whose end is never reported, as Soft-RoCE does when its port goes down at the wrong moment: the receiver
 * waits for the peer, and the peer for the receiver. */
TEST(a_lost_cts) {
  open_plain("progress post; stall op=write");
  CHECK_OK(begin(&recvs[0], false, 1));
  CHECK_OK(begin(&sends[0], true, 1));
  CHECK(!sends[0]);
  check_lost(p.rc, recvs, mh_in);
  pair_close(&p);
}

TEST(a_lost_send) {
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 1));
  emu_do("stall op=imm");
  CHECK_OK(begin(&sends[0], true, 1));
  check_lost(p.sc, sends, mh_out);
  pair_close(&p);
}

/* A receiver may wait for ever: its HCA is asked again and again, and answers. More often than its queue is deep. */
TEST(a_long_wait) {
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 1));
  uint32_t room = p.rc->qps[0].sq_avail;
  for (int i = 0; i < 100; i++) {
    int done = 0;
    CHECK_OK(ask(p.rc, recvs[0]));
    CHECK(p.rc->probe_deadline);
    CHECK_OK(ib_test(recvs[0], &done, NULL));
    CHECK_INT(done, 0);
    CHECK_INT(p.rc->last_progress, 0); /* the peer's process may be dead, as far as this tells */
    CHECK(!p.rc->probe_deadline && !atomic_load(&p.rc->pending_work));
  }
  CHECK_INT(p.rc->qps[0].sq_avail, room + 1); /* the CTS write's came back with the first answer, each once */
  CHECK_OK(begin(&sends[0], true, 1));
  CHECK_INT(pair_finish(recvs[0], RAIL_OK), 1700);
  CHECK_INT(pair_lines, 0);
  pair_close(&p);
}

/* A caller that tests once and then stays away finds the completion at its next test, however late. */
TEST(asked_and_gone) {
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 1));
  CHECK_OK(ask(p.rc, recvs[0]));
  p.rc->probe_deadline = 1;
  atomic_fetch_or(&p.rc->pending_work, IB_COMM_STALLED);
  int done = 0;
  for (int tests = 0; tests < 3; tests++) CHECK_OK(ib_test(recvs[0], &done, NULL));
  CHECK_INT(pair_lines, 0);
  pair_close(&p);
}

/* Without a time limit of its own an HCA has none of ours. */
TEST(no_limit) {
  open_plain("progress post; stall op=write");
  CHECK_OK(begin(&recvs[0], false, 1));
  p.rc->qps[0].attr.timeout = 0;
  atomic_fetch_or(&p.rc->pending_work, IB_COMM_STALLED);
  CHECK_OK(ib_test(recvs[0], &(int){0}, NULL));
  CHECK_INT(p.rc->probe_deadline, 0);
  pair_close(&p);
}

/* deregMr or close from another thread. */
TEST(stopped) {
  int done = 0;
  open_plain("progress post");
  for (int i = 0; i < 2; i++) CHECK_OK(begin(&recvs[i], false, i));
  CHECK_OK(begin(&sends[1], true, 1));
  CHECK_OK(ib_progress(p.rc));
  ib_comm_stop(p.rc);
  CHECK_INT(ib_test(recvs[0], &done, NULL), RAIL_BAD_USAGE);
  CHECK_INT(done, 0);
  CHECK_INT(pair_finish(recvs[1], RAIL_OK), 1700); /* it was done before */
  CHECK_INT(begin(&recvs[2], false, 2), RAIL_BAD_USAGE);
  CHECK_INT(pair_lines, 0);
  pair_close(&p);
}

/* The HCA says by and by that it has stopped. */
static void *stop_late(void *arg) {
  (void)arg;
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  for (unsigned int i = 0; i < p.rc->plan.nqps; i++) ib_qp_to_err(&p.rc->qps[i]);
  return NULL;
}

TEST(settled) {
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 0));
  ib_comm_stop(p.rc);
  CHECK(ib_comm_drain(p.rc) && ib_comm_drain(p.rc));
  pair_close(&p);
}

TEST(settled_late) {
  pthread_t thread;
  open_plain("progress post");
  for (int i = 0; i < N; i++) CHECK_OK(begin(&recvs[i], false, i));
  /* What has come, and was not polled yet, says nothing of that. */
  for (int i = 0; i < N; i++) CHECK_OK(begin(&sends[i], true, i));
  uint64_t began = rail_now_ns();
  CHECK_INT(pthread_create(&thread, NULL, stop_late, NULL), 0);
  CHECK(ib_comm_drain(p.rc));
  CHECK(rail_now_ns() - began >= 100000000);
  pthread_join(thread, NULL);
  pair_close(&p);
}

TEST(never_settled) {
  open_plain("progress post; fail modify_qp to=err times=ever");
  CHECK_OK(begin(&recvs[0], false, 0));
  ib_comm_stop(p.rc);
  uint64_t began = rail_now_ns();
  CHECK(!ib_comm_drain(p.rc));
  uint64_t once = rail_now_ns() - began;
  CHECK(once >= 1000000000);
  for (int i = 0; i < 100; i++) CHECK(!ib_comm_drain(p.rc)); /* of each of many buffers */
  CHECK(rail_now_ns() - began < once + 20000000000);
  pair_close(&p);
}

/* The clock is read where nothing was found, and then says when something last was. */
TEST(last_progress) {
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 1));
  CHECK_OK(ib_test(recvs[0], &(int){0}, NULL));
  CHECK_INT(p.rc->last_progress, 0);
  CHECK_OK(begin(&sends[0], true, 1));
  pair_finish(recvs[0], RAIL_OK);
  CHECK_OK(ib_progress(p.rc));
  CHECK(p.rc->last_progress && rail_now_ns() - p.rc->last_progress < 5000000000ull);
  CHECK_INT(p.rc->stats[IB_COMM_LAST_PROGRESS], p.rc->last_progress);
  CHECK_INT(p.sc->last_progress, 0); /* whose every look finds something has a first time, too */
  pair_finish(sends[0], RAIL_OK);
  CHECK(p.sc->last_progress);
  pair_close(&p);
}

/* A late completion answers the probe: the next wait begins anew. */
TEST(late_and_paid) {
  open_plain("progress poll");
  CHECK_OK(begin(&recvs[0], false, 1));
  CHECK_OK(ib_progress(p.rc));
  CHECK_OK(begin(&sends[0], true, 1));
  atomic_fetch_or(&p.sc->pending_work, IB_COMM_STALLED);
  p.sc->probe_deadline = rail_now_ns() + 1000000000ull;
  CHECK_INT(pair_finish(sends[0], RAIL_OK), 1700);
  for (int i = 0; i < 3; i++) CHECK_OK(ib_progress(p.sc));
  CHECK(p.sc->last_progress && !p.sc->probe_deadline);
  pair_close(&p);
}

/* What has completed and is not noted in last_progress yet is progress that the watch thread has not seen. */
TEST(progress_that_was_not_noted_yet) {
  open_plain("progress post");
  CHECK_OK(begin(&recvs[0], false, 1));
  p.rc->completions = 1;
  atomic_fetch_or(&p.rc->pending_work, IB_COMM_STALLED);
  CHECK_OK(ib_test(recvs[0], &(int){0}, NULL));
  CHECK(!p.rc->probe_deadline && !atomic_load(&p.rc->pending_work) && p.rc->last_progress);
  pair_close(&p);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(every_completion), TEST_CASE(every_call), TEST_CASE(post_recv_fails), TEST_CASE(every_request_of_sends),
    TEST_CASE(closed_behind_the_last_message), TEST_CASE(news_between_two_looks), TEST_CASE(beside_an_error),
    TEST_CASE(closed_for_a_while), TEST_CASE(closed_and_gone), TEST_CASE(bad_news_for_a_sender),
    TEST_CASE(nobody_left_to_send_to), TEST_CASE(a_lost_cts), TEST_CASE(a_lost_send), TEST_CASE(a_long_wait),
    TEST_CASE(asked_and_gone), TEST_CASE(no_limit), TEST_CASE(stopped), TEST_CASE(settled), TEST_CASE(settled_late),
    TEST_CASE(never_settled), TEST_CASE(last_progress), TEST_CASE(late_and_paid),
    TEST_CASE(progress_that_was_not_noted_yet)};
  ib_emu_use("device emu0 ports=1");
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
