/* SPDX-License-Identifier: Apache-2.0
 * NCCL_IB_HCA. Pure, but for the warnings. */
#include "plugin/ib/ib_hca_filter.h"

#include <ctype.h>
#include <string.h>

#include "common/base/log.h"

#define MAX_PORT 255

/* A number at *text up to ':' or `end`; empty: -1. False: it is none, or larger than `most`. */
static bool take_number(const char **text, const char *end, int most, int *number) {
  const char *at = *text;
  int value = 0;
  *number = -1;
  for (; at < end && *at != ':'; at++) {
    if (!isdigit((unsigned char)*at)) return false;
    value = value * 10 + (*at - '0');
    if (value > most) return false;
  }
  if (at > *text) *number = value;
  *text = at < end ? at + 1 : end;
  return true;
}

/* NULL, or what is wrong with the entry at text up to end. */
static const char *parse_entry(const char *text, const char *end, struct ib_hca_entry *entry) {
  size_t len = 0;
  int rail, plane;
  while (text + len < end && text[len] != ':') len++;
  if (len == 0) return "has no name";
  if (len >= sizeof entry->name) return "has a name of more than 63 characters";
  memset(entry, 0, sizeof *entry);
  memcpy(entry->name, text, len);
  text += len + (text + len < end);
  if (!take_number(&text, end, MAX_PORT, &entry->port) || entry->port == 0) return "has a port that is not in 1..255";
  if (!take_number(&text, end, INT16_MAX, &rail)) return "has a rail that is not in 0..32767";
  if (!take_number(&text, end, INT16_MAX, &plane)) return "has a plane that is not in 0..32767";
  if (text < end) return "has more than a name and three numbers";
  entry->rail = (int16_t)rail;
  entry->plane = (int16_t)plane;
  return NULL;
}

void ib_hca_filter_parse(const char *text, struct ib_hca_filter *filter) {
  memset(filter, 0, sizeof *filter);
  if (!text) return;
  if (*text == '^') { filter->exclude = true; text++; }
  if (*text == '=') { filter->exact = true; text++; }
  for (const char *end; *text; text = end + (*end == ',')) {
    end = text + strcspn(text, ",");
    if (end == text) continue;
    filter->named = true;
    struct ib_hca_entry entry;
    const char *why = parse_entry(text, end, &entry);
    if (!why && filter->count == IB_MAX_HCA_ENTRIES) why = "is one more than the 32 that are allowed";
    if (why)
      RAIL_WARN("RailIB: NCCL_IB_HCA: '%.*s' %s and is left out; form: [^][=]name[:port[:rail[:plane]]],...",
                (int)(end - text), text, why);
    else filter->entries[filter->count++] = entry;
  }
}

static bool names(const struct ib_hca_filter *filter, const struct ib_hca_entry *entry, const char *name, int port) {
  size_t len = strlen(entry->name);
  if (strncmp(entry->name, name, len) != 0 || (filter->exact && name[len])) return false;
  return entry->port == -1 || entry->port == port;
}

bool ib_hca_filter_passes(const struct ib_hca_filter *filter, const char *name, int port, int16_t *rail,
                          int16_t *plane) {
  *rail = *plane = -1;
  for (unsigned int i = 0; i < filter->count; i++) {
    const struct ib_hca_entry *entry = &filter->entries[i];
    if (!names(filter, entry, name, port)) continue;
    if (filter->exclude) return false;
    *rail = entry->rail;
    *plane = entry->plane;
    return true;
  }
  return filter->exclude || !filter->named;
}
