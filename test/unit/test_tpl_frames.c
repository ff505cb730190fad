/* SPDX-License-Identifier: Apache-2.0
 * A peer that breaks the template's protocol: the connection ends with ncclRemoteError, and no request is done. */
#include <sys/socket.h>
#include <unistd.h>

#include "test/harness/tap.h"
#include "test/unit/tpl_open.h"

enum { SIZE = 40 };

static int peer;
static void *comm;

static void open_pair(bool sends) {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  peer = fds[1];
  comm = sends ? tpl_open_send(fds[0], peer) : tpl_open_recv(fds[0]);
  CHECK(comm);
}

static void say(unsigned int type, unsigned int slot, unsigned int buffer, int tag, uint64_t size) {
  const struct tpl_frame frame = {.type = type, .slot = slot, .buffer = buffer, .tag = tag, .size = size};
  uint8_t bytes[TPL_FRAME_SIZE + SIZE] = {0};
  size_t length = TPL_FRAME_SIZE + (type == TPL_DATA && size <= SIZE ? size : 0);
  tpl_frame_encode(&frame, bytes);
  CHECK_INT(write(peer, bytes, length), (ssize_t)length);
}

/* Two buffers, tags 0 and 1. */
static void *receive(uint8_t data[2][SIZE]) {
  void *at[2] = {data[0], data[1]}, *request = NULL;
  const size_t sizes[2] = {SIZE, SIZE};
  const int tags[2] = {0, 1};
  CHECK_INT(tpl_irecv(comm, 2, at, sizes, tags, NULL, NULL, &request), RAIL_OK);
  CHECK(request);
  return request;
}

static void *send_one(int tag) {
  static uint8_t data[SIZE];
  void *request = NULL;
  CHECK_INT(tpl_isend(comm, data, SIZE, tag, NULL, NULL, &request), RAIL_OK);
  return request;
}

static void ends(void *request, rail_result_t expected) {
  int done = 0;
  CHECK_INT(tpl_test(request, &done, NULL), expected);
  CHECK_INT(done, 0);
  CHECK_INT(tpl_test(request, &done, NULL), expected); /* and again */
}

static void close_pair(void) {
  CHECK_INT((((struct tpl_comm *)comm)->magic == TPL_SEND_MAGIC ? tpl_close_send : tpl_close_recv)(comm), RAIL_OK);
  close(peer);
}

TEST(receiver) {
  static const struct {
    unsigned int type, slot, buffer;
    uint64_t size;
    rail_result_t result;
  } wrong[] = {
    {TPL_DATA, 0, 0, 8, RAIL_REMOTE_ERROR},        /* a second message for one buffer */
    {TPL_DATA, 0, 2, 8, RAIL_REMOTE_ERROR},        /* a buffer that the receive has not */
    {TPL_DATA, 1, 0, 8, RAIL_REMOTE_ERROR},        /* a slot without a receive */
    {TPL_DATA, TPL_SLOTS, 0, 8, RAIL_REMOTE_ERROR},
    {TPL_GRANT, 0, 1, 8, RAIL_REMOTE_ERROR},       /* only a receiver sends it */
    {TPL_DONE, 0, 1, 0, RAIL_REMOTE_ERROR},
    {9, 0, 1, 0, RAIL_REMOTE_ERROR},
    {TPL_DATA, 0, 1, SIZE + 1, RAIL_BAD_USAGE},    /* more than fits: the caller's mistake, not the peer's */
    {TPL_DATA, 0, 1, UINT64_MAX, RAIL_REMOTE_ERROR},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    static uint8_t data[2][SIZE];
    open_pair(false);
    void *request = receive(data);
    int done = 0;
    say(TPL_DATA, 0, 0, 0, 8);
    CHECK_INT(tpl_test(request, &done, NULL), RAIL_OK);
    say(wrong[i].type, wrong[i].slot, wrong[i].buffer, 0, wrong[i].size);
    ends(request, wrong[i].result);
    close_pair();
  }
}

TEST(sender) {
  static const struct { unsigned int type, slot, buffer; int tag; } wrong[] = {
    {TPL_GRANT, 0, 0, 5}, /* a buffer that is taken */
    {TPL_GRANT, 0, 1, 5}, /* one that was granted before */
    {TPL_DONE, 0, 1, 0},  /* and not taken */
    {TPL_DONE, 0, 3, 0},
    {TPL_DATA, 0, 0, 0},
    {TPL_GRANT, 0, TPL_MAX_RECVS, 0},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    open_pair(true);
    say(TPL_GRANT, 0, 0, 3, SIZE);
    say(TPL_GRANT, 0, 1, 4, SIZE);
    void *request = send_one(3);
    CHECK(request);
    CHECK(!send_one(7)); /* no receive has that tag */
    say(wrong[i].type, wrong[i].slot, wrong[i].buffer, wrong[i].tag, 0);
    ends(request, RAIL_REMOTE_ERROR);
    close_pair();
  }
}

/* DONE for what the kernel has not taken yet. */
TEST(done_before_it_is_sent) {
  static uint8_t data[8 << 20];
  void *request = NULL;
  open_pair(true);
  say(TPL_GRANT, 2, 1, 0, sizeof data);
  CHECK_INT(tpl_isend(comm, data, sizeof data, 0, NULL, NULL, &request), RAIL_OK);
  CHECK(request);
  say(TPL_DONE, 2, 1, 0, 0);
  ends(request, RAIL_REMOTE_ERROR);
  close_pair();
}

/* The same call of test reads a send's DONE and the error behind it. */
TEST(a_send_is_done_before_the_error) {
  static uint8_t data[SIZE];
  int done = 0;
  open_pair(true);
  say(TPL_GRANT, 0, 0, 3, SIZE);
  void *request = send_one(3), *next = NULL;
  CHECK(request);
  say(TPL_DONE, 0, 0, 0, 0);
  say(TPL_DONE, 0, 0, 0, 0);
  CHECK_INT(tpl_test(request, &done, NULL), RAIL_OK);
  CHECK_INT(done, 1);
  CHECK_INT(tpl_isend(comm, data, SIZE, 3, NULL, NULL, &next), RAIL_REMOTE_ERROR);
  close_pair();
}

/* A receive is done when its DONEs are written, not before, whichever call writes them, and before an error behind. */
TEST(a_receive_whose_dones_find_no_room) {
  static uint8_t data[2][SIZE], from_comm[1 << 20];
  void *request = NULL;
  int done = 1;
  open_pair(false);
  for (int i = 0; done && i < 100000; i++) { /* the peer reads nothing */
    done = 0;
    request = receive(data);
    say(TPL_DATA, 0, 0, 0, 1);
    say(TPL_DATA, 0, 1, 0, 1);
    CHECK_INT(tpl_test(request, &done, NULL), RAIL_OK);
  }
  CHECK_INT(done, 0);
  CHECK_INT(tpl_test(request, &done, NULL), RAIL_OK);
  CHECK_INT(done, 0);
  while (read(peer, from_comm, sizeof from_comm) > 0) continue;
  void *next = receive(data); /* writes them */
  say(TPL_DONE, 0, 0, 0, 0);
  CHECK_INT(tpl_test(request, &done, NULL), RAIL_OK);
  CHECK_INT(done, 1);
  ends(next, RAIL_REMOTE_ERROR);
  close_pair();
}

/* A receive that was complete before the peer went wrong is done, though it is tested afterwards. */
TEST(what_was_done_stays_so) {
  int done = 0, sizes[2] = {-1, -1};
  static uint8_t data[2][SIZE];
  open_pair(false);
  void *first = receive(data), *second = receive(data);
  say(TPL_DATA, 0, 1, 0, 7);
  say(TPL_DATA, 0, 0, 0, 0);
  CHECK_INT(tpl_test(second, &done, NULL), RAIL_OK);
  CHECK_INT(done, 0);
  say(TPL_DONE, 0, 0, 0, 0);
  ends(second, RAIL_REMOTE_ERROR);
  CHECK_INT(tpl_test(first, &done, sizes), RAIL_OK);
  CHECK_INT(done, 1);
  CHECK_INT(sizes[0], 0);
  CHECK_INT(sizes[1], 7);
  close_pair();
}

TEST_MAIN(TEST_CASE(receiver), TEST_CASE(sender), TEST_CASE(done_before_it_is_sent),
          TEST_CASE(a_send_is_done_before_the_error), TEST_CASE(a_receive_whose_dones_find_no_room),
          TEST_CASE(what_was_done_stays_so))
