/* SPDX-License-Identifier: Apache-2.0
 * Making, failing, stopping and unmaking of what both sides share. */
#include "plugin/socket/sk_comm.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/socket/sk_acceptor.h"
#include "plugin/socket/sk_dial.h"
#include "plugin/socket/sk_profile.h"
#include "plugin/socket/sk_rail.h"

static const char *const side_text[] = {[SK_SENDER] = "sending to", [SK_RECEIVER] = "receiving from"};

rail_result_t sk_comm_init(struct sk_comm *comm, const struct sk_comm_args *args, uint32_t buffer) {
  comm->magic = args->side == SK_SENDER ? SK_SEND_MAGIC : SK_RECV_MAGIC;
  comm->side = args->side;
  comm->device_name = args->device->name;
  comm->peer = args->peers[0];
  comm->features = args->features;
  comm->reconnect = args->reconnect;
  comm->accepted = args->accepted;
  memcpy(comm->sessions, args->sessions, sizeof comm->sessions);
  comm->nstreams = args->nstreams;
  comm->hold = args->side == SK_SENDER;
  comm->unanswered = args->side == SK_SENDER ? args->nstreams : 0;
  pthread_mutex_init(&comm->mrs_lock, NULL);
  comm->streams = calloc(args->nstreams, sizeof *comm->streams);
  if (!comm->streams) {
    for (uint32_t i = 0; i < args->nstreams; i++) rail_sock_close(&(int){args->fds[i]});
    comm->nstreams = 0;
    return RAIL_SYSTEM_ERROR;
  }
  rail_result_t result = sk_rails_init(comm, args);
  if (sk_profile_init(comm, args) != RAIL_OK) result = RAIL_SYSTEM_ERROR;
  /* All sockets first: they are ours from here on, whatever fails. */
  for (uint32_t i = 0; i < args->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    /* Payloads of the other streams are pieces of large messages, never copied; unless one must replace the first. */
    rail_result_t r = sk_stream_init(s, args->fds[i], i, i == 0 || comm->rails ? buffer : 4096, &comm->moved);
    if (r != RAIL_OK) result = r;
    s->welcomed = args->side == SK_RECEIVER;
    sk_host_set_options(s->fd);
  }
  sk_count_open(comm, args);
  return result;
}

void sk_comm_destroy(struct sk_comm *comm) {
  sk_count_close(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++) sk_stream_destroy(&comm->streams[i]);
  for (struct sk_mr *mr = comm->mrs, *next; mr; mr = next) {
    next = mr->next;
    free(mr);
  }
  comm->mrs = NULL;
  pthread_mutex_destroy(&comm->mrs_lock);
  sk_reconnect_free(comm->reconnect);
  sk_accepted_free(comm->accepted);
  comm->reconnect = NULL;
  comm->accepted = NULL;
  sk_rails_release(comm);
  free(comm->profile);
  comm->profile = NULL;
  free(comm->streams);
  comm->streams = NULL;
  comm->nstreams = 0;
  comm->magic = 0;
}

struct sk_comm *sk_comm_of(void *arg, uint32_t magic, const char *call) {
  struct sk_comm *comm = arg;
  if (rail_likely(comm && (magic ? comm->magic == magic
                                 : comm->magic == SK_SEND_MAGIC || comm->magic == SK_RECV_MAGIC)))
    return comm;
  RAIL_WARN("RailSocket: %s: %p is not an open %s", call, arg,
            magic == SK_SEND_MAGIC   ? "send connection"
            : magic == SK_RECV_MAGIC ? "receive connection"
                                     : "connection");
  return NULL;
}

rail_result_t sk_comm_fail(struct sk_comm *comm, rail_result_t result, const char *fmt, ...) {
  char why[320], peer[RAIL_ADDR_TEXT];
  va_list ap;
  if (sk_comm_error(comm) != RAIL_OK) return sk_comm_error(comm);
  va_start(ap, fmt);
  vsnprintf(why, sizeof why, fmt, ap);
  va_end(ap);
  atomic_store_explicit(&comm->error, (int)result, memory_order_relaxed);
  rail_stats_add(&comm->counts.comm[SK_COMM_ERRORS], sk_comm_in_use(comm));
  rail_stats_add_shared(&comm->counts.device[SK_DEVICE_ERRORS], 1);
  RAIL_WARN("RailSocket: %s %s over %s: %s (%llu messages, %llu bytes done)", side_text[comm->side],
            rail_addr_text(&comm->peer, peer), comm->device_name, why,
            (unsigned long long)sk_count_messages(&comm->counts), (unsigned long long)sk_count_bytes(&comm->counts));
  return result;
}

rail_result_t sk_comm_fail_lost(struct sk_comm *comm, const struct sk_stream *s) {
  int err = s->out_errno ? s->out_errno : s->in_errno;
  if (err == 0 && !s->welcomed)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                        "the peer closed stream %u before it answered the handshake; it has ended or given up waiting",
                        s->index);
  if (err == 0)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                        "the peer closed the connection with requests outstanding; see the first error in its log");
  return sk_comm_fail(comm, rail_result_of_errno(err),
                      "stream %u broke: %s; look for the first error in the peer's log", s->index, strerror(err));
}

rail_result_t sk_comm_fail_size(struct sk_comm *comm, uint32_t seq, uint32_t tag, uint64_t size, uint64_t capacity) {
  struct sk_stream *s = sk_main_stream(comm);
  if (sk_comm_error(comm) != RAIL_OK) return sk_comm_error(comm);
  comm->error_payload = (struct sk_error){.message_size = htole64(size), .capacity = htole64(capacity)};
  if (sk_stream_can_queue(s)) {
    uint8_t *head = sk_stream_queue(s, SK_HEAD, &comm->error_payload, sizeof comm->error_payload, NULL);
    sk_frame_encode(head, SK_FRAME_ERROR, 0, seq, RAIL_BAD_USAGE, sizeof comm->error_payload, tag);
  }
  sk_comm_fail(comm, RAIL_BAD_USAGE,
               "a message of %llu bytes with tag %u meets a receive buffer of %llu bytes; "
               "send and receive do not fit together",
               (unsigned long long)size, tag, (unsigned long long)capacity);
  sk_flush_all(comm);
  return RAIL_BAD_USAGE;
}

static uint32_t collect_fds(const struct sk_comm *comm, int fds[SK_MAX_STREAMS]) {
  for (uint32_t i = 0; i < comm->nstreams; i++) fds[i] = comm->streams[i].fd;
  return comm->nstreams;
}

void sk_comm_attach(struct sk_comm *comm) {
  int fds[SK_MAX_STREAMS];
  sk_engine_attach(&comm->poll, sk_progress_poll, comm, fds, collect_fds(comm, fds));
}

void sk_comm_add_socket(struct sk_comm *comm, struct sk_stream *s) {
  if (!comm->poll) return;
  if (!sk_engine_add(comm->poll, s->fd)) sk_stream_out_failed(s, errno);
  sk_engine_kick(comm->poll);
}

void sk_comm_remove_socket(struct sk_comm *comm, struct sk_stream *s) {
  if (comm->poll) sk_engine_remove(comm->poll, s->fd);
}

void sk_comm_stop(struct sk_comm *comm) {
  if (atomic_exchange(&comm->stop, 1)) return; /* by dereg_mr already */
  for (int spins = 0; !sk_comm_try_own(comm); spins++) {
    if (spins < 1000) rail_cpu_relax();
    else sched_yield(); /* the other thread may need this core to get out */
  }
  int fds[SK_MAX_STREAMS];
  if (comm->poll) sk_engine_detach(comm->poll, fds, collect_fds(comm, fds));
}
