/* SPDX-License-Identifier: Apache-2.0
 *
 * rail-kit inspect: what NCCL makes of a plugin's file. In the order of a run:
 *   kit_inspect.c        finds the file and starts the processes
 *   elf.c                the file: exported tables, its dynamic section
 *   deps.c               its dependencies, as the dynamic loader finds them
 *   process.c            in a process of its own: dlopen, the tables in memory, init, devices, properties
 *   check_*.c            what follows, as findings.c keeps it; check_file.c has what each NCCL release looks for
 *   text.c json.c        the report
 */
#ifndef RAIL_KIT_INSPECT_H
#define RAIL_KIT_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "kit/kit_process.h"

#define KIT_INSPECT_MAX_DEVICES 64

struct kit_inspect_options {
  const char *file;
  int devices[KIT_INSPECT_MAX_DEVICES]; /* whose properties are asked for */
  int ndevices;                         /* 0: all */
  uint64_t limit_ms;                    /* of each process that the plugin is loaded in */
  bool params;                          /* print the plugin's parameters instead */
  const char *json;                     /* file, "-": standard output instead of the text; NULL: none */
};

/* Prints the report to stdout. 0: no finding is an error, 1: some are, 3: reported on stderr, the file cannot be
 * read, the report not written or no process started. */
int kit_inspect_run(const struct kit_inspect_options *how);

/* What a plugin of Railyard's exports besides its tables: prints its parameters as rail_param_print does. NCCL does not
 * look for it. */
typedef void kit_plugin_params_fn(int markdown);

/* The role "inspect" of a process. */
void kit_inspect_process(struct kit_process *self);

#endif
