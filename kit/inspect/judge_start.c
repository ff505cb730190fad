/* SPDX-License-Identifier: Apache-2.0
 * What init, devices and finalize did. */
#include "common/base/result.h"
#include "kit/inspect/inspect.h"

#define NET_CC "NCCL src/plugin/net.cc"
#define FIND(grade, id, why, source, ...) kit_find(&in->findings, 0, grade, id, why, source, __VA_ARGS__)
#define FIND_IN(version, grade, id, why, source, ...) \
  kit_find(&in->findings, version, grade, id, why, source, __VA_ARGS__)
#define SLOW_INIT_S 2.0

/* Is the version one that a release takes for which `what` holds? */
static bool taken_by(const struct kit_inspection *in, int version, bool (*what)(const struct kit_release *r)) {
  for (size_t i = 0; i < kit_nreleases; i++)
    if (what(&kit_releases[i]) && kit_release_picks(&kit_releases[i], in->exported) == version) return true;
  return false;
}

static bool unloads(const struct kit_release *r) { return r->unloads; }
static bool finalizes_failed(const struct kit_release *r) { return r->finalize_failed; }

static void judge_init(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (s->init_s > SLOW_INIT_S)
    FIND_IN(version, KIT_WARNING, "init.slow",
         version >= 11 ? "Every communicator calls it, one after the other, under a lock."
                       : "The first communicator waits for it, under a lock.",
         NET_CC, "init took %.1f s", s->init_s);
  if (s->init == RAIL_OK) return;
  FIND_IN(version, KIT_WARNING, "init.failed",
       "NCCL goes on to the next plugin of the list and at last to its built-in transports, and says so with "
       "NCCL_DEBUG=INFO only. On a machine without the plugin's hardware that may be what is wanted.",
       NET_CC, "init returned %d (%s)", s->init, rail_result_name(s->init));
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

static void judge_devices(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (s->devices != RAIL_OK)
    FIND_IN(version, KIT_WARNING, "devices.failed", "NCCL disables the plugin for the life of the process.", NET_CC,
         "devices returned %d (%s)", s->devices, rail_result_name(s->devices));
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
static void judge_fusing(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (!s->fuse_called || s->fuse != RAIL_OK) return;
  FIND_IN(version, KIT_ERROR, "devices.fused_without_pci",
          "With two such devices NCCL asks for it unless NCCL_NET_MERGE_LEVEL=LOC. Its topology then has no network "
          "device, and ncclCommInitRank fails (ncclInternalError). Refuse with ncclInvalidUsage: NCCL then uses the "
          "devices as they are.",
          "NCCL src/graph/topo.cc", "makeVDevice fuses devices %d and %d, which have no PCI path: %d devices become %d",
          s->no_pci[0], s->no_pci[1], s->ndev, s->ndev_fused);
}

/* Asked for by --device, but not there. */
static void judge_wishes(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  for (int i = 0; i < in->how->ndevices; i++)
    if (s->devices == RAIL_OK && in->how->devices[i] >= s->ndev)
      FIND_IN(version, KIT_WARNING, "devices.no_such", "Its properties were asked for and are not in this report.",
              "rail-kit inspect --device", "there is no device %d; devices said %d", in->how->devices[i], s->ndev);
}

static void judge_end(struct kit_inspection *in, int version, const struct kit_seen_start *s) {
  if (s->finalize != RAIL_OK)
    FIND_IN(version, KIT_WARNING, "finalize.failed", "ncclCommDestroy returns the error, and the library stays loaded.",
            NET_CC, "finalize returned %d (%s)", s->finalize, rail_result_name(s->finalize));
  if (s->threads_left > 0 && !in->elf.no_delete && taken_by(in, version, unloads))
    FIND_IN(version, KIT_WARNING, "finalize.threads",
            version >= 11
                ? "NCCL since 2.28 closes the library after the last finalize: these threads then run in code that is "
                  "unmapped."
                : "NCCL 2.22 to 2.25 and since 2.28 closes the library when the last communicator ends, and tables up "
                  "to v10 are not told: these threads then run in code that is unmapped. Link with -z nodelete.",
            "NVIDIA/nccl issue 1620", "%d thread%s left after the end", s->threads_left,
            s->threads_left == 1 ? " is" : "s are");
  if (version >= 11 && s->fds_left > 0)
    FIND_IN(version, KIT_NOTE, "finalize.files", "They stay open; if each communicator adds some, they run out.",
            NET_CC, "%d file%s left open after finalize", s->fds_left, s->fds_left == 1 ? " is" : "s are");
}

void kit_judge_start(struct kit_inspection *in) {
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    const struct kit_seen_version *seen = kit_seen(in, v);
    const struct kit_seen_start *s = &seen->start;
    if (seen->end[0])
      FIND_IN(v, KIT_ERROR, seen->call[0] ? "start.end" : "start.end_outside",
           "It is the application's process that this happens to.", NET_CC, "its process %s", seen->end);
    if (!s->init_called) continue;
    judge_init(in, v, s);
    if (s->devices_called) judge_devices(in, v, s);
    if (s->devices_called) judge_wishes(in, v, s);
    if (s->devices_called) judge_fusing(in, v, s);
    if (s->ended) judge_end(in, v, s);
  }
}
