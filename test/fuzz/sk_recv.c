/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * A receiving connection and a sender of bad faith. Input: the connection's
 * shape, then steps: receives are posted and tested, frames of any fields are
 * made and queued on any stream, queued bytes are delivered in pieces, streams
 * end.
 *
 * Held: no byte outside the posted buffers is written; a buffer that is
 * reported done holds the k-th message of its tag and no byte more, and is not
 * written again; when the streams have ended every request is done or fails;
 * closing works, at any time, and leaves nothing.
 */
#include <stdlib.h>

#include "common/base/clock.h"
#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/comm.h"

#define MAX_REQUESTS 24
#define MAX_MESSAGES 256
#define TAGS 3
#define SOON_MS 5000 /* far below the deadline for silent peers: the end of all streams is seen at once */
#define FILL 0xee
#define TAKEN 0x11 /* what the caller puts into a finished buffer; nobody else writes there any more */
#define BIG 16384 /* larger messages wait for their grant; the comm's eager size; one of just this size may be left
                   * unread */

enum step { IRECV, TEST_ONE, MSG, DATA, DELIVER, RAW, FRAME, END, LEAVE, STEPS };

struct buffer {
  uint8_t *data;
  size_t size;
  unsigned int tag, order; /* the order-th of its tag */
};

struct request {
  void *handle; /* NULL: finished */
  bool taken;
  int n;
  struct buffer buffers[SK_MAX_GROUP];
};

struct message {
  bool sent;
  uint32_t tag;
  uint64_t size;
};

struct bed {
  struct fuzz_comm c;
  struct request requests[MAX_REQUESTS];
  int nrequests;
  unsigned int posted[TAGS];
  struct message messages[MAX_MESSAGES];
  uint32_t next_seq;
  bool wild;   /* bytes were sent that the model does not know */
  bool failed; /* the comm has said so */
};

/* ---- receives -------------------------------------------------------- */

static void post(struct fuzz_in *in, struct bed *bed) {
  void *data[SK_MAX_GROUP];
  size_t sizes[SK_MAX_GROUP];
  int tags[SK_MAX_GROUP], n = 1 + fuzz_u8(in) % SK_MAX_GROUP;
  if (bed->nrequests == MAX_REQUESTS) return;
  struct request *r = &bed->requests[bed->nrequests];
  for (int i = 0; i < n; i++) {
    uint8_t choice = fuzz_u8(in);
    sizes[i] = fuzz_size(choice / TAGS);
    tags[i] = choice % TAGS;
    data[i] = fuzz_guarded(sizes[i]);
    memset(data[i], FILL, sizes[i]);
  }
  rail_result_t result = sk_irecv(bed->c.comm, n, data, sizes, tags, NULL, NULL, &r->handle);
  FUZZ_CHECK(result == RAIL_OK || !r->handle);
  if (!r->handle) {
    for (int i = 0; i < n; i++) fuzz_guarded_free(data[i], sizes[i]);
    return;
  }
  bed->nrequests++;
  r->n = n;
  for (int i = 0; i < n; i++)
    r->buffers[i] = (struct buffer){data[i], sizes[i], (unsigned int)tags[i], bed->posted[tags[i]]++};
}

/* The order-th message with this tag, or NULL: it was not sent. */
static const struct message *message_of(const struct bed *bed, unsigned int tag, unsigned int order, uint32_t *seq) {
  for (uint32_t s = 0; s < MAX_MESSAGES; s++) {
    const struct message *m = &bed->messages[s];
    if (!m->sent) return NULL;
    if (m->tag != tag || order-- > 0) continue;
    *seq = s;
    return m;
  }
  return NULL;
}

static void check_done(const struct bed *bed, const struct request *r, const int *sizes) {
  for (int i = 0; i < r->n; i++) {
    const struct buffer *b = &r->buffers[i];
    uint32_t seq = 0;
    FUZZ_CHECK(sizes[i] >= 0 && (size_t)sizes[i] <= b->size);
    FUZZ_CHECK(fuzz_all(b->data + sizes[i], b->size - (size_t)sizes[i], FILL));
    if (bed->wild) continue;
    const struct message *m = message_of(bed, b->tag, b->order, &seq);
    FUZZ_CHECK(m && m->size == (uint64_t)sizes[i]);
    FUZZ_CHECK(fuzz_pattern_matches(b->data, (size_t)sizes[i], seq, 0, -1));
  }
}

static void take_buffers(struct request *r) {
  r->handle = NULL;
  r->taken = true;
  for (int i = 0; i < r->n; i++) memset(r->buffers[i].data, TAKEN, r->buffers[i].size);
}

static void free_buffers(const struct request *r) {
  for (int i = 0; i < r->n; i++) {
    const struct buffer *b = &r->buffers[i];
    FUZZ_CHECK(!r->taken || fuzz_all(b->data, b->size, TAKEN));
    fuzz_guarded_free(b->data, b->size);
  }
}

/* True: it is over with this request. */
static bool test(struct bed *bed, struct request *r) {
  int done = 0, sizes[SK_MAX_GROUP];
  if (!r->handle) return true;
  memset(sizes, -1, sizeof sizes);
  rail_result_t result = sk_test(r->handle, &done, sizes);
  FUZZ_CHECK(result >= RAIL_OK && result < RAIL_IN_PROGRESS && (result == RAIL_OK || !done));
  if (done) {
    check_done(bed, r, sizes);
    take_buffers(r);
  }
  bed->failed |= result != RAIL_OK;
  return done || result != RAIL_OK;
}

/* ---- frames ---------------------------------------------------------- */

static void send_payload(struct bed *bed, unsigned int stream, uint32_t seq, uint64_t from, size_t size) {
  static uint8_t bytes[1 << 17];
  fuzz_pattern_fill(bytes, size, seq, from);
  if (!fuzz_queue(&bed->c, stream, bytes, size)) bed->wild = true; /* what follows is taken for it */
}

static void send_header(struct bed *bed, unsigned int stream, const uint8_t *head) {
  if (!fuzz_queue(&bed->c, stream, head, SK_HEAD)) bed->wild = true;
}

/* The next announcement, or one that is out of order; whole, in part, or with too much. */
static void announce(struct fuzz_in *in, struct bed *bed, unsigned int stream, unsigned int flags) {
  uint8_t head[SK_HEAD], how = fuzz_u8(in), choice = fuzz_u8(in);
  if (how & 0x80) { /* the last one once more: with failover each stream says it */
    const struct message *m = &bed->messages[(bed->next_seq - 1) % MAX_MESSAGES];
    fuzz_frame(head, SK_FRAME_MSG, flags, bed->next_seq - 1, m->size, 0, m->tag);
    send_header(bed, stream, head);
    return;
  }
  uint32_t seq = bed->next_seq, tag = choice % TAGS;
  uint64_t size = fuzz_size(choice / TAGS);
  if ((how & 0x0f) == 0x0f) seq += fuzz_u8(in) % 8 - 4;
  else bed->next_seq++;
  uint32_t len = (uint32_t)size;
  if (how & 0x30) {
    len = fuzz_u16(in);
    if (!(how & 0x20)) len = (uint32_t)RAIL_MIN(len, size);
  }
  if (how & 0x40) size = fuzz_u64(in);
  if (seq < MAX_MESSAGES) {
    struct message *m = &bed->messages[seq];
    bed->wild |= m->sent; /* which of the two counts depends on the streams */
    *m = (struct message){.sent = true, .tag = tag, .size = size};
  } else {
    bed->wild = true;
  }
  fuzz_frame(head, SK_FRAME_MSG, flags, seq, size, len, tag);
  send_header(bed, stream, head);
  send_payload(bed, stream, seq, 0, len);
}

static void send_data(struct fuzz_in *in, struct bed *bed, unsigned int stream) {
  uint8_t head[SK_HEAD], how = fuzz_u8(in);
  uint32_t seq = bed->next_seq - 1 - how % 4, len = fuzz_u16(in);
  uint64_t offset = how & 0x80 ? fuzz_u64(in) : fuzz_u32(in) & 0x1ffff;
  if (how & 0x40) len += 0x4000;
  fuzz_frame(head, SK_FRAME_DATA, 0, seq, offset, len, 0);
  send_header(bed, stream, head);
  send_payload(bed, stream, seq, offset, len);
}

/* Any frame at all, without a payload: what follows on the stream is taken for it. */
static void send_any(struct fuzz_in *in, struct bed *bed, unsigned int stream) {
  uint8_t head[SK_HEAD];
  uint8_t type = fuzz_u8(in), flags = fuzz_u8(in);
  uint32_t seq = fuzz_u32(in), len = fuzz_u32(in), tag = fuzz_u32(in);
  fuzz_frame(head, type, flags, seq, fuzz_u64(in), len, tag);
  send_header(bed, stream, head);
  bed->wild = true;
}

static void send_raw(struct fuzz_in *in, struct bed *bed, unsigned int stream) {
  size_t size = fuzz_u8(in);
  const uint8_t *bytes = fuzz_take(in, &size);
  fuzz_queue(&bed->c, stream, bytes, size);
  bed->wild = true;
}

/* With a flag its sender says so over another stream; some of what it carried may be sent again there. */
static void end(struct fuzz_in *in, struct bed *bed, unsigned int stream, unsigned int flag) {
  uint8_t head[SK_HEAD], generation = flag == 3 ? fuzz_u8(in) : 0;
  fuzz_end_stream(&bed->c, stream);
  if (!flag) return;
  fuzz_frame(head, SK_FRAME_LOST, 0, 0, generation, 0, stream);
  send_header(bed, (stream + flag) % bed->c.args.nstreams, head);
}

/* ---- the input ------------------------------------------------------- */

/* False: the connection is to be closed as it is. */
static bool take_step(struct fuzz_in *in, struct bed *bed) {
  uint8_t head = fuzz_u8(in);
  unsigned int stream = (head >> 4 & 3) % bed->c.args.nstreams, flag = head >> 6;
  switch ((enum step)((head & 0x0f) % STEPS)) {
    case IRECV: post(in, bed); break;
    case TEST_ONE:
      if (bed->nrequests) test(bed, &bed->requests[fuzz_u8(in) % bed->nrequests]);
      break;
    case MSG: announce(in, bed, stream, flag); break;
    case DATA: send_data(in, bed, stream); break;
    case DELIVER: fuzz_deliver(&bed->c, stream, flag ? fuzz_u16(in) : SIZE_MAX); break;
    case RAW: send_raw(in, bed, stream); break;
    case FRAME: send_any(in, bed, stream); break;
    case END: end(in, bed, stream, flag); break;
    case LEAVE: return flag != 3;
    case STEPS: break;
  }
  return true;
}

/* Everything is delivered, the streams end: no request may stay open. */
static void settle(struct bed *bed) {
  for (int round = 0; round < 4; round++) {
    fuzz_deliver_all(&bed->c);
    for (int i = 0; i < bed->nrequests; i++) test(bed, &bed->requests[i]);
    for (unsigned int i = 0; i < bed->c.args.nstreams; i++)
      if (bed->c.ends[i] >= 0) fuzz_drain(bed->c.ends[i]);
  }
  for (unsigned int i = 0; i < bed->c.args.nstreams; i++) fuzz_end_stream(&bed->c, i);
  for (int i = 0; i < bed->nrequests; i++) {
    uint64_t deadline = rail_deadline_in_ms(SOON_MS); /* the watch thread may have its turn meanwhile */
    while (!test(bed, &bed->requests[i])) FUZZ_CHECK(!rail_deadline_passed(deadline));
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  static struct bed bed;
  struct fuzz_in in = {data, size};
  memset(&bed, 0, sizeof bed);
  struct fuzz_shape shape = fuzz_shape(fuzz_u8(&in), BIG, 4);
  fuzz_open_recv(&bed.c, &shape);
  bool stays = true;
  while (in.left && stays) stays = take_step(&in, &bed);
  if (stays) settle(&bed);
  /* Closing does not touch the caller's buffers, which may be gone. The watch thread does until then. */
  sk_watch_remove(bed.c.comm);
  for (int i = 0; i < bed.nrequests; i++) free_buffers(&bed.requests[i]);
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

static void put_irecv(struct fuzz_out *out, unsigned int tag, size_t size) {
  put_step(out, IRECV, 0, 0);
  fuzz_put8(out, 0);
  fuzz_put8(out, choice(tag, size));
}

static void put_msg(struct fuzz_out *out, unsigned int tag, size_t size) {
  put_step(out, MSG, 0, size > BIG ? SK_FRAME_GRANTED : 0);
  fuzz_put8(out, 0);
  fuzz_put8(out, choice(tag, size));
}

static void put_test(struct fuzz_out *out, unsigned int request) {
  put_step(out, TEST_ONE, 0, 0);
  fuzz_put8(out, request);
}

static void simple_seeds(void) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, 0); /* one stream: posted, early, empty, large */
  put_irecv(&out, 1, 1000);
  put_msg(&out, 1, 1000);
  put_msg(&out, 2, 64);
  put_msg(&out, 0, 0);
  put_step(&out, DELIVER, 0, 0);
  put_test(&out, 0);
  put_irecv(&out, 2, 4096);
  put_irecv(&out, 0, 0);
  put_irecv(&out, 1, 70000);
  put_msg(&out, 1, 70000);
  for (unsigned int i = 0; i < 4; i++) put_test(&out, i);
  fuzz_seed("one-stream", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 3); /* four: a message in chunks, the last chunk first */
  put_irecv(&out, 0, 20000);
  put_step(&out, MSG, 0, SK_FRAME_GRANTED);
  fuzz_put8(&out, 0x10);
  fuzz_put8(&out, choice(0, 20000));
  fuzz_put16(&out, 4000);
  for (unsigned int i = 4; i > 0; i--) {
    put_step(&out, DATA, i - 1, 0);
    fuzz_put8(&out, 0);
    fuzz_put16(&out, 4000);
    fuzz_put32(&out, 4000 * i);
    put_step(&out, DELIVER, i - 1, 1);
    fuzz_put16(&out, 2000);
    put_test(&out, 0);
  }
  fuzz_seed("four-streams", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 0x11); /* a group, then closed as it is */
  put_step(&out, IRECV, 0, 0);
  fuzz_put8(&out, 2);
  for (unsigned int i = 0; i < 3; i++) fuzz_put8(&out, choice(i, 8192));
  for (unsigned int i = 0; i < 2; i++) put_msg(&out, i, 8192);
  put_step(&out, DELIVER, 0, 1);
  fuzz_put16(&out, 9000);
  put_test(&out, 0);
  put_step(&out, LEAVE, 0, 3);
  fuzz_seed("left", out.bytes, out.size);
}

static void limit_seeds(void) {
  struct fuzz_out out = {.size = 0};
  for (unsigned int n = 4; n <= 5; n++) { /* as many early bytes as there is credit for, and more */
    out.size = 0;
    fuzz_put8(&out, 0x20);
    put_irecv(&out, 2, 0);
    for (unsigned int i = 0; i < n; i++) put_msg(&out, i % 2, BIG);
    put_step(&out, DELIVER, 0, 0);
    put_test(&out, 0);
    for (unsigned int i = 0; i < n; i++) {
      put_irecv(&out, i % 2, BIG);
      put_test(&out, i + 1);
    }
    put_msg(&out, 2, 0);
    fuzz_seed(n == 4 ? "early-full" : "early-beyond", out.bytes, out.size);
  }

  /* Two streams at once in one message; once with a chunk too much; and with chunks that overlap, or are one again, and
   * add up. */
  static const struct {
    const char *name;
    unsigned int chunks, offsets[3], sizes[3];
  } plans[] = {{"two-streams", 2, {10000, 15000}, {5000, 5000}},
               {"too-much", 3, {10000, 15000, 10000}, {5000, 5000, 5000}},
               {"overlap", 2, {10000, 12000}, {5000, 5000}},
               {"twice", 2, {10000, 10000}, {5000, 5000}},
               {"overlap-first", 2, {9000, 15000}, {5000, 5000}},
               {"overlap-of-three", 3, {10000, 14000, 11000}, {4000, 3000, 3000}}};
  for (unsigned int p = 0; p < RAIL_COUNT_OF(plans); p++) {
    out.size = 0;
    fuzz_put8(&out, 1);
    put_irecv(&out, 0, 20000);
    put_step(&out, MSG, 0, SK_FRAME_GRANTED);
    fuzz_put8(&out, 0x10);
    fuzz_put8(&out, choice(0, 20000));
    fuzz_put16(&out, 10000);
    put_step(&out, DELIVER, 0, 0);
    put_test(&out, 0);
    for (unsigned int i = 0; i < plans[p].chunks; i++) {
      put_step(&out, DATA, i == 0, 0);
      fuzz_put8(&out, 0);
      fuzz_put16(&out, plans[p].sizes[i]);
      fuzz_put32(&out, plans[p].offsets[i]);
      put_step(&out, DELIVER, i == 0, 1);
      fuzz_put16(&out, i == 0 ? 3000 : 65535);
      put_test(&out, 0);
    }
    fuzz_seed(plans[p].name, out.bytes, out.size);
  }
}

static void ending_seeds(void) {
  struct fuzz_out out = {.size = 0};
  out.size = 0;
  fuzz_put8(&out, 8 | 1); /* failover: a chunk is lost with its stream and comes again over the other */
  put_irecv(&out, 0, 20000);
  put_step(&out, MSG, 0, SK_FRAME_GRANTED);
  fuzz_put8(&out, 0x10);
  fuzz_put8(&out, choice(0, 20000));
  fuzz_put16(&out, 10000);
  put_step(&out, MSG, 1, SK_FRAME_GRANTED);
  fuzz_put8(&out, 0x80);
  fuzz_put8(&out, 0);
  put_step(&out, DATA, 1, 0);
  fuzz_put8(&out, 0);
  fuzz_put16(&out, 10000);
  fuzz_put32(&out, 10000);
  put_step(&out, DELIVER, 0, 0);
  put_step(&out, DELIVER, 1, 1);
  fuzz_put16(&out, 7000);
  put_test(&out, 0);
  put_step(&out, END, 1, 1);
  put_step(&out, DATA, 0, 0);
  fuzz_put8(&out, 0);
  fuzz_put16(&out, 10000);
  fuzz_put32(&out, 10000);
  put_step(&out, DELIVER, 0, 0);
  put_test(&out, 0);
  fuzz_seed("failover", out.bytes, out.size);

  uint8_t head[SK_HEAD];
  out.size = 0;
  fuzz_put8(&out, 1);
  put_irecv(&out, 1, 64);
  put_step(&out, RAW, 0, 0);
  fuzz_frame(head, SK_FRAME_MSG, 0, 0, 8, 8, 1);
  fuzz_put8(&out, sizeof head + 8);
  fuzz_put(&out, head, sizeof head);
  fuzz_put(&out, "8 bytes.", 8);
  put_step(&out, FRAME, 0, 0);
  fuzz_put8(&out, SK_FRAME_ERROR);
  fuzz_put8(&out, 0);
  fuzz_put32(&out, 1);
  fuzz_put32(&out, 16);
  fuzz_put32(&out, 1);
  fuzz_put64(&out, RAIL_BAD_USAGE);
  put_step(&out, RAW, 0, 0);
  fuzz_put8(&out, 16);
  fuzz_put(&out, "sixteen bytes!!!", 16);
  put_step(&out, END, 1, 0);
  fuzz_seed("raw", out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  simple_seeds();
  limit_seeds();
  ending_seeds();
}
