/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending side. isend takes a grant with its tag, the oldest one (it reads the socket once if it has none), queues
 * the message and writes what the socket takes; tpl_send_progress writes what is left and reads the peer's grants and
 * its DONE for each message.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/template/tpl_comm.h"
#include "plugin/template/tpl_connect.h"

#define MAX_SENDS (TPL_SLOTS * TPL_MAX_RECVS)
#define FRAMES_AT_ONCE 64

enum grant_state {
  GRANT_NONE,
  GRANT_OPEN,  /* in sc->grants */
  GRANT_TAKEN, /* by `send` */
};

/* A buffer of the peer's. */
struct tpl_grant {
  TAILQ_ENTRY(tpl_grant) link;
  enum grant_state state;
  unsigned int slot, buffer;
  int tag;
  uint64_t size;
  struct tpl_send *send;
};

struct tpl_send {
  struct tpl_request base;
  STAILQ_ENTRY(tpl_send) link; /* in sc->free or sc->queue; written and not done: its grant has it */
  const uint8_t *data;
  size_t size, written; /* `written` counts the frame, too */
  struct tpl_mr *mr;
  struct tpl_grant *grant;
  uint8_t frame[TPL_FRAME_SIZE];
};

struct tpl_send_comm {
  struct tpl_comm base;
  struct tpl_attempt *attempt; /* until the welcome is here, then NULL */
  struct tpl_grant table[TPL_SLOTS][TPL_MAX_RECVS];
  TAILQ_HEAD(, tpl_grant) grants; /* open ones, in the order in which they came */
  struct tpl_send sends[MAX_SENDS];
  STAILQ_HEAD(, tpl_send) free, queue; /* queue: to be written, the first one perhaps in part */
  uint8_t in[FRAMES_AT_ONCE * TPL_FRAME_SIZE];
  size_t have;
};

/* ---- the steps of a send, in their order; each is explained at its definition ---- */

static rail_result_t start_send(struct tpl_send_comm *sc, const void *data, size_t size, int tag, struct tpl_mr *mr,
                                void **request);
static rail_result_t write_queue(struct tpl_send_comm *sc);
static rail_result_t await_welcome(struct tpl_send_comm *sc);
static rail_result_t read_frames(struct tpl_send_comm *sc);
static bool on_grant(struct tpl_send_comm *sc, const struct tpl_frame *frame);
static bool on_done(struct tpl_send_comm *sc, const struct tpl_frame *frame);

/* ---- isend ------------------------------------------------------------- */

rail_result_t tpl_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                        void **request) {
  (void)phandle; /* no events for NCCL's profiler; common/obs/profile.h would make them */
  struct tpl_comm *comm = tpl_comm_of(send_comm, TPL_SEND_MAGIC, "isend");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (size > RAIL_NET_MAX_BYTES) {
    RAIL_WARN(TPL_NAME ": isend to %s: %zu bytes; allowed: %llu", comm->peer, size, RAIL_NET_MAX_BYTES);
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&comm->lock);
  rail_result_t result = rail_first_error(&comm->error);
  if (result == RAIL_OK) result = start_send(send_comm, data, size, tag, mhandle, request);
  pthread_mutex_unlock(&comm->lock);
  return result;
}

static struct tpl_grant *oldest_grant(struct tpl_send_comm *sc, int tag) {
  struct tpl_grant *g;
  TAILQ_FOREACH(g, &sc->grants, link)
    if (g->tag == tag) return g;
  return NULL;
}

/* Takes the oldest grant of the tag and a request, and queues the message. Without either the answer is "not now": the
 * receiver has not posted yet, or all requests are in use. */
static rail_result_t start_send(struct tpl_send_comm *sc, const void *data, size_t size, int tag, struct tpl_mr *mr,
                                void **request) {
  struct tpl_send *s = STAILQ_FIRST(&sc->free);
  struct tpl_grant *g = oldest_grant(sc, tag);
  if (!g) {
    RAIL_TRY(tpl_send_progress(&sc->base));
    g = oldest_grant(sc, tag);
  }
  if (!g || !s) return rail_first_error(&sc->base.error);
  TAILQ_REMOVE(&sc->grants, g, link);
  STAILQ_REMOVE_HEAD(&sc->free, link);
  g->state = GRANT_TAKEN;
  g->send = s;
  s->data = data;
  s->size = size;
  s->written = 0;
  s->mr = mr;
  s->grant = g;
  s->base.state = TPL_ACTIVE;
  tpl_mr_hold(mr);
  const struct tpl_frame frame = {.type = TPL_DATA, .slot = g->slot, .buffer = g->buffer, .size = size};
  tpl_frame_encode(&frame, s->frame);
  STAILQ_INSERT_TAIL(&sc->queue, s, link);
  *request = s;
  return write_queue(sc);
}

/* Writes messages of the queue, as far as the socket takes them: isend does this, and test for what is left. */
static rail_result_t write_queue(struct tpl_send_comm *sc) {
  struct tpl_send *s;
  for (size_t moved = 0; moved < TPL_STEP_BYTES && (s = STAILQ_FIRST(&sc->queue));) {
    bool too_large = s->size > s->grant->size; /* the frame goes out, so that the receiver learns of it */
    size_t whole = TPL_FRAME_SIZE + (too_large ? 0 : s->size), n;
    struct iovec iov[2];
    int count = 0;
    if (s->written < TPL_FRAME_SIZE)
      iov[count++] = (struct iovec){.iov_base = s->frame + s->written, .iov_len = TPL_FRAME_SIZE - s->written};
    size_t at = s->written < TPL_FRAME_SIZE ? 0 : s->written - TPL_FRAME_SIZE;
    if (whole > TPL_FRAME_SIZE)
      iov[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)(s->data + at),
                                    .iov_len = RAIL_MIN(s->size - at, (size_t)TPL_STEP_BYTES)};
    rail_result_t result = rail_sock_sendv(sc->base.fd, iov, count, &n);
    if (result == RAIL_IN_PROGRESS) return RAIL_OK;
    if (result != RAIL_OK) return tpl_fail_errno(&sc->base, result);
    s->written += n;
    moved += n;
    if (s->written < whole) continue;
    if (too_large)
      return tpl_fail(&sc->base, RAIL_BAD_USAGE, "a send of %zu bytes with tag %d meets a receive of %llu; they must "
                      "agree, or the receive be larger", s->size, s->grant->tag, (unsigned long long)s->grant->size);
    STAILQ_REMOVE_HEAD(&sc->queue, link);
  }
  return RAIL_OK;
}

/* ---- from test --------------------------------------------------------- */

rail_result_t tpl_send_progress(struct tpl_comm *comm) {
  struct tpl_send_comm *sc = rail_container_of(comm, struct tpl_send_comm, base);
  RAIL_TRY(rail_first_error(&comm->error));
  if (sc->attempt) {
    rail_result_t result = await_welcome(sc);
    if (result != RAIL_OK) return result == RAIL_IN_PROGRESS ? RAIL_OK : result;
  }
  RAIL_TRY(write_queue(sc));
  return read_frames(sc);
}

static void free_attempt(struct tpl_send_comm *sc) {
  if (!sc->attempt) return;
  tpl_attempt_close(sc->attempt);
  free(sc->attempt);
  sc->attempt = NULL;
}

/* RAIL_OK: the connection is there. RAIL_IN_PROGRESS: the peer has not accepted it yet. */
static rail_result_t await_welcome(struct tpl_send_comm *sc) {
  struct tpl_attempt *a = sc->attempt;
  struct rail_message message;
  enum rail_reason reason;
  rail_handshake_note_time(&a->handshake);
  rail_result_t result = rail_connector_dial(&a->connector); /* again, if a flooded listener has dropped it */
  if (result == RAIL_OK) result = rail_connector_answer(&a->connector, &message, &reason);
  if (result == RAIL_IN_PROGRESS) return result;
  if (result != RAIL_OK) return tpl_fail(&sc->base, result, "%s", a->connector.why);
  if (message.type != RAIL_MESSAGE_ANSWER)
    return tpl_fail(&sc->base, RAIL_REMOTE_ERROR, "its first message is no answer; is it another program?");
  if (message.reason != RAIL_REASON_NONE)
    return tpl_fail(&sc->base, RAIL_REMOTE_ERROR, "it refused the connection: %s; see its log",
                    rail_reason_text(a->connector.protocol, message.reason));
  sc->base.fd = a->handshake.fd;
  a->handshake.fd = -1;
  free_attempt(sc);
  return RAIL_OK;
}

/* Reads all frames that are there, up to a bound: a peer has no more of them to send than the table has places. */
static rail_result_t read_frames(struct tpl_send_comm *sc) {
  for (int i = 0; i < 2 * MAX_SENDS / FRAMES_AT_ONCE; i++) {
    struct iovec iov = {.iov_base = sc->in + sc->have, .iov_len = sizeof sc->in - sc->have};
    struct tpl_frame frame;
    size_t n, at = 0, room = iov.iov_len;
    rail_result_t result = rail_sock_recvv(sc->base.fd, &iov, 1, &n);
    if (result == RAIL_IN_PROGRESS) return RAIL_OK;
    if (result != RAIL_OK) return tpl_fail_errno(&sc->base, result);
    sc->have += n;
    for (; sc->have - at >= TPL_FRAME_SIZE; at += TPL_FRAME_SIZE) {
      bool good = tpl_frame_decode(sc->in + at, &frame);
      if (good) good = frame.type == TPL_GRANT ? on_grant(sc, &frame) : frame.type == TPL_DONE && on_done(sc, &frame);
      if (!good)
        return tpl_fail(&sc->base, RAIL_REMOTE_ERROR, "the peer broke the protocol: a frame of type %u for buffer %u "
                        "of slot %u; is it the same version of the plugin?", frame.type, frame.buffer, frame.slot);
    }
    sc->have -= at;
    memmove(sc->in, sc->in + at, sc->have);
    /* No more is there. Reading on would find the end of a peer that closed after its last DONE, as it may. */
    if (n < room) return RAIL_OK;
  }
  return RAIL_OK;
}

/* The receiver has posted a buffer. */
static bool on_grant(struct tpl_send_comm *sc, const struct tpl_frame *frame) {
  struct tpl_grant *g = &sc->table[frame->slot][frame->buffer];
  if (g->state != GRANT_NONE) return false;
  g->state = GRANT_OPEN;
  g->tag = frame->tag;
  g->size = frame->size;
  TAILQ_INSERT_TAIL(&sc->grants, g, link);
  return true;
}

/* The receiver has the message: here what start_send began is complete. */
static bool on_done(struct tpl_send_comm *sc, const struct tpl_frame *frame) {
  struct tpl_grant *g = &sc->table[frame->slot][frame->buffer];
  struct tpl_send *s = g->send;
  if (g->state != GRANT_TAKEN || s->written < TPL_FRAME_SIZE + s->size) return false;
  g->state = GRANT_NONE;
  s->base.state = TPL_COMPLETE;
  tpl_mr_release(s->mr);
  tpl_count(&sc->base, TPL_SENT_BYTES, s->size);
  tpl_count(&sc->base, TPL_MESSAGES, 1);
  return true;
}

void tpl_send_finish(struct tpl_request *request, int *sizes) {
  struct tpl_send *s = rail_container_of(request, struct tpl_send, base);
  struct tpl_send_comm *sc = rail_container_of(request->comm, struct tpl_send_comm, base);
  if (sizes) sizes[0] = (int)RAIL_MIN(s->size, (size_t)INT_MAX);
  request->state = TPL_FREE;
  STAILQ_INSERT_TAIL(&sc->free, s, link);
}

/* ---- the sender's side of a comm: made and freed ----------------------- */

rail_result_t tpl_send_create(const struct tpl_device *device, struct tpl_attempt *attempt, void **send_comm) {
  struct tpl_send_comm *sc = calloc(1, sizeof *sc);
  if (!sc || tpl_comm_init(&sc->base, TPL_SEND_MAGIC, device, &attempt->connector.dial.peer, -1) != RAIL_OK) {
    free(sc);
    RAIL_WARN(TPL_NAME ": connect: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  sc->attempt = attempt;
  TAILQ_INIT(&sc->grants);
  STAILQ_INIT(&sc->free);
  STAILQ_INIT(&sc->queue);
  for (unsigned int slot = 0; slot < TPL_SLOTS; slot++)
    for (unsigned int i = 0; i < TPL_MAX_RECVS; i++) {
      sc->table[slot][i].slot = slot;
      sc->table[slot][i].buffer = i;
    }
  for (unsigned int i = 0; i < MAX_SENDS; i++) {
    sc->sends[i].base.comm = &sc->base;
    STAILQ_INSERT_TAIL(&sc->free, &sc->sends[i], link);
  }
  *send_comm = sc;
  return RAIL_OK;
}

rail_result_t tpl_close_send(void *send_comm) {
  if (!send_comm) return RAIL_OK;
  struct tpl_comm *comm = tpl_comm_of(send_comm, TPL_SEND_MAGIC, "closeSend");
  if (!comm) return RAIL_OK; /* an error would end the caller's clean-up */
  free_attempt(send_comm);
  tpl_comm_end(comm);
  free(send_comm);
  return RAIL_OK;
}
