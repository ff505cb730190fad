/* SPDX-License-Identifier: Apache-2.0
 * Recorded files: every kind of record comes back as it was, and a broken file is reported, with the offset. */
#include <fcntl.h>
#include <unistd.h>

#include "plugin/railtrace/trace_file.h"
#include "test/harness/tap.h"

#define MANY 40

/* A file in memory. */
static struct {
  uint8_t bytes[1 << 20];
  size_t size, chunk; /* offset of the chunk of calls that is being filled */
  uint64_t before;
} file;

static struct rail_trace_event events[64];
static int nevents;

static void start(void) {
  struct rail_trace_header h = {.clock_ns = 17, .realtime_ns = 1763000000ull * 1000000000ull, .pid = 4711,
                                .caller_version = 9, .plugin_version = 8, .host = "h1", .program = "prog",
                                .plugin_path = "/lib/x.so", .plugin_name = "X"};
  file.size = rail_trace_put_header(file.bytes, &h);
  file.before = 0;
  nevents = 0;
}

static void chunk(enum rail_trace_chunk_kind kind, uint32_t thread, const void *payload, size_t size) {
  rail_trace_put_chunk(file.bytes + file.size, kind, thread, payload, size / 3, (const char *)payload + size / 3,
                       size - size / 3);
  memcpy(file.bytes + file.size + RAIL_TRACE_CHUNK_HEADER, payload, size);
  file.size += RAIL_TRACE_CHUNK_HEADER + size;
}

/* One event of each kind, all fields filled, in one chunk. */
static void put_all_kinds(void) {
  static uint8_t payload[sizeof file.bytes / 2];
  size_t size = 0;
  for (int k = 1; k < RAIL_TRACE_KINDS; k++) {
    struct rail_trace_event *e = &events[nevents++];
    memset(e, 0, sizeof *e);
    *e = (struct rail_trace_event){.kind = (enum rail_trace_kind)k, .result = k % 3 == 0 ? -k : 0,
                                   .ns = (uint64_t)k * 1000003, .duration = (uint64_t)k << 30, .ctx = 3,
                                   .comm = 1ull << 40, .made = UINT64_MAX, .mr = 9, .request = 300,
                                   .tries = (uint64_t)k % 2, .waited = 77,
                                   .value = 1ull << 63, .address = 0x7f0000000000, .size = 12345678901, .dev = -3,
                                   .tag = INT64_MIN, .n = (unsigned int)k % (RAIL_TRACE_GROUP + 1)};
    for (unsigned int i = 0; i < e->n; i++)
      e->bufs[i] = (struct rail_trace_buf){i, i * 4096ull, 1ull << i, i % 2 ? (int64_t)i : -(int64_t)i};
    memset(e->handle, k, sizeof e->handle);
    e->props = (struct rail_net_props_v12){.name = e->name, .pci_path = k % 2 ? e->path : NULL, .guid = ~0ull,
                                           .speed = -1, .latency = 1.25f, .max_recvs = 8, .rail_id = -1,
                                           .max_p2p_bytes = RAIL_NET_MAX_BYTES, .vprops = {.ndevs = 2, .devs = {1, 2}}};
    snprintf(e->name, sizeof e->name, "dev%d", k);
    snprintf(e->path, sizeof e->path, "/sys/%d", k);
    e->attr = (struct rail_net_attr){.send = {1, 2, 3, -1}, .recv = {-1, 5, 6, 7}, .op = 8, .proto = ~0u};
    size += rail_trace_put_event(payload + size, e, &file.before);
  }
  chunk(RAIL_TRACE_CHUNK_CALLS, 1, payload, size);
}

static void put_thread_and_end(void) {
  uint8_t bytes[1024];
  struct rail_trace_end end = {.limited = true, .recorded = 23, .dropped = 5, .findings = {[7] = 2}};
  chunk(RAIL_TRACE_CHUNK_THREAD, 1, bytes, rail_trace_put_thread(bytes, 99, "main"));
  chunk(RAIL_TRACE_CHUNK_END, 0, bytes, rail_trace_put_end(bytes, &end));
}

static struct rail_trace *opened(void) {
  struct rail_trace *t;
  char why[300];
  CHECK_MSG(rail_trace_open_bytes(file.bytes, file.size, &t, why, sizeof why), "%s", why);
  return t;
}

static int next(struct rail_trace *t, struct rail_trace_event *e) {
  char why[300];
  int r = rail_trace_next(t, e, why, sizeof why);
  CHECK_MSG(r >= 0, "%s", why);
  return r;
}

/* What encodes to the same bytes is the same. */
static bool same(const struct rail_trace_event *a, const struct rail_trace_event *b) {
  uint8_t x[RAIL_TRACE_MAX_RECORD], y[RAIL_TRACE_MAX_RECORD];
  uint64_t before_x = 0, before_y = 0;
  size_t nx = rail_trace_put_event(x, a, &before_x), ny = rail_trace_put_event(y, b, &before_y);
  return nx == ny && memcmp(x, y, nx) == 0;
}

TEST(all_kinds_come_back) {
  struct rail_trace_event e;
  start();
  put_all_kinds();
  put_thread_and_end();
  struct rail_trace *t = opened();
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < nevents; i++) {
      CHECK_INT(next(t, &e), 1);
      CHECK_MSG(same(&e, &events[i]), "%s is not as it was", rail_trace_kind_name(events[i].kind));
      CHECK_INT(e.kind, events[i].kind);
      CHECK_INT(e.ns, events[i].ns);
      CHECK_INT(e.thread, 1);
      if (e.kind == RAIL_TRACE_PROPERTIES) CHECK_STR(e.props.name, "dev4");
      if (e.kind == RAIL_TRACE_PROPERTIES) CHECK(e.props.pci_path == NULL && e.props.latency == 1.25f);
    }
    CHECK_INT(next(t, &e), 0);
    rail_trace_rewind(t);
  }
  const struct rail_trace_header *h = rail_trace_header(t);
  CHECK_STR(h->host, "h1");
  CHECK_STR(h->plugin_path, "/lib/x.so");
  CHECK_INT(h->plugin_version, 8);
  CHECK_STR(rail_trace_thread(t, 1)->name, "main");
  CHECK_INT(rail_trace_thread(t, 1)->tid, 99);
  CHECK(rail_trace_end(t) && rail_trace_end(t)->limited && rail_trace_end(t)->findings[7] == 2);
  CHECK(rail_trace_cut(t) == NULL);
  rail_trace_close(t);
}

/* Numbers count calls, dropped ones too; findings are remarks on the call that follows. */
TEST(numbers) {
  static const struct { enum rail_trace_kind kind; uint64_t value, number; } rows[] = {
    {RAIL_TRACE_ISEND, 0, 1}, {RAIL_TRACE_FINDING, 3, 2},  {RAIL_TRACE_TEST, 1, 2},
    {RAIL_TRACE_DROPPED, 10, 13}, {RAIL_TRACE_ISEND, 0, 13}, {RAIL_TRACE_TEST, 1, 14},
  };
  uint8_t payload[4096];
  size_t size = 0;
  struct rail_trace_event e = {.n = 0};
  start();
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    e.kind = rows[i].kind;
    e.value = rows[i].value;
    size += rail_trace_put_event(payload + size, &e, &file.before);
  }
  chunk(RAIL_TRACE_CHUNK_CALLS, 1, payload, size);
  struct rail_trace *t = opened();
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    CHECK_INT(next(t, &e), 1);
    CHECK_INT(e.number, rows[i].number);
  }
  rail_trace_close(t);
}

TEST(threads_merge_by_time) {
  uint8_t payload[4096];
  struct rail_trace_event e = {.kind = RAIL_TRACE_FINALIZE};
  uint64_t last = 0;
  start();
  for (int thread = 1; thread <= 3; thread++) {
    uint64_t before = 0;
    size_t size = 0;
    for (int i = 0; i < MANY; i++) {
      e.ns = (uint64_t)i * 30 + (uint64_t)thread * 7 + (uint64_t)i * (uint64_t)thread % 5;
      size += rail_trace_put_event(payload + size, &e, &before);
    }
    chunk(RAIL_TRACE_CHUNK_CALLS, (uint32_t)thread, payload, size);
  }
  struct rail_trace *t = opened();
  CHECK_INT(rail_trace_threads(t), 3);
  for (int i = 0; i < 3 * MANY; i++) {
    CHECK_INT(next(t, &e), 1);
    CHECK(e.ns >= last);
    last = e.ns;
  }
  CHECK_INT(next(t, &e), 0);
  rail_trace_close(t);
}

/* Reads to the end; true: all was well. */
static bool read_all(size_t size, char *why, size_t cap) {
  struct rail_trace *t;
  struct rail_trace_event e;
  int r;
  if (!rail_trace_open_bytes(file.bytes, size, &t, why, cap)) return false;
  while ((r = rail_trace_next(t, &e, why, cap)) == 1) continue;
  bool good = r == 0 && !rail_trace_cut(t);
  if (r == 0 && rail_trace_cut(t)) snprintf(why, cap, "%s", rail_trace_cut(t));
  rail_trace_close(t);
  return good;
}

TEST(every_cut_is_told) {
  char why[300];
  start();
  size_t header = file.size;
  put_all_kinds();
  size_t after = file.size;
  put_thread_and_end();
  for (size_t size = 0; size < file.size; size++) {
    why[0] = 0;
    bool between = size == header || size == after;
    bool good = read_all(size, why, sizeof why);
    if (size > after && !good) CHECK_MSG(strstr(why, "offset"), "cut at %zu: %s", size, why);
    if (size >= header) continue; /* between chunks a file may end: then it has no last chunk */
    CHECK_MSG(!good && !between && (strstr(why, "offset") || strstr(why, "not a trace")), "cut at %zu: %s", size, why);
  }
  CHECK(read_all(header, why, sizeof why) && read_all(after, why, sizeof why) && read_all(file.size, why, sizeof why));
  CHECK(!read_all(after - 1, why, sizeof why));
}

TEST(every_wrong_byte_is_told) {
  char why[300];
  start();
  put_all_kinds();
  put_thread_and_end();
  for (size_t i = 0; i < file.size; i++) {
    file.bytes[i] ^= 0x10;
    why[0] = 0;
    CHECK_MSG(!read_all(file.size, why, sizeof why), "byte %zu may be anything", i);
    CHECK_MSG(strstr(why, "offset") || strstr(why, "not a trace"), "byte %zu: %s", i, why);
    file.bytes[i] ^= 0x10;
  }
}

/* Checksums are right, contents are not. */
TEST(broken_records_are_told) {
  static const struct { uint8_t bytes[16]; size_t size; const char *said; } rows[] = {
    {{0}, 1, "unknown kind"},
    {{RAIL_TRACE_KINDS}, 1, "unknown kind"},
    {{RAIL_TRACE_FINALIZE}, 1, "ends within a number"},
    {{RAIL_TRACE_FINALIZE, 0x80}, 2, "ends within a number"},
    {{RAIL_TRACE_FINALIZE, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 0, 0}, 13, "more than 64 bits"},
    {{RAIL_TRACE_ISEND, 0, 0, 1, 1, 0, RAIL_TRACE_GROUP + 1}, 7, "more buffers"},
    {{RAIL_TRACE_LISTEN, 0, 0, 1, 1, 1, 5, 5, 5}, 9, "ends within bytes"},
  };
  char why[300];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    start();
    chunk(RAIL_TRACE_CHUNK_CALLS, 1, rows[i].bytes, rows[i].size);
    CHECK(!read_all(file.size, why, sizeof why));
    CHECK_MSG(strstr(why, rows[i].said) && strncmp(why, "offset ", 7) == 0, "%zu: %s", i, why);
  }
  start();
  chunk(RAIL_TRACE_CHUNK_CALLS, 5000, "", 0);
  CHECK(!read_all(file.size, why, sizeof why));
  CHECK_MSG(strstr(why, "thread 5000"), "%s", why);
}

/* Longer names are cut by the writer; a reader that finds a longer one reports it. */
TEST(texts_have_an_end) {
  static uint8_t payload[4096];
  static char longest[RAIL_TRACE_TEXT + 50];
  struct rail_trace_event e = {.kind = RAIL_TRACE_PROPERTIES, .ns = 5}, got;
  char why[300];
  memset(longest, 'n', sizeof longest - 1);
  e.props.name = e.props.pci_path = longest;
  start();
  chunk(RAIL_TRACE_CHUNK_CALLS, 1, payload, rail_trace_put_event(payload, &e, &file.before));
  struct rail_trace *t = opened();
  CHECK_INT(next(t, &got), 1);
  CHECK_INT(strlen(got.name), RAIL_TRACE_TEXT - 1);
  CHECK_INT(strlen(got.path), RAIL_TRACE_TEXT - 1);
  rail_trace_close(t);
  for (size_t len = sizeof(((struct rail_trace_thread *)0)->name) - 1, room = len + 1; len <= room; len++) {
    start();
    payload[0] = 99;
    payload[1] = (uint8_t)len;
    memset(payload + 2, 't', len);
    chunk(RAIL_TRACE_CHUNK_THREAD, 1, payload, 2 + len);
    CHECK_INT(read_all(file.size, why, sizeof why), len < room);
    if (len == room) CHECK_MSG(strstr(why, "a text is too long"), "%s", why);
  }
}

/* Two threads' clocks: a record that is older than the last one gets its time, and the next one's is right again. */
TEST(time_does_not_go_back) {
  static const uint64_t times[] = {1000, 400, 1500}, read[] = {1000, 1000, 1500};
  uint8_t payload[3 * RAIL_TRACE_MAX_RECORD];
  struct rail_trace_event e = {.kind = RAIL_TRACE_DEVICES}, got;
  size_t size = 0;
  start();
  for (size_t i = 0; i < 3; i++) {
    e.ns = times[i];
    size += rail_trace_put_event(payload + size, &e, &file.before);
  }
  chunk(RAIL_TRACE_CHUNK_CALLS, 1, payload, size);
  struct rail_trace *t = opened();
  for (size_t i = 0; i < 3; i++) {
    CHECK_INT(next(t, &got), 1);
    CHECK_INT(got.ns, read[i]);
  }
  rail_trace_close(t);
}

TEST(files) {
  struct rail_trace *t;
  char why[300], path[] = "/tmp/rail-test-trace.XXXXXX";
  start();
  put_all_kinds();
  int fd = mkstemp(path);
  CHECK(fd >= 0 && write(fd, file.bytes, file.size) == (ssize_t)file.size);
  close(fd);
  CHECK_MSG(rail_trace_open(path, &t, why, sizeof why), "%s", why);
  CHECK(rail_trace_end(t) == NULL);
  rail_trace_close(t);
  unlink(path);
  CHECK(!rail_trace_open(path, &t, why, sizeof why) && strstr(why, "No such file"));
  CHECK(!rail_trace_open("/dev/zero", &t, why, sizeof why));
  CHECK(!rail_trace_open("/", &t, why, sizeof why));
}

TEST_MAIN(TEST_CASE(all_kinds_come_back), TEST_CASE(numbers), TEST_CASE(threads_merge_by_time),
          TEST_CASE(every_cut_is_told), TEST_CASE(every_wrong_byte_is_told), TEST_CASE(broken_records_are_told),
          TEST_CASE(texts_have_an_end), TEST_CASE(time_does_not_go_back), TEST_CASE(files))
