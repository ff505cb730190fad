/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The rendezvous, as a real thread behind a loopback socket, among foreign connections
 * and ranks. Input: steps. At the end of each input the rendezvous is brought
 * to its own: by a rank that hangs up, or by the only rank there is.
 */
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "core/bootstrap/rt_rendezvous.h"
#include "test/fuzz/lib/fuzz.h"

#define CONNS 6
#define END_MS 20000

static const uint8_t secret[RT_SECRET_BYTES] = "fifteen letters";

enum step { RAW, HELLO, HANG_UP, LISTEN, STEPS };

static struct rt_boot_hello valid_hello(uint32_t rank, uint32_t nranks) {
  struct rt_boot_hello hello = {.rank = rank, .nranks = nranks, .timeout_ms = END_MS};
  union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_port = htons(1)}};
  memcpy(hello.secret, secret, sizeof secret);
  rail_addr_pack(&addr, &hello.addr);
  return hello;
}

/* A reset instead of a close: no ports wait in TIME_WAIT for the inputs to come. */
static void hang_up(int *fd) {
  struct linger now = {.l_onoff = 1};
  if (*fd >= 0) setsockopt(*fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  rail_sock_close(fd);
}

static int dial(const union rail_addr *root) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, &root->sa, rail_addr_len(root)) != 0) rail_sock_close(&fd);
  return fd;
}

static void say_hello(struct fuzz_in *in, int fd) {
  struct {
    struct rt_boot_header head;
    struct rt_boot_hello hello;
  } out = {.head = rt_boot_header_make(RT_BOOT_HELLO, 0, sizeof out.hello)};
  uint8_t flags = fuzz_u8(in);
  out.hello = valid_hello(flags & 3, 1 + (flags >> 2 & 3));
  if (flags & 0x10) out.hello.nranks = fuzz_u32(in);
  if (flags & 0x20) out.hello.rank = fuzz_u32(in);
  if (flags & 0x40) fuzz_fill(in, &out.hello.addr, sizeof out.hello.addr);
  if (flags & 0x80) out.head.length = fuzz_u32(in);
  fuzz_write(fd, &out, sizeof out);
}

/* What the rendezvous says is a table or a refusal. */
static void listen_to(int fd) {
  struct rt_boot_header head;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  if (poll(&p, 1, 0) != 1 || recv(fd, &head, sizeof head, MSG_DONTWAIT | MSG_PEEK) != sizeof head) return;
  FUZZ_CHECK(head.magic == RT_BOOT_MAGIC && (head.type == RT_BOOT_TABLE || head.type == RT_BOOT_REFUSED));
  FUZZ_CHECK(head.length <= sizeof(struct rt_boot_table) + RT_BOOT_MAX_RANKS * sizeof(struct rail_addr_wire));
}

static void take_step(struct fuzz_in *in, const union rail_addr *root, int *fds) {
  uint8_t head = fuzz_u8(in);
  int *fd = &fds[(head >> 4) % CONNS];
  size_t size;
  if (*fd < 0) *fd = dial(root);
  if (*fd < 0) return;
  switch ((enum step)(head % STEPS)) {
    case RAW:
      size = fuzz_u8(in);
      const uint8_t *bytes = fuzz_take(in, &size);
      fuzz_write(*fd, bytes, size);
      break;
    case HELLO: say_hello(in, *fd); break;
    case HANG_UP: hang_up(fd); break;
    case LISTEN: listen_to(*fd); break;
    case STEPS: break;
  }
}

static int threads(void) {
  int n = 0;
  DIR *dir = opendir("/proc/self/task");
  while (dir && readdir(dir)) n++;
  if (dir) closedir(dir);
  return n;
}

/* Until the thread is gone, and with it all that it had. */
static void bring_to_end(const union rail_addr *root, int threads_before) {
  struct {
    struct rt_boot_header head;
    struct rt_boot_hello hello;
  } last = {.head = rt_boot_header_make(RT_BOOT_HELLO, 0, sizeof last.hello), .hello = valid_hello(0, 1)};
  uint64_t deadline = rail_deadline_in_ms(END_MS);
  for (int fd; (fd = dial(root)) >= 0; hang_up(&fd)) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    fuzz_write(fd, &last, sizeof last);
    poll(&p, 1, 100); /* its answer, or its refusal */
    FUZZ_CHECK(!rail_deadline_passed(deadline));
  }
  while (threads() > threads_before) {
    sched_yield();
    FUZZ_CHECK(!rail_deadline_passed(deadline));
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  union rail_addr root = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  struct fuzz_in in = {data, size};
  int fds[CONNS], threads_before = threads();
  memset(fds, -1, sizeof fds);
  FUZZ_CHECK(rt_rendezvous_start(&root, secret, END_MS) == RAIL_OK);
  while (in.left) take_step(&in, &root, fds);
  for (int i = 0; i < CONNS; i++) hang_up(&fds[i]);
  bring_to_end(&root, threads_before);
}

/* ---- seeds ----------------------------------------------------------- */

static void put_step(struct fuzz_out *out, enum step step, unsigned int conn) { fuzz_put8(out, step + 16 * conn); }

static void put_hello(struct fuzz_out *out, unsigned int rank, unsigned int nranks) {
  put_step(out, HELLO, rank);
  fuzz_put8(out, rank | (nranks - 1) << 2);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  for (unsigned int rank = 0; rank < 3; rank++) put_hello(&out, rank, 3);
  put_step(&out, LISTEN, 0);
  fuzz_seed("three-ranks", out.bytes, out.size);

  out.size = 0;
  put_hello(&out, 0, 2);
  put_step(&out, HELLO, 3);
  fuzz_put8(&out, 0 | 1 << 2); /* a second rank 0 */
  put_step(&out, LISTEN, 3);
  put_step(&out, HANG_UP, 0);
  fuzz_seed("twice", out.bytes, out.size);

  struct {
    struct rt_boot_header head;
    struct rt_boot_hello hello;
  } raw = {.head = rt_boot_header_make(RT_BOOT_HELLO, 0, sizeof raw.hello), .hello = valid_hello(4095, 4096)};
  out.size = 0;
  put_step(&out, RAW, 1);
  fuzz_put8(&out, 30);
  fuzz_put(&out, &raw, 30);
  put_step(&out, RAW, 1);
  fuzz_put8(&out, sizeof raw - 30);
  fuzz_put(&out, (const uint8_t *)&raw + 30, sizeof raw - 30);
  fuzz_seed("raw", out.bytes, out.size);

  out.size = 0;
  put_step(&out, RAW, 2);
  fuzz_put8(&out, 16);
  fuzz_put(&out, "GET / HTTP/1.1\r\n", 16);
  put_hello(&out, 0, 1);
  fuzz_seed("foreign", out.bytes, out.size);
}
