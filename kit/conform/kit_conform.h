/* SPDX-License-Identifier: Apache-2.0
 * Runs checks on a plugin, each in processes of its own, and reports. */
#ifndef RAIL_KIT_CONFORM_H
#define RAIL_KIT_CONFORM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kit/kit_group.h"
#include "kit/kit_link.h"
#include "kit/kit_process.h"

struct kit_conform {
  const char *plugin;
  int version;      /* of the vtable; 0: the newest that the plugin has */
  bool all_versions;
  int dev;
  struct rail_net_vprops_v12 fuse; /* devices to make one of, which is used; ndevs 0: none */
  const char *only; /* names, numbers, areas, patterns (* and ?), separated by commas; NULL: all */
  const char *skip; /* the same */
  const char *skip_file; /* lines "PATTERN reason"; '#' begins a comment */
  const char *levels;    /* "must", "should", "observed", separated by commas; NULL: all */
  uint64_t seed;    /* 0: from the clock */
  int repeat;
  bool fail_fast;   /* end at the first check that fails */
  bool verbose;
  const char *json, *junit;
  struct kit_placement placement;
  struct kit_link *link;
  const char *connect; /* where it leads to, for the command that repeats a check; NULL */
};

/* Returns the program's exit status. */
int kit_conform_run(const struct kit_conform *how);
/* Every check: number, name, level, mode, sentence, source. With json: as JSON. */
int kit_conform_list(const struct kit_conform *how, FILE *f, bool json);

/* For kit_process_main. */
void kit_conform_process(struct kit_process *self);

#endif
