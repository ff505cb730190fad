/* SPDX-License-Identifier: Apache-2.0
 * The list of devices, contexts, and what is asked of them. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"
#include "emu/rail_emu.h"

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                             size_t entry_size);
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t entry_size);
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *text, size_t size);
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, int *type);

/* ---- the list --------------------------------------------------------------- */

/* What the call is to fail with. */
static int fault(const char *call) {
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call(call, -1);
  pthread_mutex_unlock(&emu.lock);
  return err;
}

struct ibv_device **ibv_get_device_list(int *count) {
  emu_load();
  int err = fault("get_device_list");
  struct ibv_device **list = err ? NULL : calloc(EMU_DEVICES + 1, sizeof(struct ibv_device *));
  if (count) *count = 0;
  if (err) errno = err;
  if (!list) return NULL;
  pthread_mutex_lock(&emu.lock);
  for (unsigned int i = 0; i < emu.ndevices; i++) list[i] = &emu.devices[i].ibv;
  if (count) *count = (int)emu.ndevices;
  pthread_mutex_unlock(&emu.lock);
  return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
__be64 ibv_get_device_guid(struct ibv_device *device) { return htobe64(((struct emu_device *)(void *)device)->guid); }
int ibv_get_device_index(struct ibv_device *device) { return (int)((struct emu_device *)(void *)device)->index; }

const char *ibv_get_sysfs_path(void) {
  const char *path = getenv("SYSFS_PATH");
  emu_load();
  if (!path) path = emu_sysfs();
  return path ? path : "/sys";
}

int ibv_read_sysfs_file(const char *dir, const char *file, char *text, size_t size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, file);
  FILE *in = fopen(path, "re");
  if (!in) return -1;
  size_t n = fread(text, 1, size, in);
  fclose(in);
  if (n && n < size && text[n - 1] == '\n') text[--n] = 0;
  else if (n < size) text[n] = 0;
  return (int)n;
}

/* ---- attributes --------------------------------------------------------------- */

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *a) {
  const struct emu_device *d = emu_device_of(context);
  int err = fault("query_device");
  if (err) return err;
  memset(a, 0, sizeof *a);
  snprintf(a->fw_ver, sizeof a->fw_ver, "emu");
  a->node_guid = a->sys_image_guid = htobe64(d->guid);
  a->max_mr_size = UINT64_MAX;
  a->page_size_cap = 4096;
  a->vendor_id = d->vendor;
  a->vendor_part_id = d->part;
  a->max_qp = d->max_qp;
  a->max_qp_wr = d->max_qp_wr;
  a->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID |
                        IBV_DEVICE_CHANGE_PHY_PORT;
  a->max_sge = a->max_sge_rd = d->max_sge;
  a->max_cq = d->max_cq;
  a->max_cqe = d->max_cqe;
  a->max_mr = d->max_mr;
  a->max_pd = d->max_pd;
  a->max_qp_rd_atom = a->max_qp_init_rd_atom = d->max_rd_atomic;
  a->max_res_rd_atom = d->max_rd_atomic * d->max_qp;
  a->atomic_cap = d->atomics ? IBV_ATOMIC_GLOB : IBV_ATOMIC_NONE;
  a->max_ah = 1 << 20;
  a->max_srq = d->max_srq;
  a->max_srq_wr = d->max_srq ? d->max_srq_wr : 0;
  a->max_srq_sge = d->max_srq ? d->max_sge : 0;
  a->max_pkeys = EMU_PKEYS;
  a->local_ca_ack_delay = 0;
  a->phys_port_cnt = (uint8_t)d->nports;
  return 0;
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *attr, size_t size) {
  if (input && input->comp_mask) return EINVAL;
  if (size < sizeof attr->orig_attr) return EINVAL;
  memset(attr, 0, size);
  int err = ibv_query_device(context, &attr->orig_attr);
  if (err) return err;
  if (size >= sizeof *attr) attr->phys_port_cnt_ex = attr->orig_attr.phys_port_cnt;
  return 0;
}

static struct emu_port *port_of(struct ibv_context *context, unsigned int number) {
  struct emu_device *d = emu_device_of(context);
  return number >= 1 && number <= d->nports ? &d->ports[number - 1] : NULL;
}

static int query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *attr, size_t size) {
  const struct emu_port *port = port_of(context, number);
  struct ibv_port_attr a = {0};
  int err = fault("query_port");
  if (!err && !port) err = EINVAL;
  if (err) return err;
  pthread_mutex_lock(&emu.lock);
  a.state = port->state;
  a.max_mtu = IBV_MTU_4096;
  a.active_mtu = (enum ibv_mtu)port->mtu;
  a.gid_tbl_len = EMU_GIDS;
  a.max_msg_sz = port->max_msg;
  a.pkey_tbl_len = EMU_PKEYS;
  a.lid = port->ib ? port->lid : 0;
  a.sm_lid = port->ib ? 1 : 0;
  a.max_vl_num = 1;
  a.active_width = port->width;
  a.active_speed = port->speed;
  a.phys_state = port->state == IBV_PORT_DOWN ? 3 : 5;
  a.link_layer = port->ib ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  a.flags = port->grh ? IBV_QPF_GRH_REQUIRED : 0;
  pthread_mutex_unlock(&emu.lock);
  memset(attr, 0, size);
  memcpy(attr, &a, size < sizeof a ? size : sizeof a);
  return 0;
}

/* The symbol's structure ends with flags; what the inline function appended since is zeroed by it. */
int ibv_query_port(struct ibv_context *context, uint8_t number, struct _compat_ibv_port_attr *attr) {
  return query_port(context, number, (struct ibv_port_attr *)(void *)attr,
                    offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_gid(struct ibv_context *context, uint8_t number, int index, union ibv_gid *gid) {
  const struct emu_port *port = port_of(context, number);
  int err = fault("query_gid");
  if (!err && (!port || index < 0 || index >= EMU_GIDS)) err = EINVAL;
  if (err) {
    errno = err;
    return -1;
  }
  pthread_mutex_lock(&emu.lock);
  *gid = port->gids[index].gid;
  if (!port->gids[index].valid) memset(gid, 0, sizeof *gid);
  pthread_mutex_unlock(&emu.lock);
  return 0;
}

static struct ibv_gid_entry entry_of(const struct emu_port *port, unsigned int number, unsigned int index) {
  const struct emu_gid *g = &port->gids[index];
  return (struct ibv_gid_entry){.gid = g->gid, .gid_index = index, .port_num = number, .gid_type = g->type,
                                .ndev_ifindex = g->ifindex};
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                             size_t entry_size) {
  struct emu_device *d = emu_device_of(context);
  size_t n = 0;
  (void)flags;
  pthread_mutex_lock(&emu.lock);
  if (emu.no_gid_table || entry_size < sizeof *entries) {
    pthread_mutex_unlock(&emu.lock);
    return -EOPNOTSUPP;
  }
  for (unsigned int p = 1; p <= d->nports; p++)
    for (unsigned int i = 0; i < EMU_GIDS && n < max; i++) {
      if (!d->ports[p - 1].gids[i].valid) continue;
      struct ibv_gid_entry entry = entry_of(&d->ports[p - 1], p, i);
      memcpy((char *)entries + n++ * entry_size, &entry, sizeof entry);
    }
  pthread_mutex_unlock(&emu.lock);
  return (ssize_t)n;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t number, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t entry_size) {
  const struct emu_port *port = port_of(context, number);
  if (!port || index >= EMU_GIDS || entry_size < sizeof *entry || flags) return EINVAL;
  pthread_mutex_lock(&emu.lock);
  bool valid = port->gids[index].valid;
  *entry = entry_of(port, number, index);
  pthread_mutex_unlock(&emu.lock);
  return valid ? 0 : ENODATA;
}

int ibv_query_gid_type(struct ibv_context *context, uint8_t number, unsigned int index, int *type) {
  const struct emu_port *port = port_of(context, number);
  if (!port || index >= EMU_GIDS) return -1;
  pthread_mutex_lock(&emu.lock);
  *type = port->gids[index].type == 2; /* as sysfs: one name for InfiniBand and RoCE v1 */
  pthread_mutex_unlock(&emu.lock);
  return 0;
}

/* The default partition, and no other. */
int ibv_query_pkey(struct ibv_context *context, uint8_t number, int index, __be16 *pkey) {
  if (!port_of(context, number) || index < 0 || index >= EMU_PKEYS) {
    errno = EINVAL;
    return -1;
  }
  *pkey = index == 0 ? 0xffff : 0;
  return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t number, __be16 pkey) {
  if (port_of(context, number) && pkey == 0xffff) return 0;
  errno = EINVAL;
  return -1;
}

/* ---- contexts ------------------------------------------------------------------- */

static struct ibv_mw *no_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
  (void)pd, (void)type;
  errno = EOPNOTSUPP;
  return NULL;
}

static void fill_ops(struct emu_context *c) {
  struct verbs_context *v = &c->verbs;
  v->sz = sizeof *v;
  v->query_port = query_port;
  v->query_device_ex = query_device_ex;
  v->create_qp_ex = emu_create_qp_ex;
  v->create_srq_ex = emu_create_srq_ex;
  v->create_cq_ex = emu_create_cq_ex;
  v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  v->context.ops.alloc_mw = no_mw;
  v->context.ops.poll_cq = emu_poll_cq;
  v->context.ops.req_notify_cq = emu_req_notify_cq;
  v->context.ops.post_srq_recv = emu_post_srq_recv;
  v->context.ops.post_send = emu_post_send;
  v->context.ops.post_recv = emu_post_recv;
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  struct emu_device *d = (struct emu_device *)(void *)device;
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call("open_device", -1);
  if (!err && d->fatal) err = ENODEV;
  pthread_mutex_unlock(&emu.lock);
  struct emu_context *c = err ? NULL : calloc(1, sizeof *c);
  if (!c) {
    errno = err ? err : ENOMEM;
    return NULL;
  }
  c->device = d;
  c->verbs.context.device = device;
  c->verbs.context.cmd_fd = -1;
  c->verbs.context.num_comp_vectors = 1;
  pthread_mutex_init(&c->verbs.context.mutex, NULL);
  STAILQ_INIT(&c->events);
  fill_ops(c);
  c->verbs.context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  if (c->verbs.context.async_fd < 0) {
    free(c);
    return NULL;
  }
  pthread_mutex_lock(&emu_lifecycle);
  pthread_mutex_lock(&emu.lock);
  err = emu_wire_open();
  if (!err) {
    LIST_INSERT_HEAD(&d->contexts, c, link);
    emu.contexts++;
  }
  pthread_mutex_unlock(&emu.lock);
  pthread_mutex_unlock(&emu_lifecycle);
  if (!err) return &c->verbs.context;
  fprintf(stderr, "rail-emu: %s cannot be opened: no shared memory of its own in /dev/shm or RAIL_EMU_DIR: %s\n",
          device->name, strerror(err));
  close(c->verbs.context.async_fd);
  free(c);
  errno = err;
  return NULL;
}

/* As the kernel does with what a program leaves when it closes its device. The memory stays. */
static void abandon_qps(const struct emu_context *c) {
  unsigned int n = 0;
  for (int i = 0; i < EMU_QPS; i++) {
    struct emu_qp *qp = emu.qps[i];
    if (!qp || qp->ex.qp_base.context != &c->verbs.context) continue;
    emu_qp_forget(qp);
    c->device->nqp--;
    n++;
  }
  if (n)
    fprintf(stderr, "rail-emu: %s was closed with %u queue pair%s that the program had not destroyed\n",
            c->device->ibv.name, n, n == 1 ? "" : "s");
}

int ibv_close_device(struct ibv_context *context) {
  struct emu_context *c = emu_context_of(context);
  pthread_mutex_lock(&emu_lifecycle);
  pthread_mutex_lock(&emu.lock);
  abandon_qps(c);
  emu_forget_events(c, NULL);
  LIST_REMOVE(c, link);
  bool last = !c->inherited && --emu.contexts == 0;
  pthread_mutex_unlock(&emu.lock);
  if (last) emu_engine_stop();
  pthread_mutex_unlock(&emu_lifecycle);
  close(context->async_fd);
  pthread_mutex_destroy(&context->mutex);
  free(c);
  return 0;
}

long rail_emu_live(const char *kind) {
  long count = 0;
  pthread_mutex_lock(&emu.lock);
  if (strcmp(kind, "context") == 0) count = emu.contexts;
  for (unsigned int i = 0; i < emu.ndevices; i++) {
    const struct emu_device *d = &emu.devices[i];
    if (strcmp(kind, "pd") == 0) count += d->npd;
    if (strcmp(kind, "mr") == 0) count += d->nmr;
    if (strcmp(kind, "locked") == 0) count += (long)d->locked;
    if (strcmp(kind, "cq") == 0) count += d->ncq;
    if (strcmp(kind, "srq") == 0) count += d->nsrq;
    if (strcmp(kind, "qp") == 0) count += d->nqp;
  }
  pthread_mutex_unlock(&emu.lock);
  return count;
}

/* ---- fork, exit --------------------------------------------------------------- */

int ibv_fork_init(void) { return fault("fork_init"); }
int ibv_dontfork_range(void *base, size_t size) {
  (void)base, (void)size;
  return 0;
}
int ibv_dofork_range(void *base, size_t size) {
  (void)base, (void)size;
  return 0;
}
enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

/* Not while another thread starts or stops the engine: the child would have its lock taken for ever. */
static void before_fork(void) {
  pthread_mutex_lock(&emu_lifecycle);
  pthread_mutex_lock(&emu.lock);
}
static void after_fork_parent(void) {
  pthread_mutex_unlock(&emu.lock);
  pthread_mutex_unlock(&emu_lifecycle);
}

/* A child has none of its parent's connections: its copies of them lead nowhere. */
static void after_fork_child(void) {
  for (int i = 0; i < EMU_QPS; i++)
    if (emu.qps[i]) emu_qp_forget(emu.qps[i]);
  struct emu_context *c;
  for (unsigned int i = 0; i < emu.ndevices; i++)
    LIST_FOREACH(c, &emu.devices[i].contexts, link) c->inherited = true;
  emu.contexts = 0;
  emu_wire_forget();
  emu_engine_forget();
  after_fork_parent();
}

__attribute__((constructor)) static void at_start(void) {
  (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* A program that ends without closing its devices leaves no file. Its other threads may be in the library still: what
 * they have stays as it is. */
__attribute__((destructor)) static void at_exit(void) {
  pthread_mutex_lock(&emu_lifecycle);
  pthread_mutex_lock(&emu.lock);
  emu_wire_exit();
  pthread_mutex_unlock(&emu.lock);
  pthread_mutex_unlock(&emu_lifecycle);
  emu_sysfs_remove();
}
