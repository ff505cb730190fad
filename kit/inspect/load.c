/* SPDX-License-Identifier: Apache-2.0
 * Starts the processes that load the plugin, and takes down what they see. */
#include <string.h>

#include "kit/inspect/inspect.h"
#include "kit/kit_world.h"

#define MAX_LOGGED 20

/* Keeps a record if it is as long as its kind is. */
static void take_down(struct kit_inspection *in, const struct kit_record *head, const void *data, size_t size) {
  if (head->kind == KIT_RECORD_LOAD && size == sizeof in->load) {
    memcpy(&in->load, data, size);
    return;
  }
  if (head->version < RAIL_NET_VERSION_MIN || head->version > RAIL_NET_VERSION_MAX) return;
  struct kit_seen_version *v = kit_seen(in, head->version);
  if (head->kind == KIT_RECORD_TABLE && size == sizeof v->table) memcpy(&v->table, data, size);
  if (head->kind == KIT_RECORD_START && size == sizeof v->start) memcpy(&v->start, data, size);
  if (head->kind != KIT_RECORD_PROPS || size != sizeof *v->props) return;
  v->props = kit_more(v->props, &v->nprops, &v->cap_props, sizeof *v->props);
  memcpy(&v->props[v->nprops - 1], data, size);
}

static void note_log(struct kit_inspection *in, const char *text) {
  char line[sizeof *in->logged];
  snprintf(line, sizeof line, "%s", text);
  for (size_t i = 0; i < in->nlogged; i++)
    if (strcmp(in->logged[i], line) == 0) return;
  if (in->nlogged == MAX_LOGGED) return;
  in->logged = kit_more(in->logged, &in->nlogged, &in->cap_logged, sizeof *in->logged);
  memcpy(in->logged[in->nlogged - 1], line, sizeof line);
}

static void on_word(struct kit_world *world, const struct kit_word *word, void *arg) {
  struct kit_record head;
  (void)world;
  if (word->kind == KIT_WORD_LOG) note_log(arg, word->text);
  if (word->kind != KIT_WORD_ROLE || word->size < sizeof head) return;
  memcpy(&head, word->data, sizeof head);
  take_down(arg, &head, (const char *)word->data + sizeof head, word->size - sizeof head);
}

/* Runs one process. False: it could not be started. How it ended goes to `end`, "" when well. */
static bool run(struct kit_inspection *in, int version, char *end, size_t size, char *call, size_t call_size) {
  static struct kit_world_how how;
  static struct kit_outcome outcome;
  memset(&how, 0, sizeof how);
  how.nsides = 1;
  how.on_word = on_word;
  how.arg = in;
  how.job.version = version;
  how.job.limit_ms = in->how->limit_ms;
  snprintf(how.job.kind, sizeof how.job.kind, "inspect");
  memcpy(how.job.plugin, in->path, strlen(in->path) + 1); /* it fits: kit_look_at_plugin */
  kit_job_add(&how.job, "devices", "%d", in->how->ndevices);
  for (int i = 0; i < in->how->ndevices; i++) {
    char key[32];
    snprintf(key, sizeof key, "device%d", i);
    kit_job_add(&how.job, key, "%d", in->how->devices[i]);
  }
  kit_world_run(NULL, &how, &outcome);
  end[0] = call[0] = 0;
  const struct kit_side_end *side = &outcome.sides[0];
  if (version && outcome.end == KIT_END_SKIPPED) snprintf(kit_seen(in, version)->skipped, 256, "%.255s", side->text);
  if (outcome.end == KIT_END_FINE || outcome.end == KIT_END_SKIPPED) return true;
  if (outcome.end == KIT_END_HANG && !side->call[0]) { /* nobody's fault but the machine's, or --limit's */
    fprintf(stderr, "rail-kit inspect: %s, in %g s: is the machine busy? See --limit\n", side->text, outcome.seconds);
    return false;
  }
  snprintf(end, size, "%s: %s", kit_end_text(side->end), side->text);
  snprintf(call, call_size, "%s", side->call);
  if (outcome.end != KIT_END_ERROR) return true;
  fprintf(stderr, "rail-kit inspect: %s\n", side->text);
  return false;
}

int kit_look_at_plugin(struct kit_inspection *in) {
  struct kit_job *job = NULL;
  char call[32];
  if (strlen(in->path) >= sizeof job->plugin) {
    fprintf(stderr, "rail-kit inspect: %s: a path of more than %zu characters cannot be loaded here\n", in->path,
            sizeof job->plugin - 1);
    return -1;
  }
  if (!run(in, 0, in->load_end, sizeof in->load_end, call, sizeof call)) return -1;
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    struct kit_seen_version *seen = kit_seen(in, v);
    if (!seen->table.there || !seen->table.readable) continue;
    if (!run(in, v, seen->end, sizeof seen->end, seen->call, sizeof seen->call)) return -1;
  }
  return 0;
}
