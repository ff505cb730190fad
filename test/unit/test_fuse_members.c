/* SPDX-License-Identifier: Apache-2.0
 * Which devices a fused device has: the sets that are refused, and the order of those that are not. */
#include "common/net/fuse.h"

#include "common/base/compiler.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"

enum { SINGLE = 8, MOST = 4 }; /* devices 0 to 7; 8 is fused of 5 and 1; 7 has no PCI path */

static bool lookup(int dev, struct rail_fuse_device *device) {
  static const int single[SINGLE] = {0, 1, 2, 3, 4, 5, 6, 7}, pair[] = {1, 5};
  if (dev < 0 || dev > SINGLE) return false;
  *device = (struct rail_fuse_device){&single[dev % SINGLE], 1, "single", dev == 7 ? NULL : "/sys/0000:3b:00.0"};
  if (dev == SINGLE) *device = (struct rail_fuse_device){pair, 2, "pair", "/sys/0000:3b:00.0"};
  return true;
}

static const struct rail_fuse_rules rules = {.plugin = "RailTest", .lookup = lookup, .max_members = MOST,
                                             .max_devices = SINGLE + 2};

static void refused(int ndevs, const int *devs, rail_result_t result, const char *words) {
  struct rail_net_vprops_v12 props = {.ndevs = ndevs};
  int members[MOST + 1], count, same;
  for (int i = 0; i < ndevs && i < (int)RAIL_COUNT_OF(props.devs); i++) props.devs[i] = devs[i];
  members[MOST] = -7;
  rail_log_set_sink(log_capture);
  log_forget();
  CHECK_INT(rail_fuse_members(&rules, &props, SINGLE + 1, members, &count, &same), result);
  if (words) CHECK_MSG(log_said(words), "\"%s\" was not said, but: %s", words, log_lines);
  CHECK_INT(members[MOST], -7); /* there is room for so many only */
  rail_log_set_sink(NULL);
}

TEST(sets_that_are_refused) {
  refused(0, NULL, RAIL_BAD_ARGUMENT, "0 devices; allowed: 1 to 4");
  refused(-3, NULL, RAIL_BAD_ARGUMENT, "-3 devices");
  refused(1, (int[]){9}, RAIL_BAD_ARGUMENT, NULL);
  refused(1 << 30, (int[32]){0}, RAIL_BAD_ARGUMENT, "1073741824 devices");
  refused(2, (int[]){0, 9}, RAIL_BAD_ARGUMENT, NULL); /* which the lookup has told */
  refused(2, (int[]){3, 3}, RAIL_BAD_ARGUMENT, "device 3 is named twice");
  refused(2, (int[]){5, 8}, RAIL_BAD_ARGUMENT, "device 5 is named twice"); /* by the fused one */
  refused(5, (int[]){0, 1, 2, 3, 4}, RAIL_BAD_ARGUMENT, "more than 4 devices");
  refused(4, (int[]){0, 2, 3, 8}, RAIL_BAD_ARGUMENT, "more than 4 devices");
  refused(2, (int[]){0, 7}, RAIL_BAD_ARGUMENT, "device 7 (single) has no PCI path");
}

TEST(members_ascend) {
  static const struct { int ndevs, devs[4], count, members[4]; } sets[] = {
    {2, {0, 1}, 2, {0, 1}}, {2, {6, 2}, 2, {2, 6}}, {3, {4, 8, 0}, 4, {0, 1, 4, 5}},
    {4, {3, 2, 1, 0}, 4, {0, 1, 2, 3}}};
  for (size_t i = 0; i < RAIL_COUNT_OF(sets); i++) {
    struct rail_net_vprops_v12 props = {.ndevs = sets[i].ndevs};
    int members[MOST], count, same;
    memcpy(props.devs, sets[i].devs, sizeof sets[i].devs);
    CHECK_OK(rail_fuse_members(&rules, &props, SINGLE + 1, members, &count, &same));
    CHECK_INT(count, sets[i].count);
    CHECK_INT(same, -1);
    for (int k = 0; k < count; k++) CHECK_INT(members[k], sets[i].members[k]);
  }
}

TEST(a_device_with_the_same_members_is_found) {
  struct rail_net_vprops_v12 props = {.ndevs = 2, .devs = {5, 1}};
  int members[MOST], count, same;
  CHECK_OK(rail_fuse_members(&rules, &props, SINGLE + 1, members, &count, &same));
  CHECK_INT(same, SINGLE);
  CHECK_OK(rail_fuse_members(&rules, &props, SINGLE, members, &count, &same)); /* when it was not made yet */
  CHECK_INT(same, -1);
}

TEST(one_device_gets_one_of_its_own) {
  struct rail_net_vprops_v12 props = {.ndevs = 1, .devs = {7}};
  int members[MOST], count, same;
  CHECK_OK(rail_fuse_members(&rules, &props, SINGLE + 1, members, &count, &same));
  CHECK(same == -1 && count == 1 && members[0] == 7);
  props.devs[0] = SINGLE;
  CHECK_OK(rail_fuse_members(&rules, &props, SINGLE + 1, members, &count, &same));
  CHECK_INT(same, SINGLE); /* it is one of its own */
}

TEST(no_room_for_more) {
  struct rail_net_vprops_v12 props = {.ndevs = 1, .devs = {7}};
  struct rail_fuse_rules full = rules;
  int members[MOST], count, same;
  full.max_devices = SINGLE + 1;
  CHECK_OK(rail_fuse_members(&full, &props, SINGLE + 1, members, &count, &same));
  CHECK_INT(same, 7);
  props = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {1, 2}};
  rail_log_set_sink(log_capture);
  log_forget();
  CHECK_INT(rail_fuse_members(&full, &props, SINGLE + 1, members, &count, &same), RAIL_BAD_ARGUMENT);
  CHECK_MSG(log_said("there are 9 devices already"), "but: %s", log_lines);
  rail_log_set_sink(NULL);
}

TEST_MAIN(TEST_CASE(one_device_gets_one_of_its_own), TEST_CASE(no_room_for_more), TEST_CASE(sets_that_are_refused),
          TEST_CASE(members_ascend), TEST_CASE(a_device_with_the_same_members_is_found))
