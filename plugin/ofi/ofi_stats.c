/* SPDX-License-Identifier: Apache-2.0
 * The tables that the page of counters is made from. */
#include "plugin/ofi/ofi_stats.h"

#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/ofi/ofi_comm.h"

enum { GROUP_COMM, GROUP_DEVICE, GROUPS };

static const struct rail_stats_counter comm_counters[] = {
  [OFI_COMM_BYTES] = {"bytes", RAIL_STATS_COUNTER, "Payload of messages that are done."},
  [OFI_COMM_MESSAGES] = {"messages", RAIL_STATS_COUNTER, "Messages that are done."},
  [OFI_COMM_INLINE] = {"inline_messages", RAIL_STATS_COUNTER, "Messages that travelled inside a control message."},
  [OFI_COMM_FRAMES] = {"control_messages", RAIL_STATS_COUNTER, "Control messages posted."},
  [OFI_COMM_COMPLETIONS] = {"completions", RAIL_STATS_COUNTER, "Operations that libfabric has completed."},
  [OFI_COMM_OUTSTANDING] = {"outstanding", RAIL_STATS_GAUGE, "Requests that are not done."},
  [OFI_COMM_WAITS_GRANT] = {"waits_grant", RAIL_STATS_COUNTER,
                            "Calls of isend that found no receive of their tag posted."},
  [OFI_COMM_WAITS_ROOM] = {"waits_room", RAIL_STATS_COUNTER,
                           "Calls that found no free request, or the endpoint in use by another thread."},
};
static const struct rail_stats_counter device_counters[] = {
  [OFI_DEVICE_CONNECTED] = {"connects", RAIL_STATS_COUNTER, "Connections made from here."},
  [OFI_DEVICE_ACCEPTED] = {"accepts", RAIL_STATS_COUNTER, "Connections made to here."},
  [OFI_DEVICE_REFUSED] = {"refused", RAIL_STATS_COUNTER, "Peers that were refused, or refused this side."},
  [OFI_DEVICE_DROPPED] = {"dropped", RAIL_STATS_COUNTER, "Clients that were dropped because they are no peers."},
  [OFI_DEVICE_COMMS] = {"comms", RAIL_STATS_GAUGE, "Connections that are open."},
  [OFI_DEVICE_ERRORS] = {"errors", RAIL_STATS_COUNTER, "Connections that failed."},
};
static const struct rail_stats_group groups[GROUPS] = {
  [GROUP_COMM] = {"comm", comm_counters, OFI_COMM_COUNTERS, 4096},
  [GROUP_DEVICE] = {"device", device_counters, OFI_DEVICE_COUNTERS, 128},
};

static struct rail_plugin_stats page = {.name = "RailOFI", .groups = groups, .ngroups = GROUPS,
                                        .device_group = GROUP_DEVICE, .lock = PTHREAD_MUTEX_INITIALIZER};

rail_result_t ofi_stats_open(void) { return rail_plugin_stats_open(&page); }
void ofi_stats_close(void) { rail_plugin_stats_close(&page); }

void ofi_stats_count(const char *device, enum ofi_stats_device counter) {
  rail_plugin_stats_count(&page, device, counter);
}

static void count_comm(const struct ofi_comm *comm, int64_t by) {
  uint64_t *record = rail_plugin_stats_device(&page, comm->device->name);
  if (record) rail_stats_add_shared(&record[OFI_DEVICE_COMMS], (uint64_t)by);
}

rail_result_t ofi_stats_comm_begin(struct ofi_comm *comm) {
  char device[RAIL_STATS_VALUE], provider[RAIL_STATS_VALUE];
  comm->stats = rail_plugin_stats_take(&page, GROUP_COMM, "side=%s,device=%s,provider=%s,peer=%s",
                                       comm->sender ? "send" : "receive", rail_stats_value(device, comm->device->name),
                                       rail_stats_value(provider, comm->device->rails[0]->provider), comm->peer_text);
  comm->stats_private = !comm->stats;
  if (!comm->stats) comm->stats = calloc(OFI_COMM_COUNTERS, sizeof *comm->stats);
  if (!comm->stats) {
    RAIL_WARN("RailOFI: connection with %s: out of memory for counters", comm->peer_text);
    return RAIL_SYSTEM_ERROR;
  }
  count_comm(comm, 1);
  return RAIL_OK;
}

void ofi_stats_comm_end(struct ofi_comm *comm) {
  if (!comm->stats) return;
  count_comm(comm, -1);
  if (comm->stats_private) free(comm->stats);
  else rail_plugin_stats_drop(&page, GROUP_COMM, comm->stats);
  comm->stats = NULL;
}
