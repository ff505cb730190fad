/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving side. irecv grants its buffers to the sender; tpl_recv_progress reads what comes straight into them
 * and says DONE for each. A receive is complete when the kernel has all of its DONEs, so nothing that the sender waits
 * for depends on another call here.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/template/tpl_comm.h"

/* Never overflows: per slot at most one GRANT and one DONE per buffer are queued, and a slot is used again only after
 * both are written. */
#define OUT_BYTES (TPL_SLOTS * TPL_MAX_RECVS * 2 * TPL_FRAME_SIZE)

enum buffer_state {
  BUFFER_NONE,
  BUFFER_GRANTED,
  BUFFER_ARRIVING,
  BUFFER_ARRIVED,
};

struct buffer {
  enum buffer_state state;
  uint8_t *data;
  size_t capacity, size, have; /* size: of the message; have: bytes that are here */
  struct tpl_mr *mr;
};

struct tpl_recv {
  struct tpl_request base;
  STAILQ_ENTRY(tpl_recv) link; /* in rc->arrived */
  unsigned int n, missing;     /* buffers; those whose message is not here */
  struct buffer buffers[TPL_MAX_RECVS];
};

struct tpl_recv_comm {
  struct tpl_comm base;
  struct tpl_recv recvs[TPL_SLOTS];
  STAILQ_HEAD(, tpl_recv) arrived; /* all is here, and a DONE perhaps not written yet */
  uint8_t header[TPL_FRAME_SIZE];
  size_t have;               /* bytes of the header */
  struct tpl_frame arriving; /* of the message that `buffer` takes; buffer NULL: the next header comes */
  struct buffer *buffer;
  uint8_t out[OUT_BYTES];
  size_t out_have, out_done;
};

/* ---- the steps of a receive, in their order; each is explained at its definition ---- */

static rail_result_t start_recv(struct tpl_recv_comm *rc, unsigned int n, void **data, const size_t *sizes,
                                const int *tags, void **mhandles, void **request);
static void queue_frame(struct tpl_recv_comm *rc, const struct tpl_frame *frame);
static rail_result_t write_frames(struct tpl_recv_comm *rc);
static rail_result_t read_messages(struct tpl_recv_comm *rc);
static rail_result_t begin_message(struct tpl_recv_comm *rc);
static void end_message(struct tpl_recv_comm *rc);
static void complete_arrived(struct tpl_recv_comm *rc);

/* ---- irecv ------------------------------------------------------------- */

rail_result_t tpl_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                        void **phandles, void **request) {
  (void)phandles;
  *request = NULL; /* RAIL_NET_OPTIONAL_RECV is a hint that changes nothing here */
  struct tpl_comm *comm = tpl_comm_of(recv_comm, TPL_RECV_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  bool fit = n >= 1 && n <= TPL_MAX_RECVS;
  for (int i = 0; fit && i < n; i++) fit = sizes[i] <= RAIL_NET_MAX_BYTES;
  if (!fit) {
    RAIL_WARN(TPL_NAME ": irecv from %s: %d buffers; allowed: 1 to %d, of %llu bytes each", comm->peer, n,
              TPL_MAX_RECVS, RAIL_NET_MAX_BYTES);
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&comm->lock);
  rail_result_t result = rail_first_error(&comm->error);
  if (result == RAIL_OK) result = start_recv(recv_comm, (unsigned int)n, data, sizes, tags, mhandles, request);
  pthread_mutex_unlock(&comm->lock);
  return result;
}

/* Takes a free slot for the request, and grants its buffers. Without one the answer is "not now". */
static rail_result_t start_recv(struct tpl_recv_comm *rc, unsigned int n, void **data, const size_t *sizes,
                                const int *tags, void **mhandles, void **request) {
  unsigned int slot = 0;
  while (slot < TPL_SLOTS && rc->recvs[slot].base.state != TPL_FREE) slot++;
  if (slot == TPL_SLOTS) return RAIL_OK;
  struct tpl_recv *r = &rc->recvs[slot];
  r->n = r->missing = n;
  r->base.state = TPL_ACTIVE;
  for (unsigned int i = 0; i < n; i++) {
    const struct tpl_frame grant = {.type = TPL_GRANT, .slot = slot, .buffer = i, .tag = tags[i], .size = sizes[i]};
    r->buffers[i] = (struct buffer){.state = BUFFER_GRANTED, .data = data[i], .capacity = sizes[i],
                                    .mr = mhandles ? mhandles[i] : NULL};
    tpl_mr_hold(r->buffers[i].mr);
    queue_frame(rc, &grant);
  }
  *request = r;
  return write_frames(rc);
}

/* ---- GRANT and DONE frames --------------------------------------------- */

/* Queues a GRANT or a DONE. */
static void queue_frame(struct tpl_recv_comm *rc, const struct tpl_frame *frame) {
  if (rc->out_done) {
    rc->out_have -= rc->out_done;
    memmove(rc->out, rc->out + rc->out_done, rc->out_have);
    rc->out_done = 0;
  }
  tpl_frame_encode(frame, rc->out + rc->out_have);
  rc->out_have += TPL_FRAME_SIZE;
}

/* Writes as many queued frames as the socket takes. None is left where out_have is 0. */
static rail_result_t write_frames(struct tpl_recv_comm *rc) {
  if (!rc->out_have) return RAIL_OK;
  rail_result_t result = rail_sock_send_some(rc->base.fd, rc->out, rc->out_have, &rc->out_done);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  if (result != RAIL_OK) return tpl_fail_errno(&rc->base, result);
  rc->out_have = rc->out_done = 0;
  return RAIL_OK;
}

/* ---- from test --------------------------------------------------------- */

rail_result_t tpl_recv_progress(struct tpl_comm *comm) {
  struct tpl_recv_comm *rc = rail_container_of(comm, struct tpl_recv_comm, base);
  RAIL_TRY(rail_first_error(&comm->error));
  RAIL_TRY(write_frames(rc)); /* what the socket had no room for */
  complete_arrived(rc);       /* before an error that comes next */
  RAIL_TRY(read_messages(rc));
  RAIL_TRY(write_frames(rc));
  complete_arrived(rc);
  return RAIL_OK;
}

/* Reads headers, and what follows each into its buffer. */
static rail_result_t read_messages(struct tpl_recv_comm *rc) {
  for (size_t moved = 0; moved < TPL_STEP_BYTES; moved += TPL_FRAME_SIZE) {
    if (!rc->buffer) {
      rail_result_t result = rail_sock_recv_some(rc->base.fd, rc->header, sizeof rc->header, &rc->have);
      if (result == RAIL_IN_PROGRESS) return RAIL_OK;
      if (result != RAIL_OK) return tpl_fail_errno(&rc->base, result);
      RAIL_TRY(begin_message(rc));
    }
    struct buffer *b = rc->buffer;
    if (b->have < b->size) {
      struct iovec iov = {.iov_base = b->data + b->have,
                          .iov_len = RAIL_MIN(b->size - b->have, (size_t)TPL_STEP_BYTES)};
      size_t n;
      rail_result_t result = rail_sock_recvv(rc->base.fd, &iov, 1, &n);
      if (result == RAIL_IN_PROGRESS) return RAIL_OK;
      if (result != RAIL_OK) return tpl_fail_errno(&rc->base, result);
      b->have += n;
      moved += n;
    }
    if (b->have == b->size) end_message(rc);
  }
  return RAIL_OK;
}

/* A header is here: the message goes into the buffer that it names. */
static rail_result_t begin_message(struct tpl_recv_comm *rc) {
  struct tpl_frame *frame = &rc->arriving;
  bool good = tpl_frame_decode(rc->header, frame) && frame->type == TPL_DATA;
  struct buffer *b = good ? &rc->recvs[frame->slot].buffers[frame->buffer] : NULL;
  if (!b || b->state != BUFFER_GRANTED)
    return tpl_fail(&rc->base, RAIL_REMOTE_ERROR, "the peer broke the protocol: a frame of type %u for buffer %u of "
                    "slot %u; is it the same version of the plugin?", frame->type, frame->buffer, frame->slot);
  if (frame->size > b->capacity)
    return tpl_fail(&rc->base, RAIL_BAD_USAGE, "a send of %llu bytes meets a receive of %zu; they must agree, or the "
                    "receive be larger", (unsigned long long)frame->size, b->capacity);
  b->state = BUFFER_ARRIVING;
  b->size = frame->size;
  b->have = 0;
  rc->buffer = b;
  return RAIL_OK;
}

/* A message is in its buffer: DONE tells the sender. */
static void end_message(struct tpl_recv_comm *rc) {
  struct tpl_recv *r = &rc->recvs[rc->arriving.slot];
  struct buffer *b = rc->buffer;
  const struct tpl_frame done = {.type = TPL_DONE, .slot = rc->arriving.slot, .buffer = rc->arriving.buffer};
  rc->buffer = NULL;
  rc->have = 0;
  b->state = BUFFER_ARRIVED;
  tpl_mr_release(b->mr);
  tpl_count(&rc->base, TPL_RECEIVED_BYTES, b->size);
  tpl_count(&rc->base, TPL_MESSAGES, 1);
  queue_frame(rc, &done);
  if (--r->missing == 0) STAILQ_INSERT_TAIL(&rc->arrived, r, link);
}

/* Receives whose bytes have arrived, and whose DONEs are with the kernel: here what start_recv began is complete. */
static void complete_arrived(struct tpl_recv_comm *rc) {
  struct tpl_recv *r;
  while (!rc->out_have && (r = STAILQ_FIRST(&rc->arrived))) {
    STAILQ_REMOVE_HEAD(&rc->arrived, link);
    r->base.state = TPL_COMPLETE;
  }
}

void tpl_recv_finish(struct tpl_request *request, int *sizes) {
  struct tpl_recv *r = rail_container_of(request, struct tpl_recv, base);
  for (unsigned int i = 0; sizes && i < r->n; i++) sizes[i] = (int)RAIL_MIN(r->buffers[i].size, (size_t)INT_MAX);
  request->state = TPL_FREE;
}

/* ---- the receiver's side of a comm: made and freed --------------------- */

rail_result_t tpl_recv_create(const struct tpl_device *device, const union rail_addr *peer, int fd, void **recv_comm) {
  struct tpl_recv_comm *rc = calloc(1, sizeof *rc);
  if (!rc || tpl_comm_init(&rc->base, TPL_RECV_MAGIC, device, peer, fd) != RAIL_OK) {
    free(rc);
    RAIL_WARN(TPL_NAME ": accept: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  STAILQ_INIT(&rc->arrived);
  for (unsigned int i = 0; i < TPL_SLOTS; i++) rc->recvs[i].base.comm = &rc->base;
  *recv_comm = rc;
  return RAIL_OK;
}

rail_result_t tpl_close_recv(void *recv_comm) {
  if (!recv_comm) return RAIL_OK;
  struct tpl_comm *comm = tpl_comm_of(recv_comm, TPL_RECV_MAGIC, "closeRecv");
  if (!comm) return RAIL_OK; /* an error would end the caller's clean-up */
  tpl_comm_end(comm);
  free(recv_comm);
  return RAIL_OK;
}
