/* SPDX-License-Identifier: Apache-2.0
 * The counters of the ib plugin, for rail-stat. Rows in ib_stats.c are in the order of these values. */
#ifndef IB_STATS_H
#define IB_STATS_H

#include "common/obs/profile.h"
#include "common/obs/stats.h"

struct ib_comm;
struct ib_port;
struct ib_request;

enum ib_stats_comm { /* label: side, device, peer, qps */
  IB_COMM_BYTES,         /* of messages that are done */
  IB_COMM_MESSAGES,
  IB_COMM_WRITES,        /* RDMA writes posted: data on the sender's side, CTS on the receiver's */
  IB_COMM_WAITS_CTS,     /* isend found no buffer of its tag */
  IB_COMM_WAITS_ROOM,    /* isend or irecv found a table or a send queue full */
  IB_COMM_LOST,          /* QPs that were given up while others went on */
  IB_COMM_RESENT,        /* parts, or the CTS of receives, that were written again because of it */
  IB_COMM_RETURNED,      /* lost QPs that are in use again */
  IB_COMM_WAITS_EVENT,   /* test slept, for a completion of any of its thread's comms (ib_wait.c) */
  IB_COMM_WAKEUPS,       /* and one came */
  IB_COMM_OUTSTANDING,   /* gauge: requests */
  IB_COMM_LAST_PROGRESS, /* time */
  IB_COMM_COUNTERS
};
enum ib_stats_device { /* of a port; label: device */
  IB_DEVICE_COMMS, /* gauge */
  IB_DEVICE_ACCEPTED,
  IB_DEVICE_CONNECTED,
  IB_DEVICE_REFUSED,
  IB_DEVICE_DROPPED,
  IB_DEVICE_ERRORS,     /* completions with an error, and fatal events */
  IB_DEVICE_PORT_DOWNS,
  IB_DEVICE_PORT_UPS,
  IB_DEVICE_EVENTS,     /* other asynchronous events */
  IB_DEVICE_REGISTERED, /* gauge: registrations in the cache */
  IB_DEVICE_QPS,        /* gauge: data QPs of open comms */
  IB_DEVICE_COUNTERS
};

enum ib_stats_rail { /* of a sender that stripes by rate; label: side, device, peer, rail */
  IB_RAIL_BYTES,
  IB_RAIL_SHARE, /* gauge, thousandths */
  IB_RAIL_RATE,  /* gauge, bytes per second */
  IB_RAIL_COUNTERS
};

/* The page, and the records of all ports: one call each per context, under the plugin's lock. The page stays until the
 * last comm has released its record, too. */
rail_result_t ib_stats_open(void);
void ib_stats_close(void);
/* The device's record, shared by threads (rail_stats_add_shared); NULL when the page is not open. */
uint64_t *ib_stats_device(const char *name);
/* One more of these for the device. Not for the data path. */
void ib_stats_count(const char *device, enum ib_stats_device counter);
/* Takes a record for the comm (private memory where there is no page), and releases it, if there is one. Device,
 * peer_text, rails and plan are filled in. RAIL_SYSTEM_ERROR, logged: out of memory. */
rail_result_t ib_stats_comm_begin(struct ib_comm *comm);
void ib_stats_comm_end(struct ib_comm *comm);
/* The same for one rail of a comm; NULL: there is no page, or no memory. */
uint64_t *ib_stats_rail_begin(const struct ib_comm *comm, unsigned int rail);
void ib_stats_rail_end(uint64_t *stats);

/* ---- events for NCCL's profiler (common/obs/profile.h) -----------------------------
 * None per part: only the sender knows how many parts a message has, and over which QPs. */

/* NCCL's ncclProfilerNetIbDescr_v1_t: the description of a QP's event. */
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
