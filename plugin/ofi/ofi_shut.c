/* SPDX-License-Identifier: Apache-2.0
 * An endpoint that is closed: at its end, or because it cannot go on. */
#include "common/base/log.h"
#include "plugin/ofi/ofi_endpoint.h"

void ofi_shut_fid(struct fid *fid, const char *what, const struct ofi_nic *nic) {
  int err = fi_close(fid);
  if (err)
    RAIL_WARN("RailOFI: closing %s of provider %s: %s: %s; what it held goes when the process ends", nic->name,
              nic->provider, what, ofi_fabric_strerror(err));
}

/* ops->shut of every comm is called between the two tries: registrations may be bound to an endpoint (FI_MR_ENDPOINT),
 * which then closes only after them. */
void ofi_shut_quietly(struct ofi_endpoint *endpoint, const char *why) {
  int err[OFI_MAX_PATHS] = {0};
  endpoint->shut = true;
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    if (n->ep) err[i] = fi_close(&n->ep->fid);
    STAILQ_INIT(&n->waiting);
    STAILQ_INIT(&n->waiting_receives);
    STAILQ_INIT(&n->used_receives);
    n->nused = 0;
    n->bytes_posted = 0;
  }
  endpoint->nops = 0;
  for (uint32_t i = 0; i < endpoint->ncomms; i++)
    if (endpoint->comms[i]) endpoint->ops->shut(endpoint->comms[i], why);
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    ofi_memory_free(&n->frames_in);
    if (err[i]) ofi_shut_fid(&n->ep->fid, "endpoint", n->nic);
    n->ep = NULL;
  }
}

void ofi_shut(struct ofi_endpoint *endpoint, const char *why) {
  if (endpoint->shut || endpoint->ending) return; /* ending: it is closed next, and has no connections */
  RAIL_WARN("RailOFI: the endpoint of %s is closed, and all its connections with it: %s", endpoint->device->name, why);
  ofi_shut_quietly(endpoint, why);
}
