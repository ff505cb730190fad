/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection of the ib plugin over emulated devices that are fused, and what its sender in this process counts of
 * each rail. The program links tools/rail-stat/stats_read.
 */
#ifndef RAIL_TEST_IB_RAILS_H
#define RAIL_TEST_IB_RAILS_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "loader/install_dirs.h"
#include "test/harness/program.h"
#include "tools/rail-stat/stats_read.h"

static int rails_fuse(const struct kit_net *net, int first, int n) {
  struct rail_net_vprops_v12 props = {.ndevs = n};
  int dev = -1;
  for (int i = 0; i < n; i++) props.devs[i] = first + i;
  ENSURE_INT(net->vt->make_vdevice(&dev, &props), 0);
  return dev;
}

/* The sender's device is made of emu0 and the n - 1 that follow, the receiver's of the next n. Call after emu_use and
 * with the parameters set. */
static void rails_connect(struct kit_net *net, struct kit_pair *pair, int n) {
  static char plugin[4096];
  ENSURE(rail_path_from_bin(plugin, "../../lib/libnccl-net-ib.so"), "no path");
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
  kit_net_target(plugin, 12, 0);
  kit_net_open(net);
  memset(pair, 0, sizeof *pair);
  pair->net = net;
  int sender = rails_fuse(net, 0, n);
  net->dev = rails_fuse(net, n, n);
  pair->listen = kit_net_listen(net, pair->handle);
  net->dev = sender;
  kit_pair_connect(pair);
  ENSURE_INT(net->vt->close_listen(pair->listen), 0);
  pair->listen = NULL;
}

/* The values of a counter, of `most` rails at most. Returns how many. */
static int rails_look(const char *counter, uint64_t *values, int most) {
  char file[64], why[256];
  int n = 0;
  snprintf(file, sizeof file, RAIL_STATS_PREFIX "%d.RailIB", (int)getpid());
  struct rail_stats_view *v = rail_stats_read(RAIL_STATS_DIR, file, why, sizeof why);
  ENSURE(v, "%s", why);
  for (uint32_t g = 0; g < v->ngroups; g++)
    for (uint32_t r = 0; strcmp(v->groups[g].name, "rail") == 0 && r < v->groups[g].nrecords; r++, n++) {
      ENSURE(n < most, "%u records of rails", v->groups[g].nrecords);
      for (uint32_t c = 0; c < v->groups[g].ncounters; c++)
        if (strcmp(v->groups[g].counters[c].name, counter) == 0) values[n] = v->groups[g].records[r].values[c];
    }
  rail_stats_view_free(v);
  return n;
}

#endif
