/* SPDX-License-Identifier: Apache-2.0
 * Findings about the tables in memory: names, slots that are NULL or point elsewhere; and about what init, devices and
 * finalize did. */
#include <string.h>
#include <strings.h>

#include "common/base/result.h"
#include "kit/inspect/inspect.h"

#define NET_CC "NCCL src/plugin/net.cc"
#define FIND(grade, id, why, source, ...) kit_find(&in->findings, 0, grade, id, why, source, __VA_ARGS__)
#define FIND_IN(version, grade, id, why, source, ...) \
  kit_find(&in->findings, version, grade, id, why, source, __VA_ARGS__)
#define SLOW_LOAD_S 0.5

static void verify_load(struct kit_inspection *in) {
  const struct kit_seen_load *load = &in->load;
  if (in->load_end[0])
    FIND(KIT_ERROR, "load.end", "The same would happen to every process that uses NCCL with this plugin.",
         "NCCL src/plugin/plugin_open.cc", "the process that loaded it %s", in->load_end);
  if (!load->done) return;
  if (!load->loaded) {
    FIND(KIT_ERROR, "load.failed",
         "NCCL shows this text with NCCL_DEBUG=INFO only, and goes on with its built-in transports.",
         "NCCL src/plugin/plugin_open.cc", "dlopen: %s", load->error);
    return;
  }
  if (load->seconds > SLOW_LOAD_S)
    FIND(KIT_WARNING, "load.slow",
         "Constructors run inside NCCL's init of every process, under a lock, even if the plugin is not used.", NET_CC,
         "loading took %.2f s", load->seconds);
  if (load->threads > 0)
    FIND(KIT_WARNING, "load.threads",
         "NCCL opens and closes the library as it likes: a thread from a constructor runs in code that is unmapped.",
         NET_CC, "loading alone starts %d thread%s", load->threads, load->threads == 1 ? "" : "s");
  if (load->fds > 0)
    FIND(KIT_NOTE, "load.files", "They are open in every process that loads the plugin, used or not.", NET_CC,
         "loading alone leaves %d file%s open", load->fds, load->fds == 1 ? "" : "s");
}

/* ---- names ---- */

static void verify_name(struct kit_inspection *in, int version, const struct kit_text *name) {
  switch (name->state) {
    case KIT_TEXT_NULL:
      FIND_IN(version, KIT_ERROR, "name.null", "NCCL compares it with NCCL_NET by strcasecmp: it crashes.", NET_CC,
           "the name is NULL");
      return;
    case KIT_TEXT_WILD:
      FIND_IN(version, KIT_ERROR, "name.wild", "NCCL prints and compares it: it crashes.", NET_CC,
           "the name points to no memory");
      return;
    case KIT_TEXT_ENDLESS:
      FIND_IN(version, KIT_WARNING, "name.long",
              "NCCL's log lines are cut at 1024 characters, and nobody will type it.", NET_CC,
              "the name has more than %d characters", KIT_NAME_MAX - 1);
      return;
    case KIT_TEXT_FINE: break;
  }
  if (name->length == 0)
    FIND_IN(version, KIT_WARNING, "name.empty", "NCCL_NET cannot ask for it, and logs do not say what is used.", NET_CC,
         "the name is empty");
  if (strcasecmp(name->s, "IB") == 0 || strcasecmp(name->s, "Socket") == 0)
    FIND_IN(version, KIT_WARNING, "name.built_in",
            "NCCL_NET with this name finds the plugin first, as it stands before the built-in one; if the plugin "
            "fails, the built-in one is used under the same name and nobody notices.",
            NET_CC, "the name '%s' is also that of NCCL's own transport", name->s);
}

static void verify_names(struct kit_inspection *in) {
  const char *first = NULL;
  int first_version = 0;
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    const struct kit_seen_table *t = &kit_seen(in, v)->table;
    if (!t->there || !t->readable) continue;
    verify_name(in, v, &t->name);
    if (t->name.state != KIT_TEXT_FINE) continue;
    if (!first) {
      first = t->name.s;
      first_version = v;
    } else if (strcasecmp(first, t->name.s) != 0) {
      FIND(KIT_WARNING, "name.differs", "One NCCL_NET does not fit all NCCL releases then.", NET_CC,
           "v%d is named '%s' but v%d '%s'", first_version, first, v, t->name.s);
    }
  }
}

/* ---- slots ---- */

static bool has_gpu_devices(const struct kit_seen_version *v) {
  for (size_t i = 0; i < v->nprops; i++)
    if (v->props[i].size && (v->props[i].value.ptr_support & (RAIL_PTR_CUDA | RAIL_PTR_DMABUF))) return true;
  return false;
}

/* The slots of one kind that are NULL: "listen, connect"; "": none. */
static const char *null_slots(int version, const struct kit_seen_table *t, enum rail_net_slot_need need, char *names,
                              size_t size) {
  names[0] = 0;
  for (int i = 1; i < rail_net_slot_count(version); i++) { /* the name is judged apart */
    if (rail_net_slot_table[i].need != need || t->slots[i] != KIT_SLOT_NULL) continue;
    size_t used = strlen(names);
    snprintf(names + used, size - used, "%s%s", used ? ", " : "", rail_net_slot_table[i].name);
  }
  return names;
}

static void verify_null(struct kit_inspection *in, int version, const struct kit_seen_table *t) {
  const struct kit_seen_start *start = &kit_seen(in, version)->start;
  char names[256];
  if (start->filled)
    FIND_IN(version, KIT_NOTE, "slot.filled_by_init", "NCCL bears it: it looks at a slot when it calls it.", NET_CC,
            "its table is filled by init%s", start->init == RAIL_OK ? "" : ", which failed here");
  if (start->filled && start->init != RAIL_OK) return; /* nothing of it would be called */
  if (null_slots(version, t, RAIL_NET_SLOT_NEEDED, names, sizeof names)[0])
    FIND_IN(version, KIT_ERROR, "slot.null", "NCCL calls them without looking: the process crashes.", NET_CC,
            "NULL: %s", names);
  if (null_slots(version, t, RAIL_NET_SLOT_AT_END, names, sizeof names)[0])
    FIND_IN(version, KIT_ERROR, "slot.null_finalize",
            "NCCL calls it without looking when a communicator ends and when devices fails: the process crashes.",
            NET_CC, "NULL: %s", names);
  if (null_slots(version, t, RAIL_NET_SLOT_GPU, names, sizeof names)[0] && has_gpu_devices(kit_seen(in, version)))
    FIND_IN(
        version, KIT_ERROR, "slot.null_iflush",
        "A device takes GPU memory, and after receives into it NCCL calls iflush without looking on GPUs older than "
        "Hopper, or with forceFlush.",
        "NCCL src/transport/net.cc", "NULL: %s", names);
  if (null_slots(version, t, RAIL_NET_SLOT_MAY, names, sizeof names)[0])
    FIND_IN(
        version, KIT_NOTE, "slot.optional",
        "NCCL looks first and does without: regMrDmaBuf no DMA-BUF, getDeviceMr no device-side handles, irecvConsumed "
        "no word when the GPU has read, makeVDevice no fused NICs, setNetAttr no hints.",
        "NCCL src/transport/net.cc", "NULL: %s", names);
}

static void verify_slot(struct kit_inspection *in, int version, int i, const struct kit_seen_table *t) {
  const struct rail_net_slot *slot = &rail_net_slot_table[i];
  switch ((enum kit_slot_state)t->slots[i]) {
    case KIT_SLOT_NULL:
    case KIT_SLOT_FINE: return;
    case KIT_SLOT_ELSEWHERE:
      FIND_IN(version, KIT_NOTE, "slot.elsewhere", "That library must stay loaded as long as the plugin is.",
              "dlopen(3)", "%s lies in %s", slot->name, t->object[i]);
      return;
    case KIT_SLOT_DATA:
      FIND_IN(version, KIT_ERROR, "slot.data",
           "Calling it crashes. A table of another version's layout, or one that is too short, looks like this.",
           "NCCL src/include/plugin/net", "%s points to data of %s, not to code", slot->name, t->object[i]);
      return;
    case KIT_SLOT_WILD:
      FIND_IN(version, KIT_ERROR, "slot.wild",
           "Calling it crashes. A table of another version's layout, or one that is too short, looks like this.",
           "NCCL src/include/plugin/net", "%s points to no code of any library", slot->name);
      return;
  }
}

void kit_verify_tables(struct kit_inspection *in) {
  verify_load(in);
  verify_names(in);
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    const struct kit_seen_table *t = &kit_seen(in, v)->table;
    if (!t->there) continue;
    if (!t->readable) {
      FIND_IN(v, KIT_ERROR, "table.unreadable", "NCCL reads it: the process crashes.", NET_CC,
           "the table reaches beyond the memory of the library");
      continue;
    }
    for (int i = 0; i < rail_net_slot_count(v); i++) verify_slot(in, v, i, t);
    verify_null(in, v, t);
  }
}

/* ---- What init, devices and finalize did ---- */

#define SLOW_INIT_S 2.0

/* Is the version one that a release takes for which `what` holds? */
static bool taken_by(const struct kit_inspection *in, int version, bool (*what)(const struct kit_release *r)) {
  for (size_t i = 0; i < kit_nreleases; i++)
    if (what(&kit_releases[i]) && kit_release_picks(&kit_releases[i], in->exported) == version) return true;
  return false;
}

static bool unloads(const struct kit_release *r) { return r->unloads; }
static bool finalizes_failed(const struct kit_release *r) { return r->finalize_failed; }

static void verify_init(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (s->init_s > SLOW_INIT_S)
    FIND_IN(version, KIT_WARNING, "init.slow",
         version >= 11 ? "Every communicator calls it, one after the other, under a lock."
                       : "The first communicator waits for it, under a lock.",
         NET_CC, "init took %.1f s", s->init_s);
  if (s->init == RAIL_OK) return;
  FIND_IN(version, KIT_WARNING, "init.failed",
       "NCCL goes on to the next plugin of the list and at last to its built-in transports, and says so with "
       "NCCL_DEBUG=INFO only. On a machine without the plugin's hardware that may be what is wanted.",
       NET_CC, "init returned %s", kit_rc_text(s->init));
  if (!taken_by(in, version, finalizes_failed)) return;
  if (version <= 10)
    FIND_IN(version, KIT_ERROR, "init.failed_crashes",
         "NCCL 2.28.3 to 2.29.3 call finalize after an init that failed, and for tables up to v10 that pointer is not "
         "set yet: the process crashes. Succeed, and report no devices.",
         "NCCL src/plugin/net.cc at v2.28.9-1", "init fails, and NCCL 2.28 takes this version");
  else
    FIND_IN(version, KIT_WARNING, "init.failed_finalize",
         "NCCL 2.28.3 to 2.29.3 call finalize after an init that failed, with whatever context there is, NULL "
         "perhaps. Succeed, and report no devices.",
         "NCCL src/plugin/net.cc at v2.28.9-1", "init fails, and NCCL 2.28 then calls finalize");
}

static void verify_devices(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (s->devices != RAIL_OK)
    FIND_IN(version, KIT_WARNING, "devices.failed", "NCCL disables the plugin for the life of the process.", NET_CC,
         "devices returned %s", kit_rc_text(s->devices));
  else if (s->ndev == -77)
    FIND_IN(version, KIT_ERROR, "devices.unwritten",
            "NCCL's variable is not set before the call: the number is garbage.", NET_CC,
            "devices succeeds but writes no number");
  else if (s->ndev <= 0)
    FIND_IN(version, KIT_WARNING, "devices.none",
         "NCCL disables the plugin for the life of the process and goes on to the next. On a machine without the "
         "plugin's hardware that is what is wanted.",
         NET_CC, "%d devices", s->ndev);
  else if (s->ended && s->ndev_again != s->ndev)
    FIND_IN(version, KIT_WARNING, "devices.changes",
         "NCCL asks once and uses the number as an index for the life of the process; only makeVDevice may add to it.",
         NET_CC, "devices said %d, then %d", s->ndev, s->ndev_again);
}

/* NCCL 2.30.7: ncclTopoAutoMerge takes all devices below one "nic" node for ports of one card; a fused device becomes a
 * node below that node, and ncclTopoAddNic looks for devices one level higher. */
static void verify_fusing(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (!s->fuse_called || s->fuse != RAIL_OK) return;
  FIND_IN(version, KIT_ERROR, "devices.fused_without_pci",
          "With two such devices NCCL asks for it unless NCCL_NET_MERGE_LEVEL=LOC. Its topology then has no network "
          "device, and ncclCommInitRank fails (ncclInternalError). Refuse with ncclInvalidUsage: NCCL then uses the "
          "devices as they are.",
          "NCCL src/graph/topo.cc", "makeVDevice fuses devices %d and %d, which have no PCI path: %d devices become %d",
          s->no_pci[0], s->no_pci[1], s->ndev, s->ndev_fused);
}

/* Asked for by --device, but not there. */
static void verify_asked_devices(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  for (int i = 0; i < in->how->ndevices; i++)
    if (s->devices == RAIL_OK && in->how->devices[i] >= s->ndev)
      FIND_IN(version, KIT_WARNING, "devices.no_such", "Its properties were asked for and are not in this report.",
              "rail-kit inspect --device", "there is no device %d; devices said %d", in->how->devices[i], s->ndev);
}

static void verify_end(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (s->finalize != RAIL_OK)
    FIND_IN(version, KIT_WARNING, "finalize.failed", "ncclCommDestroy returns the error, and the library stays loaded.",
            NET_CC, "finalize returned %s", kit_rc_text(s->finalize));
  if (s->threads_left > 0 && !in->elf.no_delete && taken_by(in, version, unloads))
    FIND_IN(version, KIT_WARNING, "finalize.threads",
            version >= 11
                ? "NCCL since 2.28 closes the library after the last finalize: these threads then run in code that is "
                  "unmapped."
                : "NCCL 2.22 to 2.25 and since 2.28 closes the library when the last communicator ends, and tables up "
                  "to v10 are not told: these threads then run in code that is unmapped. End them in a destructor, or "
                  "link with -z nodelete.",
            "NVIDIA/nccl issue 1620", "%d thread%s left after the end", s->threads_left,
            s->threads_left == 1 ? " is" : "s are");
  if (version >= 11 && s->fds_left > 0)
    FIND_IN(version, KIT_NOTE, "finalize.files", "They stay open; if each communicator adds some, they run out.",
            NET_CC, "%d file%s left open after finalize", s->fds_left, s->fds_left == 1 ? " is" : "s are");
}

void kit_verify_start(struct kit_inspection *in) {
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    const struct kit_seen_version *seen = kit_seen(in, v);
    const struct kit_seen_start *s = &seen->start;
    if (seen->end[0])
      FIND_IN(v, KIT_ERROR, seen->call[0] ? "start.end" : "start.end_outside",
           "It is the application's process that this happens to.", NET_CC, "its process %s", seen->end);
    if (!s->init_called) continue;
    verify_init(in, v, s);
    if (s->devices_called) verify_devices(in, v, s);
    if (s->devices_called) verify_asked_devices(in, v, s);
    if (s->devices_called) verify_fusing(in, v, s);
    if (s->ended) verify_end(in, v, s);
  }
}
