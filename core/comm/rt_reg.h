/* SPDX-License-Identifier: Apache-2.0
 *
 * Registrations of user memory, so that steps need no copy. A buffer of ncclCommRegister is registered with a
 * connection at first use and stays so; other memory is registered for one plan, where that is cheap.
 */
#ifndef RT_REG_H
#define RT_REG_H

#include "core/comm/rt_comm.h"

struct rt_reg_buffer; /* of ncclCommRegister */

rail_result_t rt_reg_add(struct ncclComm *comm, void *base, size_t size, struct rt_reg_buffer **out);
/* RAIL_BAD_ARGUMENT if the handle is not one of comm's. */
rail_result_t rt_reg_remove(struct ncclComm *comm, struct rt_reg_buffer *buffer);
void rt_reg_free_all(struct ncclComm *comm);
/* Undoes all registrations with connections; the buffers stay and are registered again at their next use. */
void rt_reg_drop_connectors(struct ncclComm *comm);
/* Where the handle's buffer begins; NULL if it is not one of comm's. */
void *rt_reg_base(struct ncclComm *comm, const struct rt_reg_buffer *handle);

/* Fills *d when [base, base+size) can be sent or received on c without a copy; else zeroes it. A registration that
 * the caller must release with c->end->dereg is stored in *mine. Never an error: the copy is always possible. */
void rt_reg_direct(struct ncclComm *comm, struct rt_connector *c, const void *base, size_t size, struct rt_direct *d,
                   void **mine);

#endif
