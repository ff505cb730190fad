/* SPDX-License-Identifier: Apache-2.0
 * What the watch thread (common/conn/watch.h) does with an ofi comm: it reads the oob connection, which tells when the
 * peer closes, is silent or dead, and sets bits of `pending_work` for the caller's next test. It polls the
 * endpoints that no caller polls (ofi_endpoint_timer_fired). */
#include "common/conn/watch.h"
#include "plugin/ofi/ofi_comm.h"
#include "plugin/ofi/ofi_param.h"

static void load_limits(struct rail_oob_limits *limits) {
  *limits = (struct rail_oob_limits){.deadline_ms = ofi_params.deadline_ms, .peer_ms = ofi_params.peer_ms,
                                     .warn_ms = ofi_params.peer_warn_ms, .deadline_param = "RAIL_OFI_DEADLINE",
                                     .peer_param = "RAIL_OFI_PEER_TIMEOUT"};
}

static struct rail_oob_work oob_work(const void *arg) {
  const struct ofi_comm *comm = arg;
  return (struct rail_oob_work){
    .outstanding = atomic_load_explicit(&comm->outstanding, memory_order_relaxed),
    .activity = rail_stats_get(&comm->stats[OFI_COMM_MESSAGES]) + rail_stats_get(&comm->stats[OFI_COMM_COMPLETIONS]),
    .waits = rail_stats_get(&comm->stats[OFI_COMM_WAITS_GRANT]),
  };
}

static void oob_event(void *arg, uint32_t events) {
  struct ofi_comm *comm = arg;
  atomic_fetch_or(&comm->pending_work, events);
}

static void oob_silent(void *arg, bool silent) {
  struct ofi_comm *comm = arg;
  if (silent) atomic_store(&comm->peer_silent, true);
}

static void oob_heard(void *arg) {
  struct ofi_comm *comm = arg;
  ofi_endpoint_wake(comm->endpoint);
}

static const struct rail_oob_ops oob_ops = {
  .protocol = &ofi_protocol, .work = oob_work, .event = oob_event, .silent = oob_silent,
  .heard = oob_heard};

static bool add_timer(struct rail_watch *watch) {
  static struct rail_watch_fd source;
  ofi_endpoint_handle_fork();
  source = (struct rail_watch_fd){.fd = ofi_timer_open(), .readable = ofi_endpoint_timer_fired};
  return source.fd >= 0 && rail_watch_add_fd(watch, &source);
}

static void abandon(void *arg) {
  struct ofi_comm *comm = arg;
  ofi_comm_stop(comm);
  rail_sock_close(&comm->oob_fd);
}

static void forked(void *arg) {
  struct ofi_comm *comm = arg;
  atomic_store(&comm->stopped, true);
  comm->forked = true;
  rail_sock_close(&comm->oob_fd);
}

static const struct rail_watch_ops watch_ops = {
  .plugin = "RailOFI",
  .thread_name = "rail-ofi-watch",
  .oob = &oob_ops,
  .load_limits = load_limits,
  .add_fds = add_timer,
  .abandon = abandon,
  .forked = forked,
};

struct rail_watch ofi_watch = {.ops = &watch_ops};

rail_result_t ofi_watch_add(struct ofi_comm *comm) {
  comm->watch = &ofi_watch;
  return rail_watch_add(&ofi_watch, &(struct rail_watch_args){
    .comm = comm, .fd = comm->oob_fd, .sender = comm->sender, .peer = comm->peer_text, .device = comm->device->name,
    .peer_process = comm->peer_process, .handle = &comm->watched});
}
