/* SPDX-License-Identifier: Apache-2.0
 *
 * Closing without waiting and without losing what the peer still reads.
 *
 * close(2) on a socket with unread bytes, or bytes that come in afterwards,
 * makes the kernel reset the connection and forget what it has not yet
 * delivered. So a closed comm's sockets say "no more from here" (shutdown) and
 * stay in a list, where late bytes are read and dropped, until the peer has
 * said the same, or all that we sent has arrived and a grace time is over.
 * The list is worked on in passing: by later closes, listens and accepts, by
 * the watch thread, and by the last finalize, which waits for it, within a bound:
 * RAIL_SOCKET_CLOSE_TIMEOUT where a sender was told that all is sent. A peer that
 * reads late also posts buffers late, and what it then says of them meets a socket
 * that is gone: a reset, and what lay in our kernel is lost.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_close.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_rail.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"
#include "plugin/socket/sk_watch.h"
#include "plugin/socket/sk_zerocopy.h"

#define GRACE_MS 2000    /* for the peer's own end, after our bytes have arrived */
#define FINAL_MS 1000    /* at the last finalize, for what nobody was told is sent */
#define REAP_AT_ONCE 16
#define DRAIN_READS 4
#define MAX_LINGER 1024

struct sk_linger {
  struct sk_linger *next;
  uint64_t born;
  bool owed; /* the caller was told that everything is sent, and no error came */
  union rail_addr peer;
  uint32_t nfds;
  int fds[SK_MAX_STREAMS];
  uint32_t tail_fd; /* of control bytes that their socket did not take at once: */
  size_t tail_size, tail_done;
  uint8_t *tail;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sk_linger *oldest, **youngest = &oldest;
static _Atomic uint32_t lingering;

bool sk_close_is_lingering(void) { return lingering != 0; }

/* ---- the list --------------------------------------------------------- */

static void linger_free(struct sk_linger *l) {
  for (uint32_t i = 0; i < l->nfds; i++) rail_sock_close(&l->fds[i]);
  free(l->tail);
  free(l);
}

/* True when the peer has ended the stream (or it is dead) and nothing is left to read. */
static bool drain(int fd) {
  uint8_t scratch[16 * 1024];
  struct iovec iov = {.iov_base = scratch, .iov_len = sizeof scratch};
  for (int i = 0; i < DRAIN_READS; i++) {
    size_t n;
    rail_result_t result = rail_sock_recvv(fd, &iov, 1, &n);
    if (result == RAIL_IN_PROGRESS) return false;
    if (result != RAIL_OK) return true;
  }
  return false;
}

/* Bytes that the peer's kernel does not have. */
static size_t on_their_way(const struct sk_linger *l) {
  size_t bytes = l->tail_size - l->tail_done;
  for (uint32_t i = 0; i < l->nfds; i++) {
    int unsent = 0; /* the end of the stream counts as one */
    if (l->fds[i] >= 0 && ioctl(l->fds[i], SIOCOUTQ, &unsent) == 0 && unsent > 1) bytes += (size_t)unsent - 1;
  }
  return bytes;
}

static void give_up(struct sk_linger *l) {
  char peer[RAIL_ADDR_TEXT];
  size_t lost = l->owed ? on_their_way(l) : 0;
  if (lost)
    RAIL_WARN("RailSocket: closing the connection to %s: %zu bytes that were sent have not arrived after %.1f s and "
              "may be lost: the peer is stopped or reads nothing, or the network is down. RAIL_SOCKET_CLOSE_TIMEOUT is "
              "how long finalize waits for them",
              rail_addr_text(&l->peer, peer), lost, (double)(rail_now_ns() - l->born) / 1e9);
  linger_free(l);
}

/* One look at one comm's sockets; true when there is nothing more to do for it. */
static bool linger_step(struct sk_linger *l, uint64_t now) {
  bool ended = true;
  if (l->tail_done < l->tail_size) {
    rail_result_t result = rail_sock_send_some(l->fds[l->tail_fd], l->tail, l->tail_size, &l->tail_done);
    if (result == RAIL_OK) shutdown(l->fds[l->tail_fd], SHUT_WR);
    else if (result != RAIL_IN_PROGRESS) l->tail_done = l->tail_size;
  }
  for (uint32_t i = 0; i < l->nfds; i++) {
    if (l->fds[i] >= 0 && drain(l->fds[i])) rail_sock_close(&l->fds[i]);
    ended &= l->fds[i] < 0;
  }
  if (ended) return true;
  uint64_t age_ms = (now - l->born) / 1000000;
  uint64_t patience_ms = (uint64_t)sk_params.peer_timeout_ms; /* for a peer that reads nothing; 0: for ever */
  return (patience_ms && age_ms >= patience_ms) || (age_ms >= GRACE_MS && on_their_way(l) == 0);
}

/* Looks at the `n` oldest, which then become the youngest. */
static void reap_locked(uint32_t n) {
  uint64_t now = rail_now_ns();
  while (n-- > 0 && oldest) {
    struct sk_linger *l = oldest;
    oldest = l->next;
    if (!oldest) youngest = &oldest;
    if (linger_step(l, now)) {
      lingering--;
      give_up(l);
      continue;
    }
    l->next = NULL;
    *youngest = l;
    youngest = &l->next;
  }
}

static void forget_all(void (*end)(struct sk_linger *l)) {
  while (oldest) {
    struct sk_linger *l = oldest;
    oldest = l->next;
    end(l);
  }
  youngest = &oldest;
  lingering = 0;
}

void sk_close_before_fork(void) { pthread_mutex_lock(&lock); }

void sk_close_after_fork(bool child) {
  if (child) forget_all(linger_free); /* they stay the parent's: no shutdown, only this process lets go of them */
  pthread_mutex_unlock(&lock);
}

void sk_close_reap(void) {
  if (pthread_mutex_trylock(&lock) != 0) return; /* somebody is at it */
  reap_locked(RAIL_MIN(lingering, REAP_AT_ONCE));
  pthread_mutex_unlock(&lock);
}

/* ---- from comm to list ------------------------------------------------ */

/* User memory is off limits here: the caller may have freed it. What does not
 * lie in it (grants, an error) still goes out, if no frame was cut in half. */
static void drop_user_frames(struct sk_comm *comm, struct sk_stream *s) {
  uint32_t kept = 0, at = 0, kept_at = 0;
  bool cut = false;
  for (uint32_t i = 0; i < s->out_count; i++) {
    struct sk_out out = s->out[(s->out_first + i) % SK_OUT_FRAMES];
    bool ours = comm->side == SK_RECEIVER || !out.pending;
    if (i == 0 && s->out_done && !ours) cut = true;
    if (ours && !cut) {
      memmove(s->stage + s->stage_head + kept_at, s->stage + s->stage_head + at, out.staged);
      kept_at += out.staged;
      s->out[(s->out_first + kept++) % SK_OUT_FRAMES] = out;
    }
    at += out.staged;
  }
  if (cut) s->out_done = 0;
  s->out_count = cut ? 0 : kept;
}

/* What is still queued, as bytes. */
static void collect_tail(const struct sk_stream *s, struct sk_linger *l) {
  size_t size = 0, at = 0;
  uint32_t staged = s->stage_head;
  for (uint32_t i = 0; i < s->out_count; i++) {
    const struct sk_out *out = &s->out[(s->out_first + i) % SK_OUT_FRAMES];
    size += (size_t)out->staged + out->len;
  }
  if (!size || s->out_errno) return;
  l->tail = malloc(size);
  if (!l->tail) return;
  for (uint32_t i = 0; i < s->out_count; i++) {
    const struct sk_out *out = &s->out[(s->out_first + i) % SK_OUT_FRAMES];
    memcpy(l->tail + at, s->stage + staged, out->staged);
    staged += out->staged;
    at += out->staged;
    if (out->len) memcpy(l->tail + at, out->data, out->len);
    at += out->len;
  }
  l->tail_size = size;
  l->tail_done = s->out_done;
}

static void to_list(struct sk_comm *comm) {
  struct sk_linger *l = calloc(1, sizeof *l);
  if (!l) return; /* then the sockets just close */
  l->born = rail_now_ns();
  l->peer = comm->peer;
  l->owed = comm->side == SK_SENDER && sk_comm_error(comm) == RAIL_OK &&
            atomic_load_explicit(&comm->in_use, memory_order_relaxed) == 0;
  const struct sk_stream *main_stream = sk_main_stream(comm);
  collect_tail(main_stream, l);
  l->tail_fd = main_stream->index;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    l->fds[l->nfds++] = comm->streams[i].fd;
    comm->streams[i].fd = -1;
    if (i != l->tail_fd || !l->tail) shutdown(l->fds[i], SHUT_WR);
  }
  if (linger_step(l, l->born)) {
    linger_free(l);
    return;
  }
  *youngest = l;
  youngest = &l->next;
  if (++lingering > MAX_LINGER) {
    struct sk_linger *first = oldest;
    oldest = first->next;
    lingering--;
    give_up(first);
  }
}

/* Takes the sockets from a comm. Waits for nobody but an owner, who does not block. */
static void gut(struct sk_comm *comm) {
  if (comm->gutted) return;
  comm->gutted = true;
  bool was_stopped = sk_comm_is_stopped(comm);
  sk_comm_stop(comm);
  sk_zerocopy_end(comm);
  if (was_stopped) return; /* the sockets were shut down by dereg_mr */
  for (uint32_t i = 0; i < comm->nstreams; i++) drop_user_frames(comm, &comm->streams[i]);
  if (comm->side == SK_RECEIVER && sk_comm_error(comm) == RAIL_OK)
    sk_recv_report_all(rail_container_of(comm, struct sk_recv_comm, base));
  sk_flush_all(comm);
  pthread_mutex_lock(&lock);
  to_list(comm);
  pthread_mutex_unlock(&lock);
}

static void take_down(struct sk_comm *comm) {
  gut(comm);
  sk_close_reap();
  sk_watch_remove(comm);
  sk_comm_destroy(comm);
}

rail_result_t sk_close_send(void *send_comm) {
  if (!send_comm) return RAIL_OK;
  struct sk_comm *comm = sk_comm_of(send_comm, SK_SEND_MAGIC, "closeSend");
  if (!comm) return RAIL_OK; /* said so; an error would end the caller's clean-up */
  take_down(comm);
  struct sk_send_comm *sc = rail_container_of(comm, struct sk_send_comm, base);
  sk_send_release(sc);
  free(sc);
  return RAIL_OK;
}

rail_result_t sk_close_recv(void *recv_comm) {
  if (!recv_comm) return RAIL_OK;
  struct sk_comm *comm = sk_comm_of(recv_comm, SK_RECV_MAGIC, "closeRecv");
  if (!comm) return RAIL_OK;
  take_down(comm);
  struct sk_recv_comm *rc = rail_container_of(comm, struct sk_recv_comm, base);
  sk_recv_release(rc);
  free(rc);
  return RAIL_OK;
}

/* Does a finalize that began at `since` still wait? */
static bool anybody_to_wait_for(uint64_t since) {
  uint64_t now = rail_now_ns(), owed_ms = (uint64_t)sk_params.close_ms;
  for (const struct sk_linger *l = oldest; l; l = l->next)
    if (now - since < (l->owed ? owed_ms : RAIL_MIN(owed_ms, FINAL_MS)) * 1000000 && on_their_way(l)) return true;
  return false;
}

/* Comms that the caller never closed lose their sockets here and keep their
 * memory: a late close finds it. */
void sk_close_all(void) {
  uint64_t since = rail_now_ns();
  struct sk_comm *comm;
  while ((comm = sk_watch_take())) {
    RAIL_INFO(RAIL_SUB_NET, "RailSocket: finalize: connection %p over %s was never closed", (void *)comm,
              comm->device_name);
    gut(comm);
    sk_count_close(comm);
    for (uint32_t i = 0; i < comm->nstreams; i++) sk_stream_destroy(&comm->streams[i]);
  }
  pthread_mutex_lock(&lock);
  for (reap_locked(lingering); anybody_to_wait_for(since); reap_locked(lingering)) {
    pthread_mutex_unlock(&lock);
    poll(NULL, 0, 1);
    pthread_mutex_lock(&lock);
  }
  forget_all(give_up);
  pthread_mutex_unlock(&lock);
}
