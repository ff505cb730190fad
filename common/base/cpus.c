/* SPDX-License-Identifier: Apache-2.0
 * Sets of CPUs as text. */
#include "common/base/cpus.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only digits: strtol would take blanks and signs. */
static bool read_number(const char **text, long *number) {
  char *end;
  if (!isdigit((unsigned char)**text)) return false;
  errno = 0;
  *number = strtol(*text, &end, 10);
  *text = end;
  return !errno && *number <= INT_MAX;
}

static bool read_range(const char **text, cpu_set_t *cpus) {
  long first, last;
  if (!read_number(text, &first)) return false;
  last = first;
  if (**text == '-') {
    ++*text;
    if (!read_number(text, &last) || last < first) return false;
  }
  for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET((size_t)cpu, cpus);
  return true;
}

bool rail_cpus_parse(const char *text, cpu_set_t *cpus) {
  CPU_ZERO(cpus);
  if (!*text) return true;
  while (read_range(&text, cpus)) {
    if (!*text) return true;
    if (*text++ != ',') break;
  }
  CPU_ZERO(cpus);
  return false;
}

const char *rail_cpus_text(const cpu_set_t *cpus, char text[RAIL_CPUS_TEXT]) {
  char range[32];
  size_t at = 0;
  strcpy(text, "none");
  for (int first = 0, last; first < CPU_SETSIZE; first = last + 1) {
    last = first;
    if (!CPU_ISSET((size_t)first, cpus)) continue;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET((size_t)last + 1, cpus)) last++;
    if (first == last) snprintf(range, sizeof range, "%s%d", at ? "," : "", first);
    else snprintf(range, sizeof range, "%s%d-%d", at ? "," : "", first, last);
    if (at + strlen(range) + sizeof ",..." > RAIL_CPUS_TEXT) {
      strcpy(text + at, ",...");
      break;
    }
    strcpy(text + at, range);
    at += strlen(range);
  }
  return text;
}
