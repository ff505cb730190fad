/* SPDX-License-Identifier: Apache-2.0
 * The reader of counters against pages that lie: truncated, half written, with counts and offsets out of range, with
 * texts that do not end, or no pages at all. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "kit/kit_stats.h"
#include "test/harness/tap.h"

static const struct rail_stats_counter counters[] = {
  {"one", RAIL_STATS_COUNTER, "First."}, {"two", RAIL_STATS_GAUGE, "Second."}, {"three", RAIL_STATS_TIME, "Third."}};
static const struct rail_stats_group groups[] = {{"comm", counters, 3, 5}, {"stream", counters, 2, 7}};

static char dir[256], file[64];
static uint8_t *good;
static size_t good_size;

/* A true page's bytes, written by the writer. */
static void get_good(void) {
  if (good) return;
  snprintf(dir, sizeof dir, "%s/rail-stats-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  ENSURE(mkdtemp(dir), "mkdtemp: %s", strerror(errno));
  struct rail_stats *s = rail_stats_open("hostile", groups, 2);
  ENSURE(s, "no page");
  uint64_t *a = rail_stats_take(s, 0, "a=1"), *b = rail_stats_take(s, 0, "b=2"), *c = rail_stats_take(s, 1, "c=3");
  a[0] = 11, b[1] = 22, c[0] = 33;
  char path[256];
  snprintf(path, sizeof path, RAIL_STATS_DIR "/" RAIL_STATS_PREFIX "%d.hostile", (int)getpid());
  snprintf(file, sizeof file, RAIL_STATS_PREFIX "%d.hostile", (int)getpid());
  struct stat st;
  int fd = open(path, O_RDONLY);
  ENSURE(fd >= 0 && fstat(fd, &st) == 0, "%s: %s", path, strerror(errno));
  good_size = (size_t)st.st_size;
  good = malloc(good_size);
  ENSURE(good && read(fd, good, good_size) == (ssize_t)good_size, "read %s", path);
  close(fd);
  rail_stats_drop(s, 0, a);
  rail_stats_drop(s, 0, b);
  rail_stats_drop(s, 1, c);
  rail_stats_close(s);
}

static void put(const uint8_t *bytes, size_t size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, file);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ENSURE(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && close(fd) == 0, "%s: %s", path, strerror(errno));
}

static void remove_it(void) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, file);
  if (unlink(path) != 0) rmdir(path);
}

static char why[256];
static struct kit_stats_view *look(void) { return kit_stats_read(dir, file, why, sizeof why); }

/* Everything in a view can be touched, and its texts end. */
static void touch(const struct kit_stats_view *v) {
  volatile uint64_t sum = strlen(v->name) + strlen(v->process);
  for (uint32_t i = 0; i < v->ngroups; i++) {
    const struct kit_stats_view_group *g = &v->groups[i];
    sum += strlen(g->name);
    for (uint32_t k = 0; k < g->ncounters; k++) sum += strlen(g->counters[k].name) + strlen(g->counters[k].doc);
    for (uint32_t r = 0; r < g->nrecords; r++) {
      sum += strlen(g->records[r].label);
      for (uint32_t k = 0; k < g->ncounters; k++) sum += g->records[r].values[k];
    }
  }
  (void)sum;
}

/* Stands before libc's: the file changes between two of the reader's calls. */
static void (*between_reads)(int fd, off_t at);
ssize_t pread(int fd, void *to, size_t size, off_t at) {
  ssize_t n = lseek(fd, at, SEEK_SET) == at ? read(fd, to, size) : -1;
  if (between_reads) between_reads(fd, at);
  return n;
}

/* The first record of the first group is given back and taken again, after the reader has read it for the n-th time. */
static int reads_left;
static void take_again(int fd, off_t at) {
  uint64_t records_at, life;
  struct rail_stats_group_desc desc;
  char path[512];
  (void)fd;
  memcpy(&desc, good + sizeof(struct rail_stats_head), sizeof desc);
  records_at = desc.records_at;
  if ((uint64_t)at != records_at || --reads_left != 0) return;
  memcpy(&life, good + records_at, sizeof life);
  life += 2;
  snprintf(path, sizeof path, "%s/%s", dir, file);
  int out = open(path, O_WRONLY);
  ENSURE(out >= 0 && pwrite(out, &life, sizeof life, (off_t)records_at) == sizeof life, "%s", strerror(errno));
  close(out);
}

/* Its values may be of the one and of the other. */
TEST(a_record_that_changes_is_left_out) {
  get_good();
  for (int n = 1; n <= 3; n++) {
    put(good, good_size);
    reads_left = n;
    between_reads = take_again;
    struct kit_stats_view *v = look();
    between_reads = NULL;
    CHECK_MSG(v, "%s", why);
    CHECK_INT(v->groups[0].nrecords, n < 3 ? 1 : 2); /* after the third look it is what it was */
    CHECK_STR(v->groups[0].records[v->groups[0].nrecords - 1].label, "b=2");
    kit_stats_view_free(v);
  }
  remove_it();
}

TEST(true_page) {
  get_good();
  put(good, good_size);
  struct kit_stats_view *v = look();
  CHECK_MSG(v, "%s", why);
  CHECK_INT(v->alive, RAIL_STATS_LIVE);
  CHECK_INT(v->groups[0].nrecords, 2);
  CHECK_INT(v->groups[0].records[0].values[0], 11);
  CHECK_INT(v->groups[0].records[1].values[1], 22);
  CHECK_INT(v->groups[1].records[0].values[0], 33);
  touch(v);
  kit_stats_view_free(v);
  remove_it();
}

#define HEAD(field) offsetof(struct rail_stats_head, field), sizeof(((struct rail_stats_head *)0)->field)
#define GROUP_AT (sizeof(struct rail_stats_head))
#define GROUP(field) \
  GROUP_AT + offsetof(struct rail_stats_group_desc, field), sizeof(((struct rail_stats_group_desc *)0)->field)
#define COUNTER_AT (GROUP_AT + 2 * sizeof(struct rail_stats_group_desc))
#define COUNTER(field) \
  COUNTER_AT + offsetof(struct rail_stats_counter_desc, field), sizeof(((struct rail_stats_counter_desc *)0)->field)

/* One field each, and a word of the reason. */
static const struct lie {
  size_t at, size;
  uint64_t value;
  const char *says;
} lies[] = {
  {HEAD(magic), 0, "not finished"},
  {HEAD(magic), 0x5241494c53544154ull, "no page"}, /* the other byte order */
  {HEAD(version), RAIL_STATS_VERSION + 1, "version"},
  {HEAD(size), 4096ull << 20, "bytes"},
  {HEAD(size), 0, "bytes"},
  {HEAD(pid), 1, "process 1"},
  {HEAD(pid), UINT64_MAX, "process -1"},
  {HEAD(ngroups), 0, "groups"},
  {HEAD(ngroups), RAIL_STATS_MAX_GROUPS + 1, "groups"},
  {HEAD(ngroups), UINT32_MAX, "groups"},
  {HEAD(groups_at), UINT64_MAX, "outside"},
  {HEAD(groups_at), UINT64_MAX - 255, "outside"},
  {HEAD(groups_at), 0, "name"},
  {GROUP(ncounters), 0, "counters"},
  {GROUP(ncounters), RAIL_STATS_MAX_COUNTERS, "bytes with 64 values"}, /* more than a record has room for */
  {GROUP(ncounters), UINT32_MAX, "counters"},
  {GROUP(counters_at), UINT64_MAX - 7, "outside"},
  {GROUP(counters_at), 1ull << 63, "outside"},
  {GROUP(records_at), UINT64_MAX - 63, "outside"},
  {GROUP(records_at), 1, "outside"},
  {GROUP(max_records), UINT32_MAX, "records"},
  {GROUP(max_records), RAIL_STATS_MAX_RECORDS, "outside"},
  {GROUP(used), 6, "records"},
  {GROUP(used), UINT32_MAX, "records"},
  {GROUP(record_size), 0, "bytes"},
  {GROUP(record_size), 1, "bytes"},
  {GROUP(record_size), 1u << 31, "bytes"},
  {GROUP(values_at), 0, "values"},
  {GROUP(values_at), 320, "values"},
  {GROUP(values_at), UINT32_MAX, "values"},
  {GROUP(name), 0x0031312d746e6f63ull, "name"}, /* "cont-11" */
  {COUNTER(kind), 3, "kind"},
  {COUNTER(name), 0, "name"},
};

TEST(lies_are_found) {
  get_good();
  uint8_t *page = malloc(good_size);
  const struct lie *wrong = NULL;
  for (size_t i = 0; i < RAIL_COUNT_OF(lies) && !wrong; i++) {
    memcpy(page, good, good_size);
    memcpy(page + lies[i].at, &lies[i].value, RAIL_MIN(lies[i].size, sizeof lies[i].value));
    put(page, good_size);
    struct kit_stats_view *v = look();
    if (v || errno != (lies[i].value == 0 && lies[i].at == 0 ? EAGAIN : EPROTO) || !strstr(why, lies[i].says))
      wrong = &lies[i];
    kit_stats_view_free(v);
  }
  free(page);
  remove_it();
  CHECK_MSG(!wrong, "%zu bytes at %zu, %#" PRIx64 ": %s", wrong->size, wrong->at, wrong->value, why);
}

TEST(names_that_are_there_twice) {
  get_good();
  uint8_t *page = malloc(good_size);
  memcpy(page, good, good_size);
  memcpy(page + COUNTER_AT + sizeof(struct rail_stats_counter_desc), page + COUNTER_AT, 8);
  put(page, good_size);
  struct kit_stats_view *counter = look();
  bool counter_named = strstr(why, "counter one is there twice") != NULL;
  memcpy(page, good, good_size);
  memcpy(page + GROUP_AT + sizeof(struct rail_stats_group_desc), page + GROUP_AT, 8);
  put(page, good_size);
  struct kit_stats_view *group = look();
  free(page);
  remove_it();
  CHECK(!counter && counter_named);
  CHECK(!group && strstr(why, "group comm is there twice"));
}

TEST(texts_that_do_not_end) {
  get_good();
  uint8_t *page = malloc(good_size);
  memcpy(page, good, good_size);
  struct rail_stats_head *head = (struct rail_stats_head *)page;
  struct rail_stats_group_desc *desc = (struct rail_stats_group_desc *)(page + GROUP_AT);
  struct rail_stats_counter_desc *counter = (struct rail_stats_counter_desc *)(page + COUNTER_AT);
  struct rail_stats_record_head *record = (struct rail_stats_record_head *)(page + desc->records_at);
  memset(head->name, '\033', sizeof head->name);
  memset(head->process, 0xff, sizeof head->process);
  memset(desc->name, 'g', sizeof desc->name);
  memset(counter->name, 'c', sizeof counter->name);
  memset(counter->doc, '\n', sizeof counter->doc);
  memset(record->label, 'l', sizeof record->label);
  put(page, good_size);
  free(page);
  struct kit_stats_view *v = look();
  remove_it();
  CHECK_MSG(v, "%s", why);
  touch(v);
  CHECK_INT(strlen(v->name), RAIL_STATS_NAME - 1);
  CHECK_INT(v->name[0], '?');
  CHECK_INT(v->process[0], '?');
  CHECK_INT(v->groups[0].counters[0].doc[0], '?');
  CHECK_INT(strlen(v->groups[0].records[0].label), RAIL_STATS_LABEL - 1);
  kit_stats_view_free(v);
}

TEST(every_truncation) {
  get_good();
  size_t wrong = SIZE_MAX;
  for (size_t size = 0; size < good_size && wrong == SIZE_MAX; size += size < 1100 ? 1 : 61) {
    put(good, size);
    struct kit_stats_view *v = look();
    if (v) wrong = size;
    kit_stats_view_free(v);
  }
  remove_it();
  CHECK_MSG(wrong == SIZE_MAX, "a page of %zu of %zu bytes was believed", wrong, good_size);
}

TEST(random_damage) {
  get_good();
  struct kit_rng rng;
  kit_rng_start(&rng);
  uint8_t *page = malloc(good_size);
  int believed = 0, rounds = kit_scaled(3000);
  static const uint64_t edges[] = {0, 1, 7, 63, 255, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, UINT64_MAX};
  for (int i = 0; i < rounds; i++) {
    memcpy(page, good, good_size);
    for (uint32_t n = 1 + kit_rng_below(&rng, 4); n > 0; n--) {
      uint64_t value = kit_rng_below(&rng, 2) ? edges[kit_rng_below(&rng, RAIL_COUNT_OF(edges))] : kit_rng_next(&rng);
      size_t at = kit_rng_below(&rng, (uint32_t)(kit_rng_below(&rng, 4) ? COUNTER_AT + 512 : good_size) - 8);
      memcpy(page + at, &value, kit_rng_below(&rng, 2) ? 4 : 8);
    }
    put(page, kit_rng_below(&rng, 8) ? good_size : kit_rng_below(&rng, (uint32_t)good_size));
    struct kit_stats_view *v = look();
    if (v) touch(v);
    believed += v != NULL;
    kit_stats_view_free(v);
  }
  free(page);
  remove_it();
  printf("# %d of %d damaged pages were still readable\n", believed, rounds);
  CHECK(believed < rounds);
}

TEST(not_a_file) {
  get_good();
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, file);
  CHECK(!look() && errno == ENOENT);
  CHECK(mkfifo(path, 0600) == 0);
  CHECK(!look() && errno == EPROTO && strstr(why, "regular"));
  remove_it();
  CHECK(mkdir(path, 0700) == 0);
  CHECK(!look() && errno == EPROTO);
  remove_it();
  CHECK(symlink("/etc/passwd", path) == 0);
  CHECK(!look() && errno == ELOOP);
  remove_it();
  put(good, 0);
  CHECK(!look() && errno == EAGAIN); /* just created */
  CHECK(truncate(path, (off_t)RAIL_STATS_MAX_SIZE + 4096) == 0);
  CHECK(!look() && errno == EPROTO);
  remove_it();
  CHECK(!kit_stats_read(dir, "../../etc/passwd", why, sizeof why) && errno == EPROTO);
}

TEST(file_names) {
  static const char *const wrong[] = {"", "rail-stat.", "rail-stat.1", "rail-stat.1.", "rail-stat.0.a",
                                      "rail-stat.-1.a",
                                      "rail-stat. 1.a", "rail-stat.99999999999.a", "rail-stat.1x.a",
                                      "rail-stat.1.a/b", "rail-stat.1.\033[2J", "rail-stat.01.a", "xrail-stat.1.a"};
  int64_t pid = 0;
  const char *name = NULL;
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++)
    CHECK_MSG(!rail_stats_file_name(wrong[i], &pid, &name), "'%s' is a page's name", wrong[i]);
  CHECK(rail_stats_file_name("rail-stat.123.Rail_Socket-x.2", &pid, &name));
  CHECK_INT(pid, 123);
  CHECK_STR(name, "Rail_Socket-x.2");
}

/* Stays: of the living, of another PID namespace, young without a head, not ours to know. Goes: of the dead. */
TEST(clean_removes_only_the_dead) {
  get_good();
  char path[512], living[64];
  int failed = -1;
  strcpy(living, file);
  put(good, good_size);
  CHECK_INT(rail_stats_clean(dir, true, INT_MAX, &failed), 0);
  CHECK_INT(failed, 0);
  CHECK_OK(access((snprintf(path, sizeof path, "%s/%s", dir, file), path), F_OK));
  uint8_t *page = malloc(good_size);
  memcpy(page, good, good_size);
  ((struct rail_stats_head *)page)->pid_ns++;
  put(page, good_size);
  CHECK_INT(rail_stats_clean(dir, true, INT_MAX, NULL), 0);
  memcpy(page, good, good_size);
  ((struct rail_stats_head *)page)->start_time++; /* the pid is somebody else's by now */
  put(page, good_size);
  free(page);
  CHECK_INT(rail_stats_clean(dir, true, 0, &failed), 0);
  CHECK_INT(rail_stats_clean(dir, true, 1, &failed), 1);
  CHECK(access(path, F_OK) != 0);
  strcpy(file, "rail-stat.2147483647.young"); /* beyond any pid_max */
  put(good, 100);
  CHECK_INT(rail_stats_clean(dir, true, INT_MAX, NULL), 0);
  struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
  snprintf(path, sizeof path, "%s/%s", dir, file);
  CHECK(utimensat(AT_FDCWD, path, old, 0) == 0);
  CHECK_INT(rail_stats_clean(dir, true, INT_MAX, NULL), 1);
  strcpy(file, "rail-stat.log");
  put(good, 100);
  CHECK_INT(rail_stats_clean(dir, true, INT_MAX, NULL), 0);
  remove_it();
  strcpy(file, living);
}

__attribute__((destructor)) static void remove_dir(void) {
  if (dir[0]) rmdir(dir);
  free(good);
}

TEST_MAIN(TEST_CASE(true_page), TEST_CASE(a_record_that_changes_is_left_out), TEST_CASE(lies_are_found),
          TEST_CASE(names_that_are_there_twice),
          TEST_CASE(texts_that_do_not_end), TEST_CASE(every_truncation), TEST_CASE(random_damage),
          TEST_CASE(not_a_file), TEST_CASE(file_names), TEST_CASE(clean_removes_only_the_dead))
