/* SPDX-License-Identifier: Apache-2.0
 * Which checks or scenarios a user wants, and which to leave out for a reason. */
#ifndef RAIL_KIT_FILTER_H
#define RAIL_KIT_FILTER_H

#include <stdbool.h>

#include "kit/kit_report.h"

/* The words of a list with commas, one after the other; *list moves on: false when there are no more. A word may be
 * empty; one that is longer than `size` is cut. */
bool kit_list_next(const char **list, char *word, size_t size);
bool kit_list_has(const char *list, const char *word);

struct kit_filter {
  const char *only, *skip, *level_list;
  unsigned levels; /* bits of enum kit_level */
  struct kit_reason { char *pattern, *reason; } *reasons;
  int nreasons;
};

/* A list has names, numbers, areas ("connect") and patterns with * and ?, separated by commas. A file has lines
 * "PATTERN reason". False: something is wrong with the file or a level, and was reported on stderr. */
bool kit_filter_read(struct kit_filter *filter, const char *only, const char *skip, const char *skip_file,
                     const char *levels);
void kit_filter_free(struct kit_filter *filter);
/* What there is: the id and name of entry i; NULL beyond the last. */
typedef const char *kit_filter_entry(int i, const char **name);
/* Does every pattern name something? One of --only that does not: false; of the others: a warning; both on stderr. */
bool kit_filter_check(const struct kit_filter *filter, const char *command, kit_filter_entry *entry);
/* Nothing is left: which options say so. */
void kit_filter_print_empty(const struct kit_filter *filter, const char *command);
bool kit_filter_accepts(const struct kit_filter *filter, const char *id, const char *name, enum kit_level level);
/* The reason to leave it out; NULL: there is none. */
const char *kit_filter_skip_reason(const struct kit_filter *filter, const char *id, const char *name);

#endif
