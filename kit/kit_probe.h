/* SPDX-License-Identifier: Apache-2.0
 * Which versions of the vtable a plugin exports, its name and its devices', asked in a process of its own. */
#ifndef RAIL_KIT_PROBE_H
#define RAIL_KIT_PROBE_H

#include "kit/kit_group.h"
#include "kit/kit_process.h"

#define KIT_PROBE_DEVICES 16

struct kit_probe {
  uint32_t versions; /* bit N: ncclNetPlugin_vN; 0: it cannot be loaded */
  int32_t ndev;      /* devices, of the newest version; 0: it cannot be used here */
  char name[256];
  char devices[KIT_PROBE_DEVICES][64]; /* names of the first ones; "": there is none, or its name is longer */
};

/* In the place of the first process. False: it cannot be used there at all; `why` has the failure, and what the
 * plugin logged. */
bool kit_probe(const char *plugin, const struct kit_placement *placement, struct kit_probe *probe, char *why,
               size_t why_size);
/* Has it that version? 0: any. False is reported on stderr, as of `command`. */
bool kit_probe_has(const struct kit_probe *probe, int version, const char *command, const char *plugin);
int kit_probe_newest(const struct kit_probe *probe); /* 0: none */

void kit_probe_process(struct kit_process *self);

#endif
