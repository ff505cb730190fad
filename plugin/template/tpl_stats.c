/* SPDX-License-Identifier: Apache-2.0
 * The tables that the page of counters is made from. */
#include "plugin/template/tpl_stats.h"

#include "common/obs/stats.h"

enum { COMM, DEVICE, GROUPS };

static const struct rail_stats_counter comm_counters[] = {
  [TPL_SENT_BYTES] = {"sent_bytes", RAIL_STATS_COUNTER, "Payload sent, and received by the peer."},
  [TPL_RECEIVED_BYTES] = {"received_bytes", RAIL_STATS_COUNTER, "Payload received."},
  [TPL_MESSAGES] = {"messages", RAIL_STATS_COUNTER, "Messages that are done."},
};
static const struct rail_stats_counter device_counters[] = {
  [TPL_CONNECTS] = {"connects", RAIL_STATS_COUNTER, "Connections made from here."},
  [TPL_ACCEPTS] = {"accepts", RAIL_STATS_COUNTER, "Connections made to here."},
  [TPL_REFUSED] = {"refused", RAIL_STATS_COUNTER, "Peers that were refused: version, secret, key or busy."},
  [TPL_DROPPED] = {"dropped", RAIL_STATS_COUNTER, "Clients that were dropped because they are no peers."},
  [TPL_ERRORS] = {"errors", RAIL_STATS_COUNTER, "Communicators that failed."},
};
static const struct rail_stats_group groups[GROUPS] = {
  [COMM] = {"comm", comm_counters, TPL_COMM_COUNTERS, 4096},
  [DEVICE] = {"device", device_counters, TPL_DEVICE_COUNTERS, 64},
};

static struct rail_plugin_stats page = {.name = "RailTemplate", .groups = groups, .ngroups = GROUPS,
                                        .device_group = DEVICE, .lock = PTHREAD_MUTEX_INITIALIZER};

rail_result_t tpl_stats_open(void) { return rail_plugin_stats_open(&page); }
void tpl_stats_close(void) { rail_plugin_stats_close(&page); }

uint64_t *tpl_stats_comm(const char *side, const char *device, const union rail_addr *peer) {
  char name[RAIL_STATS_VALUE], text[RAIL_ADDR_TEXT];
  return rail_plugin_stats_take(&page, COMM, "side=%s,device=%s,peer=%s", side, rail_stats_value(name, device),
                                rail_addr_text(peer, text));
}

void tpl_stats_drop(uint64_t *record) { rail_plugin_stats_drop(&page, COMM, record); }

void tpl_stats_count(const char *device, enum tpl_device_counter counter) {
  rail_plugin_stats_count(&page, device, counter);
}
