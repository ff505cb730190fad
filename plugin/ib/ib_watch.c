/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ib/ib_watch.h"

#include <fcntl.h>

#include "common/base/sock.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_wire.h"

/* ---- oob connections --------------------------------------------------------- */

static void load_limits(struct rail_oob_limits *limits) {
  *limits = (struct rail_oob_limits){.deadline_ms = ib_params.deadline_ms, .peer_ms = ib_params.peer_ms,
                                     .warn_ms = ib_params.peer_warn_ms, .deadline_param = "RAIL_IB_DEADLINE",
                                     .peer_param = "RAIL_IB_PEER_TIMEOUT",
                                     .tick_ms = ib_params.failover ? IB_RETURN_TICK_MS : 0};
}

static struct rail_oob_work oob_work(const void *arg) {
  const struct ib_comm *comm = arg;
  return (struct rail_oob_work){
    .outstanding = atomic_load_explicit(&comm->outstanding, memory_order_relaxed),
    .activity = rail_stats_get(&comm->stats[IB_COMM_MESSAGES]) + rail_stats_get(&comm->stats[IB_COMM_WRITES]) +
                rail_stats_get(&comm->stats[IB_COMM_LAST_PROGRESS]),
    .waits = rail_stats_get(&comm->stats[IB_COMM_WAITS_CTS]),
  };
}

/* Whether the peer gave up requests makes no difference: its HCA acknowledges what it has received. */
static void oob_event(void *arg, uint32_t events) {
  struct ib_comm *comm = arg;
  atomic_fetch_or(&comm->pending_work, events & ~RAIL_OOB_PEER_GAVE_UP);
}

static void oob_silent(void *arg, bool silent) {
  struct ib_comm *comm = arg;
  atomic_store_explicit(&comm->peer_silent, silent, memory_order_relaxed);
}

static const struct rail_oob_ops oob_ops = {
  .protocol = &ib_protocol, .work = oob_work, .event = oob_event, .silent = oob_silent, .frame = ib_failover_frame,
  .next = ib_failover_next};

/* ---- events of HCAs ------------------------------------------------------------ */

static void fail_comm_over(void *arg, void *hca) {
  struct ib_comm *comm = arg;
  ib_failover_hca_fatal(comm, hca);
  if (comm->failover) return;
  for (unsigned int r = 0; r < comm->nrails; r++)
    if (comm->rails[r].port->hca == hca) atomic_fetch_or(&comm->pending_work, IB_COMM_DEVICE_FATAL);
}

static bool on_hca(void *arg) {
  struct ib_hca *hca = arg;
  atomic_store(&hca->in_events, true);
  enum ib_events events = ib_events_read(hca);
  atomic_store(&hca->in_events, false);
  if (events == IB_EVENTS_FATAL) rail_watch_each(&ib_watch, fail_comm_over, hca);
  for (unsigned int i = 0; events >= IB_EVENTS_PORT && i < hca->nports; i++)
    rail_watch_each(&ib_watch, ib_failover_port, &hca->ports[i]);
  return events != IB_EVENTS_GONE;
}

static bool add_hcas(struct rail_watch *watch) {
  static struct rail_watch_fd sources[IB_MAX_PORTS];
  for (unsigned int i = 0; i < ib_hca_count() && i < RAIL_COUNT_OF(sources); i++) {
    struct ib_hca *hca = ib_hca_at(i);
    int fd = hca->context->async_fd, flags = fcntl(fd, F_GETFL);
    sources[i] = (struct rail_watch_fd){.fd = fd, .readable = on_hca, .arg = hca};
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || !rail_watch_add_fd(watch, &sources[i]))
      return false;
  }
  return true;
}

/* ---- comms ---------------------------------------------------------------------- */

/* Its QPs stop, its memory stays. */
static void abandon(void *arg) {
  struct ib_comm *comm = arg;
  ib_comm_stop(comm);
  rail_watch_remove(&ib_watch, &comm->watched, true);
  rail_sock_close(&comm->oob_fd);
}

/* Its verbs objects stay the parent's. */
static void forked(void *arg) {
  struct ib_comm *comm = arg;
  (void)ib_comm_set_stopped(comm);
  comm->forked = true;
  rail_sock_close(&comm->oob_fd);
}

static const struct rail_watch_ops watch_ops = {
  .plugin = "RailIB",
  .thread_name = "rail-ib-watch",
  .oob = &oob_ops,
  .load_limits = load_limits,
  .add_fds = add_hcas,
  .abandon = abandon,
  .forked = forked,
};

struct rail_watch ib_watch = {.ops = &watch_ops};

rail_result_t ib_watch_add(struct ib_comm *comm) {
  return rail_watch_add(&ib_watch, &(struct rail_watch_args){
    .comm = comm, .fd = comm->oob_fd, .sender = comm->sender, .peer = comm->peer_text, .device = comm->device->name,
    .peer_process = comm->peer_process, .handle = &comm->watched});
}
