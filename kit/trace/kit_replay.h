/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit replay`: recorded calls, made again on any plugin. */
#ifndef RAIL_KIT_REPLAY_H
#define RAIL_KIT_REPLAY_H

#include <stdbool.h>
#include <stdio.h>

#include "kit/kit_process.h"

struct kit_replay {
  char **files; /* one process for each; NULL at the end */
  const char *plugin;
  int version, dev; /* 0: the newest; -1: those of the recording */
  int speed;        /* 0: as fast as it goes; 1: at the recorded times */
  bool compare, json;
  bool unchecked;   /* contents are neither made nor looked at */
  uint64_t seed, limit_ms;
};

/* 0 all as recorded, 1 it differs, 3 it could not be run. */
int kit_replay_run(const struct kit_replay *how, FILE *out);
void kit_replay_process(struct kit_process *self); /* role "replay" */

#endif
