/* SPDX-License-Identifier: Apache-2.0
 * The end of a connection. */
#ifndef IB_CLOSE_H
#define IB_CLOSE_H

#include "plugin/ib/ib_comm.h"

rail_result_t ib_close_send(void *send_comm);
rail_result_t ib_close_recv(void *recv_comm);
/* Everything of a comm, whole or half made. */
void ib_comm_destroy(struct ib_comm *comm);

#endif
