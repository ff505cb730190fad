/* SPDX-License-Identifier: Apache-2.0
 * The watch thread (common/conn/watch.h) and the oob connections of the comms. */
#ifndef OFI_WATCH_H
#define OFI_WATCH_H

#include "common/conn/watch.h"
#include "plugin/ofi/ofi_comm.h"

/* rail_watch_remove sends GOODBYE, with the number of requests that this side gives up. */
extern struct rail_watch ofi_watch;

/* The comm's handshake is over. Logs why not. */
rail_result_t ofi_watch_add(struct ofi_comm *comm);

#endif
