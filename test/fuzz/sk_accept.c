/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * A real listener on loopback among other clients, peers of bad faith and streams
 * that come back. Input: streams per connection, then steps. The handle's
 * secret is random; HELLOs that the steps make carry it, raw bytes can have it
 * put in.
 *
 * Held: a connection is accepted only when all its streams said a whole HELLO
 * that was right, and each of these streams is then answered with a welcome;
 * accept returns at once, whatever clients do; nothing stays open.
 */
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/conn/linger.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_param.h"
#include "test/fuzz/lib/fuzz.h"
#include "test/unit/sk_hello.h"

#define CONNS 8
#define COMMS 4
#define SLOW_MS 5000 /* one accept; it takes far less than 1 ms */

enum step { RAW, SECRET, HELLO, ACCEPT, HANG_UP, TIME, TAKE, CLOSE, STEPS };

struct bed {
  struct rail_handle handle;
  void *listener, *comms[COMMS];
  int fds[CONNS];
  unsigned int good[4]; /* by comm id: streams of which a right HELLO was sent, one bit each */
  int returned;         /* a stream that came back */
};

static const struct rail_net_ops *const ops = &rail_plugin_ops;
static void *ctx;

static void start(void) { /* and the watch thread, which the first connection starts */
  static const uint8_t one_peer[] = {0, HELLO, 0, 0, ACCEPT};
  struct rail_net_init args = {.traffic_class = -1};
  if (ctx) return;
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
  FUZZ_CHECK(ops->init(&ctx, &args) == RAIL_OK);
  fuzz_watch(&sk_params, sizeof sk_params);
  fuzz_one(one_peer, sizeof one_peer);
}

static int dial(const union rail_addr *to) {
  struct linger now = {.l_onoff = 1}; /* closed by a reset: no port waits for the inputs to come */
  int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  if (connect(fd, &to->sa, rail_addr_len(to)) != 0) rail_sock_close(&fd);
  return fd;
}

/* ---- steps ----------------------------------------------------------- */

static void send_hello(struct fuzz_in *in, struct bed *bed, int fd) {
  uint8_t flags = fuzz_u8(in), place = fuzz_u8(in);
  struct rail_hello hello = {.streams = bed->handle.param, .stream = place & 3, .reconnect = flags & 8};
  struct sk_limits limits = {.eager_size = 64, .eager_count = 4};
  limits.eager_bytes = SK_MIN_EAGER_BYTES(limits.eager_size);
  hello.comm_id[0] = flags & 3;
  limits.features = flags & 4 ? SK_FEATURE_FAILOVER : 0;
  if (flags & 0x10) hello.streams = fuzz_u8(in);
  if (flags & 0x20) limits.eager_size = fuzz_u32(in);
  if (flags & 0x40) limits.eager_bytes = fuzz_u32(in);
  struct sk_hello_bytes wire = sk_make_hello(&bed->handle, hello, limits, place >> 4);
  if (flags & 0x80) wire.head.flags = htole32(fuzz_u32(in));
  if (fuzz_write(fd, &wire, sizeof wire) != sizeof wire) return;
  if (hello.stream < 4 && !(le32toh(wire.head.flags) & ~RAIL_HELLO_RECONNECT))
    bed->good[flags & 3] |= 1u << hello.stream;
}

static void send_raw(struct fuzz_in *in, const struct bed *bed, int fd, bool secret) {
  uint8_t bytes[256];
  size_t size = fuzz_u8(in);
  fuzz_fill(in, bytes, size);
  if (secret && size >= 8 + RAIL_SECRET_SIZE) memcpy(bytes + 8, bed->handle.secret, RAIL_SECRET_SIZE);
  fuzz_write(fd, bytes, size);
}

static void accept_one(struct bed *bed, bool raw_secrets) {
  void *comm = NULL, **place = NULL;
  uint64_t start_at = rail_now_ns();
  FUZZ_CHECK(ops->accept(bed->listener, &comm, NULL) == RAIL_OK);
  FUZZ_CHECK(rail_now_ns() - start_at < SLOW_MS * 1000000ull);
  if (!comm) return;
  /* Every stream had its HELLO. (Raw ones with a secret are not counted.) */
  struct sk_comm *c = comm;
  bool known = raw_secrets;
  for (int i = 0; i < 4; i++) known |= (unsigned int)__builtin_popcount(bed->good[i]) >= c->nstreams;
  FUZZ_CHECK(known && c->nstreams >= 1 && c->nstreams <= SK_MAX_STREAMS);
  for (int i = 0; i < COMMS && !place; i++)
    if (!bed->comms[i]) place = &bed->comms[i];
  if (place) *place = comm;
  else FUZZ_CHECK(ops->close_recv(comm) == RAIL_OK);
}

static void take_back(struct bed *bed, int i) {
  unsigned int stream = SK_MAX_STREAMS;
  struct sk_comm *c = bed->comms[i];
  if (!c || !c->accepted) return;
  rail_sock_close(&bed->returned);
  rail_result_t result = sk_accepted_take(c->accepted, &stream, &bed->returned, &(struct sk_tls *){NULL});
  FUZZ_CHECK(result == RAIL_IN_PROGRESS || result == RAIL_OK);
  FUZZ_CHECK((result == RAIL_OK) == (bed->returned >= 0));
  if (result == RAIL_OK) FUZZ_CHECK(stream < c->nstreams);
}

static void set_hello_timeout(const struct sk_listen *listener) {
  listener->acceptor->listener.pending.hello_ms = (uint64_t)sk_params.handshake_ms;
}

static void take_step(struct fuzz_in *in, struct bed *bed, bool *raw_secrets) {
  uint8_t head = fuzz_u8(in);
  int place = head >> 4 & (CONNS - 1), *fd = &bed->fds[place];
  enum step step = (enum step)(head & 0x0f) % STEPS;
  if (step <= HELLO && *fd < 0) *fd = dial(&bed->handle.addrs[0]);
  switch (step) {
    case RAW: send_raw(in, bed, *fd, false); break;
    case SECRET:
      *raw_secrets = true;
      send_raw(in, bed, *fd, true);
      break;
    case HELLO: send_hello(in, bed, *fd); break;
    case ACCEPT:
      if (bed->listener) accept_one(bed, *raw_secrets);
      break;
    case HANG_UP: rail_sock_close(fd); break;
    case TIME: /* for those that come from here on */
      sk_params.handshake_ms = head & 0x80 ? 0 : 10000;
      if (bed->listener) set_hello_timeout(bed->listener);
      break;
    case TAKE: take_back(bed, place % COMMS); break;
    case CLOSE:
      if (place < COMMS) {
        FUZZ_CHECK(ops->close_recv(bed->comms[place]) == RAIL_OK);
        bed->comms[place] = NULL;
      } else if (head & 0x80) {
        FUZZ_CHECK(ops->close_listen(bed->listener) == RAIL_OK);
        bed->listener = NULL;
      }
      break;
    case STEPS: break;
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct bed bed = {.returned = -1};
  uint8_t bytes[RAIL_NET_HANDLE_SIZE];
  const char *why;
  bool raw_secrets = false;
  start();
  memset(bed.fds, -1, sizeof bed.fds);
  const struct sk_params params = sk_params;
  sk_params.streams = 1 + fuzz_u8(&in) % 4;
  sk_params.handshake_ms = 10000;
  FUZZ_CHECK(ops->listen(ctx, 0, bytes, &bed.listener) == RAIL_OK);
  FUZZ_CHECK(rail_handle_decode(&sk_protocol, bytes, &bed.handle, &why));
  while (in.left) take_step(&in, &bed, &raw_secrets);
  for (int i = 0; i < 2 && bed.listener; i++) accept_one(&bed, raw_secrets);
  for (int i = 0; i < CONNS; i++) rail_sock_close(&bed.fds[i]);
  rail_sock_close(&bed.returned);
  for (int i = 0; i < COMMS; i++) FUZZ_CHECK(ops->close_recv(bed.comms[i]) == RAIL_OK);
  FUZZ_CHECK(ops->close_listen(bed.listener) == RAIL_OK);
  sk_close_all();
  sk_params = params;
}

/* ---- seeds ----------------------------------------------------------- */

static void put_step(struct fuzz_out *out, enum step step, unsigned int place) { fuzz_put8(out, step | place << 4); }

static void put_hello(struct fuzz_out *out, unsigned int conn, unsigned int flags, unsigned int stream,
                      unsigned int counter) {
  put_step(out, HELLO, conn);
  fuzz_put8(out, flags);
  fuzz_put8(out, stream | counter << 4);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, 1); /* two peers of two streams, mixed, and another client */
  put_hello(&out, 0, 0, 0, 0);
  put_hello(&out, 1, 1, 1, 0);
  put_step(&out, ACCEPT, 0);
  put_step(&out, RAW, 4);
  fuzz_put8(&out, 16);
  fuzz_put(&out, "GET / HTTP/1.1\r\n", 16);
  put_hello(&out, 2, 1, 0, 0);
  put_hello(&out, 3, 0, 1, 0);
  for (int i = 0; i < 3; i++) put_step(&out, ACCEPT, 0);
  fuzz_seed("two-peers", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 0); /* a stream that comes back, twice; the listener is closed meanwhile */
  put_hello(&out, 0, 4, 0, 0);
  put_step(&out, ACCEPT, 0);
  put_step(&out, HANG_UP, 0);
  put_hello(&out, 1, 4 | 8, 0, 1);
  put_step(&out, TAKE, 0);
  put_step(&out, CLOSE, 8 + 4);
  put_hello(&out, 2, 4 | 8, 0, 2);
  put_hello(&out, 3, 4 | 8, 0, 2);
  put_step(&out, TAKE, 0);
  put_step(&out, CLOSE, 0);
  fuzz_seed("reconnect", out.bytes, out.size);

  const struct sk_limits limits = {.eager_size = 8192, .eager_count = 64, .eager_bytes = 1 << 20};
  const struct sk_hello_bytes wire =
    sk_make_hello(&(struct rail_handle){.naddrs = 1}, (struct rail_hello){.streams = 1}, limits, 0);
  out.size = 0;
  fuzz_put8(&out, 0);
  put_step(&out, SECRET, 0);
  fuzz_put8(&out, sizeof wire);
  fuzz_put(&out, &wire, sizeof wire);
  put_step(&out, SECRET, 1);
  fuzz_put8(&out, 40);
  fuzz_put(&out, &wire, 40);
  put_step(&out, ACCEPT, 0);
  put_step(&out, RAW, 1);
  fuzz_put8(&out, sizeof wire - 40);
  fuzz_put(&out, (const uint8_t *)&wire + 40, sizeof wire - 40);
  put_step(&out, ACCEPT, 0);
  fuzz_seed("raw", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 1);
  put_step(&out, TIME, 8);
  put_hello(&out, 0, 0, 0, 0);
  put_step(&out, RAW, 1);
  fuzz_put8(&out, 4);
  fuzz_put(&out, &wire, 4);
  put_step(&out, ACCEPT, 0);
  put_step(&out, ACCEPT, 0);
  fuzz_seed("late", out.bytes, out.size);
}
