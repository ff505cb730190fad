/* SPDX-License-Identifier: Apache-2.0
 * The one table of parameters of the ib plugin, and the parsers of values with a form of their own. Built without
 * verbs.h, too: for docs/parameters.md. */
#include "plugin/ib/ib_param.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_plan.h"

#define AT(field) offsetof(struct ib_params, field)
#define DEFAULT_AR_THRESHOLD 8192

static const struct rail_param rows[] = {
  /* devices */
  {.name = "NCCL_IB_DISABLE", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(disable),
   .doc = "1: the plugin has no devices. (Init still succeeds, where that of NCCL's transport fails.)"},
  {.name = "NCCL_IB_HCA", .type = RAIL_PARAM_STRING, .offset = AT(hca),
   .doc = "Ports to use: a list of name[:port[:rail[:plane]]], up to 32; names are prefixes, '=' in front makes them "
          "exact, '^' excludes the list, '^=' both. rail and plane are numbers for NCCL's topology search."},
  {.name = "NCCL_IBVERBS_LIB", .type = RAIL_PARAM_STRING, .offset = AT(ibverbs_lib),
   .doc = "Path of libibverbs. Unset: libibverbs.so.1, then libibverbs.so."},
  {.name = "RAIL_IB_RDMACM_LIB", .type = RAIL_PARAM_STRING, .offset = AT(rdmacm_lib),
   .doc = "Path of librdmacm, which is opened where RAIL_IB_CM or a device needs it. Unset: librdmacm.so.1, then "
          "librdmacm.so."},
  {.name = "NCCL_SOCKET_IFNAME", .type = RAIL_PARAM_STRING, .offset = AT(ifname),
   .doc = "Interface for the oob (out-of-band, TCP) connection, the first that fits: a list of name "
          "prefixes; '^' in front excludes them, '=' makes them exact."},
  {.name = "NCCL_SOCKET_FAMILY", .type = RAIL_PARAM_STRING, .offset = AT(family),
   .doc = "AF_INET or AF_INET6 limits the oob connection to that family."},
  {.name = "NCCL_COMM_ID", .type = RAIL_PARAM_STRING, .offset = AT(comm_id),
   .doc = "Address of the root; interfaces in its subnet are preferred when NCCL_SOCKET_IFNAME is unset."},
  {.name = "NCCL_IB_MERGE_VFS", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(merge_vfs),
   .doc = "Virtual functions count as the device they belong to in the topology. (Only where the system shows such a "
          "device; NCCL's transport assumes that it is device 0 of the bus.)"},
  {.name = "NCCL_IB_MERGE_NICS", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(merge_nics),
   .doc = "0: devices cannot be fused (makeVDevice is refused)."},
  {.name = "RAIL_NET_FUSE_NO_PCI", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(fuse_no_pci),
   .doc = "1: makeVDevice also fuses devices without a PCI path (Soft-RoCE). NCCL's init fails with such a device, so "
          "this is for librailyard's NCCL_NET_FORCE_MERGE and for tests."},
  {.name = "NCCL_IB_DEVICE_PCI_ORDER", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(pci_order),
   .doc = "Devices are numbered by their places on the PCI bus, the same way on equal hosts. 0: as libibverbs lists "
          "them."},
  {.name = "NCCL_IB_PCI_RELAXED_ORDERING", .type = RAIL_PARAM_INT, .def = "2", .lo = 0, .hi = 2,
   .offset = AT(relaxed_ordering),
   .doc = "Registrations ask for relaxed ordering on the PCI bus. 0: no, 1: yes, 2: where libibverbs knows of it."},
  {.name = "NCCL_IB_QUERY_PORT_SPEED", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(query_port_speed),
   .doc = "Speeds come from ibv_query_port_speed where libibverbs has it. 0: from speed x width of the link."},
  /* GIDs */
  {.name = "NCCL_IB_GID_INDEX", .type = RAIL_PARAM_INT, .def = "-1", .lo = -1, .hi = IB_MAX_GIDS - 1,
   .offset = AT(gid_index),
   .doc = "RoCE: the GID to use, by its index. -1: the first of NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE and "
          "NCCL_IB_ROCE_VERSION_NUM that is not link-local, else index 0; among several as good, one of the peer's "
          "subnet."},
  {.name = "NCCL_IB_ROUTABLE_FLID_GID_INDEX", .type = RAIL_PARAM_INT, .def = "1", .lo = 0, .hi = IB_MAX_GIDS - 1,
   .offset = AT(flid_gid_index),
   .doc = "InfiniBand: the GID that is used instead of number 0 if it has a FLID, for routing between subnets."},
  {.name = "NCCL_IB_ROCE_VERSION_NUM", .type = RAIL_PARAM_INT, .def = "2", .lo = 1, .hi = 2, .offset = AT(roce_version),
   .doc = "RoCE: version of the GID, 1 or 2."},
  {.name = "NCCL_IB_ADDR_FAMILY", .type = RAIL_PARAM_STRING, .def = "AF_INET", .offset = AT(addr_family),
   .doc = "RoCE: family of the GID, AF_INET or AF_INET6."},
  {.name = "NCCL_IB_ADDR_RANGE", .type = RAIL_PARAM_STRING, .offset = AT(addr_range),
   .doc = "RoCE: the GID is in this range, such as 10.0.0.0/8 or fd00::/64."},
  {.name = "NCCL_IB_SUBNET_AWARE_ROUTING", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(subnet_aware),
   .doc = "RoCE: ports of both sides are paired by subnet, as far as they share one, instead of by place."},
  {.name = "NCCL_IB_SUBNET_PREFIX_LEN", .type = RAIL_PARAM_INT, .def = "24", .lo = 1, .hi = 128,
   .offset = AT(subnet_prefix_len), .doc = "Bits of an address that name its subnet, for that."},
  /* QPs */
  {.name = "NCCL_IB_PKEY", .type = RAIL_PARAM_INT, .def = "0", .lo = 0, .hi = 65535, .offset = AT(pkey),
   .doc = "Index of the partition key."},
  {.name = "NCCL_IB_SL", .type = RAIL_PARAM_INT, .def = "-1", .lo = -1, .hi = 15, .offset = AT(sl),
   .doc = "Service level. -1: the caller's traffic class (NCCL's trafficClass) where that is one, else 0."},
  {.name = "NCCL_IB_TC", .type = RAIL_PARAM_INT, .def = "-1", .lo = -1, .hi = 255, .offset = AT(tc),
   .doc = "Traffic class: DSCP x 4 of RoCE's packets. -1: the caller's (NCCL's trafficClass), else 0."},
  {.name = "NCCL_IB_FIFO_TC", .type = RAIL_PARAM_INT, .def = "-1", .lo = -1, .hi = 255, .offset = AT(fifo_tc),
   .doc = "Traffic class of what receivers write to senders. -1: as NCCL_IB_TC."},
  {.name = "NCCL_IB_ECE_ENABLE", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(ece),
   .doc = "Both sides' HCAs agree on enhanced connection establishment options where they have them."},
  {.name = "NCCL_IB_TIMEOUT", .type = RAIL_PARAM_INT, .def = "20", .lo = 0, .hi = 31, .offset = AT(timeout),
   .doc = "Local ACK timeout of QPs: 4.096 us x 2^n, and HCAs take up to 4 times that. 20 is 4.3 s, and with 7 retries "
          "half a minute and more until a dead link is an error. 0: no limit."},
  {.name = "NCCL_IB_RETRY_CNT", .type = RAIL_PARAM_INT, .def = "7", .lo = 0, .hi = 7, .offset = AT(retry_cnt),
   .doc = "How often an HCA retransmits what is not acknowledged before that is an error. Soft-RoCE, for which 7 means "
          "endless, gets at most 6."},
  {.name = "NCCL_IB_MQP_RETRY_ALL", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(modify_retry_all),
   .doc = "Changes of a QP's state are tried again after any error, not only after ETIMEDOUT."},
  {.name = "NCCL_IB_MQP_RETRY_CNT", .type = RAIL_PARAM_INT, .def = "34", .lo = 0, .hi = 1000,
   .offset = AT(modify_retries), .doc = "How often."},
  {.name = "NCCL_IB_MQP_RETRY_SLEEP_MSEC", .type = RAIL_PARAM_INT, .def = "100", .lo = 0, .hi = 60 * 1000,
   .offset = AT(modify_retry_ms),
   .doc = "Milliseconds between two tries, growing by as much with each. (No call sleeps that long: the next one "
          "tries.)"},
  {.name = "NCCL_IB_QPS_PER_CONNECTION", .type = RAIL_PARAM_INT, .def = "1", .lo = 1, .hi = IB_MAX_QPS,
   .offset = AT(qps),
   .doc = "QPs of a connection on each port. The larger value of both sides counts."},
  {.name = "NCCL_IB_SPLIT_DATA_ON_QPS", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(split),
   .doc = "1: each message is split over all QPs of a port; 0: it takes one QP of each port, in turn. On if either "
          "side has it on."},
  {.name = "NCCL_IB_USE_INLINE", .type = RAIL_PARAM_INT, .def = "-1", .lo = -1, .hi = 1, .offset = AT(use_inline),
   .doc = "Small writes carry their data in the work request. 0: no, 1 and -1: as far as the device allows. (NCCL's "
          "default is 0.)"},
  {.name = "NCCL_IB_ADAPTIVE_ROUTING", .type = RAIL_PARAM_INT, .def = "-2", .lo = -2, .hi = 1,
   .offset = AT(adaptive_routing),
   .doc = "The fabric may deliver packets out of order: large messages end with a write of their own. -2: on "
          "InfiniBand, not with RoCE."},
  {.name = "NCCL_IB_AR_THRESHOLD", .type = RAIL_PARAM_BYTES, .def = "8192", .lo = -2, .hi = INT64_MAX,
   .offset = AT(ar_threshold), .doc = "Messages larger than this do so. -2: 8192."},
  {.name = "NCCL_IB_RETURN_ASYNC_EVENTS", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(return_async_events),
   .doc = "Fatal events of a device fail the connections over it. 0: they are logged."},
  {.name = "NCCL_GDR_FLUSH_DISABLE", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(flush_disable),
   .doc = "1: what arrives in GPU memory is not flushed."},
  /* ours */
  {.name = "RAIL_IB_AUTH_FILE", .type = RAIL_PARAM_STRING, .offset = AT(auth_file),
   .doc = "File with a key of at least 16 bytes that others cannot read. Both sides of a connection then prove that "
          "they have it; a side with and a side without refuse each other. Needs OpenSSL's libcrypto."},
  {.name = "RAIL_IB_PORTS", .type = RAIL_PARAM_STRING, .offset = AT(ports),
   .doc = "Range of TCP ports to listen on, first-last, for the oob connections. Unset: the system chooses."},
  {.name = "RAIL_IB_BIND", .type = RAIL_PARAM_STRING, .offset = AT(bind),
   .doc = "Address that listeners bind to, such as 0.0.0.0 or ::, instead of their interface's. Peers are still told "
          "the interface's."},
  {.name = "RAIL_IB_CM", .type = RAIL_PARAM_ENUM, .def = "tcp", .words = "tcp|rdmacm", .offset = AT(cm),
   .doc = "Who sets up queue pairs over RoCE. tcp: this plugin, with what both sides exchange over the oob connection. "
          "rdmacm: the RDMA CM (librdmacm), which resolves addresses and routes and moves the queue pairs; the oob "
          "connection stays. The same on both sides. iWARP always uses the RDMA CM, InfiniBand never."},
  {.name = "RAIL_IB_PROTOCOL", .type = RAIL_PARAM_ENUM, .def = "write", .words = "write|send", .offset = AT(protocol),
   .doc = "How payload moves. write: the sender writes into the receiver's memory (RDMA write). send: by SEND, into "
          "receive requests that irecv posts with the caller's memory; no key to it leaves the receiver. Messages then "
          "leave in the order of receives and are divided equally, by the receiver's RAIL_IB_MIN_PART; a buffer is as "
          "large as 32 of a port's largest messages at most; maxRecvs is 1; only host memory can be registered, no GPU "
          "memory; and there is no RAIL_IB_FAILOVER. The same on both sides."},
  {.name = "RAIL_IB_CONNECT_TIMEOUT", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 3600 * 1000,
   .offset = AT(connect_ms),
   .doc = "A peer that cannot be reached within this time, or does not complete the handshake within this time of "
          "its first answer, is an error. Its accept may take any time, as long as its host answers. 0: no limit."},
  {.name = "RAIL_IB_HANDSHAKE_TIMEOUT", .type = RAIL_PARAM_MS, .def = "10s", .lo = 10, .hi = 3600 * 1000,
   .offset = AT(handshake_ms),
   .doc = "A pending connection whose HELLO has not arrived within this time is dropped."},
  {.name = "RAIL_IB_DEADLINE", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(deadline_ms),
   .doc = "With requests outstanding, a peer whose host does not answer for this long, over the oob connection or by "
          "RDMA, is an error. When nothing completes for a third of it the local HCA is probed, too: a work request "
          "that it does not complete within 4 times its retries is an error. 0: no limit."},
  {.name = "RAIL_IB_PEER_TIMEOUT", .type = RAIL_PARAM_MS, .def = "300s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(peer_ms),
   .doc = "With requests outstanding, how long a peer whose host answers may be silent (stopped, in a debugger, "
          "checkpointed) before that is an error. Peers that are alive and merely slow answer PING and may take any "
          "time. 0: no limit."},
  {.name = "RAIL_IB_PEER_WARN", .type = RAIL_PARAM_MS, .def = "10s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(peer_warn_ms),
   .doc = "A peer that has been silent for this long, with requests outstanding, is reported, once per process and "
          "silence. 0: never."},
  {.name = "RAIL_IB_TAG_TIMEOUT", .type = RAIL_PARAM_MS, .def = "60s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(tag_ms),
   .doc = "A send that finds receives posted of which none has its tag, for this long without a new one, is an error. "
          "With RAIL_IB_PROTOCOL=send so are sends that wait this long for the one before them, with NCCL_IB_TIMEOUT=0 "
          "receives that are announced in part. 0: no limit."},
  {.name = "RAIL_IB_LINGER", .type = RAIL_PARAM_MS, .def = "-1ms", .lo = -1, .hi = 60 * 1000, .offset = AT(linger_ms),
   .doc = "A closed receiver still answers retransmissions, until everything its sender sent is acknowledged or the "
          "sender is closed, or for this long. -1: 4 ACK timeouts of the sender (NCCL_IB_TIMEOUT) and a second, 18 s "
          "at 20, after which its HCA has retransmitted at least once."},
  {.name = "RAIL_IB_VERIFY", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(verify),
   .doc = "A write of one packet of the path's MTU over each QP in both directions before a connection is handed out: "
          "one that cannot carry data is an error at connect. Off only if both sides have it off."},
  {.name = "RAIL_IB_MAX_WRITE", .type = RAIL_PARAM_BYTES, .def = "1G", .lo = 4096, .hi = 1 << 30,
   .offset = AT(max_write),
   .doc = "Most bytes of one RDMA write, a power of two; what the ports of both sides allow counts as well. With "
          "RAIL_IB_PROTOCOL=send only that counts: this is not looked at."},
  {.name = "RAIL_IB_MIN_PART", .type = RAIL_PARAM_BYTES, .def = "8K", .lo = IB_ALIGN, .hi = 1 << 30,
   .offset = AT(min_part),
   .doc = "A message is split over several QPs only if its parts, were they equal, are not smaller than this. With "
          "RAIL_IB_STRIPING=rate a slow rail's part may be an eighth of it."},
  {.name = "RAIL_IB_STRIPING", .type = RAIL_PARAM_ENUM, .def = "rate", .words = "equal|rate", .offset = AT(striping),
   .doc = "How a sender with several rails divides messages among them. rate: by what each of them carries, so that a "
          "slow one gets less; a message with one part takes the one that is free first. equal: parts are equal, and "
          "QPs take turns."},
  {.name = "RAIL_IB_FLUSH", .type = RAIL_PARAM_ENUM, .def = "auto", .words = "auto|always|never", .offset = AT(flush),
   .doc = "iflush reads back from GPU memory, so that what arrived is visible to the GPU: where memory is reached "
          "in a way that needs it, always, or never."},
  {.name = "RAIL_IB_FAILOVER", .type = RAIL_PARAM_BOOL, .def = "1", .offset = AT(failover),
   .doc = "A connection with several queue pairs goes on without one that fails, whose port goes down, or whose HCA "
          "fails; what it carried is sent again over the others. It is used again when its port is up (not where the "
          "RDMA CM set it up). Never over iWARP. Off if either side has it off."},
  {.name = "RAIL_IB_PATH_TIMEOUT", .type = RAIL_PARAM_MS, .def = "200ms", .lo = 0, .hi = 3600 * 1000,
   .offset = AT(path_ms),
   .doc = "With RAIL_IB_FAILOVER: a queue pair is given up, however long the HCA would retry, when nothing has "
          "completed over it for this long, a write of zero bytes included, and the peer has answered such a write "
          "over another path. What is outstanding has besides the time that it takes at a hundredth of the port's "
          "speed. 0: only the HCA's retries count."},
  {.name = "RAIL_IB_PORT_GRACE", .type = RAIL_PARAM_MS, .def = "200ms", .lo = 0, .hi = 3600 * 1000,
   .offset = AT(port_grace_ms),
   .doc = "With RAIL_IB_FAILOVER: for how long a port may be down, while its HCA retries, before connections give up "
          "their queue pairs over it. 0: at once."},
  {.name = "RAIL_IB_PROGRESS", .type = RAIL_PARAM_ENUM, .def = "poll", .words = "poll|event|auto",
   .offset = AT(progress),
   .doc = "What a test does that finds nothing. poll: it returns at once. event: after some that found nothing it "
          "waits for a completion of any connection that its thread tests, for 0.1 ms at most, and leaves its core to "
          "others. auto: it does so while other threads want the core. Except with poll each connection takes a file "
          "descriptor more for each port, and each thread that tests some takes one."},
};

const struct rail_param_table ib_param_table = {.module = "ib", .rows = rows, .count = RAIL_COUNT_OF(rows),
                                              .title = "Verbs plugin"};
struct ib_params ib_params;

/* ---- NCCL_IB_HCA ------------------------------------------------------------ */

#define MAX_PORT 255

/* A number at *text up to ':' or `end`; empty: -1. False: it is none, or larger than `most`. */
static bool take_number(const char **text, const char *end, int most, int *number) {
  const char *at = *text;
  int value = 0;
  *number = -1;
  for (; at < end && *at != ':'; at++) {
    if (!isdigit((unsigned char)*at)) return false;
    value = value * 10 + (*at - '0');
    if (value > most) return false;
  }
  if (at > *text) *number = value;
  *text = at < end ? at + 1 : end;
  return true;
}

/* NULL, or what is wrong with the entry at text up to end. */
static const char *parse_entry(const char *text, const char *end, struct ib_hca_entry *entry) {
  size_t len = 0;
  int rail, plane;
  while (text + len < end && text[len] != ':') len++;
  if (len == 0) return "has no name";
  if (len >= sizeof entry->name) return "has a name of more than 63 characters";
  memset(entry, 0, sizeof *entry);
  memcpy(entry->name, text, len);
  text += len + (text + len < end);
  if (!take_number(&text, end, MAX_PORT, &entry->port) || entry->port == 0) return "has a port that is not in 1..255";
  if (!take_number(&text, end, INT16_MAX, &rail)) return "has a rail that is not in 0..32767";
  if (!take_number(&text, end, INT16_MAX, &plane)) return "has a plane that is not in 0..32767";
  if (text < end) return "has more than a name and three numbers";
  entry->rail = (int16_t)rail;
  entry->plane = (int16_t)plane;
  return NULL;
}

void ib_hca_filter_parse(const char *text, struct ib_hca_filter *filter) {
  memset(filter, 0, sizeof *filter);
  if (!text) return;
  if (*text == '^') { filter->exclude = true; text++; }
  if (*text == '=') { filter->exact = true; text++; }
  for (const char *end; *text; text = end + (*end == ',')) {
    end = text + strcspn(text, ",");
    if (end == text) continue;
    filter->named = true;
    struct ib_hca_entry entry;
    const char *why = parse_entry(text, end, &entry);
    if (!why && filter->count == IB_MAX_HCA_ENTRIES) why = "is one more than the 32 that are allowed";
    if (why)
      RAIL_WARN("RailIB: NCCL_IB_HCA: '%.*s' %s and is left out; form: [^][=]name[:port[:rail[:plane]]],...",
                (int)(end - text), text, why);
    else filter->entries[filter->count++] = entry;
  }
}

static bool names(const struct ib_hca_filter *filter, const struct ib_hca_entry *entry, const char *name, int port) {
  size_t len = strlen(entry->name);
  if (strncmp(entry->name, name, len) != 0 || (filter->exact && name[len])) return false;
  return entry->port == -1 || entry->port == port;
}

bool ib_hca_filter_passes(const struct ib_hca_filter *filter, const char *name, int port, int16_t *rail,
                          int16_t *plane) {
  *rail = *plane = -1;
  for (unsigned int i = 0; i < filter->count; i++) {
    const struct ib_hca_entry *entry = &filter->entries[i];
    if (!names(filter, entry, name, port)) continue;
    if (filter->exclude) return false;
    *rail = entry->rail;
    *plane = entry->plane;
    return true;
  }
  return filter->exclude || !filter->named;
}

/* ---- NCCL_IB_ADDR_RANGE ------------------------------------------------- */

bool ib_gid_parse_range(const char *text, struct ib_gid_prefs *prefs) {
  char address[INET6_ADDRSTRLEN], *end;
  const char *slash = strchr(text, '/');
  if (!slash || (size_t)(slash - text) >= sizeof address || slash[1] < '0' || slash[1] > '9') return false;
  memcpy(address, text, (size_t)(slash - text));
  address[slash - text] = 0;
  int family = strchr(address, ':') ? AF_INET6 : AF_INET;
  unsigned long bits = strtoul(slash + 1, &end, 10);
  memset(prefs->range, 0, sizeof prefs->range);
  if (*end || bits > (family == AF_INET ? 32u : 128u) || inet_pton(family, address, prefs->range) != 1) return false;
  prefs->ranged = true;
  prefs->range_family = family;
  prefs->range_bits = (unsigned int)bits;
  return true;
}

void ib_params_gid_prefs(struct ib_gid_prefs *prefs) {
  memset(prefs, 0, sizeof *prefs);
  prefs->index = (int)ib_params.gid_index;
  prefs->family = ib_params.addr_family && strcmp(ib_params.addr_family, "AF_INET6") == 0 ? AF_INET6 : AF_INET;
  prefs->version = (int)ib_params.roce_version;
  prefs->flid_index = (int)ib_params.flid_gid_index;
  if (ib_params.addr_range) (void)ib_gid_parse_range(ib_params.addr_range, prefs);
}

/* ---- reading ------------------------------------------------------------- */

static void check_max_write(void) {
  int64_t asked = ib_params.max_write, power = asked;
  while (power & (power - 1)) power &= power - 1;
  if (power == asked) return;
  RAIL_WARN("RAIL_IB_MAX_WRITE=%lld is no power of two; %lld is used", (long long)asked, (long long)power);
  ib_params.max_write = power;
}

static void check_addresses(void) {
  struct ib_gid_prefs prefs;
  const char *family = ib_params.addr_family, *range = ib_params.addr_range;
  if (strcmp(family, "AF_INET") != 0 && strcmp(family, "AF_INET6") != 0) {
    RAIL_WARN("NCCL_IB_ADDR_FAMILY=%s is not a family; allowed: AF_INET or AF_INET6. AF_INET is used", family);
    ib_params.addr_family = "AF_INET";
  }
  if (!range || !*range) {
    ib_params.addr_range = NULL;
  } else if (!ib_gid_parse_range(range, &prefs)) {
    RAIL_WARN("NCCL_IB_ADDR_RANGE=%s is not a range; allowed: address/bits, such as 10.0.0.0/8 or fd00::/64. No range "
              "is used", range);
    ib_params.addr_range = NULL;
  } else if ((prefs.range_family == AF_INET6) != (strcmp(ib_params.addr_family, "AF_INET6") == 0)) {
    RAIL_WARN("NCCL_IB_ADDR_RANGE=%s is not of NCCL_IB_ADDR_FAMILY=%s, so no GID can be in it; no range is used", range,
              ib_params.addr_family);
    ib_params.addr_range = NULL;
  }
}

void ib_params_load(void) {
  const struct rail_param_table *const tables[] = {&ib_param_table};
  rail_param_load(&ib_param_table, &ib_params);
  check_max_write();
  check_addresses();
  if (ib_params.ar_threshold < 0) ib_params.ar_threshold = DEFAULT_AR_THRESHOLD;
  rail_param_check_unknown(tables, RAIL_COUNT_OF(tables));
}
