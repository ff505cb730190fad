/* SPDX-License-Identifier: Apache-2.0
 * Chooses a transport for each connector, exchanges connect records over the bootstrap, and runs all connections of a
 * plan until they are made. rt_enqueue.c calls it, in the thread that makes plans ready; choose_tuning
 * (rt_comm_init.c) asks which transport two ranks have. */
#include "core/transport/rt_transport.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_wait.h"

const struct rt_transport *const rt_transports[RT_TRANSPORT_COUNT] = {
    [RT_TRANSPORT_P2P] = &rt_p2p_transport,
    [RT_TRANSPORT_SHM] = &rt_shm_transport,
    [RT_TRANSPORT_NET] = &rt_net_transport,
};

const struct rt_transport *rt_transport_choose(const struct rt_peer *a, const struct rt_peer *b) {
  int i = 0;
  while (!rt_transports[i]->can_connect(a, b)) i++; /* ends at NET */
  return rt_transports[i];
}

static uint32_t transport_index(const struct rt_transport *t) {
  for (uint32_t i = 0; i < RT_TRANSPORT_COUNT; i++)
    if (rt_transports[i] == t) return i;
  return RT_TRANSPORT_COUNT;
}

/* Records travel under a tag that names the channel and the receiving end. */
static uint32_t record_tag(const struct rt_connector *c, bool to_sender) {
  return 0xc0000000u | (uint32_t)c->channel << 1 | (to_sender ? 1u : 0u);
}

static rail_result_t setup(struct ncclComm *comm, struct rt_connector *c) {
  struct rt_connect_record mine;
  memset(&mine, 0, sizeof mine);
  c->transport = rt_transport_choose(&comm->peers[comm->rank], &comm->peers[c->peer]);
  c->end = c->is_send ? &c->transport->send : &c->transport->recv;
  RAIL_TRY(c->end->setup(comm, c, &mine));
  mine.version = RT_CONNECT_VERSION;
  mine.transport = transport_index(c->transport);
  mine.memory = comm->memory;
  mine.schedule = c->schedule;
  if (comm->net.plugin && c->transport == &rt_net_transport)
    strncpy(mine.net_name, rail_net_name(comm->net.plugin), sizeof mine.net_name - 1);
  return rt_bootstrap_send(comm->bootstrap, c->peer, record_tag(c, !c->is_send), &mine, sizeof mine);
}

/* What differs becomes the communicator's failure here and now: its text goes to all ranks, also to those that have no
 * connection with either of the two. */
static rail_result_t check_record(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *theirs) {
  theirs->net_name[sizeof theirs->net_name - 1] = 0;
  if (theirs->version != RT_CONNECT_VERSION || theirs->transport != transport_index(c->transport)) {
    rt_comm_fail(comm, RAIL_BAD_USAGE,
                 "rank %d and rank %d disagree: transport %s here, number %u version %u there; run one build with one "
                 "configuration on all ranks",
                 comm->rank, c->peer, c->transport->name, theirs->transport, theirs->version);
    return RAIL_BAD_USAGE;
  }
  if (c->transport == &rt_net_transport && strncmp(theirs->net_name, rail_net_name(comm->net.plugin), 31) != 0) {
    rt_comm_fail(comm, RAIL_BAD_USAGE,
                 "rank %d uses network plugin %s, rank %d uses %s; set the same NCCL_NET_PLUGIN on all ranks",
                 comm->rank, rail_net_name(comm->net.plugin), c->peer, theirs->net_name);
    return RAIL_BAD_USAGE;
  }
  return RAIL_OK;
}

static const char *buffers_text(uint32_t memory) { return memory == RT_DEVICE_MEMORY ? "device" : "host"; }

/* Slots of a device's connection may lie where a host program cannot reach them. Between two ends without a buffer yet
 * (RT_ANY_MEMORY) all slots lie in host memory, which either kind can use whatever the first buffers are; if the kinds
 * then choose different protocols, the receiver finds a mismatch. */
rail_result_t rt_check_memory(struct ncclComm *comm, int peer, uint32_t theirs) {
  const uint32_t mine = comm->memory;
  if (mine == theirs || mine == RT_ANY_MEMORY || theirs == RT_ANY_MEMORY) return RAIL_OK;
  rt_comm_fail(
      comm, RAIL_BAD_USAGE,
      "rank %d has %s buffers, rank %d has %s buffers: the ranks of a communicator work on one kind of memory; "
      "use device buffers on all ranks, or host buffers on all",
      comm->rank, buffers_text(mine), peer, buffers_text(theirs));
  return RAIL_BAD_USAGE;
}

/* Ranks whose calls take different steps would wait for connections that the others never make. */
static rail_result_t check_schedule(struct ncclComm *comm, const struct rt_connector *c, uint32_t theirs) {
  if (c->schedule == theirs || c->schedule == RT_ANY_SCHEDULE || theirs == RT_ANY_SCHEDULE) return RAIL_OK;
  rt_comm_fail(comm, RAIL_BAD_USAGE,
               "rank %d and rank %d: their calls differ, in kind or so much in size that each takes other steps; all "
               "ranks must make the same calls with the same counts",
               comm->rank, c->peer);
  return RAIL_BAD_USAGE;
}

/* One step of one connector that is under way. *have: the peer's record has come, and is in *theirs. */
static rail_result_t advance(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *theirs,
                             bool *have) {
  if (!*have) {
    RAIL_TRY(rt_bootstrap_try_recv(comm->bootstrap, c->peer, record_tag(c, c->is_send), theirs, sizeof *theirs));
    RAIL_TRY(check_record(comm, c, theirs));
    RAIL_TRY(rt_check_memory(comm, c->peer, theirs->memory));
    RAIL_TRY(check_schedule(comm, c, theirs->schedule));
    *have = true;
  }
  RAIL_TRY(c->end->connect(comm, c, theirs));
  c->connected = true;
  RAIL_TRACE(RAIL_SUB_INIT, "rank %d: channel %d %s rank %d via %s", comm->rank, c->channel, c->is_send ? "to" : "from",
             c->peer, c->transport->name);
  return RAIL_OK;
}

#define PROBES 64 /* connections in one check: each is a poll(2), as setup() has sent each of these peers its record */

/* Of those that are awaited, one that has ended its communicator; -1: none. `have` as for connect_loop. */
static int departed_peer(const struct ncclComm *comm, struct rt_connector *const *list, int n, const bool *have) {
  for (int i = 0, probed = 0; i < n && probed < PROBES; i++) {
    if (list[i]->connected || have[i]) continue;
    if (rt_bootstrap_peer_left(comm->bootstrap, list[i]->peer)) return list[i]->peer;
    probed++;
  }
  return -1;
}

static void report_stall(const struct ncclComm *comm, struct rt_connector *const *list, int n, uint64_t ms) {
  int i = 0;
  while (i < n && list[i]->connected) i++;
  if (i < n)
    RAIL_WARN("rank %d of %d: an operation has waited %.1f s for rank %d (%s) to connect. Do all ranks make the same "
              "calls?",
              comm->rank, comm->nranks, (double)ms / 1000, list[i]->peer,
              rt_bootstrap_peer_text(comm->bootstrap, list[i]->peer));
}

static void back_off(int idle) {
  if (idle < 100)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = idle < 1000 ? 50000 : 500000}, NULL);
}

/* `records` and `have` are indexed like the list. */
static rail_result_t connect_loop(struct ncclComm *comm, struct rt_connector **list, int n,
                                  struct rt_connect_record *records, bool *have) {
  struct rt_wait wait;
  uint64_t now, ms;
  rt_wait_begin(&wait);
  for (int left = n, idle = 0; left > 0;) {
    bool moved = false;
    left = 0;
    for (int i = 0; i < n; i++) {
      if (list[i]->connected) continue;
      bool had = have[i];
      rail_result_t r = advance(comm, list[i], &records[i], &have[i]);
      if (r != RAIL_OK && r != RAIL_IN_PROGRESS) return r;
      moved |= r == RAIL_OK || have[i] != had;
      left += r == RAIL_IN_PROGRESS;
    }
    if (rt_comm_failed(comm)) return (rail_result_t)atomic_load(&comm->failed);
    idle = moved ? 0 : idle + 1;
    if (moved) rt_wait_begin(&wait);
    if (!left || !idle) continue;
    back_off(idle);
    if (!rt_wait_check_due(&wait, &now)) continue;
    rt_wait_check_departed(&wait, comm, departed_peer(comm, list, n, have));
    if (rt_wait_is_long(&wait, now, &ms)) report_stall(comm, list, n, ms);
  }
  return RAIL_OK;
}

rail_result_t rt_connect_all(struct ncclComm *comm, struct rt_connector **list, int n) {
  int todo = 0;
  for (int i = 0; i < n; i++)
    if (!list[i]->connected) list[todo++] = list[i];
  if (todo == 0) return RAIL_OK;
  struct rt_connect_record *records = calloc((size_t)todo, sizeof *records);
  bool *have = calloc((size_t)todo, sizeof *have);
  rail_result_t r = records && have ? RAIL_OK : RAIL_SYSTEM_ERROR;
  if (r != RAIL_OK) RAIL_WARN("rank %d: out of memory while connecting %d peers", comm->rank, todo);
  for (int i = 0; i < todo && r == RAIL_OK; i++) r = setup(comm, list[i]);
  if (r == RAIL_OK) r = connect_loop(comm, list, todo, records, have);
  free(have);
  free(records);
  return r;
}

void rt_connector_free(struct ncclComm *comm, struct rt_connector *c) {
  if (!c) return;
  rt_gpu_unmap(comm, c);
  if (c->end) c->end->free(comm, c);
  free(c);
}
