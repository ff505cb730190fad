/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections of the ib plugin without a handshake, over the emulated device: a comm
 * as far as a test wants it made, and the other end of its oob connection. What is
 * logged is kept (log_lines.h).
 */
#ifndef IB_RIG_H
#define IB_RIG_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_connect.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_stats.h"
#include "test/harness/log_lines.h"
#include "test/unit/ib_emu.h"

/* Once, first in main. */
__attribute__((unused)) static void rig_use(const char *statements) {
  ib_emu_use(statements);
  rail_log_set_sink(log_capture);
  if (!ib_verbs_open()) abort();
  ib_devices_load();
  if (ib_device_count() == 0) {
    fprintf(stderr, "%s", log_lines);
    abort();
  }
}

/* The rest of main, where cases need the counters and the watch thread. */
__attribute__((unused)) static int rig_main_watched(int argc, char **argv, const struct tap_case *cases, size_t n) {
  if (ib_stats_open() != RAIL_OK || rail_watch_begin(&ib_watch) != RAIL_OK) abort();
  int failed = tap_main(argc, argv, cases, n);
  rail_watch_end(&ib_watch);
  ib_stats_close();
  return failed;
}

enum rig_degree { RIG_BARE, RIG_RAILS, RIG_CQS, RIG_SOME_QPS, RIG_QPS, RIG_MEMORY, RIG_COUNTED, RIG_WATCHED };

/* *peer_fd (may be NULL): the other end of the oob connection. */
__attribute__((unused)) static struct ib_comm *rig_comm(bool sender, enum rig_degree degree, unsigned int nqps,
                                                       int *peer_fd) {
  int fds[2];
  static const struct ib_qp_sizes sizes = {.send_depth = 4, .recv_depth = 4};
  struct ib_comm *comm = sender ? ib_send_comm_alloc() : ib_recv_comm_alloc();
  CHECK(comm);
  comm->device = ib_device_at(0, "test");
  snprintf(comm->peer_text, sizeof comm->peer_text, "10.0.0.2:4711");
  if (degree < RIG_RAILS) return comm;
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
  comm->oob_fd = fds[0];
  if (peer_fd) *peer_fd = fds[1];
  else close(fds[1]);
  comm->nrails = comm->nremote_rails = comm->device->nrails;
  comm->plan.nqps = nqps;
  for (unsigned int r = 0; r < comm->nrails; r++) {
    comm->rails[r] = (struct ib_rail){.port = comm->device->rails[r]};
    memcpy(comm->rails[r].gid, (uint8_t[16]){[10] = 0xff, [11] = 0xff, [12] = 10, 0, 0, 1}, 16);
    memcpy(comm->remote_rails[r].gid, (uint8_t[16]){[10] = 0xff, [11] = 0xff, [12] = 10, 0, 0, 2}, 16);
  }
  if (degree < RIG_CQS) return comm;
  for (unsigned int r = 0; r < comm->nrails; r++) {
    comm->rails[r].cq = ib_verbs.create_cq(comm->rails[r].port->hca->context, 16, comm, NULL, 0);
    CHECK(comm->rails[r].cq);
  }
  if (degree < RIG_SOME_QPS) return comm;
  CHECK(comm->nrails > 0);
  comm->qps = calloc(nqps, sizeof *comm->qps);
  for (unsigned int i = 0; i < (degree == RIG_SOME_QPS ? nqps / 2 : nqps); i++) {
    struct ib_rail *rail = &comm->rails[i % comm->nrails];
    comm->qps[i].rail = (uint8_t)(i % comm->nrails);
    CHECK_OK(ib_qp_create(&comm->qps[i], rail->port, rail->cq, &sizes, comm));
    comm->qps[i].attr = (struct ib_qp_attr){.port = rail->port->number, .timeout = 17, .retry_cnt = 7,
                                            .dest_qpn = 0x99};
    CHECK_OK(ib_qp_to_init(&comm->qps[i], rail->port, IBV_ACCESS_REMOTE_WRITE));
  }
  if (degree < RIG_MEMORY) return comm;
  for (unsigned int r = 0; r < comm->nrails; r++) {
    comm->rails[r].ctrl_mr = ib_verbs.reg_mr(comm->rails[r].port->hca->pd, comm->ctrl_buf, sizeof *comm->ctrl_buf,
                                                IBV_ACCESS_LOCAL_WRITE);
    CHECK(comm->rails[r].ctrl_mr);
  }
  if (degree < RIG_COUNTED) return comm;
  CHECK_OK(ib_stats_comm_begin(comm));
  if (degree < RIG_WATCHED) return comm;
  CHECK_OK(ib_watch_add(comm));
  return comm;
}

/* Waits for it, in steps of a millisecond. */
#define RIG_WAIT(cond, ms)                                                                    \
  do {                                                                                        \
    uint64_t rig_end_ = rail_deadline_in_ms(ms);                                              \
    while (!(cond) && !rail_deadline_passed(rig_end_)) poll(NULL, 0, 1);                      \
    CHECK_MSG(cond, "%s: not within %d ms; said so far:\n%s", #cond, (int)(ms), log_lines); \
  } while (0)

#endif
