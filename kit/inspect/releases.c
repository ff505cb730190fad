/* SPDX-License-Identifier: Apache-2.0
 * How each NCCL finds a plugin, read from its tags: src/net.cc to 2.25, src/plugin/net.cc and plugin_open.cc since. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/compiler.h"
#include "kit/inspect/inspect.h"

#define PREFIXED .rule = KIT_FILE_PREFIXED, .buffer = 128, .init_first = true
#define BOTH .rule = KIT_FILE_BOTH, .init_first = true, .device_type = true
#define LIST .buffer = 255, .statics = true, .list = true, .device_type = true
#define LATEST LIST, .rule = KIT_FILE_NAME_OR_BOTH, .none = true, .unloads = true

const struct kit_release kit_releases[] = {
    {"2.13", 6, 4, PREFIXED},
    {"2.14", 6, 4, PREFIXED},
    {"2.15", 6, 4, PREFIXED},
    {"2.16", 6, 4, PREFIXED},
    {"2.17", 6, 4, PREFIXED},
    {"2.18", 6, 4, PREFIXED},
    {"2.19", 7, 5, PREFIXED, .device_type = true},
    {"2.20", 8, 5, PREFIXED, .device_type = true},
    {"2.21", 8, 5, BOTH},
    {"2.22", 8, 5, BOTH, .statics = true, .unloads = true},
    {"2.23", 8, 5, BOTH, .statics = true, .unloads = true},
    {"2.24", 9, 5, BOTH, .statics = true, .unloads = true},
    {"2.25", 9, 5, BOTH, .statics = true, .unloads = true},
    {"2.26", 10, 6, BOTH, .statics = true, .buffer = 255},
    {"2.27.3", 10, 6, LIST, .rule = KIT_FILE_LIB_OR_PREFIXED, .init_first = true},
    {"2.27.5-2.27.7", 10, 6, LIST, .rule = KIT_FILE_NAME_OR_BOTH, .init_first = true},
    {"2.28.3", 11, 6, LATEST, .init_first = true, .forgets = true, .finalize_failed = true},
    {"2.28.7-2.28.9", 11, 6, LATEST, .forgets = true, .finalize_failed = true},
    {"2.29.2-2.29.3", 11, 6, LATEST, .forgets = true, .finalize_failed = true},
    {"2.29.7", 11, 6, LATEST, .forgets = true},
    {"2.30", 12, 6, LATEST},
};
const size_t kit_nreleases = RAIL_COUNT_OF(kit_releases);

int kit_release_picks(const struct kit_release *r, uint32_t exported) {
  for (int v = r->newest; v >= r->oldest; v--)
    if (exported >> v & 1) return v;
  return 0;
}

static bool is_library_name(const char *value, size_t least) {
  size_t len = strlen(value);
  return len >= least && strncmp(value, "lib", 3) == 0 && strcmp(value + len - 3, ".so") == 0;
}

/* What the whole value means to dlopen. The comparison is as long as the value is, so "s" is a beginning, too. */
static const char *verbatim(const struct kit_release *r, const char *value) {
  return r->statics && strncasecmp(value, "STATIC_PLUGIN", strlen(value)) == 0 ? KIT_STATIC : value;
}

int kit_release_tries(const struct kit_release *r, const char *value, char tries[KIT_MAX_TRIES][PATH_MAX]) {
  int n = 0;
  if (!value || (!*value && !r->list)) {
    snprintf(tries[n++], PATH_MAX, "libnccl-net.so");
    return n;
  }
  if (!*value || (r->none && strcasecmp(value, "none") == 0)) return 0;
  size_t buffer = r->buffer ? (size_t)r->buffer : PATH_MAX;
  if (r->list && (strchr(value, ',') || strlen(value) >= buffer)) return 0;
  bool first = r->rule == KIT_FILE_BOTH || r->rule == KIT_FILE_NAME_OR_BOTH ||
               (r->rule == KIT_FILE_LIB_OR_PREFIXED && is_library_name(value, strlen("libX.so")));
  bool second = r->rule == KIT_FILE_PREFIXED || r->rule == KIT_FILE_BOTH ||
                (r->rule == KIT_FILE_LIB_OR_PREFIXED && !first) ||
                (r->rule == KIT_FILE_NAME_OR_BOTH && !strchr(value, '/') && !is_library_name(value, 3));
  if (first) {
    snprintf(tries[n], buffer, "%s", verbatim(r, value));
    if (strcmp(tries[n++], KIT_STATIC) == 0) return n; /* dlopen of the program itself always works */
  }
  if (second) snprintf(tries[n++], buffer, "libnccl-net-%s.so", value);
  return n;
}

enum kit_reach kit_release_reaches(const struct kit_release *r, const char *value, const char *file) {
  char tries[KIT_MAX_TRIES][PATH_MAX];
  const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
  int n = kit_release_tries(r, value, tries);
  char *real_file = realpath(file, NULL);
  enum kit_reach reach = KIT_REACH_NO;
  for (int i = 0; i < n && reach == KIT_REACH_NO && strcmp(tries[i], KIT_STATIC) != 0; i++) {
    char *real = strchr(tries[i], '/') ? realpath(tries[i], NULL) : NULL;
    if (real && real_file && strcmp(real, real_file) == 0) reach = KIT_REACH_YES;
    else if (strcmp(tries[i], base) == 0) reach = KIT_REACH_SEARCH;
    free(real);
  }
  free(real_file);
  return reach;
}
