/* SPDX-License-Identifier: Apache-2.0
 * What was received becomes visible in a GPU's memory: a read over a QP of its own. */
#ifndef IB_FLUSH_H
#define IB_FLUSH_H

#include "plugin/ib/ib_comm.h"

rail_result_t ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);

enum ib_flush_mode { IB_FLUSH_AUTO, IB_FLUSH_ALWAYS, IB_FLUSH_NEVER }; /* RAIL_IB_FLUSH */

/* Does a recv comm need flush QPs at all? */
bool ib_flush_is_needed(const struct ib_comm *comm);
/* The same by what is said and by what memory can be registered. Pure. */
bool ib_flush_wanted(enum ib_flush_mode mode, bool disabled, bool gpu_direct, bool dmabuf);

/* Makes a recv comm's flush QPs where they are needed, one step per call: RAIL_IN_PROGRESS calls again. */
rail_result_t ib_flush_open(struct ib_comm *comm);
void ib_flush_close(struct ib_comm *comm);

/* ---- from test ---- */

void ib_flush_done(struct ib_comm *comm, const struct ibv_wc *wc);
rail_result_t ib_flush_finish(struct ib_request *flush);
/* ---- the loss and the return of a rail ---- */

/* A rail has no QP left that is up: no flush waits for it any more. */
void ib_flush_lose_rail(struct ib_recv_comm *rc, unsigned int rail);
/* Makes the QP of such a rail anew, one step per call, each behind a poll that found nothing. RAIL_OK: flushes wait for
 * it again; RAIL_IN_PROGRESS; or an error, after which it may be called again later. */
rail_result_t ib_flush_return_rail(struct ib_recv_comm *rc, unsigned int rail);
bool ib_flush_is_pending(const struct ib_recv_comm *rc);

#endif
