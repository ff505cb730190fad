/* SPDX-License-Identifier: Apache-2.0
 * Devices, contexts, ports and GIDs. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/preload/fakeverbs/fv.h"

const char *ibv_get_sysfs_path(void); /* in no header of the real one's users */

struct fv_state fv = {.lock = PTHREAD_MUTEX_INITIALIZER, .acked = PTHREAD_COND_INITIALIZER};

/* The compatibility symbol fills what there was of struct ibv_port_attr when it was made. */
#define PORT_ATTR_SIZE offsetof(struct ibv_port_attr, port_cap_flags2)

static int fault(const char *call) {
  pthread_mutex_lock(&fv.lock);
  int err = fv_fault(call, -1);
  pthread_mutex_unlock(&fv.lock);
  return err;
}

/* ---- devices ----------------------------------------------------------- */

struct fv_device *fv_device_named(const char *name) {
  for (unsigned int i = 0; i < fv.ndevices; i++)
    if (strcmp(fv.devices[i].ibv.name, name) == 0) return &fv.devices[i];
  return NULL;
}

static struct fv_device *device_of(struct ibv_device *device) { return (struct fv_device *)(void *)device; }

struct ibv_device **ibv_get_device_list(int *count) {
  fv_load();
  int err = fault("get_device_list");
  struct ibv_device **list = err ? NULL : calloc(FV_DEVICES + 1, sizeof(struct ibv_device *));
  if (err) errno = err;
  if (count) *count = 0;
  for (unsigned int i = 0; list && i < fv.ndevices; i++) list[i] = &fv.devices[i].ibv;
  if (list && count) *count = (int)fv.ndevices;
  return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
int ibv_fork_init(void) { return fault("fork_init"); }

const char *ibv_get_sysfs_path(void) {
  const char *path = getenv("SYSFS_PATH");
  return path ? path : "/sys";
}

struct ibv_context *ibv_open_device(struct ibv_device *ibv) {
  struct fv_device *device = device_of(ibv);
  struct fv_context *c = calloc(1, sizeof *c);
  int fds[2], err = fault("open_device");
  if (!c || err || pipe2(fds, O_CLOEXEC) != 0) {
    free(c);
    if (err) errno = err;
    return NULL;
  }
  (void)fcntl(fds[1], F_SETFL, O_NONBLOCK);
  c->device = device;
  c->event_out = fds[1];
  c->ibv.device = ibv;
  c->ibv.cmd_fd = -1;
  c->ibv.async_fd = fds[0];
  c->ibv.num_comp_vectors = 1;
  c->ibv.ops.post_send = fv_post_send;
  c->ibv.ops.post_recv = fv_post_recv;
  c->ibv.ops.poll_cq = fv_poll_cq;
  pthread_mutex_init(&c->ibv.mutex, NULL);
  pthread_mutex_lock(&fv.lock);
  c->next = device->contexts;
  device->contexts = c;
  fv.contexts++;
  pthread_mutex_unlock(&fv.lock);
  return &c->ibv;
}

int ibv_close_device(struct ibv_context *context) {
  struct fv_context *c = (struct fv_context *)(void *)context, **at;
  pthread_mutex_lock(&fv.lock);
  for (at = &c->device->contexts; *at && *at != c;) at = &(*at)->next;
  if (*at) *at = c->next;
  fv.contexts--;
  pthread_mutex_unlock(&fv.lock);
  close(c->ibv.async_fd);
  close(c->event_out);
  pthread_mutex_destroy(&c->ibv.mutex);
  free(c);
  return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  const struct fv_device *d = fv_device_of(context);
  int err = fault("query_device");
  if (err) return err;
  memset(attr, 0, sizeof *attr);
  snprintf(attr->fw_ver, sizeof attr->fw_ver, "fake");
  attr->node_guid = attr->sys_image_guid = htobe64(d->guid);
  attr->max_mr_size = UINT64_MAX;
  attr->page_size_cap = 4096;
  attr->vendor_id = d->vendor;
  attr->max_qp = d->max_qp;
  attr->max_qp_wr = d->max_qp_wr;
  attr->max_sge = FV_SGES;
  attr->max_cq = 65536;
  attr->max_cqe = 1 << 22;
  attr->max_mr = 1 << 20;
  attr->max_pd = 1 << 15;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
  attr->max_pkeys = 1;
  attr->phys_port_cnt = (uint8_t)d->nports;
  return 0;
}

/* ---- ports ------------------------------------------------------------- */

int ibv_query_port(struct ibv_context *context, uint8_t number, struct _compat_ibv_port_attr *out) {
  struct fv_device *d = fv_device_of(context);
  struct ibv_port_attr attr = {0};
  int err = fault("query_port");
  if (err) return err;
  if (number < 1 || number > d->nports) return EINVAL;
  const struct fv_port *p = &d->ports[number - 1];
  attr.state = p->state;
  attr.max_mtu = IBV_MTU_4096;
  attr.active_mtu = (enum ibv_mtu)p->mtu;
  attr.gid_tbl_len = FV_GIDS;
  attr.max_msg_sz = p->max_msg;
  attr.pkey_tbl_len = 1;
  attr.lid = p->ib ? p->lid : 0;
  attr.active_width = p->width;
  attr.active_speed = p->speed;
  attr.phys_state = p->state == IBV_PORT_ACTIVE ? 5 : 3;
  attr.link_layer = p->ib ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  attr.flags = p->grh || !p->ib ? IBV_QPF_GRH_REQUIRED : 0;
  memcpy(out, &attr, PORT_ATTR_SIZE);
  return 0;
}

void fv_default_gids(struct fv_device *device, unsigned int number) {
  struct fv_port *port = &device->ports[number - 1];
  uint64_t guid = htobe64(device->guid + number), prefix = htobe64(port->ib ? port->subnet : 0xfe80000000000000u);
  memset(port->gids, 0, sizeof port->gids);
  for (unsigned int i = 0; i < (port->ib ? 1u : 4u); i++) {
    struct fv_gid *gid = &port->gids[i];
    gid->valid = true;
    gid->type = port->ib ? 0 : 1 + i % 2;
    gid->ifindex = port->ib ? 0 : 2 + device->index;
    memcpy(gid->gid.raw, &prefix, 8);
    memcpy(gid->gid.raw + 8, &guid, 8);
    if (i < 2) continue;
    const uint8_t ipv4[16] = {[10] = 0xff, 0xff, 10, 77, (uint8_t)device->index, (uint8_t)number};
    memcpy(gid->gid.raw, ipv4, sizeof ipv4);
  }
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  struct fv_device *d = fv_device_of(context);
  int err = fault("query_gid");
  if (!err && (port < 1 || port > d->nports || index < 0 || index >= FV_GIDS)) err = EINVAL;
  if (err) {
    errno = err;
    return -1;
  }
  *gid = d->ports[port - 1].gids[index].gid;
  return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                             size_t entry_size) {
  struct fv_device *d = fv_device_of(context);
  size_t n = 0;
  if (fv.no_gid_table || flags || entry_size != sizeof *entries) return -EOPNOTSUPP;
  for (unsigned int p = 0; p < d->nports; p++)
    for (unsigned int i = 0; i < FV_GIDS && n < max; i++) {
      const struct fv_gid *g = &d->ports[p].gids[i];
      if (g->valid)
        entries[n++] = (struct ibv_gid_entry){.gid = g->gid, .gid_index = i, .port_num = p + 1, .gid_type = g->type,
                                              .ndev_ifindex = g->ifindex};
    }
  return (ssize_t)n;
}
