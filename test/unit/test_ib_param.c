/* SPDX-License-Identifier: Apache-2.0
 * The ib plugin's parameters: NCCL's defaults, and what a row alone cannot check. */
#include "plugin/ib/ib_param.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static void load(const char *name, const char *value) {
  if (name) setenv(name, value, 1);
  log_forget();
  rail_log_set_sink(log_capture);
  ib_params_load();
  if (name) unsetenv(name);
}

TEST(defaults_are_nccls) {
  load(NULL, NULL);
  const struct ib_params *p = &ib_params;
  CHECK_INT(log_warnings(), 0);
  CHECK(!p->hca && !p->ibverbs_lib && !p->addr_range && !p->auth_file && !p->ports && !p->bind);
  CHECK(p->disable == 0 && p->merge_vfs == 1 && p->merge_nics == 1 && p->pci_order == 1 && p->relaxed_ordering == 2);
  CHECK(p->query_port_speed == 1 && p->gid_index == -1 && p->flid_gid_index == 1 && p->roce_version == 2);
  CHECK_STR(p->addr_family, "AF_INET");
  CHECK(p->subnet_aware == 0 && p->subnet_prefix_len == 24 && p->pkey == 0);
  CHECK(p->sl == -1 && p->tc == -1 && p->fifo_tc == -1 && p->ece == 1 && p->retry_cnt == 7);
  CHECK(p->modify_retry_all == 0 && p->modify_retries == 34 && p->modify_retry_ms == 100 && p->qps == 1);
  CHECK(p->split == 0 && p->adaptive_routing == -2 && p->ar_threshold == 8192 && p->return_async_events == 1);
  CHECK(p->flush_disable == 0 && p->timeout == 20);
  CHECK(p->use_inline == -1); /* ours */
}

TEST(a_write_is_a_power_of_two) {
  load("RAIL_IB_MAX_WRITE", "100K");
  CHECK(log_warned("RAIL_IB_MAX_WRITE=102400"));
  CHECK_INT(ib_params.max_write, 65536);
  load("RAIL_IB_MAX_WRITE", "4K");
  CHECK_INT(ib_params.max_write, 4096);
  CHECK_INT(log_warnings(), 0);
}

TEST(families_and_ranges_fit) {
  load("NCCL_IB_ADDR_FAMILY", "AF_INTE");
  CHECK(log_warned("NCCL_IB_ADDR_FAMILY=AF_INTE"));
  CHECK_STR(ib_params.addr_family, "AF_INET");
  load("NCCL_IB_ADDR_RANGE", "10.0.0.0");
  CHECK(log_warned("NCCL_IB_ADDR_RANGE=10.0.0.0 is not a range") && !ib_params.addr_range);
  load("NCCL_IB_ADDR_RANGE", "fd00::/64");
  CHECK(log_warned("not of NCCL_IB_ADDR_FAMILY") && !ib_params.addr_range);
  setenv("NCCL_IB_ADDR_FAMILY", "AF_INET6", 1);
  load("NCCL_IB_ADDR_RANGE", "fd00::/64");
  unsetenv("NCCL_IB_ADDR_FAMILY");
  CHECK_INT(log_warnings(), 0);
  CHECK_STR(ib_params.addr_range, "fd00::/64");
}

TEST(nccls_words_for_auto) {
  load("NCCL_IB_AR_THRESHOLD", "-2");
  CHECK_INT(ib_params.ar_threshold, 8192);
  load("NCCL_IB_AR_THRESHOLD", "0");
  CHECK_INT(ib_params.ar_threshold, 0);
  load("NCCL_IB_RETRY_CNT", "8");
  CHECK(log_warned("NCCL_IB_RETRY_CNT=8") && ib_params.retry_cnt == 7);
}

TEST(unknown_names_are_said) {
  load("RAIL_IB_DEADLINE", "2s");
  CHECK_INT(log_warnings(), 0);
  CHECK_INT(ib_params.deadline_ms, 2000);
  load("RAIL_IB_DETECT", "2s"); /* of earlier releases */
  CHECK(log_warned("RAIL_IB_DETECT"));
}

TEST_MAIN(TEST_CASE(defaults_are_nccls), TEST_CASE(a_write_is_a_power_of_two), TEST_CASE(families_and_ranges_fit),
          TEST_CASE(nccls_words_for_auto), TEST_CASE(unknown_names_are_said))
