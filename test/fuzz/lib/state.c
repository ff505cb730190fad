/* SPDX-License-Identifier: Apache-2.0
 *
 * One run of a target, and what it left behind. Both drivers call a target through here.
 *
 * The first run of a process has no bytes: what the target keeps for all runs (a listener, a thread, parameters) exists
 * after it, and the state of the process is recorded. Every later run must end in the same state. All of
 * it is checked after each of the first runs and then now and then, since that takes longer than many a run;
 * RAIL_TEST_FUZZ_EACH=1 checks everything each time.
 */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/fuzz/lib/fuzz.h"

#define EVERY 256
#define FIRST 16
#define WATCHED 8
#define LOW_FILES 48
#define FILES_EVERY 8
#define END_MS 5000 /* a thread that was joined is in /proc for a moment */
#define HEAP_MS 50

size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));
extern char **environ;

enum { THREADS, SHARED_MAPPINGS, ENVIRONMENT, SIGNALS, DIRECTORY, GLOBALS, PARTS };
static const char *const part_names[PARTS] = {
    "threads",
    "shared mappings",
    "the environment (hash)",
    "blocked signals",
    "the working directory (hash)",
    "the globals of fuzz_watch() (hash)",
};

static struct {
  const void *at;
  size_t size;
} watched[WATCHED];
static size_t nwatched;

static uint64_t at_start[PARTS];
static uint64_t runs;
static bool each;

void fuzz_watch(const void *global, size_t size) {
  for (size_t i = 0; i < nwatched; i++)
    if (watched[i].at == global) return;
  FUZZ_CHECK(nwatched < WATCHED);
  watched[nwatched].at = global;
  watched[nwatched++].size = size;
}

/* ---- the parts ------------------------------------------------------- */

static uint64_t entries(const char *path) {
  uint64_t n = 0;
  DIR *dir = opendir(path);
  while (dir && readdir(dir)) n++;
  if (dir) closedir(dir);
  return n;
}

static uint64_t hash(uint64_t h, const void *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
  return h;
}

/* A segment that stays mapped is no memory that a leak checker knows of. */
static uint64_t shared_mappings(void) {
  char line[512];
  uint64_t n = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  while (f && fgets(line, sizeof line, f)) {
    char rights[5] = "";
    n += sscanf(line, "%*s %4s", rights) == 1 && rights[3] == 's';
  }
  if (f) fclose(f);
  return n;
}

static uint64_t environment(void) {
  uint64_t sum = 0; /* setenv and unsetenv may change the order */
  for (char **e = environ; e && *e; e++) sum += hash(0xcbf29ce484222325ull, *e, strlen(*e));
  return sum;
}

static uint64_t measure(int part) {
  char path[4096] = "";
  sigset_t blocked;
  uint64_t value = 0;
  switch (part) {
    case THREADS: return entries("/proc/self/task");
    case SHARED_MAPPINGS: return shared_mappings();
    case ENVIRONMENT: return environment();
    case SIGNALS:
      pthread_sigmask(SIG_SETMASK, NULL, &blocked);
      for (int i = 1; i < 64; i++) value |= (uint64_t)(sigismember(&blocked, i) == 1) << i;
      return value;
    case DIRECTORY: return getcwd(path, sizeof path) ? hash(0, path, strlen(path)) : 0;
    default:
      for (size_t i = 0; i < nwatched; i++) value = hash(value, watched[i].at, watched[i].size);
      return value;
  }
}

/* One bit for each of the lowest descriptors that is open: one call, where counting all of them takes many. */
static uint64_t low_files(void) {
  struct pollfd polls[LOW_FILES];
  uint64_t open = 0;
  for (int i = 0; i < LOW_FILES; i++) polls[i] = (struct pollfd){.fd = i};
  if (poll(polls, LOW_FILES, 0) < 0) return 0;
  for (int i = 0; i < LOW_FILES; i++) open |= (uint64_t)!(polls[i].revents & POLLNVAL) << i;
  return open;
}

/* ---- a run ----------------------------------------------------------- */

static void record(void) {
  const char *text = getenv("RAIL_TEST_FUZZ_EACH");
  each = text && *text == '1';
  for (int part = 0; part < PARTS; part++) at_start[part] = measure(part);
}

/* Compared with those before the run: libFuzzer opens some between two runs (pipes to a symbolizer). */
static void check_files(uint64_t low_before, uint64_t files_before) {
  uint64_t low = low_files(), files = files_before ? entries("/proc/self/fd") : 0;
  if (low == low_before && files == files_before) return;
  fprintf(stderr, "open descriptors, one bit each: %#llx before the run, %#llx after it; their number: %llu, %llu\n",
          (unsigned long long)low_before, (unsigned long long)low, (unsigned long long)files_before,
          (unsigned long long)files);
  FUZZ_CHECK(!"a run left the descriptors as it found them");
}

static void check_part(int part) {
  uint64_t now = measure(part), deadline = rail_deadline_in_ms(END_MS);
  while (part == THREADS && now > at_start[part] && !rail_deadline_passed(deadline)) {
    usleep(100);
    now = measure(part);
  }
  if (now == at_start[part]) return;
  fprintf(stderr, "%s: %llu after the first run, %llu now; RAIL_TEST_FUZZ_EACH=1 names the input that changed it\n",
          part_names[part], (unsigned long long)at_start[part], (unsigned long long)now);
  FUZZ_CHECK(!"a run left the process as it found it");
}

/* A thread of the product may free what the run left to it a moment later. */
static bool heap_grew(size_t before) {
  uint64_t deadline = rail_deadline_in_ms(HEAP_MS);
  while (__sanitizer_get_current_allocated_bytes() > before) {
    if (rail_deadline_passed(deadline)) return true;
    usleep(100);
  }
  return false;
}

/* Memory that is still reachable is no leak to a leak checker, but each run would add to it. What is allocated once,
 * by the first input that needs it, is not allocated again when the same input runs again. */
static void check_heap(const uint8_t *data, size_t size, size_t before) {
  for (int again = 0; heap_grew(before); again++) {
    if (again == 3) {
      fprintf(stderr, "each run of this input allocates memory that it does not free\n");
      FUZZ_CHECK(!"a run left the heap as it found it");
    }
    before = __sanitizer_get_current_allocated_bytes();
    fuzz_one(data, size);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (runs == 0) {
    fuzz_quiet();
    fuzz_one(data, 0);
    record();
  }
  bool all = each || runs < FIRST || runs % EVERY == 0;
  bool heap = all && __sanitizer_get_current_allocated_bytes;
  size_t before = heap ? __sanitizer_get_current_allocated_bytes() : 0;
  bool some = all || runs % FILES_EVERY == 0;
  uint64_t files = all ? entries("/proc/self/fd") : 0, low = some ? low_files() : 0;
  fuzz_one(data, size);
  runs++;
  if (some) check_files(low, files);
  if (heap) check_heap(data, size, before);
  for (int part = 0; all && part < PARTS; part++) check_part(part);
  return 0;
}
