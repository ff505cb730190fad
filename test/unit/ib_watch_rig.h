/* SPDX-License-Identifier: Apache-2.0
 *
 * The other end of a rig's oob connection (ib_rig.h), for tests of the watch thread. */
#ifndef IB_WATCH_RIG_H
#define IB_WATCH_RIG_H

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_wire.h"
#include "test/unit/ib_rig.h"

#define PENDING(comm) atomic_load(&(comm)->pending_work)

/* False: the connection is closed. */
__attribute__((unused)) static bool try_frame(int fd, enum rail_oob_frame_type type, uint64_t number) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  rail_oob_frame_encode(&ib_protocol, &(struct rail_oob_frame){type, number}, wire);
  return send(fd, wire, sizeof wire, MSG_NOSIGNAL) == sizeof wire;
}

__attribute__((unused)) static void send_frame(int fd, enum rail_oob_frame_type type, uint64_t number) {
  CHECK_MSG(try_frame(fd, type, number), "frame %d was not sent: %s", type, strerror(errno));
}

/* The next message within `ms`; type 0: end of stream, -1: nothing. */
__attribute__((unused)) static int recv_frame(int fd, uint64_t *number, int ms) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  struct rail_oob_frame frame;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  if (poll(&p, 1, ms) != 1) return -1;
  ssize_t n = read(fd, wire, sizeof wire);
  if (n <= 0) return 0;
  CHECK_INT(n, sizeof wire);
  CHECK(rail_oob_frame_decode(&ib_protocol, wire, &frame));
  if (number) *number = frame.number;
  return (int)frame.type;
}

__attribute__((unused)) static void done(struct ib_comm *comm, int peer) {
  CHECK_OK(ib_close_send(comm));
  if (peer >= 0) close(peer);
}

#endif
