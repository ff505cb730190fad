/* SPDX-License-Identifier: Apache-2.0
 * Devices and ports, from statements; docs/emu.md describes them. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"

/* ---- capability profiles -------------------------------------------------- */

/* Published limits of these drivers, rounded down to what matters to a program. */
static const struct profile {
  const char *name;
  uint32_t vendor, part;
  int max_qp_wr, max_sge, max_inline, max_cqe, max_rd_atomic;
  bool atomics, srq, dmabuf, ece, endless_retry;
} profiles[] = {
  {"mlx5", 0x2c9, 4129, 32768, 30, 828, 4194303, 16, true, true, true, true, false},
  {"bnxt_re", 0x14e4, 0x1750, 65407, 6, 96, 131071, 126, true, true, true, false, false},
  {"irdma", 0x8086, 0x159b, 4063, 13, 101, 1048574, 127, false, true, true, false, false},
  {"efa", 0x1d0f, 0xefa1, 4096, 2, 32, 32768, 16, false, false, true, false, false},
  {"rxe", 0xffffff, 0, 1048576, 32, 512, 32767, 128, true, true, false, false, true},
};

/* ---- GIDs ------------------------------------------------------------------- */

uint64_t emu_hash_address(const struct emu_port *port, const union ibv_gid *gid, uint16_t lid) {
  uint64_t hash = 0xcbf29ce484222325u;
  if (gid)
    for (int i = 0; i < 16; i++) hash = (hash ^ gid->raw[i]) * 0x100000001b3u;
  else hash = (hash ^ port->subnet ^ ((uint64_t)lid << 32)) * 0x100000001b3u;
  return (hash ^ (hash >> 29)) | 1;
}

void emu_hash_gids(struct emu_device *device, unsigned int number) {
  struct emu_port *port = &device->ports[number - 1];
  for (int i = 0; i < EMU_GIDS; i++)
    port->gid_hash[i] = port->gids[i].valid ? emu_hash_address(port, &port->gids[i].gid, 0) : 0;
}

/* Ethernet: link-local and IPv4 10.77.DEVICE.PORT, each as RoCE v1 and v2. InfiniBand: subnet and the port's GUID. */
void emu_default_gids(struct emu_device *device, unsigned int number) {
  struct emu_port *port = &device->ports[number - 1];
  uint64_t guid = device->guid + number;
  memset(port->gids, 0, sizeof port->gids);
  union ibv_gid local = {.raw = {0}};
  uint64_t prefix = port->ib ? port->subnet : 0xfe80000000000000u;
  for (int i = 0; i < 8; i++) {
    local.raw[i] = (uint8_t)(prefix >> (56 - 8 * i));
    local.raw[8 + i] = (uint8_t)(guid >> (56 - 8 * i));
  }
  for (int i = 0; i < (port->ib ? 1 : 4); i++) {
    const union ibv_gid ipv4 = {.raw = {[10] = 0xff, 0xff, 10, 77, (uint8_t)device->index, (uint8_t)number}};
    uint32_t type = port->ib ? 0 : i % 2 ? 2 : 1;
    port->gids[i] = (struct emu_gid){.gid = i < 2 ? local : ipv4, .valid = true, .type = type};
  }
  emu_hash_gids(device, number);
}

/* ---- statements ------------------------------------------------------------- */

static const struct emu_word port_states[] = {
  {"down", IBV_PORT_DOWN}, {"init", IBV_PORT_INIT}, {"armed", IBV_PORT_ARMED}, {"active", IBV_PORT_ACTIVE}, {NULL, 0}};
static const struct emu_word transports[] = {{"ib", IBV_TRANSPORT_IB}, {"iwarp", IBV_TRANSPORT_IWARP},
                                             {"usnic", IBV_TRANSPORT_USNIC}, {"usnic_udp", IBV_TRANSPORT_USNIC_UDP},
                                             {"unspecified", IBV_TRANSPORT_UNSPECIFIED}, {NULL, 0}};
static const struct emu_word gid_types[] = {{"ib", 0}, {"v1", 1}, {"v2", 2}, {NULL, 0}};
static const struct emu_word links[] = {{"eth", false}, {"ib", true}, {NULL, 0}};
static const struct emu_word no_gids[] = {{"none", 0}, {NULL, 0}};
static const struct emu_word no_or_yes[] = {{"0", false}, {"1", true}, {NULL, 0}};

#define PORT_KEYS "state link mtu lid subnet grh max_msg packet speed width bandwidth latency one_way gids"
#define DEVICE_KEYS                                                                                           \
  "profile ports guid vendor part max_qp max_qp_wr max_sge inline max_cq max_cqe max_mr max_pd max_srq " \
  "max_srq_wr max_rd_atomic dmabuf ece atomics imm zero_byte_rkey endless_retry transport pci"

/* Before anything is changed. */
static bool check_port_keys(const struct emu_statement *s) {
  int value;
  return emu_choose(s, emu_value(s, "link"), links, &value) && emu_choose(s, emu_value(s, "gids"), no_gids, &value) &&
         emu_choose(s, emu_value(s, "state"), port_states, &value);
}

static void port_keys(const struct emu_statement *s, struct emu_device *device, unsigned int number) {
  struct emu_port *port = &device->ports[number - 1];
  const char *gids = emu_value(s, "gids");
  bool was_ib = port->ib;
  int ib = port->ib;
  (void)emu_choose(s, emu_value(s, "link"), links, &ib);
  port->ib = ib;
  port->mtu = (uint8_t)emu_number(s, "mtu", port->mtu);
  port->lid = (uint16_t)emu_number(s, "lid", port->lid);
  port->subnet = emu_number(s, "subnet", port->subnet);
  port->grh = emu_number(s, "grh", port->grh) != 0;
  port->one_way = emu_number(s, "one_way", port->one_way) != 0;
  port->max_msg = (uint32_t)emu_number(s, "max_msg", port->max_msg);
  port->packet = (uint32_t)emu_number(s, "packet", port->packet);
  port->speed = (uint8_t)emu_number(s, "speed", port->speed);
  port->width = (uint8_t)emu_number(s, "width", port->width);
  port->bandwidth = emu_number(s, "bandwidth", port->bandwidth / 1000000) * 1000000;
  port->latency = emu_number(s, "latency", port->latency / 1000) * 1000;
  if (was_ib != port->ib || emu_value(s, "subnet")) emu_default_gids(device, number);
  if (gids) {
    memset(port->gids, 0, sizeof port->gids);
    emu_hash_gids(device, number);
  }
}

static void set_limits(const struct emu_statement *s, struct emu_device *d, const struct profile *p) {
  d->vendor = (uint32_t)emu_number(s, "vendor", p ? p->vendor : 0xe500);
  d->part = (uint32_t)emu_number(s, "part", p ? p->part : 1);
  d->max_qp = (int)emu_number(s, "max_qp", EMU_QPS - 2);
  d->max_qp_wr = (int)emu_number(s, "max_qp_wr", p ? (unsigned int)p->max_qp_wr : 16384);
  d->max_sge = (int)emu_number(s, "max_sge", p ? (unsigned int)p->max_sge : 16);
  d->max_inline = (int)emu_number(s, "inline", p ? (unsigned int)p->max_inline : 256);
  d->max_cq = (int)emu_number(s, "max_cq", 65536);
  d->max_cqe = (int)emu_number(s, "max_cqe", p ? (unsigned int)p->max_cqe : 4194303);
  d->max_mr = (int)emu_number(s, "max_mr", 1 << 20);
  d->max_pd = (int)emu_number(s, "max_pd", 65536);
  d->max_srq = (int)emu_number(s, "max_srq", !p || p->srq ? 65536 : 0);
  d->max_srq_wr = (int)emu_number(s, "max_srq_wr", 32768);
  d->max_rd_atomic = (int)emu_number(s, "max_rd_atomic", p ? (unsigned int)p->max_rd_atomic : 16);
  d->dmabuf = emu_number(s, "dmabuf", !p || p->dmabuf) != 0;
  d->ece = emu_number(s, "ece", p && p->ece) != 0;
  bool ib = d->ibv.transport_type == IBV_TRANSPORT_IB; /* iWARP has no atomics, and no immediate data */
  d->atomics = emu_number(s, "atomics", ib && (!p || p->atomics)) != 0;
  d->imm = emu_number(s, "imm", ib) != 0;
  d->zero_byte_rkey = emu_number(s, "zero_byte_rkey", 0) != 0;
  d->endless_retry = emu_number(s, "endless_retry", p && p->endless_retry) != 0;
}

static bool do_device(const struct emu_statement *s) {
  const char *wanted = emu_value(s, "profile"), *pci = emu_value(s, "pci");
  const struct profile *profile = NULL;
  int state = IBV_PORT_ACTIVE, transport = IBV_TRANSPORT_IB;
  if (s->n < 2 || strchr(s->words[1], '=')) return emu_refuse(s, "the device's name is missing");
  if (emu.ndevices == EMU_DEVICES) return emu_refuse(s, "there may be %d devices", EMU_DEVICES);
  if (emu_device_named(s->words[1])) return emu_refuse(s, "there is such a device already");
  for (size_t i = 0; wanted && i < sizeof profiles / sizeof profiles[0]; i++)
    if (strcmp(profiles[i].name, wanted) == 0) profile = &profiles[i];
  if (wanted && !profile) return emu_refuse(s, "profile=%s: allowed: mlx5 bnxt_re irdma efa rxe", wanted);
  if (!check_port_keys(s) || !emu_choose(s, emu_value(s, "state"), port_states, &state) ||
      !emu_choose(s, emu_value(s, "transport"), transports, &transport))
    return false;
  if (pci && !emu_is_pci(pci)) return emu_refuse(s, "pci=%s: this machine has no such PCI device", pci);
  struct emu_device *d = &emu.devices[emu.ndevices];
  memset(d, 0, sizeof *d);
  d->index = emu.ndevices;
  d->nports = (unsigned int)emu_number(s, "ports", 1);
  snprintf(d->ibv.name, sizeof d->ibv.name, "%s", s->words[1]);
  snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs%u", d->index);
  snprintf(d->ibv.dev_path, sizeof d->ibv.dev_path, "/sys/class/infiniband_verbs/uverbs%u", d->index);
  snprintf(d->ibv.ibdev_path, sizeof d->ibv.ibdev_path, "/sys/class/infiniband/%.63s", s->words[1]);
  d->ibv.node_type = transport == IBV_TRANSPORT_IB      ? IBV_NODE_CA
                     : transport == IBV_TRANSPORT_IWARP ? IBV_NODE_RNIC
                                                        : IBV_NODE_UNSPECIFIED;
  d->ibv.transport_type = (enum ibv_transport_type)transport;
  snprintf(d->pci, sizeof d->pci, "%s", pci ? pci : "");
  d->guid = emu_number(s, "guid", 0x02e5000000000000u + ((uint64_t)d->index << 8));
  LIST_INIT(&d->contexts);
  set_limits(s, d, profile);
  for (unsigned int p = 1; p <= d->nports; p++) {
    struct emu_port *port = &d->ports[p - 1];
    *port = (struct emu_port){.mtu = IBV_MTU_4096, .speed = 32, .width = 2, .max_msg = 1u << 30, .packet = 4096,
                              .lid = (uint16_t)(1 + d->index * EMU_PORTS + p), .subnet = 0xfe80000000000000u};
    port->state = (enum ibv_port_state)state;
    emu_default_gids(d, p);
    port_keys(s, d, p);
  }
  emu.ndevices++;
  return true;
}

static bool do_port(const struct emu_statement *s) {
  unsigned int number;
  struct emu_device *d = emu_device_and_port(s, &number);
  if (!d || !check_port_keys(s)) return false;
  int state = (int)d->ports[number - 1].state;
  (void)emu_choose(s, emu_value(s, "state"), port_states, &state);
  port_keys(s, d, number);
  bool was = d->ports[number - 1].state == IBV_PORT_ACTIVE, is = state == IBV_PORT_ACTIVE;
  d->ports[number - 1].state = (enum ibv_port_state)state;
  struct ibv_async_event event = {.element.port_num = (int)number,
                                  .event_type = is ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR};
  if (was != is) emu_raise(d, &event);
  event.event_type = IBV_EVENT_GID_CHANGE;
  if (emu_value(s, "gids") || emu_value(s, "subnet") || emu_value(s, "link")) emu_raise(d, &event);
  return true;
}

static bool do_gid(const struct emu_statement *s) {
  unsigned int number;
  int type = 2;
  struct emu_device *d = emu_device_and_port(s, &number);
  char *end;
  if (!d) return false;
  if (s->n < 5) return emu_refuse(s, "the index and the address are missing");
  unsigned long index = strtoul(s->words[3], &end, 10);
  struct emu_gid gid = {.valid = strcmp(s->words[4], "none") != 0};
  if (*end || index >= EMU_GIDS) return emu_refuse(s, "%s: allowed: 0 to %d", s->words[3], EMU_GIDS - 1);
  bool ipv4 = !strchr(s->words[4], ':');
  if (ipv4) gid.gid.raw[10] = gid.gid.raw[11] = 0xff;
  if (gid.valid && inet_pton(ipv4 ? AF_INET : AF_INET6, s->words[4], gid.gid.raw + (ipv4 ? 12 : 0)) != 1)
    return emu_refuse(s, "%s: allowed: an IPv4 or IPv6 address, or none", s->words[4]);
  if (!emu_choose(s, emu_value(s, "type"), gid_types, &type)) return false;
  gid.type = (uint32_t)type;
  gid.ifindex = (uint32_t)emu_number(s, "ifindex", 0);
  d->ports[number - 1].gids[index] = gid;
  emu_hash_gids(d, number);
  struct ibv_async_event event = {.element.port_num = (int)number, .event_type = IBV_EVENT_GID_CHANGE};
  emu_raise(d, &event);
  return true;
}

static bool do_gid_table(const struct emu_statement *s) {
  int there = true;
  if (s->n < 2) return emu_refuse(s, "0 or 1 is missing");
  if (!emu_choose(s, s->words[1], no_or_yes, &there)) return false;
  emu.no_gid_table = !there;
  return true;
}

static bool do_empty(const struct emu_statement *s) {
  (void)s;
  emu.no_devices = true;
  return true;
}

static bool do_ring(const struct emu_statement *s) {
  unsigned long size = 0;
  if (s->n >= 2 && !emu_read_number(s, s->words[1], 10, 16384, &size)) return false;
  if (size < 64 || (size & (size - 1))) return emu_refuse(s, "allowed: KiB, a power of two from 64 to 16384");
  if (emu.nqps) return emu_refuse(s, "there are queue pairs already");
  emu.ring_bytes = (uint32_t)size << 10;
  return true;
}

const struct emu_verb emu_config_verbs[] = {
  {"device", do_device, 1, DEVICE_KEYS " " PORT_KEYS}, {"port", do_port, 2, PORT_KEYS},
  {"gid", do_gid, 4, "type ifindex"}, {"gid_table", do_gid_table, 1, ""}, {"empty", do_empty, 0, ""},
  {"ring", do_ring, 1, ""}, {NULL, NULL, 0, ""}};
