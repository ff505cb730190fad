/* SPDX-License-Identifier: Apache-2.0
 * Frames that are on their way, and frames that have arrived. */
#include "plugin/socket/sk_failover.h"

#include <stdlib.h>

#include "plugin/socket/sk_send.h"

rail_result_t sk_paths_init(struct sk_comm *comm, const struct sk_comm_args *args) {
  if (!(args->features & SK_FEATURE_FAILOVER)) return RAIL_OK;
  comm->paths = calloc(args->nstreams, sizeof *comm->paths);
  if (!comm->paths) return RAIL_SYSTEM_ERROR;
  for (uint32_t i = 0; i < args->nstreams; i++) {
    comm->paths[i].nic = args->nics[i];
    if (args->side == SK_RECEIVER) continue;
    comm->paths[i].sent = calloc(SK_PATH_FRAMES, sizeof *comm->paths[i].sent);
    if (!comm->paths[i].sent) return RAIL_SYSTEM_ERROR;
  }
  return RAIL_OK;
}

void sk_paths_release(struct sk_comm *comm) {
  for (uint32_t i = 0; comm->paths && i < comm->nstreams; i++) free(comm->paths[i].sent);
  free(comm->paths);
  comm->paths = NULL;
}

/* ---- sender: announcements ------------------------------------------------- */

void sk_path_remember(struct sk_comm *comm, const struct sk_stream *s, struct sk_send *send, uint64_t offset,
                      uint32_t len) {
  struct sk_path *path = &comm->paths[s->index];
  path->sent[(path->first + path->count++) % SK_PATH_FRAMES] =
    (struct sk_sent_frame){.send = send, .offset = offset, .len = len};
  sk_completion_add(&path->queued); /* the stream drops it */
}

static void announce_on(struct sk_send_comm *sc, struct sk_stream *s, struct sk_send *send) {
  uint8_t *head = sk_stream_queue(s, SK_HEAD, NULL, 0, &sc->base.paths[s->index].queued);
  sk_frame_encode(head, SK_FRAME_MSG, send->granted ? SK_FRAME_GRANTED : 0, send->seq, send->size, 0, send->node.tag);
  sk_path_remember(&sc->base, s, NULL, 0, 0);
}

void sk_path_announce(struct sk_send_comm *sc, const struct sk_stream *except, struct sk_send *send) {
  for (uint32_t i = 0; i < sc->base.nstreams; i++) {
    struct sk_stream *s = &sc->base.streams[i];
    if (s != except && sc->base.paths[i].state == SK_PATH_UP) announce_on(sc, s, send);
  }
  TAILQ_INSERT_TAIL(&sc->undelivered, send, undelivered);
  sc->undelivered_count++;
  /* A message without bytes is only announced: it has arrived when one of its announcements has, whichever. To wait for
   * the others would be to wait for streams that may be dead, and for a peer that has all it wants and closes. */
  if (!send->size) STAILQ_INSERT_TAIL(&sc->zero_length, send, next);
}

void sk_path_announce_all(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_send *send;
  TAILQ_FOREACH(send, &sc->undelivered, undelivered) announce_on(sc, s, send);
}

/* ---- sender: what has arrived ------------------------------------------------ */

static void frame_arrived(struct sk_send_comm *sc, struct sk_send *send) {
  if (atomic_load_explicit(&send->base.completion, memory_order_relaxed) == 1) {
    TAILQ_REMOVE(&sc->undelivered, send, undelivered);
    sc->undelivered_count--;
  }
  sk_completion_drop(&send->base.completion);
}

void sk_path_on_seen(struct sk_send_comm *sc) {
  struct sk_send *send;
  while ((send = STAILQ_FIRST(&sc->zero_length)) && (int32_t)(send->seq - sc->seen) < 0) {
    STAILQ_REMOVE_HEAD(&sc->zero_length, next);
    frame_arrived(sc, send);
  }
}

rail_result_t sk_path_arrived(struct sk_send_comm *sc, struct sk_path *path, uint32_t frames) {
  uint32_t arrived = frames - path->frames;
  if ((int32_t)arrived < 0) return RAIL_OK; /* a later report has overtaken this one */
  uint32_t written = path->count - atomic_load_explicit(&path->queued, memory_order_relaxed);
  if (arrived > written)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: the peer counts %u frames that were not sent",
                        arrived - written);
  path->frames = frames;
  for (; arrived > 0; arrived--) {
    struct sk_send *send = path->sent[path->first].send;
    path->first = (path->first + 1) % SK_PATH_FRAMES;
    path->count--;
    if (send) frame_arrived(sc, send);
  }
  return RAIL_OK;
}

rail_result_t sk_path_on_frames(struct sk_send_comm *sc, uint32_t key, uint64_t frames) {
  uint32_t stream = key & 0xff;
  if (!sk_has_failover(&sc->base) || stream >= sc->base.nstreams)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: a count of frames of stream %u", stream);
  struct sk_path *path = &sc->base.paths[stream];
  if (path->state == SK_PATH_DOWN || key >> 8 != (path->generation & 0xffffff)) return RAIL_OK; /* out of date */
  return sk_path_arrived(sc, path, (uint32_t)frames);
}

bool sk_path_next_resend(struct sk_send_comm *sc, struct sk_sent_frame *frame) {
  for (uint32_t i = 0; i < sc->base.nstreams; i++) {
    struct sk_path *path = &sc->base.paths[i];
    while (path->state == SK_PATH_DOWN && path->count) {
      *frame = path->sent[path->first];
      path->first = (path->first + 1) % SK_PATH_FRAMES;
      path->count--;
      if (frame->send) return true;
    }
  }
  return false;
}

/* ---- receiver: counts ------------------------------------------------------ */

uint32_t sk_path_unreported(const struct sk_comm *comm) {
  uint32_t n = 0;
  if (!sk_has_failover(comm)) return 0;
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->paths[i].state == SK_PATH_UP) n += comm->paths[i].frames - comm->paths[i].reported;
  return n;
}

void sk_path_report_again(struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++) comm->paths[i].reported = comm->paths[i].frames - 1;
}

uint32_t sk_path_entries(struct sk_comm *comm, struct sk_entry *entries) {
  uint32_t n = 0;
  if (!sk_has_failover(comm)) return 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_path *path = &comm->paths[i];
    if (path->state != SK_PATH_UP || path->frames == path->reported) continue;
    entries[n++] = (struct sk_entry){.value = htole64(path->frames),
                                     .key = htole32(i | (uint32_t)(path->generation & 0xffffff) << 8),
                                     .kind = htole32(SK_ENTRY_FRAMES)};
    path->reported = path->frames;
  }
  return n;
}
