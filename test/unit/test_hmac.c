/* SPDX-License-Identifier: Apache-2.0
 * Key files, libcrypto, macs. */
#include "common/conn/hmac.h"

#include <dlfcn.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/sock.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"
#include "test/unit/key_file.h"

#define NEW_KEY {.plugin = "RailTest", .param = "RAIL_TEST_AUTH_FILE"}

/* Stands before libc's: a machine without OpenSSL. */
static bool no_crypto;
static int crypto_opened;
void *dlopen(const char *name, int flags) {
  static void *(*real)(const char *, int);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
  if (name && strstr(name, "libcrypto")) {
    crypto_opened++;
    if (no_crypto) return NULL;
  }
  return real(name, flags);
}

static void begin(void) {
  make_key_dir();
  rail_log_set_sink(log_capture);
  log_forget();
  crypto_opened = 0;
}

static void end(void) {
  rail_log_set_sink(NULL);
  remove_key_dir();
}

/* ---- key files ----------------------------------------------------------- */

struct key_file { const char *bytes; size_t size; mode_t mode; const char *complaint; };

static void try_file(const struct key_file *k) {
  struct rail_key key = NEW_KEY;
  char said[160];
  begin();
  if (k->bytes) write_key(k->bytes, k->size, k->mode);
  else unlink(key_path);
  const char *path = !k->bytes && k->size ? key_dir : key_path;
  int free_before = dup(1);
  rail_sock_close(&(int){free_before});
  CHECK_INT(rail_key_load(&key, path), !k->complaint);
  CHECK_INT(rail_key_on(&key), !k->complaint);
  int free_after = dup(1);
  rail_sock_close(&(int){free_after});
  CHECK_INT(free_after, free_before); /* the file is closed, whatever was in it */
  snprintf(said, sizeof said, k->complaint ? "RailTest: RAIL_TEST_AUTH_FILE=%s cannot be used: "
                                           : "RailTest: connections are authenticated (%s)", path);
  CHECK_MSG(log_said(said) && (!k->complaint || log_said(k->complaint)), "it said: %s", log_lines);
  log_forget();
  CHECK_INT(rail_key_load(&key, key_path), !k->complaint); /* the same answer again, without another line */
  CHECK_STR(log_lines, "");
  end();
}

TEST(key_files) {
  static const char longest[4097] = {1};
  const struct key_file files[] = {
    {key_text, 32, 0600, NULL},      {key_text, 33, 0440, NULL},        {key_text, 16, 0600, NULL},
    {key_text, 15, 0600, "16 bytes"}, {"0123456789abcde\n", 16, 0600, "16 bytes"}, {"", 0, 0600, "16 bytes"},
    {longest, 4096, 0600, NULL},     {longest, 4097, 0600, "4096"},     {key_text, 32, 0604, "all users"},
    {key_text, 32, 0602, "all users"}, {key_text, 32, 0601, "all users"},
    {NULL, 0, 0, "No such file"},    {NULL, 1, 0, "not a file"}};
  for (size_t i = 0; i < RAIL_COUNT_OF(files); i++) try_file(&files[i]);
}

TEST(the_library_is_opened_only_when_wanted) {
  struct rail_key key = NEW_KEY;
  begin();
  CHECK(rail_key_load(&key, NULL) && !rail_key_on(&key));
  CHECK_INT(crypto_opened, 0);
  CHECK(rail_key_load(&key, key_path) && !rail_key_on(&key)); /* too late */
  end();
}

TEST(a_machine_without_the_library) {
  struct rail_key key = NEW_KEY;
  begin();
  no_crypto = true;
  bool good = rail_key_load(&key, key_path);
  no_crypto = false;
  CHECK(!good && !rail_key_on(&key));
  CHECK_INT(crypto_opened, 2);
  CHECK(log_said("RailTest: RAIL_TEST_AUTH_FILE is set") && log_said("libcrypto") && log_said("not installed"));
  end();
}

/* ---- macs ---------------------------------------------------------------- */

/* The expected one was computed by Python's hmac. */
TEST(macs) {
  static const uint8_t expected[RAIL_MAC_SIZE] = {
    0x13, 0x7e, 0x65, 0x57, 0xc3, 0xc1, 0x3a, 0x1c, 0xa5, 0xdc, 0x7e, 0x52, 0xa3, 0x89, 0xa0, 0xf8,
    0x6b, 0xe8, 0xcb, 0x4d, 0xb4, 0xae, 0x61, 0xc6, 0x23, 0x96, 0x05, 0x8b, 0x00, 0xac, 0xac, 0xd0};
  static const char text[] = "what do ya want for nothing?";
  struct rail_key key = NEW_KEY, other = NEW_KEY, none = NEW_KEY;
  uint8_t mac[RAIL_MAC_SIZE], changed[RAIL_MAC_SIZE];
  begin();
  CHECK(rail_key_load(&key, key_path) && rail_key_load(&none, NULL));
  CHECK_OK(rail_key_mac(&key, text, sizeof text - 1, mac));
  CHECK(memcmp(mac, expected, sizeof mac) == 0);
  CHECK_OK(rail_key_mac(&key, text, sizeof text - 2, changed));
  CHECK(!rail_same_bytes(mac, changed, sizeof mac));
  write_key("another key of enough bytes", 27, 0600); /* of another plugin in this process */
  CHECK(rail_key_load(&other, key_path));
  CHECK_OK(rail_key_mac(&other, text, sizeof text - 1, changed));
  CHECK(!rail_same_bytes(mac, changed, sizeof mac));
  CHECK_OK(rail_key_mac(&key, text, sizeof text - 1, changed));
  CHECK(rail_same_bytes(mac, changed, sizeof mac));
  CHECK_INT(rail_key_mac(&none, text, sizeof text - 1, mac), RAIL_SYSTEM_ERROR);
  CHECK(log_said("RailTest: libcrypto cannot make an HMAC-SHA-256"));
  end();
}

/* Parts are one message, whatever their number; the label is before them. */
TEST(macs_of_parts) {
  static const char label[RAIL_LABEL_SIZE] = "a label";
  static const uint8_t large[RAIL_MAC_INPUT_MAX];
  struct rail_key key = NEW_KEY;
  static const uint8_t digits[5] = {'1', '2', '3', '4', '5'};
  uint8_t whole[RAIL_LABEL_SIZE + sizeof digits], mac[RAIL_MAC_SIZE], parts_mac[RAIL_MAC_SIZE];
  begin();
  CHECK(rail_key_load(&key, key_path));
  memcpy(whole, label, sizeof label);
  memcpy(whole + sizeof label, digits, sizeof digits);
  CHECK_OK(rail_key_mac(&key, whole, sizeof whole, mac));
  const struct rail_mac_part parts[] = {{"12", 2}, {"", 0}, {"345", 3}};
  CHECK_OK(rail_key_mac_of(&key, label, parts, 3, parts_mac));
  CHECK(rail_same_bytes(mac, parts_mac, sizeof mac));
  CHECK_OK(rail_key_mac_of(&key, "another label is not that label", parts, 3, parts_mac));
  CHECK(!rail_same_bytes(mac, parts_mac, sizeof mac));
  CHECK_OK(rail_key_mac_of(&key, label, &(struct rail_mac_part){large, sizeof large - sizeof label}, 1, mac));
  CHECK_INT(rail_key_mac_of(&key, label, &(struct rail_mac_part){large, sizeof large - sizeof label + 1}, 1, mac),
            RAIL_INTERNAL_ERROR);
  end();
}

TEST(same_bytes) {
  uint8_t a[40], b[40];
  memset(a, 0x5a, sizeof a);
  memcpy(b, a, sizeof b);
  CHECK(rail_same_bytes(a, b, sizeof a) && rail_same_bytes(a, b, 0));
  for (size_t bit = 0; bit < 8 * sizeof a; bit++) {
    b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    CHECK(!rail_same_bytes(a, b, sizeof a) && rail_same_bytes(a, b, bit / 8));
    b[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
}

TEST_MAIN(TEST_CASE(key_files), TEST_CASE(the_library_is_opened_only_when_wanted),
          TEST_CASE(a_machine_without_the_library), TEST_CASE(macs), TEST_CASE(macs_of_parts), TEST_CASE(same_bytes))
