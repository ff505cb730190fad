/* SPDX-License-Identifier: Apache-2.0
 * The carrier of a handshake's messages, over a socket pair, with a key and without: order, pieces, refusals, what is
 * not the other side's next message. */
#include "common/conn/handshake.h"

#include <errno.h>
#include <sys/socket.h>

#include "test/harness/tap.h"
#include "test/unit/key_file.h"

enum { TYPE_A = 2, TYPE_B = 3, OWN_REASON = 40 };

static struct rail_key no_key = {.plugin = "RailTest", .param = "NO_KEY"};
static struct rail_key a_key = {.plugin = "RailTest", .param = "KEY"};
static const struct rail_protocol protocols[] = {
  {.plugin = "RailTest", .tag = "RTT", .version = 5, .key = &no_key, .answer_payload = 8, .max_body = 100},
  {.plugin = "RailTest", .tag = "RTT", .version = 5, .key = &a_key, .answer_payload = 8, .max_body = 100},
};

struct pair {
  struct rail_handshake out, in; /* connector, acceptor */
};

static void open_pair(struct pair *p, const struct rail_protocol *protocol) {
  struct rail_handle listener = {.naddrs = 1, .auth = rail_key_on(protocol->key)};
  struct rail_hello hello = {.streams = 1}, received;
  uint8_t bytes[RAIL_HELLO_MAX];
  int fds[2];
  CHECK_OK(rail_addr_parse("127.0.0.1:1", &listener.addrs[0]));
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  CHECK_OK(rail_hello_encode(protocol, &listener, &hello, bytes));
  CHECK_INT(rail_hello_decode(protocol, &listener, bytes, &received), RAIL_REASON_NONE);
  rail_handshake_init(&p->out);
  rail_handshake_init(&p->in);
  rail_handshake_begin(&p->out, protocol, fds[0], true, &hello);
  rail_handshake_begin(&p->in, protocol, fds[1], false, &received);
}

static void close_pair(struct pair *p) {
  rail_handshake_close(&p->out);
  rail_handshake_close(&p->in);
}

static struct rail_message receive(struct rail_handshake *h) {
  struct rail_message message = {.type = 0};
  enum rail_reason reason;
  const char *why = "nothing came";
  rail_result_t result = rail_handshake_recv(h, &message, &reason, &why);
  CHECK_MSG(result == RAIL_OK, "%s", why);
  return message;
}

static unsigned int refused_with(struct rail_handshake *h) {
  struct rail_message message;
  enum rail_reason reason = RAIL_REASON_NONE;
  const char *why = "";
  CHECK_INT(rail_handshake_recv(h, &message, &reason, &why), RAIL_REMOTE_ERROR);
  CHECK(why[0]);
  return reason;
}

TEST(there_and_back) {
  for (size_t i = 0; i < RAIL_COUNT_OF(protocols); i++) {
    struct pair p;
    struct rail_message m;
    open_pair(&p, &protocols[i]);
    CHECK_OK(rail_handshake_send(&p.out, TYPE_A, "early", 5)); /* before the welcome */
    CHECK_OK(rail_handshake_flush(&p.out));
    CHECK_INT(rail_handshake_peek(&p.in), RAIL_OK);
    m = receive(&p.in);
    CHECK(m.type == TYPE_A && m.size == 5 && memcmp(m.body, "early", 5) == 0 && m.version == 5);
    CHECK_INT(rail_handshake_peek(&p.in), RAIL_IN_PROGRESS);
    CHECK_OK(rail_handshake_welcome(&p.in, "payload"));
    CHECK_OK(rail_handshake_send(&p.in, TYPE_B, NULL, 0));
    CHECK_OK(rail_handshake_flush(&p.in));
    CHECK(send(p.in.fd, "data", 4, MSG_NOSIGNAL) == 4); /* what follows the handshake stays in the socket */
    m = receive(&p.out);
    CHECK(m.type == RAIL_MESSAGE_ANSWER && m.reason == RAIL_REASON_NONE && m.size == 8);
    CHECK_STR((const char *)m.body, "payload");
    CHECK_INT((uintptr_t)m.body % 8, 0);
    m = receive(&p.out);
    CHECK(m.type == TYPE_B && m.size == 0);
    CHECK_INT(rail_handshake_peek(&p.out), RAIL_IN_PROGRESS);
    char data[5] = "";
    CHECK_INT(recv(p.out.fd, data, 4, 0), 4);
    CHECK_STR(data, "data");
    CHECK_OK(rail_handshake_send(&p.out, TYPE_B, "late", 4)); /* with the welcome's nonce */
    CHECK_OK(rail_handshake_flush(&p.out));
    CHECK_INT(receive(&p.in).type, TYPE_B);
    close_pair(&p);
  }
}

TEST(in_pieces) {
  struct pair p;
  struct rail_message m;
  enum rail_reason reason;
  const char *why;
  open_pair(&p, &protocols[1]);
  CHECK_OK(rail_handshake_send(&p.out, TYPE_A, "0123456789", 10));
  for (size_t i = 0; i < p.out.out_size; i++) {
    CHECK_INT(rail_handshake_recv(&p.in, &m, &reason, &why), RAIL_IN_PROGRESS);
    CHECK(send(p.out.fd, p.out.out + i, 1, MSG_NOSIGNAL) == 1);
  }
  m = receive(&p.in);
  CHECK(m.size == 10 && memcmp(m.body, "0123456789", 10) == 0);
  close_pair(&p);
}

TEST(refusals) {
  for (size_t i = 0; i < RAIL_COUNT_OF(protocols); i++) {
    struct pair p;
    open_pair(&p, &protocols[i]);
    rail_handshake_refuse(&p.in, RAIL_REASON_NONE, NULL); /* is none */
    CHECK(p.in.fd >= 0);
    rail_handshake_refuse(&p.in, OWN_REASON, "because");
    CHECK_INT(p.in.fd, -1);
    struct rail_message m = receive(&p.out);
    CHECK(m.type == RAIL_MESSAGE_ANSWER && m.reason == OWN_REASON);
    CHECK_STR((const char *)m.body, "because");
    CHECK_INT(refused_with(&p.out), RAIL_REASON_NONE); /* the end of the stream */
    CHECK_INT(rail_handshake_peek(&p.out), RAIL_REMOTE_ERROR);
    close_pair(&p);
  }
}

/* With a key, a message counts only from the other side, in its order, and as it was sent. */
TEST(not_the_next_message) {
  enum { REFLECTED, TWICE, CHANGED, OF_ANOTHER_NONCE, CASES };
  for (int what = 0; what < CASES; what++) {
    struct pair p;
    open_pair(&p, &protocols[1]);
    struct rail_handshake *to = &p.in;
    CHECK_OK(rail_handshake_send(&p.out, TYPE_A, "x", 1));
    size_t size = p.out.out_size;
    if (what == CHANGED) p.out.out[sizeof(struct rail_head_wire)] ^= 1;
    if (what == OF_ANOTHER_NONCE) p.in.session.nonce[0] ^= 1;
    CHECK(send(what == REFLECTED ? p.in.fd : p.out.fd, p.out.out, size, MSG_NOSIGNAL) == (ssize_t)size);
    if (what == REFLECTED) to = &p.out;
    if (what == TWICE) {
      CHECK_INT(receive(to).type, TYPE_A);
      CHECK(send(p.out.fd, p.out.out, size, MSG_NOSIGNAL) == (ssize_t)size);
    }
    CHECK_INT(refused_with(to), RAIL_REASON_MAC);
    close_pair(&p);
  }
}

TEST(bad_heads) {
  struct pair p;
  const struct rail_head_wire heads[] = {
    {.magic = "RTTX", .version = 5, .type = TYPE_A, .length = RAIL_MAC_SIZE},
    {.magic = "RTTM", .version = 6, .type = TYPE_A, .length = RAIL_MAC_SIZE},
    {.magic = "RTTM", .version = 5, .type = 0, .length = RAIL_MAC_SIZE},
    {.magic = "RTTM", .version = 5, .type = TYPE_A, .length = RAIL_MAC_SIZE - 1},
    {.magic = "RTTM", .version = 5, .type = TYPE_A, .length = 0xffffffff},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(heads); i++) {
    open_pair(&p, &protocols[0]);
    CHECK(send(p.out.fd, &heads[i], sizeof heads[i], MSG_NOSIGNAL) == sizeof heads[i]);
    CHECK_INT(refused_with(&p.in), RAIL_REASON_MESSAGE); /* without waiting for a body */
    close_pair(&p);
  }
}

TEST(too_much) {
  struct pair p;
  static const uint8_t body[101];
  open_pair(&p, &protocols[0]);
  CHECK_INT(rail_handshake_send(&p.out, TYPE_A, body, 101), RAIL_INTERNAL_ERROR);
  rail_result_t result;
  int n = 0;
  while ((result = rail_handshake_send(&p.out, TYPE_A, body, 100)) == RAIL_OK) n++;
  CHECK(result == RAIL_INTERNAL_ERROR && n == RAIL_HANDSHAKE_OUT / (int)rail_message_size(100));
  CHECK_OK(rail_handshake_flush(&p.out));
  for (; n > 0; n--) CHECK_INT(receive(&p.in).size, 100);
  close_pair(&p);
}

TEST(time_that_counts) {
  struct rail_handshake h;
  rail_handshake_init(&h);
  h.waited.noted -= 60ull * 1000000000; /* a minute in which this process was stopped */
  rail_handshake_note_time(&h);
  CHECK(h.waited.ns >= 1000000000ull && h.waited.ns < 2000000000ull);
  CHECK(rail_handshake_has_waited(&h, 1000) && !rail_handshake_has_waited(&h, 5000));
  CHECK(!rail_handshake_has_waited(&h, 0)); /* no limit */
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(there_and_back), TEST_CASE(in_pieces), TEST_CASE(refusals),
                                          TEST_CASE(not_the_next_message), TEST_CASE(bad_heads), TEST_CASE(too_much),
                                          TEST_CASE(time_that_counts)};
  make_key_dir();
  bool loaded = rail_key_load(&a_key, key_path) && rail_key_load(&no_key, NULL);
  remove_key_dir();
  return loaded ? tap_main(argc, argv, cases, RAIL_COUNT_OF(cases)) : 1;
}
