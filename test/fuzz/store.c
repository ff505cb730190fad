/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The file store's values, and the unique ids that come through it. Input: the
 * room for the value, whether a file is there, a key, then the file as
 * anybody might have left it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/bootstrap/rt_boot_wire.h"
#include "core/bootstrap/rt_bootstrap.h"
#include "core/launcher/rt_store.h"
#include "test/fuzz/lib/fuzz.h"

#define VALUE_MAGIC 0x4f545352u

static char dir[512];
static struct rt_store *store;

static void close_store(void) {
  rt_store_remove(store, "k");
  rt_store_remove_dir(store);
  rt_store_close(store);
}

static void open_store(void) {
  if (store) return;
  const char *tmp = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%.400s/rail-fuzz-XXXXXX", tmp ? tmp : "/tmp");
  if (!mkdtemp(dir)) FUZZ_CHECK(errno == 0);
  FUZZ_CHECK(rt_store_open(dir, true, &store) == RAIL_OK);
  atexit(close_store);
}

/* An id of unknown origin. The job has no valid rank, so that no address in the id is dialled; only a rendezvous of
 * another version gets a message: it is at port 1 of this machine. */
static void check_id(const uint8_t *bytes, size_t size) {
  char id[RT_UNIQUE_ID_BYTES] = "";
  struct rt_bootstrap_args args = {.rank = 0, .nranks = 0};
  struct rt_bootstrap *b;
  struct rt_boot_id parsed;
  memcpy(id, bytes, size < sizeof id ? size : sizeof id);
  memcpy(&parsed, id, sizeof parsed);
  bool other_version = parsed.magic == RT_BOOT_MAGIC && parsed.version != RT_BOOT_VERSION;
  if (other_version) {
    union rail_addr addr;
    FUZZ_CHECK(rail_addr_parse("127.0.0.1:1", &addr) == RAIL_OK);
    rail_addr_pack(&addr, &parsed.addr);
    memcpy(id, &parsed, sizeof parsed);
  }
  FUZZ_CHECK(rt_bootstrap_open(id, &args, &b) == (other_version ? RAIL_BAD_USAGE : RAIL_BAD_ARGUMENT) && !b);
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  char path[sizeof dir + 4];
  open_store();
  size_t room = fuzz_u16(&in) % (RT_STORE_MAX_VALUE + 1), key_size = fuzz_u8(&in), got = room;
  bool absent = fuzz_u8(&in) == 1;
  uint8_t *value = fuzz_guarded(room);
  const uint8_t *key_bytes = fuzz_take(&in, &key_size);
  char *key = fuzz_text(key_bytes, key_size);
  snprintf(path, sizeof path, "%s/k", dir);
  if (!absent) {
    FILE *f = fopen(path, "wb");
    FUZZ_CHECK(f && fwrite(in.at, 1, in.left, f) == in.left && fclose(f) == 0);
  }
  rail_result_t result = rt_store_try_get(store, "k", value, &got);
  FUZZ_CHECK(absent == (result == RAIL_IN_PROGRESS));
  if (result == RAIL_OK) FUZZ_CHECK(got <= room && memcmp(value, in.at + 8, got) == 0 && in.left == got + 8);
  rt_store_remove(store, "k");
  /* Whatever the key: the name is one of this directory, and what is set is there. */
  if (strlen(key) > 0 && strlen(key) <= RT_STORE_MAX_KEY) {
    FUZZ_CHECK(rt_store_try_get(store, key, value, &got) == RAIL_IN_PROGRESS);
    rt_store_remove(store, key);
  }
  check_id(in.at, in.left);
  free(key);
  fuzz_guarded_free(value, room);
}

static void seed(const char *name, unsigned int room, unsigned int absent, const char *key, const void *value,
                 uint32_t size) {
  struct fuzz_out out = {.size = 0};
  fuzz_put16(&out, room);
  fuzz_put8(&out, (unsigned int)strlen(key));
  fuzz_put8(&out, absent);
  fuzz_put(&out, key, strlen(key));
  fuzz_put32(&out, VALUE_MAGIC);
  fuzz_put32(&out, size);
  fuzz_put(&out, value, size);
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  struct rt_boot_id id = {.magic = RT_BOOT_MAGIC, .version = RT_BOOT_VERSION, .secret = "a secret"};
  union rail_addr addr;
  struct fuzz_out out = {.size = 0};
  FUZZ_CHECK(rail_addr_parse("127.0.0.1:5000", &addr) == RAIL_OK);
  rail_addr_pack(&addr, &id.addr);
  seed("value", 4096, 0, "id-0123-ask-7", "sixteen bytes!!!", 16);
  seed("exact", 16, 0, "../../etc/passwd", "sixteen bytes!!!", 16);
  seed("absent", 16, 1, "\x01\xff/%", "", 0);
  fuzz_put32(&out, 16); /* room, no key, a file */
  fuzz_put(&out, &id, sizeof id);
  fuzz_seed("id", out.bytes, out.size);
  out.size = 0;
  id.version = RT_BOOT_VERSION + 1;
  fuzz_put32(&out, 16);
  fuzz_put(&out, &id, sizeof id);
  fuzz_seed("id-of-another-version", out.bytes, out.size);
}
