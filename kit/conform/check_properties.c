/* SPDX-License-Identifier: Apache-2.0
 * Every property is written, in range, unique where it must be, and the same each time, in each thread and process. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/conform/kit_check.h"
#include "kit/kit_vtable.h"
#include "loader/netload.h"

#define MAX_DEVICES 64

/* All devices of this machine unless the user chose some: they are looked at, not used. */
static void open_all(struct kit_net *n) {
  setenv("NCCL_SOCKET_IFNAME", "^nosuchinterface", 0);
  kit_net_open(n);
  ENSURE(n->ndev <= MAX_DEVICES, "%d devices; the kit looks at %d at most", n->ndev, MAX_DEVICES);
}

static struct rail_net_props_v12 properties_of(struct kit_net *n, int dev) {
  struct rail_net_props_v12 p;
  memset(&p, 0xa5, sizeof p);
  int rc = n->vt->get_properties(dev, &p);
  ENSURE(rc == 0, "getProperties of device %d returned %s", dev, kit_rc_text(rc));
  return p;
}

/* ---- is each field written? ---- */

struct field { const char *name; size_t offset, size; };
#define FIELD(type, member, name) {name, offsetof(struct type, member), sizeof(((struct type *)0)->member)}
#define FIELDS_V6(t)                                                                                              \
  FIELD(t, name, "name"), FIELD(t, pci_path, "pciPath"), FIELD(t, guid, "guid"),                                  \
      FIELD(t, ptr_support, "ptrSupport"), FIELD(t, speed, "speed"), FIELD(t, port, "port"),                      \
      FIELD(t, latency, "latency"), FIELD(t, max_comms, "maxComms"), FIELD(t, max_recvs, "maxRecvs")
#define FIELDS_V7(t) FIELDS_V6(t), FIELD(t, net_device_type, "netDeviceType")
#define FIELDS_V9(t)                                                                                                 \
  FIELDS_V7(t), FIELD(t, force_flush, "forceFlush"), FIELD(t, vprops.ndevs, "vProps.ndevs"),                         \
      FIELD(t, vprops.devs[0], "vProps.devs[0]"), FIELD(t, max_p2p_bytes, "maxP2pBytes"),                            \
      FIELD(t, max_coll_bytes, "maxCollBytes")
#define FIELDS_V12(t) FIELDS_V9(t), FIELD(t, rail_id, "railId"), FIELD(t, plane_id, "planeId")
/* NCCL 2.30 has these, and never looks at them (netDeviceVersion: only with a device type other than host). */
#define UNREAD_V7(t) FIELD(t, net_device_version, "netDeviceVersion")
#define UNREAD_V8(t) UNREAD_V7(t), FIELD(t, reg_is_global, "regIsGlobal")
#define UNREAD_V11(t) UNREAD_V8(t), FIELD(t, max_multi_request_size, "maxMultiRequestSize")

/* Ends with a name of NULL. */
static const struct field *fields_of(int version, bool unread) {
  static const struct field none[] = {{0}}, v6[] = {FIELDS_V6(rail_net_props_v6), {0}},
                            v7[] = {FIELDS_V7(rail_net_props_v7), {0}}, v8[] = {FIELDS_V7(rail_net_props_v8), {0}},
                            v9[] = {FIELDS_V9(rail_net_props_v9), {0}}, v11[] = {FIELDS_V9(rail_net_props_v11), {0}},
                            v12[] = {FIELDS_V12(rail_net_props_v12), {0}};
  static const struct field u7[] = {UNREAD_V7(rail_net_props_v7), {0}}, u8[] = {UNREAD_V8(rail_net_props_v8), {0}},
                            u9[] = {UNREAD_V8(rail_net_props_v9), {0}}, u11[] = {UNREAD_V11(rail_net_props_v11), {0}},
                            u12[] = {UNREAD_V11(rail_net_props_v12), {0}};
  static const struct field *const read_by[] = {v6, v7, v8, v9, v9, v11, v12};
  static const struct field *const read_by_none[] = {none, u7, u8, u9, u9, u11, u12};
  if (unread) return read_by_none[version - RAIL_NET_VERSION_MIN];
  return read_by[version - RAIL_NET_VERSION_MIN];
}

static size_t size_of_props(int version) {
  static const size_t size[] = {sizeof(struct rail_net_props_v6),  sizeof(struct rail_net_props_v7),
                                sizeof(struct rail_net_props_v8),  sizeof(struct rail_net_props_v9),
                                sizeof(struct rail_net_props_v9),  sizeof(struct rail_net_props_v11),
                                sizeof(struct rail_net_props_v12)};
  return size[version - RAIL_NET_VERSION_MIN];
}

/* Calls fn(a, b) for each device, with its properties over two different poisons: a byte that keeps both was not
 * written, and none that happens to look like one is mistaken for it. */
static void with_two_poisons(void (*fn)(int version, const union kit_props *a, const union kit_props *b)) {
  struct kit_net n;
  struct rail_net_slots s;
  open_all(&n);
  rail_net_slots_fill(&s, n.version, rail_net_vtable(n.any));
  for (int d = 0; d < n.ndev; d++) {
    union kit_props a, b;
    memset(&a, 0xa5, sizeof a);
    memset(&b, 0x5a, sizeof b);
    int rc = kit_props_get(&s, d, &a);
    if (rc == 0) rc = kit_props_get(&s, d, &b);
    ENSURE(rc == 0, "getProperties of device %d returned %s", d, kit_rc_text(rc));
    fn(n.version, &a, &b);
  }
  kit_net_close(&n);
}

static bool unwritten(const union kit_props *a, const union kit_props *b, size_t i) {
  return a->bytes[i] == 0xa5 && b->bytes[i] == 0x5a;
}

static void all_written(int version, const union kit_props *a, const union kit_props *b, bool unread) {
  for (const struct field *f = fields_of(version, unread); f->name; f++)
    for (size_t i = f->offset; i < f->offset + f->size; i++)
      ENSURE(!unwritten(a, b, i), "v%d's getProperties does not write %s (byte %zu); NCCL's struct is not initialised",
             version, f->name, i - f->offset);
}

static void read_written(int version, const union kit_props *a, const union kit_props *b) {
  all_written(version, a, b, false);
}

static void unread_written(int version, const union kit_props *a, const union kit_props *b) {
  all_written(version, a, b, true);
}

static void nothing_beyond(int version, const union kit_props *a, const union kit_props *b) {
  for (size_t i = size_of_props(version); i < sizeof a->bytes; i++)
    ENSURE(unwritten(a, b, i), "v%d's getProperties writes %zu bytes beyond the struct of that version (%zu bytes)",
           version, i - size_of_props(version) + 1, size_of_props(version));
}

static void every_field_is_written(struct kit_process *self) {
  (void)self;
  with_two_poisons(read_written);
}

static void unread_fields_are_written(struct kit_process *self) {
  (void)self;
  with_two_poisons(unread_written);
}

static void nothing_is_written_beyond(struct kit_process *self) {
  (void)self;
  with_two_poisons(nothing_beyond);
}

/* ---- values ---- */

static void in_range(const struct kit_net *n, int d, const struct rail_net_props_v12 *p) {
  ENSURE(p->name && p->name[0], "device %d has no name: it is the key by which NCCL knows it", d);
  ENSURE(strlen(p->name) <= 255, "device %d has a name of %zu characters; NCCL has room for 255", d, strlen(p->name));
  ENSURE(p->ptr_support & RAIL_PTR_HOST, "device %d: ptrSupport %#x lacks NCCL_PTR_HOST; NCCL registers host memory",
         d, (unsigned)p->ptr_support);
  ENSURE(p->ptr_support == RAIL_PTR_HOST || n->vt->iflush,
         "device %d: ptrSupport %#x offers GPU memory, and iflush is NULL", d, (unsigned)p->ptr_support);
  ENSURE(p->max_recvs >= 1, "device %d: maxRecvs is %d, at least 1 is allowed", d, p->max_recvs);
  ENSURE(p->net_device_type == RAIL_NET_DEVICE_HOST ||
             (p->net_device_type == RAIL_NET_DEVICE_UNPACK && p->net_device_version == RAIL_NET_DEVICE_UNPACK_VERSION),
         "device %d: netDeviceType %d version %d; NCCL takes type 0, or 1 with version 7, and refuses the plugin else",
         d, p->net_device_type, p->net_device_version);
  ENSURE(p->max_p2p_bytes > 0 && p->max_p2p_bytes <= RAIL_NET_MAX_BYTES,
         "device %d: maxP2pBytes is %zu; NCCL's set-up fails unless it is 1 to 1 TiB", d, p->max_p2p_bytes);
  ENSURE(p->max_coll_bytes > 0 && p->max_coll_bytes <= RAIL_NET_MAX_BYTES,
         "device %d: maxCollBytes is %zu, allowed are 1 to 1 TiB", d, p->max_coll_bytes);
  int most = n->version < 12 ? 4 : 8;
  ENSURE(p->vprops.ndevs >= 1 && p->vprops.ndevs <= most,
         "device %d: vProps.ndevs is %d; a device is made of 1 (itself) to %d", d, p->vprops.ndevs, most);
  for (int i = 0; i < p->vprops.ndevs; i++)
    ENSURE(p->vprops.devs[i] >= 0 && p->vprops.devs[i] < n->ndev, "device %d: vProps.devs[%d] is %d of %d devices", d,
           i, p->vprops.devs[i], n->ndev);
}

static void values_are_in_range(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  open_all(&n);
  for (int d = 0; d < n.ndev; d++) {
    struct rail_net_props_v12 p = properties_of(&n, d);
    in_range(&n, d, &p);
  }
  kit_net_close(&n);
}

static void makes_sense(int d, const struct rail_net_props_v12 *p) {
  ENSURE((p->ptr_support & ~(RAIL_PTR_HOST | RAIL_PTR_CUDA | RAIL_PTR_DMABUF)) == 0,
         "device %d: ptrSupport %#x has unknown bits", d, (unsigned)p->ptr_support);
  ENSURE(p->reg_is_global == 0 || p->reg_is_global == 1, "device %d: regIsGlobal is %d, not 0 or 1", d,
         p->reg_is_global);
  ENSURE(p->force_flush == 0 || p->force_flush == 1, "device %d: forceFlush is %d; NCCL flushes only with 1", d,
         p->force_flush);
  ENSURE(p->speed > 0, "device %d: speed is %d Mb/s; NCCL takes that for 10000", d, p->speed);
  ENSURE(p->port >= 0, "device %d: port is %d", d, p->port);
  ENSURE(isfinite(p->latency) && p->latency >= 0 && p->latency < 1e6f, "device %d: latency is %g us", d,
         (double)p->latency);
  ENSURE(p->max_comms > 0, "device %d: maxComms is %d", d, p->max_comms);
  ENSURE(p->vprops.ndevs != 1 || p->vprops.devs[0] == d, "device %d says that it is device %d alone", d,
         p->vprops.devs[0]);
  ENSURE(p->max_multi_request_size >= 1, "device %d: maxMultiRequestSize is %d", d, p->max_multi_request_size);
  ENSURE(p->rail_id >= RAIL_NET_ID_UNDEF && p->plane_id >= RAIL_NET_ID_UNDEF,
         "device %d: railId %d, planeId %d; unknown is -1", d, p->rail_id, p->plane_id);
}

static void values_make_sense(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  open_all(&n);
  for (int d = 0; d < n.ndev; d++) {
    struct rail_net_props_v12 p = properties_of(&n, d);
    makes_sense(d, &p);
  }
  kit_net_close(&n);
}

static void pci_path_is_in_sysfs(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  open_all(&n);
  for (int d = 0; d < n.ndev; d++) {
    struct rail_net_props_v12 p = properties_of(&n, d);
    char real[4096];
    if (!p.pci_path) continue;
    const char *slash = strrchr(p.pci_path, '/');
    ENSURE(slash, "device %d: pciPath \"%s\" has no '/'; NCCL looks for the last one", d, p.pci_path);
    ENSURE(realpath(p.pci_path, real) && strncmp(real, "/sys/", 5) == 0,
           "device %d: pciPath %s is not there, or not in /sys; NCCL reads the topology from it (NULL: none)", d,
           p.pci_path);
    ENSURE(!kit_props_is_pci(p.pci_path) || strlen(slash + 1) < KIT_NCCL_BUS_ID_BYTES,
           "device %d: NCCL copies the last part of pciPath %s into %d bytes, unchecked", d, p.pci_path,
           KIT_NCCL_BUS_ID_BYTES);
  }
  kit_net_close(&n);
}

/* ---- identity ---- */

static void devices_are_told_apart(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct rail_net_props_v12 p[MAX_DEVICES];
  open_all(&n);
  for (int d = 0; d < n.ndev; d++) p[d] = properties_of(&n, d);
  for (int d = 0; d < n.ndev; d++) {
    for (int e = 0; e < d; e++)
      ENSURE(strcmp(p[d].name, p[e].name) != 0,
             "devices %d and %d are both called %s; NCCL would take them for one device", e, d, p[d].name);
    struct rail_net_props_v12 again = properties_of(&n, d); /* all are held at the same time */
    ENSURE(strcmp(again.name, p[d].name) == 0, "device %d is called %s, and %s a moment later", d, p[d].name,
           again.name);
  }
  if (n.ndev == 1) kit_note(self, "there is only one device here, %s", p[0].name);
  kit_net_close(&n);
}

static void links_are_told_apart(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct rail_net_props_v12 p[MAX_DEVICES];
  open_all(&n);
  for (int d = 0; d < n.ndev; d++) p[d] = properties_of(&n, d);
  for (int d = 0; d < n.ndev; d++)
    for (int e = 0; e < d; e++)
      ENSURE(p[d].guid != p[e].guid || p[d].port != p[e].port || p[d].vprops.ndevs > 1 || p[e].vprops.ndevs > 1,
             "devices %s and %s have the same guid and port; NCCL takes that for one link whose bandwidth they share",
             p[e].name, p[d].name);
  kit_net_close(&n);
}

static void strings_stay_where_they_are(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct rail_net_props_v12 first[MAX_DEVICES];
  char names[MAX_DEVICES][256];
  open_all(&n);
  for (int d = 0; d < n.ndev; d++) {
    first[d] = properties_of(&n, d);
    snprintf(names[d], sizeof names[d], "%s", first[d].name);
  }
  for (int round = 0; round < 50; round++) {
    for (int d = 0; d < n.ndev; d++) {
      struct rail_net_props_v12 again = properties_of(&n, d);
      ENSURE(again.name == first[d].name, "device %d's name moved; NCCL keeps the pointer for the life of the process",
             d);
      ENSURE(again.pci_path == first[d].pci_path, "device %d's pciPath moved; NCCL keeps the pointer", d);
      ENSURE(strcmp(again.name, names[d]) == 0, "device %d was called %s and is now called %s", d, names[d],
             again.name);
    }
  }
  kit_net_close(&n);
}

struct answers {
  int ndev;
  struct { char name[256], pci[256]; uint64_t guid; int speed, port, max_recvs, ptr_support; } dev[MAX_DEVICES];
};

static void ask_all(struct kit_net *n, struct answers *t) {
  memset(t, 0, sizeof *t);
  t->ndev = n->ndev;
  for (int d = 0; d < n->ndev && d < MAX_DEVICES; d++) {
    struct rail_net_props_v12 p = properties_of(n, d);
    snprintf(t->dev[d].name, sizeof t->dev[d].name, "%s", p.name);
    snprintf(t->dev[d].pci, sizeof t->dev[d].pci, "%s", p.pci_path ? p.pci_path : "");
    t->dev[d].guid = p.guid;
    t->dev[d].speed = p.speed;
    t->dev[d].port = p.port;
    t->dev[d].max_recvs = p.max_recvs;
    t->dev[d].ptr_support = p.ptr_support;
  }
}

static void ensure_same(const struct answers *a, const struct answers *b, const char *whom) {
  ENSURE(a->ndev == b->ndev, "%s there are %d devices, here %d", whom, b->ndev, a->ndev);
  for (int d = 0; d < a->ndev; d++) {
    ENSURE(strcmp(a->dev[d].name, b->dev[d].name) == 0, "device %d is called %s here and %s %s", d, a->dev[d].name,
           b->dev[d].name, whom);
    ENSURE(memcmp(&a->dev[d], &b->dev[d], sizeof a->dev[d]) == 0,
           "device %d (%s) has a pciPath, guid, speed, port, maxRecvs or ptrSupport here that it has not %s", d,
           a->dev[d].name, whom);
  }
}

/* With PXN one process asks another on its host to send through device N: a number must mean the same in both. */
static void processes_agree(struct kit_process *self) {
  static struct answers mine, theirs;
  struct kit_net n;
  if (kit_process_job(self)->hosts > 1) kit_skip("the two hosts may have different devices");
  open_all(&n);
  ask_all(&n, &mine);
  kit_exchange(self, 1 - kit_process_rank(self), &mine, &theirs, sizeof mine);
  ensure_same(&mine, &theirs, "in the other process");
  kit_net_close(&n);
}

struct asker { struct kit_net *net; const struct answers *expected; };

static void ask_often(void *arg) {
  struct asker *a = arg;
  struct answers *mine = malloc(sizeof *mine);
  ENSURE(mine, "out of memory");
  for (int i = 0; i < kit_scaled(100); i++) {
    ask_all(a->net, mine);
    ensure_same(a->expected, mine, "in another thread");
  }
  free(mine);
}

static void asked_by_several_threads(struct kit_process *self) {
  (void)self;
  static struct answers expected;
  struct kit_net n;
  open_all(&n);
  ask_all(&n, &expected);
  struct asker a[4];
  for (int i = 0; i < 4; i++) a[i] = (struct asker){&n, &expected};
  kit_run_threads(4, ask_often, a, sizeof a[0]);
  kit_net_close(&n);
}

/* ---- devices that are not there, and new ones ---- */

static void wrong_device_is_refused(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct rail_net_props_v12 p;
  char handle[RAIL_NET_HANDLE_SIZE];
  open_all(&n);
  static const int offset[] = {0, 1, 1000};
  for (size_t i = 0; i < sizeof offset / sizeof offset[0]; i++) {
    const int wrong[] = {n.ndev + offset[i], -1 - offset[i]};
    for (int k = 0; k < 2; k++) {
      void *comm = NULL;
      ENSURE(n.vt->get_properties(wrong[k], &p) != 0, "getProperties of device %d of %d succeeds", wrong[k], n.ndev);
      ENSURE(n.vt->listen(n.ctx, wrong[k], handle, &comm) != 0, "listen on device %d of %d succeeds", wrong[k],
             n.ndev);
    }
  }
  kit_net_close(&n);
}

static void open_fusing(struct kit_net *n) {
  struct rail_net_slots s;
  open_all(n);
  rail_net_slots_fill(&s, n->version, rail_net_vtable(n->any));
  if (!s.make_vdevice_v9 && !s.make_vdevice_v12) kit_skip("the plugin has no makeVDevice");
}

static void fused_devices(struct kit_process *self) {
  struct kit_net n;
  open_fusing(&n);
  if (n.ndev < 2) kit_skip("there is only one device here");
  if (properties_of(&n, n.dev).vprops.ndevs > 1) kit_skip("device %d is a fused one already", n.dev);
  struct rail_net_vprops_v12 two = {.ndevs = 2, .devs = {0, 1}};
  int fused = -1, ndev = -1, rc = n.vt->make_vdevice(&fused, &two);
  if (rc != 0) {
    kit_note(self, "makeVDevice of devices 0 and 1 is refused with %s", kit_rc_text(rc));
    kit_net_close(&n);
    return;
  }
  ENSURE(fused == n.ndev, "makeVDevice gave the number %d; NCCL expects the next, %d", fused, n.ndev);
  ENSURE(n.vt->devices(&ndev) == 0 && ndev == n.ndev + 1, "devices says %d after makeVDevice, %d before", ndev, n.ndev);
  struct rail_net_props_v12 p = properties_of(&n, fused);
  in_range(&n, fused, &p);
  ENSURE(p.vprops.ndevs == 2 && p.vprops.devs[0] == 0 && p.vprops.devs[1] == 1,
         "vProps of devices 0 and 1 fused lists %d: %d and %d", p.vprops.ndevs, p.vprops.devs[0], p.vprops.devs[1]);
  for (int d = 0; d < n.ndev; d++)
    ENSURE(strcmp(p.name, properties_of(&n, d).name) != 0, "device %d and the fused one are both called %s", d, p.name);
  kit_net_close(&n);
}

/* NCCL hangs devices without a PCI path below the first CPU, in one "nic" node, and takes them for ports of one card.
 * It puts a device that is fused from them one node too deep for its own search. Where the second device is in the PCI
 * tree (NCCL_NET_MERGE_LEVEL=PHB), NCCL wants the PCI address of the first, which has none. */
static void fused_without_pci(struct kit_process *self) {
  struct kit_net n;
  struct rail_net_vprops_v12 two = {.ndevs = 0};
  open_fusing(&n);
  for (int d = 0; d < n.ndev && two.ndevs < 2; d++) {
    struct rail_net_props_v12 p = properties_of(&n, d);
    if (p.vprops.ndevs == 1 && !kit_props_is_pci(p.pci_path)) two.devs[two.ndevs++] = d;
  }
  if (two.ndevs == 0) kit_skip("all %d devices have a PCI path", n.ndev);
  if (two.ndevs == 1 && two.devs[0] + 1 < n.ndev) two.devs[two.ndevs++] = two.devs[0] + 1;
  if (two.ndevs < 2) kit_skip("no two devices here of which the first has no PCI path");
  int fused = -1, rc = n.vt->make_vdevice(&fused, &two);
  ENSURE(rc != 0, "makeVDevice fuses devices %d and %d, and %d has no PCI path: NCCL's topology then has no network "
         "device, and ncclCommInitRank fails (ncclInternalError)", two.devs[0], two.devs[1], two.devs[0]);
  ENSURE(n.version > 9 || rc != RAIL_BAD_USAGE, "makeVDevice refuses devices %d and %d with ncclInvalidUsage, after "
         "which ncclCommInitRank of NCCL 2.24 and 2.25 fails; any other error lets it go on", two.devs[0], two.devs[1]);
  kit_note(self, "makeVDevice of devices %d and %d is refused with %s", two.devs[0], two.devs[1], kit_rc_text(rc));
  kit_net_close(&n);
}

/* NCCL 2.24 to 2.26 ask for every device that they do not merge, and 2.26 asks again after a refusal. */
static void a_device_made_of_one(struct kit_process *self) {
  struct kit_net n;
  (void)self;
  open_fusing(&n);
  for (int d = 0; d < n.ndev; d++) {
    if (properties_of(&n, d).vprops.ndevs > 1) continue; /* NCCL makes its own list, of devices that are not fused */
    struct rail_net_vprops_v12 one = {.ndevs = 1, .devs = {d}};
    int dev = -1, ndev = -1, rc = n.vt->make_vdevice(&dev, &one);
    ENSURE(rc == 0, "makeVDevice of device %d alone is refused with %s: ncclCommInitRank of NCCL 2.26 then never ends "
           "where there are several devices; 2.24's and 2.25's fails on ncclInvalidUsage", d, kit_rc_text(rc));
    ENSURE(n.vt->devices(&ndev) == 0 && dev >= 0 && dev < ndev, "makeVDevice of device %d alone gave the number %d, "
           "and devices says %d", d, dev, ndev);
    struct rail_net_props_v12 p = properties_of(&n, dev);
    ENSURE(p.vprops.ndevs == 1 && p.vprops.devs[0] == d, "vProps of device %d, made of %d, are of others", dev, d);
  }
  kit_net_close(&n);
}

static void what_it_says(struct kit_process *self) {
  struct kit_net n;
  open_all(&n);
  kit_metric(self, "devices", n.ndev, "");
  for (int d = 0; d < n.ndev; d++) {
    struct rail_net_props_v12 p = properties_of(&n, d);
    kit_note(self, "device %d %s: %d Mb/s, latency %g us, maxRecvs %d, maxComms %d, ptrSupport %#x, pciPath %s", d,
             p.name, p.speed, (double)p.latency, p.max_recvs, p.max_comms, (unsigned)p.ptr_support,
             p.pci_path ? p.pci_path : "none");
    if (p.latency > 0 && p.latency < 1)
      kit_note(self, "device %d: NCCL cuts a latency of %g us to 0", d, (double)p.latency);
  }
  kit_net_close(&n);
}

const struct kit_check kit_checks_properties[] = {
  {"2.1", "properties.every_field_is_written", KIT_MUST, KIT_ONE,
   .what = "getProperties writes every field that NCCL reads: the struct that it is given is not initialised.",
   .source = "src/graph/topo.cc:1620-1655, paths.cc:578, src/transport/net.cc:750", .run = every_field_is_written},
  {"2.2", "properties.nothing_is_written_beyond", KIT_MUST, KIT_ONE,
   .what = "getProperties writes no byte behind the struct of its own version.",
   .source = "src/include/plugin/net/net_v6.h to net_v12.h", .run = nothing_is_written_beyond},
  {"2.3", "properties.unread_fields_are_written", KIT_SHOULD, KIT_ONE, .versions = KIT_SINCE(7),
   .what = "The fields that no NCCL up to 2.30 reads are written, too: the next one may.",
   .source = "plugins/net/README.md:241-249, src/include/plugin/nccl_net.h", .run = unread_fields_are_written},
  {"2.4", "properties.values_are_in_range", KIT_MUST, KIT_ONE,
   .what = "Name, ptrSupport, maxRecvs, netDeviceType, maxP2pBytes, maxCollBytes and vProps have values NCCL takes.",
   .source = "src/transport/net.cc:760-766, 801-807, src/plugin/net.cc:140-163", .run = values_are_in_range},
  {"2.5", "properties.values_make_sense", KIT_SHOULD, KIT_ONE,
   .what = "Speed, latency, port, maxComms and the other values are what they seem to be.",
   .source = "src/graph/topo.cc:415-418, 1643-1655", .run = values_make_sense},
  {"2.6", "properties.pci_path_is_in_sysfs", KIT_MUST, KIT_ONE,
   .what = "pciPath is NULL or a path in /sys whose last part is short.",
   .source = "src/graph/xml.cc:1113-1125", .run = pci_path_is_in_sysfs},
  {"2.7", "properties.devices_are_told_apart", KIT_MUST, KIT_ONE,
   .what = "No two devices have the same name, and the names live side by side.",
   .source = "src/graph/xml.cc:1100, src/graph/topo.cc:1592-1600", .run = devices_are_told_apart},
  {"2.8", "properties.links_are_told_apart", KIT_SHOULD, KIT_ONE,
   .what = "No two devices have the same guid and port.",
   .source = "src/graph/search.cc:593-615, 747-752", .run = links_are_told_apart},
  {"2.9", "properties.strings_stay_where_they_are", KIT_SHOULD, KIT_ONE,
   .what = "Name and pciPath of a device are the same pointers, with the same text, for the life of the process.",
   .source = "src/graph/topo.cc:1592-1600", .run = strings_stay_where_they_are},
  {"2.10", "properties.processes_agree", KIT_MUST, KIT_TWO,
   .what = "A device number means the same device in every process of a host.",
   .source = "src/transport/net.cc:303-336, src/graph/paths.cc:640-668", .run = processes_agree},
  {"2.11", "properties.asked_by_several_threads", KIT_MUST, KIT_ONE,
   .what = "getProperties may be called by several threads at once: no lock is held around it.",
   .source = "src/graph/paths.cc:575-580, src/transport/net.cc:751, 795, src/bootstrap.cc:590",
   .run = asked_by_several_threads},
  {"2.12", "properties.wrong_device_is_refused", KIT_SHOULD, KIT_ONE,
   .what = "getProperties and listen refuse a device number that devices did not give.",
   .source = "plugins/net/README.md:128-145", .run = wrong_device_is_refused},
  {"2.13", "properties.fused_devices", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(9),
   .what = "A device that makeVDevice makes gets the next number, is counted by devices, and lists what it is made of.",
   .source = "src/graph/topo.cc:1390-1440, 1708-1735", .run = fused_devices},
  {"2.14", "properties.fused_without_pci", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(9),
   .what = "makeVDevice refuses devices without a PCI path, which NCCL asks for by default: all hang below one CPU.",
   .source = "src/graph/topo.cc:1108-1116, 1403-1440, 1515-1577, src/graph/xml.cc:1113-1150", .run = fused_without_pci},
  {"2.15", "properties.a_device_made_of_one", KIT_MUST, KIT_ONE, .versions = KIT_V(9) | KIT_V(10),
   .what = "makeVDevice of one device succeeds: NCCL 2.24 to 2.26 ask so for each device that they do not merge.",
   .source = "src/graph/topo.cc of 2.26.6: 963-981, 1063-1113", .run = a_device_made_of_one},
  {"2.16", "properties.what_it_says", KIT_OBSERVED, KIT_ONE,
   .what = "The devices and what NCCL makes of them.", .source = "src/graph/topo.cc:1620-1655", .run = what_it_says},
  {0},
};
