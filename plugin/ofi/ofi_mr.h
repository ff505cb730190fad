/* SPDX-License-Identifier: Apache-2.0
 * Memory registration: the calls of the table. */
#ifndef OFI_MR_H
#define OFI_MR_H

#include "plugin/ofi/ofi_comm.h"

rail_result_t ofi_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t ofi_dereg_mr(void *comm, void *mhandle);

#endif
