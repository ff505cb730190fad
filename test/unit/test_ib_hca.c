/* SPDX-License-Identifier: Apache-2.0
 * NCCL_IB_HCA. */
#include "plugin/ib/ib_param.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static struct ib_hca_filter filter;
static int16_t rail, plane;

static void parse(const char *text) {
  log_forget();
  rail_log_set_sink(log_capture);
  ib_hca_filter_parse(text, &filter);
}
static bool passes(const char *name, int port) { return ib_hca_filter_passes(&filter, name, port, &rail, &plane); }

TEST(nothing_said_lets_everything_pass) {
  static const char *const texts[] = {NULL, "", ",", "^", "=", "^=", "^,,"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    parse(texts[i]);
    CHECK_MSG(passes("mlx5_0", 1), "'%s' keeps mlx5_0 out", texts[i] ? texts[i] : "(unset)");
    CHECK(rail == -1 && plane == -1);
  }
}

TEST(names_are_prefixes_unless_exact) {
  parse("mlx5_1");
  CHECK(passes("mlx5_1", 1) && passes("mlx5_10", 2) && !passes("mlx5_2", 1) && !passes("mlx5_", 1));
  parse("=mlx5_1");
  CHECK(passes("mlx5_1", 1) && !passes("mlx5_10", 1));
  parse("mlx5,bnxt");
  CHECK(passes("mlx5_7", 1) && passes("bnxt_re0", 1) && !passes("rxe0", 1));
}

TEST(a_list_may_exclude) {
  parse("^mlx5_1,rxe");
  CHECK(passes("mlx5_0", 1) && !passes("mlx5_1", 1) && !passes("mlx5_12", 1) && !passes("rxe0", 1));
  parse("^=mlx5_1:2");
  CHECK(passes("mlx5_1", 1) && !passes("mlx5_1", 2) && passes("mlx5_12", 2));
}

TEST(ports_rails_and_planes) {
  parse("=mlx5_0:1:3:1,mlx5_1::4,mlx5_2:2,mlx5_3:::7,mlx5_4:::,mlx5_5:255:32767:32767");
  CHECK(passes("mlx5_0", 1) && rail == 3 && plane == 1);
  CHECK(!passes("mlx5_0", 2) && rail == -1);
  CHECK(passes("mlx5_1", 9) && rail == 4 && plane == -1);
  CHECK(passes("mlx5_2", 2) && !passes("mlx5_2", 1) && rail == -1);
  CHECK(passes("mlx5_3", 1) && rail == -1 && plane == 7);
  CHECK(passes("mlx5_4", 1) && rail == -1 && plane == -1);
  CHECK(passes("mlx5_5", 255) && rail == 32767 && plane == 32767);
  CHECK_INT(log_warnings(), 0);
}

TEST(the_first_entry_that_fits_counts) {
  parse("mlx5_1:1:5,mlx5:1:6");
  CHECK(passes("mlx5_1", 1) && rail == 5);
  CHECK(passes("mlx5_2", 1) && rail == 6);
}

TEST(bad_entries_are_named_and_left_out) {
  static const char *const bad[] = {":1", "mlx5_0:x", "mlx5_0:1x", "mlx5_0:0", "mlx5_0:256", "mlx5_0:-1", "mlx5_0: 1",
                                    "mlx5_0:1:32768", "mlx5_0:1:2:99999999999999999999", "mlx5_0:1:2:3:4",
                                    "a123456789012345678901234567890123456789012345678901234567890123456789"};
  char text[200];
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    snprintf(text, sizeof text, "%s,mlx5_1", bad[i]);
    parse(text);
    snprintf(text, sizeof text, "'%s'", bad[i]);
    CHECK_MSG(log_warned(text), "%s is not complained about", text);
    CHECK_INT(filter.count, 1);
    CHECK(!passes("mlx5_0", 1) && passes("mlx5_1", 1));
  }
  parse("mlx5_0:x"); /* a slip of the pen is not "everything" */
  CHECK(!passes("mlx5_0", 1));
  parse("^mlx5_0:x");
  CHECK(passes("mlx5_0", 1));
}

TEST(there_may_be_32) {
  char text[400] = "=";
  for (int i = 0; i < 33; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "d%d,", i);
  parse(text);
  CHECK(log_warned("'d32' is one more than the 32"));
  CHECK(passes("d31", 1) && !passes("d32", 1));
}

TEST_MAIN(TEST_CASE(nothing_said_lets_everything_pass), TEST_CASE(names_are_prefixes_unless_exact),
          TEST_CASE(a_list_may_exclude), TEST_CASE(ports_rails_and_planes), TEST_CASE(the_first_entry_that_fits_counts),
          TEST_CASE(bad_entries_are_named_and_left_out), TEST_CASE(there_may_be_32))
