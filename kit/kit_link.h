/* SPDX-License-Identifier: Apache-2.0
 *
 * Two hosts: `rail-kit … --listen [ADDR:]PORT` on one, `--connect HOST:PORT`
 * on the other; which of them leads is the caller's choice. One TCP connection
 * carries jobs and the processes' messages. Nothing but the plugin named on the
 * follower's own command line can be started through it.
 */
#ifndef RAIL_KIT_LINK_H
#define RAIL_KIT_LINK_H

#include <stdbool.h>
#include <stddef.h>

struct kit_link;

/* Waits for the other one (`seconds` at most; 0: forever). NULL and `why` on failure. */
struct kit_link *kit_link_listen(const char *where, unsigned seconds, char *why, size_t why_size);
struct kit_link *kit_link_connect(const char *where, unsigned seconds, char *why, size_t why_size);
bool kit_link_lost(const struct kit_link *link); /* the other host is gone; NULL: no */
void kit_link_close(struct kit_link *link);

/* What a launcher's environment says (mpirun, srun, torchrun). */
struct kit_launch {
  int rank, size;
  const char *name; /* the variable that has the rank */
  char where[300];  /* MASTER_ADDR:MASTER_PORT, else loopback */
};
bool kit_link_launched(struct kit_launch *launch); /* false: there is no launcher */

#endif
