/* SPDX-License-Identifier: Apache-2.0
 * What goes over a side channel once the connection is up: messages of 32 bytes. Pure. */
#ifndef IB_PULSE_H
#define IB_PULSE_H

#include <stdbool.h>
#include <stdint.h>

enum ib_pulse_type { /* on the wire */
  IB_PULSE_PING = 1, /* is your process alive? */
  IB_PULSE_PONG = 2, /* it is; `number` is the PING's */
  IB_PULSE_GOODBYE = 3, /* closed by its caller; nothing comes after it but DRAINED */
  IB_PULSE_DRAINED = 4, /* a sender's, after the receiver's GOODBYE: nothing of it is unacknowledged */
};

#define IB_PULSE_SIZE 32
#define IB_PULSE_MAGIC 0x50424952u
#define IB_PULSE_VERSION 2u

/* On the wire: little-endian. */
struct ib_pulse_wire {
  uint32_t magic;
  uint16_t version, type;
  uint32_t length; /* of all of it */
  uint32_t zero;
  uint64_t number;
  uint64_t zero2;
};
_Static_assert(sizeof(struct ib_pulse_wire) == IB_PULSE_SIZE, "wire size");

struct ib_pulse {
  enum ib_pulse_type type;
  uint64_t number;
};

void ib_pulse_encode(const struct ib_pulse *pulse, uint8_t wire[IB_PULSE_SIZE]);
/* False: not a message of ours. */
bool ib_pulse_decode(const uint8_t wire[IB_PULSE_SIZE], struct ib_pulse *pulse);

#endif
