/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections over several devices that outlive the loss of one (the feature
 * FAILOVER; without it comm->rails is NULL and nothing here is called).
 *
 * What TCP has taken from a sender but not delivered is gone with its stream.
 * So the sender keeps a list of the frames of each stream until the receiver
 * has counted them; a send is done when all of its frames are counted. Who
 * finds a stream dead says LOST on another one. The receiver's LOST is the last
 * word: it carries how many frames of that stream had arrived whole, and what
 * was not among them is sent again over the others. Nothing is sent twice that
 * arrived, and nothing is left out.
 *
 * Every message is announced on all streams, so that no stream ever has to
 * wait for another one, which may be dead.
 *
 * A stream that comes back has a new generation; its first frame, JOIN, says
 * which. Whatever speaks of an earlier generation is out of date.
 */
#ifndef SK_RAIL_H
#define SK_RAIL_H

#include "plugin/socket/sk_comm.h"

#define SK_RAIL_PIECES 1024 /* frames of one stream that are not counted yet */

struct sk_send;
struct sk_send_comm;
struct sk_recv_comm;

/* A frame that may have to be sent again. */
struct sk_piece {
  struct sk_send *send; /* NULL: only an announcement, of which others exist */
  uint64_t offset;
  uint32_t len;
};

enum sk_rail_state {
  SK_RAIL_UP,
  SK_RAIL_LOST, /* sender: declared dead, the receiver's count is awaited */
  SK_RAIL_GONE, /* the count is settled; it may come back */
};

struct sk_rail {
  enum sk_rail_state state;
  const struct sk_device *path;
  bool joining;        /* receiver: the first frame must be JOIN */
  uint64_t generation; /* times it has come back */
  uint32_t frames;     /* of this generation that have arrived whole; the sender's: as far as it was told */
  uint32_t told;       /* receiver: what the sender knows of it */
  struct sk_piece *pieces; /* sender: a ring */
  uint32_t first, count;
  sk_pending queued;       /* those of them that are not in the kernel: nobody can have them */
};

rail_result_t sk_rails_init(struct sk_comm *comm, const struct sk_comm_args *args);
void sk_rails_release(struct sk_comm *comm);

static inline struct sk_rail *sk_rail_of(const struct sk_comm *comm, const struct sk_stream *s) {
  return comm->rails ? &comm->rails[s->index] : NULL;
}

/* The first stream that is up: announcements with payload, and control, go there. */
struct sk_stream *sk_rail_first_up(const struct sk_comm *comm);
static inline struct sk_stream *sk_main_stream(const struct sk_comm *comm) {
  return rail_likely(!comm->rails) ? &comm->streams[0] : sk_rail_first_up(comm);
}

/* Options of each stream's socket; nothing without FAILOVER. */
void sk_rail_set_options(const struct sk_comm *comm, int fd);

/* ---- loss and return; for the owner ------------------------------------- */

/* The stream is dead here: over to the others. RAIL_OK, or the comm's failure if it was the last. */
rail_result_t sk_rail_lost(struct sk_comm *comm, struct sk_stream *s, const char *why);
/* LOST and JOIN from the peer. */
rail_result_t sk_rail_on_lost(struct sk_comm *comm, const struct sk_frame *frame);
rail_result_t sk_rail_on_join(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
/* A look at every stream: is its interface up, does its peer acknowledge? And has a lost one come back? The watch
 * thread's, some times a second; `now` is its time. */
void sk_rail_tick(struct sk_comm *comm, uint64_t now);

/* ---- sender -------------------------------------------------------------- */

static inline bool sk_rail_has_room(const struct sk_comm *comm, const struct sk_stream *s) {
  return !comm->rails || comm->rails[s->index].count < SK_RAIL_PIECES;
}
void sk_rail_remember(struct sk_comm *comm, const struct sk_stream *s, struct sk_send *send, uint64_t offset,
                      uint32_t len);
/* A message was announced with its first piece on stream `but`, or on none (NULL): also on all others. */
void sk_rail_announce(struct sk_send_comm *sc, const struct sk_stream *but, struct sk_send *send);
/* The receiver has seen the announcements before sc->seen: all there is of messages without bytes. */
void sk_rail_on_seen(struct sk_send_comm *sc);
/* Entry FRAMES: the receiver has so many frames of a stream. */
rail_result_t sk_rail_on_frames(struct sk_send_comm *sc, uint32_t key, uint64_t frames);
/* The oldest frame that must be sent again; false: none. */
bool sk_rail_next_resend(struct sk_send_comm *sc, struct sk_piece *piece);

/* ---- receiver ------------------------------------------------------------ */

/* Entries for all counts that the sender does not know. */
uint32_t sk_rail_entries(struct sk_recv_comm *rc, struct sk_entry *entries);
/* All of them must be told once more. */
void sk_rail_untell(struct sk_recv_comm *rc);
/* All counts over all streams, before the end. */
void sk_rail_farewell(struct sk_recv_comm *rc);
/* How many frames that are. */
uint32_t sk_rail_untold(const struct sk_recv_comm *rc);

#endif
