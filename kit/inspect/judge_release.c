/* SPDX-License-Identifier: Apache-2.0
 * Release by release: what is taken, how the file is found, and what that NCCL does that concerns this plugin. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kit/inspect/inspect.h"

#define PLUGIN_OPEN_CC "NCCL src/plugin/plugin_open.cc"
#define NET_CC "NCCL src/plugin/net.cc"
#define FIND(grade, id, why, source, ...) kit_find(&in->findings, 0, grade, id, why, source, __VA_ARGS__)

/* ---- values of NCCL_NET_PLUGIN ---- */

/* X of libnccl-net-X.so; false: the file is not named so. */
static bool short_name(const char *file, char name[KIT_NAME_MAX]) {
  static const char prefix[] = "libnccl-net-", suffix[] = ".so";
  size_t len = strlen(file), around = sizeof prefix + sizeof suffix - 2;
  if (len <= around || len - around >= KIT_NAME_MAX || strncmp(file, prefix, sizeof prefix - 1) != 0 ||
      strcmp(file + len - sizeof suffix + 1, suffix) != 0)
    return false;
  memcpy(name, file + sizeof prefix - 1, len - around);
  name[len - around] = 0;
  return true;
}

static const char *file_name(const struct kit_inspection *in) { return strrchr(in->path, '/') + 1; }

int kit_ways(const struct kit_inspection *in, const struct kit_release *r, struct kit_way ways[KIT_MAX_WAYS]) {
  char name[KIT_NAME_MAX];
  const char *file = file_name(in);
  const char *values[] = {NULL, short_name(file, name) ? name : NULL, file, in->path};
  int n = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(values); i++) {
    if (i > 0 && !values[i]) continue;
    enum kit_reach reach = kit_release_reaches(r, values[i], in->path);
    if (reach == KIT_REACH_NO) continue;
    ways[n].reach = reach;
    ways[n].set = i > 0;
    snprintf(ways[n++].value, PATH_MAX, "%s", values[i] ? values[i] : "");
  }
  return n;
}

bool kit_searched(const struct kit_inspection *in) {
  char directory[PATH_MAX];
  const char *list = getenv("LD_LIBRARY_PATH");
  snprintf(directory, sizeof directory, "%.*s", (int)(file_name(in) - in->path - 1), in->path);
  char *copy = list ? strdup(list) : NULL, *rest = NULL;
  bool found = false;
  for (char *at = copy ? strtok_r(copy, ":;", &rest) : NULL; at && !found; at = strtok_r(NULL, ":;", &rest)) {
    char *real = realpath(at, NULL);
    found = real && strcmp(real, directory) == 0;
    free(real);
  }
  free(copy);
  return found;
}

static void judge_file_name(struct kit_inspection *in) {
  char name[KIT_NAME_MAX];
  const char *file = file_name(in);
  bool named = short_name(file, name) || strcmp(file, "libnccl-net.so") == 0;
  if (!named)
    FIND(KIT_WARNING, "file.name",
         "NCCL up to 2.20 looks for libnccl-net-NAME.so and nothing else, a path is no use there; later ones take the "
         "path or the file's name.",
         PLUGIN_OPEN_CC, "the file's name %s is not of the form libnccl-net-NAME.so", file);
  if (short_name(file, name) && strncasecmp(name, "STATIC_PLUGIN", strlen(name)) == 0)
    FIND(KIT_ERROR, "file.static",
         "NCCL since 2.22 compares only as many letters with STATIC_PLUGIN as the value has, and looks for the plugin "
         "in the program itself; only 2.27.3 does not. The path works.",
         PLUGIN_OPEN_CC, "NCCL_NET_PLUGIN=%s does not lead to %s", name, file);
  if (short_name(file, name) && strcasecmp(name, "none") == 0)
    FIND(KIT_ERROR, "file.none", "It means: no plugin.", NET_CC, "NCCL_NET_PLUGIN=%s does not lead to %s", name, file);
  if (strchr(in->path, ','))
    FIND(KIT_WARNING, "file.comma", "NCCL since 2.27 takes NCCL_NET_PLUGIN for a list and cuts it there.", NET_CC,
         "there is a comma in %.400s", in->path);
  if (strlen(in->path) > 254)
    FIND(KIT_WARNING, "file.long",
         "NCCL since 2.26 keeps 254 characters: 2.26 cuts the rest, later ones ignore the value.", NET_CC,
         "the path has %zu characters", strlen(in->path));
}

/* ---- tables ---- */

/* The first and the last release of each stretch without a table. */
static void judge_gaps(struct kit_inspection *in) {
  if (!in->exported) return;
  for (size_t i = 0; i < kit_nreleases; i++) {
    if (kit_release_picks(&kit_releases[i], in->exported)) continue;
    size_t last = i;
    while (last + 1 < kit_nreleases && !kit_release_picks(&kit_releases[last + 1], in->exported)) last++;
    FIND(KIT_NOTE, "release.none", "They go on with their built-in transports.", NET_CC,
         "NCCL %s%s%s finds no table that it knows: it looks for v%d to v%d", kit_releases[i].name,
         last > i ? " to " : "", last > i ? kit_releases[last].name : "", kit_releases[i].oldest,
         kit_releases[last].newest);
    i = last;
  }
}

int kit_quirks(const struct kit_inspection *in, const struct kit_release *r, const char *quirks[KIT_MAX_QUIRKS]) {
  int picks = kit_release_picks(r, in->exported), n = 0;
  const struct kit_elf *elf = &in->elf;
  if (!picks) return 0;
  if (picks <= 8) quirks[n++] = "no message above 1 GiB, no fused NICs, no optional completion of receives";
  if (picks <= 10) quirks[n++] = "init once a process, no finalize";
  if (picks <= 9) quirks[n++] = "no traffic class";
  if (r->init_first) quirks[n++] = "init and devices are called even if NCCL_NET asks for another";
  if (r->finalize_failed)
    quirks[n++] =
        picks <= 10 ? "an init that fails crashes the process" : "finalize is called after an init that failed";
  if (r->forgets && !elf->no_delete)
    quirks[n++] =
        "after the last communicator the next one looks for libnccl-net.so (NCCL_NET_PLUGIN_REF_COUNT=1 helps)";
  else if (r->unloads && !elf->no_delete) quirks[n++] = "the library is closed with the last communicator";
  return n;
}

void kit_judge_releases(struct kit_inspection *in) {
  judge_file_name(in);
  judge_gaps(in);
}
