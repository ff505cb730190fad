/* SPDX-License-Identifier: Apache-2.0
 * Proves: NCCL_NET_FORCE_MERGE's text against tables of devices: groups, names, ports, and what is refused. */
#include "core/transport/rt_net_devices.h"

#include <string.h>

#include "common/base/compiler.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static const struct rt_net_device table[] = {
    {.name = "mlx5_0", .port = 1, .nmembers = 1}, {.name = "mlx5_0", .port = 2, .nmembers = 1},
    {.name = "mlx5_1", .port = 1, .nmembers = 1}, {.name = "mlx5_10", .port = 1, .nmembers = 1},
    {.name = "eth0:1", .port = 0, .nmembers = 1}, {.name = "mlx5_0+mlx5_1", .port = 1, .nmembers = 2},
};

static rail_result_t next(const char **text, struct rail_net_vprops_v12 *group) {
  rail_log_set_sink(log_capture);
  log_forget();
  return rt_merge_next(text, table, (int)RAIL_COUNT_OF(table), group);
}

static bool is(const struct rail_net_vprops_v12 *group, int n, int a, int b, int c) {
  const int want[] = {a, b, c};
  return group->ndevs == n && memcmp(group->devs, want, (size_t)n * sizeof *want) == 0;
}

TEST(groups) {
  struct rail_net_vprops_v12 group;
  const char *text = ";mlx5_10,mlx5_1;;mlx5_0:2,eth0:1;";
  CHECK(next(&text, &group) == RAIL_OK && is(&group, 2, 2, 3, 0));
  CHECK(next(&text, &group) == RAIL_OK && is(&group, 2, 1, 4, 0));
  CHECK(next(&text, &group) == RAIL_OK && group.ndevs == 0);
  CHECK(next(&text, &group) == RAIL_OK && group.ndevs == 0);
}

TEST(a_name_without_port_is_every_port) {
  struct rail_net_vprops_v12 group;
  const char *text = "mlx5_0";
  CHECK(next(&text, &group) == RAIL_OK && is(&group, 2, 0, 1, 0));
  text = "mlx5_0,mlx5_0:2,mlx5_1:1";
  CHECK(next(&text, &group) == RAIL_OK && is(&group, 3, 0, 1, 2));
}

TEST(nothing) {
  struct rail_net_vprops_v12 group;
  const char *text = "";
  CHECK(next(&text, &group) == RAIL_OK && group.ndevs == 0);
  text = ";;";
  CHECK(next(&text, &group) == RAIL_OK && group.ndevs == 0);
}

static void refused(const char *words, const char *why) {
  struct rail_net_vprops_v12 group;
  const char *text = words;
  CHECK_INT(next(&text, &group), RAIL_BAD_USAGE);
  CHECK(log_said(why));
}

TEST(refused) {
  refused("mlx5_1", "\"mlx5_1\" is one device");
  refused("mlx5_1,mlx5_1", "is one device");
  refused("mlx5_1,mlx5", "has no device \"mlx5\"");
  refused("mlx5_1,mlx5_10:2", "has no device \"mlx5_10:2\"");
  refused("mlx5_1,mlx5_0:", "has no device \"mlx5_0:\"");
  refused("mlx5_1,mlx5_0:1x", "has no device");
  refused("mlx5_1,mlx5_0:99999999999", "has no device");
  refused("mlx5_1,,mlx5_0", "has no device \"\"");
  refused("mlx5_0+mlx5_1,mlx5_10", "has no device \"mlx5_0+mlx5_1\"");
}

TEST(too_many) {
  struct rt_net_device many[9];
  for (int i = 0; i < 9; i++) many[i] = (struct rt_net_device){.name = "x", .port = i, .nmembers = 1};
  struct rail_net_vprops_v12 group;
  const char *text = "x";
  rail_log_set_sink(log_capture);
  log_forget();
  CHECK_INT(rt_merge_next(&text, many, 9, &group), RAIL_BAD_USAGE);
  CHECK(log_said("more than 8 devices"));
  text = "x";
  CHECK(rt_merge_next(&text, many, 8, &group) == RAIL_OK && group.ndevs == 8);
}

TEST_MAIN(TEST_CASE(groups), TEST_CASE(a_name_without_port_is_every_port), TEST_CASE(nothing), TEST_CASE(refused),
          TEST_CASE(too_many))
