/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks for code that is shared by test programs, and small measuring tools.
 *
 * tap.h's CHECKs end a case with a longjmp inside one file and one thread.
 * ENSURE does the same from the harness's own files, from threads started
 * with run_threads() and from forked children: each ends only itself and its
 * starter fails with the message. Test programs use ENSURE where the code may
 * run in any of those places.
 */
#ifndef RAIL_TEST_ENSURE_H
#define RAIL_TEST_ENSURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ENSURE(cond, ...) \
  do { if (!(cond)) ensure_failed(__FILE__, __LINE__, __VA_ARGS__); } while (0)
#define ENSURE_INT(a, b)                                                                                      \
  do {                                                                                                        \
    long long ens_a_ = (long long)(a), ens_b_ = (long long)(b);                                               \
    if (ens_a_ != ens_b_) ensure_failed(__FILE__, __LINE__, "%s is %lld, expected %lld", #a, ens_a_, ens_b_); \
  } while (0)

_Noreturn void ensure_failed(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* How a failure ends the current case; program.h sets it to tap.h's way. */
typedef void (*ensure_handler_fn)(const char *file, int line, const char *fmt, ...);
void ensure_set_handler(ensure_handler_fn handler);

/* Runs fn(arg of size `stride` at args + i * stride) in n threads and joins
 * them; then fails with the first failure, if any. */
void run_threads(int n, void (*fn)(void *arg), void *args, size_t stride);

/* For code that must end a thread or child by itself; false: it failed, `why` says how. */
bool ensure_catch(void (*fn)(void *arg), void *arg, char *why, size_t why_size);

/* ---- numbers ---- */

/* A count scaled down by RAIL_TEST_SCALE or under a sanitizer; at least 1. */
int scaled(int n);
/* Milliseconds, multiplied under a sanitizer; at most RAIL_TEST_PATIENCE_MS. */
uint64_t patience_ms(uint64_t ms);

struct rng { uint64_t state; };
/* Seeded by RAIL_TEST_SEED or the clock, and printed. */
void rng_start(struct rng *rng);
uint64_t rng_next(struct rng *rng);
uint32_t rng_below(struct rng *rng, uint32_t n); /* 0 … n-1 */
void rng_shuffle(struct rng *rng, int *items, int n);

int fd_count(void);
int thread_count(void);
long rss_kb(void);
uint64_t process_cpu_ns(void);

#endif
