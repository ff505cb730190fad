/* SPDX-License-Identifier: Apache-2.0
 * A message of more than 2^31 bytes arrives whole: no size is an int anywhere on the way.
 * TEST-LIMIT: 90
 * TEST-ALONE
 * TEST-SAN: none */
#include <sys/mman.h>
#include <unistd.h>

#include "test/harness/program.h"

#define PERIOD ((size_t)16 << 20)
#define HUGE_SIZE (((size_t)2 << 30) + 5)

static long long available_kb(void) {
  FILE *f = fopen("/proc/meminfo", "re");
  char line[128];
  long long kb = -1;
  while (f && kb < 0 && fgets(line, sizeof line, f))
    if (strncmp(line, "MemAvailable:", 13) == 0) kb = strtoll(line + 13, NULL, 10);
  if (f) fclose(f);
  return kb;
}

/* One 16 MiB pattern, mapped again and again behind itself: 2 GiB of address, 16 MiB of memory. */
static uint8_t *repeated(size_t size, uint64_t seed) {
  int fd = memfd_create("pattern", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, (off_t)PERIOD) == 0);
  uint8_t *base = mmap(NULL, size + PERIOD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(base != MAP_FAILED);
  for (size_t at = 0; at < size; at += PERIOD)
    CHECK(mmap(base + at, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
  close(fd);
  kit_pattern_fill(base, PERIOD, seed);
  return base;
}

TEST(two_gigabytes_and_five) {
  if (available_kb() < (8ll << 20))
    tap_skip_case("%lld MiB of memory are free, 8192 are needed", available_kb() / 1024);
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  if (n.version < 9) tap_skip_case("vtables below v9 carry at most 1 GiB");
  kit_pair_open(&n, &p);
  uint8_t *out = repeated(HUGE_SIZE, 77);
  struct kit_guarded in = kit_guard_high(HUGE_SIZE);
  void *send_mh = kit_mr_reg(&n, p.send, out, HUGE_SIZE), *recv_mh = kit_mr_reg(&n, p.recv, in.data, HUGE_SIZE);
  struct kit_op ops[4] = {kit_op_recv(p.recv, in.data, HUGE_SIZE, 0), kit_op_send(p.send, out, HUGE_SIZE, 0)};
  ops[0].mh[0] = recv_mh;
  ops[1].mh[0] = send_mh;
  kit_ops_run(&n, ops, 2, (struct kit_ops_how){.deadline_ms = 60000});
  for (size_t at = 0; at < HUGE_SIZE; at += PERIOD) {
    size_t part = HUGE_SIZE - at < PERIOD ? HUGE_SIZE - at : PERIOD;
    CHECK_MSG(memcmp(in.data + at, out, part) == 0, "the 16 MiB from offset %zu arrived wrong", at);
  }
  kit_pair_ping(&p, 1000, 5); /* the stream is in step afterwards */
  kit_mr_dereg(&n, p.send, send_mh);
  kit_mr_dereg(&n, p.recv, recv_mh);
  kit_pair_close(&p);
  munmap(out, HUGE_SIZE + PERIOD);
  kit_guard_free(&in);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(two_gigabytes_and_five))
