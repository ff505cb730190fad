/* SPDX-License-Identifier: Apache-2.0
 * Registrations of a connection. */
#ifndef IB_MR_H
#define IB_MR_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/result.h"

struct ib_comm;

rail_result_t ib_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t ib_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
rail_result_t ib_dereg_mr(void *comm, void *mhandle);
/* Gives back all of them; the QPs are gone. */
void ib_mhandles_free(struct ib_comm *comm);

#endif
