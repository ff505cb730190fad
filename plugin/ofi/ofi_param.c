/* SPDX-License-Identifier: Apache-2.0
 * The one table of parameters of the ofi plugin. Built without libfabric's headers, too: for docs/parameters.md. */
#include "plugin/ofi/ofi_param.h"

#include <stdlib.h>
#include <strings.h>

#include "common/base/compiler.h"
#include "common/base/log.h"

#define AT(field) offsetof(struct ofi_params, field)

static const struct rail_param rows[] = {
  /* devices */
  {.name = "RAIL_OFI_LIBRARY", .type = RAIL_PARAM_STRING, .offset = AT(library),
   .doc = "Path of libfabric. Unset: libfabric.so.1."},
  {.name = "RAIL_OFI_PROVIDER", .type = RAIL_PARAM_STRING, .offset = AT(provider),
   .doc = "Providers to use, the first that has a usable domain: a list of names such as tcp;ofi_rxm, or of their "
          "first parts (tcp); '^' in front excludes the list. Unset: of cxi, efa, opx, psm3, psm2, verbs;ofi_rxm, "
          "tcp;ofi_rxm, tcp, sockets, udp;ofi_rxd the first; others (shm, net) only when they are named here or in "
          "FI_PROVIDER, by which libfabric limits what it offers."},
  {.name = "RAIL_OFI_DOMAIN", .type = RAIL_PARAM_STRING, .offset = AT(domain),
   .doc = "Domains to use (fi_info shows their names): a list of name prefixes; '^' in front excludes them, '=' makes "
          "them exact."},
  {.name = "RAIL_OFI_PROTOCOL", .type = RAIL_PARAM_ENUM, .def = "auto", .words = "auto|tagged|rma",
   .offset = AT(protocol),
   .doc = "How messages travel: tagged, by the provider's own tag matching; rma, written into the receiver's buffers. "
          "auto: rma where the provider can do it, tagged with shm. The receiver's counts."},
  {.name = "OFI_NCCL_PROTOCOL", .type = RAIL_PARAM_STRING, .offset = AT(aws_protocol),
   .doc = "aws-ofi-nccl's name for it: SENDRECV is tagged, RDMA is rma. RAIL_OFI_PROTOCOL other than auto overrides "
          "it."},
  {.name = "NCCL_SOCKET_IFNAME", .type = RAIL_PARAM_STRING, .offset = AT(ifname),
   .doc = "Interfaces of the oob (out-of-band, TCP) connection, of which the first that fits is used, and the devices "
          "of providers over IP (tcp, sockets, udp): a list of name prefixes; '^' in front excludes them, '=' makes "
          "them exact."},
  {.name = "NCCL_SOCKET_FAMILY", .type = RAIL_PARAM_STRING, .offset = AT(family),
   .doc = "AF_INET or AF_INET6 limits both to that family."},
  {.name = "NCCL_COMM_ID", .type = RAIL_PARAM_STRING, .offset = AT(comm_id),
   .doc = "Address of the root; interfaces in its subnet are preferred when NCCL_SOCKET_IFNAME is unset."},
  {.name = "RAIL_NET_FUSE_NO_PCI", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(fuse_no_pci),
   .doc = "1: makeVDevice also fuses devices without a PCI path. NCCL's init fails with such a device, so this is for "
          "librailyard's NCCL_NET_FORCE_MERGE and for tests."},
  /* data */
  {.name = "RAIL_OFI_INLINE", .type = RAIL_PARAM_BYTES, .def = "-1", .lo = -1, .hi = OFI_MAX_INLINE,
   .offset = AT(inline_bytes),
   .doc = "Payloads of at most so many bytes travel inside a control message, and ahead of their receive. -1: 8K over "
          "tcp, with ofi_rxm or without, 2K over other providers."},
  {.name = "RAIL_OFI_MIN_PART", .type = RAIL_PARAM_BYTES, .def = "128K", .lo = 4096, .hi = 1 << 30,
   .offset = AT(min_part),
   .doc = "No message is split over the NICs of a fused device in parts smaller than this."},
  {.name = "OFI_NCCL_MIN_STRIPE_SIZE", .type = RAIL_PARAM_BYTES, .def = "-1", .lo = -1, .hi = 1 << 30,
   .offset = AT(aws_min_part),
   .doc = "aws-ofi-nccl's name for it, which counts where RAIL_OFI_MIN_PART is unset. -1: unset."},
  {.name = "RAIL_OFI_FLUSH", .type = RAIL_PARAM_ENUM, .def = "auto", .words = "auto|always|never", .offset = AT(flush),
   .doc = "iflush reads back from GPU memory, so that what arrived is visible to the GPU: where the provider writes "
          "there itself, always, or never."},
  {.name = "NCCL_GDR_FLUSH_DISABLE", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(flush_disable),
   .doc = "1: what arrives in GPU memory is not flushed."},
  {.name = "RAIL_OFI_LL128", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(ll128),
   .doc = "0: where NCCL_PROTO is unset it is set to ^LL128 for this process, because libfabric's providers do not "
          "promise the order in which the bytes of a message become visible, and NCCL's LL128 would take wrong data. "
          "1: it is left alone."},
  /* connections */
  {.name = "RAIL_OFI_AUTH_FILE", .type = RAIL_PARAM_STRING, .offset = AT(auth_file),
   .doc = "File with a key of at least 16 bytes that others cannot read. Both sides of a connection then prove that "
          "they have it; a side with and a side without refuse each other. Needs OpenSSL's libcrypto."},
  {.name = "RAIL_OFI_PORTS", .type = RAIL_PARAM_STRING, .offset = AT(ports),
   .doc = "Range of TCP ports to listen on, first-last, for the oob connections. Unset: the system chooses. (Ports of "
          "the provider's own are a matter of its parameters.)"},
  {.name = "RAIL_OFI_BIND", .type = RAIL_PARAM_STRING, .offset = AT(bind),
   .doc = "Address that listeners of oob connections bind to, such as 0.0.0.0 or ::, instead of their interface's. "
          "Peers are still told the interface's."},
  {.name = "RAIL_OFI_CONNECT_TIMEOUT", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 3600 * 1000,
   .offset = AT(connect_ms),
   .doc = "A peer that cannot be reached within this time, or does not complete the handshake within this time of "
          "its first answer, is an error. Its accept may take any time, as long as its host answers. 0: no limit."},
  {.name = "RAIL_OFI_HANDSHAKE_TIMEOUT", .type = RAIL_PARAM_MS, .def = "10s", .lo = 10, .hi = 3600 * 1000,
   .offset = AT(handshake_ms),
   .doc = "A pending connection whose HELLO has not arrived within this time is dropped."},
  {.name = "RAIL_OFI_DEADLINE", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(deadline_ms),
   .doc = "With requests outstanding and nothing moving, a peer whose host does not answer for this long over the oob "
          "connection is an error, and so is a fabric that carries nothing meanwhile, or has lost messages. A peer "
          "that is merely late answers. 0: no limit."},
  {.name = "RAIL_OFI_PEER_TIMEOUT", .type = RAIL_PARAM_MS, .def = "300s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(peer_ms),
   .doc = "With requests outstanding, how long a peer whose host answers may be silent (stopped, in a debugger, "
          "checkpointed) before that is an error. Peers that are alive and merely slow answer PING and may take any "
          "time. 0: no limit."},
  {.name = "RAIL_OFI_PEER_WARN", .type = RAIL_PARAM_MS, .def = "10s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(peer_warn_ms),
   .doc = "A peer that has been silent for this long, with requests outstanding, is reported, once per process and "
          "silence. 0: never."},
  {.name = "RAIL_OFI_CLOSE_TIMEOUT", .type = RAIL_PARAM_MS, .def = "700ms", .lo = 0, .hi = 60 * 1000,
   .offset = AT(close_ms),
   .doc = "close and deregMr wait for operations that libfabric has not given back, and closeSend for the peer to say "
          "that it has all messages, until nothing has moved for this long; 10 times as long at most."},
};

const struct rail_param_table ofi_param_table = {.module = "ofi", .rows = rows, .count = RAIL_COUNT_OF(rows),
                                               .title = "Libfabric plugin"};
struct ofi_params ofi_params;

static void take_aws_protocol(void) {
  const char *text = ofi_params.aws_protocol;
  if (!text || !*text || ofi_params.protocol != OFI_WANT_AUTO) return;
  if (strcasecmp(text, "SENDRECV") == 0) ofi_params.protocol = OFI_WANT_TAGGED;
  else if (strcasecmp(text, "RDMA") == 0) ofi_params.protocol = OFI_WANT_RMA;
  else RAIL_WARN("OFI_NCCL_PROTOCOL=%s is no protocol; allowed: SENDRECV or RDMA. It is left out", text);
}

static void take_aws_min_part(void) {
  const int64_t least = 4096;
  if (ofi_params.aws_min_part < 0 || getenv("RAIL_OFI_MIN_PART")) return;
  ofi_params.min_part = RAIL_MAX(ofi_params.aws_min_part, least);
}

void ofi_params_load(void) {
  const struct rail_param_table *const tables[] = {&ofi_param_table};
  rail_param_load(&ofi_param_table, &ofi_params);
  take_aws_protocol();
  take_aws_min_part();
  rail_param_check_unknown(tables, RAIL_COUNT_OF(tables));
}
