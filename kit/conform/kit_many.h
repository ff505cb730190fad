/* SPDX-License-Identifier: Apache-2.0
 * Many connections, requests that may fail, and closing: what the checks of items 11, 12, 13 and 15 share. */
#ifndef RAIL_KIT_MANY_H
#define RAIL_KIT_MANY_H

#include "kit/conform/kit_check.h"

/* What closes a connection has this long before it counts as hung; the shorter one is asked for by SHOULD checks. */
#define KIT_CLOSE_HUNG_MS 10000
#define KIT_CLOSE_SOON_MS 1000

/* close(comm) succeeds, and within limit_ms. */
void kit_close_within(int (*close)(void *comm), void *comm, const char *call, uint64_t limit_ms);
/* Both ends of a connection of this process, of either order. */
void kit_close_pair_within(struct kit_pair *p, bool send_first, uint64_t limit_ms);

/* One call for a request: posts it, or tests it. True when it is settled: op->done or op->error. */
bool kit_op_step(struct kit_net *n, struct kit_op *op);
/* Steps until settled or the time is over; returns whether it is. */
bool kit_op_within(struct kit_net *n, struct kit_op *op, uint64_t ms);
/* Posts, trying again while there is no request; fails at the usual deadline or by an error. */
void kit_op_start(struct kit_net *n, struct kit_op *op);
/* Tests what is outstanding `times` times, whatever comes of it: as NCCL may after an error, before it closes. */
void kit_op_stray(struct kit_net *n, struct kit_op *op, int times);

/* `count` connections to the other side and as many from it, all made at once: p[i].send and p[i].recv are ends of two
 * connections. Only in KIT_TWO. kit_pair_close closes them. */
void kit_cross(struct kit_side *side, struct kit_net *n, struct kit_pair *p, int count);

/* Whole pages, all zero, of this process alone. */
uint8_t *kit_pages(size_t size);
/* Gives the memory back. The addresses fault from then on: nothing else comes to lie there. */
void kit_pages_free(uint8_t *data, size_t size);

/* Between two looks at what time brings and not the other side's next call: a core is for others meanwhile. */
void kit_nap(void);
/* Sleeps, also through signals. */
void kit_sleep_ms(uint64_t ms);
/* The share of one core that this process uses while it sleeps so long. */
double kit_cpu_asleep(uint64_t ms);

#endif
