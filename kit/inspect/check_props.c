/* SPDX-License-Identifier: Apache-2.0
 * Findings about the devices' properties: fields not written, values that differ by call or version, values that NCCL
 * cannot use, devices beside each other. */
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kit/inspect/inspect.h"
#include "kit/kit_net.h"
#include "kit/kit_vtable.h"

#define FIND(grade, id, why, source, ...) kit_find(&in->findings, version, grade, id, why, source, __VA_ARGS__)

/* The fields of the properties: which a version has and where, which were not written, which differ by version. */

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

static void verify_unwritten(struct kit_inspection *in, int version, const struct kit_seen_props *p) {
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

/* Values that NCCL takes differ from call to call. What lies between fields may be anything, and so may devices that
 * vProps does not count. */
static bool has_changed(int version, const struct kit_seen_props *p) {
  const struct rail_net_vprops_v12 *v = &p->value.vprops;
  size_t ndevs = v->ndevs > 1 ? RAIL_MIN((size_t)v->ndevs, RAIL_COUNT_OF(v->devs)) : 1;
  for (size_t i = 0; i < RAIL_COUNT_OF(fields); i++) {
    const struct field *f = &fields[i];
    size_t at = f->in[index_of(version)].at, end = at + f->in[index_of(version)].size;
    if (f->wide == WIDE(name) || f->wide == WIDE(pci_path)) continue; /* pointers: see `moved` */
    if (f->wide == WIDE(vprops.devs[0])) end += (end - at) * (ndevs - 1);
    for (; at < RAIL_MIN(end, p->size); at++)
      if (p->changed[at]) return true;
  }
  return p->texts_changed;
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
static void verify_differences(struct kit_inspection *in) {
  int newest = RAIL_NET_VERSION_MAX;
  while (newest >= RAIL_NET_VERSION_MIN && kit_seen(in, newest)->nprops == 0) newest--;
  for (int v = newest - 1; v >= RAIL_NET_VERSION_MIN; v--)
    for (size_t i = 0; i < kit_seen(in, v)->nprops; i++) {
      const struct kit_seen_props *p = &kit_seen(in, v)->props[i], *q = device_of(kit_seen(in, newest), p->dev);
      if (p->size && q) compare(in, v, p, newest, q);
    }
}

/* ---- what the properties mean ---- */

#define TOPO_CC "NCCL src/graph/topo.cc"
#define XML_CC "NCCL src/graph/xml.cc"
#define TRANSPORT_CC "NCCL src/transport/net.cc"
#define NET_CC "NCCL src/plugin/net.cc"

#define SAY(text) "device %d: " text, p->dev

/* ---- one value after the other ---- */

static void verify_text(struct kit_inspection *in, int version, const struct kit_seen_props *p) {
  switch (p->name.state) {
    case KIT_TEXT_NULL:
      FIND(KIT_ERROR, "props.name", "NCCL compares and copies it: the process crashes.", XML_CC, SAY("name is NULL"));
      break;
    case KIT_TEXT_WILD:
      FIND(KIT_ERROR, "props.name", "NCCL compares and copies it: the process crashes.", XML_CC,
           SAY("name points to no memory"));
      break;
    case KIT_TEXT_ENDLESS:
      FIND(KIT_ERROR, "props.name", "NCCL keeps 255 characters, and devices that differ behind them become one.",
           XML_CC, SAY("name has more than %d characters"), KIT_NAME_MAX - 1);
      break;
    case KIT_TEXT_FINE:
      if (p->name.length == 0)
        FIND(KIT_WARNING, "props.name", "Names are what NCCL tells devices apart by.", XML_CC, SAY("name is empty"));
      break;
  }
  if (p->pci_path.state == KIT_TEXT_WILD)
    FIND(KIT_ERROR, "props.pci_path", "NCCL reads it: the process crashes.", XML_CC,
         SAY("pciPath points to no memory"));
}

/* "0000:3b:00.0" */
static bool is_bdf(const char *text) {
  static const char shape[] = "xxxx:xx:xx.x";
  if (strlen(text) != sizeof shape - 1) return false;
  for (size_t i = 0; i < sizeof shape - 1; i++)
    if (shape[i] == 'x' ? !isxdigit((unsigned char)text[i]) : text[i] != shape[i]) return false;
  return true;
}

static void verify_pci(struct kit_inspection *in, int version, const struct kit_seen_props *p) {
  const char *path = p->pci_path.s;
  char subsystem[64];
  if (p->pci_path.state == KIT_TEXT_NULL) {
    FIND(KIT_NOTE, "props.pci_path_null",
         "NCCL attaches the device to the first CPU: fine for virtual ones, wrong distances to GPUs for real ones.",
         XML_CC, SAY("pciPath is NULL"));
    return;
  }
  if (p->pci_path.state != KIT_TEXT_FINE) return;
  const char *slash = strrchr(path, '/');
  bool known = kit_props_subsystem(path, subsystem, sizeof subsystem);
  if (!slash)
    FIND(KIT_ERROR, "props.pci_path_slash", "NCCL looks for the last '/' and reads before the string.", XML_CC,
         SAY("pciPath '%s' has no '/'"), path);
  else if (!known)
    FIND(KIT_WARNING, "props.pci_path_missing",
         "NCCL takes the device for a virtual one and attaches it to the first CPU: distances to GPUs are wrong.",
         XML_CC, SAY("pciPath %s is no device in sysfs here"), path);
  else if (strcmp(subsystem, "pci") != 0)
    FIND(KIT_NOTE, "props.pci_path_other", "NCCL attaches the device to the first CPU.", XML_CC,
         SAY("pciPath %s is of subsystem %s, not pci"), path, subsystem);
  else if (strlen(slash + 1) >= KIT_NCCL_BUS_ID_BYTES)
    FIND(KIT_ERROR, "props.pci_path_long", "NCCL copies it into 16 bytes without looking: it overwrites its stack.",
         XML_CC, SAY("the last part of pciPath, '%s', has more than 15 characters"), slash + 1);
  else if (!is_bdf(slash + 1))
    FIND(KIT_ERROR, "props.pci_path_bdf",
         "NCCL takes the last part as the PCI address (0000:3b:00.0) and builds its tree from it. realpath() gives "
         "the form that is needed.",
         XML_CC, SAY("pciPath %s does not end with a PCI address"), path);
}

static void verify_numbers(struct kit_inspection *in, int version, const struct kit_seen_props *p) {
  const struct rail_net_props_v12 *v = &p->value;
  if (v->speed <= 0)
    FIND(KIT_WARNING, "props.speed", "NCCL takes it for 10000: paths and channels are chosen by it.", TOPO_CC,
         SAY("speed is %d Mb/s"), v->speed);
  if (isnan(v->latency) || v->latency < 0 || v->latency > 1e6f)
    FIND(KIT_WARNING, "props.latency", "The choice of algorithms adds it to every step between nodes.",
         "NCCL src/graph/tuning.cc", SAY("latency is %g us"), (double)v->latency);
  else if (v->latency != truncf(v->latency))
    FIND(KIT_NOTE, "props.latency_fraction", "It goes through an attribute that is a whole number.", TOPO_CC,
         SAY("latency %g us is %d us for NCCL"), (double)v->latency, (int)v->latency);
  if (v->max_comms <= 0)
    FIND(KIT_WARNING, "props.max_comms", "NCCL stores it as the number of channels the device can carry.", TOPO_CC,
         SAY("maxComms is %d"), v->max_comms);
  if (v->max_recvs < 1)
    FIND(KIT_ERROR, "props.max_recvs", "NCCL groups receives by it, and 1 is the least that works.", TRANSPORT_CC,
         SAY("maxRecvs is %d"), v->max_recvs);
  else if (v->max_recvs > 8)
    FIND(KIT_NOTE, "props.max_recvs_many",
         "NCCL then posts receives in groups of up to so many, and shares send comms: 32 times as many sends may be "
         "outstanding on one. Its own IB transport says 8.",
         TRANSPORT_CC, SAY("maxRecvs is %d"), v->max_recvs);
  if (version >= 9 && (v->max_p2p_bytes == 0 || v->max_p2p_bytes > RAIL_NET_MAX_BYTES))
    FIND(KIT_ERROR, "props.max_p2p_bytes", "Setting up a connection fails: it must be above 0 and at most 1 TiB.",
         TRANSPORT_CC, SAY("maxP2pBytes is %zu"), v->max_p2p_bytes);
}

static void verify_kinds(struct kit_inspection *in, int version, const struct kit_seen_props *p) {
  const struct rail_net_props_v12 *v = &p->value;
  const struct kit_seen_table *t = &kit_seen(in, version)->table;
  if (!(v->ptr_support & RAIL_PTR_HOST))
    FIND(KIT_ERROR, "props.ptr_host", "NCCL registers host buffers for every connection, whatever the device says.",
         TRANSPORT_CC, SAY("ptrSupport 0x%x lacks NCCL_PTR_HOST"), (unsigned)v->ptr_support);
  if (v->ptr_support & ~(RAIL_PTR_HOST | RAIL_PTR_CUDA | RAIL_PTR_DMABUF))
    FIND(KIT_WARNING, "props.ptr_bits", "NCCL knows HOST 1, CUDA 2 and DMABUF 4.", TOPO_CC,
         SAY("ptrSupport is 0x%x"), (unsigned)v->ptr_support);
  if ((v->ptr_support & RAIL_PTR_DMABUF) && t->slots[8] == KIT_SLOT_NULL)
    FIND(KIT_WARNING, "props.ptr_dmabuf", "NCCL looks for the slot first and never uses DMA-BUF then.",
         "NCCL src/init.cc", SAY("ptrSupport has DMABUF, but regMrDmaBuf is NULL"));
  if (version < 7) return;
  bool unpack = v->net_device_type == RAIL_NET_DEVICE_UNPACK;
  if (v->net_device_type != RAIL_NET_DEVICE_HOST &&
      (!unpack || v->net_device_version != RAIL_NET_DEVICE_UNPACK_VERSION))
    FIND(
        p->dev == 0 ? KIT_ERROR : KIT_WARNING, "props.device_type",
        "NCCL since 2.19 takes HOST (0), and UNPACK (1) of version 7. It looks at device 0 and does not use the "
        "plugin otherwise.",
        NET_CC, SAY("netDeviceType is %d, version %d"), v->net_device_type, v->net_device_version);
}

static void verify_vprops(struct kit_inspection *in, int version, const struct kit_seen_props *p, int ndev) {
  const struct rail_net_props_v12 *v = &p->value;
  int most = version >= 12 ? 8 : 4;
  if (version < 9) return;
  if (v->vprops.ndevs < 1 || v->vprops.ndevs > most) {
    FIND(KIT_ERROR, "props.vprops_count",
         version < 12 ? "NCCL since 2.28 copies so many entries into an array of 8 without looking."
                      : "NCCL walks so many entries when NICs are fused.",
         "NCCL src/plugin/net/net_v11.cc", SAY("vProps.ndevs is %d; 1 to %d are possible"), v->vprops.ndevs, most);
    return;
  }
  if (v->vprops.ndevs == 1 && v->vprops.devs[0] != p->dev)
    FIND(KIT_WARNING, "props.vprops_self", "A device that is not fused lists itself.", TOPO_CC,
         SAY("vProps lists device %d only"), v->vprops.devs[0]);
  for (int i = 0; v->vprops.ndevs > 1 && i < v->vprops.ndevs; i++)
    if (v->vprops.devs[i] < 0 || v->vprops.devs[i] >= ndev)
      FIND(KIT_ERROR, "props.vprops_index", "NCCL asks getProperties for it.", TOPO_CC,
           SAY("vProps lists device %d; there are %d"), v->vprops.devs[i], ndev);
}

static void verify_calls(struct kit_inspection *in, int version, const struct kit_seen_props *p) {
  if (p->overrun)
    FIND(KIT_ERROR, "props.overrun",
         "NCCL's structure is on its stack: what lies behind is overwritten. Is it the structure of a newer version?",
         "NCCL src/include/plugin/net", SAY("getProperties writes more than the %zu bytes of that version"), p->size);
  if (p->moved)
    FIND(KIT_WARNING, "props.moves",
         "NCCL keeps the pointers of one call while it makes the next: the old memory must stay as it is.", TOPO_CC,
         SAY("each call gives its name or pciPath at another address"));
  if (has_changed(version, p))
    FIND(KIT_WARNING, "props.change", "NCCL asks several times and takes the answers for one.", TOPO_CC,
         SAY("two calls of getProperties give different values"));
}

/* ---- devices beside each other ---- */

static void verify_pair(struct kit_inspection *in, int version, const struct kit_seen_props *p,
                       const struct kit_seen_props *q) {
  const struct rail_net_props_v12 *a = &p->value, *b = &q->value;
  bool same_name = strcmp(p->name.s, q->name.s) == 0, fine = p->name.state == KIT_TEXT_FINE;
  if (fine && same_name)
    FIND(KIT_ERROR, "props.same_name", "The name is the key of the topology: both become one node, the second is lost.",
         XML_CC, SAY("and %d: both are named '%s'"), q->dev, p->name.s);
  if ((fine && a->name == b->name && !same_name) ||
      (a->pci_path && a->pci_path == b->pci_path && strcmp(p->pci_path.s, q->pci_path.s) != 0))
    FIND(KIT_ERROR, "props.shared_string",
         "NCCL keeps the strings of all devices while it goes on asking: they must stay as they are.", TOPO_CC,
         SAY("and %d: their strings lie in the same memory"), q->dev);
  if (a->guid == b->guid && a->port == b->port && a->vprops.ndevs <= 1 && b->vprops.ndevs <= 1)
    FIND(KIT_WARNING, "props.same_guid",
         "NCCL takes devices of one guid and port for one link: using one takes bandwidth from the other. Right for "
         "two functions of one port, wrong for two NICs.",
         "NCCL src/graph/search.cc", SAY("and %d: both have guid 0x%llx, port %d"), q->dev,
         (unsigned long long)a->guid, a->port);
  if (version < 12) return;
  if (a->plane_id != RAIL_NET_ID_UNDEF && b->plane_id != RAIL_NET_ID_UNDEF && a->plane_id != b->plane_id)
    FIND(KIT_NOTE, "props.planes", "NCCL never connects devices of different planes in one channel.",
         "NCCL src/graph/search.cc", SAY("and %d: planes %d and %d"), q->dev, a->plane_id, b->plane_id);
  if ((a->rail_id == RAIL_NET_ID_UNDEF) != (b->rail_id == RAIL_NET_ID_UNDEF))
    FIND(KIT_WARNING, "props.rails",
         "With NCCL_CROSS_NIC=0 NCCL matches rails, and takes what is undefined as it comes.",
         "NCCL src/graph/search.cc", SAY("and %d: only one of them has a railId"), q->dev);
}

void kit_verify_props(struct kit_inspection *in) {
  for (int version = RAIL_NET_VERSION_MAX; version >= RAIL_NET_VERSION_MIN; version--) {
    const struct kit_seen_version *seen = kit_seen(in, version);
    for (size_t i = 0; i < seen->nprops; i++) {
      const struct kit_seen_props *p = &seen->props[i];
      if (p->result != RAIL_OK || p->result_again != RAIL_OK) {
        FIND(KIT_ERROR, "props.failed", "Initialisation of the communicator fails.", TOPO_CC,
             SAY("getProperties returned %s"), kit_rc_text(p->result != RAIL_OK ? p->result : p->result_again));
        continue;
      }
      verify_calls(in, version, p);
      verify_unwritten(in, version, p);
      verify_text(in, version, p);
      verify_pci(in, version, p);
      verify_numbers(in, version, p);
      verify_kinds(in, version, p);
      verify_vprops(in, version, p, seen->start.ndev);
      for (size_t k = 0; k < i; k++)
        if (seen->props[k].size && seen->props[k].dev != p->dev) verify_pair(in, version, &seen->props[k], p);
    }
  }
  verify_differences(in);
}
