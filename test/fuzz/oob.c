/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Frames of a peer on the oob connection of a comm in use. Input: a frame's bytes; whether this side sends, and whether
 * the plugin has frames of its own; then steps.
 *
 * Held: a frame has one form only. What this side writes is whole frames, no more PONGs than PINGs were read, and after
 * its GOODBYE nothing but DRAINED (a sender) or the plugin's frames (a receiver). A connection ends with one event, or
 * after a GOODBYE, and nothing is reported after it.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "common/conn/oob.h"
#include "test/fuzz/lib/fuzz.h"

enum step { FRAME, RAW, READ, TICK, PING, GOODBYE, OUTSTANDING, PLUGIN_FRAME, DRAIN, HANG_UP, STEPS };

#define MS 1000000ull

struct bed {
  struct rail_oob oob;
  int fd, peer;
  bool sends;
  uint64_t now, activity;
  uint32_t outstanding;
  bool frame_due;  /* of the plugin's own */
  bool is_cut;     /* raw bytes were sent: frames may begin anywhere */
  bool must_close; /* what was sent is invalid */
  /* What came out. */
  uint32_t events;
  unsigned int pings_sent, pongs_seen;
  bool goodbye_seen, drained_seen;
};

static const struct rail_protocol protocol = {.plugin = "RailToy", .tag = "RTY", .version = 3};

static struct rail_oob_work work(const void *comm) {
  const struct bed *b = comm;
  return (struct rail_oob_work){.outstanding = b->outstanding, .activity = b->activity};
}

#define ENDS (RAIL_OOB_PEER_GONE | RAIL_OOB_PEER_LOST | RAIL_OOB_PEER_SILENT | RAIL_OOB_HOST_SILENT)

static void event(void *comm, uint32_t events) {
  struct bed *b = comm;
  FUZZ_CHECK(events && !(b->events & ENDS));
  FUZZ_CHECK(!(events & RAIL_OOB_PEER_CLOSED) || !(b->events & RAIL_OOB_PEER_CLOSED));
  FUZZ_CHECK(!(events & RAIL_OOB_PEER_GONE) || b->events & RAIL_OOB_PEER_CLOSED);
  b->events |= events;
}

static void silent(void *comm, bool is) { (void)comm, (void)is; }

/* The plugin takes frames with even numbers. */
static bool plugin_frame(void *comm, const struct rail_oob_frame *frame) {
  const struct bed *b = comm;
  FUZZ_CHECK(frame->type >= RAIL_OOB_PLUGIN && frame->type <= RAIL_OOB_PLUGIN_LAST);
  FUZZ_CHECK(b->sends || !(b->events & RAIL_OOB_PEER_CLOSED));
  return frame->number % 2 == 0;
}

static enum rail_oob_next next(void *comm, struct rail_oob_frame *frame) {
  struct bed *b = comm;
  if (!b->frame_due) return RAIL_OOB_NOTHING;
  b->frame_due = false;
  *frame = (struct rail_oob_frame){RAIL_OOB_PLUGIN + 1, b->activity};
  return RAIL_OOB_FRAME;
}

static const struct rail_oob_ops plain = {.protocol = &protocol, .work = work, .event = event, .silent = silent};
static const struct rail_oob_ops with_frames = {.protocol = &protocol, .work = work, .event = event, .silent = silent,
                                                .frame = plugin_frame, .next = next};
static const struct rail_oob_limits limits = {.deadline_ms = 4000, .peer_ms = 3000, .warn_ms = 1000,
                                              .deadline_param = "TOY_DEADLINE", .peer_param = "TOY_PEER"};

static void bed_open(struct bed *b, uint8_t what) {
  int fds[2];
  memset(b, 0, sizeof *b);
  fuzz_quiet();
  fuzz_socketpair(fds);
  b->fd = fds[0];
  b->peer = fds[1];
  b->sends = what & 1;
  b->now = 1000 * MS;
  const struct rail_oob_args args = {.ops = what & 2 ? &with_frames : &plain, .limits = &limits, .comm = b,
                                     .sender = b->sends, .peer = "10.0.0.2:4711", .device = "toy0"};
  rail_oob_init(&b->oob, &args, b->fd, b->now);
}

/* What this side has written, whole frames. */
static void look(struct bed *b) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  struct rail_oob_frame frame;
  ssize_t n;
  (void)rail_oob_write(&b->oob);
  while ((n = recv(b->peer, wire, sizeof wire, MSG_DONTWAIT)) > 0) {
    FUZZ_CHECK(n == RAIL_OOB_FRAME_SIZE && rail_oob_frame_decode(&protocol, wire, &frame));
    FUZZ_CHECK(!b->drained_seen);
    bool may_follow = frame.type == RAIL_OOB_DRAINED ? b->sends : frame.type >= RAIL_OOB_PLUGIN && !b->sends;
    FUZZ_CHECK(!b->goodbye_seen || may_follow);
    b->goodbye_seen |= frame.type == RAIL_OOB_GOODBYE;
    b->drained_seen |= frame.type == RAIL_OOB_DRAINED;
    if (frame.type == RAIL_OOB_PONG) FUZZ_CHECK(++b->pongs_seen <= b->pings_sent);
  }
}

static void send_frame(struct bed *b, struct fuzz_in *in) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  unsigned int type = fuzz_u8(in) & 31;
  const struct rail_oob_frame frame = {.type = (enum rail_oob_frame_type)type, .number = fuzz_u8(in)};
  rail_oob_frame_encode(&protocol, &frame, wire);
  b->pings_sent += type == RAIL_OOB_PING;
  b->must_close |= !b->is_cut && type == RAIL_OOB_PONG && frame.number > b->oob.ping;
  fuzz_write(b->peer, wire, sizeof wire);
}

/* A PING may be among them, or be completed by them. */
static void send_raw(struct bed *b, struct fuzz_in *in) {
  size_t size = fuzz_u8(in);
  const uint8_t *bytes = fuzz_take(in, &size);
  b->pings_sent += (unsigned int)size / RAIL_OOB_FRAME_SIZE + 1;
  b->is_cut = true;
  fuzz_write(b->peer, bytes, size);
}

static void one_step(struct bed *b, struct fuzz_in *in) {
  switch ((enum step)(fuzz_u8(in) % STEPS)) {
    case FRAME: send_frame(b, in); break;
    case RAW: send_raw(b, in); break;
    case READ: break;
    case TICK:
      b->now += fuzz_u8(in) * 20 * MS;
      rail_oob_tick(&b->oob, b->now);
      if (rail_oob_is_report_due(&b->oob, b->now)) rail_oob_report(&b->oob, b->now);
      break;
    case PING: rail_oob_ping(&b->oob); break;
    case GOODBYE: rail_oob_goodbye(&b->oob); break;
    case OUTSTANDING:
      b->outstanding = fuzz_u8(in) & 3;
      b->activity++;
      break;
    case PLUGIN_FRAME: b->frame_due = true; break;
    case DRAIN: rail_oob_drain(&b->oob); break;
    case HANG_UP: shutdown(b->peer, SHUT_WR); break;
    case STEPS: break;
  }
  rail_oob_read(&b->oob, b->now);
  FUZZ_CHECK(!b->must_close || b->oob.closed);
  look(b);
}

static void decode(struct fuzz_in *in) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE], again[RAIL_OOB_FRAME_SIZE];
  struct rail_oob_frame frame;
  fuzz_fill(in, wire, sizeof wire);
  if (!rail_oob_frame_decode(&protocol, wire, &frame)) return;
  rail_oob_frame_encode(&protocol, &frame, again);
  FUZZ_CHECK(memcmp(wire, again, sizeof wire) == 0);
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct bed b;
  decode(&in);
  bed_open(&b, fuzz_u8(&in));
  while (in.left) one_step(&b, &in);
  shutdown(b.peer, SHUT_WR); /* after the last whole frame the end of the stream must end the connection */
  for (int i = 0; !b.oob.closed; i++) {
    FUZZ_CHECK(i < 100);
    rail_oob_read(&b.oob, b.now);
    look(&b);
  }
  FUZZ_CHECK(b.events & (ENDS | RAIL_OOB_PEER_CLOSED) || b.oob.goodbye);
  close(b.peer);
  close(b.fd);
}

static void put_frame(struct fuzz_out *out, unsigned int type, unsigned int number) {
  fuzz_put8(out, FRAME);
  fuzz_put8(out, type);
  fuzz_put8(out, number);
}

static void put_tick(struct fuzz_out *out, unsigned int ms) {
  fuzz_put8(out, TICK);
  fuzz_put8(out, ms / 20);
}

static void begin(struct fuzz_out *out, unsigned int what) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  rail_oob_frame_encode(&protocol, &(struct rail_oob_frame){RAIL_OOB_PING, 7}, wire);
  out->size = 0;
  fuzz_put(out, wire, sizeof wire);
  fuzz_put8(out, what);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out;
  begin(&out, 1); /* a sender, whose peer asks, and closes first */
  put_frame(&out, RAIL_OOB_PING, 1);
  fuzz_put8(&out, OUTSTANDING);
  fuzz_put8(&out, 1);
  put_frame(&out, RAIL_OOB_GOODBYE, 0);
  fuzz_put8(&out, OUTSTANDING);
  fuzz_put8(&out, 0);
  fuzz_put8(&out, DRAIN);
  fuzz_seed("drained", out.bytes, out.size);
  begin(&out, 2); /* a receiver that closes first, with the plugin's frames */
  put_frame(&out, RAIL_OOB_PLUGIN, 2);
  fuzz_put8(&out, PLUGIN_FRAME);
  fuzz_put8(&out, GOODBYE);
  fuzz_put8(&out, PLUGIN_FRAME);
  put_frame(&out, RAIL_OOB_DRAINED, 0);
  fuzz_seed("receiver-closes", out.bytes, out.size);
  begin(&out, 0); /* a peer that falls silent, answers, and falls silent */
  fuzz_put8(&out, OUTSTANDING);
  fuzz_put8(&out, 2);
  put_tick(&out, 20);
  put_tick(&out, 1000);
  put_tick(&out, 1000);
  put_frame(&out, RAIL_OOB_PONG, 1);
  for (int i = 0; i < 4; i++) put_tick(&out, 1000);
  fuzz_seed("silence", out.bytes, out.size);
  begin(&out, 3); /* a frame in two pieces, then one that makes no sense */
  fuzz_put8(&out, RAW);
  fuzz_put8(&out, 10);
  fuzz_put(&out, out.bytes, 10);
  fuzz_put8(&out, RAW);
  fuzz_put8(&out, RAIL_OOB_FRAME_SIZE - 10);
  fuzz_put(&out, out.bytes + 10, RAIL_OOB_FRAME_SIZE - 10);
  put_frame(&out, RAIL_OOB_PLUGIN, 3);
  fuzz_seed("pieces", out.bytes, out.size);
  begin(&out, 1);
  fuzz_put8(&out, PING);
  put_frame(&out, RAIL_OOB_PONG, 2); /* to a PING that was not sent */
  fuzz_seed("pong-ahead", out.bytes, out.size);
}
