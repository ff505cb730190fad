/* SPDX-License-Identifier: Apache-2.0
 * The end of connections. */
#ifndef OFI_CLOSE_H
#define OFI_CLOSE_H

#include "plugin/ofi/ofi_comm.h"

rail_result_t ofi_close_send(void *send_comm);
rail_result_t ofi_close_recv(void *recv_comm);
/* Ends the connection, with whatever is outstanding: when it returns, none of the caller's memory is touched any more.
 * Waits up to RAIL_OFI_CLOSE_TIMEOUT for what libfabric and the peer have of it; then the endpoint is shut. Once. */
void ofi_comm_stop(struct ofi_comm *comm);
/* Everything of a comm, whole or half made. Its user of the endpoint too. */
void ofi_comm_destroy(struct ofi_comm *comm);

#endif
