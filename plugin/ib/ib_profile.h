/* SPDX-License-Identifier: Apache-2.0
 * The ib plugin's events for NCCL's profiler (common/obs/profile.h). None per part: how many a receive will have, and over
 * which QPs, only its sender knows. */
#ifndef IB_PROFILE_H
#define IB_PROFILE_H

#include "common/obs/profile.h"
#include "plugin/ib/ib_comm.h"

/* What NCCL tells a profiler of an event of a QP: its ncclProfilerNetIbDescr_v1_t. */
#define IB_PROFILE_ID ((INT64_C(1) << 16) | 1) /* network type "ib", version of the structure */
#define IB_PROFILE_QP 1                        /* the one kind of event */

struct ib_profile_event {
  uint8_t type; /* IB_PROFILE_QP */
  struct {
    int device;     /* which of the connection's ports: the rail */
    uint64_t wr_id; /* of the first part's last write; of a receive: of its CTS write */
    int opcode;     /* enum ibv_wr_opcode */
    int qp_num;     /* of the first part's QP; of a receive: of the one that carries its CTS write */
    size_t length;  /* of the message; of a receive: of the buffer */
  } qp;
};
_Static_assert(sizeof(struct ib_profile_event) == 40 && sizeof(struct ib_profile_event) <= RAIL_PROFILE_EVENT_MAX,
               "NCCL's layout");
_Static_assert(offsetof(struct ib_profile_event, qp.device) == 8, "NCCL's layout");
_Static_assert(offsetof(struct ib_profile_event, qp.wr_id) == 16, "NCCL's layout");
_Static_assert(offsetof(struct ib_profile_event, qp.opcode) == 24, "NCCL's layout");
_Static_assert(offsetof(struct ib_profile_event, qp.qp_num) == 28, "NCCL's layout");
_Static_assert(offsetof(struct ib_profile_event, qp.length) == 32, "NCCL's layout");

/* For comms with a profiler; the caller's progress thread. `phandles`: one per buffer, or NULL. */
void ib_profile_start(struct ib_request *r, void *const *phandles);
/* A flush has no events. */
void ib_profile_stop(struct ib_request *r);

#endif
