/* SPDX-License-Identifier: Apache-2.0
 *
 * Flush: what was received into GPU memory is visible to the GPU once a read
 * over the same path has come back: an RDMA READ on a QP that is connected to
 * itself. When it is needed is a table of facts (ib_flush_wanted), pure.
 */
#ifndef IB_FLUSH_H
#define IB_FLUSH_H

#include "plugin/ib/ib_comm.h"

enum ib_flush_mode { IB_FLUSH_AUTO, IB_FLUSH_ALWAYS, IB_FLUSH_NEVER }; /* RAIL_IB_FLUSH */

/* Does a connection need flush QPs at all? */
bool ib_flush_wanted(enum ib_flush_mode mode, bool disabled, bool gpu_direct, bool dmabuf);

struct ib_flush {
  struct ib_comm *comm;
  unsigned int ready; /* rails whose QP is in RTS */
  struct ib_qp qps[IB_MAX_RAILS];
  struct ibv_mr *mrs[IB_MAX_RAILS];
  uint64_t *word; /* on a page of its own: what is read goes here, and nobody looks at it */
};
/* NULL in *flush where it is not wanted. Made by setup, step by step: RAIL_IN_PROGRESS calls again. */
rail_result_t ib_flush_open(struct ib_comm *comm, struct ib_flush **flush);
void ib_flush_close(struct ib_flush *flush); /* NULL is fine */
/* Kept by the recv comm; closed by ib_close.c, after the data QPs. */
void ib_recv_comm_set_flush(struct ib_comm *comm, struct ib_flush *flush);
struct ib_flush *ib_recv_comm_flush(const struct ib_comm *comm);

#endif
