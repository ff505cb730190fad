/* SPDX-License-Identifier: Apache-2.0
 * The plugin's page of counters, with the records of ports and comms; events for NCCL's profiler. */
#include "plugin/ib/ib_stats.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/obs/stats.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_progress.h"

enum { GROUP_COMM, GROUP_DEVICE, GROUP_RAIL, GROUPS };

static const struct rail_stats_counter comm_counters[] = {
  [IB_COMM_BYTES] = {"bytes", RAIL_STATS_COUNTER, "Payload of messages that are done."},
  [IB_COMM_MESSAGES] = {"messages", RAIL_STATS_COUNTER, "Messages that are done."},
  [IB_COMM_WRITES] = {"writes", RAIL_STATS_COUNTER,
                      "RDMA writes, or SENDs, posted: of data on the sending side, of clear-to-send on the receiving "
                      "one."},
  [IB_COMM_WAITS_CTS] = {"waits_cts", RAIL_STATS_COUNTER, "Times that a send found no receive buffer with its tag."},
  [IB_COMM_WAITS_ROOM] = {"waits_room", RAIL_STATS_COUNTER,
                          "Times that a send or receive found its table or a send queue full."},
  [IB_COMM_LOST] = {"lost", RAIL_STATS_COUNTER, "Queue pairs that failed while the connection went on over others."},
  [IB_COMM_RESENT] = {"resent", RAIL_STATS_COUNTER,
                      "Parts of messages, or CTS entries, that were written again because of that."},
  [IB_COMM_RETURNED] = {"returned", RAIL_STATS_COUNTER, "Queue pairs that were lost, and are in use again."},
  [IB_COMM_WAITS_EVENT] = {"waits_event", RAIL_STATS_COUNTER,
                           "Times that test waited for a completion of any connection of its thread "
                           "(RAIL_IB_PROGRESS)."},
  [IB_COMM_WAKEUPS] = {"wakeups", RAIL_STATS_COUNTER, "Times that such a wait ended because one came."},
  [IB_COMM_OUTSTANDING] = {"outstanding", RAIL_STATS_GAUGE, "Requests that are not done."},
  [IB_COMM_LAST_PROGRESS] = {"progress_time", RAIL_STATS_TIME, "When a transfer completed last."},
};
_Static_assert(RAIL_COUNT_OF(comm_counters) == IB_COMM_COUNTERS, "a row each");

static const struct rail_stats_counter device_counters[] = {
  [IB_DEVICE_COMMS] = {"comms", RAIL_STATS_GAUGE, "Connections that are open over the port, each direction being one."},
  [IB_DEVICE_ACCEPTED] = {"accepts", RAIL_STATS_COUNTER, "Connections made to here."},
  [IB_DEVICE_CONNECTED] = {"connects", RAIL_STATS_COUNTER, "Connections made from here."},
  [IB_DEVICE_REFUSED] = {"refused", RAIL_STATS_COUNTER, "Peers that were refused: version, secret, or a port that "
                                                        "cannot reach ours."},
  [IB_DEVICE_DROPPED] = {"dropped", RAIL_STATS_COUNTER, "Clients that were dropped because they are no peers."},
  [IB_DEVICE_ERRORS] = {"errors", RAIL_STATS_COUNTER, "Transfers that ended with an error, and fatal events."},
  [IB_DEVICE_PORT_DOWNS] = {"port_downs", RAIL_STATS_COUNTER, "Times that the port went down."},
  [IB_DEVICE_PORT_UPS] = {"port_ups", RAIL_STATS_COUNTER, "Times that the port came up again."},
  [IB_DEVICE_EVENTS] = {"events", RAIL_STATS_COUNTER, "Other asynchronous events: a new GID, LID, partition key table "
                                                      "or subnet manager."},
  [IB_DEVICE_REGISTERED] = {"registrations", RAIL_STATS_GAUGE, "Memory registrations of the HCA."},
  [IB_DEVICE_QPS] = {"qps", RAIL_STATS_GAUGE, "Queue pairs of open connections that use the port."},
};
_Static_assert(RAIL_COUNT_OF(device_counters) == IB_DEVICE_COUNTERS, "a row each");

static const struct rail_stats_counter rail_counters[] = {
  [IB_RAIL_BYTES] = {"bytes", RAIL_STATS_COUNTER, "Payload that was sent over the rail."},
  [IB_RAIL_SHARE] = {"share_permille", RAIL_STATS_GAUGE, "Thousandths of a large message that go over the rail."},
  [IB_RAIL_RATE] = {"rate", RAIL_STATS_GAUGE,
                    "Bytes per second that it carried of late while it had some; 0: not measured."},
};
_Static_assert(RAIL_COUNT_OF(rail_counters) == IB_RAIL_COUNTERS, "a row each");

/* Memory is allocated with each record: the maxima cost address space only. */
static const struct rail_stats_group groups[] = {
  [GROUP_COMM] = {"comm", comm_counters, IB_COMM_COUNTERS, 8192},
  [GROUP_DEVICE] = {"device", device_counters, IB_DEVICE_COUNTERS, 256},
  [GROUP_RAIL] = {"rail", rail_counters, IB_RAIL_COUNTERS, 16384},
};
_Static_assert(RAIL_COUNT_OF(groups) == GROUPS, "a row each");

static struct rail_plugin_stats page = {.name = "RailIB", .groups = groups, .ngroups = GROUPS,
                                        .device_group = GROUP_DEVICE, .lock = PTHREAD_MUTEX_INITIALIZER};
static unsigned int opens; /* under the plugin's lock */

rail_result_t ib_stats_open(void) {
  RAIL_TRY(rail_plugin_stats_open(&page));
  for (unsigned int i = 0; opens == 0 && i < ib_port_count(); i++)
    ib_port_at(i)->stats = ib_stats_device(ib_port_at(i)->name);
  opens++;
  return RAIL_OK;
}

/* The page stays while comms are open that their callers close late. */
void ib_stats_close(void) {
  opens--;
  rail_plugin_stats_close(&page);
}

uint64_t *ib_stats_device(const char *name) { return rail_plugin_stats_device(&page, name); }
void ib_stats_count(const char *device, enum ib_stats_device counter) {
  rail_plugin_stats_count(&page, device, counter);
}

/* Adds the comm to, or takes it from, its ports' gauges. */
static void count_comm(const struct ib_comm *comm, int64_t by) {
  for (unsigned int r = 0; r < comm->nrails; r++) {
    uint64_t *stats = comm->rails[r].port->stats, qps = 0;
    if (!stats) continue;
    for (unsigned int q = 0; q < comm->plan.nqps; q++) qps += comm->plan.qps[q].local_rail == r;
    rail_stats_add_shared(&stats[IB_DEVICE_COMMS], (uint64_t)by);
    rail_stats_add_shared(&stats[IB_DEVICE_QPS], (uint64_t)by * qps);
  }
}

rail_result_t ib_stats_comm_begin(struct ib_comm *comm) {
  char device[RAIL_STATS_VALUE];
  comm->stats = rail_plugin_stats_take(&page, GROUP_COMM, "side=%s,device=%s,peer=%s,qps=%u",
                                       comm->sender ? "send" : "receive", rail_stats_value(device, comm->device->name),
                                       comm->peer_text, comm->plan.nqps);
  comm->stats_private = !comm->stats;
  if (!comm->stats) comm->stats = calloc(IB_COMM_COUNTERS, sizeof *comm->stats);
  if (!comm->stats) {
    RAIL_WARN("RailIB: connection with %s: out of memory for counters", comm->peer_text);
    return RAIL_SYSTEM_ERROR;
  }
  count_comm(comm, 1);
  return RAIL_OK;
}

void ib_stats_comm_end(struct ib_comm *comm) {
  if (!comm->stats) return;
  count_comm(comm, -1);
  if (comm->stats_private) free(comm->stats);
  else rail_plugin_stats_drop(&page, GROUP_COMM, comm->stats);
  comm->stats = NULL;
}

uint64_t *ib_stats_rail_begin(const struct ib_comm *comm, unsigned int rail) {
  char device[RAIL_STATS_VALUE], name[RAIL_STATS_VALUE];
  return rail_plugin_stats_take(&page, GROUP_RAIL, "side=send,device=%s,peer=%s,rail=%s",
                                rail_stats_value(device, comm->device->name), comm->peer_text,
                                rail_stats_value(name, comm->rails[rail].port->name));
}

void ib_stats_rail_end(uint64_t *stats) { rail_plugin_stats_drop(&page, GROUP_RAIL, stats); }

/* ---- profiler -------------------------------------------------------------- */

/* The places of a request's events. */
static void **events_of(const struct ib_request *r, uint32_t *n) {
  *n = 0;
  if (r->magic == IB_REQ_SEND) {
    struct ib_send_comm *sc = ib_send_comm_of(r->comm);
    *n = 1;
    return sc->profiler_events + (rail_container_of(r, const struct ib_send, base) - sc->sends);
  }
  if (r->magic != IB_REQ_RECV) return NULL;
  struct ib_recv_comm *rc = ib_recv_comm_of(r->comm);
  const struct ib_recv *recv = rail_container_of(r, const struct ib_recv, base);
  *n = recv->n;
  return rc->profiler_events + (recv - rc->recvs) * IB_MAX_GROUP;
}

static void describe(const void *request, uint32_t i, void *out) {
  const struct ib_request *r = request;
  struct ib_profile_event event = {.type = IB_PROFILE_QP, .qp.opcode = IBV_WR_RDMA_WRITE};
  const struct ib_qp *qp;
  if (r->magic == IB_REQ_SEND) {
    const struct ib_send *send = rail_container_of(r, const struct ib_send, base);
    const struct ib_send_comm *sc = ib_send_comm_of(r->comm);
    qp = send->shares ? &r->comm->qps[send->shares[0].qp] : sc->live[send->first_place % sc->nlive];
    event.qp.opcode = sc->two_sided ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM;
    event.qp.length = send->size;
    event.qp.wr_id = ib_wr_id(IB_WR_SEND, qp->index, 1, (unsigned int)(send - ib_send_comm_of(r->comm)->sends));
  } else {
    const struct ib_recv *recv = rail_container_of(r, const struct ib_recv, base);
    qp = &r->comm->qps[ib_recv_comm_of(r->comm)->cts_qp_index];
    event.qp.length = recv->buffers[i].capacity;
    event.qp.wr_id = ib_wr_id(IB_WR_CTS, qp->index, 1, (unsigned int)(recv - ib_recv_comm_of(r->comm)->recvs));
  }
  event.qp.device = qp->rail;
  event.qp.qp_num = (int)qp->qp->qp_num;
  memcpy(out, &event, sizeof event);
}

static const struct rail_profile_kind kind = {.id = IB_PROFILE_ID, .describe = describe};

void ib_profile_start(struct ib_request *r, void *const *phandles) {
  uint32_t n;
  void **events = events_of(r, &n);
  rail_profile_start(&kind, r->comm->profiler, events, n, phandles, r);
}

void ib_profile_stop(struct ib_request *r) {
  uint32_t n;
  void **events = events_of(r, &n);
  rail_profile_stop(&kind, r->comm->profiler, events, n);
}
