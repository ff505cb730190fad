/* SPDX-License-Identifier: Apache-2.0
 * Parameters: parsing, ranges, warnings, the generated tables. */
#include <stdatomic.h>

#include "common/base/log.h"
#include "common/base/param.h"
#include "common/base/param_names.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

struct values {
  int64_t number, bytes, ms, flag, word;
  const char *text;
};

static const struct rail_param rows[] = {
  {.name = "RAIL_TESTP_NUMBER", .type = RAIL_PARAM_INT, .def = "4", .lo = -1, .hi = 64, .doc = "A number.",
   .offset = offsetof(struct values, number)},
  {.name = "RAIL_TESTP_BYTES", .type = RAIL_PARAM_BYTES, .def = "64K", .lo = 0, .hi = 1ll << 40, .doc = "A size.",
   .offset = offsetof(struct values, bytes)},
  {.name = "RAIL_TESTP_MS", .type = RAIL_PARAM_MS, .def = "30s", .lo = 1, .hi = INT64_MAX, .doc = "A time.",
   .offset = offsetof(struct values, ms)},
  {.name = "RAIL_TESTP_FLAG", .type = RAIL_PARAM_BOOL, .def = "1", .doc = "A flag.",
   .offset = offsetof(struct values, flag)},
  {.name = "RAIL_TESTP_WORD", .type = RAIL_PARAM_ENUM, .def = "thread", .words = "inline|thread|uring",
   .doc = "A word.", .offset = offsetof(struct values, word)},
  {.name = "RAIL_TESTP_TEXT", .type = RAIL_PARAM_STRING, .doc = "A text.", .offset = offsetof(struct values, text)},
};
static const struct rail_param_table table = {.module = "test", .rows = rows, .count = sizeof rows / sizeof rows[0]};

static void start_capture(void) {
  log_forget();
  rail_log_set_sink(log_capture);
}

static void clear_env(void) {
  for (size_t i = 0; i < table.count; i++) unsetenv(rows[i].name);
}

TEST(defaults) {
  struct values v;
  memset(&v, 0xa5, sizeof v);
  clear_env();
  start_capture();
  rail_param_load(&table, &v);
  CHECK_INT(v.number, 4);
  CHECK_INT(v.bytes, 65536);
  CHECK_INT(v.ms, 30000);
  CHECK_INT(v.flag, 1);
  CHECK_INT(v.word, 1);
  CHECK(v.text == NULL);
  CHECK_INT(log_warnings(), 0);
}

TEST(values_from_the_environment) {
  struct values v, again;
  clear_env();
  start_capture();
  setenv("RAIL_TESTP_NUMBER", "-1", 1);
  setenv("RAIL_TESTP_BYTES", "2g", 1);
  setenv("RAIL_TESTP_MS", "1500ms", 1);
  setenv("RAIL_TESTP_FLAG", "Off", 1);
  setenv("RAIL_TESTP_WORD", "URING", 1);
  setenv("RAIL_TESTP_TEXT", "hello", 1);
  rail_param_load(&table, &v);
  CHECK_INT(v.number, -1);
  CHECK_INT(v.bytes, 2ll << 30);
  CHECK_INT(v.ms, 1500);
  CHECK_INT(v.flag, 0);
  CHECK_INT(v.word, 2);
  CHECK_STR(v.text, "hello");
  rail_param_load(&table, &again);
  CHECK(again.text == v.text); /* one copy, however often it is loaded */
  setenv("RAIL_TESTP_TEXT", "other", 1);
  rail_param_load(&table, &again);
  CHECK_STR(v.text, "hello");
  CHECK_STR(again.text, "other");
  CHECK_INT(log_warnings(), 0);
  clear_env();
}

TEST(empty_value_is_the_default) {
  struct values v;
  clear_env();
  start_capture();
  setenv("RAIL_TESTP_NUMBER", "", 1);
  rail_param_load(&table, &v);
  CHECK_INT(v.number, 4);
  CHECK_INT(log_warnings(), 0);
  clear_env();
}

TEST(bad_value_warns_once_with_name_value_and_range) {
  struct values v;
  clear_env();
  start_capture();
  setenv("RAIL_TESTP_NUMBER", "65", 1);
  rail_param_load(&table, &v);
  rail_param_load(&table, &v);
  CHECK_INT(v.number, 4);
  CHECK_INT(log_warnings(), 1);
  CHECK(log_said("RAIL_TESTP_NUMBER=65"));
  CHECK(log_said("-1..64"));
  clear_env();
}

static bool accepts(int row, const char *text, int64_t want) {
  int64_t got = -12345;
  char why[256] = "";
  if (rail_param_parse(&rows[row], text, &got, why, sizeof why) == 0) return got == want;
  if (!why[0]) printf("# refused \"%s\" without a reason\n", text);
  return false;
}

static bool refuses(int row, const char *text) {
  int64_t got = -12345;
  char why[256] = "";
  return rail_param_parse(&rows[row], text, &got, why, sizeof why) == -1 && why[0] && got == -12345;
}

TEST(numbers) {
  CHECK(accepts(0, "010", 10));
  CHECK(accepts(0, "0x1F", 31));
  CHECK(accepts(0, "+3", 3));
  CHECK(accepts(0, " 5 ", 5));
  CHECK(refuses(0, ""));
  CHECK(refuses(0, "-2"));
  CHECK(refuses(0, "65"));
  CHECK(refuses(0, "5x"));
  CHECK(refuses(0, "5K"));
  CHECK(refuses(0, "1 2"));
  CHECK(refuses(0, "99999999999999999999"));
}

TEST(sizes_and_times) {
  CHECK(accepts(1, "1T", 1ll << 40));
  CHECK(accepts(1, "0x10k", 16384));
  CHECK(refuses(1, "2T"));
  CHECK(refuses(1, "9223372036854775807K"));
  CHECK(refuses(1, "18014398509481985K")); /* 2^64 + 1024, which 64 bits would take for 1024 */
  CHECK(refuses(1, "K"));
  CHECK(refuses(1, "1KB"));
  CHECK(accepts(2, "2", 2000));
  CHECK(accepts(2, "2 s", 2000));
  CHECK(accepts(2, "2m", 120000));
  CHECK(accepts(2, "7MS", 7));
  CHECK(refuses(2, "0"));
  CHECK(refuses(2, "2h"));
}

TEST(flags_and_words) {
  static const char *const yes[] = {"1", "on", "yes", "true", "TRUE"}, *const no[] = {"0", "off", "no", "false", "No"};
  for (int i = 0; i < 5; i++) {
    CHECK(accepts(3, yes[i], 1));
    CHECK(accepts(3, no[i], 0));
  }
  CHECK(refuses(3, "2"));
  CHECK(refuses(3, "y"));
  CHECK(accepts(4, "inline", 0));
  CHECK(refuses(4, "in"));
  CHECK(refuses(4, "inline|thread"));
  CHECK(refuses(4, ""));
}

TEST(unknown_names) {
  const struct rail_param_table *tables[] = {&table};
  clear_env();
  setenv("RAIL_TESTP_NUMBR", "1", 1);          /* near one of ours */
  setenv("RAIL_QQQQQQQQQQQQQQQQ", "1", 1);     /* near nothing */
  setenv("RAIL_TESTP_NUMBER", "1", 1);         /* ours */
  setenv("RAIL_SOCKET_ANYTHING", "1", 1);      /* another module's, of which no table is here */
  setenv("RAIL_NCHANNELS", "1", 1);            /* the runtime's */
  start_capture();
  rail_param_check_unknown(tables, 1);
  rail_param_check_unknown(tables, 1);
  CHECK_INT(log_warnings(), 2);
  CHECK(log_said("RAIL_TESTP_NUMBR is no variable of Railyard"));
  CHECK(log_said("did you mean RAIL_TESTP_NUMBER?"));
  CHECK(log_said("RAIL_QQQQQQQQQQQQQQQQ is no variable"));
  CHECK(!log_said("RAIL_SOCKET"));
  unsetenv("RAIL_TESTP_NUMBR");
  unsetenv("RAIL_QQQQQQQQQQQQQQQQ");
  clear_env();
}

/* Of another module's names only the prefix is known. */
TEST(a_mistyped_prefix) {
  const struct rail_param_table *tables[] = {&table};
  clear_env();
  setenv("RAIL_SOKET_STREAMS", "1", 1);
  setenv("RAIL_SO_STREAMS", "1", 1);
  start_capture();
  rail_param_check_unknown(tables, 1);
  CHECK(log_said("did you mean RAIL_SOCKET_STREAMS?"));
  CHECK(log_said("RAIL_SO_STREAMS is no variable of Railyard and has no effect") && log_warnings() == 2);
  unsetenv("RAIL_SOKET_STREAMS");
  unsetenv("RAIL_SO_STREAMS");
}

/* A third of the letters may differ. */
TEST(how_near_a_name_must_be) {
  static const struct rail_param own[] = {{.name = "RAIL_QVWXYZQVWX", .type = RAIL_PARAM_INT, .hi = 9}};
  static const struct rail_param_table near_table = {.module = "near", .rows = own, .count = 1};
  const struct rail_param_table *tables[] = {&near_table};
  setenv("RAIL_QVWXY12345", "1", 1);
  start_capture();
  rail_param_check_unknown(tables, 1);
  CHECK(log_said("RAIL_QVWXY12345 is no variable of Railyard and has no effect; did you mean RAIL_QVWXYZQVWX?"));
  unsetenv("RAIL_QVWXY12345");
  setenv("RAIL_QVWX123456", "1", 1);
  start_capture();
  rail_param_check_unknown(tables, 1);
  CHECK(log_said("RAIL_QVWX123456 is no variable") && !log_said("did you mean"));
  unsetenv("RAIL_QVWX123456");
}

/* The module that owns a prefix does complain under it. */
TEST(a_prefix_does_not_excuse_its_owner) {
  static const struct rail_param own[] = {{.name = "RAIL_SOCKET_STREAMS", .type = RAIL_PARAM_INT, .hi = 9}};
  static const struct rail_param_table socket_table = {.module = "socket", .rows = own, .count = 1};
  const struct rail_param_table *tables[] = {&socket_table};
  setenv("RAIL_SOCKET_STREMS", "1", 1);
  start_capture();
  rail_param_check_unknown(tables, 1);
  CHECK(log_said("did you mean RAIL_SOCKET_STREAMS?"));
  unsetenv("RAIL_SOCKET_STREMS");
  unsetenv("RAIL_SOCKET_ANYTHING");
}

/* The list, and behind it the plugins' prefixes. */
TEST(known_names_are_sorted_and_ours) {
  bool prefixes = false;
  for (size_t i = 0; i < rail_param_names_count; i++) {
    const char *name = rail_param_names[i];
    CHECK(strncmp(name, "RAIL_", 5) == 0);
    if (i > 0 && strcmp(rail_param_names[i - 1], name) >= 0) {
      CHECK_MSG(!prefixes, "%s", name);
      prefixes = true;
    }
    if (prefixes) CHECK_MSG(name[strlen(name) - 1] == '*', "%s", name);
  }
  CHECK(prefixes);
}

TEST(print) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  rail_param_print(out, &table, 1);
  fclose(out);
  CHECK(strstr(text, "| `RAIL_TESTP_WORD` | word | thread | inline\\|thread\\|uring | A word. |\n"));
  CHECK(strstr(text, "| `RAIL_TESTP_MS` | time | 30s | >= 1 ms | A time. |\n"));
  free(text);
  out = open_memstream(&text, &size);
  rail_param_print(out, &table, 0);
  fclose(out);
  CHECK(strstr(text, "RAIL_TESTP_TEXT"));
  int lines = 0;
  for (const char *c = text; *c; c++) lines += *c == '\n';
  CHECK_INT(lines, table.count);
  free(text);
}

TEST_MAIN(TEST_CASE(defaults), TEST_CASE(values_from_the_environment), TEST_CASE(empty_value_is_the_default),
          TEST_CASE(bad_value_warns_once_with_name_value_and_range), TEST_CASE(numbers), TEST_CASE(sizes_and_times),
          TEST_CASE(flags_and_words), TEST_CASE(unknown_names), TEST_CASE(a_mistyped_prefix),
          TEST_CASE(how_near_a_name_must_be), TEST_CASE(a_prefix_does_not_excuse_its_owner),
          TEST_CASE(known_names_are_sorted_and_ours), TEST_CASE(print))
