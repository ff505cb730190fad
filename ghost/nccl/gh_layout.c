/* SPDX-License-Identifier: Apache-2.0
 * The table of NCCL's releases. test/e2e/test_kit_nccl.py runs those that a machine has. */
#include "ghost/nccl/gh_layout.h"

#include <stdio.h>

static const struct gh_layout layouts[] = {
    {.version = 22809, .comm_channels = 96, .channel_size = 368, .channel_index = 24, .channel_up = 36,
     .channel_down = 40, .channel_counter = 352, .coll_size = 96, .coll_recv = 8, .coll_send = 16, .coll_counts = 56,
     .coll_grains = 80, .coll_argument = 88, .rows_before_all_reduce = 1 + 4 * 3 + 3},
    {.version = 23007, .comm_channels = 96, .channel_size = 368, .channel_index = 32, .channel_up = 44,
     .channel_down = 48, .channel_counter = 360, .coll_size = 128, .coll_recv = 24, .coll_send = 32, .coll_counts = 80,
     .coll_grains = 104, .coll_argument = 112, .rows_before_all_reduce = 1 + 4 * 3 + 3 + 3},
};

const struct gh_layout *gh_layout_of(int version) {
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    if (layouts[i].version == version) return &layouts[i];
  return NULL;
}

const char *gh_layout_versions(void) {
  static char text[16 * sizeof layouts / sizeof *layouts];
  size_t used = 0;
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    int v = layouts[i].version;
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%d.%d.%d", i ? ", " : "", v / 10000, v / 100 % 100,
                             v % 100);
  }
  return text;
}
