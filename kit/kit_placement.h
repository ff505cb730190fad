/* SPDX-License-Identifier: Apache-2.0
 *
 * Where processes run when all are on this host: even ranks in one place, odd ones
 * in another, each with a network namespace and an environment of its own. So
 * two ports of one machine, or two namespaces, can act as two hosts.
 */
#ifndef RAIL_KIT_PLACEMENT_H
#define RAIL_KIT_PLACEMENT_H

#include "kit/kit_group.h"

#define KIT_LOCATION_ENV 16

struct kit_location {
  char netns[64];                     /* a named network namespace; "": this one */
  const char *env[KIT_LOCATION_ENV + 1]; /* NAME=value; NULL at the end */
  unsigned int nenv;
};

struct kit_placement { struct kit_location at[2]; };

/* Fills in what the process's place decides of its setup. */
void kit_placement_apply(const struct kit_placement *placement, int rank, struct kit_process_setup *setup);
/* The options that say this, at the end of a command line. */
void kit_placement_append(const struct kit_placement *placement, char *text, size_t size);

#endif
