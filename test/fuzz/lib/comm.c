/* SPDX-License-Identifier: Apache-2.0
 * See comm.h. */
#include "test/fuzz/lib/comm.h"

#include <endian.h>
#include <sys/socket.h>

#include "common/conn/linger.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_wire.h"

static struct sk_device device = {
    .name = "fuzz0", .addr = {.in = {.sin_family = AF_INET}}, .nrails = 1, .rails = {&device}};
static uint8_t queue_bytes[FUZZ_STREAMS][FUZZ_QUEUE];
static struct rail_net_ctx ctx = {.traffic_class = -1};

struct fuzz_shape fuzz_shape(uint8_t head, uint32_t eager_size, uint32_t least_count) {
  return (struct fuzz_shape){.nstreams = 1 + head % FUZZ_STREAMS,
                             .failover = (head & 8) && head % FUZZ_STREAMS,
                             .eager_size = eager_size,
                             .eager_count = least_count + (head >> 4)};
}

/* Where streams could reconnect to, on loopback; none does. */
static struct sk_acceptor *acceptor(void) {
  static struct sk_acceptor *a;
  if (a) return a;
  device.addr.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FUZZ_CHECK(sk_acceptor_open(&device, -1, &a) == RAIL_OK);
  return a;
}

static void set_reconnect(struct sk_comm_args *args) {
  struct sk_acceptor *a = acceptor();
  const struct sk_limits limits = {.eager_size = args->eager_size,
                                   .eager_count = args->eager_count,
                                   .eager_bytes = args->eager_bytes,
                                   .features = args->features};
  if (args->side == SK_RECEIVER) {
    const struct sk_half_open_comm half_open = {.nstreams = args->nstreams, .limits = limits};
    pthread_mutex_lock(&a->lock);
    args->accepted = sk_accepted_new(a, &half_open);
    pthread_mutex_unlock(&a->lock);
    return;
  }
  /* Port 1 of this machine: refused. */
  struct sk_dial dials[FUZZ_STREAMS];
  union rail_addr peer = device.addr;
  rail_addr_set_port(&peer, 1);
  for (unsigned int i = 0; i < args->nstreams; i++) {
    sk_dial_init(&dials[i], &device, &peer, i, -1, RAIL_BIND_ADDR);
    dials[i].hello = (struct rail_hello){.stream = i, .streams = args->nstreams};
  }
  args->reconnect = sk_reconnect_new(&a->listener.handle, &limits, dials, args->nstreams);
}

static void open_comm(struct fuzz_comm *c, enum sk_side side, const struct fuzz_shape *shape) {
  static bool loaded;
  if (!loaded) sk_params_load();
  loaded = true;
  (void)acceptor(); /* once: its descriptors stay */
  fuzz_watch(&device, sizeof device);
  fuzz_watch(&sk_params, sizeof sk_params);
  struct sk_comm_args *args = &c->args;
  memset(c, 0, sizeof *c);
  args->side = side;
  args->device = &device;
  args->ctx = &ctx;
  args->nstreams = shape->nstreams;
  args->eager_size = shape->eager_size;
  args->eager_count = shape->eager_count;
  args->eager_bytes = SK_MIN_EAGER_BYTES(shape->eager_size) + 1024;
  args->features = shape->failover ? SK_FEATURE_FAILOVER : shape->nstreams == 1 ? SK_FEATURE_AHEAD : 0;
  for (unsigned int i = 0; i < shape->nstreams; i++) {
    int fds[2];
    fuzz_socketpair(fds);
    c->ends[i] = fds[0];
    args->fds[i] = fds[1];
    args->nics[i] = &device;
    args->peers[i] = (union rail_addr){.in = {.sin_family = AF_INET, .sin_port = htons(9)}};
    const struct rail_hello hello = {.stream = i, .streams = shape->nstreams};
    rail_session_init(&args->sessions[i], &sk_protocol, true, &hello);
    c->queues[i].bytes = queue_bytes[i];
  }
  if (shape->failover) set_reconnect(args);
  for (unsigned int i = shape->nstreams; i < FUZZ_STREAMS; i++) c->ends[i] = -1;
}

void fuzz_open_recv(struct fuzz_comm *c, const struct fuzz_shape *shape) {
  open_comm(c, SK_RECEIVER, shape);
  FUZZ_CHECK(sk_recv_create(&c->args, &c->comm) == RAIL_OK);
}

void fuzz_open_send(struct fuzz_comm *c, const struct fuzz_shape *shape) {
  open_comm(c, SK_SENDER, shape);
  FUZZ_CHECK(sk_send_create(&c->args, &c->comm) == RAIL_OK);
}

void fuzz_end_stream(struct fuzz_comm *c, unsigned int stream) { rail_sock_close(&c->ends[stream]); }

bool fuzz_queue(struct fuzz_comm *c, unsigned int stream, const void *bytes, size_t size) {
  struct fuzz_queue *q = &c->queues[stream];
  if (c->ends[stream] < 0 || q->size + size > FUZZ_QUEUE) return false;
  memcpy(q->bytes + q->size, bytes, size);
  q->size += size;
  return true;
}

void fuzz_deliver(struct fuzz_comm *c, unsigned int stream, size_t size) {
  struct fuzz_queue *q = &c->queues[stream];
  if (c->ends[stream] < 0) return;
  q->done += fuzz_write(c->ends[stream], q->bytes + q->done, RAIL_MIN(size, q->size - q->done));
  if (q->done == q->size) q->done = q->size = 0;
}

void fuzz_deliver_all(struct fuzz_comm *c) {
  for (unsigned int i = 0; i < c->args.nstreams; i++) fuzz_deliver(c, i, SIZE_MAX);
}

void fuzz_frame(uint8_t bytes[SK_HEAD], unsigned int type, unsigned int flags, uint32_t seq, uint64_t size,
                uint32_t len, uint32_t tag) {
  struct {
    uint8_t type, flags;
    uint16_t guard;
    uint32_t seq;
    uint64_t size;
    uint32_t len, tag;
    uint64_t reserved;
  } wire = {(uint8_t)type, (uint8_t)flags, htole16(SK_FRAME_GUARD), htole32(seq), htole64(size), htole32(len),
            htole32(tag), 0};
  _Static_assert(sizeof wire == SK_HEAD, "a frame's header");
  memcpy(bytes, &wire, sizeof wire);
}

void fuzz_close_comm(struct fuzz_comm *c) {
  /* With room in the sockets, so that what closing still has to say is written. */
  for (unsigned int i = 0; i < FUZZ_STREAMS; i++)
    if (c->ends[i] >= 0) fuzz_drain(c->ends[i]);
  FUZZ_CHECK((c->args.side == SK_SENDER ? sk_close_send(c->comm) : sk_close_recv(c->comm)) == RAIL_OK);
  for (unsigned int i = 0; i < FUZZ_STREAMS; i++) rail_sock_close(&c->ends[i]);
  sk_close_all();
}

size_t fuzz_size(uint8_t choice) {
  static const size_t sizes[] = {0, 1, 8, 63, 64, 65, 1000, 4096, 4097, 8192, 16384, 20000, 70000};
  return sizes[choice % RAIL_COUNT_OF(sizes)];
}
