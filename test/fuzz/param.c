/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Values of parameters. Input: a byte that picks the kind of parameter, then
 * the text.
 */
#include <stdlib.h>

#include "common/base/compiler.h"
#include "common/base/param.h"
#include "test/fuzz/lib/fuzz.h"

static const struct rail_param rows[] = {
    {.name = "INT", .type = RAIL_PARAM_INT, .lo = -1, .hi = 64},
    {.name = "ANY", .type = RAIL_PARAM_INT, .lo = INT64_MIN, .hi = INT64_MAX},
    {.name = "BYTES", .type = RAIL_PARAM_BYTES, .lo = 4096, .hi = INT64_MAX},
    {.name = "MS", .type = RAIL_PARAM_MS, .lo = 0, .hi = 86400000},
    {.name = "BOOL", .type = RAIL_PARAM_BOOL},
    {.name = "ENUM", .type = RAIL_PARAM_ENUM, .words = "inline|epoll|uring"},
    {.name = "STRING", .type = RAIL_PARAM_STRING},
};

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  const struct rail_param *row = &rows[fuzz_u8(&in) % RAIL_COUNT_OF(rows)];
  int64_t number = 0x5a5a5a5a;
  char why[64] = "";
  char *text = fuzz_text(in.at, in.left);
  int result = rail_param_parse(row, text, &number, why, sizeof why);
  if (result == 0 && row->type <= RAIL_PARAM_MS) FUZZ_CHECK(number >= row->lo && number <= row->hi);
  if (result == 0 && row->type == RAIL_PARAM_BOOL) FUZZ_CHECK(number == 0 || number == 1);
  if (result == 0 && row->type == RAIL_PARAM_ENUM) FUZZ_CHECK(number >= 0 && number < 3);
  if (result != 0) FUZZ_CHECK(number == 0x5a5a5a5a && why[0] && strlen(why) < sizeof why);
  free(text);
}

static void seed(const char *name, uint8_t row, const char *text) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, row);
  fuzz_put(&out, text, strlen(text));
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  seed("int", 0, "17");
  seed("hex", 1, "-0x7fffffffffffffff");
  seed("bytes", 2, "8388607T");
  seed("bytes-k", 2, " 64 k");
  seed("seconds", 3, "30");
  seed("minutes", 3, "5m");
  seed("bool", 4, "false");
  seed("enum", 5, "EPOLL");
  seed("string", 6, "anything");
}
