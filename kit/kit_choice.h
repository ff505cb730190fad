/* SPDX-License-Identifier: Apache-2.0
 * Which checks or scenarios a user wants, and which to leave out for a reason. */
#ifndef RAIL_KIT_CHOICE_H
#define RAIL_KIT_CHOICE_H

#include <stdbool.h>

#include "kit/kit_report.h"

struct kit_choice {
  const char *only, *skip;
  unsigned levels; /* bits of enum kit_level */
  struct kit_reason { char *pattern, *reason; } *reasons;
  int nreasons;
};

/* A list has names, numbers, areas ("connect") and patterns with * and ?, separated by commas. A file has lines
 * "PATTERN reason". False: something is wrong with the file or a level, and was told on stderr. */
bool kit_choice_read(struct kit_choice *choice, const char *only, const char *skip, const char *skip_file,
                     const char *levels);
void kit_choice_free(struct kit_choice *choice);
bool kit_choice_takes(const struct kit_choice *choice, const char *id, const char *name, enum kit_level level);
/* The reason to leave it out; NULL: there is none. */
const char *kit_choice_skips(const struct kit_choice *choice, const char *id, const char *name);

#endif
