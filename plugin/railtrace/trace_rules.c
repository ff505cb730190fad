/* SPDX-License-Identifier: Apache-2.0
 * The rules' names and sentences. */
#include "plugin/railtrace/trace_rules.h"

static const struct rail_trace_rule_row rows[RAIL_RULES] = {
  [RAIL_RULE_NONE] = {"?", true, "a rule of a newer version"},
  [RAIL_RULE_RESULT] = {"result", true, "the number returned is no result of the interface"},
  [RAIL_RULE_REQUEST_UNWRITTEN] = {"request_unwritten", true, "success, but *request was not written"},
  [RAIL_RULE_REQUEST_TWICE] = {"request_twice", true, "a request that is outstanding was handed out again"},
  [RAIL_RULE_COMM_UNWRITTEN] = {"comm_unwritten", true, "success, but *comm was not written"},
  [RAIL_RULE_COMM_WITH_ERROR] = {"comm_with_error", true, "an error, but *comm is not NULL: it is closed twice"},
  [RAIL_RULE_LISTEN_NULL] = {"listen_null", true, "listen succeeded without a comm"},
  [RAIL_RULE_MHANDLE_UNWRITTEN] = {"mhandle_unwritten", true, "success, but *mhandle was not written"},
  [RAIL_RULE_DONE_UNWRITTEN] = {"done_unwritten", true, "test left *done as it was"},
  [RAIL_RULE_DONE_VALUE] = {"done_value", true, "*done is neither 0 nor 1"},
  [RAIL_RULE_SIZE_UNWRITTEN] = {"size_unwritten", true, "a receive is done, but its size was not written"},
  [RAIL_RULE_SIZE_BEYOND] = {"size_beyond", true, "a size is below 0 or beyond the buffer"},
  [RAIL_RULE_SIZES_TOO_MANY] = {"sizes_too_many", true, "sizes were written beyond the request's buffers"},
  [RAIL_RULE_SLOW_CALL] = {"slow_call", true, "listen, connect or accept kept its caller waiting"},
  [RAIL_RULE_CLOSE_ERROR] = {"close_error", true, "a close failed: NCCL leaks every later connection"},
  [RAIL_RULE_CTX_UNKNOWN] = {"ctx_unknown", false, "no context that init gave, or one that was finalized"},
  [RAIL_RULE_DEVICE_UNKNOWN] = {"device_unknown", false, "a device number that devices did not offer"},
  [RAIL_RULE_COMM_UNKNOWN] = {"comm_unknown", false, "a comm that was never handed out"},
  [RAIL_RULE_COMM_CLOSED] = {"comm_closed", false, "a comm was used after its close"},
  [RAIL_RULE_COMM_KIND] = {"comm_kind", false, "a comm of the wrong kind"},
  [RAIL_RULE_TWO_THREADS] = {"two_threads", false, "two threads in isend, irecv, iflush or test of one comm at once"},
  [RAIL_RULE_MR_UNKNOWN] = {"mr_unknown", false, "a memory handle that was never handed out"},
  [RAIL_RULE_MR_DEREGISTERED] = {"mr_deregistered", false, "a memory handle that was given back"},
  [RAIL_RULE_MR_OTHER_COMM] = {"mr_other_comm", false, "memory that is registered on another comm"},
  [RAIL_RULE_MR_RANGE] = {"mr_range", false, "the buffer is not inside of the registered memory"},
  [RAIL_RULE_MR_IN_USE] = {"mr_in_use", false, "memory was deregistered while a request uses it"},
  [RAIL_RULE_BUFFER_COUNT] = {"buffer_count", false, "fewer than 1 or more than maxRecvs buffers"},
  [RAIL_RULE_NULL_DATA] = {"null_data", false, "a buffer has a size but no address"},
  [RAIL_RULE_TOO_MANY_REQUESTS] = {"too_many_requests", false, "more than 32 x maxRecvs requests outstanding"},
  [RAIL_RULE_TAG_TWICE] = {"tag_twice", false, "one tag twice in a grouped receive"},
  [RAIL_RULE_TEST_UNKNOWN] = {"test_unknown", false, "test of something that is no request"},
  [RAIL_RULE_TEST_AFTER_DONE] = {"test_after_done", false, "test of a request that was done"},
  [RAIL_RULE_CONSUMED_UNKNOWN] = {"consumed_unknown", false, "irecvConsumed of what is no request of the comm"},
  [RAIL_RULE_CLOSE_WITH_MR] = {"close_with_mr", false, "a comm was closed with memory still registered"},
};

const struct rail_trace_rule_row *rail_trace_rule(unsigned int rule) {
  return &rows[rule < RAIL_RULES ? rule : RAIL_RULE_NONE];
}
