/* SPDX-License-Identifier: Apache-2.0
 * The cache of registrations: against a model that remembers every range it was asked for, through failures, and from
 * two threads. */
#include <pthread.h>
#include <sys/mman.h>

#include "test/unit/ib_rig.h"

enum { PAGES = 64, HELD = 200, ROUNDS = 20000 };

static char *memory;
static uint64_t page;
static struct ib_hca *hca;
static uint64_t seed = 1;

static unsigned int pick(unsigned int n) {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned int)(seed >> 33) % n;
}

static struct ib_mr_key key_of(uint64_t offset, uint64_t size, int access) {
  return (struct ib_mr_key){.addr = (uint64_t)(uintptr_t)memory + offset, .size = size, .access = access, .fd = -1};
}

static struct ib_mr_entry *get(struct ib_hca *cache, uint64_t offset, uint64_t size, int access) {
  struct ib_mr_entry *entry;
  struct ib_mr_key key = key_of(offset, size, access);
  CHECK_OK(ib_mr_cache_get(cache, &key, &entry));
  return entry;
}

/* ---- the model: what must be registered after each step ---- */

struct held {
  struct ib_mr_entry *entry;
  uint64_t first, end; /* pages */
  int access;
};

/* Pages that the registration behind an entry covers. */
static uint64_t mr_first(const struct ib_mr_entry *e) {
  return ((uint64_t)(uintptr_t)ib_mr_entry_mr(e)->addr - (uint64_t)(uintptr_t)memory) / page;
}
static uint64_t mr_end(const struct ib_mr_entry *e) { return mr_first(e) + ib_mr_entry_mr(e)->length / page; }

static unsigned int distinct(const struct held *held, unsigned int n) {
  unsigned int count = 0;
  for (unsigned int i = 0; i < n; i++) {
    bool first = true;
    for (unsigned int k = 0; k < i; k++) first &= held[k].entry != held[i].entry;
    count += first;
  }
  return count;
}

TEST(against_a_model) {
  static const int accesses[] = {IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
  struct held held[HELD];
  unsigned int n = 0;
  long registered = emu_live("mr");
  for (int round = 0; round < ROUNDS; round++) {
    if (n < HELD && (n == 0 || pick(100) < (round / 2000 % 2 ? 40u : 60u))) {
      uint64_t offset = pick(PAGES * (unsigned int)page - 1), room = PAGES * page - offset;
      uint64_t size = 1 + pick((unsigned int)(pick(4) ? RAIL_MIN(room, 5 * page) : room));
      if (size > room) size = room;
      struct held *h = &held[n];
      *h = (struct held){.first = offset / page, .end = RAIL_DIV_UP(offset + size, page), .access = accesses[pick(2)]};
      struct ib_mr_entry *known = NULL;
      bool is_known = false;
      for (unsigned int i = 0; i < n; i++) {
        known = held[i].entry;
        is_known |= held[i].access == h->access && mr_first(known) <= h->first && mr_end(known) >= h->end;
      }
      long calls = emu_calls("reg_mr");
      h->entry = get(hca, offset, size, h->access);
      CHECK_INT(emu_calls("reg_mr") - calls, !is_known);
      CHECK(mr_first(h->entry) <= h->first && mr_end(h->entry) >= h->end);
      if (!is_known) CHECK(mr_first(h->entry) == h->first && mr_end(h->entry) == h->end);
      for (unsigned int i = 0; i < n; i++)
        if (held[i].entry == h->entry) CHECK_INT(held[i].access, h->access);
      n++;
    } else {
      unsigned int i = pick(n);
      ib_mr_cache_put(hca, held[i].entry);
      held[i] = held[--n];
    }
    CHECK_INT(ib_mr_cache_count(hca), distinct(held, n));
    CHECK_INT(emu_live("mr") - registered, distinct(held, n));
  }
  while (n) ib_mr_cache_put(hca, held[--n].entry);
  CHECK_INT(ib_mr_cache_count(hca), 0);
  CHECK_INT(emu_live("mr"), registered);
  ib_mr_cache_close(hca);
}

TEST(close_takes_the_rest) {
  long registered = emu_live("mr");
  get(hca, 0, page, IBV_ACCESS_LOCAL_WRITE);
  get(hca, 2 * page, page, IBV_ACCESS_LOCAL_WRITE);
  CHECK_INT(emu_live("mr"), registered + 2);
  ib_mr_cache_close(hca);
  CHECK_INT(emu_live("mr"), registered);
}

/* ---- dma-bufs ---- */

static rail_result_t get_buffer(struct ib_hca *cache, int fd, uint64_t addr, uint64_t offset, uint64_t size,
                                struct ib_mr_entry **entry) {
  struct ib_mr_key key = {.addr = addr, .size = size, .access = IBV_ACCESS_LOCAL_WRITE, .fd = fd, .offset = offset};
  return ib_mr_cache_get(cache, &key, entry);
}

TEST(a_dma_buf_is_its_file_whatever_the_descriptor) {
  struct ib_mr_entry *a, *b, *other, *part, *later, *host;
  int one = memfd_create("one", MFD_CLOEXEC), two = memfd_create("two", MFD_CLOEXEC);
  CHECK_OK(ftruncate(one, (off_t)(8 * page)));
  CHECK_OK(ftruncate(two, (off_t)(8 * page)));
  uint64_t addr = (uint64_t)(uintptr_t)memory;
  int again = dup(one);
  CHECK_OK(get_buffer(hca, one, addr, 0, 4 * page, &a));
  close(one);
  CHECK_OK(get_buffer(hca, again, addr, 0, 4 * page, &b));
  CHECK(a == b);
  CHECK_OK(get_buffer(hca, two, addr, 0, 4 * page, &other));
  CHECK_OK(get_buffer(hca, again, addr, 0, 2 * page, &part));
  CHECK_OK(get_buffer(hca, again, addr, page, 4 * page, &later));
  host = get(hca, 0, page, IBV_ACCESS_LOCAL_WRITE);
  CHECK(other != a && part != a && later != a && host != a && host != part);
  CHECK_INT(ib_mr_cache_count(hca), 5);
  ib_mr_cache_put(hca, a);
  CHECK_INT(ib_mr_cache_count(hca), 5);
  ib_mr_cache_put(hca, b);
  CHECK_INT(ib_mr_cache_count(hca), 4);
  close(again);
  close(two);
  ib_mr_cache_close(hca);
}

/* ---- failures ---- */

TEST(what_fails_leaves_nothing) {
  struct ib_mr_entry *entry = (void *)1;
  struct ib_mr_key key = key_of(100, 10, IBV_ACCESS_LOCAL_WRITE);
  emu_do("fail reg_mr errno=ENOMEM");
  CHECK_INT(ib_mr_cache_get(hca, &key, &entry), RAIL_SYSTEM_ERROR);
  CHECK(!entry);
  CHECK_INT(ib_mr_cache_count(hca), 0);
  CHECK(log_said("memlock") && log_said(hca->name));
  CHECK_OK(ib_mr_cache_get(hca, &key, &entry));
  CHECK_INT(ib_mr_cache_count(hca), 1);
  ib_mr_cache_put(hca, entry);

  log_forget();
  CHECK_INT(get_buffer(hca, 9999, key.addr, 0, page, &entry), RAIL_BAD_ARGUMENT);
  CHECK(!entry && log_said("9999"));
  key.size = 0;
  CHECK_INT(ib_mr_cache_get(hca, &key, &entry), RAIL_BAD_ARGUMENT);
  key = (struct ib_mr_key){.addr = UINT64_MAX - 5, .size = 10, .fd = -1};
  CHECK_INT(ib_mr_cache_get(hca, &key, &entry), RAIL_BAD_ARGUMENT);
  key.size = 5; /* cannot be rounded up */
  CHECK_INT(ib_mr_cache_get(hca, &key, &entry), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_mr_cache_count(hca), 0);
  ib_mr_cache_close(hca);
}

/* Where the library lacks the call for access bits that may be ignored they are left out, not the registration. */
TEST(relaxed_ordering_is_a_wish) {
  int relaxed = IBV_ACCESS_LOCAL_WRITE | (int)IBV_ACCESS_RELAXED_ORDERING;
  struct ibv_mr *(*iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int) = ib_verbs.reg_mr_iova2;
  ib_verbs.reg_mr_iova2 = NULL;
  struct ib_mr_entry *a = get(hca, 0, page, relaxed);
  ib_verbs.reg_mr_iova2 = iova2;
  CHECK(iova2);
  struct ib_mr_entry *b = get(hca, page, page, relaxed), *c = get(hca, page, page, IBV_ACCESS_LOCAL_WRITE);
  CHECK(a && b && c && b != c);
  ib_mr_cache_close(hca);
}

/* ---- threads ---- */

static void *in_a_thread(void *arg) {
  struct ib_hca *cache = arg;
  uint64_t mine = (uint64_t)(uintptr_t)&mine;
  for (int i = 0; i < 3000; i++) {
    struct ib_mr_entry *entries[4] = {0};
    for (int k = 0; k < 4; k++) {
      mine = mine * 6364136223846793005ull + 1442695040888963407ull;
      struct ib_mr_key key = key_of((mine >> 40) % 8 * page, page, IBV_ACCESS_LOCAL_WRITE);
      if (ib_mr_cache_get(cache, &key, &entries[k]) != RAIL_OK) return arg;
      if ((uint64_t)(uintptr_t)ib_mr_entry_mr(entries[k])->addr > key.addr) return arg;
    }
    for (int k = 0; k < 4; k++) ib_mr_cache_put(cache, entries[k]);
  }
  return NULL;
}

TEST(two_threads) {
  pthread_t threads[2];
  void *failed;
  long registered = emu_live("mr");
  for (int i = 0; i < 2; i++) CHECK_OK(pthread_create(&threads[i], NULL, in_a_thread, hca));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(pthread_join(threads[i], &failed));
    CHECK(!failed);
  }
  CHECK_INT(ib_mr_cache_count(hca), 0);
  CHECK_INT(emu_live("mr"), registered);
  ib_mr_cache_close(hca);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(against_a_model),
    TEST_CASE(close_takes_the_rest),
    TEST_CASE(a_dma_buf_is_its_file_whatever_the_descriptor),
    TEST_CASE(what_fails_leaves_nothing),
    TEST_CASE(relaxed_ordering_is_a_wish),
    TEST_CASE(two_threads),
  };
  rig_use(NULL);
  hca = ib_hca_at(0);
  page = (uint64_t)sysconf(_SC_PAGESIZE);
  memory = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
