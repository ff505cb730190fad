/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests are programs. Each prints TAP: one "ok"/"not ok" line per case, a
 * skipped case with its reason; the runner (test/run.py) gives every program a
 * time limit and adds the cases up. A failed check prints the expression, both
 * values and the place, ends the case and lets the next one run.
 *
 *   TEST(addr_text_round_trip) { CHECK_STR(rail_addr_text(&a, t), "1.2.3.4:5"); }
 *   TEST_MAIN(TEST_CASE(addr_text_round_trip), ...)
 *
 * Programs take case names as arguments to run only those.
 */
#ifndef RAIL_TAP_H
#define RAIL_TAP_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tap_case { const char *name; void (*run)(void); };

static jmp_buf tap_end_;
static int tap_failed_;
static char tap_skip_[256];

#define TEST(name) static void test_##name(void)
#define TEST_CASE(name) { #name, test_##name }

__attribute__((format(printf, 3, 4), noreturn, unused)) static void tap_fail_(const char *file, int line,
                                                                            const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  printf("# %s:%d: ", file, line);
  vprintf(fmt, ap);
  printf("\n");
  va_end(ap);
  tap_failed_ = 1;
  longjmp(tap_end_, 1);
}

__attribute__((format(printf, 1, 2), noreturn, unused)) static void tap_skip_case(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(tap_skip_, sizeof tap_skip_, fmt, ap);
  va_end(ap);
  longjmp(tap_end_, 1);
}

#define CHECK(cond) \
  do { if (!(cond)) tap_fail_(__FILE__, __LINE__, "%s is false", #cond); } while (0)
#define CHECK_MSG(cond, ...) \
  do { if (!(cond)) tap_fail_(__FILE__, __LINE__, __VA_ARGS__); } while (0)
#define CHECK_INT(a, b)                                                                                    \
  do {                                                                                                     \
    int64_t tap_a_ = (int64_t)(a), tap_b_ = (int64_t)(b);                                                  \
    if (tap_a_ != tap_b_)                                                                                  \
      tap_fail_(__FILE__, __LINE__, "%s is %" PRId64 ", expected %" PRId64 " (%s)", #a, tap_a_, tap_b_, #b); \
  } while (0)
#define CHECK_STR(a, b)                                                                                  \
  do {                                                                                                   \
    const char *tap_a_ = (a), *tap_b_ = (b);                                                             \
    if (!tap_a_ || !tap_b_ || strcmp(tap_a_, tap_b_) != 0)                                               \
      tap_fail_(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #a, tap_a_ ? tap_a_ : "(null)",     \
                tap_b_ ? tap_b_ : "(null)");                                                             \
  } while (0)
#define CHECK_OK(call) CHECK_INT(call, 0)

__attribute__((unused)) static int tap_main(int argc, char **argv, const struct tap_case *cases, size_t n) {
  volatile int failed = 0, number = 0; /* they live across setjmp */
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (volatile size_t i = 0; i < n; i++) {
    bool wanted = argc < 2;
    for (int a = 1; a < argc; a++) wanted |= strcmp(argv[a], cases[i].name) == 0;
    if (!wanted) continue;
    tap_failed_ = 0;
    tap_skip_[0] = 0;
    if (setjmp(tap_end_) == 0) cases[i].run();
    number++;
    if (tap_failed_) failed++;
    if (tap_skip_[0] && !tap_failed_) printf("ok %d - %s # SKIP %s\n", number, cases[i].name, tap_skip_);
    else printf("%s %d - %s\n", tap_failed_ ? "not ok" : "ok", number, cases[i].name);
  }
  printf("1..%d\n", number);
  return failed ? 1 : 0;
}

#define TEST_MAIN(...)                                                              \
  int main(int argc, char **argv) {                                                 \
    static const struct tap_case cases[] = {__VA_ARGS__};                           \
    return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);             \
  }

#endif
