/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives a target without libFuzzer: replays its corpus, then feeds mutations
 * of it for a few seconds, and prints TAP. The inputs run in a child; the one
 * that is at work lies in shared memory, so that it is there however the child
 * ends: a crash, a sanitizer's exit, a hang. It is written to crashes/ beside
 * the program, with the line that repeats it.
 *
 *   PROGRAM                        as part of make test, from the root of the sources
 *   PROGRAM FILE…                  these inputs
 *   PROGRAM --seconds S --seed N   longer, or differently
 *   PROGRAM --runs N --each        what is left behind is found at its own input, slowly
 *   PROGRAM --write-corpus         makes test/fuzz/corpus/TARGET anew
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "test/fuzz/lib/fuzz.h"
#include "test/fuzz/lib/mutate.h"

#define CAP ((size_t)16384) /* of an input */
#define MAX_POOL 1024
#define HANG_MS 30000 /* one input; a busy machine under a sanitizer needs some of it */
#define EXIT_LEFT 77  /* memory was left behind */

#if defined(__SANITIZE_ADDRESS__)
#define DEFAULT_SECONDS 3.0
#else
#define DEFAULT_SECONDS 0.5
#endif

int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

struct entry {
  char name[64];
  size_t size;
  uint8_t *bytes;
};

struct shared {
  _Atomic uint64_t runs;
  size_t size;
  uint8_t bytes[CAP];
};

static struct shared *shared;
static struct entry seeds[MAX_POOL], pool[MAX_POOL];
static size_t nseeds, npool;
static char target[64], crashes[2048], corpus[128];
static const char *program;
static double seconds = DEFAULT_SECONDS;
static uint64_t seed = 1, most_runs = UINT64_MAX;
static bool each;
static int number, failures;

/* ---- files ----------------------------------------------------------- */

static void die(const char *what, const char *name) {
  printf("Bail out! %s %s: %s\n", what, name, strerror(errno));
  exit(1);
}

static void add(struct entry *list, size_t *n, const char *name, const void *bytes, size_t size) {
  if (*n == MAX_POOL || size > CAP) die("too many, or too large:", name);
  struct entry *e = &list[(*n)++];
  snprintf(e->name, sizeof e->name, "%s", name);
  e->bytes = malloc(size + 1);
  if (!e->bytes) die("no memory for", name);
  if (size) memcpy(e->bytes, bytes, size);
  e->size = size;
}

void fuzz_seed(const char *name, const void *bytes, size_t size) { add(seeds, &nseeds, name, bytes, size); }

static void load(const char *path, const char *name) {
  static uint8_t bytes[CAP];
  FILE *f = fopen(path, "rb");
  if (!f) die("cannot read", path);
  size_t size = fread(bytes, 1, sizeof bytes, f);
  fclose(f);
  add(pool, &npool, name, bytes, size);
}

static void store(const char *path, const void *bytes, size_t size) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(bytes, 1, size, f) != size || fclose(f) != 0) die("cannot write", path);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static void load_corpus(void) {
  char path[512];
  DIR *dir = opendir(corpus);
  if (!dir) die("run from the root of the sources; no corpus in", corpus);
  for (struct dirent *d; (d = readdir(dir)) != NULL;) {
    if (d->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%.250s", corpus, d->d_name);
    load(path, d->d_name);
  }
  closedir(dir);
  qsort(pool, npool, sizeof pool[0], by_name); /* the same order on every file system */
}

static void write_corpus(void) {
  char path[512];
  if (mkdir(corpus, 0777) != 0 && errno != EEXIST) die("cannot make", corpus);
  for (size_t i = 0; i < nseeds; i++) {
    snprintf(path, sizeof path, "%s/%.63s", corpus, seeds[i].name);
    store(path, seeds[i].bytes, seeds[i].size);
  }
}

/* ---- running --------------------------------------------------------- */

/* Memory that the inputs so far have left behind ends the child. The rest of what they may leave is state.c's. */
static void check_left(void) {
  if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) _exit(EXIT_LEFT);
}

static void run(const uint8_t *bytes, size_t size) {
  /* A block of its own, so that reading beyond the input is seen. */
  uint8_t *copy = malloc(size ? size : 1);
  if (!copy) _exit(1);
  memcpy(copy, bytes, size);
  if (bytes != shared->bytes) memcpy(shared->bytes, bytes, size);
  shared->size = size;
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
  if (each && atomic_load(&shared->runs)) check_left();
  atomic_fetch_add(&shared->runs, 1);
}

static void replay(void) {
  for (size_t i = 0; i < npool; i++) run(pool[i].bytes, pool[i].size);
  check_left();
}

/* Every prefix of the small ones: where a length check is missing this finds it without luck. */
static void truncate_all(uint64_t deadline) {
  for (size_t i = 0; i < npool; i++)
    for (size_t size = 0; size < pool[i].size && pool[i].size <= 512; size++) {
      if (rail_deadline_passed(deadline) || atomic_load(&shared->runs) >= most_runs) return;
      run(pool[i].bytes, size);
    }
}

static void mutations(void) {
  struct fuzz_rng rng = {seed};
  uint64_t start = rail_now_ns(), length = (uint64_t)(seconds * 1e9);
  replay();
  atomic_store(&shared->runs, 1); /* those of the corpus do not count */
  truncate_all(start + length / 4);
  for (uint64_t n = 1; atomic_load(&shared->runs) < most_runs; n++) {
    if (n % 16 == 0 && rail_deadline_passed(start + length)) break;
    const struct entry *from = &pool[fuzz_below(&rng, npool)], *other = &pool[fuzz_below(&rng, npool)];
    memcpy(shared->bytes, from->bytes, from->size);
    size_t size = fuzz_mutate(&rng, shared->bytes, from->size, CAP, other->bytes, other->size);
    run(shared->bytes, size);
  }
  check_left();
}

/* ---- the child and its end ------------------------------------------- */

/* One pass in a child. Its status, or -1: it hung. */
static int in_child(void (*pass)(void)) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) die("cannot fork", program);
  if (pid == 0) {
    pass();
    exit(0); /* the leak checker's last look */
  }
  uint64_t last = UINT64_MAX, since = 0;
  for (;;) {
    int status;
    if (waitpid(pid, &status, WNOHANG) == pid) return status;
    uint64_t runs = atomic_load(&shared->runs), now = rail_now_ns();
    if (runs != last) {
      last = runs;
      since = now;
    }
    if (now - since > HANG_MS * 1000000ull) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return -1;
    }
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
}

static void keep_input(void) {
  char path[sizeof crashes + sizeof target + 32];
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < shared->size; i++) hash = (hash ^ shared->bytes[i]) * 0x100000001b3ull;
  if (mkdir(crashes, 0777) != 0 && errno != EEXIST) die("cannot make", crashes);
  snprintf(path, sizeof path, "%s/%s-%016llx", crashes, target, (unsigned long long)hash);
  store(path, shared->bytes, shared->size);
  printf("# the input: %s (%zu bytes)\n# again:     %s %s\n", path, shared->size, program, path);
}

static void result(const char *name, bool good) {
  number++;
  failures += !good;
  printf("%s %d - %s\n", good ? "ok" : "not ok", number, name);
}

static bool guarded(const char *name, void (*pass)(void)) {
  int status = in_child(pass);
  if (status == -1) printf("# an input did not end within %d s\n", HANG_MS / 1000);
  else if (WIFSIGNALED(status)) printf("# signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) == EXIT_LEFT && !each)
    printf("# memory was left behind; which input did it: %s --seed %llu --each\n", program,
           (unsigned long long)seed);
  else if (status) printf("# exit status %d\n", WEXITSTATUS(status));
  bool left = status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_LEFT;
  if (status && (!left || each)) keep_input();
  result(name, status == 0);
  return status == 0;
}

/* ---- the cases ------------------------------------------------------- */

/* A seed whose file is missing or different: a message's layout changed and the corpus was not written anew. */
static void check_corpus(void) {
  bool good = npool > 0;
  for (size_t i = 0; i < nseeds; i++) {
    struct entry *e = bsearch(&seeds[i], pool, npool, sizeof pool[0], by_name);
    if (e && e->size == seeds[i].size && memcmp(e->bytes, seeds[i].bytes, e->size) == 0) continue;
    printf("# %s/%s is not what the target makes; run make fuzz-corpus\n", corpus, seeds[i].name);
    good = false;
  }
  result("corpus_is_current", good);
}

static void read_options(int argc, char **argv) {
  const char *time = getenv("RAIL_TEST_FUZZ_SECONDS"), *number_text = getenv("RAIL_TEST_FUZZ_SEED");
  if (time) seconds = atof(time);
  if (number_text) seed = strtoull(number_text, NULL, 0);
  for (int i = 1; i < argc; i++) {
    bool value = i + 1 < argc;
    if (strcmp(argv[i], "--seconds") == 0 && value) seconds = atof(argv[++i]);
    else if (strcmp(argv[i], "--seed") == 0 && value) seed = strtoull(argv[++i], NULL, 0);
    else if (strcmp(argv[i], "--runs") == 0 && value) most_runs = strtoull(argv[++i], NULL, 0);
    else if (strcmp(argv[i], "--each") == 0) each = setenv("RAIL_TEST_FUZZ_EACH", "1", 1) == 0;
    else if (strcmp(argv[i], "--write-corpus") == 0) {
      write_corpus();
      exit(0);
    } else if (argv[i][0] == '-') {
      fprintf(stderr, "usage: %s [--seconds S] [--seed N] [--runs N] [--each] [--write-corpus] [FILE…]\n", program);
      exit(2);
    } else load(argv[i], argv[i]);
  }
}

int main(int argc, char **argv) {
  program = argv[0];
  const char *slash = strrchr(program, '/');
  snprintf(target, sizeof target, "%s", slash ? slash + 1 : program);
  snprintf(crashes, sizeof crashes, "%.*scrashes", slash ? (int)(slash + 1 - program) : 0, program);
  snprintf(corpus, sizeof corpus, "test/fuzz/corpus/%s", target);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) die("no memory for", program);
  setvbuf(stdout, NULL, _IOLBF, 0);
  fuzz_quiet();
  fuzz_make_seeds();
  read_options(argc, argv);
  if (npool > 0) { /* files were named */
    guarded("files", replay);
  } else {
    load_corpus();
    check_corpus();
    if (npool && guarded("corpus", replay)) {
      guarded("mutations", mutations);
      printf("# %llu inputs in %.1f s, seed %llu\n", (unsigned long long)atomic_load(&shared->runs), seconds,
             (unsigned long long)seed);
    }
  }
  printf("1..%d\n", number);
  return failures ? 1 : 0;
}
