/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * A sending connection and a receiver of bad faith. Input: the connection's
 * shape, then steps: sends are posted and tested; answers, reports and frames
 * of any fields are queued on any stream and delivered in pieces, what the
 * sender wrote is read in pieces, streams end.
 *
 * Held: what leaves is made of whole frames, and every payload is a chunk of
 * the message that its header names; a large send is done only with a grant
 * that it fits; memory of a send that was reported done is not read again; when
 * the streams have ended every request is done or fails; closing works, at any
 * time, and leaves nothing.
 */
#include <stdlib.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/comm.h"
#include "test/unit/sk_hello.h"

#define MAX_SENDS 640
#define TAGS 3
#define SOON_MS 5000 /* far below the deadline for silent peers: the end of all streams is seen at once */
#define EAGER 8192
#define SPOILED 0xdd /* what the caller puts where a finished send was */

enum step { ISEND, TEST_ONE, ANSWER, REPORT, DELIVER, RAW, FRAME, READ, END, LEAVE, STEPS };

struct send {
  void *handle;
  uint8_t *data;
  size_t size;
  unsigned int tag, order;
  bool announced;
  uint32_t seq;
};

/* What comes out of one stream. */
struct out {
  uint8_t head[SK_HEAD];
  size_t have; /* bytes of the header */
  unsigned int type;
  const struct send *send;
  uint64_t at;
  uint32_t left;   /* bytes of the payload to come */
  uint32_t frames; /* that came whole */
};

struct bed {
  struct fuzz_comm c;
  struct send sends[MAX_SENDS];
  int nsends;
  unsigned int posted[TAGS], announced[TAGS], granted[TAGS];
  unsigned int large_done[TAGS];
  uint64_t largest[TAGS]; /* grant */
  bool wild; /* the model does not know all grants */
  bool failover;
  /* What an honest receiver reports: messages seen, and the credit of those that used some. */
  uint32_t seen, told, count;
  uint64_t bytes;
  struct out outs[FUZZ_STREAMS];
};

static uint32_t id_of(const struct bed *bed, const struct send *s) { return (uint32_t)(s - bed->sends) + 1; }

/* ---- sends ----------------------------------------------------------- */

static void post(struct fuzz_in *in, struct bed *bed) {
  uint8_t choice = fuzz_u8(in);
  if (bed->nsends == MAX_SENDS) return;
  struct send *s = &bed->sends[bed->nsends];
  *s = (struct send){.size = fuzz_size(choice / TAGS), .tag = choice % TAGS};
  s->data = fuzz_guarded(s->size);
  fuzz_pattern_fill(s->data, s->size, id_of(bed, s), 0);
  rail_result_t result = sk_isend(bed->c.comm, s->data, s->size, (int)s->tag, NULL, NULL, &s->handle);
  FUZZ_CHECK(result == RAIL_OK || !s->handle);
  if (!s->handle) {
    fuzz_guarded_free(s->data, s->size);
    return;
  }
  s->order = bed->posted[s->tag]++;
  bed->nsends++;
}

/* True: it is over with this request. */
static bool test(struct bed *bed, struct send *s) {
  int done = 0, size = -1;
  if (!s->handle) return true;
  rail_result_t result = sk_test(s->handle, &done, &size);
  FUZZ_CHECK(result >= RAIL_OK && result < RAIL_IN_PROGRESS && (result == RAIL_OK || !done));
  if (done) {
    FUZZ_CHECK((size_t)size == s->size);
    if (s->size > EAGER && !bed->wild)
      FUZZ_CHECK(++bed->large_done[s->tag] <= bed->granted[s->tag] && bed->largest[s->tag] >= s->size);
    memset(s->data, SPOILED, s->size);
    s->handle = NULL;
  }
  return done || result != RAIL_OK;
}

/* ---- what the sender writes ------------------------------------------ */

/* MSG: the next send of its tag. */
static const struct send *announce(struct bed *bed, unsigned int tag, uint32_t seq, uint64_t size) {
  FUZZ_CHECK(tag < TAGS);
  for (int i = 0; i < bed->nsends; i++) {
    struct send *s = &bed->sends[i];
    if (s->tag != tag || s->order != bed->announced[tag]) continue;
    FUZZ_CHECK(s->size == size);
    s->announced = true;
    s->seq = seq;
    bed->announced[tag]++;
    return s;
  }
  FUZZ_CHECK(!"a message that nobody sent");
}

static const struct send *of_seq(const struct bed *bed, uint32_t seq) {
  for (int i = 0; i < bed->nsends; i++)
    if (bed->sends[i].announced && bed->sends[i].seq == seq) return &bed->sends[i];
  return NULL; /* announced on another stream, which was not read yet */
}

static void check_header(struct bed *bed, struct out *out) {
  uint16_t guard;
  uint32_t seq, len, tag;
  uint64_t size, reserved;
  memcpy(&guard, out->head + 2, sizeof guard);
  memcpy(&seq, out->head + 4, sizeof seq);
  memcpy(&size, out->head + 8, sizeof size);
  memcpy(&len, out->head + 16, sizeof len);
  memcpy(&tag, out->head + 20, sizeof tag);
  memcpy(&reserved, out->head + 24, sizeof reserved);
  out->type = out->head[0];
  out->send = NULL;
  out->left = le32toh(len);
  out->at = 0;
  FUZZ_CHECK(le16toh(guard) == SK_FRAME_GUARD && out->left <= SK_MAX_FRAME && !reserved);
  if (out->type == SK_FRAME_MSG && bed->failover && (out->send = of_seq(bed, le32toh(seq))) != NULL) {
    FUZZ_CHECK(out->send->size == le64toh(size) && out->send->tag == le32toh(tag)); /* once more, on this stream */
  } else if (out->type == SK_FRAME_MSG) {
    out->send = announce(bed, le32toh(tag), le32toh(seq), le64toh(size));
    bed->seen = le32toh(seq) + 1;
    if (!(out->head[1] & SK_FRAME_GRANTED)) {
      FUZZ_CHECK(out->send->size <= EAGER);
      bed->bytes += sk_credit_of(out->send->size);
      bed->count++;
    }
  }
  if (out->type == SK_FRAME_DATA) {
    out->send = of_seq(bed, le32toh(seq));
    out->at = le64toh(size);
  }
  if (out->send) FUZZ_CHECK(out->at <= out->send->size && out->left <= out->send->size - out->at);
}

static void check_bytes(struct bed *bed, struct out *out, const uint8_t *bytes, size_t size) {
  while (size > 0) {
    if (out->have < sizeof out->head) {
      size_t n = RAIL_MIN(size, sizeof out->head - out->have);
      memcpy(out->head + out->have, bytes, n);
      out->have += n;
      bytes += n;
      size -= n;
      if (out->have == sizeof out->head) check_header(bed, out);
    } else {
      size_t n = RAIL_MIN(size, (size_t)out->left);
      if (out->send) FUZZ_CHECK(fuzz_pattern_matches(bytes, n, id_of(bed, out->send), out->at, -1));
      out->at += n;
      out->left -= (uint32_t)n;
      bytes += n;
      size -= n;
    }
    if (out->have < sizeof out->head || out->left) continue;
    out->have = 0;
    out->frames += out->type == SK_FRAME_MSG || out->type == SK_FRAME_DATA;
  }
}

static void read_some(struct bed *bed, unsigned int stream, size_t size) {
  static uint8_t bytes[1 << 17];
  if (bed->c.ends[stream] < 0) return;
  ssize_t n = recv(bed->c.ends[stream], bytes, RAIL_MIN(size, sizeof bytes), MSG_DONTWAIT);
  if (n > 0) check_bytes(bed, &bed->outs[stream], bytes, (size_t)n);
}

/* ---- what the receiver says ------------------------------------------ */

static void put_le(uint8_t *to, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; i++) to[i] = (uint8_t)(value >> 8 * i);
}

static void answer(struct fuzz_in *in, struct bed *bed, unsigned int stream, unsigned int flag) {
  struct sk_answer_bytes wire = sk_make_welcome(bed->c.args.features);
  if (flag) fuzz_fill(in, (uint8_t *)&wire + 4, 16);
  fuzz_queue(&bed->c, stream, &wire, sizeof wire);
}

/* A report with grants, honest or not. */
static void report(struct fuzz_in *in, struct bed *bed, unsigned int stream, unsigned int flag) {
  uint8_t frame[SK_HEAD + 16 * 256], how = fuzz_u8(in), lie = fuzz_u8(in);
  uint32_t n = how & 7, seen = bed->seen, count = bed->count;
  uint64_t bytes = bed->bytes;
  if (how & 8) n += fuzz_u8(in);
  n = RAIL_MIN(n, 250u);
  uint32_t len = how & 0x10 ? fuzz_u32(in) : n * 16;
  if (lie & 1) seen = bed->told;
  if (lie & 2) seen = fuzz_u32(in);
  if (lie & 4) bytes = fuzz_u64(in);
  if (lie & 8) count = fuzz_u32(in);
  if (lie & 16) seen = bed->seen + fuzz_u8(in);
  bed->told = seen;
  memset(frame, 0, sizeof frame);
  for (uint32_t i = 0; i < n; i++) {
    uint8_t choice = fuzz_u8(in), *entry = frame + SK_HEAD + 16 * i;
    uint64_t capacity = how & 0x80 ? fuzz_u64(in) : fuzz_size(choice / TAGS);
    unsigned int tag = choice % TAGS;
    put_le(entry, capacity, 8);
    put_le(entry + 8, tag, 4);
    if (flag & 2) put_le(entry + 8, fuzz_u32(in), 8);
    bed->granted[tag]++;
    bed->largest[tag] = RAIL_MAX(bed->largest[tag], capacity);
  }
  for (unsigned int i = 0; bed->failover && !(lie & 32) && i < bed->c.args.nstreams; i++, n++, len += 16) {
    put_le(frame + SK_HEAD + 16 * n, bed->outs[i].frames + (lie & 64 ? 1 + fuzz_u8(in) % 8 : 0), 8);
    put_le(frame + SK_HEAD + 16 * n + 8, i, 4);
    put_le(frame + SK_HEAD + 16 * n + 12, SK_ENTRY_FRAMES, 4);
  }
  fuzz_frame(frame, SK_FRAME_CONTROL, flag & 1, seen, bytes, len, count);
  bed->wild |= flag != 0 || len != n * 16;
  fuzz_queue(&bed->c, stream, frame, SK_HEAD + 16 * (size_t)n);
}

static void send_any(struct fuzz_in *in, struct bed *bed, unsigned int stream) {
  uint8_t head[SK_HEAD], type = fuzz_u8(in), flags = fuzz_u8(in);
  uint32_t seq = fuzz_u32(in), len = fuzz_u32(in), tag = fuzz_u32(in);
  fuzz_frame(head, type, flags, seq, fuzz_u64(in), len, tag);
  fuzz_queue(&bed->c, stream, head, sizeof head);
  bed->wild = true;
}

/* With a flag the receiver says how many frames of it had arrived. */
static void end(struct bed *bed, unsigned int stream, unsigned int flag) {
  uint8_t head[SK_HEAD];
  uint32_t frames = bed->outs[stream].frames + (flag == 3);
  fuzz_end_stream(&bed->c, stream);
  if (!flag) return;
  fuzz_frame(head, SK_FRAME_LOST, 0, frames, 0, 0, stream);
  fuzz_queue(&bed->c, (stream + flag) % bed->c.args.nstreams, head, sizeof head);
}

/* ---- the input ------------------------------------------------------- */

/* False: the connection is to be closed as it is. */
static bool take_step(struct fuzz_in *in, struct bed *bed) {
  uint8_t head = fuzz_u8(in);
  unsigned int stream = (head >> 4 & 3) % bed->c.args.nstreams, flag = head >> 6;
  size_t size;
  switch ((enum step)((head & 0x0f) % STEPS)) {
    case ISEND: post(in, bed); break;
    case TEST_ONE:
      if (bed->nsends) test(bed, &bed->sends[fuzz_u8(in) % bed->nsends]);
      break;
    case ANSWER: answer(in, bed, stream, flag); break;
    case REPORT: report(in, bed, stream, flag); break;
    case DELIVER: fuzz_deliver(&bed->c, stream, flag ? fuzz_u16(in) : SIZE_MAX); break;
    case RAW:
      size = fuzz_u8(in);
      const uint8_t *bytes = fuzz_take(in, &size);
      fuzz_queue(&bed->c, stream, bytes, size);
      bed->wild = true;
      break;
    case FRAME: send_any(in, bed, stream); break;
    case READ: read_some(bed, stream, flag ? fuzz_u16(in) : SIZE_MAX); break;
    case END: end(bed, stream, flag); break;
    case LEAVE: return flag != 3;
    case STEPS: break;
  }
  return true;
}

/* Everything is delivered and read, the streams end: no request may stay open. */
static void settle(struct bed *bed) {
  for (int round = 0; round < 4; round++) {
    fuzz_deliver_all(&bed->c);
    for (int i = 0; i < bed->nsends; i++) test(bed, &bed->sends[i]);
    for (unsigned int i = 0; i < bed->c.args.nstreams; i++) read_some(bed, i, SIZE_MAX);
  }
  for (unsigned int i = 0; i < bed->c.args.nstreams; i++) fuzz_end_stream(&bed->c, i);
  for (int i = 0; i < bed->nsends; i++) {
    uint64_t deadline = rail_deadline_in_ms(SOON_MS); /* the watch thread may have its turn meanwhile */
    while (!test(bed, &bed->sends[i])) FUZZ_CHECK(!rail_deadline_passed(deadline));
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  static struct bed bed;
  struct fuzz_in in = {data, size};
  memset(&bed, 0, sizeof bed);
  struct fuzz_shape shape = fuzz_shape(fuzz_u8(&in), EAGER, 0);
  fuzz_open_send(&bed.c, &shape);
  bed.failover = shape.failover;
  bool stays = true;
  while (in.left && stays) stays = take_step(&in, &bed);
  if (stays) settle(&bed);
  /* Closing does not look at the caller's memory, which may be gone. The watch thread does until then. */
  sk_watch_remove(bed.c.comm);
  for (int i = 0; i < bed.nsends; i++) fuzz_guarded_free(bed.sends[i].data, bed.sends[i].size);
  fuzz_close_comm(&bed.c);
}

/* ---- seeds ----------------------------------------------------------- */

static void put_step(struct fuzz_out *out, enum step step, unsigned int stream, unsigned int flag) {
  fuzz_put8(out, step | stream << 4 | flag << 6);
}

static unsigned int choice(unsigned int tag, size_t size) {
  unsigned int i = 0;
  while (fuzz_size((uint8_t)i) != size) i++;
  return tag + TAGS * i;
}

static void put_isend(struct fuzz_out *out, unsigned int tag, size_t size) {
  put_step(out, ISEND, 0, 0);
  fuzz_put8(out, choice(tag, size));
}

static void put_grant(struct fuzz_out *out, unsigned int tag, size_t size) {
  put_step(out, REPORT, 0, 0);
  fuzz_put8(out, 1);
  fuzz_put8(out, 0);
  fuzz_put8(out, choice(tag, size));
}

static void put_pump(struct fuzz_out *out, unsigned int streams, unsigned int sends) {
  for (unsigned int i = 0; i < streams; i++) put_step(out, DELIVER, i, 0);
  for (unsigned int i = 0; i < sends; i++) {
    put_step(out, TEST_ONE, 0, 0);
    fuzz_put8(out, i);
  }
  for (unsigned int i = 0; i < streams; i++) put_step(out, READ, i, 0);
}

static void simple_seeds(void) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, 0x40); /* one stream, some sends ahead of their grants */
  put_step(&out, ANSWER, 0, 0);
  put_isend(&out, 0, 1000);
  put_isend(&out, 1, 0);
  put_isend(&out, 2, 70000);
  put_pump(&out, 1, 3);
  put_grant(&out, 0, 4096);
  put_grant(&out, 1, 0);
  put_grant(&out, 2, 70000);
  put_pump(&out, 1, 3);
  fuzz_seed("one-stream", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 3); /* four streams, grants first */
  for (unsigned int i = 0; i < 4; i++) put_step(&out, ANSWER, i, 0);
  put_grant(&out, 1, 70000);
  put_grant(&out, 1, 20000);
  put_isend(&out, 1, 64);
  put_isend(&out, 1, 20000);
  put_pump(&out, 4, 2);
  put_isend(&out, 0, 70000);
  put_grant(&out, 0, 4097); /* too small */
  put_pump(&out, 4, 3);
  fuzz_seed("four-streams", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 0); /* more than the socket holds: done is what the kernel has */
  put_step(&out, ANSWER, 0, 0);
  for (unsigned int i = 0; i < 5; i++) {
    put_grant(&out, i % TAGS, 70000);
    put_isend(&out, i % TAGS, 70000);
  }
  put_pump(&out, 1, 5);
  put_pump(&out, 1, 5);
  fuzz_seed("full-socket", out.bytes, out.size);
}

static void failover_seeds(void) {
  struct fuzz_out out = {.size = 0};
  out.size = 0;
  fuzz_put8(&out, 0x48 | 1); /* failover: a stream is lost with what it carried */
  for (unsigned int i = 0; i < 2; i++) put_step(&out, ANSWER, i, 0);
  put_grant(&out, 0, 70000);
  put_isend(&out, 0, 70000);
  put_isend(&out, 1, 1000);
  put_isend(&out, 2, 0);
  put_step(&out, DELIVER, 0, 0);
  put_step(&out, DELIVER, 1, 0);
  put_step(&out, TEST_ONE, 0, 0);
  fuzz_put8(&out, 0);
  put_step(&out, READ, 0, 0);
  put_step(&out, END, 1, 1);
  for (unsigned int i = 0; i < 3; i++) {
    put_grant(&out, 0, 8);
    put_pump(&out, 1, 3);
  }
  fuzz_seed("failover", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 0x48 | 1); /* failover: frames are counted that have not left */
  for (unsigned int i = 0; i < 2; i++) put_step(&out, ANSWER, i, 0);
  for (unsigned int i = 0; i < 8; i++) {
    put_grant(&out, 0, 70000);
    put_step(&out, DELIVER, 0, 0);
    put_isend(&out, 0, 70000);
  }
  put_pump(&out, 0, 8);
  put_step(&out, REPORT, 0, 0);
  fuzz_put8(&out, 0);
  fuzz_put8(&out, 64);
  for (unsigned int i = 0; i < 2; i++) fuzz_put8(&out, 4); /* five more than were read, on each */
  put_pump(&out, 2, 8);
  fuzz_seed("counted-early", out.bytes, out.size);
}

static void many_seeds(void) {
  struct fuzz_out out = {.size = 0};
  for (unsigned int failover = 0; failover < 2; failover++) { /* closed with more queued than the socket takes */
    out.size = 0;
    fuzz_put8(&out, 0x41 | failover << 3);
    for (unsigned int i = 0; i < 2; i++) put_step(&out, ANSWER, i, 0);
    for (unsigned int i = 0; i < 8; i++) {
      put_grant(&out, 0, 70000);
      put_step(&out, DELIVER, 0, 0);
      put_isend(&out, 0, 70000);
    }
    put_step(&out, LEAVE, 0, 3);
    fuzz_seed(failover ? "left-failover" : "left", out.bytes, out.size);
  }

  for (unsigned int lie = 0; lie < 2; lie++) { /* far more messages than credit; one receiver says that it saw none */
    out.size = 0;
    fuzz_put8(&out, 0xf0);
    put_step(&out, ANSWER, 0, 0);
    for (unsigned int i = 0; i < 300; i++) {
      put_isend(&out, i % TAGS, 8);
      put_step(&out, TEST_ONE, 0, 0);
      fuzz_put8(&out, i);
      put_step(&out, READ, 0, 0);
      put_step(&out, REPORT, 0, 0);
      fuzz_put8(&out, 0);
      fuzz_put8(&out, lie);
      put_step(&out, DELIVER, 0, 0);
    }
    fuzz_seed(lie ? "unseen" : "credit", out.bytes, out.size);
  }

  out.size = 0;
  fuzz_put8(&out, 0x21); /* refused, an error, a stream that ends; then closed as it is */
  put_isend(&out, 0, 8);
  put_isend(&out, 0, 8192);
  put_step(&out, ANSWER, 1, 1);
  fuzz_put16(&out, SK_WIRE_VERSION);
  fuzz_put16(&out, RAIL_MESSAGE_ANSWER);
  fuzz_put32(&out, (uint32_t)(sizeof(struct sk_answer_bytes) - sizeof(struct rail_head_wire)));
  fuzz_put32(&out, 0);
  fuzz_put32(&out, RAIL_REASON_SECRET);
  put_step(&out, FRAME, 0, 0);
  fuzz_put8(&out, SK_FRAME_ERROR);
  fuzz_put8(&out, 0);
  fuzz_put32(&out, 0);
  fuzz_put32(&out, 16);
  fuzz_put32(&out, 0);
  fuzz_put64(&out, RAIL_BAD_USAGE);
  put_step(&out, RAW, 0, 0);
  fuzz_put8(&out, 16);
  fuzz_put(&out, "sixteen bytes!!!", 16);
  put_pump(&out, 2, 2);
  put_step(&out, END, 1, 0);
  put_step(&out, LEAVE, 0, 3);
  fuzz_seed("refused", out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  simple_seeds();
  failover_seeds();
  many_seeds();
}
