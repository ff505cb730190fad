/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake of both sides: steps of common/conn/setup.h. Each side opens its endpoint, tells the other its
 * addresses (OFFER), and sends a PING over each path of the fabric. When the other side's PINGs are all there it says
 * READY over the oob connection, and is through when the other has said so. So a connection that is handed out has
 * carried a message each way, and neither side needs the other's calls any more to get through. / */
#ifndef OFI_SETUP_H
#define OFI_SETUP_H

#include "common/conn/setup.h"
#include "plugin/ofi/ofi_comm.h"

struct ofi_setup {
  struct rail_setup base;
  struct rail_net_ctx *ctx;
  const struct ofi_device *device;
  struct ofi_endpoint *endpoint; /* a user of it, until the comm is taken */
  struct ofi_comm *comm;
  struct ofi_offer mine, theirs;
  uint64_t number; /* of a connector's attempt */
};

/* NULL, after one line: out of memory. */
struct ofi_setup *ofi_setup_new(struct rail_net_ctx *ctx, const struct ofi_device *device, bool connector,
                                const union rail_addr *peer);
/* Frees everything; the comm too, unless it was taken. */
void ofi_setup_free(struct rail_setup *s);
/* The comm, watched, is the caller's. */
rail_result_t ofi_setup_take(struct ofi_setup *s, void **comm);

#endif
