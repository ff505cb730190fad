/* SPDX-License-Identifier: Apache-2.0
 * Errors in words: every status has a row, a failure is one line with all that is known, and the first one is final. */
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_rig.h"

TEST(every_status_has_a_row) {
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_TM_RNDV_INCOMPLETE; status++) {
    const struct ib_error_row *row = ib_error_row((enum ibv_wc_status)status);
    CHECK_INT(row->status, status);
    CHECK(row->name[0] && row->what[0] && row->check[0]);
    CHECK_INT(row->result == RAIL_OK, status == IBV_WC_SUCCESS);
    for (int other = 0; other < status; other++)
      CHECK_MSG(strcmp(ib_error_row((enum ibv_wc_status)other)->name, row->name) != 0, "two rows %s", row->name);
  }
  CHECK_INT(ib_error_row((enum ibv_wc_status)77)->result, RAIL_SYSTEM_ERROR);
  CHECK_INT(ib_error_row((enum ibv_wc_status)-1)->result, RAIL_SYSTEM_ERROR);
}

TEST(whose_fault_it_is) {
  static const struct { enum ibv_wc_status status; rail_result_t result; const char *name; } known[] = {
    {IBV_WC_RETRY_EXC_ERR, RAIL_REMOTE_ERROR, "RETRY_EXC_ERR"},
    {IBV_WC_RNR_RETRY_EXC_ERR, RAIL_REMOTE_ERROR, "RNR_RETRY_EXC_ERR"},
    {IBV_WC_REM_ACCESS_ERR, RAIL_REMOTE_ERROR, "REM_ACCESS_ERR"},
    {IBV_WC_REM_OP_ERR, RAIL_REMOTE_ERROR, "REM_OP_ERR"},
    {IBV_WC_REM_INV_REQ_ERR, RAIL_REMOTE_ERROR, "REM_INV_REQ_ERR"},
    {IBV_WC_REM_ABORT_ERR, RAIL_REMOTE_ERROR, "REM_ABORT_ERR"},
    {IBV_WC_RESP_TIMEOUT_ERR, RAIL_REMOTE_ERROR, "RESP_TIMEOUT_ERR"},
    {IBV_WC_WR_FLUSH_ERR, RAIL_REMOTE_ERROR, "WR_FLUSH_ERR"},
    {IBV_WC_LOC_PROT_ERR, RAIL_SYSTEM_ERROR, "LOC_PROT_ERR"},
    {IBV_WC_LOC_QP_OP_ERR, RAIL_SYSTEM_ERROR, "LOC_QP_OP_ERR"},
    {IBV_WC_FATAL_ERR, RAIL_SYSTEM_ERROR, "FATAL_ERR"},
    {IBV_WC_GENERAL_ERR, RAIL_SYSTEM_ERROR, "GENERAL_ERR"},
    {IBV_WC_LOC_LEN_ERR, RAIL_INTERNAL_ERROR, "LOC_LEN_ERR"},
    {IBV_WC_TM_ERR, RAIL_INTERNAL_ERROR, "TM_ERR"},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(known); i++) {
    CHECK_INT(ib_error_row(known[i].status)->result, known[i].result);
    CHECK_STR(ib_error_row(known[i].status)->name, known[i].name);
  }
}

TEST(vendor_errors) {
  CHECK_STR(ib_error_vendor(0x02c9, 0x81), "transport retries used up");
  CHECK(strstr(ib_error_vendor(0x02c9, 0x88), "access denied"));
  CHECK(!ib_error_vendor(0x02c9, 0x01));
  CHECK(!ib_error_vendor(0x14e4, 0x81)); /* another vendor's numbers mean something else */
}

static struct ibv_wc failed(const struct ib_comm *comm, enum ib_wr_kind kind, enum ibv_wc_status status,
                            uint32_t vendor) {
  return (struct ibv_wc){.wr_id = ib_wr_id(kind, 1, 1, 3), .status = status, .vendor_err = vendor,
                         .qp_num = comm->qps[1].qp->qp_num, .opcode = (enum ibv_wc_opcode)12345};
}

static void expect(const char *words) {
  CHECK_MSG(strstr(log_warning, words), "no \"%s\" in %s", words, log_warning);
}

/* The line, field by field. */
TEST(a_line) {
  char numbers[80];
  struct ib_comm *comm = rig_comm(true, RIG_COUNTED, 2, NULL);
  struct ib_port *port = comm->rails[0].port;
  uint32_t vendor_id = port->hca->attr.vendor_id;
  uint64_t errors = rail_stats_get(&port->stats[IB_DEVICE_ERRORS]), flaps = atomic_exchange(&port->flaps, 3);
  struct ibv_wc wc = failed(comm, IB_WR_SEND, IBV_WC_RETRY_EXC_ERR, 0x81);
  comm->last_progress = rail_now_ns() - 3200 * 1000000ull;
  port->hca->attr.vendor_id = 0x02c9;
  atomic_fetch_or(&port->faults, IB_PORT_DOWN);
  log_forget();
  CHECK_INT(ib_error_completion(comm, &wc), RAIL_REMOTE_ERROR);
  CHECK_INT(rail_first_error(&comm->error), RAIL_REMOTE_ERROR);
  CHECK_INT(log_warnings(), 1);
  expect("RailIB: isend of ");
  expect(" bytes to 10.0.0.2:4711 over emu0 (GID 10.0.0.1 to 10.0.0.2, QP ");
  snprintf(numbers, sizeof numbers, "QP %#x to 0x99): ", wc.qp_num);
  expect(numbers);
  expect("no acknowledgement came back");
  expect("(IBV_WC_RETRY_EXC_ERR, status 12, vendor error 0x81: transport retries used up)");
  expect("retries: 7 after 0.537 s each, about 4.3 s in all (timeout 17, retry_cnt 7)");
  expect("last progress 3.2 s ago");
  expect("port is DOWN, went down 3 times");
  expect("check: ");
  expect("4791");
  CHECK_INT(rail_stats_get(&port->stats[IB_DEVICE_ERRORS]), errors + 1);

  wc.status = IBV_WC_WR_FLUSH_ERR; /* what follows from it is silent, and changes nothing */
  CHECK_INT(ib_error_completion(comm, &wc), RAIL_REMOTE_ERROR);
  wc.status = IBV_WC_LOC_PROT_ERR;
  CHECK_INT(ib_error_completion(comm, &wc), RAIL_REMOTE_ERROR);
  CHECK_INT(ib_error_faults(comm, IB_COMM_CQ_ERROR), RAIL_REMOTE_ERROR);
  CHECK_INT(ib_error_post(comm, &comm->qps[0], "ibv_post_send", ENOMEM), RAIL_REMOTE_ERROR);
  CHECK_INT(log_warnings(), 1);
  CHECK_INT(rail_stats_get(&port->stats[IB_DEVICE_ERRORS]), errors + 1);
  atomic_fetch_and(&port->faults, ~IB_PORT_DOWN);
  atomic_store(&port->flaps, flaps);
  port->hca->attr.vendor_id = vendor_id;
  ib_comm_destroy(comm);
}

static struct ib_comm *line_of(enum ib_wr_kind kind, enum ibv_wc_status status) {
  struct ib_comm *comm = rig_comm(kind == IB_WR_SEND, RIG_COUNTED, 2, NULL);
  struct ibv_wc wc = failed(comm, kind, status, 0x123);
  log_forget();
  CHECK_INT(ib_error_completion(comm, &wc), ib_error_row(status)->result);
  CHECK_INT(log_warnings(), 1);
  expect("vendor error 0x123)");
  expect("nothing ever completed; port is up");
  return comm;
}

TEST(operations) {
  struct ib_comm *comm = line_of(IB_WR_RECV, IBV_WC_LOC_LEN_ERR);
  expect("RailIB: irecv from 10.0.0.2:4711");
  ib_comm_destroy(comm);
  comm = line_of(IB_WR_CTS, IBV_WC_REM_ACCESS_ERR);
  expect("RailIB: irecv (CTS write) from 10.0.0.2:4711");
  ib_comm_destroy(comm);
  comm = line_of(IB_WR_VERIFY, IBV_WC_RETRY_EXC_ERR);
  expect("RailIB: the connection's first write to 10.0.0.2:4711");
  ib_comm_destroy(comm);
  comm = line_of((enum ib_wr_kind)99, IBV_WC_GENERAL_ERR); /* what a driver makes of wr_id */
  expect("RailIB: a transfer with 10.0.0.2:4711");
  ib_comm_destroy(comm);

  comm = rig_comm(false, RIG_COUNTED, 2, NULL); /* the flush QP is none of the data QPs */
  struct ibv_wc wc = failed(comm, IB_WR_FLUSH, IBV_WC_WR_FLUSH_ERR, 0);
  wc.qp_num = 0xabcdef;
  log_forget();
  CHECK_INT(ib_error_completion(comm, &wc), RAIL_REMOTE_ERROR);
  expect("iflush of what came from 10.0.0.2:4711 over emu0 (QP 0xabcdef, connected to itself)");
  CHECK(!strstr(log_warning, "retries:"));
  ib_comm_destroy(comm);
}

/* Two HCAs of one kind give their queue pairs the same numbers. */
TEST(equal_numbers) {
  struct ib_comm *comm = rig_comm(true, RIG_COUNTED, 2, NULL);
  uint32_t number = comm->qps[0].qp->qp_num;
  comm->qps[0].qp->qp_num = comm->qps[1].qp->qp_num;
  comm->qps[1].attr.dest_qpn = 0x77;
  struct ibv_wc wc = failed(comm, IB_WR_SEND, IBV_WC_RETRY_EXC_ERR, 0);
  log_forget();
  CHECK_INT(ib_error_completion(comm, &wc), RAIL_REMOTE_ERROR);
  expect(" to 0x77): ");
  comm->qps[0].qp->qp_num = number;
  ib_comm_destroy(comm);
}

/* An InfiniBand port has a LID, and no time limit has no seconds. */
TEST(infiniband_without_a_time_limit) {
  struct ib_comm *comm = rig_comm(true, RIG_COUNTED, 2, NULL);
  struct ibv_wc wc = failed(comm, IB_WR_SEND, IBV_WC_REM_OP_ERR, 0);
  struct ib_port *port = comm->rails[0].port;
  port->roce = false;
  comm->qps[1].attr.dlid = 17;
  comm->qps[1].attr.timeout = 0;
  CHECK_INT(ib_error_completion(comm, &wc), RAIL_REMOTE_ERROR);
  port->roce = true;
  expect("to 10.0.0.2, LID 17, QP");
  expect("no time limit (timeout 0)");
  ib_comm_destroy(comm);
}

TEST(a_stopped_comm_fails_silently) {
  struct ib_comm *comm = rig_comm(true, RIG_COUNTED, 2, NULL);
  struct ibv_wc wc = failed(comm, IB_WR_SEND, IBV_WC_WR_FLUSH_ERR, 0);
  ib_comm_stop(comm);
  log_forget();
  CHECK_INT(ib_error_completion(comm, &wc), RAIL_BAD_USAGE);
  CHECK_INT(log_warnings(), 0);
  ib_comm_destroy(comm);
}

TEST(faults) {
  static const struct { uint32_t bits; rail_result_t result; const char *words; } known[] = {
    {IB_COMM_QP_FATAL, RAIL_SYSTEM_ERROR, "a queue pair failed"},
    {IB_COMM_CQ_ERROR, RAIL_SYSTEM_ERROR, "CQ_ERR"},
    {IB_COMM_DEVICE_FATAL | IB_COMM_PEER_LOST, RAIL_SYSTEM_ERROR, "DEVICE_FATAL"},
    {IB_COMM_PEER_CLOSED, RAIL_REMOTE_ERROR, "closed the connection"},
    {IB_COMM_PEER_LOST | IB_COMM_PEER_CLOSED, RAIL_REMOTE_ERROR, "process or host is gone"},
    {IB_COMM_PEER_SILENT, RAIL_REMOTE_ERROR, "RAIL_IB_PEER_TIMEOUT"},
    {IB_COMM_HOST_SILENT, RAIL_REMOTE_ERROR, "RAIL_IB_DEADLINE"},
    {IB_COMM_STALLED, RAIL_SYSTEM_ERROR, "lost a work request"},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(known); i++) {
    struct ib_comm *comm = rig_comm(false, RIG_COUNTED, 1, NULL);
    atomic_store(&comm->outstanding, 5);
    log_forget();
    CHECK_INT(ib_error_faults(comm, 0), RAIL_OK);
    CHECK_INT(ib_error_faults(comm, known[i].bits), known[i].result);
    CHECK_INT(rail_first_error(&comm->error), known[i].result);
    CHECK_INT(log_warnings(), 1);
    expect("RailIB: receiving from 10.0.0.2:4711 over emu0: ");
    expect(known[i].words);
    expect("5 requests outstanding");
    ib_comm_destroy(comm);
  }
}

TEST(posting) {
  struct ib_comm *comm = rig_comm(true, RIG_COUNTED, 2, NULL);
  log_forget();
  CHECK_INT(ib_error_post(comm, &comm->qps[1], "ibv_post_send", ENOMEM), RAIL_SYSTEM_ERROR);
  expect("sending to 10.0.0.2:4711 over emu0 (GID 10.0.0.1 to 10.0.0.2, QP ");
  expect("): ibv_post_send: Cannot allocate memory; port is up");
  ib_comm_destroy(comm);
  comm = rig_comm(true, RIG_COUNTED, 2, NULL);
  CHECK_INT(ib_error_post(comm, NULL, "ibv_poll_cq", 0), RAIL_SYSTEM_ERROR);
  expect("over emu0: ibv_poll_cq: failed; ");
  ib_comm_destroy(comm);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(every_status_has_a_row),
    TEST_CASE(whose_fault_it_is),
    TEST_CASE(vendor_errors),
    TEST_CASE(a_line),
    TEST_CASE(operations), TEST_CASE(equal_numbers),
    TEST_CASE(infiniband_without_a_time_limit),
    TEST_CASE(a_stopped_comm_fails_silently),
    TEST_CASE(faults),
    TEST_CASE(posting),
  };
  rig_use(NULL);
  if (ib_stats_open() != RAIL_OK) abort();
  int failed_cases = tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
  ib_stats_close();
  return failed_cases;
}
