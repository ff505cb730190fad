/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * A rank that joins a rendezvous, when what answers is not one. Input: how
 * many ranks there are, then the answer.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "core/bootstrap/rt_rendezvous.h"
#include "test/fuzz/lib/fuzz.h"

static const uint8_t secret[RT_SECRET_BYTES] = "fifteen letters";
static union rail_addr root;
static int listener = -1;
static int wake[2]; /* a byte: there is an answer to give */
static const uint8_t *answer;
static size_t answer_size;

/* The rendezvous' part: reads the hello whole, gives the answer, ends the connection in order. */
static void *answerer(void *arg) {
  char byte, hello[sizeof(struct rt_boot_header) + sizeof(struct rt_boot_hello)];
  while (TEMP_FAILURE_RETRY(recv(wake[1], &byte, 1, 0)) == 1) { /* libFuzzer has an alarm */
    int fd = TEMP_FAILURE_RETRY(accept(listener, NULL, NULL));
    if (fd < 0) continue;
    if (TEMP_FAILURE_RETRY(recv(fd, hello, sizeof hello, MSG_WAITALL)) == sizeof hello) {
      if (answer_size) (void)!send(fd, answer, answer_size, MSG_NOSIGNAL);
      shutdown(fd, SHUT_WR);
      (void)!recv(fd, &byte, 1, 0); /* until the rank hangs up: it is its port that waits */
    }
    rail_sock_close(&fd);
    (void)!send(wake[1], "", 1, MSG_NOSIGNAL); /* this input is over */
  }
  return arg;
}

static void start(void) {
  static pthread_t thread;
  if (listener >= 0) return;
  root = (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t len = sizeof root;
  FUZZ_CHECK(bind(listener, &root.sa, sizeof root.in) == 0 && listen(listener, 4) == 0);
  FUZZ_CHECK(getsockname(listener, &root.sa, &len) == 0);
  FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wake) == 0);
  FUZZ_CHECK(pthread_create(&thread, NULL, answerer, NULL) == 0);
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  int nranks = 1 + fuzz_u8(&in) % 8;
  uint8_t session[RT_SECRET_BYTES];
  char byte;
  start();
  size_t table_size = (size_t)nranks * sizeof(union rail_addr);
  union rail_addr *table = (union rail_addr *)(void *)fuzz_guarded(table_size);
  struct rt_rendezvous_rank me = {
      .root = root, .secret = secret, .nranks = nranks, .own = root, .timeout_ms = 10000};
  answer = in.at;
  answer_size = in.left;
  (void)!send(wake[0], "", 1, 0);
  rail_result_t result = rt_rendezvous_join(&me, table, session);
  FUZZ_CHECK(TEMP_FAILURE_RETRY(recv(wake[0], &byte, 1, 0)) == 1);
  if (result == RAIL_OK) {
    FUZZ_CHECK(in.left >= sizeof(struct rt_boot_header) + sizeof(struct rt_boot_table) +
                              (size_t)nranks * sizeof(struct rail_addr_wire));
    for (int i = 0; i < nranks; i++)
      FUZZ_CHECK(table[i].sa.sa_family == AF_INET || table[i].sa.sa_family == AF_INET6);
  }
  fuzz_guarded_free((uint8_t *)table, table_size);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  const uint32_t nranks = 3;
  struct rail_addr_wire wire;
  union rail_addr addr;
  struct rt_boot_table first = {.secret = "session secret"};
  struct rt_boot_header head =
      rt_boot_header_make(RT_BOOT_TABLE, 0, sizeof first + nranks * sizeof(struct rail_addr_wire));
  FUZZ_CHECK(rail_addr_parse("10.1.2.3:4567", &addr) == RAIL_OK);
  rail_addr_pack(&addr, &wire);
  fuzz_put8(&out, nranks - 1);
  fuzz_put(&out, &head, sizeof head);
  fuzz_put(&out, &first, sizeof first);
  for (uint32_t i = 0; i < nranks; i++) fuzz_put(&out, &wire, sizeof wire);
  fuzz_seed("table", out.bytes, out.size);

  static const char why[] = "rank 0 is here already\n\x1b[31m";
  head = rt_boot_header_make(RT_BOOT_REFUSED, 0, sizeof why - 1);
  out.size = 0;
  fuzz_put8(&out, nranks - 1);
  fuzz_put(&out, &head, sizeof head);
  fuzz_put(&out, why, sizeof why - 1);
  fuzz_seed("refused", out.bytes, out.size);

  head.length = RT_BOOT_MAX_TEXT; /* the longest */
  out.size = 0;
  fuzz_put8(&out, nranks - 1);
  fuzz_put(&out, &head, sizeof head);
  for (unsigned int i = 0; i < RT_BOOT_MAX_TEXT; i++) fuzz_put8(&out, 'a' + i % 26);
  fuzz_seed("refused-long", out.bytes, out.size);

  out.size = 0;
  fuzz_put8(&out, 0);
  fuzz_put(&out, "HTTP/1.1 400 Bad Request\r\n", 26);
  fuzz_seed("http", out.bytes, out.size);
}
