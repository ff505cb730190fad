/* SPDX-License-Identifier: Apache-2.0
 * An endpoint that is closed: at its end, or because it cannot go on. */
#include "common/base/log.h"
#include "plugin/ofi/ofi_endpoint.h"

static void warn_open(const char *what, const struct ofi_nic *nic, int err) {
  RAIL_WARN("RailOFI: closing %s of provider %s: %s: %s; what it held goes when the process ends", nic->name,
            nic->provider, what, ofi_fabric_strerror(err));
}

void ofi_shut_fid(struct fid *fid, const char *what, const struct ofi_nic *nic) {
  int err = fi_close(fid);
  if (err) warn_open(what, nic, err);
}

/* Registrations may be bound to an endpoint (FI_MR_ENDPOINT): cxi closes it only after all of them. Elsewhere they may
 * be closed only when nothing uses them any more. */
static int close_endpoint(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *n) {
  int err = fi_close(&n->ep->fid);
  if (err != -FI_EBUSY) return err;
  for (uint32_t i = 0; i < endpoint->ncomms; i++)
    if (endpoint->comms[i]) endpoint->ops->unbind(endpoint->comms[i]);
  for (unsigned int i = 0; i < endpoint->nnics; i++) ofi_memory_close_mrs(&endpoint->nics[i].frames_in);
  return fi_close(&n->ep->fid);
}

/* What was posted is freed after the endpoints are closed. */
void ofi_shut_quietly(struct ofi_endpoint *endpoint, const char *why) {
  endpoint->shut = true;
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    int err = n->ep ? close_endpoint(endpoint, n) : 0;
    if (err) warn_open("endpoint", n->nic, err);
    endpoint->kept |= err != 0;
    n->ep = NULL;
    STAILQ_INIT(&n->waiting);
    STAILQ_INIT(&n->waiting_receives);
    STAILQ_INIT(&n->used_receives);
    n->nused = 0;
    n->bytes_outstanding = 0;
  }
  endpoint->nops = 0;
  for (uint32_t i = 0; i < endpoint->ncomms; i++)
    if (endpoint->comms[i]) endpoint->ops->shut(endpoint->comms[i], why);
  for (unsigned int i = 0; i < endpoint->nnics && !endpoint->kept; i++)
    ofi_memory_free(&endpoint->nics[i].frames_in);
}

void ofi_shut(struct ofi_endpoint *endpoint, const char *why) {
  if (endpoint->shut || endpoint->ending) return; /* ending: it is closed next, and has no connections */
  RAIL_WARN("RailOFI: the endpoint of %s is closed, and all its connections with it: %s", endpoint->device->name, why);
  ofi_shut_quietly(endpoint, why);
}
