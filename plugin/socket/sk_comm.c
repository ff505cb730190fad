/* SPDX-License-Identifier: Apache-2.0
 * A comm's life: open, stop, close. */
#include "plugin/socket/sk_comm.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/conn/linger.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_failover.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

/* Sizes of a stream's receive buffer. CONTROL frames are parsed only when they are whole: a sender's buffer holds the
 * largest one more than twice. On a receiver, streams other than the first carry chunks of messages, which are
 * received in place, so a small buffer is enough for them; except with FAILOVER, where each may have to replace the
 * first. */
#define SEND_BUFFER (32 * 1024)
#define RECV_BUFFER (64 * 1024)
#define CHUNKS_BUFFER 4096

/* ---- open ------------------------------------------------------------------- */

/* All sockets are the comm's from here on, whatever fails. An error is one of memory. */
static rail_result_t init(struct sk_comm *comm, const struct sk_comm_args *args) {
  bool sends = args->side == SK_SENDER;
  uint32_t buffer = sends ? SEND_BUFFER : RECV_BUFFER;
  comm->magic = sends ? SK_SEND_MAGIC : SK_RECV_MAGIC;
  comm->side = args->side;
  comm->progress = sk_progress;
  comm->device_name = args->device->name;
  comm->peer = args->peers[0];
  comm->features = args->features;
  comm->reconnect = args->reconnect;
  comm->accepted = args->accepted;
  memcpy(comm->sessions, args->sessions, sizeof comm->sessions);
  comm->not_established = sends ? args->nstreams : 0;
  pthread_mutex_init(&comm->mrs_lock, NULL);
  comm->streams = calloc(args->nstreams, sizeof *comm->streams);
  if (!comm->streams) {
    for (uint32_t i = 0; i < args->nstreams; i++) rail_sock_close(&(int){args->fds[i]});
    return RAIL_SYSTEM_ERROR;
  }
  comm->nstreams = args->nstreams;
  rail_result_t result = sk_paths_init(comm, args);
  if (sk_profile_init(comm, args) != RAIL_OK) result = RAIL_SYSTEM_ERROR;
  for (uint32_t i = 0; i < args->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    rail_result_t r = sk_stream_init(s, args->fds[i], i, i == 0 || sk_has_failover(comm) ? buffer : CHUNKS_BUFFER,
                                     &comm->traffic);
    if (r != RAIL_OK) result = r;
    bool tls = comm->features & SK_FEATURE_TLS;
    s->welcomed = !sends;
    s->established = !sends && !tls;
    sk_stream_set_options(s, args->nstreams);
    if (sends && tls) s->tls = sk_tls_new(true); /* begins after ANSWER, which comes in clear */
    if (sends && tls && !s->tls) result = RAIL_SYSTEM_ERROR;
    if (sends && !sk_has_failover(comm) && !s->tls) sk_zerocopy_init(s, args->nics[i] ? args->nics[i]->name : NULL);
  }
  sk_stats_attach(comm, args);
  return result;
}

static void destroy(struct sk_comm *comm) {
  sk_stats_detach(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++) sk_stream_destroy(&comm->streams[i]);
  while (!LIST_EMPTY(&comm->mrs)) {
    struct sk_mr *mr = LIST_FIRST(&comm->mrs);
    LIST_REMOVE(mr, next);
    free(mr);
  }
  pthread_mutex_destroy(&comm->mrs_lock);
  sk_reconnect_free(comm->reconnect);
  sk_accepted_free(comm->accepted);
  sk_paths_release(comm);
  free(comm->profile);
  free(comm->streams);
  comm->magic = 0;
  if (comm->side == SK_SENDER) {
    struct sk_send_comm *sc = rail_container_of(comm, struct sk_send_comm, base);
    sk_send_release(sc);
    free(sc);
  } else {
    struct sk_recv_comm *rc = rail_container_of(comm, struct sk_recv_comm, base);
    sk_recv_release(rc);
    free(rc);
  }
}

static uint32_t collect_fds(const struct sk_comm *comm, int fds[SK_MAX_STREAMS]) {
  for (uint32_t i = 0; i < comm->nstreams; i++) fds[i] = comm->streams[i].fd;
  return comm->nstreams;
}

/* From here on other threads may move it. */
static void *start(struct sk_comm *comm, const struct sk_device *device, void *side) {
  int fds[SK_MAX_STREAMS];
  sk_engine_attach(&comm->engine, sk_progress_engine, comm, fds, collect_fds(comm, fds));
  if (comm->engine) sk_engine_set_affinity(&device->cpus, device->name);
  sk_watch_add(comm);
  return side;
}

static void drop_args(const struct sk_comm_args *args) {
  for (unsigned int i = 0; i < args->nstreams; i++) rail_sock_close(&(int){args->fds[i]});
  sk_reconnect_free(args->reconnect);
  sk_accepted_free(args->accepted);
}

static rail_result_t out_of_memory(const char *call) {
  RAIL_WARN("RailSocket: %s: out of memory for a connection", call);
  return RAIL_SYSTEM_ERROR;
}

/* Receiver: the answers were sent, so what comes next is TLS. An error has had its line. */
static rail_result_t open_tls(struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams && comm->features & SK_FEATURE_TLS; i++) {
    struct sk_stream *s = &comm->streams[i];
    RAIL_TRY(sk_tls_open(&comm->sessions[i], s->fd, &s->tls));
  }
  return RAIL_OK;
}

rail_result_t sk_send_create(const struct sk_comm_args *args, void **send_comm) {
  struct sk_send_comm *sc = calloc(1, sizeof *sc);
  if (!sc) {
    drop_args(args);
    return out_of_memory("connect");
  }
  rail_result_t result = init(&sc->base, args);
  if (sk_send_init(sc, args) != RAIL_OK) result = RAIL_SYSTEM_ERROR;
  if (result != RAIL_OK) {
    destroy(&sc->base);
    return out_of_memory("connect");
  }
  *send_comm = start(&sc->base, args->device, sc);
  return RAIL_OK;
}

rail_result_t sk_recv_create(const struct sk_comm_args *args, void **recv_comm) {
  struct sk_recv_comm *rc = calloc(1, sizeof *rc);
  if (!rc) {
    drop_args(args);
    return out_of_memory("accept");
  }
  rail_result_t result = init(&rc->base, args);
  if (result == RAIL_OK) result = sk_recv_init(rc, args);
  if (result != RAIL_OK) {
    destroy(&rc->base);
    return out_of_memory("accept");
  }
  result = open_tls(&rc->base);
  if (result != RAIL_OK) {
    destroy(&rc->base);
    return result;
  }
  *recv_comm = start(&rc->base, args->device, rc);
  return RAIL_OK;
}

/* ---- stop ------------------------------------------------------------------- */

void sk_comm_stop(struct sk_comm *comm) {
  int fds[SK_MAX_STREAMS];
  if (atomic_exchange(&comm->stop, 1)) return; /* by dereg_mr already */
  for (int spins = 0; !sk_comm_try_own(comm); spins++) {
    if (spins < 1000) rail_cpu_relax();
    else sched_yield(); /* the other thread may need this core to finish */
  }
  if (comm->engine) sk_engine_detach(comm->engine, fds, collect_fds(comm, fds));
  if (comm->side == SK_RECEIVER && sk_has_failover(comm) && sk_comm_error(comm) == RAIL_OK)
    sk_grant_report_at_stop(rail_container_of(comm, struct sk_recv_comm, base));
}

/* ---- close ------------------------------------------------------------------- */

/* The caller may have freed its memory: frames with payload are dropped. What does not lie in it (grants, an error)
 * still goes out, if no frame was cut in half and none must wait for streams to be established. False: one was cut. */
static bool drop_user_frames(const struct sk_comm *comm, struct sk_stream *s) {
  if (comm->not_established) return sk_stream_drop_queue(s);
  return comm->side == SK_RECEIVER || sk_stream_drop_awaited(s);
}

/* What was encrypted and has not left is a copy, and leaves with the tail. */
static void count_encrypted(struct sk_stream *s) {
  if (s->tls && s->out_count) sk_stream_wrote(s, sk_tls_take_held(s->tls));
}

/* All that a stream's socket still has to send. `whole`: the stream ends between two frames, so it ends properly. */
static void collect_tail(struct sk_stream *s, bool whole, struct rail_linger_tail *tail) {
  if (s->out_errno) return;
  count_encrypted(s);
  whole &= sk_stream_copy_queue(s, &tail->bytes, &tail->size);
  tail->done = tail->bytes ? s->out_done : 0;
  if (!s->tls) return;
  struct rail_linger_tail queued = *tail;
  const uint8_t *rest = queued.bytes ? queued.bytes + queued.done : NULL;
  *tail = (struct rail_linger_tail){.bytes = NULL};
  sk_tls_close(s->tls, rest, queued.size - queued.done, whole, &tail->bytes, &tail->size);
  free(queued.bytes);
}

/* Takes the sockets from a comm and leaves them to common/conn/linger. Waits for an owner, who does not block, and for
 * a kernel that still reads the caller's memory, a second at most (sk_zerocopy_end). */
static void detach_sockets(struct sk_comm *comm) {
  if (comm->detached) return;
  comm->detached = true;
  bool was_stopped = sk_comm_is_stopped(comm);
  sk_comm_stop(comm);
  sk_zerocopy_end(comm->streams, comm->nstreams, comm->device_name);
  if (was_stopped) return; /* the sockets were shut down by dereg_mr */
  bool whole[SK_MAX_STREAMS] = {false};
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    count_encrypted(&comm->streams[i]);
    whole[i] = drop_user_frames(comm, &comm->streams[i]);
  }
  if (comm->side == SK_RECEIVER && sk_comm_error(comm) == RAIL_OK)
    sk_grant_report_at_close(rail_container_of(comm, struct sk_recv_comm, base));
  sk_streams_flush(comm->streams, comm->nstreams);

  struct rail_linger *l = calloc(1, sizeof *l);
  if (!l) return; /* then the sockets just close */
  l->plugin = "RailSocket";
  l->close_param = "RAIL_SOCKET_CLOSE_TIMEOUT";
  l->peer_ms = sk_params.peer_timeout_ms;
  l->peer = comm->peer;
  l->reported_sent = comm->side == SK_SENDER && sk_comm_error(comm) == RAIL_OK && sk_comm_in_use(comm) == 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (s->fd >= 0) collect_tail(s, whole[i], &l->tails[i]);
    sk_stream_set_closed(s);
    l->fds[l->nfds++] = s->fd;
    s->fd = -1;
    if (!l->tails[i].bytes) shutdown(l->fds[i], SHUT_WR);
  }
  rail_linger_add(l);
}

static rail_result_t close_comm(void *arg, uint32_t magic, const char *call) {
  if (!arg) return RAIL_OK;
  struct sk_comm *comm = sk_comm_of(arg, magic, call);
  if (!comm) return RAIL_OK; /* it was logged; an error would end the caller's clean-up */
  detach_sockets(comm);
  rail_linger_reap();
  sk_watch_remove(comm);
  destroy(comm);
  return RAIL_OK;
}

rail_result_t sk_close_send(void *send_comm) { return close_comm(send_comm, SK_SEND_MAGIC, "closeSend"); }
rail_result_t sk_close_recv(void *recv_comm) { return close_comm(recv_comm, SK_RECV_MAGIC, "closeRecv"); }

/* Comms that the caller never closed lose their sockets here and keep their memory: a late close finds it. */
void sk_close_all(void) {
  uint64_t since = rail_now_ns();
  struct sk_comm *comm;
  while ((comm = sk_watch_take())) {
    RAIL_INFO(RAIL_SUB_NET, "RailSocket: finalize: connection %p over %s was never closed", (void *)comm,
              comm->device_name);
    detach_sockets(comm);
    sk_stats_detach(comm);
    for (uint32_t i = 0; i < comm->nstreams; i++) sk_stream_destroy(&comm->streams[i]);
    sk_reconnect_free(comm->reconnect);
    sk_accepted_free(comm->accepted);
    comm->reconnect = NULL;
    comm->accepted = NULL;
  }
  rail_linger_wait(since, sk_params.close_ms);
}
