/* SPDX-License-Identifier: Apache-2.0
 * Asks a plugin for its versions and devices in a process group of one, before anything else is tried. */
#include "kit/kit_probe.h"

#include <stdio.h>
#include <string.h>

#include "kit/kit_net.h"
#include "loader/netload.h"

#define PROBE_LIMIT_MS 20000

static void name_devices(const struct kit_net *n, struct kit_probe *found) {
  for (int i = 0; i < n->ndev && i < KIT_PROBE_DEVICES; i++) {
    struct rail_net_props_v12 props = {.name = NULL};
    bool named = n->vt->get_properties(i, &props) == RAIL_OK && props.name;
    if (named && strlen(props.name) < sizeof found->devices[i])
      snprintf(found->devices[i], sizeof found->devices[i], "%s", props.name);
  }
}

void kit_probe_process(struct kit_process *self) {
  struct kit_net n;
  struct kit_probe found = {0};
  kit_net_load(&n, 0);
  snprintf(found.name, sizeof found.name, "%s", rail_net_name(n.any));
  for (int v = RAIL_NET_VERSION_MIN; v <= RAIL_NET_VERSION_MAX; v++) {
    struct rail_net *net;
    char why[256];
    if (rail_net_load(kit_plugin_path(), v, &net, why, sizeof why) != RAIL_OK) continue;
    if (rail_net_version(net) == v) found.versions |= 1u << v;
    rail_net_unload(net);
  }
  kit_send_record(self, &found, sizeof found);
  kit_net_unload(&n);
  kit_net_open(&n);
  found.ndev = n.ndev;
  kit_send_record(self, &found, sizeof found);
  name_devices(&n, &found); /* after that: a plugin that fails here is for the checks to find */
  kit_send_record(self, &found, sizeof found);
  kit_net_close(&n);
}

struct listener {
  struct kit_probe *probe;
  char log[512]; /* the plugin's last warnings */
};

static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  struct listener *l = arg;
  (void)group;
  if (message->kind == KIT_MESSAGE_LOG && strlen(l->log) + strlen(message->text) + 4 < sizeof l->log) {
    strcat(l->log, "\n  ");
    strcat(l->log, message->text);
  }
  if (message->kind != KIT_MESSAGE_RECORD || message->size != sizeof *l->probe) return;
  memcpy(l->probe, message->data, sizeof *l->probe);
  l->probe->name[sizeof l->probe->name - 1] = 0;
  for (int i = 0; i < KIT_PROBE_DEVICES; i++) l->probe->devices[i][sizeof l->probe->devices[i] - 1] = 0;
}

bool kit_probe(const char *plugin, const struct kit_placement *placement, struct kit_probe *probe, char *why,
               size_t why_size) {
  struct listener listener = {.probe = probe};
  struct kit_group_options how = {.nprocesses = 1, .on_message = on_message, .arg = &listener};
  struct kit_outcome outcome;
  memset(probe, 0, sizeof *probe);
  snprintf(how.job.kind, sizeof how.job.kind, "probe");
  snprintf(how.job.plugin, sizeof how.job.plugin, "%s", plugin);
  how.job.limit_ms = kit_patience_ms(PROBE_LIMIT_MS);
  kit_placement_apply(placement, 0, &how.setup[0]);
  kit_group_run(NULL, &how, &outcome);
  if (probe->ndev > 0) return true; /* what happens at its end is for the checks to find */
  snprintf(why, why_size, "%s%s", outcome.sides[0].text, listener.log);
  return false;
}

bool kit_probe_has(const struct kit_probe *probe, int version, const char *command, const char *plugin) {
  if (version == 0 || (probe->versions & (1u << version))) return true;
  fprintf(stderr, "rail-kit %s: --abi %d: %s does not export ncclNetPlugin_v%d\n", command, version, plugin, version);
  return false;
}

int kit_probe_newest(const struct kit_probe *probe) {
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--)
    if (probe->versions & (1u << v)) return v;
  return 0;
}
