/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * What a rank's bootstrap thread reads: hellos of pending connections, then messages
 * from peers, heartbeats, aborts and goodbyes from the neighbours. No thread
 * runs here; the connections are socket pairs and each byte is read by a call.
 *
 * Input: steps. Connections 0 to 3 begin as pending ones, 4 is the ring to the
 * next rank.
 */
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "core/bootstrap/rt_boot.h"
#include "test/fuzz/lib/fuzz.h"

#define NRANKS 3
#define SELF 1
#define PENDING 4
#define CONNS (PENDING + 1)
#define MAX_MESSAGES 64

static const uint8_t secret[RT_SECRET_BYTES] = "fifteen letters";

enum step { RAW, HELLO, MESSAGE, RING, ABORT, READ, RECEIVE, HANG_UP, STEPS };

struct bed {
  struct rt_bootstrap b;
  union rail_addr addrs[NRANKS];
  struct rt_boot_tx tx[NRANKS];
  uint8_t data_closed[NRANKS];
  int ends[CONNS]; /* the fuzzer's */
  int fds[CONNS];  /* the bootstrap's */
  int failures;
};

static void on_failure(void *arg, rail_result_t result, const char *why) {
  struct bed *bed = arg;
  FUZZ_CHECK(result > RAIL_OK && result < RAIL_IN_PROGRESS && strnlen(why, RT_BOOT_MAX_TEXT) < RT_BOOT_MAX_TEXT);
  FUZZ_CHECK(++bed->failures == 1);
}

static void open_conn(struct bed *bed, int i) {
  int fds[2];
  fuzz_socketpair(fds);
  bed->ends[i] = fds[0];
  bed->fds[i] = fds[1];
  if (i < PENDING) {
    rail_pending_add(&bed->b.thread.pending, fds[1], 0, &bed->addrs[0]);
    return;
  }
  struct rt_boot_conn *c = rt_boot_conn_add(&bed->b, fds[1], RT_BOOT_CONN_RING, (SELF + 1) % NRANKS);
  FUZZ_CHECK(c != NULL);
  c->neighbour = RT_BOOT_NEXT;
  bed->b.thread.ring[RT_BOOT_NEXT] = c;
}

static void open_bed(struct bed *bed) {
  struct rt_bootstrap *b = &bed->b;
  memset(bed, 0, sizeof *bed);
  b->args = (struct rt_bootstrap_args){.rank = SELF,
                                       .nranks = NRANKS,
                                       .timeout_ms = 1000,
                                       .heartbeat_ms = 100,
                                       .heartbeat_timeout_ms = 1000,
                                       .on_failure = on_failure,
                                       .arg = bed};
  b->rank = SELF;
  b->nranks = NRANKS;
  memcpy(b->secret, secret, sizeof secret);
  b->addrs = bed->addrs;
  b->tx = bed->tx;
  b->data_closed = bed->data_closed;
  b->listen_fd = b->event_fd = -1;
  b->origin = -1;
  b->thread.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  rt_boot_pending_init(b);
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->cond, NULL);
  for (size_t i = 0; i < RT_BOOT_BUCKETS; i++) STAILQ_INIT(&b->unexpected[i]);
  for (int i = 0; i < CONNS; i++) open_conn(bed, i);
}

static void close_bed(struct bed *bed) {
  struct rt_bootstrap *b = &bed->b;
  size_t queued = 0;
  struct rt_boot_message *m;
  while (!LIST_EMPTY(&b->thread.conns)) rt_boot_conn_close(b, LIST_FIRST(&b->thread.conns));
  rt_boot_conn_free_closed(b);
  /* The count is of what is queued, to the byte. */
  for (size_t i = 0; i < RT_BOOT_BUCKETS; i++) STAILQ_FOREACH(m, &b->unexpected[i], link) queued += m->size;
  FUZZ_CHECK(queued == b->unexpected_bytes);
  rail_pending_close(&b->thread.pending);
  rt_boot_messages_free(b);
  rail_sock_close(&b->thread.epoll_fd);
  for (int i = 0; i < CONNS; i++) rail_sock_close(&bed->ends[i]);
  pthread_cond_destroy(&b->cond);
  pthread_mutex_destroy(&b->lock);
}

/* ---- steps ----------------------------------------------------------- */

static void send_message(int fd, enum rt_boot_type type, uint32_t tag, uint32_t length, const void *body, size_t size) {
  struct rt_boot_header head = rt_boot_header_make(type, tag, length);
  fuzz_write(fd, &head, sizeof head);
  fuzz_write(fd, body, size);
}

static void say_hello(struct fuzz_in *in, int fd) {
  struct rt_boot_peer_hello hello = {.to = SELF, .nranks = NRANKS};
  uint8_t flags = fuzz_u8(in);
  hello.from = flags & 3;
  hello.link = flags >> 2 & 3;
  memcpy(hello.secret, secret, sizeof secret);
  if (flags & 0x10) hello.secret[flags >> 5] ^= 1;
  if (flags & 0x20) hello.to = fuzz_u32(in);
  if (flags & 0x40) hello.from = fuzz_u32(in);
  if (flags & 0x80) hello.nranks = fuzz_u32(in);
  send_message(fd, RT_BOOT_PEER_HELLO, 0, sizeof hello, &hello, sizeof hello);
}

static void say_message(struct fuzz_in *in, int fd) {
  uint8_t flags = fuzz_u8(in);
  size_t size = fuzz_u8(in);
  enum rt_boot_type type = (enum rt_boot_type)(RT_BOOT_MESSAGE + flags % 3);
  uint32_t length = flags & 0x40 ? fuzz_u32(in) % (1u << 20) : flags & 0x80 ? fuzz_u32(in) : (uint32_t)size;
  const uint8_t *body = fuzz_take(in, &size);
  send_message(fd, type, flags >> 4 & 3, length, body, size);
}

static void say_abort(struct fuzz_in *in, int fd) {
  struct rt_boot_abort body;
  uint16_t length = fuzz_u16(in);
  size_t size = RAIL_MIN((size_t)length, sizeof body);
  fuzz_fill(in, &body, 24);
  memset(body.text + 16, 'x', sizeof body.text - 16);
  send_message(fd, RT_BOOT_ABORT, 0, length, &body, size);
}

static void receive(struct fuzz_in *in, struct bed *bed) {
  uint8_t flags = fuzz_u8(in);
  size_t size = fuzz_u8(in);
  uint8_t *data = fuzz_guarded(size);
  rail_result_t result = rt_bootstrap_try_recv(&bed->b, flags & 3, flags >> 4 & 3, data, size);
  FUZZ_CHECK(result >= RAIL_OK && result <= RAIL_IN_PROGRESS);
  fuzz_guarded_free(data, size);
}

/* Pending ones are all read together. */
static void read_conn(struct bed *bed, int i) {
  struct rt_boot_conn *c;
  FUZZ_CHECK(rail_pending_poll(&bed->b.thread.pending, NULL, 0) == RAIL_OK);
  LIST_FOREACH(c, &bed->b.thread.conns, link)
  if (c->fd == bed->fds[i]) break;
  if (c) rt_boot_conn_read(&bed->b, c);
  if (bed->ends[i] >= 0) fuzz_drain(bed->ends[i]);
}

static void take_step(struct fuzz_in *in, struct bed *bed) {
  uint8_t head = fuzz_u8(in);
  int i = (head >> 4) % CONNS, fd = bed->ends[i];
  size_t size;
  switch ((enum step)(head % STEPS)) {
    case RAW:
      size = fuzz_u8(in);
      const uint8_t *bytes = fuzz_take(in, &size);
      fuzz_write(fd, bytes, size);
      break;
    case HELLO: say_hello(in, fd); break;
    case MESSAGE: say_message(in, fd); break;
    case RING:
      send_message(fd, head & 8 ? RT_BOOT_GOODBYE : RT_BOOT_HEARTBEAT, fuzz_u32(in), 0, NULL, 0);
      break;
    case ABORT: say_abort(in, fd); break;
    case READ: read_conn(bed, i); break;
    case RECEIVE: receive(in, bed); break;
    case HANG_UP: rail_sock_close(&bed->ends[i]); break;
    case STEPS: break;
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  static struct bed bed;
  struct fuzz_in in = {data, size};
  open_bed(&bed);
  while (in.left) take_step(&in, &bed);
  for (int i = 0; i < CONNS; i++) read_conn(&bed, i);
  FUZZ_CHECK((bed.failures == 1) == (atomic_load(&bed.b.failed) != 0));
  close_bed(&bed);
}

/* ---- seeds ----------------------------------------------------------- */

static void put_step(struct fuzz_out *out, enum step step, unsigned int conn) { fuzz_put8(out, step + 16 * conn); }

static void put_hello(struct fuzz_out *out, unsigned int conn, unsigned int from, enum rt_boot_link link) {
  put_step(out, HELLO, conn);
  fuzz_put8(out, from | (unsigned int)link << 2);
}

static void put_message(struct fuzz_out *out, unsigned int conn, unsigned int tag, const char *text) {
  put_step(out, MESSAGE, conn);
  fuzz_put8(out, tag << 4);
  fuzz_put8(out, (unsigned int)strlen(text));
  fuzz_put(out, text, strlen(text));
}

static void put_raw(struct fuzz_out *out, unsigned int conn, const void *bytes, size_t size) {
  put_step(out, RAW, conn);
  fuzz_put8(out, (unsigned int)size);
  fuzz_put(out, bytes, size);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  put_hello(&out, 0, 0, RT_BOOT_LINK_DATA);
  put_hello(&out, 1, 0, RT_BOOT_LINK_RING);
  put_message(&out, 0, 1, "hello");
  put_message(&out, 0, 2, "");
  put_step(&out, READ, 0);
  put_step(&out, RECEIVE, 0);
  fuzz_put8(&out, 0x10);
  fuzz_put8(&out, 5);
  put_step(&out, RING, 1);
  fuzz_put32(&out, 100);
  put_step(&out, READ, 1);
  fuzz_seed("talk", out.bytes, out.size);

  out.size = 0;
  put_step(&out, ABORT, 4);
  fuzz_put16(&out, 8 + 16);
  fuzz_put32(&out, 2);
  fuzz_put32(&out, RAIL_REMOTE_ERROR);
  fuzz_put(&out, "rank 2 has died.", 16);
  put_step(&out, READ, 4);
  put_hello(&out, 0, 0, RT_BOOT_LINK_RING);
  fuzz_seed("abort", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, RING + 8 + 16 * 4);
  fuzz_put32(&out, 0);
  put_step(&out, READ, 4);
  put_step(&out, HANG_UP, 4);
  fuzz_seed("goodbye", out.bytes, out.size);

  struct {
    struct rt_boot_header head;
    struct rt_boot_peer_hello hello;
  } hello = {.head = rt_boot_header_make(RT_BOOT_PEER_HELLO, 0, sizeof hello.hello),
             .hello = {.from = 2, .to = SELF, .link = RT_BOOT_LINK_DATA, .nranks = NRANKS}};
  struct rt_boot_header gather = rt_boot_header_make(RT_BOOT_GATHER, 3, 4);
  memcpy(hello.hello.secret, secret, sizeof secret);
  out.size = 0;
  put_raw(&out, 2, &hello, sizeof hello);
  put_raw(&out, 2, &gather, sizeof gather);
  put_raw(&out, 2, "body", 4);
  fuzz_seed("raw", out.bytes, out.size);
}
