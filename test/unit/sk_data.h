/* SPDX-License-Identifier: Apache-2.0
 *
 * One side of a connection of the socket plugin, made as the handshake makes it, with the peer's ends of its streams in
 * the test's hands. No thread moves it: there is no engine, and the watch thread is replaced by the functions below,
 * so that it moves in the test's calls of isend, irecv, test and data_turn only.
 */
#ifndef SK_DATA_TEST_H
#define SK_DATA_TEST_H

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/conn/linger.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_failover.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"
#include "test/unit/sk_hello.h"

#define TIMEOUT_MS 10000
#define DATA_STREAMS 4
#define EAGER 4096

void sk_watch_add(struct sk_comm *comm) { (void)comm; }
void sk_watch_remove(struct sk_comm *comm) { (void)comm; }
struct sk_comm *sk_watch_take(void) { return NULL; }
void sk_watch_end(void) {}

static struct sk_device data_device = {.name = "none", .nrails = 1, .rails = {&data_device}};

struct data {
  struct sk_comm_args args;
  struct sk_comm *comm;
  int ends[DATA_STREAMS];
};

static inline struct sk_send_comm *data_sender(const struct data *d) {
  return rail_container_of(d->comm, struct sk_send_comm, base);
}
static inline struct sk_recv_comm *data_receiver(const struct data *d) {
  return rail_container_of(d->comm, struct sk_recv_comm, base);
}

/* ---- opening and closing ------------------------------------------------- */

static void data_prepare(void) {
  setenv("RAIL_SOCKET_ENGINE", "inline", 1);
  sk_params_load();
  rail_log_set_sink(log_capture);
  log_forget();
}

/* What data_begin does while an engine's thread, which reads the parameters, may be there. */
static void data_begin_another(struct data *d, enum sk_side side, unsigned int nstreams, uint32_t features) {
  *d = (struct data){.args = {.side = side,
                              .device = &data_device,
                              .nstreams = nstreams,
                              .eager_size = EAGER,
                              .eager_count = 64,
                              .eager_bytes = 16 * SK_MIN_EAGER_BYTES(EAGER),
                              .features = features}};
  for (unsigned int i = 0; i < DATA_STREAMS; i++) d->ends[i] = -1;
  for (unsigned int i = 0; i < nstreams; i++) {
    int fds[2];
    ENSURE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0, "no socket pair");
    d->ends[i] = fds[0];
    d->args.fds[i] = fds[1];
    d->args.nics[i] = &data_device;
    d->args.peers[i] = (union rail_addr){.in = {.sin_family = AF_INET}};
    rail_session_init(&d->args.sessions[i], &sk_protocol, side == SK_SENDER, &(struct rail_hello){.streams = nstreams});
  }
}

/* For who wants other limits, or a way for streams to come back: before data_open. */
__attribute__((unused)) static void data_begin(struct data *d, enum sk_side side, unsigned int nstreams,
                                               uint32_t features) {
  data_prepare();
  data_begin_another(d, side, nstreams, features);
}

static void data_write(const struct data *d, unsigned int stream, const void *bytes, size_t size) {
  size_t done = 0;
  ENSURE_INT(rail_sock_send_some(d->ends[stream], bytes, size, &done), RAIL_OK);
}

static void data_create(struct data *d) {
  void *comm;
  bool sends = d->args.side == SK_SENDER;
  ENSURE_INT(sends ? sk_send_create(&d->args, &comm) : sk_recv_create(&d->args, &comm), RAIL_OK);
  d->comm = comm;
}

static void data_welcome(const struct data *d, unsigned int stream) {
  const struct sk_answer_bytes welcome = sk_make_welcome(d->args.features);
  data_write(d, stream, &welcome, sizeof welcome);
}

__attribute__((unused)) static void data_open(struct data *d) {
  data_create(d);
  for (unsigned int i = 0; d->args.side == SK_SENDER && i < d->args.nstreams; i++) data_welcome(d, i);
}

__attribute__((unused)) static void data_end(struct data *d, unsigned int stream) { rail_sock_close(&d->ends[stream]); }

__attribute__((unused)) static void data_close(struct data *d) {
  ENSURE_INT(d->args.side == SK_SENDER ? sk_close_send(d->comm) : sk_close_recv(d->comm), RAIL_OK);
  for (unsigned int i = 0; i < DATA_STREAMS; i++) data_end(d, i);
  sk_close_all();
  rail_log_set_sink(NULL);
}

/* ---- moving it ------------------------------------------------------------ */

/* One progress call that reads whatever has come. */
static rail_result_t data_turn(const struct data *d) {
  ENSURE(sk_comm_try_own(d->comm), "another thread moves it");
  if (d->args.side == SK_SENDER) sk_send_read_soon(data_sender(d));
  else sk_recv_read_soon(data_receiver(d));
  rail_result_t result = sk_progress(d->comm);
  sk_comm_disown(d->comm);
  return result;
}

/* So many that nothing more comes of it by itself. */
__attribute__((unused)) static void data_settle(const struct data *d) {
  for (int i = 0; i < 20; i++) ENSURE_INT(data_turn(d), RAIL_OK);
}

/* What the watch thread does at a tick to streams that are lost or come back. */
__attribute__((unused)) static void data_tick(const struct data *d) {
  ENSURE(sk_comm_try_own(d->comm), "another thread moves it");
  sk_failover_tick(d->comm, rail_now_ns());
  sk_comm_disown(d->comm);
}

/* Once. *sizes may be NULL. */
static bool data_test(void *request, int *sizes) {
  int done = 0;
  ENSURE_INT(sk_test(request, &done, sizes), RAIL_OK);
  return done;
}

__attribute__((unused)) static void data_wait(void *request, int *sizes) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!data_test(request, sizes)) ENSURE(!rail_deadline_passed(deadline), "a request is not done");
}

/* Until it fails. */
__attribute__((unused)) static rail_result_t data_failure(void *request) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  rail_result_t result = RAIL_OK;
  for (int done = 0; result == RAIL_OK;) {
    result = sk_test(request, &done, NULL);
    ENSURE(!done, "a request is done that cannot be");
    ENSURE(!rail_deadline_passed(deadline), "a request neither fails nor is done");
  }
  return result;
}

/* ---- the peer speaks ------------------------------------------------------ */

__attribute__((unused)) static void data_send(const struct data *d, unsigned int stream, enum sk_frame_type type,
                                             unsigned int flags, uint32_t seq, uint64_t size, uint32_t len,
                                             uint32_t tag) {
  uint8_t head[SK_HEAD];
  sk_frame_encode(head, type, flags, seq, size, len, tag);
  data_write(d, stream, head, sizeof head);
}

static inline uint8_t data_byte(uint32_t seq, uint64_t at) { return (uint8_t)(seq * 31 + at * 7 + (at >> 8) + 1); }
static void data_fill(uint8_t *bytes, uint32_t seq, uint64_t from, size_t size) {
  for (size_t i = 0; i < size; i++) bytes[i] = data_byte(seq, from + i);
}
__attribute__((unused)) static void data_send_bytes(const struct data *d, unsigned int stream, uint32_t seq,
                                                   uint64_t from, size_t size) {
  uint8_t *bytes = malloc(size);
  ENSURE(bytes, "no memory");
  data_fill(bytes, seq, from, size);
  data_write(d, stream, bytes, size);
  free(bytes);
}
__attribute__((unused)) static void data_check_bytes(const uint8_t *bytes, uint32_t seq, uint64_t from, size_t size) {
  for (size_t i = 0; i < size; i++)
    ENSURE(bytes[i] == data_byte(seq, from + i), "byte %zu of message %u is wrong", (size_t)from + i, seq);
}

struct data_entry {
  enum sk_entry_kind kind;
  uint32_t key;
  uint64_t value;
};

/* A CONTROL frame: `seen` messages; `bytes` and `count` of credit given back in all; up to 8 entries. */
__attribute__((unused)) static void data_send_control(const struct data *d, unsigned int stream, uint32_t seen,
                                                     uint64_t bytes, uint32_t count, const struct data_entry *entries,
                                                     uint32_t n) {
  struct sk_entry wire[8];
  ENSURE(n <= RAIL_COUNT_OF(wire), "%u entries", n);
  for (uint32_t i = 0; i < n; i++)
    wire[i] = (struct sk_entry){
      .value = htole64(entries[i].value), .key = htole32(entries[i].key), .kind = htole32(entries[i].kind)};
  data_send(d, stream, SK_FRAME_CONTROL, 0, seen, bytes, n * (uint32_t)sizeof wire[0], count);
  if (n) data_write(d, stream, wire, n * sizeof wire[0]);
}

/* ---- this side sends ------------------------------------------------------- */

/* A message from `bytes`, which has what data_check_bytes expects. */
__attribute__((unused)) static void *data_isend(const struct data *d, uint8_t *bytes, uint32_t seq, size_t size,
                                                int tag) {
  void *request = NULL;
  data_fill(bytes, seq, 0, size);
  ENSURE_INT(sk_isend(d->comm, bytes, size, tag, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}

/* ---- the peer hears ------------------------------------------------------- */

/* Exactly so many bytes; moves the comm meanwhile. */
static void data_recv_bytes(const struct data *d, unsigned int stream, void *bytes, size_t size) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  size_t done = 0;
  while (rail_sock_recv_some(d->ends[stream], bytes, size, &done) == RAIL_IN_PROGRESS) {
    (void)data_turn(d);
    ENSURE(!rail_deadline_passed(deadline), "%zu of %zu bytes came over stream %u", done, size, stream);
  }
  ENSURE_INT(done, size);
}

__attribute__((unused)) static struct sk_frame data_recv(const struct data *d, unsigned int stream) {
  uint8_t head[SK_HEAD];
  struct sk_frame frame;
  data_recv_bytes(d, stream, head, sizeof head);
  ENSURE(sk_frame_decode(head, &frame), "no header on stream %u", stream);
  return frame;
}

/* The next frame is MSG or DATA with these bytes of message seq: offset, and how many. */
__attribute__((unused)) static struct sk_frame data_recv_payload(const struct data *d, unsigned int stream) {
  struct sk_frame frame = data_recv(d, stream);
  uint8_t *bytes = malloc(frame.len + 1);
  ENSURE(bytes, "no memory");
  data_recv_bytes(d, stream, bytes, frame.len);
  if (frame.len) data_check_bytes(bytes, frame.seq, frame.type == SK_FRAME_DATA ? frame.size : 0, frame.len);
  free(bytes);
  return frame;
}

/* Frames that the receiver has of a stream, in a CONTROL frame's entry. */
__attribute__((unused)) static struct data_entry data_frames_of(uint32_t stream, uint32_t generation, uint32_t frames) {
  return (struct data_entry){SK_ENTRY_FRAMES, stream | generation << 8, frames};
}

__attribute__((unused)) static void data_expect(const struct data *d, unsigned int stream, enum sk_frame_type type,
                                               uint32_t seq, uint64_t size) {
  struct sk_frame f = data_recv_payload(d, stream);
  ENSURE(f.type == type && f.seq == seq && f.size == size, "stream %u: frame type %u, seq %u, size %llu", stream,
         f.type, f.seq, (unsigned long long)f.size);
}

/* Does it have unread bytes? */
__attribute__((unused)) static bool data_is_readable(const struct data *d, unsigned int stream) {
  uint8_t byte;
  return recv(d->ends[stream], &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* Nothing came over it, however often the comm moves. */
__attribute__((unused)) static void data_recv_nothing(const struct data *d, unsigned int stream) {
  data_settle(d);
  ENSURE(!data_is_readable(d, stream), "stream %u has unread bytes", stream);
}

#endif
