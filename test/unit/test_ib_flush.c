/* SPDX-License-Identifier: Apache-2.0
 * Flushes: when one is needed, how their QPs come about step by step and what is
 * left when a step fails, and what iflush waits for. */
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_progress.h"

#include <unistd.h>

#include "common/base/clock.h"
#include "test/unit/ib_pair.h"

static const struct pair_shape simple = {2, 2, 2, 30, 64, 64};
static struct pair p;
static uint8_t memory[4096];
static struct ib_mhandle *mh;

TEST(when_it_is_needed) {
  for (int disabled = 0; disabled < 2; disabled++)
    for (int gpu_direct = 0; gpu_direct < 2; gpu_direct++)
      for (int dmabuf = 0; dmabuf < 2; dmabuf++) {
        CHECK_INT(ib_flush_wanted(IB_FLUSH_AUTO, disabled, gpu_direct, dmabuf), !disabled && (gpu_direct || dmabuf));
        CHECK_INT(ib_flush_wanted(IB_FLUSH_ALWAYS, disabled, gpu_direct, dmabuf), true);
        CHECK_INT(ib_flush_wanted(IB_FLUSH_NEVER, disabled, gpu_direct, dmabuf), false);
      }
}

/* How many calls it took; the result of the last. */
static int open_flush(rail_result_t *result, struct ib_flush **flush) {
  int calls = 0;
  *flush = NULL;
  do {
    *result = ib_flush_open(p.rc);
    *flush = ib_recv_comm_of(p.rc)->flush;
    CHECK(++calls < 10000);
    if (*result == RAIL_IN_PROGRESS && calls > 20) usleep(100);
  } while (*result == RAIL_IN_PROGRESS);
  return calls;
}

static void open_one(enum ib_flush_mode mode) {
  pair_open(&p, &simple);
  mh = pair_reg(&p, p.rc, memory, sizeof memory);
  mh->memory.type = RAIL_PTR_CUDA;
  ib_params.flush = mode;
  ib_params.modify_retry_ms = 1;
  ib_params.modify_retries = 3;
  pair_lines = 0;
}

static struct ib_flush *open_good(void) {
  struct ib_flush *flush;
  rail_result_t result;
  CHECK(open_flush(&result, &flush) > 2 * 4); /* a transition at a time, on two rails */
  CHECK_OK(result);
  CHECK(flush);
  return flush;
}

static void close_one(struct ib_flush *flush) {
  CHECK(ib_recv_comm_of(p.rc)->flush == flush);
  ib_flush_close(p.rc);
  pair_close(&p);
  ib_params_load();
}

TEST(not_wanted) {
  struct ib_flush *flush;
  rail_result_t result;
  open_one(IB_FLUSH_NEVER);
  long qps = emu_live("qp");
  CHECK_INT(open_flush(&result, &flush), 1);
  CHECK(result == RAIL_OK && !flush && emu_live("qp") == qps);
  close_one(NULL);
}

/* Whatever fails leaves nothing behind; a timeout of modify is tried again in later calls. */
TEST(steps_that_fail) {
  static const char *const scripts[] = {"fail create_qp from=1 times=ever errno=ENOSPC",
                                        "fail create_qp from=2 times=ever errno=ENOSPC",
                                        "fail modify_qp to=init errno=EINVAL",
                                        "fail modify_qp to=rtr from=2 errno=EINVAL",
                                        "fail modify_qp to=rts errno=EINVAL",
                                        "fail modify_qp to=rtr times=ever",
                                        "fail query_port from=2 errno=EIO"};
  for (unsigned int i = 0; i < RAIL_COUNT_OF(scripts); i++) {
    struct ib_flush *flush;
    rail_result_t result;
    open_one(IB_FLUSH_ALWAYS);
    long qps = emu_live("qp"), mrs = emu_live("mr");
    emu_do(scripts[i]);
    open_flush(&result, &flush);
    CHECK_MSG(result == RAIL_SYSTEM_ERROR, "%s: %d", scripts[i], result);
    CHECK(!flush && emu_live("qp") == qps && emu_live("mr") == mrs);
    CHECK_INT(pair_lines, 1);
    close_one(NULL);
  }
  open_one(IB_FLUSH_ALWAYS);
  emu_do("fail modify_qp to=rtr times=2");
  close_one(open_good());
}

static void *flush_of(int n, int first, int second, struct ib_mhandle *second_mh) {
  void *data[2] = {memory, memory + 2048}, *mhs[2] = {mh, second_mh}, *request = NULL;
  int sizes[2] = {first, second};
  CHECK_OK(ib_iflush(p.rc, n, data, sizes, mhs, &request));
  CHECK(request != &p);
  return request;
}

/* One read per rail, of the last buffer that holds anything. */
TEST(what_is_read) {
  open_one(IB_FLUSH_AUTO);
  CHECK(!flush_of(2, 8, 8, mh)); /* no flush QPs: nothing to wait for */
  p.hca.gpu_direct = true;
  struct ib_flush *flush = open_good();
  long before = emu_calls("post_send");
  CHECK(!flush_of(2, 0, 0, mh));
  CHECK_INT(emu_calls("post_send"), before);
  void *request = flush_of(2, 100, 50, mh);
  CHECK(request);
  CHECK_INT(emu_calls("post_send") - before, 2);
  CHECK_INT(atomic_load(&mh->memory.outstanding), 1);
  pair_finish(request, RAIL_OK);
  CHECK_INT(atomic_load(&mh->memory.outstanding), 0);
  /* The second buffer is of host memory, or empty; then of a registration that is not there any more. */
  struct ib_mhandle host = *mh, gone = *mh;
  host.memory.type = RAIL_PTR_HOST;
  CHECK(!flush_of(2, 100, 50, &host));
  gone.rkeys[0] = gone.rkeys[1] = 0x7777;
  request = flush_of(2, 100, 0, &gone);
  pair_finish(request, RAIL_OK);
  request = flush_of(2, 100, 1, &gone);
  int done = 0;
  CHECK_INT(ib_test(request, &done, NULL), RAIL_REMOTE_ERROR);
  CHECK(strstr(pair_line, "iflush"));
  close_one(flush);
}

/* A rail's read takes its own key of the buffer: a wrong one is seen, whichever rail's it is. */
TEST(keys_by_rail) {
  for (unsigned int wrong = 0; wrong < 2; wrong++) {
    open_one(IB_FLUSH_ALWAYS);
    struct ib_flush *flush = open_good();
    struct ib_mhandle other = *mh;
    other.rkeys[wrong] = 0x7777;
    void *data = memory, *mhs = &other, *request;
    rail_result_t result = RAIL_OK;
    int done = 0;
    CHECK_OK(ib_iflush(p.rc, 1, &data, &(int){8}, &mhs, &request));
    for (int i = 0; i < 1000 && result == RAIL_OK && !done; i++) result = ib_test(request, &done, NULL);
    CHECK_MSG(result == RAIL_REMOTE_ERROR && !done, "rail %u read with another's key", wrong);
    close_one(flush);
  }
}

TEST(always) {
  open_one(IB_FLUSH_ALWAYS);
  struct ib_flush *flush = open_good();
  mh->memory.type = RAIL_PTR_HOST;
  void *request = flush_of(1, 100, 0, NULL);
  CHECK(request);
  pair_finish(request, RAIL_OK);
  close_one(flush);
}

/* The table is as large as that of receives; one more is the caller's mistake, and told: NULL would mean "done". */
TEST(many) {
  open_one(IB_FLUSH_ALWAYS);
  struct ib_flush *flush = open_good();
  void *requests[IB_MAX_FLUSHES], *request = NULL, *data = memory, *mhs = mh;
  int size = 8;
  emu_do("progress poll");
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < IB_MAX_FLUSHES; i++) CHECK((requests[i] = flush_of(1, 8, 0, NULL)));
    CHECK_INT(ib_iflush(p.rc, 1, &data, &size, &mhs, &request), RAIL_BAD_USAGE);
    CHECK(!request);
    for (int i = IB_MAX_FLUSHES; i-- > 0;) pair_finish(requests[i], RAIL_OK);
  }
  close_one(flush);
}

/* It needs no peer. */
TEST(after_a_goodbye) {
  open_one(IB_FLUSH_ALWAYS);
  struct ib_flush *flush = open_good();
  emu_do("progress poll burst=1 skip=3");
  for (int i = 0; i < 20; i++) {
    atomic_store(&p.rc->pending_work, i % 2 ? IB_COMM_PEER_CLOSED : IB_COMM_PEER_LOST);
    pair_finish(flush_of(1, 8, 0, NULL), RAIL_OK);
  }
  close_one(flush);
}

/* The HCA answers for its other queue pairs, and that counts for nothing. */
TEST(lost) {
  open_one(IB_FLUSH_ALWAYS);
  struct ib_flush *flush = open_good();
  void *data = memory, *mhs = mh, *waiting;
  size_t size = 8;
  rail_result_t result = RAIL_OK;
  uint64_t begun = rail_now_ns();
  CHECK_OK(ib_irecv(p.rc, 1, &data, &size, &(int){1}, &mhs, NULL, &waiting));
  emu_do("stall op=read");
  void *request = flush_of(1, 8, 0, NULL);
  p.rc->qps[0].attr.timeout = 1;
  while (result == RAIL_OK && rail_now_ns() - begun < 5000000000ull) {
    int done = 0;
    atomic_fetch_or(&p.rc->pending_work, IB_COMM_STALLED);
    (void)ib_test(waiting, &done, NULL); /* the first to test sees it, and then both */
    CHECK(!done);
    result = ib_test(request, &done, NULL);
    CHECK(!done);
    usleep(10000);
  }
  CHECK_INT(result, RAIL_SYSTEM_ERROR);
  CHECK(strstr(pair_line, "lost a work request"));
  close_one(flush);
}

/* With failover: a read that fails takes its rail, and the reason is kept. The peer's STOPPED is made up. */
static void *lose_a_read(struct ib_flush **flush, bool answered) {
  open_one(IB_FLUSH_ALWAYS);
  *flush = open_good();
  CHECK_OK(ib_failover_init(p.rc));
  for (int i = 0; i < 2; i++) atomic_store(&p.rc->failover->qps[i].stopped_or_refused, answered);
  emu_do("complete retry_exc_err op=read");
  return flush_of(1, 8, 0, NULL);
}

TEST(a_failed_read_is_the_loss_of_its_rail) {
  struct ib_flush *flush;
  void *request = lose_a_read(&flush, true);
  const uint64_t changes = atomic_load(&ib_qp_port(p.rc, 0)->changes);
  for (int i = 0; i < 5; i++) CHECK_OK(ib_progress(p.rc));
  CHECK_INT(atomic_load(&ib_qp_port(p.rc, 0)->changes), changes + 1); /* its GIDs are read again */
  CHECK_INT(p.rc->failover->qps[0].state, IB_FAILOVER_AWAIT_PEER);
  CHECK_INT(p.rc->failover->qps[1].state, IB_FAILOVER_UP);
  ib_qp_fault(p.rc, 0, IB_FAULT_PEER_STOPPED);
  pair_finish(request, RAIL_OK);
  CHECK(strstr(pair_line, "no acknowledgement came back") && strstr(pair_line, "RETRY_EXC_ERR"));
  close_one(flush);
}

/* Calls until it is in use again, or fails. */
static rail_result_t return_rail(unsigned int rail) {
  rail_result_t result;
  int calls = 0;
  do {
    result = ib_flush_return_rail(ib_recv_comm_of(p.rc), rail);
    CHECK(++calls < 1000);
    if (calls > 20) usleep(1000);
  } while (result == RAIL_IN_PROGRESS);
  return result;
}

static void check_reads(unsigned int expected) {
  long before = emu_calls("post_send");
  void *request = flush_of(1, 8, 0, NULL);
  CHECK_INT(emu_calls("post_send") - before, expected);
  pair_finish(request, RAIL_OK);
}

TEST(a_lost_rail_returns) {
  open_one(IB_FLUSH_ALWAYS);
  struct ib_flush *flush = open_good();
  long qps = emu_live("qp");
  check_reads(2);
  CHECK_OK(return_rail(1)); /* it was never lost */
  for (int i = 0; i < 3; i++) {
    static const char *const scripts[] = {"reset", "fail create_qp from=1 times=ever errno=ENOSPC",
                                          "fail modify_qp from=2 errno=EINVAL"};
    ib_flush_lose_rail(ib_recv_comm_of(p.rc), 1);
    check_reads(1);
    emu_do(scripts[i]);
    if (i) CHECK_INT(return_rail(1), RAIL_SYSTEM_ERROR);
    emu_do("reset");
    CHECK_OK(return_rail(1));
    CHECK_INT(emu_live("qp"), qps);
    check_reads(2);
  }
  close_one(flush);
}

TEST(a_loss_that_the_peer_cannot_be_told) {
  struct ib_flush *flush;
  rail_result_t result = RAIL_OK;
  void *request = lose_a_read(&flush, false);
  int done = 0;
  for (int i = 0; i < 100 && result == RAIL_OK && !done; i++) result = ib_test(request, &done, NULL);
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK(!done && strstr(pair_line, "no acknowledgement came back") && strstr(pair_line, "the peer cannot be notified"));
  close_one(flush);
}

TEST(bad_arguments) {
  open_one(IB_FLUSH_ALWAYS);
  struct ib_flush *flush = open_good();
  void *data = memory, *mhs = NULL, *request = NULL;
  int size = 8;
  CHECK_INT(ib_iflush(p.rc, 0, &data, &size, &mhs, &request), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_iflush(p.rc, 1, &data, &size, &mhs, &request), RAIL_BAD_ARGUMENT);
  CHECK(!request && strstr(pair_line, "mhandle"));
  mhs = mh;
  size = sizeof memory + 1;
  CHECK_INT(ib_iflush(p.rc, 1, &data, &size, &mhs, &request), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_iflush(p.sc, 1, &data, &size, &mhs, &request), RAIL_BAD_ARGUMENT);
  ib_comm_stop(p.rc);
  CHECK_INT(ib_iflush(p.rc, 1, &data, &size, &mhs, &request), RAIL_BAD_USAGE);
  close_one(flush);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(when_it_is_needed), TEST_CASE(not_wanted), TEST_CASE(steps_that_fail), TEST_CASE(what_is_read),
    TEST_CASE(keys_by_rail),
    TEST_CASE(always), TEST_CASE(many), TEST_CASE(after_a_goodbye), TEST_CASE(lost),
    TEST_CASE(a_lost_rail_returns), TEST_CASE(a_failed_read_is_the_loss_of_its_rail),
    TEST_CASE(a_loss_that_the_peer_cannot_be_told),
    TEST_CASE(bad_arguments)};
  ib_emu_use("device emu0 ports=2");
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
