/* SPDX-License-Identifier: Apache-2.0
 *
 * The other end of a rig's oob connection (ib_rig.h), for tests of the watch thread. */
#ifndef IB_WATCH_RIG_H
#define IB_WATCH_RIG_H

#include "plugin/ib/ib_keepalive.h"
#include "test/unit/ib_rig.h"

#define HEALTH(comm) atomic_load(&(comm)->health)

__attribute__((unused)) static void say_number(int fd, enum ib_frame_type type, uint64_t number) {
  uint8_t wire[IB_FRAME_SIZE];
  ib_frame_encode(&(struct ib_frame){type, number}, wire);
  CHECK_INT(write(fd, wire, sizeof wire), sizeof wire);
}

/* The next message within `ms`; type 0: end of stream, -1: nothing. */
__attribute__((unused)) static int hear(int fd, uint64_t *number, int ms) {
  uint8_t wire[IB_FRAME_SIZE];
  struct ib_frame frame;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  if (poll(&p, 1, ms) != 1) return -1;
  ssize_t n = read(fd, wire, sizeof wire);
  if (n <= 0) return 0;
  CHECK_INT(n, sizeof wire);
  CHECK(ib_frame_decode(wire, &frame));
  if (number) *number = frame.number;
  return (int)frame.type;
}

__attribute__((unused)) static void done(struct ib_comm *comm, int peer) {
  CHECK_OK(ib_close_send(comm));
  if (peer >= 0) close(peer);
}

#endif
