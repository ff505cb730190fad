/* SPDX-License-Identifier: Apache-2.0
 * What targets share, whoever drives them. */
#include "test/fuzz/lib/fuzz.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"

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
  for (size_t i = 0; i < STRIP; i++) FUZZ_CHECK(block[i] == STRIP_BYTE && data[size + i] == STRIP_BYTE);
  free(block);
}

void fuzz_socketpair(int fds[2]) {
  FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

size_t fuzz_write(int fd, const void *bytes, size_t size) {
  ssize_t n = size ? send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
  return n > 0 ? (size_t)n : 0;
}

void fuzz_drain(int fd) {
  char scratch[4096];
  while (recv(fd, scratch, sizeof scratch, MSG_DONTWAIT) > 0) continue;
}
