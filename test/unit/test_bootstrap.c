/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: ranks exchange messages and split, and keep other connections out.
 */
#include <errno.h>

#include "core/bootstrap/rt_boot.h"
#include "test/unit/boot_drops.h"

/* ---- messages ---- */

static int gather_body(struct rank *r, struct rt_bootstrap *b) {
  static const size_t sizes[] = {0, 1, 4, 24, 1000, 100000};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    size_t each = sizes[s];
    unsigned char *all = calloc((size_t)r->nranks, each + 1);
    WANT(all);
    for (size_t i = 0; i < each; i++) all[(size_t)r->rank * each + i] = (unsigned char)(r->rank * 31 + (int)i);
    WANT(rt_bootstrap_allgather(b, all, each) == RAIL_OK);
    for (int p = 0; p < r->nranks; p++)
      for (size_t i = 0; i < each; i++) WANT(all[(size_t)p * each + i] == (unsigned char)(p * 31 + (int)i));
    free(all);
  }
  return 0;
}

TEST(allgather) { EACH_WORLD(n) run_good(n, gather_body); }

static _Atomic int entered[64];

/* No rank leaves the k-th allgather before all have entered it. */
static int barrier_body(struct rank *r, struct rt_bootstrap *b) {
  for (int k = 0; k < 50; k++) {
    atomic_fetch_add(&entered[k], 1);
    WANT(boot_barrier(b) == RAIL_OK);
    WANT(atomic_load(&entered[k]) == r->nranks);
  }
  return 0;
}

TEST(barrier) {
  EACH_WORLD(n) {
    for (int k = 0; k < 64; k++) atomic_store(&entered[k], 0);
    run_good(n, barrier_body);
  }
}

static uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

static size_t size_of_message(int from, int to, int k) {
  uint32_t x = mix((uint32_t)(from * 7919 + to * 104729 + k));
  return k == 0 ? 0 : x % (k % 5 == 0 ? 200000 : 300);
}

/* Every rank sends every rank, itself included, messages of many sizes under two tags; they are taken in another
 * order of peers and tags than they were sent in, but in order within one. */
static int random_body(struct rank *r, struct rt_bootstrap *b) {
  enum { MESSAGES = 12 };
  int n = r->nranks;
  static _Thread_local unsigned char buf[200000];
  for (int d = 0; d < n; d++) {
    int to = (r->rank + d) % n;
    for (int k = 0; k < MESSAGES; k++) {
      size_t size = size_of_message(r->rank, to, k);
      memset(buf, r->rank + k, size);
      WANT(rt_bootstrap_send(b, to, (uint32_t)(k % 2) * 0xfffffff0u, buf, size) == RAIL_OK);
    }
  }
  for (int d = n - 1; d >= 0; d--) {
    int from = (r->rank + d) % n;
    for (int tag = 1; tag >= 0; tag--)
      for (int k = tag; k < MESSAGES; k += 2) {
        size_t size = size_of_message(from, r->rank, k);
        WANT(recv_message(b, from, (uint32_t)tag * 0xfffffff0u, buf, size) == RAIL_OK);
        for (size_t i = 0; i < size; i++) WANT(buf[i] == (unsigned char)(from + k));
      }
    WANT(rt_bootstrap_try_recv(b, from, 0, buf, 1) == RAIL_IN_PROGRESS);
  }
  return boot_barrier(b) == RAIL_OK ? 0 : __LINE__;
}

TEST(random_messages) { EACH_WORLD(n) run_good(n, random_body); }

struct late { struct rt_bootstrap *b; int got; rail_result_t result; };

static void *late_recv(void *arg) {
  struct late *l = arg;
  l->result = recv_message(l->b, 0, 77, &l->got, sizeof l->got);
  return NULL;
}

/* recv waits for a send that comes later, in another thread, while this one talks with the same peer. */
static int recv_first_body(struct rank *r, struct rt_bootstrap *b) {
  int value = 4711;
  if (r->rank == 0) {
    WANT(recv_message(b, 1, 1, &value, sizeof value) == RAIL_OK); /* rank 1's other thread waits by now, or soon */
    WANT(rt_bootstrap_send(b, 1, 77, &value, sizeof value) == RAIL_OK);
    return 0;
  }
  struct late l = {.b = b};
  pthread_t t;
  WANT(pthread_create(&t, NULL, late_recv, &l) == 0);
  WANT(rt_bootstrap_send(b, 0, 1, &value, sizeof value) == RAIL_OK);
  pthread_join(t, NULL);
  WANT(l.result == RAIL_OK && l.got == 4711);
  return 0;
}

TEST(recv_before_send) { run_good(2, recv_first_body); }

static int wrong_size_body(struct rank *r, struct rt_bootstrap *b) {
  char buf[64] = {0};
  if (r->rank == 0) WANT(rt_bootstrap_send(b, 1, 3, buf, 10) == RAIL_OK);
  else WANT(recv_message(b, 0, 3, buf, 11) == RAIL_REMOTE_ERROR);
  WANT(rt_bootstrap_send(b, r->nranks, 0, buf, 1) == RAIL_BAD_ARGUMENT);
  WANT(rt_bootstrap_send(b, 0, 0, buf, (size_t)RT_BOOT_MAX_MESSAGE + 1) == RAIL_BAD_ARGUMENT);
  WANT(recv_message(b, -1, 0, buf, 1) == RAIL_BAD_ARGUMENT);
  return 0;
}

TEST(wrong_sizes_and_ranks) {
  log_clear();
  run_good(2, wrong_size_body);
  CHECK(logged("expects 11 bytes from rank 0"));
}

/* ---- split ---- */

static int split_body(struct rank *r, struct rt_bootstrap *b) {
  for (uint32_t serial = 0; serial < 3; serial++) {
    int group[MAX_RANKS], n = 0, mine = -1;
    for (int p = r->nranks - 1; p >= 0; p--) { /* by parity, in reverse order */
      if (p % 2 != r->rank % 2) continue;
      if (p == r->rank) mine = n;
      group[n++] = p;
    }
    struct rt_bootstrap *child;
    struct rt_bootstrap_args args = args_of(r);
    args.rank = mine;
    args.nranks = n;
    WANT(rt_bootstrap_split(b, group, serial, &args, &child) == RAIL_OK);
    int all[MAX_RANKS];
    all[mine] = r->rank;
    WANT(rt_bootstrap_allgather(child, all, sizeof *all) == RAIL_OK);
    for (int i = 0; i < n; i++) WANT(all[i] == group[i]);
    WANT(boot_barrier(child) == RAIL_OK);
    rt_bootstrap_close(child);
  }
  return boot_barrier(b) == RAIL_OK ? 0 : __LINE__;
}

TEST(split) { EACH_WORLD(n) run_good(n, split_body); }

/* A rank that does not take part: the others' split ends with an error and leaves the parent usable. */
static int split_without_one_body(struct rank *r, struct rt_bootstrap *b) {
  const int group[] = {0, 1, 2};
  struct rt_bootstrap_args args = args_of(r);
  struct rt_bootstrap *child = b;
  args.timeout_ms = 300;
  if (r->rank != 2) WANT(rt_bootstrap_split(b, group, 0, &args, &child) == RAIL_REMOTE_ERROR && !child);
  return boot_barrier(b) == RAIL_OK ? 0 : __LINE__;
}

TEST(a_split_that_one_misses_ends) {
  log_clear();
  run_good(3, split_without_one_body);
  CHECK(logged("no message from rank 2"));
}

/* ---- who calls a rank ---- */

/* The ranks' own listeners: the bootstrap thread drops the same connections while a communicator works. */
static union rail_addr peer_addr;
static _Atomic int junk_state;

/* A barrier more or less must not matter at the end, so rank 0 decides for both. */
static int noisy_pair_body(struct rank *r, struct rt_bootstrap *b) {
  if (r->rank == 1) {
    WANT(rail_addr_parse(rt_bootstrap_peer_text(b, 0), &peer_addr) == RAIL_OK);
    atomic_store(&junk_state, 1);
  }
  for (int stop = 0; !stop;) {
    int all[2] = {0, 0};
    if (r->rank == 0) all[0] = atomic_load(&junk_state) == 2;
    WANT(rt_bootstrap_allgather(b, all, sizeof *all) == RAIL_OK);
    stop = all[0];
    usleep(500);
  }
  return 0;
}

TEST(unauthenticated_at_a_rank) {
  enum { N = 300 };
  static int fds[N];
  char id[RT_UNIQUE_ID_BYTES];
  atomic_store(&junk_state, 0);
  log_clear();
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(2, id, noisy_pair_body);
  for (int i = 0; i < 2; i++) rank_start(i);
  while (atomic_load(&junk_state) == 0) usleep(1000);
  send_junk(&peer_addr, fds, N);

  struct { struct rt_boot_header head; struct rt_boot_peer_hello hello; } out;
  memset(&out, 0, sizeof out);
  out.head = rt_boot_header_make(RT_BOOT_PEER_HELLO, 0, sizeof out.hello);
  out.hello.from = 1;
  out.hello.link = RT_BOOT_LINK_DATA; /* all is right but the secret */
  out.hello.nranks = 2;
  int fd = connect_to(&peer_addr);
  CHECK_OK(rail_sock_send_all(fd, &out, sizeof out, 0, NULL));
  char byte;
  CHECK_INT(rail_sock_recv_all(fd, &byte, 1, rail_deadline_in_ms(20000), NULL), RAIL_REMOTE_ERROR);
  CHECK(errno != ETIMEDOUT);
  rail_sock_close(&fd);

  atomic_store(&junk_state, 2);
  for (int i = 0; i < 2; i++) pthread_join(ranks[i].thread, NULL);
  for (int i = 0; i < 2; i++) CHECK_INT(ranks[i].bad_line + ranks[i].failures + (int)ranks[i].open_result, 0);
  CHECK(logged("accept on rank 0 of 2: dropped a connection from"));
  for (int i = 0; i < N; i++) rail_sock_close(&fds[i]);
}

/* A peer that knows the communicator's secret is refused unless it names a rank of it, and this one as its target. */
static int misfits_body(struct rank *r, struct rt_bootstrap *b) {
  if (r->rank != 0) return boot_barrier(b) == RAIL_OK ? 0 : __LINE__;
  static const struct { uint32_t from, to, link, nranks; } wrong[] = {
    {1, 0, RT_BOOT_LINK_DATA, 3}, {2, 0, RT_BOOT_LINK_DATA, 2}, {1, 1, RT_BOOT_LINK_DATA, 2},
    {1, 0, RT_BOOT_LINK_RING, 2}, {1, 0, 3, 2},
  };
  union rail_addr me;
  WANT(rail_addr_parse(rt_bootstrap_peer_text(b, 0), &me) == RAIL_OK);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    struct { struct rt_boot_header head; struct rt_boot_peer_hello hello; } out;
    memset(&out, 0, sizeof out);
    out.head = rt_boot_header_make(RT_BOOT_PEER_HELLO, 0, sizeof out.hello);
    memcpy(out.hello.secret, b->secret, RT_SECRET_BYTES);
    out.hello.from = wrong[i].from;
    out.hello.to = wrong[i].to;
    out.hello.link = wrong[i].link;
    out.hello.nranks = wrong[i].nranks;
    if (i == 0 || i == 2) usleep(1100000); /* a line a second: those of these two are looked for */
    uint64_t deadline = rail_deadline_in_ms(10000);
    int fd = -1;
    char byte;
    WANT(rail_sock_connect_all(&me, NULL, deadline, NULL, &fd) == RAIL_OK);
    WANT(rail_sock_send_all(fd, &out, sizeof out, deadline, NULL) == RAIL_OK);
    rail_result_t result = rail_sock_recv_all(fd, &byte, 1, deadline, NULL);
    bool hung_up = result == RAIL_REMOTE_ERROR && errno != ETIMEDOUT;
    rail_sock_close(&fd);
    if (!hung_up) return 1000 + (int)i;
  }
  return boot_barrier(b) == RAIL_OK ? 0 : __LINE__;
}

/* A message of which half has come when its connection ends: no longer counted among those that nobody has taken. */
static int half_body(struct rank *r, struct rt_bootstrap *b) {
  struct { struct rt_boot_header head; struct rt_boot_peer_hello hello; struct rt_boot_header message; } out;
  union rail_addr me;
  uint64_t deadline = rail_deadline_in_ms(10000);
  char byte, data[100] = {0};
  int fd = -1;
  if (r->rank != 0) return 0;
  memset(&out, 0, sizeof out);
  out.head = rt_boot_header_make(RT_BOOT_PEER_HELLO, 0, sizeof out.hello);
  memcpy(out.hello.secret, b->secret, RT_SECRET_BYTES);
  out.hello.from = 1;
  out.hello.link = RT_BOOT_LINK_DATA;
  out.hello.nranks = 2;
  out.message = rt_boot_header_make(RT_BOOT_MESSAGE, 5, 100000);
  WANT(rail_addr_parse(rt_bootstrap_peer_text(b, 0), &me) == RAIL_OK);
  WANT(rail_sock_connect_all(&me, NULL, deadline, NULL, &fd) == RAIL_OK);
  WANT(rail_sock_send_all(fd, &out, sizeof out, deadline, NULL) == RAIL_OK);
  WANT(rail_sock_send_all(fd, data, sizeof data, deadline, NULL) == RAIL_OK);
  WANT(rail_sock_recv_all(fd, &byte, 1, deadline, NULL) == RAIL_OK && byte == RT_BOOT_ACCEPTED);
  rail_sock_close(&fd);
  bool gone = false;
  size_t bytes = 1;
  while (!gone && !rail_deadline_passed(deadline)) {
    usleep(1000);
    pthread_mutex_lock(&b->lock);
    gone = b->data_closed[1];
    pthread_mutex_unlock(&b->lock);
  }
  WANT(gone);
  for (int i = 0; i < 1000 && bytes > 0; i++) { /* the message goes a moment after that */
    usleep(1000);
    pthread_mutex_lock(&b->lock);
    bytes = b->unexpected_bytes;
    pthread_mutex_unlock(&b->lock);
  }
  WANT(bytes == 0);
  return 0;
}

TEST(half_a_message_is_not_kept) { run_good(2, half_body); }

TEST(hellos_that_do_not_fit_are_refused) {
  log_clear();
  run_good(2, misfits_body);
  CHECK(logged("it is no rank of this communicator"));
  CHECK(logged("it looks for another rank"));
}

static const struct tap_case cases[] = {
  TEST_CASE(allgather), TEST_CASE(barrier), TEST_CASE(random_messages), TEST_CASE(recv_before_send),
  TEST_CASE(wrong_sizes_and_ranks), TEST_CASE(split), TEST_CASE(a_split_that_one_misses_ends),
  TEST_CASE(unauthenticated_at_a_rank), TEST_CASE(half_a_message_is_not_kept),
  TEST_CASE(hellos_that_do_not_fit_are_refused),
};

int main(int argc, char **argv) {
  unsetenv("NCCL_COMM_ID");
  rail_log_set_sink(capture);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
