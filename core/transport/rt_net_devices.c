/* SPDX-License-Identifier: Apache-2.0
 * Reads a plugin's devices and has it fuse those that NCCL_NET_FORCE_MERGE names. rt_net.c calls it when a communicator
 * opens its plugin. */
#include "core/transport/rt_net_devices.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"

/* ---- what is asked for: no plugin is called ----------------------------------- */

/* The number that is all of the text, or -1. */
static int number(const char *text, size_t len) {
  int n = 0;
  if (len == 0 || len > 4) return -1;
  for (size_t i = 0; i < len; i++) {
    if (text[i] < '0' || text[i] > '9') return -1;
    n = n * 10 + (text[i] - '0');
  }
  return n;
}

static bool is_called(const struct rt_net_device *d, const char *word, size_t len) {
  size_t name = strlen(d->name);
  if (len < name || memcmp(word, d->name, name) != 0) return false;
  return len == name || (word[name] == ':' && number(word + name + 1, len - name - 1) == d->port);
}

static bool has(const struct rail_net_vprops_v12 *group, int dev) {
  for (int i = 0; i < group->ndevs; i++)
    if (group->devs[i] == dev) return true;
  return false;
}

static void insert(struct rail_net_vprops_v12 *group, int dev) {
  int at = group->ndevs++;
  for (; at > 0 && group->devs[at - 1] > dev; at--) group->devs[at] = group->devs[at - 1];
  group->devs[at] = dev;
}

/* Every device of that name that is not fused. Two ports of a card may share it. */
static rail_result_t add_word(const char *word, size_t len, const struct rt_net_device *table, int n,
                              struct rail_net_vprops_v12 *group) {
  int found = 0;
  for (int i = 0; i < n; i++) {
    if (table[i].nmembers != 1 || !is_called(&table[i], word, len)) continue;
    found++;
    if (has(group, i)) continue;
    if (group->ndevs == (int)RAIL_COUNT_OF(group->devs)) {
      RAIL_WARN("NCCL_NET_FORCE_MERGE: more than %d devices in one group", group->ndevs);
      return RAIL_BAD_USAGE;
    }
    insert(group, i);
  }
  if (found) return RAIL_OK;
  RAIL_WARN("NCCL_NET_FORCE_MERGE: the plugin has no device \"%.*s\"; NCCL_DEBUG=INFO lists its own", (int)len, word);
  return RAIL_BAD_USAGE;
}

rail_result_t rt_merge_next(const char **text, const struct rt_net_device *table, int n,
                            struct rail_net_vprops_v12 *group) {
  memset(group, 0, sizeof *group);
  const char *first = *text + strspn(*text, ";"), *p = first;
  if (!*first) return RAIL_OK;
  while (*p && *p != ';') {
    size_t len = strcspn(p, ",;");
    RAIL_TRY(add_word(p, len, table, n, group));
    p += len;
    p += *p == ',';
  }
  *text = p;
  if (group->ndevs >= 2) return RAIL_OK;
  RAIL_WARN("NCCL_NET_FORCE_MERGE: \"%.*s\" is one device; 2 to %d make a group", (int)(p - first), first,
            (int)RAIL_COUNT_OF(group->devs));
  return RAIL_BAD_USAGE;
}

/* ---- what there is --------------------------------------------------------------- */

/* All devices, as the plugin has them now; their number. */
static rail_result_t read_table(struct rail_net *plugin, struct rt_net_device *table, int *n) {
  RAIL_TRY(rail_net_devices(plugin, n));
  *n = RAIL_MIN(*n, RT_NET_DEVICES_MAX);
  for (int i = 0; i < *n; i++) {
    struct rail_net_props_v12 props;
    RAIL_TRY(rail_net_properties(plugin, i, &props));
    struct rt_net_device *d = &table[i];
    *d = (struct rt_net_device){.name = props.name ? props.name : "", .port = props.port};
    d->nmembers = RAIL_MAX(1, RAIL_MIN(props.vprops.ndevs, (int)RAIL_COUNT_OF(d->members)));
    memcpy(d->members, props.vprops.devs, sizeof d->members);
    RAIL_INFO(RAIL_SUB_NET, "%s: device %d is %s, port %d, %d Mb/s%s", rail_net_name(plugin), i, d->name, d->port,
              props.speed, d->nmembers > 1 ? ", fused" : "");
  }
  return RAIL_OK;
}

static bool same_members(const struct rt_net_device *d, const struct rail_net_vprops_v12 *group) {
  if (d->nmembers != group->ndevs) return false;
  for (int i = 0; i < d->nmembers; i++)
    if (!has(group, d->members[i])) return false;
  return true;
}

/* ---- fusing ------------------------------------------------------------------------ */

/* The group's device: one that is there, or one that the plugin makes now. */
static rail_result_t fuse(struct rail_net *plugin, const struct rt_net_device *table, int n,
                          const struct rail_net_vprops_v12 *group, int *dev) {
  for (*dev = 0; *dev < n; ++*dev)
    if (same_members(&table[*dev], group)) return RAIL_OK;
  rail_result_t r = rail_net_make_vdevice(plugin, dev, group);
  if (r == RAIL_OK) return RAIL_OK;
  RAIL_WARN("NCCL_NET_FORCE_MERGE: the plugin %s fuses no %d devices from %s on: %s", rail_net_name(plugin),
            group->ndevs, table[group->devs[0]].name, rail_result_name(r));
  return RAIL_BAD_USAGE;
}

/* Can what it is fused of be used by itself? */
static bool members_are_listed(const struct rt_net_device *table, int n, int dev) {
  const struct rt_net_device *d = &table[dev];
  for (int i = 0; i < d->nmembers; i++) {
    const int member = d->members[i];
    if (member < 0 || member >= n || table[member].nmembers != 1) return false;
  }
  return true;
}

/* A fused device replaces its first member; the others are left out. */
static rail_result_t replace_members(const struct rt_net_device *table, const struct rail_net_vprops_v12 *group,
                                     int dev, int *used) {
  for (int i = 0; i < group->ndevs; i++) {
    if (used[group->devs[i]] != group->devs[i]) {
      RAIL_WARN("NCCL_NET_FORCE_MERGE: %s is in two groups", table[group->devs[i]].name);
      return RAIL_BAD_USAGE;
    }
    used[group->devs[i]] = i == 0 ? dev : -1;
  }
  return RAIL_OK;
}

static rail_result_t read_pci_paths(struct rail_net *plugin, struct rt_net_devices *devices) {
  for (int i = 0; i < devices->n; i++) {
    struct rail_net_props_v12 props;
    RAIL_TRY(rail_net_properties(plugin, devices->dev[i], &props));
    rt_pci_read(props.pci_path, &devices->pci[i]);
  }
  return RAIL_OK;
}

rail_result_t rt_net_devices_open(struct rail_net *plugin, const char *merge, struct rt_net_devices *out) {
  struct rt_net_device table[RT_NET_DEVICES_MAX];
  int n, dev, used[RT_NET_DEVICES_MAX];
  RAIL_TRY(read_table(plugin, table, &n));
  /* Devices that were fused earlier are used only where a group names them; those of a plugin that lists no members of
   * theirs, always. */
  for (int i = 0; i < n; i++) used[i] = table[i].nmembers > 1 && members_are_listed(table, n, i) ? -1 : i;
  struct rail_net_vprops_v12 group;
  for (const char *text = merge ? merge : "";;) {
    RAIL_TRY(rt_merge_next(&text, table, n, &group));
    if (group.ndevs == 0) break;
    RAIL_TRY(fuse(plugin, table, n, &group, &dev));
    RAIL_TRY(replace_members(table, &group, dev, used));
  }
  out->n = 0;
  for (int i = 0; i < n; i++)
    if (used[i] >= 0) out->dev[out->n++] = used[i];
  if (out->n == 0) {
    RAIL_WARN("the plugin %s lists %d devices, none of which can be used; rail-kit inspect shows them",
              rail_net_name(plugin), n);
    return RAIL_BAD_USAGE;
  }
  return read_pci_paths(plugin, out);
}
