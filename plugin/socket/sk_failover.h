/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections over several devices that outlive the loss of one (the feature FAILOVER).
 *
 * What TCP has taken from a sender but not delivered is gone with its stream. So the sender keeps a list of the frames
 * of each stream until the receiver has counted them; a send is done when all of its frames are counted. Frames that a
 * lost stream had not delivered are sent again over the others. Nothing is sent twice that arrived, and nothing is left
 * out. Every message is announced on all streams, so that no stream ever has to wait for another one, which may be
 * dead.
 *
 * Whichever side finds a stream dead sends LOST on another one. The receiver's LOST is final: it carries how
 * many frames of that stream had arrived whole. The sender then dials again (sk_dial.c); the stream that comes back has
 * a new generation, and its first frame, JOIN, says which. A report about an earlier generation is out of date.
 *
 * The main stream (sk_main_stream) is stream 0 until it is lost, then the first one that is up, until that is lost. A
 * stream that comes back does not take over: its control frames could overtake those that are on their way, and the
 * sender would pair grants with the wrong sends. A receiver that has lost its main stream begins on the next one with
 * LOST, if that has room, and a CONTROL with SK_FRAME_RESET, which voids its earlier grants.
 *
 * All calls are the owner's. Without FAILOVER comm->paths is NULL; of sk_path.c then only sk_paths_init,
 * sk_paths_release, sk_path_has_room, sk_path_on_frames, sk_path_entries and sk_path_unreported may be called.
 * sk_failover.c's may: they find out, and repair one case, in which a stream that was cut before the acceptor had
 * answered its HELLO is connected again.
 */
#ifndef SK_FAILOVER_H
#define SK_FAILOVER_H

#include "plugin/socket/sk_comm.h"

/* ---- the frames of each stream: sk_path.c ----------------------------------- */

#define SK_PATH_FRAMES 1024 /* frames of one stream that are not counted yet, at most */

struct sk_send;
struct sk_send_comm;
struct sk_recv_comm;

/* A frame of a sender that the receiver has not counted yet: it may have to be sent again. */
struct sk_sent_frame {
  struct sk_send *send; /* NULL: only an announcement, of which others exist */
  uint64_t offset;
  uint32_t len;
};

enum sk_path_state {
  SK_PATH_UP,
  SK_PATH_AWAITING_COUNT, /* sender: given up; how many of its frames had arrived is not known yet */
  SK_PATH_DOWN,           /* that is known, so the rest can be sent again; it may come back */
};

/* The state of one stream. */
struct sk_path {
  enum sk_path_state state;
  const struct sk_device *nic;
  bool joining;        /* receiver: the first frame must be JOIN */
  uint64_t generation; /* times it has come back */
  uint32_t frames;     /* of this generation that have arrived whole; the sender's: as far as was reported */
  uint32_t reported;   /* receiver: what the sender knows of it */
  struct sk_sent_frame *sent; /* sender: a ring of frames that are not counted */
  uint32_t first, count;      /* of that ring */
  sk_completion queued;       /* those of them that are not in the kernel: they cannot have arrived */
};

rail_result_t sk_paths_init(struct sk_comm *comm, const struct sk_comm_args *args);
void sk_paths_release(struct sk_comm *comm);

/* Sender. */

static inline bool sk_path_has_room(const struct sk_comm *comm, const struct sk_stream *s) {
  return !sk_has_failover(comm) || comm->paths[s->index].count < SK_PATH_FRAMES;
}
void sk_path_remember(struct sk_comm *comm, const struct sk_stream *s, struct sk_send *send, uint64_t offset,
                      uint32_t len);
/* A message was announced with its first chunk on stream `except`, or on none (NULL): also on all others. */
void sk_path_announce(struct sk_send_comm *sc, const struct sk_stream *except, struct sk_send *send);
/* A stream that came back: every message that the receiver may not have seen. */
void sk_path_announce_all(struct sk_send_comm *sc, struct sk_stream *s);
/* The receiver has seen the announcements before sc->seen: all there is of messages without bytes. */
void sk_path_on_seen(struct sk_send_comm *sc);
/* Entry FRAMES of a CONTROL frame: the receiver has so many frames of a stream. */
rail_result_t sk_path_on_frames(struct sk_send_comm *sc, uint32_t key, uint64_t frames);
/* The receiver has `frames` frames of this generation: their sends come nearer to being done. */
rail_result_t sk_path_arrived(struct sk_send_comm *sc, struct sk_path *path, uint32_t frames);
/* The oldest frame that must be sent again; false: none. */
bool sk_path_next_resend(struct sk_send_comm *sc, struct sk_sent_frame *frame);

/* Receiver. */

/* Entries for all counts that the sender does not know. */
uint32_t sk_path_entries(struct sk_comm *comm, struct sk_entry *entries);
/* All of them must be reported once more. */
void sk_path_report_again(struct sk_comm *comm);
/* How many frames the sender does not know of. */
uint32_t sk_path_unreported(const struct sk_comm *comm);

/* ---- streams that are lost and come back: sk_failover.c ----------------------- */

/* Both sides: frames may follow on this stream, or it was lost before that. Once; a stream stays established. After the
 * last one a sender's frames are written. */
void sk_failover_established(struct sk_comm *comm, struct sk_stream *s);

/* Streams that broke are lost; one that ended properly was closed by the peer, or given up, and then the peer sends
 * LOST over another. *ended: no stream is left over which the peer could send anything. */
rail_result_t sk_failover_check(struct sk_comm *comm, bool *ended);
/* The watch thread's check of every stream, some times a second: is its interface up, does its peer acknowledge, has a
 * lost one come back? `now` is its time. */
void sk_failover_tick(struct sk_comm *comm, uint64_t now);

/* Frames LOST and JOIN. */
rail_result_t sk_failover_on_lost(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
rail_result_t sk_failover_on_join(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);

/* Sender: sends HELLO again on streams that ended before the acceptor answered (others took their places, or it was
 * busy); nothing else was written. If the listener is gone so is the peer. Once it has answered on another stream it
 * has their HELLOs, and reads no more of them: then they are lost with FAILOVER, and the connection is without. */
RAIL_COLD rail_result_t sk_failover_retry_hellos(struct sk_comm *comm);

#endif
