/* SPDX-License-Identifier: Apache-2.0
 * Connections that the epoll engine moves, with the peer's ends in the test's hands: nothing of what a socket says, a
 * caller leaves or another owner held up is lost, though the caller stays away.
 * TEST-SAN: asan tsan */
#include <sys/syscall.h>

#include "plugin/socket/sk_engine.h"
#include "test/unit/sk_data.h"

#define LARGE (1 << 20)

static uint8_t bytes[LARGE];

static void begin(struct data *d, enum sk_side side) {
  data_begin(d, side, 1, 0);
  sk_params.engine = SK_ENGINE_EPOLL;
  data_open(d);
  ENSURE(d->comm->engine, "the engine did not take the connection: %s", log_lines);
}

static void end(struct data *d) {
  data_close(d);
  sk_engine_stop();
}

static void *irecv(const struct data *d, size_t size) {
  void *request, *data = bytes;
  ENSURE_INT(sk_irecv(d->comm, 1, &data, &size, &(int){0}, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}

/* Without a call of test, which would lend a hand. */
static void wait_until_done(const void *request) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!sk_request_is_done(request)) {
    ENSURE(!rail_deadline_passed(deadline), "the engine does not come");
    usleep(100);
  }
}

static void own(const struct data *d) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!sk_comm_try_own(d->comm)) ENSURE(!rail_deadline_passed(deadline), "another thread keeps the connection");
}

/* ---- receiver -------------------------------------------------------------- */

TEST(a_message_comes_in) {
  struct data d;
  begin(&d, SK_RECEIVER);
  for (uint32_t seq = 0; seq < 20; seq++) {
    void *request = irecv(&d, 100);
    if (seq % 2) usleep(2000); /* the thread sleeps */
    data_send(&d, 0, SK_FRAME_MSG, 0, seq, 100, 100, 0);
    data_send_bytes(&d, 0, seq, 0, 100);
    wait_until_done(request);
    data_check_bytes(bytes, seq, 0, 100);
    data_wait(request, NULL);
  }
  end(&d);
}

/* More than one read takes has come before the engine looks: it goes on without another event. */
TEST(a_read_that_was_full_is_not_the_last) {
  enum { N = 24, SIZE = EAGER };
  static uint8_t buffers[N][SIZE];
  struct data d;
  void *requests[N];
  begin(&d, SK_RECEIVER);
  for (int i = 0; i < N; i++) {
    void *data = buffers[i];
    size_t size = SIZE;
    CHECK_OK(sk_irecv(d.comm, 1, &data, &size, &(int){0}, NULL, NULL, &requests[i]));
  }
  own(&d);
  for (uint32_t i = 0; i < N; i++) {
    data_send(&d, 0, SK_FRAME_MSG, 0, i, SIZE, SIZE, 0);
    data_send_bytes(&d, 0, i, 0, SIZE);
  }
  sk_comm_disown(d.comm);
  for (int i = 0; i < N; i++) {
    wait_until_done(requests[i]);
    data_check_bytes(buffers[i], (uint32_t)i, 0, SIZE);
    data_wait(requests[i], NULL);
  }
  end(&d);
}

/* The event comes while another thread owns the connection. */
TEST(an_event_while_another_thread_owns) {
  struct data d;
  begin(&d, SK_RECEIVER);
  for (uint32_t seq = 0; seq < 10; seq++) {
    void *request = irecv(&d, 100);
    own(&d);
    data_send(&d, 0, SK_FRAME_MSG, 0, seq, 100, 100, 0);
    data_send_bytes(&d, 0, seq, 0, 100);
    usleep(2000);
    sk_comm_disown(d.comm);
    wait_until_done(request);
    data_wait(request, NULL);
  }
  end(&d);
}

/* A receive that is left in the ring because another thread owns the connection. */
TEST(a_receive_while_another_thread_owns) {
  struct data d;
  begin(&d, SK_RECEIVER);
  for (uint32_t seq = 0; seq < 10; seq++) {
    data_send(&d, 0, SK_FRAME_MSG, 0, seq, 100, 100, 0);
    data_send_bytes(&d, 0, seq, 0, 100);
    usleep(2000);
    own(&d);
    void *request = irecv(&d, 100);
    usleep(500);
    sk_comm_disown(d.comm);
    wait_until_done(request);
    data_wait(request, NULL);
  }
  end(&d);
}

/* The end of a stream in one event with its last bytes. */
TEST(the_end_comes_with_the_last_bytes) {
  struct data d;
  begin(&d, SK_RECEIVER);
  void *first = irecv(&d, 100), *second = irecv(&d, 100);
  own(&d);
  data_send(&d, 0, SK_FRAME_MSG, 0, 0, 100, 100, 0);
  data_send_bytes(&d, 0, 0, 0, 100);
  data_end(&d, 0);
  sk_comm_disown(d.comm);
  wait_until_done(first);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (sk_comm_error(d.comm) == RAIL_OK) {
    CHECK_MSG(!rail_deadline_passed(deadline), "the end of the stream goes unnoticed");
    usleep(100);
  }
  CHECK(!sk_request_is_done(second));
  data_wait(first, NULL);
  CHECK_INT(data_failure(second), RAIL_REMOTE_ERROR);
  end(&d);
}

/* Until the first message waits. The thread then sleeps soon. */
static void wait_until_unread(const struct data *d) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (bool waits = false; !waits; usleep(1000)) {
    ENSURE(!rail_deadline_passed(deadline), "no message is left unread");
    own(d);
    waits = data_receiver(d)->unread == SK_UNREAD_MESSAGE;
    sk_comm_disown(d->comm);
  }
}

/* A message that was left in the socket has had its event. What brings it in is the receive, and the end of the stream
 * behind it, which has had its own, shows in the buffer that stays empty. */
TEST(a_message_that_waits_and_the_end_behind_it) {
  enum { WAITING = 96 * 1024 };
  for (int by_another = 0; by_another < 2; by_another++) { /* owner, when the receive is posted */
    struct data d;
    data_begin(&d, SK_RECEIVER, 1, SK_FEATURE_AHEAD);
    sk_params.engine = SK_ENGINE_EPOLL;
    d.args.eager_size = WAITING;
    d.args.eager_bytes = SK_MIN_EAGER_BYTES(WAITING);
    data_open(&d);
    data_send(&d, 0, SK_FRAME_MSG, 0, 0, WAITING, WAITING, 0);
    data_send_bytes(&d, 0, 0, 0, WAITING);
    data_end(&d, 0);
    wait_until_unread(&d);
    void *data[] = {bytes, bytes + WAITING}, *request;
    size_t sizes[] = {WAITING, WAITING};
    if (by_another) own(&d);
    ENSURE_INT(sk_irecv(d.comm, 2, data, sizes, (int[]){0, 1}, NULL, NULL, &request), RAIL_OK);
    if (by_another) sk_comm_disown(d.comm);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
    while (sk_comm_error(d.comm) == RAIL_OK) {
      CHECK_MSG(!rail_deadline_passed(deadline), "the end of the stream goes unnoticed");
      usleep(100);
    }
    own(&d); /* which orders what the engine's thread has written */
    data_check_bytes(bytes, 0, 0, WAITING);
    sk_comm_disown(d.comm);
    CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
    end(&d);
  }
}

/* ---- sender ------------------------------------------------------------------ */

/* A message that is far larger than the socket goes on whenever the peer has read. */
TEST(a_socket_that_has_room_again) {
  static uint8_t got[64 * 1024];
  struct data d;
  void *request = NULL;
  begin(&d, SK_SENDER);
  data_fill(bytes, 0, 0, LARGE);
  data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 0, LARGE}, 1);
  CHECK_OK(sk_isend(d.comm, bytes, LARGE, 0, NULL, NULL, &request));
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (size_t received = 0; received < LARGE + SK_HEAD;) {
    ssize_t n = recv(d.ends[0], got, sizeof got, MSG_DONTWAIT);
    if (n > 0) received += (size_t)n;
    else usleep(200);
    CHECK_MSG(!rail_deadline_passed(deadline), "%zu bytes came", received);
  }
  wait_until_done(request);
  data_wait(request, NULL);
  end(&d);
}

/* Small sends behind others wait in the stream until one of them is tested. One look at each is enough. */
TEST(small_sends_leave_when_they_are_tested) {
  enum { N = 12 };
  struct data d;
  void *requests[N];
  uint8_t message[SK_HEAD + 8];
  begin(&d, SK_SENDER);
  data_fill(bytes, 0, 0, 8);
  for (int i = 0; i < N; i++) CHECK_OK(sk_isend(d.comm, bytes, 8, 0, NULL, NULL, &requests[i]));
  usleep(2000);
  for (int i = 0; i < N; i++) /* a test or two more, should the engine own the connection just then */
    if (data_test(requests[i], NULL)) requests[i] = NULL;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (int i = 0; i < N; i++) {
    size_t done = 0;
    while (rail_sock_recv_some(d.ends[0], message, sizeof message, &done) == RAIL_IN_PROGRESS) {
      CHECK_MSG(!rail_deadline_passed(deadline), "message %d has not left", i);
      usleep(100);
    }
  }
  for (int i = 0; i < N; i++)
    if (requests[i]) data_wait(requests[i], NULL);
  end(&d);
}

/* ---- both ----------------------------------------------------------------------- */

/* Poll contexts are used again, and the thread is none the worse for connections that end while it looks at them. */
TEST(connections_come_and_go) {
  data_prepare();
  sk_params.engine = SK_ENGINE_EPOLL;
  for (int i = 0; i < 50; i++) {
    struct data d;
    data_begin_another(&d, i % 2 ? SK_SENDER : SK_RECEIVER, 1, 0);
    data_open(&d);
    ENSURE(d.comm->engine, "the engine did not take the connection: %s", log_lines);
    for (int k = 0; k < 3; k++) data_send(&d, 0, SK_FRAME_PING, 0, 0, 0, 0, 0);
    CHECK_OK(d.args.side == SK_SENDER ? sk_close_send(d.comm) : sk_close_recv(d.comm));
    data_end(&d, 0);
    sk_close_all();
  }
  rail_log_set_sink(NULL);
  sk_engine_stop();
}

/* ---- several threads for one connection ------------------------------------------------ */

enum { THREADS = 3, STREAMS = DATA_STREAMS, BULK = 16 << 20 };

/* How many threads are in a bulk system call of a kind at the same time, and were at most. */
static struct calls {
  _Atomic int now, most;
} sends, receives;
static _Atomic bool watch_calls; /* each takes a millisecond */

static struct calls *begin_call(struct calls *calls, const struct msghdr *msg) {
  size_t size = 0;
  for (size_t i = 0; i < msg->msg_iovlen; i++) size += msg->msg_iov[i].iov_len;
  if (!atomic_load(&watch_calls) || size <= SK_ENGINE_INLINE_BYTES) return NULL;
  int now = atomic_fetch_add(&calls->now, 1) + 1, most = atomic_load(&calls->most);
  while (now > most && !atomic_compare_exchange_weak(&calls->most, &most, now)) continue;
  usleep(1000);
  return calls;
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags) {
  struct calls *calls = begin_call(&sends, msg);
  ssize_t n = syscall(SYS_sendmsg, fd, msg, flags);
  if (calls) atomic_fetch_sub(&calls->now, 1);
  return n;
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags) {
  struct calls *calls = begin_call(&receives, msg);
  ssize_t n = syscall(SYS_recvmsg, fd, msg, flags);
  if (calls) atomic_fetch_sub(&calls->now, 1);
  return n;
}

static void set_threads(void) {
  data_prepare();
  sk_params.engine = SK_ENGINE_EPOLL;
  sk_params.threads = THREADS;
}

static _Atomic uint32_t arrived, rounds_done;

/* Each item waits for the others, so it takes as many threads as there are items. */
static void meet(void *items, uint32_t i) {
  unsigned int *count = items;
  count[i]++;
  atomic_fetch_add(&arrived, 1);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (atomic_load(&arrived) % THREADS) ENSURE(!rail_deadline_passed(deadline), "no other thread helps");
}

static enum sk_poll_result share_a_meeting(void *arg, bool readable) {
  unsigned int counts[THREADS] = {0};
  (void)arg, (void)readable;
  ENSURE(sk_engine_can_share(), "there are no other threads");
  sk_engine_share(meet, counts, THREADS);
  for (int i = 0; i < THREADS; i++) ENSURE_INT(counts[i], 1);
  return atomic_fetch_add(&rounds_done, 1) < 20 ? SK_POLL_MORE : SK_POLL_IDLE;
}

TEST(all_threads_take_a_part_of_shared_work) {
  struct sk_poll_ctx *ctx;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  set_threads();
  CHECK(!sk_engine_can_share()); /* not in this thread */
  sk_engine_attach(&ctx, share_a_meeting, &ctx, NULL, 0);
  ENSURE(ctx, "there is no engine: %s", log_lines);
  while (atomic_load(&rounds_done) <= 20) ENSURE(!rail_deadline_passed(deadline), "shared work takes too long");
  sk_engine_detach(ctx, NULL, 0);
  sk_engine_stop();
  rail_log_set_sink(NULL);
}

static void with_four_streams(struct data *sender, struct data *receiver) {
  data_begin_another(receiver, SK_RECEIVER, STREAMS, 0);
  data_begin_another(sender, SK_SENDER, STREAMS, 0);
  for (unsigned int i = 0; i < STREAMS; i++) {
    data_welcome(sender, i);
    rail_sock_close(&receiver->args.fds[i]);
    rail_sock_close(&receiver->ends[i]);
    receiver->args.fds[i] = sender->ends[i];
    sender->ends[i] = -1;
    (void)rail_sock_set_buffers(receiver->args.fds[i], LARGE, LARGE);
    (void)rail_sock_set_buffers(sender->args.fds[i], LARGE, LARGE);
  }
  data_create(receiver);
  data_create(sender);
}

/* Both sides of a connection of four streams, moved by the engine's threads. */
TEST(threads_move_bulk_payloads_of_one_connection_together) {
  static uint8_t sent[BULK], received[BULK];
  struct data sender, receiver;
  set_threads();
  with_four_streams(&sender, &receiver);
  atomic_store(&watch_calls, true);
  for (uint32_t seq = 0; seq < 4; seq++) {
    void *in, *out, *data = received;
    size_t size = BULK - seq * 100001;
    CHECK_OK(sk_irecv(receiver.comm, 1, &data, &size, &(int){0}, NULL, NULL, &in));
    CHECK(!data_test(in, NULL)); /* the grant leaves at the latest now */
    out = data_isend(&sender, sent, seq, size, 0);
    wait_until_done(out);
    wait_until_done(in);
    data_check_bytes(received, seq, 0, size);
    data_wait(out, NULL);
    data_wait(in, NULL);
  }
  atomic_store(&watch_calls, false);
  CHECK_MSG(sends.most > 1 && receives.most > 1, "at the same time: %d sends, %d receives", sends.most, receives.most);
  CHECK_OK(sk_close_send(sender.comm));
  CHECK_OK(sk_close_recv(receiver.comm));
  sk_close_all();
  sk_engine_stop();
  rail_log_set_sink(NULL);
}

/* DATA that was read first waits for its announcement, behind a payload that the threads share: no event tells that it
 * may go on. Nor has it been lost where the end of the connection is read together with the announcement. */
static void take_chunk_that_waits(bool closed) {
  enum { SIZE = 256 * 1024, HALF = SIZE / 2 };
  static uint8_t buffers[2][SIZE];
  struct data d;
  void *requests[2];
  set_threads();
  data_begin_another(&d, SK_RECEIVER, 2, 0);
  for (int i = 0; i < 2; i++) (void)rail_sock_set_buffers(d.ends[i], LARGE, LARGE);
  data_create(&d);
  for (int i = 0; i < 2; i++) {
    void *data = buffers[i];
    CHECK_OK(sk_irecv(d.comm, 1, &data, &(size_t){SIZE}, &(int){0}, NULL, NULL, &requests[i]));
  }
  usleep(20000); /* what the calls left to the thread is done */
  own(&d);
  data_send(&d, 1, SK_FRAME_DATA, 0, 1, HALF, HALF, 0);
  data_send_bytes(&d, 1, 1, HALF, HALF);
  data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, SIZE, SIZE, 0);
  data_send_bytes(&d, 0, 0, 0, SIZE);
  data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 1, SIZE, HALF, 0);
  data_send_bytes(&d, 0, 1, 0, HALF);
  for (int i = 0; i < 2 && closed; i++) shutdown(d.ends[i], SHUT_WR);
  sk_comm_disown(d.comm);
  for (uint32_t i = 0; i < 2; i++) {
    wait_until_done(requests[i]);
    data_check_bytes(buffers[i], i, 0, SIZE);
    data_wait(requests[i], NULL);
  }
  end(&d);
}

TEST(a_chunk_that_waits_for_its_announcement) { take_chunk_that_waits(false); }
TEST(a_chunk_that_waits_for_its_announcement_before_the_end) { take_chunk_that_waits(true); }

TEST_MAIN(TEST_CASE(a_message_comes_in), TEST_CASE(a_read_that_was_full_is_not_the_last),
          TEST_CASE(an_event_while_another_thread_owns), TEST_CASE(a_receive_while_another_thread_owns),
          TEST_CASE(the_end_comes_with_the_last_bytes), TEST_CASE(a_message_that_waits_and_the_end_behind_it),
          TEST_CASE(a_socket_that_has_room_again),
          TEST_CASE(small_sends_leave_when_they_are_tested), TEST_CASE(connections_come_and_go),
          TEST_CASE(all_threads_take_a_part_of_shared_work),
          TEST_CASE(threads_move_bulk_payloads_of_one_connection_together),
          TEST_CASE(a_chunk_that_waits_for_its_announcement),
          TEST_CASE(a_chunk_that_waits_for_its_announcement_before_the_end))
