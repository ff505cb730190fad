/* SPDX-License-Identifier: Apache-2.0
 *
 * The watch thread (common/conn/watch.h) of this plugin: it reads the HCAs' asynchronous events and the oob connections
 * of all comms, and sets bits of `pending_work`. It posts nothing, polls no CQ, touches no request.
 *
 * A comm whose peer closed, or whose oob connection broke, gets a fault bit; the caller's next test reads it when there
 * is nothing left to poll.
 *
 * The thread also owns closed comms that linger: a receiver's QPs still answer retransmissions of a sender whose last
 * ACK was lost, an iWARP sender's still send.
 */
#include "plugin/ib/ib_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sock.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_wire.h"

#define EVENTS_AT_ONCE 64

/* ---- oob connections ----------------------------------------------------------- */

static void load_limits(struct rail_oob_limits *limits) {
  *limits = (struct rail_oob_limits){.deadline_ms = ib_params.deadline_ms, .peer_ms = ib_params.peer_ms,
                                     .warn_ms = ib_params.peer_warn_ms, .deadline_param = "RAIL_IB_DEADLINE",
                                     .peer_param = "RAIL_IB_PEER_TIMEOUT",
                                     .tick_ms = ib_params.failover ? IB_RETURN_TICK_MS : 0};
}

static struct rail_oob_work oob_work(const void *arg) {
  const struct ib_comm *comm = arg;
  return (struct rail_oob_work){
    .outstanding = atomic_load_explicit(&comm->outstanding, memory_order_relaxed),
    .activity = rail_stats_get(&comm->stats[IB_COMM_MESSAGES]) + rail_stats_get(&comm->stats[IB_COMM_WRITES]) +
                rail_stats_get(&comm->stats[IB_COMM_LAST_PROGRESS]),
    .waits = rail_stats_get(&comm->stats[IB_COMM_WAITS_CTS]),
  };
}

/* Whether the peer gave up requests makes no difference: its HCA acknowledges what it has received. */
static void oob_event(void *arg, uint32_t events) {
  struct ib_comm *comm = arg;
  atomic_fetch_or(&comm->pending_work, events & ~RAIL_OOB_PEER_GAVE_UP);
}

static void oob_silent(void *arg, bool silent) {
  struct ib_comm *comm = arg;
  atomic_store_explicit(&comm->peer_silent, silent, memory_order_relaxed);
}

static const struct rail_oob_ops oob_ops = {
  .protocol = &ib_protocol, .work = oob_work, .event = oob_event, .silent = oob_silent, .frame = ib_failover_frame,
  .next = ib_failover_next};

/* ---- asynchronous events: of a port -------------------------------------------- */

/* What an HCA's events ask for, the worst last. */
enum events {
  EVENTS_NONE,  /* nothing more */
  EVENTS_PORT,  /* a port went down, came up, or has other GIDs */
  EVENTS_FATAL, /* the HCA failed, and every connection over it alone */
};

static const char *time_of_day(char text[32]) {
  time_t now = time(NULL);
  struct tm tm;
  if (!gmtime_r(&now, &tm) || !strftime(text, 32, "%Y-%m-%d %H:%M:%S UTC", &tm)) text[0] = 0;
  return text;
}

static void count(const struct ib_port *port, enum ib_stats_device counter) {
  if (port->stats) rail_stats_add_shared(&port->stats[counter], 1);
}

/* Not an error: the HCA retransmits until its retries are over, and connections with other ports go on over those. */
static void port_down(struct ib_port *port) {
  char when[32];
  if (port->down_since) return; /* reported already */
  port->down_since = rail_now_ns();
  atomic_fetch_or(&port->faults, IB_PORT_DOWN);
  uint64_t flaps = atomic_fetch_add(&port->flaps, 1) + 1;
  count(port, IB_DEVICE_PORT_DOWNS);
  RAIL_WARN("RailIB: port %s went down at %s (%llu times so far); transfers over it are retried and fail if it stays "
            "down and there is no other port; check cable, switch port and driver (ibv_devinfo -d %s, dmesg)",
            port->name, time_of_day(when), (unsigned long long)flaps, port->hca->name);
}

static void port_up(struct ib_port *port) {
  if (!port->down_since) return;
  double s = (double)(rail_now_ns() - port->down_since) / 1e9;
  port->down_since = 0;
  atomic_fetch_and(&port->faults, ~IB_PORT_DOWN);
  count(port, IB_DEVICE_PORT_UPS);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: port %s is up again after %.1f s", port->name, s);
}

static void other_event(const struct ib_port *port, const char *what) {
  count(port, IB_DEVICE_EVENTS);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: port %s: %s; open connections keep the addresses they have", port->name, what);
}

/* Events of ports that no device uses are ignored. */
static enum events on_port(struct ib_hca *hca, int number, enum ibv_event_type type, const char *what) {
  for (unsigned int i = 0; i < hca->nports; i++) {
    struct ib_port *port = &hca->ports[i];
    if (port->number != number) continue;
    ib_port_forget_gids(port);
    if (type == IBV_EVENT_PORT_ERR) port_down(port);
    else if (type == IBV_EVENT_PORT_ACTIVE) port_up(port);
    else other_event(port, what);
  }
  bool of_port = type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE || type == IBV_EVENT_GID_CHANGE;
  return of_port ? EVENTS_PORT : EVENTS_NONE;
}

static void count_on_all(const struct ib_hca *hca, enum ib_stats_device counter) {
  for (unsigned int i = 0; i < hca->nports; i++) count(&hca->ports[i], counter);
}

/* ---- of a connection, of a device ---------------------------------------------- */

/* qp: what the event is about, if it is a QP that broke. */
static void on_comm(struct ib_hca *hca, struct ib_comm *comm, uint32_t faults, const struct ibv_qp *qp,
                    const char *what) {
  if (!comm || (comm->magic != IB_SEND_COMM_MAGIC && comm->magic != IB_RECV_COMM_MAGIC)) return;
  count_on_all(hca, IB_DEVICE_ERRORS);
  if (atomic_load(&comm->stopped)) return; /* its QPs are in ERR because ib_comm_stop put them there */
  RAIL_WARN("RailIB: connection with %s over %s: %s reports %s%s", comm->peer_text, comm->device->name, hca->name, what,
            ib_params.return_async_events ? "" : "; ignored, as NCCL_IB_RETURN_ASYNC_EVENTS=0 says");
  if (!ib_params.return_async_events) return;
  if (!qp || !ib_failover_qp_fatal(comm, qp)) atomic_fetch_or(&comm->pending_work, faults);
}

static enum events on_device(struct ib_hca *hca, const char *what) {
  count_on_all(hca, IB_DEVICE_ERRORS);
  atomic_fetch_or(&hca->faults, IB_HCA_FATAL);
  RAIL_WARN("RailIB: %s reports %s: nothing works over it any more; dmesg and the firmware's log say why%s", hca->name,
            what, ib_params.return_async_events ? "" : "; ignored, as NCCL_IB_RETURN_ASYNC_EVENTS=0 says");
  return ib_params.return_async_events ? EVENTS_FATAL : EVENTS_NONE;
}

/* ---- all types ----------------------------------------------------------------- */

enum about { ABOUT_OTHER, ABOUT_QP, ABOUT_CQ, ABOUT_PORT, ABOUT_DEVICE };

static const struct {
  enum about about;
  uint32_t faults; /* of the comm */
  const char *what;
} table[] = {
  [IBV_EVENT_CQ_ERR] = {ABOUT_CQ, IB_COMM_CQ_ERROR, "an overrun completion queue (CQ_ERR): completions are lost"},
  [IBV_EVENT_QP_FATAL] = {ABOUT_QP, IB_COMM_QP_FATAL, "a queue pair that broke (QP_FATAL)"},
  [IBV_EVENT_QP_REQ_ERR] = {ABOUT_QP, IB_COMM_QP_FATAL, "an invalid request from the peer (QP_REQ_ERR)"},
  [IBV_EVENT_QP_ACCESS_ERR] = {ABOUT_QP, IB_COMM_QP_FATAL,
                               "a request from the peer that its memory key does not allow (QP_ACCESS_ERR)"},
  [IBV_EVENT_COMM_EST] = {ABOUT_OTHER, 0, "COMM_EST"},
  [IBV_EVENT_SQ_DRAINED] = {ABOUT_OTHER, 0, "SQ_DRAINED"},
  [IBV_EVENT_PATH_MIG] = {ABOUT_OTHER, 0, "PATH_MIG"},
  [IBV_EVENT_PATH_MIG_ERR] = {ABOUT_OTHER, 0, "PATH_MIG_ERR"},
  [IBV_EVENT_DEVICE_FATAL] = {ABOUT_DEVICE, 0, "a fatal error (DEVICE_FATAL)"},
  [IBV_EVENT_PORT_ACTIVE] = {ABOUT_PORT, 0, "PORT_ACTIVE"},
  [IBV_EVENT_PORT_ERR] = {ABOUT_PORT, 0, "PORT_ERR"},
  [IBV_EVENT_LID_CHANGE] = {ABOUT_PORT, 0, "its LID changed"},
  [IBV_EVENT_PKEY_CHANGE] = {ABOUT_PORT, 0, "its table of partition keys changed"},
  [IBV_EVENT_SM_CHANGE] = {ABOUT_PORT, 0, "the subnet manager changed"},
  [IBV_EVENT_SRQ_ERR] = {ABOUT_OTHER, 0, "SRQ_ERR"},
  [IBV_EVENT_SRQ_LIMIT_REACHED] = {ABOUT_OTHER, 0, "SRQ_LIMIT_REACHED"},
  [IBV_EVENT_QP_LAST_WQE_REACHED] = {ABOUT_OTHER, 0, "QP_LAST_WQE_REACHED"},
  [IBV_EVENT_CLIENT_REREGISTER] = {ABOUT_PORT, 0, "the subnet manager asked for registrations anew"},
  [IBV_EVENT_GID_CHANGE] = {ABOUT_PORT, 0, "its table of GIDs changed"},
  [IBV_EVENT_WQ_FATAL] = {ABOUT_OTHER, 0, "WQ_FATAL"},
};

static enum events handle(struct ib_hca *hca, const struct ibv_async_event *event) {
  enum about about = ABOUT_OTHER;
  uint32_t faults = 0;
  const char *what = "an event of an unknown type";
  if ((unsigned int)event->event_type < RAIL_COUNT_OF(table)) {
    about = table[event->event_type].about;
    faults = table[event->event_type].faults;
    what = table[event->event_type].what;
  }
  RAIL_TRACE(RAIL_SUB_NET, "RailIB: %s: event %d: %s", hca->name, (int)event->event_type, what);
  switch (about) {
    case ABOUT_QP:
      on_comm(hca, event->element.qp->qp_context, faults,
              event->event_type == IBV_EVENT_QP_FATAL ? event->element.qp : NULL, what);
      break;
    case ABOUT_CQ: on_comm(hca, event->element.cq->cq_context, faults, NULL, what); break;
    case ABOUT_PORT: return on_port(hca, event->element.port_num, event->event_type, what);
    case ABOUT_DEVICE: return on_device(hca, what);
    case ABOUT_OTHER: count_on_all(hca, IB_DEVICE_EVENTS); break;
  }
  return EVENTS_NONE;
}

/* Reads, handles and acknowledges what is there, EVENTS_AT_ONCE at most; the HCA's descriptor does not block. Without
 * the lock of the watch: ibv_destroy_qp waits until the QP's events are acknowledged. False: no more can be read, as
 * behind the DEVICE_FATAL of an HCA that was removed. */
static bool read_events(struct ib_hca *hca, enum events *worst) {
  for (int i = 0; i < EVENTS_AT_ONCE; i++) {
    struct ibv_async_event event;
    if (ib_verbs.get_async_event(hca->context, &event) != 0) {
      if (errno == EAGAIN || errno == EINTR) break;
      RAIL_WARN("RailIB: %s: its events can no longer be read: %s; ports that go down are not noticed", hca->name,
                strerror(errno));
      return false;
    }
    enum events seen = handle(hca, &event);
    *worst = RAIL_MAX(*worst, seen);
    ib_verbs.ack_async_event(&event);
  }
  return true;
}

/* ---- what all comms of the HCA make of it -------------------------------------- */

static void fail_comm_over(void *arg, void *hca) {
  struct ib_comm *comm = arg;
  ib_failover_hca_fatal(comm, hca);
  if (comm->failover) return;
  for (unsigned int r = 0; r < comm->nrails; r++)
    if (comm->rails[r].port->hca == hca) atomic_fetch_or(&comm->pending_work, IB_COMM_DEVICE_FATAL);
}

static bool on_hca(void *arg) {
  struct ib_hca *hca = arg;
  atomic_store(&hca->in_events, true);
  enum events worst = EVENTS_NONE;
  bool more = read_events(hca, &worst);
  if (!more) worst = RAIL_MAX(worst, EVENTS_PORT); /* the last look at them */
  atomic_store(&hca->in_events, false);
  if (worst == EVENTS_FATAL) rail_watch_each(&ib_watch, fail_comm_over, hca);
  for (unsigned int i = 0; worst >= EVENTS_PORT && i < hca->nports; i++)
    rail_watch_each(&ib_watch, ib_failover_port, &hca->ports[i]);
  return more;
}

static bool add_hcas(struct rail_watch *watch) {
  static struct rail_watch_fd sources[IB_MAX_PORTS];
  for (unsigned int i = 0; i < ib_hca_count() && i < RAIL_COUNT_OF(sources); i++) {
    struct ib_hca *hca = ib_hca_at(i);
    int fd = hca->context->async_fd, flags = fcntl(fd, F_GETFL);
    sources[i] = (struct rail_watch_fd){.fd = fd, .readable = on_hca, .arg = hca};
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || !rail_watch_add_fd(watch, &sources[i]))
      return false;
  }
  return true;
}

/* ---- comms --------------------------------------------------------------------- */

/* Its QPs stop, its memory stays. */
static void abandon(void *arg) {
  struct ib_comm *comm = arg;
  ib_comm_stop(comm);
  rail_watch_remove(&ib_watch, &comm->watched, true);
  ib_return_join(comm);
  rail_sock_close(&comm->oob_fd);
}

/* Its verbs objects stay the parent's. */
static void forked(void *arg) {
  struct ib_comm *comm = arg;
  (void)ib_comm_set_stopped(comm);
  comm->forked = true;
  rail_sock_close(&comm->oob_fd);
}

static const struct rail_watch_ops watch_ops = {
  .plugin = "RailIB",
  .thread_name = "rail-ib-watch",
  .oob = &oob_ops,
  .load_limits = load_limits,
  .add_fds = add_hcas,
  .abandon = abandon,
  .forked = forked,
};

struct rail_watch ib_watch = {.ops = &watch_ops};

rail_result_t ib_watch_add(struct ib_comm *comm) {
  return rail_watch_add(&ib_watch, &(struct rail_watch_args){
    .comm = comm, .fd = comm->oob_fd, .sender = comm->sender, .peer = comm->peer_text, .device = comm->device->name,
    .peer_process = comm->peer_process, .handle = &comm->watched});
}
