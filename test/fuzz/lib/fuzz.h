/* SPDX-License-Identifier: Apache-2.0
 *
 * What a fuzz target has at hand. A target is one file with two functions:
 *
 *   fuzz_one          runs one input. It leaves nothing behind: no memory, no
 *                     descriptor, no state that makes the next input mean
 *                     something else; state.c checks that. What is made once
 *                     for all inputs is made whatever the first one is.
 *   fuzz_make_seeds   hands valid inputs to fuzz_seed; they become files of
 *                     test/fuzz/corpus/TARGET.
 *
 * The same file is linked with driver.c (a plain program that prints TAP) and
 * with clang's libFuzzer (make fuzz).
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void fuzz_one(const uint8_t *data, size_t size);
void fuzz_make_seeds(void);

/* state.c: what libFuzzer and driver.c call. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* For fuzz_one, when it runs for the first time: every run must leave this global as that one did. */
void fuzz_watch(const void *global, size_t size);

/* Only within fuzz_make_seeds. `name` becomes the file's name. */
void fuzz_seed(const char *name, const void *bytes, size_t size);

/* Once per process: the log is formatted and thrown away, writes to closed sockets do not kill. Cheap to call again. */
void fuzz_quiet(void);

/* A broken promise: says where, then aborts, which is what every fuzzer takes for a find. */
#define FUZZ_CHECK(cond)                                 \
  do {                                                    \
    if (!(cond)) fuzz_failed(__FILE__, __LINE__, #cond); \
  } while (0)
__attribute__((noreturn)) void fuzz_failed(const char *file, int line, const char *what);

/* ---- an input as a list of small steps ------------------------------- */

struct fuzz_in {
  const uint8_t *at;
  size_t left;
};

/* 0 when the input has ended. */
static inline uint8_t fuzz_u8(struct fuzz_in *in) {
  if (!in->left) return 0;
  in->left--;
  return *in->at++;
}
static inline uint16_t fuzz_u16(struct fuzz_in *in) {
  uint16_t low = fuzz_u8(in);
  return (uint16_t)(low | fuzz_u8(in) << 8);
}
static inline uint32_t fuzz_u32(struct fuzz_in *in) {
  uint32_t low = fuzz_u16(in);
  return low | (uint32_t)fuzz_u16(in) << 16;
}
static inline uint64_t fuzz_u64(struct fuzz_in *in) {
  uint64_t low = fuzz_u32(in);
  return low | (uint64_t)fuzz_u32(in) << 32;
}
/* Up to *size of the bytes that follow; *size becomes how many. */
static inline const uint8_t *fuzz_take(struct fuzz_in *in, size_t *size) {
  const uint8_t *at = in->at;
  if (*size > in->left) *size = in->left;
  in->at += *size;
  in->left -= *size;
  return at;
}
/* Fills `to`; what the input has too little of is zero. */
static inline void fuzz_fill(struct fuzz_in *in, void *to, size_t size) {
  size_t n = size;
  memset(to, 0, size);
  const uint8_t *from = fuzz_take(in, &n);
  if (n) memcpy(to, from, n);
}
/* A NUL-terminated copy in a block of its own, so that reading past its end is seen; free() it. */
char *fuzz_text(const uint8_t *data, size_t size);

/* ---- the same list, written by a seed -------------------------------- */

struct fuzz_out {
  uint8_t bytes[16384];
  size_t size;
};
void fuzz_put(struct fuzz_out *out, const void *bytes, size_t size);
static inline void fuzz_put8(struct fuzz_out *out, unsigned int value) { fuzz_put(out, &(uint8_t){(uint8_t)value}, 1); }
static inline void fuzz_put16(struct fuzz_out *out, unsigned int value) {
  fuzz_put8(out, value);
  fuzz_put8(out, value >> 8);
}
static inline void fuzz_put32(struct fuzz_out *out, uint32_t value) {
  fuzz_put16(out, value & 0xffff);
  fuzz_put16(out, value >> 16);
}
static inline void fuzz_put64(struct fuzz_out *out, uint64_t value) {
  fuzz_put32(out, (uint32_t)value);
  fuzz_put32(out, (uint32_t)(value >> 32));
}

/* ---- memory that code under test may write beyond --------------------- */

/* `size` bytes between two strips of known bytes; what a system call writes beyond them shows as well, which the
 * address sanitizer does not see. With the sanitizer its red zones lie outside the strips. */
uint8_t *fuzz_guarded(size_t size);
void fuzz_guarded_free(uint8_t *data, size_t size); /* checks the strips */

/* ---- many bytes ------------------------------------------------------ */

/* Loops over payloads, which the sanitizers do not look into: that would take most of a run's time. */
#define FUZZ_BULK __attribute__((no_sanitize("address", "undefined")))

/* Are all of them `byte`? */
bool fuzz_all(const uint8_t *data, size_t size, uint8_t byte);

/* Bytes from `at` on of message `seq`. */
void fuzz_pattern_fill(uint8_t *data, size_t size, uint32_t seq, uint64_t at);
/* Are they there? A byte may also be `hole`; negative: none may. */
bool fuzz_pattern_matches(const uint8_t *data, size_t size, uint32_t seq, uint64_t at, int hole);

/* ---- sockets --------------------------------------------------------- */

/* Two connected, non-blocking stream sockets of this process: what is written is there to be read at once. */
void fuzz_socketpair(int fds[2]);
/* Writes what the socket takes, and reads and forgets what is there. */
size_t fuzz_write(int fd, const void *bytes, size_t size);
void fuzz_drain(int fd);

#endif
