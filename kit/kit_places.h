/* SPDX-License-Identifier: Apache-2.0
 *
 * Where sides run when all are on this host: even ones in one place, odd ones
 * in another, each with a network namespace and an environment of its own. So
 * two ports of one machine, or two namespaces, can stand for two hosts.
 */
#ifndef RAIL_KIT_PLACES_H
#define RAIL_KIT_PLACES_H

#include "kit/kit_world.h"

#define KIT_PLACE_ENV 16

struct kit_place {
  char netns[64];                     /* a named network namespace; "": this one */
  const char *env[KIT_PLACE_ENV + 1]; /* NAME=value; NULL at the end */
  unsigned int nenv;
};

struct kit_places { struct kit_place at[2]; };

/* Fills in what the side's place decides of its setup. */
void kit_place(const struct kit_places *places, int rank, struct kit_setup *setup);
/* The options that say this, at the end of a command line. */
void kit_places_append(const struct kit_places *places, char *text, size_t size);

#endif
