/* SPDX-License-Identifier: Apache-2.0
 * What a caller was told is sent arrives, also when the sender closes, finalizes and ends before the receiver reads.
 * TEST-LIMIT: 90
 * TEST-SAN: asan tsan */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

enum {
  MESSAGES = 8,
  SIZE = 64 << 10,  /* beyond what goes ahead of its receive: only what the receiver has posted is sent */
  GRANTING_MS = 50, /* in which the receiver says what it has posted */
  AWAY_MS = 3000,   /* longer than any finalize that waits for nothing but its own timeout of a second */
};

static const char *const engines[] = {"inline", "epoll"};
#define ENGINES (sizeof engines / sizeof engines[0])

/* One connection's story. */
struct story {
  const char *engine;
  const char *rcvbuf; /* the receiver's NCCL_SOCKET_RCVBUF; NULL: unset */
};

static void content(uint8_t *data, int message) {
  for (size_t i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 7 + i / 251 + (size_t)message * 31);
}

static void receive(struct pipes *io, void *arg) {
  const struct story *story = arg;
  static uint8_t in[MESSAGES][SIZE], in_vain[SIZE], expected[SIZE];
  struct kit_op ops[MESSAGES], more[MESSAGES];
  char handle[RAIL_NET_HANDLE_SIZE], ready = 1;
  struct kit_net n;
  setenv("RAIL_SOCKET_ENGINE", story->engine, 1);
  if (story->rcvbuf) setenv("NCCL_SOCKET_RCVBUF", story->rcvbuf, 1);
  kit_net_open(&n);
  void *listen = kit_net_listen(&n, handle);
  pipe_write(io, handle, sizeof handle);
  void *comm = kit_net_accept(&n, listen);
  for (int i = 0; i < MESSAGES; i++) {
    ops[i] = kit_op_recv(comm, in[i], SIZE, i);
    while (!kit_op_post(&n, &ops[i])) {}
  }
  uint64_t granted = rail_deadline_in_ms(GRANTING_MS);
  while (!rail_deadline_passed(granted)) ENSURE(!kit_op_test(&n, &ops[0]), "a message before anybody sent one");
  pipe_write(io, &ready, 1);
  pipe_read(io, &ready, 1); /* this process is stopped meanwhile */
  for (int i = 0; i < MESSAGES; i++) {
    kit_op_finish(&n, &ops[i]);
    more[i] = kit_op_recv(comm, in_vain, SIZE, i); /* the peer's kernel hears of it while it still delivers */
    while (!kit_op_post(&n, &more[i]) && !more[i].error) {} /* an error: it is known that the sender has ended */
  }
  for (int i = 0; i < MESSAGES; i++) {
    content(expected, i);
    ENSURE(ops[i].sizes[0] == SIZE && memcmp(in[i], expected, SIZE) == 0, "message %d is not what was sent", i);
  }
  ENSURE(n.vt->close_recv(comm) == 0 && n.vt->close_listen(listen) == 0, "a close failed");
  kit_net_close(&n);
}

static void send_and_end(struct pipes *io, void *arg) {
  const struct story *story = arg;
  static uint8_t out[MESSAGES][SIZE];
  struct kit_op ops[MESSAGES];
  char handle[RAIL_NET_HANDLE_SIZE], go;
  struct kit_net n;
  setenv("RAIL_SOCKET_ENGINE", story->engine, 1);
  setenv("RAIL_SOCKET_AHEAD", "0", 1);
  kit_net_open(&n);
  pipe_read(io, handle, sizeof handle);
  void *comm = kit_net_connect(&n, handle);
  pipe_read(io, &go, 1);
  for (int i = 0; i < MESSAGES; i++) {
    content(out[i], i);
    ops[i] = kit_op_send(comm, out[i], SIZE, i);
  }
  kit_ops_run(&n, ops, MESSAGES, (struct kit_ops_options){0}); /* all are with the kernel: the receiver is stopped */
  pipe_write(io, &go, 1);
  ENSURE(n.vt->close_send(comm) == 0, "closeSend failed");
  kit_net_close(&n);
}

struct both { struct proc receiver, sender; };

/* Both connected, the receives granted, the receiver stopped, and all sent. */
static struct both begin(struct story *story) {
  struct both b = {.receiver = proc_start(receive, story), .sender = proc_start(send_and_end, story)};
  char handle[RAIL_NET_HANDLE_SIZE], word;
  pipe_read(&b.receiver.io, handle, sizeof handle);
  pipe_write(&b.sender.io, handle, sizeof handle);
  pipe_read(&b.receiver.io, &word, 1);
  CHECK_MSG(kill(b.receiver.pid, SIGSTOP) == 0, "SIGSTOP: %s", strerror(errno));
  pipe_write(&b.sender.io, &word, 1);
  pipe_read(&b.sender.io, &word, 1);
  return b;
}

static void go_on(struct both *b) {
  char word = 1;
  pipe_write(&b->receiver.io, &word, 1);
  kill(b->receiver.pid, SIGCONT);
}

/* Everything lies in the receiver's kernel when the sender is gone. */
TEST(the_sender_has_ended) {
  struct story stories[ENGINES];
  struct both all[ENGINES];
  for (size_t i = 0; i < ENGINES; i++) {
    stories[i] = (struct story){.engine = engines[i]};
    all[i] = begin(&stories[i]);
  }
  for (size_t i = 0; i < ENGINES; i++) {
    proc_join(&all[i].sender);
    go_on(&all[i]);
    proc_join(&all[i].receiver);
  }
}

/* The receiver's kernel takes a part only; the rest is in the sender's, whose finalize must not throw it away. */
TEST(the_sender_finalizes_with_bytes_on_their_way) {
  struct story stories[ENGINES];
  struct both all[ENGINES];
  for (size_t i = 0; i < ENGINES; i++) {
    stories[i] = (struct story){.engine = engines[i], .rcvbuf = "64K"};
    all[i] = begin(&stories[i]);
  }
  usleep(AWAY_MS * 1000);
  for (size_t i = 0; i < ENGINES; i++) go_on(&all[i]);
  for (size_t i = 0; i < ENGINES; i++) {
    proc_join(&all[i].sender);
    proc_join(&all[i].receiver);
  }
}

TEST_MAIN(TEST_CASE(the_sender_has_ended), TEST_CASE(the_sender_finalizes_with_bytes_on_their_way))
