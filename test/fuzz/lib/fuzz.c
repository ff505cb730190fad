/* SPDX-License-Identifier: Apache-2.0
 * What targets share, with every driver. */
#include "test/fuzz/lib/fuzz.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/log.h"

#define STRIP 64
#define STRIP_BYTE 0xa7

void fuzz_failed(const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: %s is false\n", file, line, what);
  abort();
}

/* libFuzzer asks for no seeds; driver.c has the one that counts. */
__attribute__((weak)) void fuzz_seed(const char *name, const void *bytes, size_t size) {
  (void)name, (void)bytes, (void)size;
}

/* Formatting is part of what is tested: a %s of something that is no text crashes here. */
RAIL_PRINTF(5, 6)
static void swallow(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  (void)level, (void)flags, (void)file, (void)line;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
}

void fuzz_quiet(void) {
  static bool quiet;
  if (quiet) return;
  quiet = true;
  setenv("NCCL_DEBUG", "INFO", 1);
  rail_log_set_sink(swallow);
  signal(SIGPIPE, SIG_IGN);
}

char *fuzz_text(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  FUZZ_CHECK(text != NULL);
  if (size) memcpy(text, data, size);
  text[size] = 0;
  return text;
}

void fuzz_put(struct fuzz_out *out, const void *bytes, size_t size) {
  FUZZ_CHECK(out->size + size <= sizeof out->bytes);
  memcpy(out->bytes + out->size, bytes, size);
  out->size += size;
}

uint8_t *fuzz_guarded(size_t size) {
  uint8_t *block = malloc(size + 2 * STRIP);
  FUZZ_CHECK(block != NULL);
  memset(block, STRIP_BYTE, size + 2 * STRIP);
  return block + STRIP;
}

void fuzz_guarded_free(uint8_t *data, size_t size) {
  uint8_t *block = data - STRIP;
  FUZZ_CHECK(fuzz_all(block, STRIP, STRIP_BYTE) && fuzz_all(data + size, STRIP, STRIP_BYTE));
  free(block);
}

FUZZ_BULK bool fuzz_all(const uint8_t *data, size_t size, uint8_t byte) {
  uint8_t other = 0;
  for (size_t i = 0; i < size; i++) other |= data[i] ^ byte;
  return !other;
}

/* Byte `at` of message `seq` is rows[at] + 31 * seq, modulo 256. Twice the period, so that a row can begin anywhere. */
#define PERIOD ((size_t)1 << 16)
static uint8_t rows[2 * PERIOD];

static const uint8_t *row_at(uint64_t at) {
  if (!rows[0])
    for (size_t i = 0; i < sizeof rows; i++) rows[i] = (uint8_t)(i * 7 + (i >> 8) + 1);
  return rows + at % PERIOD;
}

FUZZ_BULK static void fill(uint8_t *restrict data, size_t size, const uint8_t *restrict row, uint8_t base) {
  for (size_t i = 0; i < size; i++) data[i] = (uint8_t)(row[i] + base);
}

void fuzz_pattern_fill(uint8_t *data, size_t size, uint32_t seq, uint64_t at) {
  for (size_t done = 0; done < size; done += PERIOD)
    fill(data + done, RAIL_MIN(size - done, PERIOD), row_at(at + done), (uint8_t)(seq * 31));
}

FUZZ_BULK static bool matches(const uint8_t *data, size_t size, const uint8_t *row, uint8_t base, int hole) {
  uint8_t wrong = 0, free_byte = (uint8_t)hole, none_free = hole < 0;
  for (size_t i = 0; i < size; i++)
    wrong |= (uint8_t)((data[i] != (uint8_t)(row[i] + base)) & ((data[i] != free_byte) | none_free));
  return !wrong;
}

bool fuzz_pattern_matches(const uint8_t *data, size_t size, uint32_t seq, uint64_t at, int hole) {
  bool right = true;
  for (size_t done = 0; done < size; done += PERIOD)
    right &= matches(data + done, RAIL_MIN(size - done, PERIOD), row_at(at + done), (uint8_t)(seq * 31), hole);
  return right;
}

void fuzz_socketpair(int fds[2]) {
  FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

size_t fuzz_write(int fd, const void *bytes, size_t size) {
  ssize_t n = size ? send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
  return n > 0 ? (size_t)n : 0;
}

void fuzz_drain(int fd) {
  static char scratch[1 << 17]; /* what a socket holds, in one call or two */
  while (recv(fd, scratch, sizeof scratch, MSG_DONTWAIT) == sizeof scratch) continue;
}
