/* SPDX-License-Identifier: Apache-2.0
 *
 * A lane: a connection of the world, and memory registered with it. What
 * most checks of the data path need, in one process or two.
 *
 * Both sides run the same lines: they take the same numbers from `rng`, make
 * the same buffers and lists of ops, and each drives its own end.
 */
#ifndef RAIL_KIT_LANE_H
#define RAIL_KIT_LANE_H

#include "kit/conform/kit_check.h"

#define KIT_LANE_REGIONS 64

struct kit_lane_region { struct kit_guarded mem; void *send_mh, *recv_mh; };

struct kit_lane {
  struct kit_side *side;
  struct kit_net *net; /* own, or that of the lane it was joined to */
  struct kit_net own;
  struct kit_pair pair;
  int max_recvs;
  bool sends, receives; /* this side's ends */
  struct kit_rng rng;   /* from the job's seed: for what both sides must agree on */
  struct kit_rng dice;  /* for the rest, as the order of tests */
  struct kit_lane_region region[KIT_LANE_REGIONS];
};

/* The address of the lane must not change. */
void kit_lane_open(struct kit_lane *l, struct kit_side *side);             /* the plugin, and a connection */
void kit_lane_join(struct kit_lane *l, const struct kit_lane *with, int number); /* one more, of the same plugin; number
                                                                                    from 1 makes its seed */
void kit_lane_close(struct kit_lane *l); /* memory, connection; the plugin with the lane that opened it */

/* `size` registered bytes (at least 1) whose end, or start, touches a page that faults. */
uint8_t *kit_lane_high(struct kit_lane *l, size_t size);
uint8_t *kit_lane_low(struct kit_lane *l, size_t size);
/* Registers memory of the caller's. */
void kit_lane_reg(struct kit_lane *l, void *data, size_t size);
/* Deregisters it, and frees what kit_lane_high, kit_lane_low made: an access from now on faults. */
void kit_lane_free(struct kit_lane *l, const void *data);

/* Transfers out of and into registered memory. */
struct kit_op kit_lane_send(const struct kit_lane *l, const void *data, size_t size, int tag);
struct kit_op kit_lane_recv(const struct kit_lane *l, void *data, size_t size, int tag);
/* One more buffer of a grouped receive; begin with kit_lane_group. */
struct kit_op kit_lane_group(const struct kit_lane *l);
void kit_lane_add(const struct kit_lane *l, struct kit_op *group, void *data, size_t size, int tag);

/* kit_ops_run of the lane's plugin, with an order of testing. */
void kit_lane_run(struct kit_lane *l, struct kit_op *ops, int count, enum kit_ops_order order);
/* Ends the check where the plugin receives no groups. */
void kit_lane_needs_groups(const struct kit_lane *l);

#endif
