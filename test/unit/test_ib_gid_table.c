/* SPDX-License-Identifier: Apache-2.0
 * When connections read a port's table of GIDs: which one they choose of it has test_ib_gid. */
#include <sys/resource.h>

#include "test/unit/ib_handshake.h"

static ssize_t (*read_table)(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                             size_t size);
static _Atomic int tables_read;

static ssize_t count_and_read_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
                                    uint32_t flags, size_t size) {
  atomic_fetch_add(&tables_read, 1);
  return read_table(context, entries, max, flags, size);
}

/* Tables of GIDs that a pair of connections reads. */
static int tables_of_a_pair(void) {
  struct hs h;
  int before = atomic_load(&tables_read);
  hs_begin(&h);
  hs_pair(&h, DEV_A1, DEV_B);
  hs_end(&h);
  return atomic_load(&tables_read) - before;
}

static uint64_t changes_of(int dev) { return atomic_load(&ib_device_at(dev, "test")->rails[0]->changes); }

TEST(gids_are_read_where_they_may_have_changed) {
  static const char *const events[] = {"gid_change", "port_err", "port_active", "lid_change", "client_reregister"};
  struct hs h;
  read_table = ib_verbs.query_gid_table;
  ib_verbs.query_gid_table = count_and_read_table;
  (void)tables_of_a_pair();
  for (int i = 0; i < 3; i++) CHECK_INT(tables_of_a_pair(), 0);
  for (size_t i = 0; i < RAIL_COUNT_OF(events); i++) {
    char statement[64];
    uint64_t before = changes_of(DEV_B), deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
    hs_begin(&h); /* the watch thread runs */
    snprintf(statement, sizeof statement, "event emuB %s", events[i]);
    emu_do(statement);
    while (changes_of(DEV_B) == before && !rail_deadline_passed(deadline)) usleep(1000);
    hs_end(&h);
    CHECK_MSG(changes_of(DEV_B) == before + 1, "%s: %" PRIu64 " changes", events[i], changes_of(DEV_B) - before);
    CHECK_INT(tables_of_a_pair(), 1);
    CHECK_INT(tables_of_a_pair(), 0);
  }
  hs_begin(&h);
  emu_do("fail modify_qp to=rtr errno=EINVAL");
  hs_listen(&h, DEV_B);
  hs_run_connect(&h, DEV_A1);
  CHECK(h.connect != RAIL_OK && hs_logged("RTR"));
  hs_end(&h);
  CHECK(tables_of_a_pair() > 0);
  CHECK_INT(tables_of_a_pair(), 0);
  const uint64_t connector = changes_of(DEV_IB), acceptor = changes_of(DEV_B);
  hs_begin(&h);
  hs_listen(&h, DEV_B);
  hs_run_connect(&h, DEV_IB);
  CHECK(h.connect != RAIL_OK && hs_logged("do not fit")); /* whose GID is the wrong one is not known */
  hs_end(&h);
  CHECK(changes_of(DEV_IB) > connector && changes_of(DEV_B) > acceptor);
  ib_verbs.query_gid_table = read_table;
}

/* ---- one by one ---- */

static int (*read_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
static int gid_error; /* of the second GID; 0: none */

static ssize_t no_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                        size_t size) {
  (void)context, (void)entries, (void)max, (void)flags, (void)size;
  atomic_fetch_add(&tables_read, 1);
  return -EOPNOTSUPP;
}

static int fail_one_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  if (index != 1 || !gid_error) return read_gid(context, port, index, gid);
  errno = gid_error;
  return -1;
}

static int tables_of_a_query(void) {
  struct ib_port_attr now;
  int before = atomic_load(&tables_read);
  ENSURE_INT(ib_port_query(ib_device_at(DEV_B, "test")->rails[0], &now), RAIL_OK);
  return atomic_load(&tables_read) - before;
}

static void fail_with(int error, bool kept) {
  gid_error = error;
  ib_port_forget_gids(ib_device_at(DEV_B, "test")->rails[0]);
  CHECK_INT(tables_of_a_query(), 1);
  CHECK_INT(tables_of_a_query(), kept ? 0 : 1);
  gid_error = 0;
}

/* There is no descriptor for the file of a GID's type; poll, with one descriptor, is allowed. */
static void read_without_descriptors(void) {
  struct rlimit files;
  ENSURE_INT(getrlimit(RLIMIT_NOFILE, &files), 0);
  const struct rlimit none = {.rlim_cur = 3, .rlim_max = files.rlim_max};
  ENSURE_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
  int first = tables_of_a_query(), second = tables_of_a_query();
  ENSURE_INT(setrlimit(RLIMIT_NOFILE, &files), 0);
  CHECK_INT(first, 1);
  CHECK_INT(second, 1);
}

TEST(what_was_read_badly_is_not_kept) {
  read_table = ib_verbs.query_gid_table;
  read_gid = ib_verbs.query_gid;
  ib_verbs.query_gid_table = no_table;
  ib_verbs.query_gid = fail_one_gid;
  fail_with(EINVAL, true); /* a hole */
  fail_with(EMFILE, false);
  fail_with(ENFILE, false);
  fail_with(ENOMEM, false);
  ib_port_forget_gids(ib_device_at(DEV_B, "test")->rails[0]);
  read_without_descriptors();
  CHECK_INT(tables_of_a_query(), 1);
  CHECK_INT(tables_of_a_query(), 0);
  ib_verbs.query_gid = read_gid;
  ib_verbs.query_gid_table = read_table;
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(gids_are_read_where_they_may_have_changed),
                                          TEST_CASE(what_was_read_badly_is_not_kept)};
  hs_main();
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
