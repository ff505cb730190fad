/* SPDX-License-Identifier: Apache-2.0
 * The fields of the properties: which a version has and where, which were not written, which differ by version. */
#include <stddef.h>
#include <string.h>

#include "kit/inspect/inspect.h"

#define FIND(grade, id, why, source, ...) kit_find(&in->findings, version, grade, id, why, source, __VA_ARGS__)
#define STRUCTS 6

struct field {
  const char *name;
  struct { uint8_t at, size; } in[STRUCTS]; /* by index_of(version); size 0: that version has it not */
  bool grave;  /* NCCL decides by it, or follows it */
  size_t wide; /* in the v12 structure */
};

static int index_of(int version) {
  return version <= 8 ? version - 6 : version <= 10 ? 3 : version == 11 ? 4 : 5;
}

#define IN(v, f) {offsetof(struct rail_net_props_##v, f), sizeof(((struct rail_net_props_##v *)0)->f)}
#define NOT {0, 0}
#define WIDE(f) offsetof(struct rail_net_props_v12, f)
#define SINCE_V6(name, f, grave) \
  {name, {IN(v6, f), IN(v7, f), IN(v8, f), IN(v9, f), IN(v11, f), IN(v12, f)}, grave, WIDE(f)}
#define SINCE_V7(name, f, grave) {name, {NOT, IN(v7, f), IN(v8, f), IN(v9, f), IN(v11, f), IN(v12, f)}, grave, WIDE(f)}
#define SINCE_V8(name, f, grave) {name, {NOT, NOT, IN(v8, f), IN(v9, f), IN(v11, f), IN(v12, f)}, grave, WIDE(f)}
#define SINCE_V9(name, f, grave) {name, {NOT, NOT, NOT, IN(v9, f), IN(v11, f), IN(v12, f)}, grave, WIDE(f)}
#define SINCE_V11(name, f, grave) {name, {NOT, NOT, NOT, NOT, IN(v11, f), IN(v12, f)}, grave, WIDE(f)}
#define SINCE_V12(name, f, grave) {name, {NOT, NOT, NOT, NOT, NOT, IN(v12, f)}, grave, WIDE(f)}

static const struct field fields[] = {
    SINCE_V6("name", name, true),
    SINCE_V6("pciPath", pci_path, true),
    SINCE_V6("guid", guid, true),
    SINCE_V6("ptrSupport", ptr_support, true),
    SINCE_V8("regIsGlobal", reg_is_global, false),
    SINCE_V9("forceFlush", force_flush, true),
    SINCE_V6("speed", speed, true),
    SINCE_V6("port", port, true),
    SINCE_V6("latency", latency, true),
    SINCE_V6("maxComms", max_comms, true),
    SINCE_V6("maxRecvs", max_recvs, true),
    SINCE_V7("netDeviceType", net_device_type, true),
    SINCE_V7("netDeviceVersion", net_device_version, false),
    SINCE_V9("vProps.ndevs", vprops.ndevs, true),
    SINCE_V9("vProps.devs[0]", vprops.devs[0], true),
    SINCE_V9("maxP2pBytes", max_p2p_bytes, true),
    SINCE_V9("maxCollBytes", max_coll_bytes, false),
    SINCE_V11("maxMultiRequestSize", max_multi_request_size, false),
    SINCE_V12("railId", rail_id, true),
    SINCE_V12("planeId", plane_id, true),
};

void kit_judge_unwritten(struct kit_inspection *in, int version, const struct kit_seen_props *p) {
  for (size_t i = 0; i < RAIL_COUNT_OF(fields); i++) {
    const struct field *f = &fields[i];
    int at = f->in[index_of(version)].at, size = f->in[index_of(version)].size, unwritten = 0;
    for (int b = 0; b < size; b++) unwritten += p->unwritten[at + b];
    if (unwritten == 0) continue;
    FIND(f->grave ? KIT_ERROR : KIT_WARNING, "props.unwritten",
         f->grave ? "NCCL hands in a structure from its stack that nobody has cleared, and goes by the value."
                  : "NCCL hands in a structure from its stack that nobody has cleared; it does not use this value yet.",
         "NCCL src/graph/topo.cc", "device %d: getProperties does not write %s", p->dev, f->name);
  }
}

static const struct kit_seen_props *device_of(const struct kit_seen_version *v, int dev) {
  for (size_t i = 0; i < v->nprops; i++)
    if (v->props[i].dev == dev && v->props[i].size) return &v->props[i];
  return NULL;
}

static bool differs(const struct field *f, const struct kit_seen_props *a, const struct kit_seen_props *b) {
  if (f->wide == offsetof(struct rail_net_props_v12, name)) return strcmp(a->name.s, b->name.s) != 0;
  if (f->wide == offsetof(struct rail_net_props_v12, pci_path)) return strcmp(a->pci_path.s, b->pci_path.s) != 0;
  return memcmp((const char *)&a->value + f->wide, (const char *)&b->value + f->wide, f->in[STRUCTS - 1].size) != 0;
}

static void compare(struct kit_inspection *in, int version, const struct kit_seen_props *p, int newest,
                    const struct kit_seen_props *q) {
  for (size_t i = 0; i < RAIL_COUNT_OF(fields); i++) {
    if (fields[i].in[index_of(version)].size == 0 || fields[i].in[index_of(newest)].size == 0) continue;
    if (differs(&fields[i], p, q))
      FIND(KIT_WARNING, "props.versions",
           "NCCL of another release sees another device. An older interface may leave no choice (maxP2pBytes, say).",
           "NCCL src/plugin/net", "device %d: %s is not what v%d says", p->dev, fields[i].name, newest);
  }
}

/* Each version beside the newest that has answered. */
void kit_judge_differences(struct kit_inspection *in) {
  int newest = RAIL_NET_VERSION_MAX;
  while (newest >= RAIL_NET_VERSION_MIN && kit_seen(in, newest)->nprops == 0) newest--;
  for (int v = newest - 1; v >= RAIL_NET_VERSION_MIN; v--)
    for (size_t i = 0; i < kit_seen(in, v)->nprops; i++) {
      const struct kit_seen_props *p = &kit_seen(in, v)->props[i], *q = device_of(kit_seen(in, newest), p->dev);
      if (p->size && q) compare(in, v, p, newest, q);
    }
}
