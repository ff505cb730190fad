/* SPDX-License-Identifier: Apache-2.0
 *
 * The other end of a rig's side channel (ib_rig.h), for tests of the watch thread. */
#ifndef IB_WATCH_RIG_H
#define IB_WATCH_RIG_H

#include "plugin/ib/ib_pulse.h"
#include "test/unit/ib_rig.h"

#define HEALTH(comm) atomic_load(&(comm)->health)

__attribute__((unused)) static void say_number(int fd, enum ib_pulse_type type, uint64_t number) {
  uint8_t wire[IB_PULSE_SIZE];
  ib_pulse_encode(&(struct ib_pulse){type, number}, wire);
  CHECK_INT(write(fd, wire, sizeof wire), sizeof wire);
}

/* The next message within `ms`; type 0: end of stream, -1: nothing. */
__attribute__((unused)) static int hear(int fd, uint64_t *number, int ms) {
  uint8_t wire[IB_PULSE_SIZE];
  struct ib_pulse pulse;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  if (poll(&p, 1, ms) != 1) return -1;
  ssize_t n = read(fd, wire, sizeof wire);
  if (n <= 0) return 0;
  CHECK_INT(n, sizeof wire);
  CHECK(ib_pulse_decode(wire, &pulse));
  if (number) *number = pulse.number;
  return (int)pulse.type;
}

__attribute__((unused)) static void done(struct ib_comm *comm, int peer) {
  CHECK_OK(ib_close_send(comm));
  if (peer >= 0) close(peer);
}

#endif
