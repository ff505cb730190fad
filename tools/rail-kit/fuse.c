/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/rail-kit/fuse.h"

#include <string.h>

enum { LARGEST = 1023 }; /* as --device has it */

static const int most = sizeof((struct rail_net_vprops_v12 *)0)->devs / sizeof(int);

static bool read_list(const char *at, struct rail_net_vprops_v12 *fuse) {
  for (;; at++) {
    char word[8];
    uint64_t dev;
    size_t n = strcspn(at, ",");
    if (fuse->ndevs == most || n >= sizeof word) return false;
    memcpy(word, at, n);
    word[n] = 0;
    if (!tool_parse_u64(word, false, &dev) || dev > LARGEST) return false;
    fuse->devs[fuse->ndevs++] = (int)dev;
    at += n;
    if (!*at) return fuse->ndevs > 1;
  }
}

int rk_set_fuse(const struct tool_value *v) {
  struct rail_net_vprops_v12 fuse = {0};
  if (!read_list(v->text, &fuse)) return tool_bad(v, "2 to %d device numbers (0 to %d) with commas", most, LARGEST);
  memcpy((char *)v->into + v->option->at, &fuse, sizeof fuse);
  return 0;
}
