/* SPDX-License-Identifier: Apache-2.0
 * Messages of a side channel in use. */
#include "plugin/ib/ib_pulse.h"

#include <endian.h>
#include <string.h>

void ib_pulse_encode(const struct ib_pulse *pulse, uint8_t wire[IB_PULSE_SIZE]) {
  struct ib_pulse_wire w = {.magic = htole32(IB_PULSE_MAGIC), .version = htole16(IB_PULSE_VERSION),
                            .type = htole16((uint16_t)pulse->type), .length = htole32(IB_PULSE_SIZE),
                            .number = htole64(pulse->number)};
  memcpy(wire, &w, sizeof w);
}

bool ib_pulse_decode(const uint8_t wire[IB_PULSE_SIZE], struct ib_pulse *pulse) {
  struct ib_pulse_wire w;
  memcpy(&w, wire, sizeof w);
  unsigned int type = le16toh(w.type);
  if (le32toh(w.magic) != IB_PULSE_MAGIC || le16toh(w.version) != IB_PULSE_VERSION ||
      le32toh(w.length) != IB_PULSE_SIZE || w.zero || w.zero2)
    return false;
  if (type < IB_PULSE_PING || type > IB_PULSE_DRAINED) return false;
  *pulse = (struct ib_pulse){.type = (enum ib_pulse_type)type, .number = le64toh(w.number)};
  return true;
}
