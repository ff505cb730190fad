/* SPDX-License-Identifier: Apache-2.0
 * A connection of the ib plugin over emulated devices that are fused. */
#ifndef RAIL_TEST_IB_RAILS_H
#define RAIL_TEST_IB_RAILS_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "loader/install_dirs.h"
#include "test/harness/program.h"

static int rails_fuse(const struct kit_net *net, int first, int n) {
  struct rail_net_vprops_v12 props = {.ndevs = n};
  int dev = -1;
  if (n == 1) return first;
  for (int i = 0; i < n; i++) props.devs[i] = first + i;
  ENSURE_INT(net->vt->make_vdevice(&dev, &props), 0);
  return dev;
}

/* Opens the plugin, and listens on the receiver's device: the sender's is made of emu0 and the n - 1 that follow, the
 * receiver's of the next n. Call after emu_use and with the parameters set; then kit_pair_connect. */
static void rails_open(struct kit_net *net, struct kit_pair *pair, int n) {
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
}

__attribute__((unused)) static void rails_connect(struct kit_net *net, struct kit_pair *pair, int n) {
  rails_open(net, pair, n);
  kit_pair_connect(pair);
  ENSURE_INT(net->vt->close_listen(pair->listen), 0);
  pair->listen = NULL;
}

#endif
