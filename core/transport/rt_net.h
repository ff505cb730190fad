/* SPDX-License-Identifier: Apache-2.0
 * The plugin behind a communicator's NET connections. */
#ifndef RT_NET_H
#define RT_NET_H

#include "common/base/result.h"

struct ncclComm;

/* Loads and initialises the plugin (NCCL_NET_PLUGIN, NCCL_NET, config.netName), once per communicator. */
rail_result_t rt_net_open(struct ncclComm *comm);
void rt_net_close(struct ncclComm *comm);

#endif
