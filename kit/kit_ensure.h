/* SPDX-License-Identifier: Apache-2.0
 *
 * Assertions, and small measuring tools, for processes of the kit and for test
 * programs. An ENSURE that is false ends the case in a process, a thread of
 * kit_run_threads(), whose starter fails with its message, or what kit_catch()
 * has called.
 */
#ifndef RAIL_KIT_ENSURE_H
#define RAIL_KIT_ENSURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ENSURE(cond, ...) \
  do { if (!(cond)) kit_failed(__FILE__, __LINE__, __VA_ARGS__); } while (0)
#define ENSURE_INT(a, b)                                                                                      \
  do {                                                                                                        \
    long long ens_a_ = (long long)(a), ens_b_ = (long long)(b);                                               \
    if (ens_a_ != ens_b_) kit_failed(__FILE__, __LINE__, "%s is %lld, expected %lld", #a, ens_a_, ens_b_); \
  } while (0)

_Noreturn void kit_failed(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* How a failure ends the current case; program.h sets it to tap.h's way. */
typedef void (*kit_failure_fn)(const char *file, int line, const char *fmt, ...);
void kit_on_failure(kit_failure_fn handler);

/* Ends the case: it cannot be run here, and why. Only from the main thread of a process that kit_on_skip was called
 * in. */
_Noreturn void kit_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void kit_on_skip(void (*handler)(const char *why));

/* Runs fn(arg of size `stride` at args + i * stride) in n threads and joins
 * them; then fails with the first failure, if any. */
void kit_run_threads(int n, void (*fn)(void *arg), void *args, size_t stride);

/* For code that must end a thread or child by itself; false: it failed, `why` has how. */
bool kit_catch(void (*fn)(void *arg), void *arg, char *why, size_t why_size);

/* A result that a call of the plugin's, or of NCCL's, returned, as number and name: "2 (system error)". Good until the
 * thread's fourth next call. */
const char *kit_rc_text(int rc);

/* ---- numbers ---- */

/* A count scaled down by RAIL_TEST_SCALE or under a sanitizer; at least 1. */
int kit_scaled(int n);
bool kit_sanitized(void); /* built so: slower, and its memory and exit codes are the sanitizer's */
/* Milliseconds, multiplied under a sanitizer; at most RAIL_TEST_PATIENCE_MS. */
uint64_t kit_patience_ms(uint64_t ms);
void kit_patience_cap(uint64_t ms); /* never more than this, from now on */

struct kit_rng { uint64_t state; };
/* Seeded by kit_seed's, where that was called, else by RAIL_TEST_SEED or the clock, and printed. */
void kit_seed(uint64_t seed);
void kit_rng_start(struct kit_rng *rng);
uint64_t kit_rng_next(struct kit_rng *rng);
uint32_t kit_rng_below(struct kit_rng *rng, uint32_t n); /* 0 … n-1 */
void kit_rng_shuffle(struct kit_rng *rng, int *items, int n);

/* Between two looks at what has not happened yet: gives the core away, and after many looks without news, which *quiet
 * counts, sleeps a little, since the plugin's threads and the other processes need the core. The caller sets *quiet to
 * 0 at news. */
void kit_rest(int *quiet);

int kit_fd_count(void);
int kit_thread_count(void);
/* How many there are, once they are no more than `expected`, or after ten seconds: the kernel counts a thread for a
 * moment after it was joined. */
int kit_threads_after(int expected);
long kit_rss_kb(void);
uint64_t kit_cpu_ns(void);

#endif
