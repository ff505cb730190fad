/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/rt_round.h"

#include "common/base/compiler.h"

int rt_round_width(int nranks, int room) {
  if (room == 0 || 2 * (nranks - 1) + 1 <= room) return 0;
  /* At each distance there is a rank on either side, to send to and to receive from. */
  return RAIL_MAX(1, (room - 1) / 4);
}

int rt_round_of(int rank, int peer, int nranks, int width) {
  int behind = (peer - rank + nranks) % nranks, distance = RAIL_MIN(behind, nranks - behind);
  return width && distance ? (distance - 1) / width : 0;
}

int rt_round_count(int nranks, int width) { return width ? RAIL_DIV_UP(nranks / 2, width) : 1; }
