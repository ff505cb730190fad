/* SPDX-License-Identifier: Apache-2.0
 *
 * The rendezvous: one thread that collects every rank's address and answers each rank with
 * the table of all. It never waits for one client: what silent
 * connections may cost is limited (common/conn/pending.h).
 */
#ifndef RT_RENDEZVOUS_H
#define RT_RENDEZVOUS_H

#include "core/bootstrap/rt_boot_wire.h"

/* Listens on *addr (port 0: any; filled in) and starts the thread, which frees itself when all ranks have been
 * answered, when the shortest timeout of the ranks that came is over, or when none came for `unused_ms`. */
rail_result_t rt_rendezvous_start(union rail_addr *addr, const uint8_t secret[RT_SECRET_BYTES], uint64_t unused_ms);

/* Is this the secret of a rendezvous of this process that still waits for ranks? */
bool rt_rendezvous_runs(const uint8_t secret[RT_SECRET_BYTES]);
/* Ends it, if so: the ranks that wait there get the reason. Does not wait. */
void rt_rendezvous_cancel(const uint8_t secret[RT_SECRET_BYTES], const char *why);

/* ---- a rank's side: rt_rendezvous_join.c ---- */

struct rt_rendezvous_rank {
  union rail_addr root;  /* the rendezvous' address */
  const uint8_t *secret; /* the unique id's */
  bool well_known;       /* a fixed address, where another communicator's rendezvous may still listen: retry */
  int rank, nranks;
  union rail_addr own; /* where this rank listens */
  uint64_t timeout_ms;
  const _Atomic int *abort_flag; /* may be NULL */
};

/* table has room for nranks addresses; `session` gets the communicator's secret. Errors are logged here. */
rail_result_t rt_rendezvous_join(const struct rt_rendezvous_rank *me, union rail_addr *table,
                                 uint8_t session[RT_SECRET_BYTES]);

/* Ends a rendezvous by a hello, for a rank that needs no answer: it is the only one, or cannot join since the
 * rendezvous is of another version, and the other ranks' wait ends. Best effort, nothing is logged; it takes no time
 * where the rendezvous is over. */
void rt_rendezvous_end(const struct rt_rendezvous_rank *me);

/* "2, 5, 7 and 12 more": the ranks whose here[] is 0. */
void rt_rendezvous_missing(const uint8_t *here, int nranks, char *text, size_t cap);

#endif
