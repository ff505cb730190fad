/* SPDX-License-Identifier: Apache-2.0
 * Every property is written, in range, unique where it must be, and the same each time and in each process.
 * TEST-LIMIT: 60 */
#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include "test/harness/proc.h"
#include "test/harness/program.h"

#define MAX_DEVICES 64

/* All devices of this machine, not only the loopback interface: they are looked at, not used. */
static void open_all(struct kit_net *n) {
  setenv("NCCL_SOCKET_IFNAME", "^nosuchinterface", 1);
  kit_net_open(n);
  CHECK(n->ndev <= MAX_DEVICES);
}

struct field { const char *name; size_t offset, size; };
#define FIELD(type, member) {#member, offsetof(struct type, member), sizeof(((struct type *)0)->member)}
#define FIELDS_V6(t)                                                                                                  \
  FIELD(t, name), FIELD(t, pci_path), FIELD(t, guid), FIELD(t, ptr_support), FIELD(t, speed), FIELD(t, port),         \
      FIELD(t, latency), FIELD(t, max_comms), FIELD(t, max_recvs)
#define FIELDS_V7(t) FIELDS_V6(t), FIELD(t, net_device_type), FIELD(t, net_device_version)
#define FIELDS_V8(t) FIELDS_V7(t), FIELD(t, reg_is_global)
#define FIELDS_V9(t) \
  FIELDS_V8(t), FIELD(t, force_flush), FIELD(t, vprops), FIELD(t, max_p2p_bytes), FIELD(t, max_coll_bytes)
#define FIELDS_V11(t) FIELDS_V9(t), FIELD(t, max_multi_request_size)
#define FIELDS_V12(t) FIELDS_V11(t), FIELD(t, rail_id), FIELD(t, plane_id)

/* A byte that keeps two different poisons was not written; an int whose value
 * happens to be the poison is not mistaken for one. */
static void all_written(int version, const void *a, const void *b, const struct field *fields, size_t count) {
  for (size_t f = 0; f < count; f++) {
    for (size_t i = fields[f].offset; i < fields[f].offset + fields[f].size; i++)
      CHECK_MSG(((const uint8_t *)a)[i] != 0xa5 || ((const uint8_t *)b)[i] != 0x5a,
                "v%d leaves byte %zu of %s unwritten", version, i - fields[f].offset, fields[f].name);
  }
}

#define CHECK_WRITTEN(v, props_type, fields)                                              \
  do {                                                                                    \
    const struct rail_net_v##v *vt = dlsym(dl, "ncclNetPlugin_v" #v);                     \
    struct props_type a, b;                                                               \
    static const struct field list[] = {fields(props_type)};                              \
    for (int d = 0; d < n.ndev; d++) {                                                    \
      memset(&a, 0xa5, sizeof a);                                                         \
      memset(&b, 0x5a, sizeof b);                                                         \
      CHECK_OK(vt->get_properties(d, &a));                                                \
      CHECK_OK(vt->get_properties(d, &b));                                                \
      all_written(v, &a, &b, list, sizeof list / sizeof list[0]);                         \
    }                                                                                     \
  } while (0)

TEST(every_field_is_written) {
  struct kit_net n;
  open_all(&n);
  void *dl = dlopen(kit_plugin_path(), RTLD_NOW | RTLD_LOCAL);
  CHECK_MSG(dl, "dlopen: %s", dlerror());
  /* Below v11 a plugin is initialised once a process, by its own version's init. */
  CHECK_OK(((const struct rail_net_v6 *)dlsym(dl, "ncclNetPlugin_v6"))->init(kit_net_log));
  CHECK_OK(((const struct rail_net_v7 *)dlsym(dl, "ncclNetPlugin_v7"))->init(kit_net_log));
  CHECK_OK(((const struct rail_net_v8 *)dlsym(dl, "ncclNetPlugin_v8"))->init(kit_net_log));
  CHECK_OK(((const struct rail_net_v9 *)dlsym(dl, "ncclNetPlugin_v9"))->init(kit_net_log));
  CHECK_OK(((const struct rail_net_v10 *)dlsym(dl, "ncclNetPlugin_v10"))->init(kit_net_log, NULL));
  CHECK_WRITTEN(6, rail_net_props_v6, FIELDS_V6);
  CHECK_WRITTEN(7, rail_net_props_v7, FIELDS_V7);
  CHECK_WRITTEN(8, rail_net_props_v8, FIELDS_V8);
  CHECK_WRITTEN(9, rail_net_props_v9, FIELDS_V9);
  CHECK_WRITTEN(10, rail_net_props_v9, FIELDS_V9);
  CHECK_WRITTEN(11, rail_net_props_v11, FIELDS_V11);
  CHECK_WRITTEN(12, rail_net_props_v12, FIELDS_V12);
  dlclose(dl);
  kit_net_close(&n);
}

TEST(values_are_in_range) {
  struct kit_net n;
  open_all(&n);
  for (int d = 0; d < n.ndev; d++) {
    struct rail_net_props_v12 p;
    memset(&p, 0xa5, sizeof p);
    CHECK_OK(n.vt->get_properties(d, &p));
    CHECK(p.name && p.name[0] && strlen(p.name) <= 255);
    if (p.pci_path) {
      char real[4096];
      CHECK_MSG(realpath(p.pci_path, real), "pciPath %s does not exist", p.pci_path);
      CHECK_MSG(strncmp(real, "/sys/", 5) == 0, "pciPath %s is not in sysfs", real);
      CHECK_MSG(strlen(strrchr(p.pci_path, '/') + 1) < 32, "the last part of %s overflows NCCL's copy", p.pci_path);
    }
    CHECK(p.ptr_support & RAIL_PTR_HOST);
    CHECK((p.ptr_support & ~(RAIL_PTR_HOST | RAIL_PTR_CUDA | RAIL_PTR_DMABUF)) == 0);
    CHECK(p.reg_is_global == 0 || p.reg_is_global == 1);
    CHECK(p.force_flush == 0 || p.force_flush == 1);
    CHECK(p.speed > 0);
    CHECK(p.port >= 0);
    CHECK(isfinite(p.latency) && p.latency >= 0 && p.latency < 1e6f);
    CHECK(p.max_comms > 0);
    CHECK(p.max_recvs >= 1 && p.max_recvs <= KIT_MAX_GROUP);
    CHECK_INT(p.net_device_type, RAIL_NET_DEVICE_HOST);
    CHECK_INT(p.net_device_version, RAIL_NET_DEVICE_INVALID_VERSION);
    CHECK_INT(p.vprops.ndevs, 1);
    CHECK_INT(p.vprops.devs[0], d);
    CHECK(p.max_p2p_bytes > 0 && p.max_p2p_bytes <= RAIL_NET_MAX_BYTES);
    CHECK(p.max_coll_bytes > 0 && p.max_coll_bytes <= RAIL_NET_MAX_BYTES);
    CHECK(p.max_multi_request_size >= 1);
    CHECK(p.rail_id >= RAIL_NET_ID_UNDEF && p.plane_id >= RAIL_NET_ID_UNDEF);
  }
  kit_net_close(&n);
}

TEST(devices_are_told_apart) {
  struct kit_net n;
  open_all(&n);
  struct rail_net_props_v12 p[MAX_DEVICES];
  for (int d = 0; d < n.ndev; d++) CHECK_OK(n.vt->get_properties(d, &p[d]));
  for (int d = 0; d < n.ndev; d++) {
    for (int e = 0; e < d; e++) {
      CHECK_MSG(strcmp(p[d].name, p[e].name) != 0, "devices %d and %d are both called %s", e, d, p[d].name);
      CHECK_MSG(p[d].guid != p[e].guid || p[d].port != p[e].port, "devices %d and %d share guid and port", e, d);
    }
  }
  kit_net_close(&n);
}

TEST(strings_stay_where_they_are) {
  struct kit_net n;
  open_all(&n);
  struct rail_net_props_v12 first[MAX_DEVICES], again;
  char names[MAX_DEVICES][256];
  for (int d = 0; d < n.ndev; d++) {
    CHECK_OK(n.vt->get_properties(d, &first[d]));
    snprintf(names[d], sizeof names[d], "%s", first[d].name);
  }
  for (int round = 0; round < 50; round++) {
    for (int d = 0; d < n.ndev; d++) {
      CHECK_OK(n.vt->get_properties(d, &again));
      CHECK_MSG(again.name == first[d].name, "device %d's name moved", d);
      CHECK_MSG(again.pci_path == first[d].pci_path, "device %d's pciPath moved", d);
      CHECK_STR(again.name, names[d]);
    }
  }
  int ndev;
  CHECK_OK(n.vt->devices(&ndev));
  CHECK_INT(ndev, n.ndev);
  kit_net_close(&n);
}

TEST(wrong_device_is_refused) {
  struct kit_net n;
  kit_net_open(&n);
  struct rail_net_props_v12 p;
  char handle[RAIL_NET_HANDLE_SIZE];
  static const int offset[] = {0, 1, 1000};
  for (size_t i = 0; i < sizeof offset / sizeof offset[0]; i++) {
    void *comm = NULL;
    CHECK(n.vt->get_properties(n.ndev + offset[i], &p) != 0);
    CHECK(n.vt->get_properties(-1 - offset[i], &p) != 0);
    CHECK(n.vt->listen(n.ctx, n.ndev + offset[i], handle, &comm) != 0);
    CHECK(n.vt->listen(n.ctx, -1 - offset[i], handle, &comm) != 0);
  }
  kit_net_close(&n);
}

struct told {
  int ndev;
  struct { char name[256], pci[256]; uint64_t guid; int speed, port, max_recvs; } dev[MAX_DEVICES];
};

static void tell(struct told *t) {
  struct kit_net n;
  memset(t, 0, sizeof *t);
  setenv("NCCL_SOCKET_IFNAME", "^nosuchinterface", 1);
  kit_net_open(&n);
  t->ndev = n.ndev;
  for (int d = 0; d < n.ndev && d < MAX_DEVICES; d++) {
    struct rail_net_props_v12 p;
    int rc = n.vt->get_properties(d, &p);
    ENSURE(rc == 0, "getProperties returned %d", rc);
    snprintf(t->dev[d].name, sizeof t->dev[d].name, "%s", p.name);
    snprintf(t->dev[d].pci, sizeof t->dev[d].pci, "%s", p.pci_path ? p.pci_path : "");
    t->dev[d].guid = p.guid;
    t->dev[d].speed = p.speed;
    t->dev[d].port = p.port;
    t->dev[d].max_recvs = p.max_recvs;
  }
  kit_net_close(&n);
}

static void tell_parent(struct pipes *io, void *arg) {
  (void)arg;
  static struct told t;
  tell(&t);
  pipe_write(io, &t, sizeof t);
}

TEST(processes_agree) { /* a device number travels between processes */
  static struct told mine, theirs;
  tell(&mine);
  for (int i = 0; i < 3; i++) {
    struct proc c = proc_start(tell_parent, NULL);
    pipe_read(&c.io, &theirs, sizeof theirs);
    proc_join(&c);
    CHECK_INT(theirs.ndev, mine.ndev);
    for (int d = 0; d < mine.ndev; d++) {
      CHECK_STR(theirs.dev[d].name, mine.dev[d].name);
      CHECK_STR(theirs.dev[d].pci, mine.dev[d].pci);
      CHECK(theirs.dev[d].guid == mine.dev[d].guid);
      CHECK_INT(theirs.dev[d].speed, mine.dev[d].speed);
      CHECK_INT(theirs.dev[d].port, mine.dev[d].port);
      CHECK_INT(theirs.dev[d].max_recvs, mine.dev[d].max_recvs);
    }
  }
}

TEST_MAIN(TEST_CASE(every_field_is_written), TEST_CASE(values_are_in_range), TEST_CASE(devices_are_told_apart),
          TEST_CASE(strings_stay_where_they_are), TEST_CASE(wrong_device_is_refused), TEST_CASE(processes_agree))
