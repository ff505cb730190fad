/* SPDX-License-Identifier: Apache-2.0
 *
 * TEST-LIMIT: 180
 *
 * What a connection costs with default parameters: locked memory, verbs objects, descriptors; and how long a thousand
 * take to open and to close. docs/results has the figures. Locked is what is registered, in pages, and the queues that
 * the provider is asked for. */
#include <dirent.h>
#include <sys/resource.h>

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_verbs.h"
#include "test/unit/ib_handshake.h"

#define MOST_LOCKED (64u << 10) /* of a connection over one port, on each side */
#define CQE 64
#define MOST_MS 2000 /* of the processor, to open a thousand, and to close them */
enum { MANY = 1000, TRIES = 3, MOST_MRS = 64 };

/* ---- what the provider is asked for ---------------------------------------------------------------- */

struct cost {
  const void *comm;
  uint64_t send, recv, completions, registered; /* bytes */
  unsigned int qps, cqs, mrs;
};

static struct {
  struct ib_verbs real;
  struct cost sides[2];
  struct { const void *at; size_t size; } mrs[MOST_MRS];
  unsigned int nsides, nmrs;
} asked;

/* A work request as an HCA reads it, by mlx5's layout (rdma-core, providers/mlx5/wqe.h): 16 bytes each of control,
 * remote address, and memory; inline data behind its length in place of the memory; all in units of 64. */
static uint64_t send_wqe(uint32_t inline_bytes) {
  const uint32_t data = RAIL_ROUND_UP(4 + inline_bytes, 16u);
  return RAIL_ROUND_UP(32 + RAIL_MAX(data, 16u), 64u);
}

static struct cost *side_of(const void *comm) {
  unsigned int i = 0;
  while (i < asked.nsides && asked.sides[i].comm != comm) i++;
  if (i == asked.nsides) {
    ENSURE(asked.nsides++ < RAIL_COUNT_OF(asked.sides), "more than two sides");
    asked.sides[i] = (struct cost){.comm = comm};
  }
  return &asked.sides[i];
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  const struct ibv_qp_init_attr wanted = *attr;
  struct ibv_qp *qp = asked.real.create_qp(pd, attr);
  if (!qp) return NULL;
  struct cost *side = side_of(wanted.qp_context);
  side->qps++;
  side->send += wanted.cap.max_send_wr * send_wqe(wanted.cap.max_inline_data);
  side->recv += wanted.cap.max_recv_wr * 16ull * wanted.cap.max_recv_sge;
  return qp;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int cqe, void *comm, struct ibv_comp_channel *channel,
                                int vector) {
  struct cost *side = side_of(comm);
  side->cqs++;
  side->completions += (uint64_t)cqe * CQE;
  return asked.real.create_cq(context, cqe, comm, channel, vector);
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *at, size_t size, int access) {
  ENSURE(asked.nmrs < MOST_MRS, "more than %d regions", MOST_MRS);
  asked.mrs[asked.nmrs].at = at;
  asked.mrs[asked.nmrs++].size = size;
  return asked.real.reg_mr(pd, at, size, access);
}

static void count_what_is_asked(void) {
  memset(&asked, 0, sizeof asked);
  asked.real = ib_verbs;
  ib_verbs.create_qp = create_qp;
  ib_verbs.create_cq = create_cq;
  ib_verbs.reg_mr = reg_mr;
}

/* Registers nothing but its own memory, whose pages are its own: that of one side is found by its address. */
static struct cost cost_of(const struct ib_comm *comm) {
  struct cost cost = *side_of(comm);
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  for (unsigned int i = 0; i < asked.nmrs; i++) {
    if (asked.mrs[i].at != comm->ctrl_buf) continue;
    cost.mrs++;
    cost.registered = RAIL_ROUND_UP(asked.mrs[i].size, page); /* the same pages, for each HCA */
  }
  return cost;
}

static uint64_t locked(const struct cost *c) { return c->send + c->recv + c->completions + c->registered; }

static void print(const char *name, const struct cost *c) {
  printf("# %-34s %6" PRIu64 " bytes: %5" PRIu64 " send, %5" PRIu64 " receive, %5" PRIu64 " completion queues, %" PRIu64
         " registered; %u QPs, %u CQs, %u MRs\n", name, locked(c), c->send, c->recv, c->completions, c->registered,
         c->qps, c->cqs, c->mrs);
}

/* One connection; GPUs: its receiver has what flushes need. */
static void one(const char *name, int dev, bool gpus, struct cost *sender, struct cost *receiver) {
  struct hs h;
  char text[64];
  hs_begin(&h);
  ib_params.flush = gpus ? IB_FLUSH_ALWAYS : IB_FLUSH_NEVER;
  count_what_is_asked();
  hs_pair(&h, dev, dev);
  ib_verbs.create_qp = asked.real.create_qp;
  ib_verbs.create_cq = asked.real.create_cq;
  ib_verbs.reg_mr = asked.real.reg_mr;
  CHECK(hs_logged("connected to"));
  *sender = cost_of(h.sent);
  *receiver = cost_of(h.received);
  CHECK_INT(sender->mrs + receiver->mrs, asked.nmrs);
  snprintf(text, sizeof text, "%s: sender", name);
  print(text, sender);
  snprintf(text, sizeof text, "%s: receiver", name);
  print(text, receiver);
  hs_end(&h);
}

/* ---- one --------------------------------------------------------------------------------------------- */

TEST(over_one_port) {
  for (int gpus = 0; gpus < 2; gpus++) {
    struct cost sender, receiver;
    one(gpus ? "one port, with flushes" : "one port", DEV_B, gpus, &sender, &receiver);
    CHECK_MSG(locked(&sender) <= MOST_LOCKED, "a sender locks %" PRIu64 " bytes", locked(&sender));
    CHECK_MSG(locked(&receiver) <= MOST_LOCKED, "a receiver locks %" PRIu64 " bytes", locked(&receiver));
    CHECK(sender.qps == 1 && sender.cqs == 1 && sender.mrs == 1);
    CHECK(receiver.qps == 1u + (unsigned int)gpus && receiver.cqs == 1 && receiver.mrs == 1);
  }
}

/* Its memory is registered with each HCA's domain, and each port has queues of its own. */
TEST(over_three) {
  struct cost sender, receiver;
  one("three ports, with flushes", DEV_FUSED, true, &sender, &receiver);
  CHECK(locked(&sender) <= 3 * MOST_LOCKED && locked(&receiver) <= 3 * MOST_LOCKED);
  CHECK(sender.qps == 3 && sender.mrs == 3 && receiver.qps == 6 && receiver.mrs == 3);
}

/* ---- a thousand --------------------------------------------------------------------------------------- */

static struct { void *sent, *received; } pairs[MANY];

static int entries(const char *folder) {
  int n = 0;
  DIR *d = opendir(folder);
  CHECK(d);
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

static uint64_t processor_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct times { uint64_t wall, processor; }; /* ms */
static struct times now(void) { return (struct times){rail_now_ns() / 1000000, processor_ns() / 1000000}; }
static struct times since(struct times t) {
  return (struct times){now().wall - t.wall, now().processor - t.processor};
}

/* How many a process may have: each has a descriptor on both sides. */
static int most_pairs(void) {
  struct rlimit files;
  CHECK_OK(getrlimit(RLIMIT_NOFILE, &files));
  files.rlim_cur = files.rlim_max;
  CHECK_OK(setrlimit(RLIMIT_NOFILE, &files));
  if (files.rlim_max < 2 * MANY + 200) tap_skip_case("no %d descriptors for a process (ulimit -Hn)", 2 * MANY + 200);
  return kit_sanitized() ? MANY / 20 : MANY;
}

static void open_pairs(struct hs *h, const char *fresh, int from, int to) {
  for (int i = from; i < to; i++) {
    memcpy(h->handle, fresh, sizeof h->handle);
    h->connect = h->accept = RAIL_IN_PROGRESS;
    hs_run(h, DEV_B);
    ENSURE(h->connect == RAIL_OK && h->accept == RAIL_OK, "pair %d: connect %d, accept %d", i, h->connect, h->accept);
    pairs[i].sent = h->sent;
    pairs[i].received = h->received;
  }
  h->connect = h->accept = RAIL_IN_PROGRESS; /* hs_end closes none of them */
}

/* Calls of libibverbs, but for those that make and destroy objects. */
static long verbs_calls(void) {
  static const char *const kinds[] = {"modify_qp", "query_qp", "post_send", "post_recv", "poll_cq", "query_port"};
  long n = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(kinds); i++) n += emu_calls(kinds[i]);
  return n;
}

/* Receivers linger until their senders say that all is acknowledged. */
static void close_pairs(const struct hs *h, int n) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (int i = 0; i < n; i++) CHECK_OK(ib_close_recv(pairs[i].received));
  for (int i = 0; i < n; i++) CHECK_OK(ib_close_send(pairs[i].sent));
  while (emu_live("qp") + emu_live("cq") + emu_live("mr") > h->qps + h->cqs + h->mrs) {
    CHECK_MSG(!rail_deadline_passed(deadline), "closed ones are still there: %ld QPs", emu_live("qp") - h->qps);
    usleep(1000);
  }
}

/* A thread that has been joined may be listed for a moment. */
static void check_threads(int n) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (entries("/proc/self/task") > n && !rail_deadline_passed(deadline)) usleep(1000);
  CHECK_INT(entries("/proc/self/task"), n);
}

static unsigned int tables_read; /* of GIDs */

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                               size_t size) {
  tables_read++;
  return asked.real.query_gid_table(context, entries, max, flags, size);
}

/* Were they opened and closed in time? */
static bool open_and_close(int n) {
  struct hs h;
  char fresh[RAIL_NET_HANDLE_SIZE];
  hs_begin(&h);
  ib_params.linger_ms = -1; /* the default */
  hs_listen(&h, DEV_B);
  memcpy(fresh, h.handle, sizeof fresh);
  const int fds = entries("/proc/self/fd");
  open_pairs(&h, fresh, 0, 1); /* after that the emulated HCA has its thread */
  const int threads = entries("/proc/self/task");
  struct times start = now();
  asked.real = ib_verbs;
  ib_verbs.query_gid_table = query_gid_table;
  open_pairs(&h, fresh, 1, n);
  const struct times opening = since(start);
  ib_verbs.query_gid_table = asked.real.query_gid_table;
  CHECK_INT(tables_read, 0); /* those that the first pair has read hold until an event comes */
  CHECK_INT(emu_live("qp") - h.qps, 3 * n); /* receivers flush: the emulated HCA registers dma-bufs */
  CHECK_INT(entries("/proc/self/fd") - fds, 2 * n);
  CHECK_INT(entries("/proc/self/task"), threads);
  start = now();
  const long calls = verbs_calls();
  close_pairs(&h, n);
  CHECK_INT(verbs_calls(), calls);
  const struct times closing = since(start);
  printf("# %d connections, both sides in one process: open %" PRIu64 " ms (%" PRIu64 " ms of the processor), close %"
         PRIu64 " ms (%" PRIu64 ")\n", n, opening.wall, opening.processor, closing.wall, closing.processor);
  hs_end(&h);
  check_threads(threads - 1); /* the watch thread has ended */
  return opening.processor <= MOST_MS && closing.processor <= MOST_MS;
}

/* ---- tests of many ---------------------------------------------------------------------------------- */

/* One thread tests a receive on each of `n` connections, round after round, and nothing comes. Returns ns of the
 * processor for one test. */
static uint64_t test_all(void **requests, int n) {
  enum { TESTS = 200000 };
  const long polls = emu_calls("poll_cq");
  const uint64_t start = processor_ns();
  for (int i = 0, at = 0; i < TESTS; i++, at = at + 1 < n ? at + 1 : 0) {
    int done = 0;
    CHECK_OK(ib_test(requests[at], &done, NULL));
    CHECK_INT(done, 0);
  }
  const uint64_t ns = processor_ns() - start;
  CHECK_INT(emu_calls("poll_cq") - polls, TESTS); /* each asks the queue of its own connection */
  return ns / TESTS;
}

TEST(tests_of_many) {
  static void *requests[MANY], *mhandles[MANY];
  static const int counts[] = {1, 30, 1000};
  static uint8_t buffer[64];
  struct hs h;
  char fresh[RAIL_NET_HANDLE_SIZE];
  const int n = most_pairs();
  void *data = buffer;
  size_t size = sizeof buffer;
  int tag = 0;
  hs_begin(&h);
  hs_listen(&h, DEV_B);
  memcpy(fresh, h.handle, sizeof fresh);
  open_pairs(&h, fresh, 0, n);
  for (int i = 0; i < n; i++) {
    CHECK_OK(ib_reg_mr(pairs[i].received, buffer, sizeof buffer, RAIL_PTR_HOST, &mhandles[i]));
    CHECK_OK(ib_irecv(pairs[i].received, 1, &data, &size, &tag, &mhandles[i], NULL, &requests[i]));
    CHECK(requests[i]);
  }
  for (size_t i = 0; i < RAIL_COUNT_OF(counts); i++) {
    const int many = RAIL_MIN(counts[i], n);
    printf("# a test that waits, of %4d connections in turn: %" PRIu64 " ns of the processor\n", many,
           test_all(requests, many));
  }
  for (int i = 0; i < n; i++) CHECK_OK(ib_dereg_mr(pairs[i].received, mhandles[i]));
  close_pairs(&h, n);
  hs_end(&h);
}

/* ---- a thousand, opened and closed -------------------------------------------------------------------- */

/* Waiting for a thread that has no core costs time, too: the best of several counts. */
TEST(a_thousand) {
  const int n = most_pairs();
  bool in_time = false;
  for (int i = 0; i < TRIES && !in_time; i++) in_time = open_and_close(n) || kit_sanitized();
  CHECK(in_time);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(over_one_port), TEST_CASE(over_three), TEST_CASE(tests_of_many),
                                        TEST_CASE(a_thousand)};
  hs_main();
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
